//! Journals of what is scheduled.

use std::time::Duration;

use jiff::Timestamp;

use crate::{
    doctor::facts::Facts,
    finding::{Finding, FindingCode},
    journal::{JournalBeginning, is_emptied, lost},
    management::QueueInfo,
    permitted::{ANY_APP, matches},
    retention::Retention,
};
use delayline_core::{
    codec::{AppKey, Delay},
    topology::Topology,
};

/// Checks the journal of every application whose messages can be recalled.
pub(super) fn check(topology: &Topology, facts: &Facts, vhost: &str, now: Timestamp) -> Vec<Finding> {
    let names = topology.names();
    let apps = facts.observed.queues.iter().filter_map(|queue| {
        let app = AppKey::new(names.app_of_recalled(&queue.name)?).ok()?;
        let journal = names.journal(&app);
        let stream = facts.observed.queues.iter().find(|queue| queue.name == journal);
        Some((app, stream))
    });
    // An `app add` that was interrupted made the journal and nothing else.
    let lost = facts.lost_journals.iter().filter_map(|stream| {
        let app = AppKey::new(names.app_of_journal(stream)?).ok()?;
        Some(lost(stream, &app, vhost).about([&app]))
    });
    let others = apps.flat_map(|(app, stream)| {
        let findings = match stream {
            _ if facts.lost_journals.contains(&names.journal(&app)) => [None, None],
            None => [missing(topology, facts, &app), None],
            Some(stream) => {
                let beginning = facts.journals.get(&stream.name);
                [beginning.and_then(|it| too_short(stream, it, vhost, now)), limited(stream)]
            }
        };
        findings.into_iter().flatten().map(move |finding| finding.about([&app]))
    });
    lost.chain(others).collect()
}

fn lost(stream: &str, app: &AppKey, vhost: &str) -> Finding {
    let way_out = lost::way_out(stream, vhost);
    Finding::new(
        FindingCode::JournalLost,
        format!("queue `{stream}`"),
        lost::WHAT,
        format!("{way_out} and then run `delayline app add {app}` with the flags it was registered with"),
    )
}

/// Users that may read a journal are those of an application that had one.
fn missing(topology: &Topology, facts: &Facts, app: &AppKey) -> Option<Finding> {
    let grants = facts.grants.as_ref()?;
    let journal = topology.names().journal(app);
    let any = topology.names().journal(&AppKey::new(ANY_APP).ok()?);
    let may_read = |pattern: &str, queue: &str| matches(pattern, queue) == Ok(true);
    let reads = |pattern: &str| may_read(pattern, &journal) && !may_read(pattern, &any);
    let users: Vec<_> = grants.permissions.iter().filter(|it| reads(&it.read)).collect();
    let user = users.first()?;
    Some(Finding::new(
        FindingCode::JournalMissing,
        format!("queue `{journal}`"),
        format!("it is not there, although user `{}` may read it: nothing of `{app}` is listed", user.user),
        format!(
            "run `delayline app add {app} --recall --journal AGE` with the flags it was registered with; if it is \
             to have none, add --replace-permissions and leave --journal out. Copies that were in it are lost"
        ),
    ))
}

/// Whether messages are cut off that still wait.
fn too_short(
    stream: &QueueInfo,
    beginning: &JournalBeginning,
    vhost: &str,
    now: Timestamp,
) -> Option<Finding> {
    let keeps = Retention::effective(stream);
    let bytes = keeps.max_bytes.map_or_else(|| "few".into(), |bytes| bytes.to_string());
    let more = Retention { max_bytes: keeps.max_bytes.map(|bytes| bytes.saturating_mul(2)), ..keeps };
    let found = |what: String, wanted: &Retention| {
        Finding::new(
            FindingCode::JournalTooShort,
            format!("queue `{}`", stream.name),
            format!("{what}: some that still wait are listed nowhere"),
            format!("let it keep more: {}", wanted.policy(&stream.name, vhost)),
        )
    };
    // Age does not cut off what was published last.
    if beginning.cut_off.is_none() && is_emptied(stream.messages) {
        return Some(found(format!("all copies in it were cut off, because it keeps {bytes} bytes"), &more));
    }
    let longest = beginning.longest?;
    let age = |since: Timestamp| Duration::try_from(now.duration_since(since)).unwrap_or_default();
    let (what, wanted) = match (keeps.max_age, beginning.oldest.map(age), beginning.cut_off) {
        (Some(most), ..) if most < longest => {
            (format!("it keeps a copy for {}", words(most)), Retention { max_age: Some(longest), ..keeps })
        }
        (_, Some(oldest), Some(count @ 1..)) if oldest < longest => {
            let oldest = words(oldest);
            let what = format!(
                "its oldest copy was published {oldest} ago, and {count} older ones were cut off, because it keeps \
                 {bytes} bytes"
            );
            (what, more)
        }
        _ => return None,
    };
    let longest = words(longest);
    Some(found(format!("{what}, and it has messages with delays of up to {longest}"), &wanted))
}

/// Whether a policy lets it keep less than it was declared with.
fn limited(stream: &QueueInfo) -> Option<Finding> {
    let (declared, effective) = (Retention::declared(stream), Retention::effective(stream));
    let mut less = Vec::new();
    if let (Some(most), Some(now)) = (declared.max_age, effective.max_age)
        && now < most
    {
        less.push(format!("{} instead of {}", words(now), words(most)));
    }
    if let (Some(most), Some(now)) = (declared.max_bytes, effective.max_bytes)
        && now < most
    {
        less.push(format!("{now} instead of {most} bytes"));
    }
    let policies = [&stream.policy, &stream.operator_policy].into_iter().flatten();
    let policies: Vec<_> = policies.filter(|name| !name.is_empty()).map(|name| format!("`{name}`")).collect();
    (!less.is_empty()).then(|| {
        Finding::new(
            FindingCode::JournalLimited,
            format!("queue `{}`", stream.name),
            format!("policy {} has it keep {}", policies.join(" or "), less.join(" and ")),
            "if that is not intended, remove it from the policy; what was cut off does not come back",
        )
    })
}

fn words(time: Duration) -> String {
    let seconds = time.as_secs();
    Delay::from_seconds(seconds).map_or_else(|_| format!("{seconds} s"), |delay| delay.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{compare::Observed, management::Permission, permitted::Grants};
    use delayline_core::topology::TopologySettings;
    use serde_json::json;

    const DAY: u64 = 86_400;

    fn facts(queues: &[(&str, serde_json::Value)]) -> Facts {
        let topology = Topology::new(TopologySettings::default());
        let mut observed = Observed::standing(&topology);
        for (name, policy) in queues {
            observed.queues.push(QueueInfo {
                name: (*name).into(),
                arguments: [
                    ("x-max-age".to_owned(), json!("7D")),
                    ("x-max-length-bytes".to_owned(), json!(1_000)),
                ]
                .into(),
                effective_policy_definition: policy.clone(),
                policy: Some("short".into()),
                ..QueueInfo::default()
            });
        }
        Facts { observed, ..Facts::default() }
    }

    fn found(facts: &Facts) -> Vec<(&'static str, String, String)> {
        let topology = Topology::new(TopologySettings::default());
        let now = Timestamp::from_second(100 * DAY.cast_signed()).unwrap();
        let findings = check(&topology, facts, "/", now);
        assert!(findings.iter().all(|it| it.apps == ["billing"]), "{findings:#?}");
        findings.into_iter().map(|it| (it.code.as_str(), it.what, it.advice)).collect()
    }

    #[test]
    fn a_journal_whose_reader_is_left_is_missing() {
        let mut facts = facts(&[("delay.recalled.billing", json!([]))]);
        assert_eq!(found(&facts), []);
        let reads = |user: &str, read: &str| Permission {
            user: user.into(),
            read: read.into(),
            ..Permission::default()
        };
        let all = vec![reads("admin", ".*"), reads("other", r"^billing\z")];
        facts.grants = Some(Grants { permissions: all, ..Grants::default() });
        assert_eq!(found(&facts), []);
        let own = reads("svc", r"^(billing|delay\.journal\.billing)\z");
        facts.grants.as_mut().unwrap().permissions.push(own);
        let found = found(&facts);
        assert!(
            found.len() == 1 && found[0].0 == "journal-missing" && found[0].1.contains("`svc`"),
            "{found:?}"
        );
    }

    #[test]
    fn a_lost_journal_is_found_with_its_way_out() {
        // With and without the queue that `app add` makes after it.
        let both = [("delay.journal.billing", json!([])), ("delay.recalled.billing", json!([]))];
        for queues in [&both[..], &both[..1]] {
            let mut facts = facts(queues);
            facts.lost_journals.insert("delay.journal.billing".into());
            let all = found(&facts);
            assert_eq!((all.len(), all[0].0), (1, "journal-lost"));
            assert!(all[0].2.contains("rabbitmqctl eval") && all[0].2.contains("app add billing"), "{all:?}");
        }
    }

    #[test]
    fn what_is_cut_off_while_it_waits_is_found() {
        let streams = [("delay.recalled.billing", json!([])), ("delay.journal.billing", json!([]))];
        let with = |cut_off: u64, oldest: u64, longest: u64| {
            let mut facts = facts(&streams);
            let beginning = JournalBeginning {
                cut_off: Some(cut_off),
                oldest: Timestamp::from_second(((100 - oldest) * DAY).cast_signed()).ok(),
                longest: Some(Duration::from_secs(longest * DAY)),
            };
            facts.journals.insert("delay.journal.billing".into(), beginning);
            found(&facts)
        };
        assert_eq!(with(0, 1, 7), []);
        // It was cut off, but is due by now.
        assert_eq!(with(9, 6, 5), []);
        let by_age = with(0, 1, 8);
        assert_eq!((by_age.len(), by_age[0].0), (1, "journal-too-short"));
        assert!(by_age[0].1.contains("for 7d, and it has messages with delays of up to 8d"), "{by_age:?}");
        assert!(by_age[0].2.contains(r#"{"max-age":"691200s","max-length-bytes":1000}"#), "{by_age:?}");
        let by_size = with(9, 2, 5);
        assert_eq!((by_size.len(), by_size[0].0), (1, "journal-too-short"));
        assert!(by_size[0].1.contains("published 2d ago, and 9 older ones were cut off"), "{by_size:?}");
        assert!(by_size[0].2.contains(r#""max-length-bytes":2000"#), "{by_size:?}");
        // Of the one entry that is counted, nothing is handed out.
        let mut facts = facts(&streams);
        facts.journals.insert("delay.journal.billing".into(), JournalBeginning::default());
        assert_eq!(found(&facts), []);
        facts.observed.queues.last_mut().unwrap().messages = 1;
        let all = found(&facts);
        assert_eq!((all.len(), all[0].0), (1, "journal-too-short"));
        assert!(all[0].1.contains("all copies in it were cut off, because it keeps 1000 bytes"), "{all:?}");
        assert!(all[0].2.contains(r#""max-length-bytes":2000"#), "{all:?}");
    }

    #[test]
    fn a_policy_that_keeps_less_is_found() {
        let with = |policy: serde_json::Value| {
            found(&facts(&[("delay.recalled.billing", json!([])), ("delay.journal.billing", policy)]))
        };
        assert_eq!(with(json!({ "max-age": "30D", "max-length-bytes": 1_000 })), []);
        let less = with(json!({ "max-age": "1D", "max-length-bytes": 10 }));
        assert_eq!((less.len(), less[0].0), (1, "journal-limited"));
        assert!(
            less[0].1.contains("policy `short` has it keep 1d instead of 7d and 10 instead of 1000 bytes"),
            "{less:?}"
        );
    }
}
