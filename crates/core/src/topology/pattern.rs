//! How a topic exchange matches: pure.

/// Whether a binding key on a topic exchange matches a routing key: `*` is one word, `#` any
/// number of them.
///
/// ```
/// use delayline_core::topology::topic_matches;
///
/// assert!(topic_matches("#.orders", "eu.orders"));
/// assert!(!topic_matches("*.orders", "a.b.orders"));
/// ```
#[must_use]
pub fn topic_matches(pattern: &str, key: &str) -> bool {
    // Which parts of the pattern, from the first, can match the words so far.
    let pattern: Vec<_> = words(pattern).collect();
    let mut ends = vec![false; pattern.len() + 1];
    ends[0] = true;
    skip_hashes(&pattern, &mut ends);
    for word in words(key) {
        let mut next = vec![false; ends.len()];
        for (at, part) in pattern.iter().enumerate().filter(|&(at, _)| ends[at]) {
            match *part {
                "#" => next[at] = true,
                "*" => next[at + 1] = true,
                part if part == word => next[at + 1] = true,
                _ => {}
            }
        }
        skip_hashes(&pattern, &mut next);
        ends = next;
    }
    ends[pattern.len()]
}

/// An empty key has no word; elsewhere empty words count.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split('.').filter(move |_| !text.is_empty())
}

fn skip_hashes(pattern: &[&str], ends: &mut [bool]) {
    for (at, part) in pattern.iter().enumerate() {
        if *part == "#" && ends[at] {
            ends[at + 1] = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_as_the_broker_does() {
        for (pattern, key, expected) in [
            ("", "", true),
            ("#", "", true),
            ("*", "", false),
            ("#", "a.b.c", true),
            ("a.#", "a", true),
            ("a.#.c", "a.c", true),
            ("a.#.c", "a.b.b.c", true),
            ("a.#.c", "a.b", false),
            ("*.b", "a.b", true),
            ("*.b", "b", false),
            ("#.b", "b", true),
            ("#.b", "a.b.b", true),
            ("#.#", "x", true),
            ("a.*", "a.", true),
            ("a", "b", false),
        ] {
            assert_eq!(topic_matches(pattern, key), expected, "{pattern} {key}");
        }
    }
}
