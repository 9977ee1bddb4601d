//! Numbers for people; pure.

use jiff::Timestamp;

use delayline_admin::Layout;
use delayline_admin::counted_if_known;
use delayline_admin::grouped;
pub use delayline_admin::known as number;
use delayline_core::shell::command;
use delayline_watch::picture::{Forecast, Picture};

/// A time in its largest unit: `4.3 y`, `12 d`, `8 s`.
pub fn span(ms: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "shown with two digits")]
    let seconds = ms as f64 / 1_000.0;
    for (size, unit) in [(31_557_600.0, "y"), (86_400.0, "d"), (3_600.0, "h"), (60.0, "min")] {
        if seconds >= size {
            let digits = usize::from(seconds / size < 9.95);
            return format!("{:.digits$} {unit}", seconds / size);
        }
    }
    if seconds >= 1.0 || ms == 0 { format!("{seconds:.0} s") } else { format!("{ms} ms") }
}

/// Something per second; a dash if it is not known.
pub fn rate(rate: Option<f64>) -> String {
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
pub fn ago(now: Timestamp, then: Timestamp) -> String {
    span(now.duration_since(then).as_secs().max(0).unsigned_abs() * 1_000)
}

/// The number of messages, if it is known.
pub fn messages(count: Option<u64>) -> String {
    counted_if_known(count, "message")
}

/// An estimate, and the number that is certain.
pub fn due(forecast: &Forecast) -> String {
    format!("≈ {} (at least {})", grouped(forecast.estimate), grouped(forecast.at_least))
}

/// The number of kept messages, and how many of them are new.
pub fn kept(count: Option<u64>, new: Option<i64>) -> String {
    match new.and_then(|new| u64::try_from(new).ok()).filter(|new| *new > 0) {
        Some(new) => format!("{} (▲ {} in the last minute)", number(count), grouped(new)),
        None => number(count),
    }
}

/// Which set and broker are shown, and their state.
pub fn place(picture: &Picture) -> String {
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

/// The text about a broker that does not answer.
pub fn trouble(picture: &Picture) -> Option<String> {
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

/// Whether a guard exists, on how many of the exchanges, and how many messages it keeps.
pub fn guard(layout: &Layout, (some, all): (usize, usize), (keeps, kept): (bool, Option<u64>)) -> String {
    let add = || command(&["guard", "add", &layout.to_string()]);
    match keeps {
        _ if some == 0 => format!("none: run `{}`", add()),
        _ if some < all => format!("{some} of {all} exchanges: run `{}` again", add()),
        true => format!("set, and keeps {}", messages(kept)),
        false => "set, but not by delayline".into(),
    }
}

/// A foreign name or text on one line, without characters that control a terminal: applications choose
/// names and keys.
pub fn readable(text: &str) -> String {
    let shown = |character: char| match character {
        '\'' | '"' | '\\' => character.to_string(),
        other => other.escape_debug().to_string(),
    };
    text.chars().map(shown).collect()
}

/// Lines for a terminal, in which nothing but our own colours controls it, whatever names are in
/// them.
pub fn terminal(text: &str) -> String {
    const OURS: [&str; 9] = ["0", "1", "2", "4", "31", "32", "33", "36", "39"];
    let mut clean = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(letter) = rest.chars().next() {
        let code = rest.strip_prefix("\u{1b}[").and_then(|code| code.split_once('m'));
        match code {
            Some((code, after)) if OURS.contains(&code) => {
                clean.extend(["\u{1b}[", code, "m"]);
                rest = after;
            }
            _ => {
                match letter {
                    '\n' | '\t' => clean.push(letter),
                    letter if letter.is_control() => clean.extend(letter.escape_debug()),
                    letter => clean.push(letter),
                }
                rest = &rest[letter.len_utf8()..];
            }
        }
    }
    clean
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
    fn nothing_that_is_shown_commands_the_terminal() {
        assert_eq!(readable("a\u{1b}[2Jb\n\u{9b}c 'd'"), r"a\u{1b}[2Jb\n\u{9b}c 'd'");
        let ours = "\u{1b}[1mbold\u{1b}[0m\n\tgrün";
        assert_eq!(terminal(ours), ours);
        assert_eq!(terminal("\u{1b}[2J\u{1b}[8m\u{9b}\r"), r"\u{1b}[2J\u{1b}[8m\u{9b}\r");
    }

    #[test]
    fn estimates_and_new_messages_are_marked() {
        let forecast = Forecast { within: "hour".into(), seconds: 3_600, at_least: 5, estimate: 1_200 };
        assert_eq!(due(&forecast), "≈ 1,200 (at least 5)");
        assert_eq!(kept(Some(7), Some(3)), "7 (▲ 3 in the last minute)");
        assert_eq!(kept(None, Some(-3)), "?");
    }
}
