//! When to try again, and when to stop trying.

use crate::codec::{Delay, Tolerance};

/// How often a message is tried again, and after which delays.
///
/// ```
/// use delayline::retry::{Backoff, Policy};
///
/// let backoff = Backoff::Exponential { base: "10s".parse()?, factor: 2.0, cap: "1m".parse()? };
/// let policy = Policy::new(backoff).with_attempts(5);
/// let delays: Vec<_> = (1..=5).map(|attempt| policy.delay(attempt, 0.0).seconds()).collect();
/// assert_eq!(delays, [10, 20, 40, 60, 60]);
/// # Ok::<(), delayline::codec::DelayError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Policy {
    /// The delay before each attempt, before jitter.
    pub backoff: Backoff,
    /// How the delay is randomised.
    pub jitter: Jitter,
    /// The number of retries, 0 to 1,000. With 0, a message is parked at once.
    pub attempts: u32,
    /// The longest time from the first failure to the last retry; no limit if `None`.
    pub max_age: Option<Delay>,
}

/// The delay before each attempt.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Backoff {
    /// The same delay each time.
    Fixed(Delay),
    /// `base` at first, then `factor` times longer each time, up to `cap`.
    Exponential {
        /// The first delay.
        base: Delay,
        /// The factor from one delay to the next, 1 to 100.
        factor: f64,
        /// The longest delay.
        cap: Delay,
    },
    /// One after the other. If there are more attempts, the last one is repeated. An empty list
    /// means a delay of 0.
    List(Vec<Delay>),
}

/// How attempts are spread, so that messages that failed together are not retried together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Jitter {
    /// No jitter.
    None,
    /// From zero to the whole delay.
    Full,
    /// Half of the delay, plus a random part of the other half.
    Equal,
    /// The delay with the fewest queues that is longer by at most this much. It is not random, but
    /// costs the broker the least work.
    HopAware(Tolerance),
}

impl Policy {
    /// The most attempts a policy may ask for.
    pub const MAX_ATTEMPTS: u32 = 1_000;

    /// No retries: a message that failed is parked at once.
    pub const NEVER: Self =
        Self { backoff: Backoff::Fixed(Delay::ZERO), jitter: Jitter::None, attempts: 0, max_age: None };

    /// A policy with these delays, no jitter and no maximum age. It allows 10 attempts, or as many
    /// as a list has delays.
    #[must_use]
    pub fn new(backoff: Backoff) -> Self {
        let attempts = match &backoff {
            Backoff::List(delays) => u32::try_from(delays.len()).unwrap_or(u32::MAX).min(Self::MAX_ATTEMPTS),
            Backoff::Fixed(_) | Backoff::Exponential { .. } => 10,
        };
        Self { backoff, jitter: Jitter::None, attempts, max_age: None }
    }

    /// Sets the number of retries, at most [`MAX_ATTEMPTS`](Self::MAX_ATTEMPTS).
    #[must_use]
    pub fn with_attempts(mut self, attempts: u32) -> Self {
        self.attempts = attempts.min(Self::MAX_ATTEMPTS);
        self
    }

    /// Spreads the attempts.
    #[must_use]
    pub fn with_jitter(mut self, jitter: Jitter) -> Self {
        self.jitter = jitter;
        self
    }

    /// Sets the longest time from the first failure to the last retry.
    #[must_use]
    pub fn with_max_age(mut self, age: Delay) -> Self {
        self.max_age = Some(age);
        self
    }

    /// The delay before an attempt, counted from 1. `random` is from 0 up to, but not including, 1.
    #[must_use]
    pub fn delay(&self, attempt: u32, random: f64) -> Delay {
        let full = self.backoff.delay(attempt);
        let (shortest, longest) = self.jitter.bounds(full);
        match self.jitter {
            Jitter::None | Jitter::HopAware(_) => shortest,
            Jitter::Full | Jitter::Equal => {
                let choices = f64::from(longest.seconds() - shortest.seconds()) + 1.0;
                delay(f64::from(shortest.seconds()) + (random.clamp(0.0, 1.0) * choices).floor()).min(longest)
            }
        }
    }

    /// The shortest and the longest random delay of an attempt.
    #[must_use]
    pub fn bounds(&self, attempt: u32) -> (Delay, Delay) {
        self.jitter.bounds(self.backoff.delay(attempt))
    }

    /// The attempts with the range of their delays, assuming that each attempt fails at once.
    /// Attempts that would certainly exceed the maximum age are left out.
    pub fn schedule(&self) -> impl Iterator<Item = Step> + '_ {
        let mut total = (0_u64, 0_u64);
        (1..=self.attempts)
            .map(move |attempt| {
                let (shortest, longest) = self.bounds(attempt);
                total.0 += u64::from(shortest.seconds());
                total.1 += u64::from(longest.seconds());
                Step { attempt, shortest, longest, after: total }
            })
            .take_while(|step| self.max_age.is_none_or(|age| step.after.0 <= age.seconds().into()))
    }
}

impl Default for Policy {
    /// Ten attempts after 10 s, 20 s, 40 s, … 1 h at most; no jitter, no maximum
    /// age.
    fn default() -> Self {
        let [base, cap] = [10, 3_600].map(|seconds| delay(f64::from(seconds)));
        Self::new(Backoff::Exponential { base, factor: 2.0, cap })
    }
}

/// One attempt of a schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Step {
    /// Its number, from 1.
    pub attempt: u32,
    /// The shortest delay before it.
    pub shortest: Delay,
    /// The longest delay before it.
    pub longest: Delay,
    /// The earliest and the latest time after the first failure, in s (units of the set).
    pub after: (u64, u64),
}

impl Step {
    /// The largest number of queues that it can pass.
    #[must_use]
    pub fn hops(&self) -> u32 {
        // Setting the lowest clear bit is the cheapest way to add a hop. The result stays in the
        // range unless it is too large.
        let mut most = self.shortest.seconds();
        while most | (most + 1) <= self.longest.seconds() {
            most |= most + 1;
        }
        most.count_ones()
    }
}

impl Backoff {
    /// The delay before an attempt, counted from 1. Fractions of a second round
    /// up.
    #[must_use]
    pub fn delay(&self, attempt: u32) -> Delay {
        let earlier = attempt.saturating_sub(1);
        match self {
            Self::Fixed(delay) => *delay,
            Self::Exponential { base, factor, cap } => {
                let exponent = i32::try_from(earlier).unwrap_or(i32::MAX);
                delay(f64::from(base.seconds()) * factor.powi(exponent)).min(*cap)
            }
            Self::List(delays) => {
                let index = usize::try_from(earlier).unwrap_or(usize::MAX);
                delays.get(index).or(delays.last()).copied().unwrap_or_default()
            }
        }
    }
}

impl Jitter {
    fn bounds(self, full: Delay) -> (Delay, Delay) {
        match self {
            Self::None => (full, full),
            Self::Full => (Delay::ZERO, full),
            Self::Equal => (delay(f64::from(full.seconds()) / 2.0), full),
            Self::HopAware(window) => {
                let rounded = window.round(full);
                (rounded, rounded)
            }
        }
    }
}

/// Removes the rounding error of floats, which is no real fraction of a second: 100 s x 1.1 are
/// 110.00000000000001 s.
const ROUNDING: f64 = 1e-6;

/// This many seconds, rounded up, 2^28 - 1 at most.
fn delay(seconds: f64) -> Delay {
    // The cast saturates, and turns a NaN into 0.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it saturates")]
    Delay::from_seconds((seconds - ROUNDING).ceil() as u64).unwrap_or(Delay::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(value: u64) -> Delay {
        Delay::from_seconds(value).unwrap()
    }

    fn policy(backoff: Backoff, jitter: Jitter) -> Policy {
        Policy { backoff, jitter, attempts: 5, max_age: None }
    }

    fn delays(policy: &Policy) -> Vec<u32> {
        (1..=5).map(|attempt| policy.delay(attempt, 0.0).seconds()).collect()
    }

    #[test]
    fn a_rounding_error_adds_no_second() {
        let backoff = Backoff::Exponential { base: seconds(100), factor: 1.1, cap: seconds(1_000) };
        // 100 x 1.1 is 110.00000000000001 in floats.
        assert_eq!(delays(&policy(backoff, Jitter::None)), [100, 110, 121, 134, 147]);
    }

    #[test]
    fn follows_the_backoff() {
        let exponential = |factor| Backoff::Exponential { base: seconds(10), factor, cap: seconds(40) };
        let list = Backoff::List(vec![seconds(60), seconds(300), seconds(900)]);
        for (backoff, expected) in [
            (Backoff::Fixed(seconds(7)), [7, 7, 7, 7, 7]),
            (exponential(2.0), [10, 20, 40, 40, 40]),
            (exponential(1.5), [10, 15, 23, 34, 40]),
            (exponential(1.0), [10, 10, 10, 10, 10]),
            (list, [60, 300, 900, 900, 900]),
            (Backoff::List(vec![]), [0, 0, 0, 0, 0]),
        ] {
            assert_eq!(delays(&policy(backoff, Jitter::None)), expected);
        }
    }

    #[test]
    fn a_high_attempt_reaches_the_cap_and_not_infinity() {
        let backoff = Backoff::Exponential { base: seconds(1), factor: 100.0, cap: Delay::MAX };
        assert_eq!(backoff.delay(u32::MAX), Delay::MAX);
    }

    #[test]
    fn spreads() {
        let spread = |jitter, random| policy(Backoff::Fixed(seconds(9)), jitter).delay(1, random).seconds();
        assert_eq!([0.0, 0.5, 0.999].map(|random| spread(Jitter::Full, random)), [0, 5, 9]);
        assert_eq!([0.0, 0.5, 0.999].map(|random| spread(Jitter::Equal, random)), [5, 7, 9]);
        let window = Jitter::HopAware("100%".parse().unwrap());
        assert_eq!([0.0, 0.999].map(|random| spread(window, random)), [16, 16]);
    }

    #[test]
    fn a_schedule_ends_at_the_maximum_age() {
        let list = Backoff::List(vec![seconds(1), seconds(2), seconds(4)]);
        let mut policy = policy(list, Jitter::None);
        let after = |policy: &Policy| policy.schedule().map(|step| step.after.1).collect::<Vec<_>>();
        assert_eq!(after(&policy), [1, 3, 7, 11, 15]);
        policy.max_age = Some(seconds(7));
        assert_eq!(after(&policy), [1, 3, 7]);
    }

    #[test]
    fn counts_the_hops_of_the_worst_delay_in_a_range() {
        let hops = |shortest, longest| {
            Step { attempt: 1, shortest: seconds(shortest), longest: seconds(longest), after: (0, 0) }.hops()
        };
        assert_eq!([hops(5, 5), hops(0, 8), hops(4, 8), hops(512, 1_023), hops(0, 0)], [2, 3, 3, 10, 0]);
    }
}
