//! Counting durations in fixed buckets, from any thread, without a lock.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// Counts durations by length.
#[derive(Debug)]
pub struct Histogram {
    bounds: &'static [f64],
    /// One count for each bound, and one for values over the last bound.
    counts: Vec<AtomicU64>,
    micros: AtomicU64,
}

/// The counts of a [`Histogram`] so far.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct Counted {
    /// The upper bound of each bucket in seconds, the last one infinite, and the number of
    /// durations in that bucket alone.
    pub buckets: Vec<(f64, u64)>,
    /// The sum of all durations, in seconds.
    pub seconds: f64,
    /// The number of durations.
    pub count: u64,
}

impl Histogram {
    /// Buckets with these upper bounds in seconds, in rising order.
    #[must_use]
    pub fn new(bounds: &'static [f64]) -> Self {
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self { bounds, counts, micros: AtomicU64::new(0) }
    }

    /// Counts one duration.
    pub fn observe(&self, duration: Duration) {
        let seconds = duration.as_secs_f64();
        let bucket = self.bounds.partition_point(|bound| *bound < seconds);
        self.counts[bucket].fetch_add(1, Relaxed);
        self.micros.fetch_add(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX), Relaxed);
    }

    /// The counts so far.
    #[must_use]
    pub fn counted(&self) -> Counted {
        let bounds = self.bounds.iter().copied().chain([f64::INFINITY]);
        let buckets: Vec<_> =
            bounds.zip(&self.counts).map(|(bound, count)| (bound, count.load(Relaxed))).collect();
        let count = buckets.iter().map(|(_, count)| count).sum();
        #[expect(clippy::cast_precision_loss, reason = "285 years of microseconds fit exactly")]
        let seconds = self.micros.load(Relaxed) as f64 / 1e6;
        Counted { buckets, seconds, count }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_is_in_its_own_bucket() {
        let histogram = Histogram::new(&[0.001, 1.0]);
        for ms in [0, 1, 2, 1_000, 1_001] {
            histogram.observe(Duration::from_millis(ms));
        }
        let counted = histogram.counted();
        assert_eq!(counted.buckets, [(0.001, 2), (1.0, 2), (f64::INFINITY, 1)]);
        assert_eq!((counted.count, counted.seconds), (5, 2.004));
    }
}
