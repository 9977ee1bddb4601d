//! Counters of the work of routers.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
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
    published: AtomicU64,
    confirmed: AtomicU64,
    nacked: AtomicU64,
    returned: AtomicU64,
    rejected: AtomicU64,
    connections: AtomicU64,
    lost: AtomicU64,
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
        let zero = || AtomicU64::new(0);
        Self {
            published: zero(),
            confirmed: zero(),
            nacked: zero(),
            returned: zero(),
            rejected: zero(),
            connections: zero(),
            lost: zero(),
            confirm: Histogram::new(CONFIRM_BOUNDS),
        }
    }
}

impl Stats {
    /// The current numbers.
    #[must_use]
    pub fn counts(&self) -> Counts {
        Counts {
            published: self.published.load(Relaxed),
            confirmed: self.confirmed.load(Relaxed),
            nacked: self.nacked.load(Relaxed),
            returned: self.returned.load(Relaxed),
            rejected: self.rejected.load(Relaxed),
            reconnects: self.connections.load(Relaxed).saturating_sub(1),
            lost: self.lost.load(Relaxed),
            confirm: self.confirm.counted(),
        }
    }

    pub(super) fn publish(&self) {
        self.published.fetch_add(1, Relaxed);
    }

    pub(super) fn confirm(&self, took: Duration) {
        self.confirmed.fetch_add(1, Relaxed);
        self.confirm.observe(took);
    }

    pub(super) fn nack(&self) {
        self.nacked.fetch_add(1, Relaxed);
    }

    pub(super) fn come_back(&self) {
        self.returned.fetch_add(1, Relaxed);
    }

    pub(super) fn reject(&self) {
        self.rejected.fetch_add(1, Relaxed);
    }

    pub(super) fn lose(&self) {
        self.lost.fetch_add(1, Relaxed);
    }

    pub(super) fn connect(&self) {
        self.connections.fetch_add(1, Relaxed);
    }
}
