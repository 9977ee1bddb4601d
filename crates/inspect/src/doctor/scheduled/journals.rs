//! Journals of scheduled messages.

use delayline_core::shell::command;
use std::time::Duration;

use jiff::Timestamp;

use crate::{doctor::evidence::Evidence, doctor::targets::replicas, finding::Finding, finding::FindingCode};
use delayline_broker::{ANY_APP, Pattern, QueueInfo, Retention, permits};
use delayline_core::{
    codec::{AppKey, Delay},
    topology::Topology,
};
use delayline_messages::{
    scheduled::IndexedJournal, scheduled::JournalBeginning, scheduled::is_emptied, scheduled::lost,
};

/// How far an index may be behind, in seconds.
const BEHIND: u64 = 60;

/// Checks the journal of every application whose messages can be recalled.
pub(in crate::doctor) fn check(topology: &Topology, evidence: &Evidence, now: Timestamp) -> Vec<Finding> {
    let (names, vhost) = (topology.names(), evidence.snapshot.vhost.as_str());
    let apps = evidence.snapshot.queues.keys().filter_map(|name| {
        let app = AppKey::new(names.app_of_recalled(name)?).ok()?;
        let journal = names.journal(&app);
        let stream = evidence.snapshot.queues.get(&journal);
        Some((app, stream))
    });
    // An interrupted `app add` made only the journal.
    let lost = evidence.lost_journals.iter().filter_map(|stream| {
        let app = AppKey::new(names.app_of_journal(stream)?).ok()?;
        Some(lost(stream, &app, vhost).about([&app]))
    });
    let others = apps.flat_map(|(app, stream)| {
        let findings = match stream {
            _ if evidence.lost_journals.contains(&names.journal(&app)) => [None, None],
            None => [missing(topology, evidence, &app), None],
            Some(stream) if !stream.has_majority() => {
                [replicas(stream, "the copies of new messages are missing or wait"), None]
            }
            Some(stream) => {
                let beginning = evidence.journals.get(&stream.name);
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
        format!(
            "{way_out} and then run `{}` with the flags it was registered with",
            command(&["app", "add", app.as_str()])
        ),
    )
}

/// The users that may read a journal belong to an application that had one.
fn missing(topology: &Topology, evidence: &Evidence, app: &AppKey) -> Option<Finding> {
    let grants = evidence.snapshot.grants.as_ref()?;
    let journal = topology.names().journal(app);
    let any = topology.names().journal(&AppKey::new(ANY_APP).ok()?);
    let may_read = |pattern: &Pattern, queue: &str| permits(pattern, queue) == Ok(true);
    let reads = |pattern: &Pattern| may_read(pattern, &journal) && !may_read(pattern, &any);
    let user = grants.permissions.values().find(|it| reads(&it.read))?;
    Some(Finding::new(
        FindingCode::JournalMissing,
        format!("queue `{journal}`"),
        format!(
            "it does not exist, although user `{}` may read it, so scheduled messages of `{app}` are \
        not listed",
            user.user
        ),
        format!(
            "run `{}` with the flags it was registered with. If it needs no journal, add \
             --replace-permissions and leave --journal out. The copies in the old journal are lost",
            command(&["app", "add", app.as_str(), "--recall", "--journal", "AGE"])
        ),
    ))
}

/// Whether waiting messages are cut off.
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
            format!("{what}: some waiting messages are listed nowhere"),
            format!("make it keep more: {}", wanted.policy(&stream.name, vhost)),
        )
    };
    // Age does not cut off the newest messages.
    if beginning.cut_off.is_none() && stream.messages.is_some_and(is_emptied) {
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

/// Journals that a daemon's index lacks, or in which it lacks newer messages.
pub(in crate::doctor) fn unindexed(topology: &Topology, index: &[IndexedJournal]) -> Vec<Finding> {
    let found = |it: &IndexedJournal| {
        let app = AppKey::new(&it.app).ok()?;
        let what = match (&it.problem, it.behind) {
            (Some(problem), None) => format!("this daemon does not index it: {problem}"),
            (problem, Some(seconds)) if seconds > BEHIND => {
                let reason = problem.as_ref().map(|problem| format!(": {problem}")).unwrap_or_default();
                format!(
                    "the index of this daemon is {} behind it{reason}",
                    words(Duration::from_secs(seconds))
                )
            }
            _ => return None,
        };
        let subject = format!("queue `{}`", topology.names().journal(&app));
        let advice = "lists read the whole journal meanwhile. If the index is too large, raise `index_bytes`, or \
                      delay fewer messages; if the daemon cannot read the journal, its log has the reason";
        Some(Finding::new(FindingCode::JournalUnindexed, subject, what, advice).about([&app]))
    };
    index.iter().filter_map(found).collect()
}

/// Whether a policy makes it keep less than it was declared with.
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
            format!("policy {} makes it keep {}", policies.join(" or "), less.join(" and ")),
            "if that is not intended, remove the limit from the policy; the removed copies do not come back",
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
    use delayline_broker::{Grants, Permission, Snapshot};
    use delayline_core::topology::TopologySettings;
    use serde_json::json;

    const DAY: u64 = 86_400;

    fn evidence(queues: &[(&str, serde_json::Value)]) -> Evidence {
        let topology = Topology::new(TopologySettings::default());
        let mut snapshot = Snapshot::new("/", Vec::new(), Vec::new(), Vec::new()).with(topology.objects());
        for (name, policy) in queues {
            let queue = QueueInfo {
                name: (*name).into(),
                arguments: [
                    ("x-max-age".to_owned(), json!("7D")),
                    ("x-max-length-bytes".to_owned(), json!(1_000)),
                ]
                .into(),
                effective_policy_definition: policy.clone(),
                policy: Some("short".into()),
                ..QueueInfo::default()
            };
            snapshot.enter([], [queue], []);
        }
        Evidence { snapshot, ..Evidence::default() }
    }

    fn found(evidence: &Evidence) -> Vec<(&'static str, String, String)> {
        let topology = Topology::new(TopologySettings::default());
        let now = Timestamp::from_second(100 * DAY.cast_signed()).unwrap();
        let findings = check(&topology, evidence, now);
        assert!(findings.iter().all(|it| it.apps == ["billing"]), "{findings:#?}");
        findings.into_iter().map(|it| (it.code.as_str(), it.what, it.advice)).collect()
    }

    #[test]
    fn a_missing_journal_is_found_by_its_readers() {
        let mut evidence = evidence(&[("delay.recalled.billing", json!([]))]);
        assert_eq!(found(&evidence), []);
        let reads = |user: &str, read: &str| Permission {
            user: user.into(),
            read: read.into(),
            ..Permission::default()
        };
        let mut all = vec![reads("admin", ".*"), reads("other", r"^billing\z")];
        evidence.snapshot.grants = Some(Grants::new("/", Vec::new(), all.clone(), Vec::new()));
        assert_eq!(found(&evidence), []);
        all[0] = reads("svc", r"^(billing|delay\.journal\.billing)\z");
        evidence.snapshot.grants = Some(Grants::new("/", Vec::new(), all, Vec::new()));
        let found = found(&evidence);
        assert!(
            found.len() == 1 && found[0].0 == "journal-missing" && found[0].1.contains("`svc`"),
            "{found:?}"
        );
    }

    #[test]
    fn a_lost_journal_is_found_with_its_remedy() {
        // With and without the queue that `app add` makes after it.
        let both = [("delay.journal.billing", json!([])), ("delay.recalled.billing", json!([]))];
        for queues in [&both[..], &both[..1]] {
            let mut evidence = evidence(queues);
            evidence.lost_journals.insert("delay.journal.billing".into());
            let all = found(&evidence);
            assert_eq!((all.len(), all[0].0), (1, "journal-lost"));
            assert!(all[0].2.contains("rabbitmqctl eval") && all[0].2.contains("app add billing"), "{all:?}");
        }
    }

    #[test]
    fn a_waiting_message_that_was_cut_off_is_found() {
        let streams = [("delay.recalled.billing", json!([])), ("delay.journal.billing", json!([]))];
        let with = |cut_off: u64, oldest: u64, longest: u64| {
            let mut evidence = evidence(&streams);
            let beginning = JournalBeginning {
                cut_off: Some(cut_off),
                oldest: Timestamp::from_second(((100 - oldest) * DAY).cast_signed()).ok(),
                longest: Some(Duration::from_secs(longest * DAY)),
            };
            evidence.journals.insert("delay.journal.billing".into(), beginning);
            found(&evidence)
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
        // The one counted entry is delivered to no consumer.
        let mut evidence = evidence(&streams);
        evidence.journals.insert("delay.journal.billing".into(), JournalBeginning::default());
        assert_eq!(found(&evidence), []);
        evidence.snapshot.queues.get_mut("delay.journal.billing").unwrap().messages = Some(1);
        let all = found(&evidence);
        assert_eq!((all.len(), all[0].0), (1, "journal-too-short"));
        assert!(all[0].1.contains("all copies in it were cut off, because it keeps 1000 bytes"), "{all:?}");
        assert!(all[0].2.contains(r#""max-length-bytes":2000"#), "{all:?}");
    }

    #[test]
    fn a_journal_without_a_majority_is_found() {
        let mut evidence =
            evidence(&[("delay.recalled.billing", json!([])), ("delay.journal.billing", json!([]))]);
        let stream = evidence.snapshot.queues.get_mut("delay.journal.billing").unwrap();
        stream.members = ["a", "b", "c"].map(String::from).into();
        stream.online = ["a", "b"].map(String::from).into();
        assert_eq!(found(&evidence), []);
        evidence.snapshot.queues.get_mut("delay.journal.billing").unwrap().online.truncate(1);
        let all = found(&evidence);
        assert_eq!((all.len(), all[0].0), (1, "no-majority"));
        assert!(all[0].1.contains("1 of 3 replicas run"), "{all:?}");
    }

    #[test]
    fn an_index_that_is_behind_is_found() {
        let found = |behind, problem: Option<&str>| {
            let journal = IndexedJournal {
                app: "billing".into(),
                messages: Some(3),
                bytes: 4,
                behind,
                problem: problem.map(str::to_owned),
            };
            let findings = unindexed(&Topology::new(TopologySettings::default()), &[journal]);
            findings.first().map(|it| it.what.clone())
        };
        assert_eq!((found(Some(60), None), found(None, None)), (None, None));
        // The connection was lost a moment ago.
        assert_eq!(found(Some(2), Some("lost")), None);
        assert!(found(Some(300), Some("lost")).unwrap().contains("behind it: lost"));
        assert!(found(None, Some("too large")).unwrap().contains("does not index it: too large"));
    }

    #[test]
    fn a_policy_that_keeps_less_is_found() {
        let with = |policy: serde_json::Value| {
            found(&evidence(&[("delay.recalled.billing", json!([])), ("delay.journal.billing", policy)]))
        };
        assert_eq!(with(json!({ "max-age": "30D", "max-length-bytes": 1_000 })), []);
        let less = with(json!({ "max-age": "1D", "max-length-bytes": 10 }));
        assert_eq!((less.len(), less[0].0), (1, "journal-limited"));
        assert!(
            less[0].1.contains("policy `short` makes it keep 1d instead of 7d and 10 instead of 1000 bytes"),
            "{less:?}"
        );
    }
}
