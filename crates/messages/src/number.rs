//! Numbers in texts for people.

/// A number with separated thousands: `12,345`.
#[must_use]
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy);
    groups.collect::<Vec<_>>().join(",")
}

/// `1 message`, `2,000 messages`.
#[must_use]
pub fn counted(number: u64, one: &str) -> String {
    let s = if number == 1 { "" } else { "s" };
    format!("{} {one}{s}", grouped(number))
}

/// The same for a number that may be unknown: `?`.
#[must_use]
pub fn known(number: Option<u64>) -> String {
    number.map_or_else(|| "?".into(), grouped)
}

/// The same with a noun: `? messages`.
#[must_use]
pub fn counted_if_known(number: Option<u64>, one: &str) -> String {
    number.map_or_else(|| format!("? {one}s"), |number| counted(number, one))
}

/// The word for one, or the word for any other number: `is` or `are`.
pub fn either<'a>(number: u64, one: &'a str, many: &'a str) -> &'a str {
    if number == 1 { one } else { many }
}

/// How many places of a cause are named before the list is cut short.
const NAMED: usize = 3;

/// Each name once, and of a long list only the first few.
pub fn named(subjects: impl IntoIterator<Item = String>) -> String {
    let mut distinct: Vec<String> = Vec::new();
    for subject in subjects {
        if !distinct.contains(&subject) {
            distinct.push(subject);
        }
    }
    match distinct.len().checked_sub(NAMED + 1) {
        None => distinct.join(", "),
        Some(_) => format!("{} and {} more", distinct[..NAMED].join(", "), distinct.len() - NAMED),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn separates_thousands() {
        let texts: Vec<_> = [0, 999, 1_000, 1_234_567].map(grouped).into();
        assert_eq!(texts, ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([0, 1, 2].map(|number| either(number, "is", "are")), ["are", "is", "are"]);
        assert_eq!(
            (counted(1, "message"), counted(2_000, "message")),
            ("1 message".into(), "2,000 messages".into())
        );
        assert_eq!((known(Some(0)), known(None)), ("0".into(), "?".into()));
        assert_eq!(
            [Some(1), None].map(|number| counted_if_known(number, "message")),
            ["1 message", "? messages"]
        );
    }
}
