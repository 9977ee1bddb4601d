//! Counters of the work of routers.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use delayline_core::histogram::{Counted, Histogram};

/// The upper bounds of confirm times, in seconds.
const CONFIRM_BOUNDS: &[f64] =
    &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0];

/// Counters that several routers can share; see
/// [`RouterBuilder::counting`](super::RouterBuilder::counting).
#[derive(Debug)]
pub struct Stats {
    /// Each connection is in `reconnects` here. The histogram is empty.
    counts: Mutex<Counts>,
    confirm: Histogram,
}

/// The counts at one moment.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct Counts {
    /// Messages written to a connection; a message that is written again counts again.
    pub published: u64,
    /// Messages that the broker confirmed.
    pub confirmed: u64,
    /// Messages that it refused to store.
    pub nacked: u64,
    /// Messages that were routed to no queue.
    pub returned: u64,
    /// Messages over which the broker closed the channel.
    pub rejected: u64,
    /// Reconnections.
    pub reconnects: u64,
    /// Connections that were lost, or given up because the broker was silent.
    pub lost: u64,
    /// The time from the last write of a message to its confirm.
    pub confirm: Counted,
}

impl Default for Stats {
    fn default() -> Self {
        Self { counts: Mutex::default(), confirm: Histogram::new(CONFIRM_BOUNDS) }
    }
}

impl Stats {
    /// The current numbers.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // The first connection is no reconnection.
        let reconnects = counts.reconnects.saturating_sub(1);
        Counts { reconnects, confirm: self.confirm.counted(), ..counts }
    }

    pub(super) fn count(&self, count: impl FnOnce(&mut Counts)) {
        count(&mut self.counts.lock().unwrap_or_else(PoisonError::into_inner));
    }

    pub(super) fn confirm(&self, took: Duration) {
        self.count(|counts| counts.confirmed += 1);
        self.confirm.observe(took);
    }
}
