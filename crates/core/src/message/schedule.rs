//! From "in 90 seconds" to a due time and the remaining delay.

use std::time::{Duration, Instant};

use jiff::Timestamp;

use crate::{
    codec::{Delay, DelayError, Tolerance},
    topology::Unit,
};

use super::{Handle, When};

/// The due time of one message, fixed when the router receives it.
///
/// The remaining delay is measured on the monotonic clock. So setting the wall clock while the
/// message is in flight changes nothing.
#[derive(Debug, Clone, Copy)]
pub struct Schedule {
    delay: Delay,
    unit: Unit,
    taken: Instant,
    due: Timestamp,
    /// Whether the delay stays the same even if the message is sent late.
    fixed: bool,
}

impl Schedule {
    /// Fixes the due time, counted from `now`: the requested delay, lengthened within the tolerance
    /// if that saves hops in a set with or without `shortcuts`.
    ///
    /// # Errors
    /// [`DelayError::TooLong`] if the instant is more than 2^28 - 1 units away.
    pub fn new(
        when: When,
        tolerance: Tolerance,
        (unit, shortcuts): (Unit, bool),
        now: Timestamp,
        taken: Instant,
    ) -> Result<Self, DelayError> {
        let asked = match when {
            When::After(delay) => delay,
            When::At(instant) => match Duration::try_from(instant.duration_since(now)) {
                Ok(ahead) => Delay::at_least_units(ahead, unit.duration())?,
                Err(_) => Delay::ZERO,
            },
        };
        let delay = tolerance.round_for(asked, shortcuts);
        // Only a wrong clock leads beyond the last timestamp. Then the header contains the last
        // timestamp, and the delay still applies.
        let due = now.saturating_add(delay.duration(unit.duration())).unwrap_or(Timestamp::MAX);
        Ok(Self { delay, unit, taken, due, fixed: false })
    }

    /// The schedule of a message that is sent again under its earlier key, since that is its
    /// handle. It may arrive late by the time that has passed until now.
    pub(crate) fn again(handle: &Handle, unit: Unit, taken: Instant) -> Self {
        let due = handle.due().unwrap_or(Timestamp::MAX);
        Self { delay: handle.routing_key().delay, unit, taken, due, fixed: true }
    }

    /// The whole delay, including the time that the tolerance added.
    #[must_use]
    pub fn delay(&self) -> Delay {
        self.delay
    }

    /// When the message is due.
    #[must_use]
    pub fn due(&self) -> Timestamp {
        self.due
    }

    /// The delay to write into the routing key of a message that is sent at `now`: the remaining
    /// time, rounded up. So a message that waited in the router or is sent a second time arrives
    /// late by less than a unit, and never early.
    #[must_use]
    pub fn remaining(&self, now: Instant) -> Delay {
        if self.fixed {
            return self.delay;
        }
        let waited = now.saturating_duration_since(self.taken);
        let left = self.delay.duration(self.unit.duration()).saturating_sub(waited);
        Delay::at_least_units(left, self.unit.duration()).unwrap_or(self.delay)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: Unit = Unit::SECOND;

    fn seconds(value: u64) -> Delay {
        Delay::from_seconds(value).unwrap()
    }

    #[test]
    fn shrinks_while_the_message_waits_and_rounds_up() {
        let (now, taken) = (Timestamp::UNIX_EPOCH, Instant::now());
        let schedule =
            Schedule::new(When::After(seconds(10)), Tolerance::NONE, (UNIT, false), now, taken).unwrap();
        let after = |ms| schedule.remaining(taken + Duration::from_millis(ms)).seconds();
        assert_eq!((after(0), after(1), after(999), after(1_000), after(1_001)), (10, 10, 10, 9, 9));
        assert_eq!((after(9_999), after(10_000), after(60_000)), (1, 0, 0));
        assert_eq!(schedule.due().as_millisecond(), 10_000);
    }

    #[test]
    fn an_instant_is_rounded_up_and_the_past_is_now() {
        let now: Timestamp = "2026-01-01T00:00:00.25Z".parse().unwrap();
        let at = |text: &str| {
            let when = When::At(text.parse().unwrap());
            Schedule::new(when, Tolerance::NONE, (UNIT, false), now, Instant::now())
                .map(|s| s.due().to_string())
        };
        assert_eq!(at("2026-01-01T00:00:02Z").unwrap(), "2026-01-01T00:00:02.25Z");
        assert_eq!(at("2020-01-01T00:00:00Z").unwrap(), now.to_string());
        assert!(at("2050-01-01T00:00:00Z").is_err());
    }

    #[test]
    fn the_due_time_includes_the_tolerance() {
        let (now, taken) = (Timestamp::UNIX_EPOCH, Instant::now());
        let tolerance = "1s".parse().unwrap();
        let schedule =
            Schedule::new(When::After(seconds(1_023)), tolerance, (UNIT, false), now, taken).unwrap();
        assert_eq!(schedule.due().as_second(), 1_024);
        assert_eq!(schedule.remaining(taken), seconds(1_024));
    }

    #[test]
    fn counts_units() {
        let unit = Unit::from_millis(10).unwrap();
        let (now, taken) = (Timestamp::UNIX_EPOCH, Instant::now());
        let schedule =
            Schedule::new(When::After(seconds(7)), Tolerance::NONE, (unit, false), now, taken).unwrap();
        assert_eq!(schedule.due().as_millisecond(), 70);
        assert_eq!(schedule.remaining(taken + Duration::from_millis(11)), seconds(6));
        let at = When::At(Timestamp::from_millisecond(15).unwrap());
        let schedule = Schedule::new(at, Tolerance::NONE, (unit, false), now, taken).unwrap();
        assert_eq!(schedule.remaining(taken), seconds(2));
    }
}
