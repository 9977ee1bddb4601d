//! The rights of an application's user, as the broker's patterns: pure.

use std::collections::BTreeSet;

use delayline_broker::{
    NOTHING, Pattern, Permission, QueueInfo, RECALL_ID, TopicPermission, alternatives, any_of,
    delays_pattern, exactly, names_pattern, permits,
};
use delayline_core::{
    codec::{AppKey, WORDS},
    topology::{Rejected, Topology},
};

use super::{AppSpec, AppUser};

/// The permissions and topic permissions of an application's user: only the necessary ones.
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
        write: write.into(),
        read: read.into(),
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
    // Other users may be meant to see recalled messages of this application; a publisher is not.
    read.extend(own.map(|app| names.recalled(app)));
    read.extend(spec.journal().map(|_| names.journal(&spec.app)));
    if user.may_schedule {
        write.push(names.schedules_of(&spec.app));
        read.push(names.schedules_of(&spec.app));
    }
    let own_and_others: BTreeSet<_> =
        std::iter::once(&spec.app).chain(&user.may_publish).chain(&user.may_recall).collect();
    let keys = alternatives(own_and_others.into_iter().map(|app| {
        let recallable = own == Some(app) || user.may_recall.contains(app);
        format!("{}{}", exactly(app.as_str()), if recallable { RECALL_ID } else { "" })
    }));
    let keys = format!(r"^delay{}\.{keys}\z", delays_pattern(user.max_delay));
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
        write: names_pattern(&write).into(),
        read: names_pattern(&read).into(),
    };
    (permission, topics)
}

/// Whether these permissions have the form that adding an application gives them.
pub(crate) fn is_of_adding(topology: &Topology, found: &Permission) -> bool {
    let exact =
        |pattern: &Pattern| *pattern == NOTHING || pattern.starts_with('^') && pattern.ends_with(r"\z");
    found.configure == NOTHING
        && [&found.write, &found.read].into_iter().all(exact)
        && permits(&found.write, &topology.names().entry()) == Ok(true)
}

/// Whether a user may park messages of its application itself: those that must not be retried.
pub(super) fn may_park(spec: &AppSpec, user: &AppUser) -> bool {
    user.may_retry || spec.keeps_rejected()
}

/// Whether an existing queue dead-letters rejected messages as the queue of an application with retries does.
pub(super) fn keeps_rejected(topology: &Topology, app: &AppKey, queue: &QueueInfo) -> bool {
    [Rejected::Retried, Rejected::Parked].into_iter().any(|rejected| {
        let wanted = topology.app_queue(app, &queue.name, Some(rejected)).arguments;
        let mut wanted = wanted.iter().filter(|(name, _)| name.starts_with("x-dead-letter-"));
        wanted.all(|(name, value)| {
            queue.arguments.get(name).and_then(|found| found.as_str()) == Some(value.to_string().as_str())
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{apps::AppQueue, apps::Delivery};
    use delayline_broker::{apps_in, names_in};
    use delayline_core::{
        codec::{Delay, RoutingKey},
        topology::{JournalSettings, RecallSettings, TopologySettings},
    };

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

    fn matches(pattern: &Pattern, text: &str) -> bool {
        pattern.matches(text).unwrap()
    }

    #[test]
    fn an_application_may_publish_its_keys_and_read_its_queue() {
        let (permission, topics) = of(&spec("billing", user("svc")));
        assert_eq!(permission.configure, "^$");
        assert_eq!(permission.write, r"^delay\z");
        assert_eq!(permission.read, r"^billing-in\z");
        assert_eq!(topics.len(), 2);
        assert_eq!(topics[0].write, r"^delay(\.[01]{4}){7}\.billing\z");
        assert_eq!((topics[1].exchange.as_str(), &*topics[1].write), ("delay.dispatch", "^$"));
        let pattern = &topics[0].write;
        assert!(matches(pattern, &key(90, "billing")));
        let own = key(90, "billing");
        for other in [&key(90, "eu.billing"), &key(90, "billing.eu"), "billing", "#", &format!("{own}\n")] {
            assert!(!matches(pattern, other), "{other:?}");
        }
    }

    #[test]
    fn more_rights_are_given_only_on_demand() {
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
        let binds = &topics[1].read;
        assert!(matches(binds, &RoutingKey::binding_pattern(&AppKey::new("billing").unwrap())));
        assert!(!matches(binds, "#") && !matches(binds, "#.billing"));
    }

    #[test]
    fn an_application_with_retries_may_park_its_own_messages() {
        let queue = AppQueue { rejected: Some(Rejected::Retried), ..AppQueue::new("billing-in") };
        let spec = AppSpec { delivery: Delivery::Direct(queue), ..spec("billing", user("svc")) };
        let (permission, topics) = of(&spec);
        assert_eq!(permission.write, r"^(delay|delay\.parked)\z");
        assert_eq!((&*topics[2].exchange, &*topics[2].write), ("delay.parked", r"^billing\z"));
        assert_eq!(topics.len(), 3);
    }

    #[test]
    fn the_names_in_a_pattern_come_back_and_no_other_pattern_is_accepted() {
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
            assert_eq!(apps_in(&pattern.into()), [], "{pattern}");
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
        let keys = &topics[0].write;
        let id = |app: &str, id: &str| format!("{}.~.{id}", key(9, app));
        let longest = "x".repeat(64);
        for allowed in
            [key(9, "billing"), key(9, "orders"), key(9, "mail"), id("billing", &longest), id("mail", "-_0A")]
        {
            assert!(matches(keys, &allowed), "{allowed}");
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
            assert!(!matches(keys, &refused), "{refused:?}");
        }
    }

    #[test]
    fn a_journal_is_read_by_its_application() {
        let recall = RecallSettings::default().with_journal(JournalSettings::default());
        let more = AppUser { may_recall: vec![AppKey::new("eu.mail").unwrap()], ..user("svc") };
        let spec = AppSpec { recall: Some(recall), ..spec("billing", more) };
        let (permission, _) = of(&spec);
        let reads = &permission.read;
        assert!(matches(reads, "delay.journal.billing") && !matches(reads, "delay.journal.eu.mail"));
        let (permission, _) =
            of(&AppSpec { recall: Some(RecallSettings::default()), user: Some(user("u")), ..spec });
        assert!(!permission.read.contains("journal"));
    }

    #[test]
    fn an_application_may_reach_no_schedules_but_its_own() {
        let more = AppUser { may_schedule: true, ..user("svc") };
        let (permission, _) = of(&spec("billing", more));
        for pattern in [&permission.write, &permission.read] {
            assert!(matches(pattern, "delay.schedules-of.billing"));
            for other in ["delay.schedules", "delay.schedules.turn", "delay.schedules-of.billing.eu"] {
                assert!(!matches(pattern, other), "{other}");
            }
        }
    }

    #[test]
    fn a_longest_delay_is_written_short() {
        let pattern = |seconds: u64| delays_pattern(Some(Delay::from_seconds(seconds).unwrap()));
        assert_eq!(pattern(0xfff), r"\.0000\.0000\.0000\.0000(\.[01]{4}){3}");
        assert_eq!(pattern(0x17), r"\.0000\.0000\.0000\.0000\.0000\.000(0(\.[01]{4})|1\.0[01]{3})");
    }

    #[test]
    fn a_longest_delay_is_exact() {
        for longest in [0_u64, 1, 2, 3, 4, 5, 6, 7, 8, 90, 127, 128, 86_400, 86_401, 268_435_454, 268_435_455]
        {
            let limited = AppUser { max_delay: Some(Delay::from_seconds(longest).unwrap()), ..user("u") };
            let (_, topics) = of(&spec("a", limited));
            let pattern = &topics[0].write;
            let near = (longest.saturating_sub(300)..=longest + 300).chain([0, 1, 1 << 20, (1 << 28) - 1]);
            for seconds in near.filter(|&seconds| seconds < 1 << 28) {
                let key = key(seconds, "a");
                assert_eq!(
                    matches(pattern, &key),
                    seconds <= longest,
                    "{seconds} up to {longest}: {pattern}"
                );
            }
        }
    }

    #[test]
    fn special_characters_are_escaped() {
        for app in ["a.b", "a+b", "{username}", "(x|y)", "^a$", r"a\z", "käse", "[0]", "a?b"] {
            let (_, topics) = of(&spec(app, user("u")));
            let pattern = &topics[0].write;
            assert!(matches(pattern, &key(1, app)), "{app}: {pattern}");
            assert!(!matches(pattern, &key(1, "axb")) && !matches(pattern, &key(1, "x")), "{app}");
            assert!(!topics[0].write.contains("{username}"));
        }
    }
}
