//! Counters of a gateway's work.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use crate::relay::{Published, SetAside};
use delayline_core::histogram::{Counted, Histogram};

/// The upper bounds of lateness, in seconds.
const LATE_BOUNDS: &[f64] = &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0];

/// Counters that the daemons of one process share; see [`Gateway::counting`](super::Gateway::counting).
#[derive(Debug)]
pub struct GatewayStats {
    taken: AtomicU64,
    delayed: AtomicU64,
    delivered: AtomicU64,
    set_aside: AtomicU64,
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
        let zero = || AtomicU64::new(0);
        let late = Histogram::new(LATE_BOUNDS);
        Self { taken: zero(), delayed: zero(), delivered: zero(), set_aside: zero(), late }
    }
}

impl GatewayStats {
    /// The counts so far.
    #[must_use]
    pub fn counts(&self) -> GatewayCounts {
        GatewayCounts {
            taken: self.taken.load(Relaxed),
            delayed: self.delayed.load(Relaxed),
            delivered: self.delivered.load(Relaxed),
            set_aside: self.set_aside.load(Relaxed),
            late: self.late.counted(),
        }
    }

    pub(super) fn take(&self) {
        self.taken.fetch_add(1, Relaxed);
    }

    pub(super) fn delay(&self) {
        self.delayed.fetch_add(1, Relaxed);
    }

    /// A message goes to the consumers.
    pub(super) fn deliver(&self) {
        self.delivered.fetch_add(1, Relaxed);
    }

    pub(super) fn refuse(&self) {
        self.set_aside.fetch_add(1, Relaxed);
    }
}

impl Published for GatewayStats {
    fn published(&self, late: Duration) {
        self.deliver();
        self.late.observe(late);
    }
}

impl SetAside for GatewayStats {
    fn refused(&self, _: &str) {
        self.refuse();
    }

    fn unreadable(&self, _: &str) {
        self.refuse();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lateness_is_counted_with_deliveries() {
        let stats = GatewayStats::default();
        stats.deliver();
        stats.published(Duration::from_millis(3));
        let counts = stats.counts();
        assert_eq!((counts.delivered, counts.late.count), (2, 1));
    }
}
