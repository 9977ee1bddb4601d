//! What falls due within some time: pure.

use super::{Forecast, Level};

/// The periods, in seconds.
const TIMES: [(&str, u64); 3] = [("minute", 60), ("hour", 3_600), ("day", 86_400)];

/// What falls due over the next minute, hour and day. `lowest` gives the smallest number of
/// messages that a level had over so many of the last seconds, as far as that was seen: no
/// more of its present messages can be that old.
#[must_use]
pub fn forecast(levels: &[Level], lowest: impl Fn(u8, f64) -> Option<u64>) -> Vec<Forecast> {
    TIMES.iter().map(|(within, seconds)| one(levels, &lowest, within, *seconds)).collect()
}

fn one(levels: &[Level], lowest: &impl Fn(u8, f64) -> Option<u64>, within: &str, seconds: u64) -> Forecast {
    let mut forecast = Forecast { within: within.into(), seconds, at_least: 0, estimate: 0, at_most: 0 };
    let mut estimate = 0.0;
    for level in levels {
        let ready = level.ready.unwrap_or(0);
        let (wait, horizon) = (seconds_of(level.wait_ms), seconds_of(seconds * 1_000));
        let unit = wait / 2_f64.powi(level.level.into());
        let (least, most) = if wait * 2.0 - unit <= horizon {
            (ready, ready)
        } else if wait <= horizon {
            // It leaves the level in time, but any lower bits may lie ahead.
            (0, ready)
        } else {
            // Only messages that came before the last `wait - horizon` seconds can leave, and
            // they were in the level all that time.
            (0, lowest(level.level, wait - horizon).map_or(ready, |lowest| lowest.min(ready)))
        };
        forecast.at_least += least;
        forecast.at_most += most;
        let share = share(horizon / unit, 2_f64.powi(level.level.into()));
        estimate += (count(ready) * share).clamp(count(least), count(most));
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between two counts")]
    let rounded = estimate.round() as u64;
    forecast.estimate = rounded.clamp(forecast.at_least, forecast.at_most);
    forecast
}

/// The probability that a message is due within `horizon` if it is in a level of `wait`, both
/// in units: the rest of its time here is anything up to `wait`, and its lower bits add any
/// whole number below `wait`.
fn share(horizon: f64, wait: f64) -> f64 {
    // The sum over k from 0 to wait - 1 of the probability that the rest is at most horizon -
    // k.
    let certain = (horizon - wait + 1.0).floor().clamp(0.0, wait);
    let possible = (horizon.floor() + 1.0).clamp(certain, wait);
    // The k from `certain` to `possible` - 1, each with (horizon - k) / wait.
    let partly = possible - certain;
    let middle = horizon - (certain + possible - 1.0) / 2.0;
    ((certain + partly * middle / wait) / wait).clamp(0.0, 1.0)
}

#[expect(clippy::cast_precision_loss, reason = "4.5 years in ms, and counts of messages, fit well enough")]
fn seconds_of(ms: u64) -> f64 {
    ms as f64 / 1_000.0
}

#[expect(clippy::cast_precision_loss, reason = "an estimate")]
fn count(messages: u64) -> f64 {
    messages as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::picture::sample;

    fn level(level: u8, ready: u64) -> Level {
        Level { ready: Some(ready), ..sample::level(level, 1_000) }
    }

    fn of(levels: &[Level]) -> Vec<(u64, u64, u64)> {
        let forecast = forecast(levels, |_, _| None);
        forecast.iter().map(|of| (of.at_least, of.estimate, of.at_most)).collect()
    }

    #[test]
    fn what_must_be_due_is_certain() {
        // 4 s here, and 3 s of lower bits at most.
        assert_eq!(of(&[level(2, 100)]), [(100, 100, 100); 3]);
        // 31 + 32 s are over a minute, if by little.
        let minute = of(&[level(5, 1_000)])[0];
        assert_eq!((minute.0, minute.2), (0, 1_000));
        assert!((980..1_000).contains(&minute.1), "{minute:?}");
    }

    #[test]
    fn long_levels_are_estimated() {
        // 2^16 s: the day is 1.32 of its waits, so 1 - (2 - 1.32)² / 2 of it.
        let [minute, hour, day] = of(&[level(16, 100_000)])[..] else { panic!() };
        assert_eq!((minute.0, minute.2, hour.0, day.0), (0, 100_000, 0, 0));
        assert!(minute.1 < 5 && (100..200).contains(&hour.1), "{minute:?} {hour:?}");
        assert!((76_500..77_500).contains(&day.1), "{day:?}");
    }

    #[test]
    fn what_came_lately_cannot_be_due_soon() {
        // An hour here; there were only 10 at some time in the last 3540 s.
        let seen = forecast(&[level(12, 500)], |level, seconds| {
            assert_eq!(level, 12);
            ((seconds - (4_096.0 - 60.0)).abs() < 0.5).then_some(10)
        });
        assert_eq!((seen[0].at_least, seen[0].at_most), (0, 10));
        assert!(seen[0].estimate <= 10);
        assert_eq!(seen[1].at_most, 500);
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
