//! Deliveries that the client library has not read yet.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// The deliveries of a connection.
#[derive(Debug, Clone, Default)]
pub(super) struct Arrivals(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    /// Those that cannot be represented, by channel and tag.
    damaged: HashSet<(u16, u64)>,
    /// The most bytes of bodies that may be unacknowledged; `None` without a limit.
    most: Option<usize>,
    /// The bytes of unacknowledged bodies, including those that have only been announced.
    held: usize,
    largest: usize,
    overflow: bool,
}

impl Arrivals {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a delivery that cannot be represented.
    pub(super) fn note_damage(&self, channel: u16, tag: u64) {
        self.inner().damaged.insert((channel, tag));
    }

    /// Forgets the damage of an earlier channel with the same number.
    pub(super) fn forget(&self, channel: u16) {
        self.inner().damaged.retain(|(other, _)| *other != channel);
    }

    /// Whether a delivery is damaged. The call forgets it.
    pub(super) fn take_damage(&self, channel: u16, tag: u64) -> bool {
        let mut inner = self.inner();
        !inner.damaged.is_empty() && inner.damaged.remove(&(channel, tag))
    }

    /// All damaged deliveries.
    pub(super) fn damaged(&self) -> HashSet<(u16, u64)> {
        self.inner().damaged.clone()
    }

    /// Counts the bytes of bodies from now on. More than `most` overflow, unless a single body is larger.
    pub(super) fn limit(&self, most: usize) {
        let mut inner = self.inner();
        (inner.most, inner.held) = (Some(most), 0);
    }

    /// Notes that a body of this length follows.
    pub(super) fn announce(&self, body: u64) {
        let mut inner = self.inner();
        let Some(most) = inner.most else { return };
        let body = usize::try_from(body).unwrap_or(usize::MAX);
        inner.largest = inner.largest.max(body);
        inner.overflow |= inner.held > 0 && inner.held.saturating_add(body) > most;
        inner.held = inner.held.saturating_add(body);
    }

    /// Notes that a delivery with a body of this length is acknowledged.
    pub(super) fn settle(&self, body: usize) {
        let mut inner = self.inner();
        inner.held = inner.held.saturating_sub(body);
    }

    /// The length of the largest body, once there was an overflow.
    pub(super) fn overflow(&self) -> Option<usize> {
        let inner = self.inner();
        inner.overflow.then_some(inner.largest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_the_limit_overflow_but_not_a_single_body() {
        let arrivals = Arrivals::default();
        arrivals.announce(1_000);
        arrivals.limit(100);
        for _ in 0..3 {
            arrivals.announce(300);
            assert_eq!(arrivals.overflow(), None, "a single one");
            arrivals.settle(300);
        }
        arrivals.announce(60);
        arrivals.announce(40);
        assert_eq!(arrivals.overflow(), None);
        arrivals.announce(1);
        arrivals.settle(60);
        assert_eq!(arrivals.overflow(), Some(300), "it lasts");
    }
}
