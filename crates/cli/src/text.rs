//! Numbers for people; pure.

use jiff::Timestamp;

use crate::output::{counted, grouped};
use delayline_watch::picture::{Forecast, Picture};

/// A time in its largest unit: `4.3 y`, `12 d`, `8 s`.
pub(super) fn span(ms: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "shown with two digits")]
    let seconds = ms as f64 / 1_000.0;
    for (size, unit) in [(31_557_600.0, "y"), (86_400.0, "d"), (3_600.0, "h"), (60.0, "min")] {
        if seconds >= size {
            let digits = usize::from(seconds / size < 9.95);
            return format!("{:.digits$} {unit}", seconds / size);
        }
    }
    if seconds >= 1.0 { format!("{seconds:.0} s") } else { format!("{ms} ms") }
}

/// Something per second; a dash if it is not known.
pub(super) fn rate(rate: Option<f64>) -> String {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "not negative")]
    match rate {
        None => "–".into(),
        Some(0.0) => "0".into(),
        Some(rate) if rate < 0.01 => "<0.01".into(),
        Some(rate) if rate < 1.0 => format!("{rate:.2}"),
        Some(rate) if rate < 9.95 => format!("{rate:.1}"),
        Some(rate) => grouped(rate.round() as u64),
    }
}

/// How long ago something was.
pub(super) fn ago(now: Timestamp, then: Timestamp) -> String {
    match now.duration_since(then).as_secs().max(0) {
        seconds @ ..90 => format!("{seconds} s"),
        seconds @ 90..5_400 => format!("{} min", seconds / 60),
        seconds @ 5_400..129_600 => format!("{} h", seconds / 3_600),
        seconds => format!("{} d", seconds / 86_400),
    }
}

/// The same, if it is known when.
pub(super) fn since(now: Timestamp, then: Option<Timestamp>) -> String {
    then.map_or_else(|| "–".into(), |then| format!("{} ago", ago(now, then)))
}

/// How long it is until something; a dash if it is not known when.
pub(super) fn until(now: Timestamp, then: Option<Timestamp>) -> String {
    then.map_or_else(|| "–".into(), |then| format!("in {}", ago(then, now)))
}

pub(super) fn number(count: Option<u64>) -> String {
    count.map_or_else(|| "?".into(), grouped)
}

/// How many messages there are, if that is known.
pub(super) fn messages(count: Option<u64>) -> String {
    count.map_or_else(|| "? messages".into(), |count| counted(count, "message"))
}

/// A forecast, and its bounds.
pub(super) fn due(forecast: &Forecast) -> String {
    let (least, most) = (forecast.at_least, forecast.at_most);
    if least == most {
        return grouped(least);
    }
    format!("≈ {} ({} to {})", grouped(forecast.estimate), grouped(least), grouped(most))
}

/// What is kept, and how much of it is new.
pub(super) fn kept(count: Option<u64>, new: Option<i64>) -> String {
    match new.and_then(|new| u64::try_from(new).ok()).filter(|new| *new > 0) {
        Some(new) => format!("{} (▲ {} in the last minute)", number(count), grouped(new)),
        None => number(count),
    }
}

/// Which set and broker are shown, and their state.
pub(super) fn place(picture: &Picture) -> String {
    let broker = &picture.broker;
    let seen = match (broker.reachable, &broker.version) {
        (true, Some(version)) => format!("RabbitMQ {version} at {}", broker.address),
        (true, None) => format!("broker at {}", broker.address),
        (false, _) => format!("no answer from {}", broker.address),
    };
    let verified = match picture.verified.ok {
        Some(true) if picture.verified.is_partial() => "set verified except bindings",
        Some(true) => "set verified",
        Some(false) => "set differs",
        None => "set not verified",
    };
    format!("set {} in vhost {} · {seen} · {verified}", picture.set, picture.vhost)
}

/// What to say about a broker that does not answer.
pub(super) fn trouble(picture: &Picture) -> Option<String> {
    if picture.broker.reachable {
        return None;
    }
    let since = picture.broker.since?;
    let counted = picture
        .counted
        .map_or_else(String::new, |at| format!(" Numbers below are {} old.", ago(Timestamp::now(), at)));
    let problem = picture.broker.problem.as_deref().unwrap_or("no reason is known");
    Some(readable(&format!("For {}: {problem}.{counted}", ago(Timestamp::now(), since))))
}

/// Lines of at most so many characters, broken between words where possible.
pub(super) fn folded(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut room = 0;
    for word in text.split_whitespace() {
        let length = word.chars().count();
        match lines.last_mut() {
            Some(line) if length < room => {
                *line = format!("{line} {word}");
                room -= length + 1;
            }
            _ => {
                lines.push(word.to_owned());
                room = width.saturating_sub(length);
            }
        }
    }
    lines
}

/// Without anything that a terminal would take for a command.
pub(super) fn readable(text: &str) -> String {
    text.chars().map(|letter| if letter.is_control() { '\u{fffd}' } else { letter }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_to_read() {
        let shown = [1, 999, 1_000, 32_000, 64_000, 2_048_000, 131_072_000, 134_217_728_000].map(span);
        assert_eq!(shown, ["1 ms", "999 ms", "1 s", "32 s", "1.1 min", "34 min", "1.5 d", "4.3 y"]);
        let rates = [None, Some(0.0), Some(0.001), Some(0.5), Some(2.0), Some(1_234.5)].map(rate);
        assert_eq!(rates, ["–", "0", "<0.01", "0.50", "2.0", "1,235"]);
    }

    #[test]
    fn folds_between_words() {
        assert_eq!(folded("one two  three", 7), ["one two", "three"]);
        assert_eq!(folded("one two three", 8), ["one two", "three"]);
        assert_eq!(folded("longer-than-a-line x", 5), ["longer-than-a-line", "x"]);
        assert!(folded("", 5).is_empty());
    }

    #[test]
    fn nothing_that_is_shown_commands_the_terminal() {
        assert_eq!(readable("a\u{1b}[2Jb\n\u{9b}c"), "a\u{fffd}[2Jb\u{fffd}\u{fffd}c");
    }

    #[test]
    fn a_forecast_says_what_is_an_estimate() {
        let mut forecast =
            Forecast { within: "hour".into(), seconds: 3_600, at_least: 5, estimate: 1_200, at_most: 9_000 };
        assert_eq!(due(&forecast), "≈ 1,200 (5 to 9,000)");
        forecast.at_least = 9_000;
        assert_eq!(due(&forecast), "9,000");
        assert_eq!(kept(Some(7), Some(3)), "7 (▲ 3 in the last minute)");
        assert_eq!(kept(None, Some(-3)), "?");
    }
}
