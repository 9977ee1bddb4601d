//! Pauses between attempts and between changes.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

/// How often a wait looks whether to end.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Waits for this time, or until `stop` is set. Returns whether to go on.
pub fn wait(stop: &AtomicBool, time: Duration) -> bool {
    let begun = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        let left = time.saturating_sub(begun.elapsed());
        if left.is_zero() {
            return true;
        }
        thread::sleep(left.min(LOOK_EVERY));
    }
    false
}

/// Pauses that double with each attempt that failed, up to a limit.
#[derive(Debug, Clone, Copy)]
pub struct Doubling {
    first: Duration,
    most: Duration,
}

impl Doubling {
    /// Between attempts to connect to a broker: from 100 ms to 5 s.
    pub const RECONNECT: Self = Self::new(Duration::from_millis(100), Duration::from_secs(5));

    /// Pauses from `first` to `most`.
    #[must_use]
    pub const fn new(first: Duration, most: Duration) -> Self {
        Self { first, most }
    }

    /// The pause after this many failed attempts. With 0 it is the first one.
    #[must_use]
    pub fn pause(self, failed: u32) -> Duration {
        self.first.saturating_mul(2_u32.saturating_pow(failed)).min(self.most)
    }

    /// The same, but half of it is random, so that many clients do not reconnect together.
    #[must_use]
    pub fn spread(self, failed: u32) -> Duration {
        self.pause(failed).mul_f64(0.5 + fastrand::f64() / 2.0)
    }
}

/// Spreads changes evenly, so that there are at most so many a second.
#[derive(Debug)]
pub struct Pace {
    apart: Duration,
    next: Instant,
}

impl Pace {
    /// At most this many a second, at least 1; `None` for no limit.
    #[must_use]
    pub fn new(per_second: Option<u32>) -> Self {
        let apart = per_second.map_or(Duration::ZERO, |rate| Duration::from_secs(1) / rate.max(1));
        Self { apart, next: Instant::now() }
    }

    /// Waits until the next change may be made.
    pub fn wait(&mut self) {
        let now = Instant::now();
        thread::sleep(self.next.saturating_duration_since(now));
        // A slow change is not followed by faster ones.
        self.next = self.next.max(now) + self.apart;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_up_to_the_limit() {
        let pauses =
            [0, 1, 2, 5, 6, 40, u32::MAX].map(|failed| Doubling::RECONNECT.pause(failed).as_millis());
        assert_eq!(pauses, [100, 200, 400, 3_200, 5_000, 5_000, 5_000]);
    }

    #[test]
    fn a_wait_ends_when_it_is_stopped() {
        assert!(wait(&AtomicBool::new(false), Duration::ZERO));
        assert!(!wait(&AtomicBool::new(true), Duration::from_secs(3_600)));
    }

    #[test]
    fn half_of_it_is_random() {
        let pauses: Vec<_> = (0..100).map(|_| Doubling::RECONNECT.spread(3)).collect();
        let (least, most) = (Duration::from_millis(400), Duration::from_millis(800));
        assert!(pauses.iter().all(|pause| (least..=most).contains(pause)), "{pauses:?}");
        assert!(pauses.iter().any(|pause| *pause != pauses[0]));
    }
}
