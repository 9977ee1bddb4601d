//! How many of the waiting messages are due within a minute, an hour and a day: pure.

use super::{Forecast, Level};

/// The periods, in seconds.
const TIMES: [(&str, u64); 3] = [("minute", 60), ("hour", 3_600), ("day", 86_400)];

/// How many of the messages that wait in these levels are due within each period.
#[must_use]
pub fn forecast(levels: &[Level]) -> Vec<Forecast> {
    TIMES.iter().map(|(within, seconds)| one(levels, within, *seconds)).collect()
}

fn one(levels: &[Level], within: &str, seconds: u64) -> Forecast {
    let mut forecast = Forecast { within: within.into(), seconds, at_least: 0, estimate: 0 };
    let mut estimate = 0.0;
    for level in levels {
        let ready = level.ready.unwrap_or(0);
        let units = 2_f64.powi(level.level.into());
        let horizon = float(seconds * 1_000) * units / float(level.wait_ms);
        // Its own wait, and all lower bits.
        if units * 2.0 - 1.0 <= horizon {
            forecast.at_least += ready;
        }
        estimate += float(ready) * share(horizon, units);
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most the sum of counts")]
    let rounded = estimate.round() as u64;
    forecast.estimate = rounded.max(forecast.at_least);
    forecast
}

/// The probability that a message is due within `horizon` if it is in a level of `wait`, both
/// in units: the rest of its time here is anything up to `wait`, and its lower bits add any
/// whole number below `wait`.
fn share(horizon: f64, wait: f64) -> f64 {
    // The sum over k from 0 to wait - 1 of the probability that the rest is at most horizon - k.
    let certain = (horizon - wait + 1.0).floor().clamp(0.0, wait);
    let possible = (horizon.floor() + 1.0).clamp(certain, wait);
    // The k from `certain` to `possible` - 1, each with (horizon - k) / wait.
    let partly = possible - certain;
    let middle = horizon - (certain + possible - 1.0) / 2.0;
    ((certain + partly * middle / wait) / wait).clamp(0.0, 1.0)
}

#[expect(clippy::cast_precision_loss, reason = "8.5 years in ms, and counts of messages, fit well enough")]
fn float(number: u64) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::picture::sample;

    fn of(level: u8, ready: u64) -> Vec<(u64, u64)> {
        let levels = [Level { ready: Some(ready), ..sample::level(level, 1_000) }];
        forecast(&levels).iter().map(|of| (of.at_least, of.estimate)).collect()
    }

    #[test]
    fn messages_of_short_levels_are_certainly_due() {
        // 4 s here, and 3 s of lower bits at most.
        assert_eq!(of(2, 100), [(100, 100); 3]);
        // 32 + 31 s are slightly more than a minute.
        let (at_least, estimate) = of(5, 1_000)[0];
        assert!(at_least == 0 && (980..1_000).contains(&estimate), "{estimate}");
    }

    #[test]
    fn messages_of_long_levels_are_estimated() {
        // 2^16 s: the day is 1.32 of its waits, so 1 - (2 - 1.32)² / 2 of it.
        let [minute, hour, day] = of(16, 100_000)[..] else { panic!() };
        assert_eq!((minute.0, hour.0, day.0), (0, 0, 0));
        assert!(minute.1 < 5 && (100..200).contains(&hour.1), "{minute:?} {hour:?}");
        assert!((76_500..77_500).contains(&day.1), "{day:?}");
    }

    #[test]
    fn shares_agree_with_counting() {
        for (horizon, wait) in
            [(0.5, 1.0), (1.0, 1.0), (3.5, 4.0), (4.0, 4.0), (6.9, 4.0), (7.0, 4.0), (60.0, 64.0)]
        {
            let (horizon, wait): (f64, f64) = (horizon, wait);
            let mut sum = 0.0;
            let mut k: f64 = 0.0;
            while k < wait {
                sum += ((horizon - k) / wait).clamp(0.0, 1.0);
                k += 1.0;
            }
            let counted = sum / wait;
            assert!((share(horizon, wait) - counted).abs() < 1e-9, "{horizon} {wait}: {counted}");
        }
    }
}
