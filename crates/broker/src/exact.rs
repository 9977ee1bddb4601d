//! Patterns for exactly these names and keys, and the names in such a pattern.

use std::collections::BTreeSet;

use delayline_core::codec::{AppKey, Delay, Level, RoutingKey, WORD_BITS};

use crate::pattern::Pattern;

/// Matches the id that may follow the app key of a message that can be recalled.
pub const RECALL_ID: &str = r"(\.~\.[A-Za-z0-9_-]{1,64})?";

/// Matches no name and no key.
pub const NOTHING: &str = "^$";

/// The pattern for exactly these queue and exchange names.
///
/// It ends with `\z`: `$` would also match before a line feed at the end.
#[must_use]
pub fn names_pattern(names: &[String]) -> String {
    if names.is_empty() {
        return NOTHING.into();
    }
    format!(r"^{}\z", any_of(names.iter().map(String::as_str)))
}

/// The names in a pattern like those of [`names_pattern`]; `None` for other patterns.
#[must_use]
pub fn names_in(pattern: &str) -> Option<Vec<String>> {
    literals(between(pattern)?)
}

/// The applications in a pattern for keys on the entry exchange, as an application's user has it.
#[must_use]
pub fn apps_in(pattern: &Pattern) -> Vec<AppKey> {
    let Some(inner) = between(pattern) else { return Vec::new() };
    // Users of earlier journals have their keys as alternatives beside the others.
    let of_delays = alternatives_in(inner).into_iter().filter(|one| one.starts_with("delay"));
    let apps = of_delays.filter_map(|keys| {
        // The end of the delay is not marked: it is before the first text that is a list of names.
        keys.match_indices(r"\.").find_map(|(at, dot)| {
            let names = keys[at + dot.len()..].replace(RECALL_ID, "");
            let apps = literals(&names)?.into_iter().map(|name| AppKey::new(name).ok());
            let apps: Vec<_> = apps.collect::<Option<_>>()?;
            let is_one = |app: &AppKey| {
                pattern.matches(&RoutingKey::new(Delay::ZERO, app.clone()).encode()) == Ok(true)
            };
            apps.iter().all(is_one).then_some(apps)
        })
    });
    apps.flatten().collect()
}

/// The part of a pattern between its beginning and its end.
fn between(pattern: &str) -> Option<&str> {
    pattern.strip_prefix('^')?.strip_suffix(r"\z")
}

/// The alternatives of a pattern, if it consists only of these.
fn alternatives_in(pattern: &str) -> Vec<&str> {
    let inner = pattern.strip_prefix('(').and_then(|inner| inner.strip_suffix(')')).unwrap_or(pattern);
    let (mut begin, mut depth, mut found, mut escaped) = (0, 0, Vec::new(), false);
    for (at, letter) in inner.char_indices() {
        match letter {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '(' => depth += 1,
            ')' => depth -= 1,
            '|' if depth == 0 => {
                found.push(&inner[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    found.push(&inner[begin..]);
    found
}

/// The texts, if a pattern matches exactly these.
fn literals(pattern: &str) -> Option<Vec<String>> {
    let text = |pattern: &str| {
        let mut text = String::new();
        let mut letters = pattern.chars();
        while let Some(letter) = letters.next() {
            text.push(match letter {
                '\\' => letters.next().filter(|letter| !letter.is_ascii_alphanumeric())?,
                letter if means_something(letter) => return None,
                letter => letter,
            });
        }
        (!text.is_empty()).then_some(text)
    };
    alternatives_in(pattern).into_iter().map(text).collect()
}

/// Whether a letter has a special meaning in a pattern.
fn means_something(letter: char) -> bool {
    letter.is_ascii() && !letter.is_ascii_alphanumeric() && !matches!(letter, '-' | '_')
}

/// Any of these texts.
pub fn any_of<'a>(texts: impl IntoIterator<Item = &'a str>) -> String {
    alternatives(texts.into_iter().map(exactly))
}

/// Any of these patterns, in alphabetical order, so that the same set gives the same pattern.
pub fn alternatives(patterns: impl Iterator<Item = String>) -> String {
    let patterns: Vec<_> = patterns.collect::<BTreeSet<_>>().into_iter().collect();
    match patterns.as_slice() {
        [one] => one.clone(),
        several => format!("({})", several.join("|")),
    }
}

/// A pattern (PCRE) that matches this text and nothing else. Braces are escaped too, so that
/// the broker does not take `{username}` in an app key for its variable.
#[must_use]
pub fn exactly(text: &str) -> String {
    let mut pattern = String::with_capacity(text.len() + 8);
    for letter in text.chars() {
        if means_something(letter) {
            pattern.push('\\');
        }
        pattern.push(letter);
    }
    pattern
}

/// The pattern for the words of the delay: of any delay, or exactly of the delays up to a longest one.
#[must_use]
pub fn delays_pattern(longest: Option<Delay>) -> String {
    up_to(longest.unwrap_or(Delay::MAX).seconds(), Level::TOP.number())
}

/// The pattern for the bits from a level down, for the numbers up to this one. At each 1, a
/// number is either smaller, with a 0 here and anything below, or has a 1 as well.
fn up_to(longest: u32, level: u8) -> String {
    // All bits from here on are 1: anything matches.
    if (longest + 1) & ((1 << (level + 1)) - 1) == 0 {
        return any(level + 1);
    }
    let below = if level == 0 { String::new() } else { up_to(longest, level - 1) };
    let dot = if level % WORD_BITS == WORD_BITS - 1 { r"\." } else { "" };
    match longest >> level & 1 {
        0 => format!("{dot}0{below}"),
        _ => format!("{dot}(0{}|1{below})", any(level)),
    }
}

/// Any value of the last so many bits, with a dot before each word that begins there.
fn any(bits: u8) -> String {
    let repeated = |what: &str, times: u8| match times {
        0 => String::new(),
        1 => what.into(),
        _ => format!("{what}{{{times}}}"),
    };
    let word = format!(r"(\.[01]{{{WORD_BITS}}})");
    format!("{}{}", repeated("[01]", bits % WORD_BITS), repeated(&word, bits / WORD_BITS))
}
