//! A delay in whole seconds, and the ways to write it.

use std::{fmt, str::FromStr, time::Duration};

use jiff::Timestamp;

use super::{LEVELS, Level};
use crate::duration::{self, DurationError};

/// How long a message is delayed: 0 to 268,435,455 whole seconds (8.5 years).
///
/// On a set that was installed with another unit of time (tests use 1 ms) it
/// counts those units instead.
///
/// ```
/// use delayline::codec::Delay;
///
/// let delay: Delay = "1h30m".parse()?;
/// assert_eq!(delay.seconds(), 5_400);
/// assert_eq!(delay.hops(), 5); // 5,400 = 0b1010100011000
/// # Ok::<(), delayline::codec::DelayError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Delay(u32);

/// Why something is not a [`Delay`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DelayError {
    /// Longer than 28 bits of seconds can express.
    #[error(
        "a delay of {asked} exceeds the limit of 268435455 s (about 8.5 years); \
         use a shorter delay and send the message on when it arrives"
    )]
    TooLong {
        /// The requested delay.
        asked: String,
    },
    /// It is negative.
    #[error("a delay cannot be negative: `{asked}`; use 0s for at once")]
    Negative {
        /// The requested delay.
        asked: String,
    },
    /// Not a duration.
    #[error(
        "`{text}` is not a delay ({reason}); write seconds (`90`) or units (`90s`, `1h30m`, `2d`, `1.5y`)"
    )]
    Unreadable {
        /// The given text.
        text: String,
        /// The fault in it.
        reason: String,
    },
    /// Months have no fixed length.
    #[error(
        "`{text}` counts months, which have no fixed length; write days (`30d`), weeks (`4w`) or years \
         (`0.25y`), and `m` for minutes"
    )]
    CalendarUnit {
        /// The given text.
        text: String,
    },
}

impl Delay {
    /// No delay.
    pub const ZERO: Self = Self(0);
    /// The longest delay: 2^28 - 1 s.
    pub const MAX: Self = Self((1 << LEVELS) - 1);

    /// A delay of whole seconds.
    ///
    /// # Errors
    /// [`DelayError::TooLong`] over 268,435,455.
    pub fn from_seconds(seconds: u64) -> Result<Self, DelayError> {
        match u32::try_from(seconds) {
            Ok(value) if value <= Self::MAX.0 => Ok(Self(value)),
            _ => Err(DelayError::TooLong { asked: format!("{seconds} s") }),
        }
    }

    /// A delay that is at least `duration`: fractions of a second round up, so
    /// that nothing is ever early.
    ///
    /// # Errors
    /// [`DelayError::TooLong`] if it rounds to more than 268,435,455 s.
    pub fn at_least(duration: Duration) -> Result<Self, DelayError> {
        Self::at_least_units(duration, Duration::from_secs(1))
    }

    /// Like [`Delay::at_least`], on a set whose unit of time is `unit`.
    ///
    /// # Errors
    /// [`DelayError::TooLong`] if it rounds to more than 268,435,455 units, or if `unit` is zero.
    pub fn at_least_units(duration: Duration, unit: Duration) -> Result<Self, DelayError> {
        let unit = unit.as_nanos();
        let units = (unit > 0).then(|| duration.as_nanos().div_ceil(unit));
        units
            .and_then(|units| u64::try_from(units).ok())
            .and_then(|units| Self::from_seconds(units).ok())
            .ok_or_else(|| DelayError::TooLong {
                asked: match duration.as_secs() / 86_400 {
                    // The same with a unit of one millisecond.
                    0..365 => format!("{} s", duration.as_secs()),
                    days => format!("{days} days"),
                },
            })
    }

    /// The delay from `now` until `instant`, rounded up; zero if it has passed.
    ///
    /// # Errors
    /// [`DelayError::TooLong`] if the instant is more than 8.5 years away.
    pub fn until(instant: Timestamp, now: Timestamp) -> Result<Self, DelayError> {
        match Duration::try_from(instant.duration_since(now)) {
            Ok(ahead) => Self::at_least(ahead),
            Err(_) => Ok(Self::ZERO),
        }
    }

    /// Whole seconds (units of the set).
    #[must_use]
    pub const fn seconds(self) -> u32 {
        self.0
    }

    /// The number of level queues that a message with this delay passes, 0 to 28: one for each set
    /// bit.
    #[must_use]
    pub const fn hops(self) -> u32 {
        self.0.count_ones()
    }

    /// The number of queues that a message with this delay passes in a set with or without shortcuts.
    #[must_use]
    pub const fn hops_with(self, shortcuts: bool) -> u32 {
        if !shortcuts {
            return self.hops();
        }
        // Folds the bits of each of the lowest four words into one.
        let pairs = self.0 | self.0 >> 1;
        let words = (pairs | pairs >> 2) & 0x1111;
        (self.0 >> 16).count_ones() + words.count_ones()
    }

    /// The levels whose queues the message passes, from the longest wait to the shortest.
    pub fn levels(self) -> impl Iterator<Item = Level> {
        Level::all().rev().filter(move |level| self.0 & level.units() != 0)
    }

    /// The wall-clock length of this delay on a set whose unit of time is
    /// `unit`.
    #[must_use]
    pub fn duration(self, unit: Duration) -> Duration {
        // 2^28 units of up to a second fit a Duration many times over.
        unit.saturating_mul(self.0)
    }

    pub(super) const fn from_bits(bits: u32) -> Self {
        debug_assert!(bits <= Self::MAX.0);
        Self(bits)
    }
}

impl TryFrom<Duration> for Delay {
    type Error = DelayError;

    /// As [`Delay::at_least`].
    ///
    /// ```
    /// use std::time::Duration;
    /// use delayline::codec::Delay;
    ///
    /// assert_eq!(Delay::try_from(Duration::from_millis(1_500))?.seconds(), 2);
    /// # Ok::<(), delayline::codec::DelayError>(())
    /// ```
    fn try_from(duration: Duration) -> Result<Self, DelayError> {
        Self::at_least(duration)
    }
}

impl fmt::Display for Delay {
    /// In readable form: `1h 30m`, `2d 5s`, `0s`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0;
        let mut first = true;
        for (size, unit) in [(86_400, "d"), (3_600, "h"), (60, "m"), (1, "s")] {
            let count = rest / size;
            rest %= size;
            if count > 0 || (first && unit == "s") {
                write!(f, "{}{count}{unit}", if first { "" } else { " " })?;
                first = false;
            }
        }
        Ok(())
    }
}

impl FromStr for Delay {
    type Err = DelayError;

    /// Reads `90` (seconds), `90s`, `1h30m`, `1.5h`, `2 days`, `8.5y`.
    ///
    /// Units go from large to small: years of 365.25 days, weeks of 7 days, days of 24 hours,
    /// hours, minutes, seconds, `ms`, `us`, `ns`. Each may have a fraction, and the total is
    /// rounded up to whole seconds. Months are refused.
    fn from_str(text: &str) -> Result<Self, DelayError> {
        let asked = || text.trim().to_owned();
        let (negative, size) = match text.trim().strip_prefix('-') {
            Some(size) => (true, size),
            None => (false, text.trim()),
        };
        let duration = duration::parse(size).map_err(|error| match error {
            DurationError::Months => DelayError::CalendarUnit { text: asked() },
            DurationError::Unreadable(reason) => DelayError::Unreadable { text: asked(), reason },
        })?;
        if negative {
            return Err(DelayError::Negative { asked: asked() });
        }
        Self::at_least(duration).map_err(|_| DelayError::TooLong { asked: asked() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(text: &str) -> u32 {
        text.parse::<Delay>().expect(text).seconds()
    }

    #[test]
    fn reads_delays_as_people_write_them() {
        for (text, expected) in [
            ("0", 0),
            ("90", 90),
            (" 90 ", 90),
            ("90s", 90),
            ("1h30m", 5_400),
            ("1h 30m", 5_400),
            ("2d", 172_800),
            ("2 days", 172_800),
            ("1w", 604_800),
            ("1.5h", 5_400),
            ("250ms", 1),
            ("1.001s", 2),
            ("268435455", 268_435_455),
            ("1.5", 2),
            ("1.5d", 129_600),
            ("1h, 30m", 5_400),
            ("1 hour 30 minutes", 5_400),
            ("1y", 31_557_600),
            // The longest delay that the product promises: 3,104.625 days.
            ("8.5y", 268_239_600),
            ("8.5 years", 268_239_600),
            ("0.5y 1d", 15_865_200),
            ("1.0000000000000000000000001s", 2),
            ("1.0000000000000000000000000s", 1),
        ] {
            assert_eq!(seconds(text), expected, "{text}");
        }
    }

    #[test]
    fn an_error_names_the_exceeded_limit() {
        for text in [
            "268435456",
            "268435456s",
            "4000d",
            "99999999999999999999999",
            "9y",
            "268435455.1",
            "99999999999999999999999999999999999999999y",
        ] {
            let error = text.parse::<Delay>().expect_err(text);
            assert!(matches!(error, DelayError::TooLong { .. }), "{text}: {error}");
            assert!(error.to_string().contains("268435455"), "{error}");
        }
    }

    #[test]
    fn refuses_invalid_delays() {
        for (text, word) in [
            ("", "it is empty"),
            (" ", "it is empty"),
            ("soon", "should be a number"),
            ("90x", "`x` is not a unit"),
            ("s", "should be a number"),
            ("1h30", "`30` has no unit"),
            ("--5s", "should be a number"),
            ("\u{0}", "should be a number"),
            ("1,5h!", "with a point"),
            ("1h,", "nothing follows the comma"),
            ("1.h", "not a number"),
            (".5h", "not a number"),
            ("1.2.3s", "not a number"),
            ("30m1h", "large to small"),
            ("5s 5s", "large to small"),
            ("1H", "lower-case letters"),
            ("1M", "lower-case letters"),
            ("1:30:00", "`1` has no unit"),
            ("PT90S", "should be a number"),
            ("1e3", "`e` is not a unit"),
        ] {
            let error = text.parse::<Delay>().expect_err(text);
            assert!(matches!(error, DelayError::Unreadable { .. }), "{text:?} gave {error:?}");
            assert!(error.to_string().contains(word), "{text:?}: {error}");
        }
        for text in ["-5s", "-5", "-1h30m"] {
            assert!(matches!(text.parse::<Delay>(), Err(DelayError::Negative { .. })), "{text}");
        }
        for text in ["1mo", "2 months", "1y 6mo"] {
            let error = text.parse::<Delay>().expect_err(text);
            assert!(matches!(error, DelayError::CalendarUnit { .. }), "{text} gave {error:?}");
            assert!(error.to_string().contains("`30d`"), "{error}");
        }
    }

    #[test]
    fn counts_up_to_an_instant() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let until = |text: &str| Delay::until(text.parse().unwrap(), now);
        assert_eq!(until("2026-01-01T00:00:10Z").unwrap().seconds(), 10);
        assert_eq!(until("2026-01-01T00:00:09.000000001Z").unwrap().seconds(), 10);
        assert_eq!(until("2025-12-31T00:00:00Z").unwrap(), Delay::ZERO);
        let far = until("2040-01-01T00:00:00Z").unwrap_err().to_string();
        assert!(far.starts_with("a delay of 5113 days exceeds the limit"), "{far}");
    }

    #[test]
    fn lists_the_levels_it_passes() {
        let delay = Delay::from_seconds(90).unwrap();
        assert_eq!(delay.levels().collect::<Vec<_>>(), [6, 4, 3, 1]);
        assert_eq!(delay.hops(), 4);
        assert_eq!(Delay::MAX.hops(), 28);
    }

    #[test]
    fn is_shown_as_people_write_it() {
        for (value, text) in [(0, "0s"), (59, "59s"), (60, "1m"), (5_400, "1h 30m"), (86_401, "1d 1s")] {
            assert_eq!(Delay::from_seconds(value).unwrap().to_string(), text);
        }
    }
}
