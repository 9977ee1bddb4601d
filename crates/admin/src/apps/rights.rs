//! What an application's user may do, as the broker's patterns: pure.

use std::collections::BTreeSet;

use regex::Regex;

use crate::management::{Permission, TopicPermission};
use delayline_core::{
    codec::{AppKey, Delay, Level, RoutingKey, WORD_BITS, WORDS},
    topology::{Names, Topology},
};

use crate::apps::{AppSpec, AppUser};

/// Matches what may follow the app key of a message that can be recalled.
const ID: &str = r"(\.~\.[A-Za-z0-9_-]{1,64})?";

/// Matches no name and no key.
pub(super) const NOTHING: &str = "^$";

/// The permissions and topic permissions of an application's user: only what it needs.
pub(super) fn rights(
    topology: &Topology,
    spec: &AppSpec,
    user: &AppUser,
) -> (Permission, Vec<TopicPermission>) {
    let names = topology.names();
    let (entry, dispatch) = (names.entry(), names.dispatch());
    let queue = spec.queue_name();
    let mut write = vec![entry.clone()];
    let mut read: Vec<_> = queue.map(str::to_owned).into_iter().collect();
    let topic = |exchange: String, write: String, read: String| TopicPermission {
        user: user.name.clone(),
        exchange,
        write,
        read,
    };
    let binding_keys = if user.may_bind {
        write.extend(queue.map(str::to_owned));
        read.push(dispatch.clone());
        format!(r"^delay(\.\*){{{WORDS}}}\.{}\z", any_of([spec.app.as_str()]))
    } else {
        NOTHING.into()
    };
    let own = spec.recall.map(|_| &spec.app);
    for app in own.into_iter().chain(&user.may_recall) {
        write.push(names.recalled(app));
        read.push(names.recall(app));
    }
    // Others may be meant to see what is recalled of theirs; a publisher is not.
    read.extend(own.map(|app| names.recalled(app)));
    let journalled = spec.journal().map(|_| &spec.app);
    read.extend(journalled.map(|app| names.journal(app)));
    // The further key of a message, in its header BCC. RabbitMQ cannot tell it from the key of
    // a message that is only meant for the journal.
    let journals = journalled.into_iter().chain(&user.may_recall).map(Names::journal_key);
    let journals: Vec<_> = journals.map(|key| escape(&key)).collect();
    let own_and_others: BTreeSet<_> =
        std::iter::once(&spec.app).chain(&user.may_publish).chain(&user.may_recall).collect();
    let keys = alternatives(own_and_others.into_iter().map(|app| {
        let recallable = own == Some(app) || user.may_recall.contains(app);
        format!("{}{}", escape(app.as_str()), if recallable { ID } else { "" })
    }));
    let keys = format!(r"delay{}\.{keys}", delays(user.max_delay));
    let keys = format!(r"^{}\z", alternatives(journals.into_iter().chain([keys])));
    let mut topics = vec![topic(entry, keys, NOTHING.into()), topic(dispatch, NOTHING.into(), binding_keys)];
    for (exchange, may) in [(names.retry(), user.may_retry), (names.parked(), may_park(spec, user))] {
        if may {
            write.push(exchange.clone());
            topics.push(topic(exchange, format!(r"^{}\z", any_of([spec.app.as_str()])), NOTHING.into()));
        }
    }
    let permission = Permission {
        user: user.name.clone(),
        configure: NOTHING.into(),
        write: names_pattern(&write),
        read: names_pattern(&read),
    };
    (permission, topics)
}

/// Whether a user may park messages of its application itself: those that must not be retried.
pub(super) fn may_park(spec: &AppSpec, user: &AppUser) -> bool {
    user.may_retry || spec.is_retried()
}

/// The pattern for exactly these queue and exchange names.
///
/// It ends with `\z`: `$` would also match before a line feed at the end.
pub(super) fn names_pattern(names: &[String]) -> String {
    if names.is_empty() {
        return NOTHING.into();
    }
    format!(r"^{}\z", any_of(names.iter().map(String::as_str)))
}

/// The names in a pattern like those of [`names_pattern`]; `None` if it is another one.
pub(super) fn names_in(pattern: &str) -> Option<Vec<String>> {
    literals(between(pattern)?)
}

/// The applications in a pattern like those of [`rights`] for keys on the entry exchange.
pub(super) fn apps_in(pattern: &str) -> Vec<AppKey> {
    let (Some(inner), Ok(whole)) = (between(pattern), Regex::new(pattern)) else { return Vec::new() };
    // The keys of journals stand beside the others.
    let of_delays = alternatives_in(inner).into_iter().filter(|one| one.starts_with("delay"));
    let apps = of_delays.filter_map(|keys| {
        // Where the delay ends is not marked: before the first text that is one of names.
        keys.match_indices(r"\.").find_map(|(at, dot)| {
            let names = keys[at + dot.len()..].replace(ID, "");
            let apps = literals(&names)?.into_iter().map(|name| AppKey::new(name).ok());
            let apps: Vec<_> = apps.collect::<Option<_>>()?;
            let is_one = |app: &AppKey| whole.is_match(&RoutingKey::new(Delay::ZERO, app.clone()).encode());
            apps.iter().all(is_one).then_some(apps)
        })
    });
    apps.flatten().collect()
}

/// What a pattern matches from the beginning to the end.
fn between(pattern: &str) -> Option<&str> {
    pattern.strip_prefix('^')?.strip_suffix(r"\z")
}

/// The alternatives of a pattern, if that is all it has.
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

/// The texts of which a pattern matches each and nothing else.
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

/// Whether a letter may be more than itself in a pattern.
fn means_something(letter: char) -> bool {
    letter.is_ascii() && !letter.is_ascii_alphanumeric() && !matches!(letter, '-' | '_')
}

/// Any of these texts.
fn any_of<'a>(texts: impl IntoIterator<Item = &'a str>) -> String {
    alternatives(texts.into_iter().map(escape))
}

/// Any of these patterns, in alphabetical order, so that the same set gives the same pattern.
fn alternatives(patterns: impl Iterator<Item = String>) -> String {
    let patterns: Vec<_> = patterns.collect::<BTreeSet<_>>().into_iter().collect();
    match patterns.as_slice() {
        [one] => one.clone(),
        several => format!("({})", several.join("|")),
    }
}

/// A pattern (PCRE) that matches this text and nothing else. Braces are escaped too, so that
/// the broker does not take `{username}` in an app key for its variable.
fn escape(text: &str) -> String {
    let mut pattern = String::with_capacity(text.len() + 8);
    for letter in text.chars() {
        if means_something(letter) {
            pattern.push('\\');
        }
        pattern.push(letter);
    }
    pattern
}

/// The pattern for the words of the delay: any, or exactly those of the delays up to a
/// longest one.
fn delays(longest: Option<Delay>) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AppQueue, Delivery};
    use delayline_core::topology::{JournalSettings, RecallSettings, TopologySettings};

    fn user(name: &str) -> AppUser {
        AppUser { name: name.into(), ..AppUser::default() }
    }

    fn spec(app: &str, user: AppUser) -> AppSpec {
        AppSpec {
            app: AppKey::new(app).unwrap(),
            delivery: Delivery::Direct(AppQueue::new("billing-in")),
            user: Some(user),
            recall: None,
        }
    }

    fn of(spec: &AppSpec) -> (Permission, Vec<TopicPermission>) {
        rights(&Topology::new(TopologySettings::default()), spec, spec.user.as_ref().unwrap())
    }

    fn key(seconds: u64, app: &str) -> String {
        RoutingKey::new(Delay::from_seconds(seconds).unwrap(), AppKey::new(app).unwrap()).encode()
    }

    #[test]
    fn an_application_may_publish_its_keys_and_read_its_queue() {
        let (permission, topics) = of(&spec("billing", user("svc")));
        assert_eq!(permission.configure, "^$");
        assert_eq!(permission.write, r"^delay\z");
        assert_eq!(permission.read, r"^billing-in\z");
        assert_eq!(topics.len(), 2);
        assert_eq!(topics[0].write, r"^delay(\.[01]{4}){7}\.billing\z");
        assert_eq!((topics[1].exchange.as_str(), topics[1].write.as_str()), ("delay.dispatch", "^$"));
        let pattern = Regex::new(&topics[0].write).unwrap();
        assert!(pattern.is_match(&key(90, "billing")));
        let own = key(90, "billing");
        for other in [&key(90, "eu.billing"), &key(90, "billing.eu"), "billing", "#", &format!("{own}\n")] {
            assert!(!pattern.is_match(other), "{other:?}");
        }
    }

    #[test]
    fn more_is_given_only_on_demand() {
        let more = AppUser {
            may_publish: vec![AppKey::new("eu.orders").unwrap(), AppKey::new("billing").unwrap()],
            may_bind: true,
            may_retry: true,
            ..user("svc")
        };
        let (permission, topics) = of(&spec("billing", more));
        assert_eq!(permission.write, r"^(billing-in|delay|delay\.parked|delay\.retry)\z");
        assert_eq!(permission.read, r"^(billing-in|delay\.dispatch)\z");
        assert_eq!(topics[0].write, r"^delay(\.[01]{4}){7}\.(billing|eu\.orders)\z");
        assert_eq!(topics[1].read, r"^delay(\.\*){7}\.billing\z");
        assert_eq!(topics[2].write, r"^billing\z");
        assert_eq!(
            topics.iter().map(|topic| &*topic.exchange).collect::<Vec<_>>()[2..],
            ["delay.retry", "delay.parked"]
        );
        let binds = Regex::new(&topics[1].read).unwrap();
        assert!(binds.is_match(&RoutingKey::binding_pattern(&AppKey::new("billing").unwrap())));
        assert!(!binds.is_match("#") && !binds.is_match("#.billing"));
    }

    #[test]
    fn an_application_with_retries_may_park_its_own_messages() {
        let queue = AppQueue { retry: true, ..AppQueue::new("billing-in") };
        let spec = AppSpec { delivery: Delivery::Direct(queue), ..spec("billing", user("svc")) };
        let (permission, topics) = of(&spec);
        assert_eq!(permission.write, r"^(delay|delay\.parked)\z");
        assert_eq!((&*topics[2].exchange, &*topics[2].write), ("delay.parked", r"^billing\z"));
        assert_eq!(topics.len(), 3);
    }

    #[test]
    fn the_names_in_a_pattern_come_back_and_nobody_elses_pattern_is_taken_for_one() {
        for names in [&["billing"][..], &["a|b", "c.d"], &["(x)", "y)", r"z\"], &["käse", "{username}"]] {
            let mut found =
                names_in(&names_pattern(&names.iter().map(ToString::to_string).collect::<Vec<_>>()));
            found.iter_mut().for_each(|found| found.sort());
            let mut names: Vec<_> = names.to_vec();
            names.sort_unstable();
            assert_eq!(found.unwrap(), names);
        }
        for pattern in
            ["", ".*", NOTHING, "^billing$", r"^billing.*\z", r"^b[ei]lling\z", r"^a|b", r"^\d\z", r"^(a|)\z"]
        {
            assert_eq!(names_in(pattern), None, "{pattern}");
        }
    }

    #[test]
    fn the_applications_in_a_pattern_come_back() {
        let journalled = RecallSettings::default().with_journal(JournalSettings::default());
        for recall in [None, Some(RecallSettings::default()), Some(journalled)] {
            for longest in [None, Some(0), Some(90), Some(0xfff), Some(86_400)] {
                for (own, others, recalled) in [
                    ("billing", &[][..], &[][..]),
                    ("eu.billing", &["a.b", "0000"], &[]),
                    ("0000.0001", &[], &["mail"]),
                    ("(x|y)", &["a|b", "z)"], &["^a$", "delay.x"]),
                ] {
                    let keys =
                        |names: &[&str]| names.iter().map(|name| AppKey::new(*name).unwrap()).collect();
                    let user = AppUser {
                        may_publish: keys(others),
                        may_recall: keys(recalled),
                        max_delay: longest.map(|seconds| Delay::from_seconds(seconds).unwrap()),
                        ..user("u")
                    };
                    let (_, topics) = of(&AppSpec { recall, ..spec(own, user) });
                    let mut found: Vec<_> =
                        apps_in(&topics[0].write).iter().map(ToString::to_string).collect();
                    found.sort();
                    let mut all = [&[own][..], others, recalled].concat();
                    all.sort_unstable();
                    assert_eq!(found, all, "{}", topics[0].write);
                }
            }
        }
        for pattern in
            ["", ".*", r"^delay\.", r"^delay(\.[01]{4}){7}\..*\z", r"^delay(\.[01]{4}){7}\.{username}\z"]
        {
            assert_eq!(apps_in(pattern), [], "{pattern}");
        }
    }

    #[test]
    fn an_application_may_recall_its_own_messages_and_those_it_is_given() {
        let more = AppUser {
            may_publish: vec![AppKey::new("orders").unwrap()],
            may_recall: vec![AppKey::new("mail").unwrap()],
            ..user("svc")
        };
        let spec = AppSpec { recall: Some(RecallSettings::default()), ..spec("billing", more) };
        let (permission, topics) = of(&spec);
        assert_eq!(permission.write, r"^(delay|delay\.recalled\.billing|delay\.recalled\.mail)\z");
        assert_eq!(
            permission.read,
            r"^(billing-in|delay\.recall\.billing|delay\.recall\.mail|delay\.recalled\.billing)\z"
        );
        let keys = Regex::new(&topics[0].write).unwrap();
        let id = |app: &str, id: &str| format!("{}.~.{id}", key(9, app));
        let longest = "x".repeat(64);
        for allowed in
            [key(9, "billing"), key(9, "orders"), key(9, "mail"), id("billing", &longest), id("mail", "-_0A")]
        {
            assert!(keys.is_match(&allowed), "{allowed}");
        }
        let too_long = "x".repeat(65);
        for refused in [
            id("orders", "x"),
            id("billing", &too_long),
            id("billing", ""),
            id("billing", "a.b"),
            id("billing", "*"),
            id("nobody", "x"),
            format!("{}\n", id("billing", "x")),
            id("billing", "ä"),
        ] {
            assert!(!keys.is_match(&refused), "{refused:?}");
        }
    }

    #[test]
    fn a_journal_is_written_by_those_who_publish_and_read_by_its_application() {
        let recall = RecallSettings::default().with_journal(JournalSettings::default());
        let more = AppUser { may_recall: vec![AppKey::new("eu.mail").unwrap()], ..user("svc") };
        let spec = AppSpec { recall: Some(recall), ..spec("billing", more) };
        let (permission, topics) = of(&spec);
        let reads = Regex::new(&permission.read).unwrap();
        assert!(reads.is_match("delay.journal.billing") && !reads.is_match("delay.journal.eu.mail"));
        let keys = Regex::new(&topics[0].write).unwrap();
        for allowed in ["journal.billing", "journal.eu.mail", &key(9, "billing"), &key(9, "eu.mail")] {
            assert!(keys.is_match(allowed), "{allowed}");
        }
        for refused in
            ["journal.orders", "journal.euxmail", "journal.", "xjournal.billing", "journal.billing\n"]
        {
            assert!(!keys.is_match(refused), "{refused:?}");
        }
        let (permission, topics) =
            of(&AppSpec { recall: Some(RecallSettings::default()), user: Some(user("u")), ..spec });
        assert!(!permission.read.contains("journal") && !topics[0].write.contains("journal"));
    }

    #[test]
    fn a_longest_delay_is_written_short() {
        let pattern = |seconds: u64| delays(Some(Delay::from_seconds(seconds).unwrap()));
        assert_eq!(pattern(0xfff), r"\.0000\.0000\.0000\.0000(\.[01]{4}){3}");
        assert_eq!(pattern(0x17), r"\.0000\.0000\.0000\.0000\.0000\.000(0(\.[01]{4})|1\.0[01]{3})");
    }

    #[test]
    fn a_longest_delay_is_exact() {
        for longest in [0, 1, 2, 3, 4, 5, 6, 7, 8, 90, 127, 128, 86_400, 86_401, 268_435_454, 268_435_455] {
            let limited = AppUser { max_delay: Some(Delay::from_seconds(longest).unwrap()), ..user("u") };
            let (_, topics) = of(&spec("a", limited));
            let pattern = Regex::new(&topics[0].write).unwrap();
            let near = (longest.saturating_sub(300)..=longest + 300).chain([0, 1, 1 << 20, (1 << 28) - 1]);
            for seconds in near.filter(|&seconds| seconds < 1 << 28) {
                let key = key(seconds, "a");
                assert_eq!(
                    pattern.is_match(&key),
                    seconds <= longest,
                    "{seconds} up to {longest}: {pattern}"
                );
            }
        }
    }

    #[test]
    fn characters_that_mean_something_in_patterns_mean_themselves() {
        for app in ["a.b", "a+b", "{username}", "(x|y)", "^a$", r"a\z", "käse", "[0]", "a?b"] {
            let (_, topics) = of(&spec(app, user("u")));
            let pattern = Regex::new(&topics[0].write).unwrap();
            assert!(pattern.is_match(&key(1, app)), "{app}: {pattern}");
            assert!(!pattern.is_match(&key(1, "axb")) && !pattern.is_match(&key(1, "x")), "{app}");
            assert!(!topics[0].write.contains("{username}"));
        }
    }
}
