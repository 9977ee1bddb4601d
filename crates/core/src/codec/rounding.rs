//! Hop-aware rounding: a slightly longer delay that passes through fewer queues.
//!
//! The message is written to a queue for each set bit of its delay, so 1,023 s cost ten queues and
//! 1,024 s cost one. If an application accepts a slightly longer delay, the broker saves most of
//! the work.

use std::{fmt, str::FromStr};

use super::{Delay, DelayError, LEVELS};

/// How much longer than asked a delay may become; none by default.
///
/// ```
/// use delayline::codec::{Delay, Tolerance};
///
/// let tolerance: Tolerance = "5%".parse()?;
/// let delay = tolerance.round(Delay::from_seconds(1_000)?);
/// assert_eq!((delay.seconds(), delay.hops()), (1_024, 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tolerance {
    /// Up to this much later.
    Absolute(Delay),
    /// Later by up to this part of the delay, in hundredths of a per cent: 0 to 10,000 (100
    /// %).
    Relative(u16),
}

/// Why a text is not a [`Tolerance`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ToleranceError {
    /// Not a percentage, or a percentage outside 0 to 100.
    #[error("`{text}` is not a tolerance; a percentage goes from 0% to 100%, with two decimals at most")]
    Percent {
        /// The given text.
        text: String,
    },
    /// Not a duration either.
    #[error("`{text}` is not a tolerance; write a percentage (`5%`) or a duration (`30s`): {reason}")]
    Duration {
        /// The given text.
        text: String,
        /// The fault in it.
        reason: DelayError,
    },
}

impl Tolerance {
    /// No rounding.
    pub const NONE: Self = Self::Absolute(Delay::ZERO);

    /// The latest delay this tolerance allows for `delay`, capped at
    /// [`Delay::MAX`].
    #[must_use]
    pub fn latest(self, delay: Delay) -> Delay {
        let asked = u64::from(delay.seconds());
        let extra = match self {
            Self::Absolute(extra) => extra.seconds().into(),
            Self::Relative(hundredths) => asked * u64::from(hundredths) / 10_000,
        };
        Delay::from_seconds(asked + extra).unwrap_or(Delay::MAX)
    }

    /// The delay with the fewest hops between `delay` and [`latest`](Self::latest). If several have
    /// equally few, it is the shortest.
    #[must_use]
    pub fn round(self, delay: Delay) -> Delay {
        self.round_for(delay, false)
    }

    /// The same for a set with or without shortcuts, see [`Delay::hops_with`].
    #[must_use]
    pub fn round_for(self, delay: Delay, shortcuts: bool) -> Delay {
        let latest = self.latest(delay).seconds();
        let asked = delay.seconds();
        // The first bit in which a longer delay differs is 0 in the requested delay and 1 in the
        // longer one. Clearing all lower bits keeps the result above the requested delay, makes it
        // shorter, and adds no hop. So these 28 candidates and the requested delay include the best
        // result.
        (0..LEVELS)
            .filter(|level| asked >> level & 1 == 0)
            .map(|level| (asked >> level | 1) << level)
            .filter(|&candidate| candidate <= latest)
            .chain([asked])
            .map(Delay::from_bits)
            .min_by_key(|candidate| (candidate.hops_with(shortcuts), *candidate))
            .unwrap_or(delay)
    }
}

impl Default for Tolerance {
    fn default() -> Self {
        Self::NONE
    }
}

impl FromStr for Tolerance {
    type Err = ToleranceError;

    /// Reads `5%`, `2.5%`, `30s`, `1h`.
    fn from_str(text: &str) -> Result<Self, ToleranceError> {
        match text.trim().strip_suffix('%') {
            Some(number) => hundredths(number.trim())
                .filter(|&value| value <= 10_000)
                .map(Self::Relative)
                .ok_or_else(|| ToleranceError::Percent { text: text.into() }),
            None => text
                .parse()
                .map(Self::Absolute)
                .map_err(|reason| ToleranceError::Duration { text: text.into(), reason }),
        }
    }
}

/// `2.5` as 250; `None` if it is not a decimal number with up to two places.
fn hundredths(number: &str) -> Option<u16> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(fraction) || fraction.len() > 2 {
        return None;
    }
    let scale = if fraction.len() == 1 { 10 } else { 1 };
    let whole: u16 = whole.parse().ok()?;
    let fraction: u16 = fraction.parse().ok()?;
    whole.checked_mul(100)?.checked_add(fraction * scale)
}

impl fmt::Display for Tolerance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absolute(extra) => extra.fmt(f),
            Self::Relative(hundredths) => write!(f, "{}%", f64::from(*hundredths) / 100.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(tolerance: &str, seconds: u64) -> u32 {
        let delay = Delay::from_seconds(seconds).unwrap();
        tolerance.parse::<Tolerance>().unwrap().round(delay).seconds()
    }

    #[test]
    fn keeps_the_delay_without_a_tolerance() {
        assert_eq!(round("0s", 1_023), 1_023);
        assert_eq!(round("0%", 1_023), 1_023);
        assert_eq!(Tolerance::default(), Tolerance::NONE);
    }

    #[test]
    fn takes_the_nearest_of_the_cheapest() {
        assert_eq!(round("1s", 1_023), 1_024);
        assert_eq!(round("10%", 100), 100); // 104 has three hops too
        assert_eq!(round("30s", 100), 128);
        assert_eq!(round("100%", 3), 4);
        assert_eq!(round("100%", 0), 0);
        assert_eq!(round("100%", 268_435_455), 268_435_455);
    }

    #[test]
    fn shortcuts_count_as_one_hop() {
        let minute = Delay::from_seconds(60).unwrap();
        let tolerance: Tolerance = "10%".parse().unwrap();
        // 11.1100 is two shortcuts, and 100.0000 one queue either way.
        assert_eq!((minute.hops_with(true), tolerance.round_for(minute, true).seconds()), (2, 64));
        // Three bits of one word are one hop: nothing is to be saved.
        let delay = Delay::from_seconds(7).unwrap();
        let double: Tolerance = "100%".parse().unwrap();
        assert_eq!((double.round_for(delay, true), double.round(delay).seconds()), (delay, 8));
    }

    #[test]
    fn reads_parts_and_durations() {
        assert_eq!("2.5%".parse(), Ok(Tolerance::Relative(250)));
        assert_eq!("0.05 %".parse(), Ok(Tolerance::Relative(5)));
        assert_eq!("1m".parse(), Ok(Tolerance::Absolute(Delay::from_seconds(60).unwrap())));
        for text in ["%", "101%", "100.01%", "-1%", "1.234%", "x%", "5 percent", "", "1e1%", "99999999%"] {
            assert!(text.parse::<Tolerance>().is_err(), "{text}");
        }
    }
}
