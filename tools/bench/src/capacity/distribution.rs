//! How long the messages of a workload wait.

use std::{fmt, str::FromStr};

use delayline_core::codec::{Delay, DelayError};

/// Up to this many different delays are examined one by one; beyond, this many quantiles
/// represent all of them. The share of a bit is then off by less than 0.001.
const EXACT: u32 = 1 << 18;

/// The part cut off the long end of an exponential distribution.
const TAIL: f64 = 1e-9;

/// How long messages wait, as shares of all messages.
///
/// Written as `fixed:30s`, `uniform:1s..60s`, `exponential:5m` (that is the mean),
/// or `mix:1s=40%,5s=30%,1m..1h=30%`, whose shares add up to 100 %.
#[derive(Debug, Clone, PartialEq)]
pub struct Distribution {
    parts: Vec<(Part, f64)>,
    text: String,
}

/// Why a text is not a [`Distribution`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DistributionError {
    /// It has none of the known forms.
    #[error(
        "`{text}` is not a distribution of delays; write `fixed:30s`, `uniform:1s..60s`, `exponential:5m` or \
         `mix:1s=40%,5s=30%,1m..1h=30%`"
    )]
    Form {
        /// The given text.
        text: String,
    },
    /// A delay in it is invalid.
    #[error(transparent)]
    Delay(#[from] DelayError),
    /// The range ends before it begins.
    #[error("the range `{text}` ends before it begins")]
    Backwards {
        /// The range.
        text: String,
    },
    /// The mean of an exponential distribution is zero.
    #[error(
        "the mean of an exponential distribution is at least 1 s; use `fixed:0s` for messages that do not wait"
    )]
    NoMean,
    /// A share in it is invalid.
    #[error("`{text}` is not a share; write a percentage above 0, such as `40%`")]
    Share {
        /// The given text.
        text: String,
    },
    /// The shares do not add up to the whole.
    #[error("the shares add up to {sum}%; they must add up to 100%")]
    Sum {
        /// Their sum, in per cent.
        sum: String,
    },
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Part {
    Fixed(Delay),
    Uniform(Delay, Delay),
    Exponential(Delay),
}

impl Distribution {
    /// The same delay for all messages.
    #[must_use]
    pub fn fixed(delay: Delay) -> Self {
        Self { parts: vec![(Part::Fixed(delay), 1.0)], text: format!("fixed:{}s", delay.seconds()) }
    }

    /// Calls `visit` with delays and their shares, which add up to 1. If there are few
    /// possible delays, each comes once; otherwise evenly spread ones.
    pub fn visit(&self, mut visit: impl FnMut(Delay, f64)) {
        for (part, share) in &self.parts {
            part.visit(&mut |delay, part| visit(delay, part * share));
        }
    }

    /// A random delay.
    #[must_use]
    pub fn sample(&self, random: &mut fastrand::Rng) -> Delay {
        let mut left = random.f64();
        let chosen = self.parts.iter().find(|(_, share)| {
            left -= share;
            left < 0.0
        });
        // Rounding can leave a tiny rest beyond the last share.
        let (part, _) = chosen.or(self.parts.last()).expect("a distribution has parts");
        part.quantile(random.f64())
    }

    /// The longest possible delay; for an exponential distribution, the longest of all but
    /// one message in a billion.
    #[must_use]
    pub fn longest(&self) -> Delay {
        self.parts.iter().map(|(part, _)| part.quantile(1.0)).max().unwrap_or(Delay::ZERO)
    }
}

impl Part {
    /// The delay that a share `at` of the messages, 0 to 1, does not exceed.
    fn quantile(self, at: f64) -> Delay {
        match self {
            Self::Fixed(delay) => delay,
            Self::Uniform(from, to) => {
                let count = f64::from(to.seconds() - from.seconds()) + 1.0;
                at_most(f64::from(from.seconds()) + (at * count).floor(), to)
            }
            // The time is rounded up to whole seconds, as every delay is.
            Self::Exponential(mean) => {
                at_most((-(1.0 - at).max(TAIL).ln() * f64::from(mean.seconds())).ceil().max(1.0), Delay::MAX)
            }
        }
    }

    fn visit(self, visit: &mut impl FnMut(Delay, f64)) {
        let (first, last) = (self.quantile(0.0).seconds(), self.quantile(1.0).seconds());
        let count = last - first + 1;
        if count > EXACT {
            // At a random place in each stratum: evenly spaced ones would hit the low
            // bits in step. The seed is fixed, so that the same input gives the same output.
            let mut random = fastrand::Rng::with_seed(28);
            let share = f64::from(EXACT).recip();
            for stratum in 0..EXACT {
                visit(self.quantile((f64::from(stratum) + random.f64()) * share), share);
            }
            return;
        }
        match self {
            Self::Fixed(delay) => visit(delay, 1.0),
            Self::Uniform(..) => {
                for seconds in first..=last {
                    visit(delay(seconds), f64::from(count).recip());
                }
            }
            Self::Exponential(mean) => {
                let beyond = |seconds: u32| (-f64::from(seconds) / f64::from(mean.seconds())).exp();
                for seconds in first..=last {
                    let until = if seconds == last { 0.0 } else { beyond(seconds) };
                    visit(delay(seconds), beyond(seconds - 1) - until);
                }
            }
        }
    }
}

fn delay(seconds: u32) -> Delay {
    Delay::from_seconds(seconds.into()).unwrap_or(Delay::MAX)
}

fn at_most(seconds: f64, most: Delay) -> Delay {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is between 0 and 2^28")]
    let seconds = seconds.clamp(0.0, most.seconds().into()) as u32;
    delay(seconds)
}

impl FromStr for Distribution {
    type Err = DistributionError;

    fn from_str(text: &str) -> Result<Self, DistributionError> {
        let text = text.trim();
        let form = || DistributionError::Form { text: text.into() };
        let (kind, rest) = text.split_once(':').ok_or_else(form)?;
        let parts = match kind.trim() {
            "fixed" => vec![(Part::Fixed(rest.parse()?), 1.0)],
            "uniform" => vec![(range(rest).ok_or_else(form)??, 1.0)],
            "exponential" => match rest.parse()? {
                Delay::ZERO => return Err(DistributionError::NoMean),
                mean => vec![(Part::Exponential(mean), 1.0)],
            },
            "mix" => mix(rest)?,
            _ => return Err(form()),
        };
        Ok(Self { parts, text: text.into() })
    }
}

/// `1s..60s`; `None` without the dots.
fn range(text: &str) -> Option<Result<Part, DistributionError>> {
    let (from, to) = text.split_once("..")?;
    Some((|| {
        let (from, to): (Delay, Delay) = (from.parse()?, to.parse()?);
        if from > to {
            return Err(DistributionError::Backwards { text: text.trim().into() });
        }
        Ok(Part::Uniform(from, to))
    })())
}

fn mix(text: &str) -> Result<Vec<(Part, f64)>, DistributionError> {
    let mut parts = Vec::new();
    for entry in text.split(',') {
        let share = |text: &str| DistributionError::Share { text: text.trim().into() };
        let (delays, per_cent) = entry.split_once('=').ok_or_else(|| share(entry))?;
        let number = per_cent.trim().strip_suffix('%').and_then(|number| number.trim().parse::<f64>().ok());
        let number =
            number.filter(|number| *number > 0.0 && *number <= 100.0).ok_or_else(|| share(per_cent))?;
        let part = range(delays).unwrap_or_else(|| Ok(Part::Fixed(delays.parse()?)))?;
        parts.push((part, number / 100.0));
    }
    let sum: f64 = parts.iter().map(|(_, share)| share).sum();
    // A tenth of a per cent is lost when thirds and sevenths are written out.
    if (sum - 1.0).abs() > 0.001 + 1e-9 {
        return Err(DistributionError::Sum { sum: format!("{:.1}", sum * 100.0) });
    }
    for (_, share) in &mut parts {
        *share /= sum;
    }
    Ok(parts)
}

impl fmt::Display for Distribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Distribution {
        text.parse().expect(text)
    }

    fn moments(text: &str) -> (f64, f64) {
        let (mut sum, mut mean) = (0.0, 0.0);
        parse(text).visit(|delay, share| {
            sum += share;
            mean += share * f64::from(delay.seconds());
        });
        (sum, mean)
    }

    #[test]
    fn shares_add_up_and_means_are_right() {
        for (text, expected, error) in [
            ("fixed:30s", 30.0, 1e-9),
            ("uniform:1s..60s", 30.5, 1e-9),
            ("uniform:5s..5s", 5.0, 1e-9),
            ("mix:1s=40%, 5s=30%, 1m=30%", 19.9, 1e-9),
            ("mix:1s=50%,1m..2m=50%", 45.5, 1e-9),
            ("mix:1s=33.3%,2s=33.3%,3s=33.3%", 2.0, 1e-9),
            // Rounding up adds half a second.
            ("exponential:5m", 300.5, 0.01),
            ("uniform:0s..268435455s", 134_217_727.5, 200.0),
            ("exponential:30d", 2_592_000.5, 100.0),
        ] {
            let (sum, mean) = moments(text);
            assert!((sum - 1.0).abs() < 1e-6, "{text}: {sum}");
            assert!((mean - expected).abs() <= error, "{text}: {mean}");
        }
    }

    #[test]
    fn says_what_is_wrong() {
        for (text, word) in [
            ("", "fixed:30s"),
            ("30s", "fixed:30s"),
            ("normal:30s", "uniform:1s..60s"),
            ("fixed:soon", "soon"),
            ("uniform:5s", "uniform:1s..60s"),
            ("uniform:9s..5s", "ends before"),
            ("uniform:1s..4000d", "268435455"),
            ("exponential:0s", "at least 1 s"),
            ("mix:1s", "share"),
            ("mix:1s=40", "40%"),
            ("mix:1s=0%,2s=100%", "above 0"),
            ("mix:1s=40%,2s=40%", "80.0%"),
            ("mix:1s=40%,9s..2s=60%", "ends before"),
        ] {
            let error = text.parse::<Distribution>().expect_err(text).to_string();
            assert!(error.contains(word), "{text}: {error}");
        }
    }

    #[test]
    fn samples_lie_within() {
        let mut random = fastrand::Rng::with_seed(1);
        for text in ["fixed:30s", "uniform:3s..9s", "exponential:5s", "mix:1s=40%,7s..9s=60%"] {
            let (distribution, (_, mean)) = (parse(text), moments(text));
            let count = 20_000;
            let sum: f64 = (0..count)
                .map(|_| {
                    let delay = distribution.sample(&mut random);
                    assert!(delay <= distribution.longest() && delay > Delay::ZERO, "{text}: {delay}");
                    f64::from(delay.seconds())
                })
                .sum();
            assert!((sum / f64::from(count) - mean).abs() < mean / 20.0, "{text}");
        }
        assert_eq!(parse("exponential:1000d").longest(), Delay::MAX);
    }

    #[test]
    fn is_shown_as_it_was_written() {
        assert_eq!(parse(" uniform:1s..60s ").to_string(), "uniform:1s..60s");
        let fixed = Distribution::fixed(Delay::from_seconds(30).unwrap());
        assert_eq!(parse(&fixed.to_string()), fixed);
    }
}
