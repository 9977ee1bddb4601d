//! Counters of a gateway's work.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use crate::relay::{DueCounter, RefusalCounter};
use delayline_core::histogram::{Counted, Histogram};

/// The upper bounds of lateness, in seconds.
const LATE_BOUNDS: &[f64] = &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0];

/// Counters that the daemons of one process share; see [`Gateway::counting`](super::Gateway::counting).
#[derive(Debug)]
pub struct GatewayStats {
    /// The histogram is empty here.
    counts: Mutex<GatewayCounts>,
    late: Histogram,
}

/// The counters of all gateways of one process.
#[derive(Debug, Default)]
pub struct GatewayCounters(Mutex<BTreeMap<String, Arc<GatewayStats>>>);

impl GatewayCounters {
    /// The counters of one gateway, which begin at 0.
    pub fn of(&self, gateway: &str) -> Arc<GatewayStats> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(all.entry(gateway.to_owned()).or_default())
    }

    /// The counts so far, by gateway.
    #[must_use]
    pub fn counts(&self) -> BTreeMap<String, GatewayCounts> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().map(|(gateway, stats)| (gateway.clone(), stats.counts())).collect()
    }
}

/// The counts at one moment.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct GatewayCounts {
    /// Messages that publishers sent.
    pub taken: u64,
    /// Published messages that were sent to the levels.
    pub delayed: u64,
    /// Messages that were published to the exchange of the consumers.
    pub delivered: u64,
    /// Messages that could not be sent on, and are in the unroutable queue.
    pub set_aside: u64,
    /// How late delayed messages were when they were published to the consumers' exchange.
    pub late: Counted,
}

impl Default for GatewayStats {
    fn default() -> Self {
        Self { counts: Mutex::default(), late: Histogram::new(LATE_BOUNDS) }
    }
}

impl GatewayStats {
    /// The counts so far.
    #[must_use]
    pub fn counts(&self) -> GatewayCounts {
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner).clone();
        GatewayCounts { late: self.late.counted(), ..counts }
    }

    pub(super) fn count(&self, count: impl FnOnce(&mut GatewayCounts)) {
        count(&mut self.counts.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl DueCounter for GatewayStats {
    fn published(&self, late: Duration) {
        self.count(|counts| counts.delivered += 1);
        self.late.observe(late);
    }
}

impl RefusalCounter for GatewayStats {
    fn refused(&self, _: &str) {
        self.count(|counts| counts.set_aside += 1);
    }

    fn unreadable(&self, _: &str) {
        self.count(|counts| counts.set_aside += 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lateness_is_counted_with_deliveries() {
        let stats = GatewayStats::default();
        stats.count(|counts| counts.delivered += 1);
        stats.published(Duration::from_millis(3));
        let counts = stats.counts();
        assert_eq!((counts.delivered, counts.late.count), (2, 1));
    }
}
