//! Recalls, and recalled messages.

use delayline_core::shell::command;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value as Json;

use crate::{doctor::evidence::Evidence, finding::Finding, finding::FindingCode};
use delayline_broker::QueueInfo;
use delayline_core::{codec::AppKey, topology::Topology};
use delayline_messages::number::grouped;

/// How long after the due time of its message a recall should be removed. They are removed an hour after
/// it, and the removal may have been postponed.
const SWEPT_WITHIN: SignedDuration = SignedDuration::from_hours(24);

/// Checks every application whose messages can be recalled.
pub(in crate::doctor) fn check(topology: &Topology, evidence: &Evidence, now: Timestamp) -> Vec<Finding> {
    let names = topology.names();
    let apps = evidence.snapshot.exchanges.keys().filter_map(|name| {
        let app = AppKey::new(names.app_of_recall(name)?).ok()?;
        (names.recall(&app) == *name).then_some(app)
    });
    apps.flat_map(|app| {
        let findings =
            [quota(evidence, &app), not_swept(topology, evidence, &app, now), full(topology, evidence, &app)];
        findings.into_iter().flatten().map(move |finding| finding.about([&app]))
    })
    .collect()
}

fn quota(evidence: &Evidence, app: &AppKey) -> Option<Finding> {
    let pending = evidence.recalls.get(app.as_str())?.pending;
    let most = evidence.max_recalls.of(app);
    let code = match pending {
        _ if pending > most => FindingCode::RecallsOverQuota,
        // Four fifths.
        _ if pending > 0 && pending.saturating_mul(5) >= most.saturating_mul(4) => {
            FindingCode::RecallsNearQuota
        }
        _ => return None,
    };
    Some(Finding::new(
        code,
        format!("app key `{app}`"),
        format!(
            "{} of its recalls are pending, and its limit is {} (`max_recalls`)",
            grouped(pending),
            grouped(most)
        ),
        format!(
            "check the recalled messages (`{}`), and whether expired recalls are removed (`{}`, or `{}`). \
             Raise `max_recalls` if the broker can hold more recalls (docs/how-to/recall.md), or remove the \
             right to recall",
            command(&["scheduled", "list", "--recalls", "--app", app.as_str()]),
            command(&["serve"]),
            command(&["scheduled", "sweep"])
        ),
    ))
}

fn not_swept(topology: &Topology, evidence: &Evidence, app: &AppKey, now: Timestamp) -> Option<Finding> {
    let recalls = evidence.recalls.get(app.as_str())?;
    let before = now.checked_sub(SWEPT_WITHIN).unwrap_or(Timestamp::MIN);
    recalls.oldest_over.is_some_and(|oldest| oldest < before).then(|| {
        Finding::new(
            FindingCode::RecallsNotSwept,
            format!("exchange `{}`", topology.names().recall(app)),
            format!(
                "{} of its bindings are expired recalls, some of them for more than a day",
                grouped(recalls.over)
            ),
            format!(
                "run `{}`, or `{}`, which reports why it cannot remove them",
                command(&["serve"]),
                command(&["scheduled", "sweep"])
            ),
        )
    })
}

fn full(topology: &Topology, evidence: &Evidence, app: &AppKey) -> Option<Finding> {
    let name = topology.names().recalled(app);
    let queue = evidence.snapshot.queues.get(&name)?;
    let most = limit(queue)?;
    queue.messages_ready.is_some_and(|ready| ready >= most).then(|| {
        Finding::new(
            FindingCode::RecalledFull,
            format!("queue `{name}`"),
            format!(
                "it is full ({} messages): the oldest is dropped for each new one",
                grouped(most)
            ),
            format!(
                "look whether any are still wanted (`{}`), and send them on or discard them; nothing else depends \
                 on them",
                command(&["held", "list", "--kind", "recalled", "--app", app.as_str()])
            ),
        )
    })
}

/// The lower of its own limit and a policy's.
fn limit(queue: &QueueInfo) -> Option<u64> {
    let own = queue.arguments.get("x-max-length").and_then(Json::as_u64);
    let policy = queue.policy_value("max-length").and_then(Json::as_u64);
    own.into_iter().chain(policy).min()
}

#[cfg(test)]
mod tests {
    use super::*;
    use delayline_broker::{ExchangeInfo, Snapshot};
    use delayline_core::topology::TopologySettings;
    use delayline_messages::scheduled::AppRecalls;
    use serde_json::json;

    const DAY: i64 = 86_400;

    /// Codes of the findings for these numbers: recalls, recalls that expired two days ago, and messages in
    /// a queue for 10.
    fn found(recalls: u64, over: u64, messages: u64) -> Vec<&'static str> {
        let topology = Topology::new(TopologySettings::default());
        let mut snapshot = Snapshot::default().with(topology.objects());
        let exchanges = ["delay.recall.billing", "delay.through.billing"]
            .map(|name| ExchangeInfo { name: name.into(), ..ExchangeInfo::default() });
        let queue = QueueInfo {
            name: "delay.recalled.billing".into(),
            messages_ready: Some(messages),
            arguments: [("x-max-length".to_owned(), json!(10))].into(),
            ..QueueInfo::default()
        };
        snapshot.enter(exchanges, [queue], []);
        let day = |day: i64| Timestamp::from_second(day * DAY).unwrap();
        let count = AppRecalls {
            pending: recalls,
            over,
            oldest_over: (over > 0).then(|| day(8)),
            ..AppRecalls::default()
        };
        let evidence = Evidence {
            snapshot,
            max_recalls: "5 other=1".parse().unwrap(),
            recalls: [("billing".to_owned(), count)].into(),
            ..Evidence::default()
        };
        let findings = check(&topology, &evidence, day(10));
        assert!(findings.iter().all(|it| it.apps == ["billing"]), "{findings:#?}");
        findings.iter().map(|finding| finding.code.as_str()).collect()
    }

    #[test]
    fn the_number_of_recalls_is_reported_before_it_reaches_the_limit() {
        assert_eq!(found(0, 0, 0), [""; 0]);
        assert_eq!(found(3, 0, 9), [""; 0]);
        assert_eq!(found(4, 0, 0), ["recalls-near-quota"]);
        assert_eq!(found(5, 0, 0), ["recalls-near-quota"]);
        assert_eq!(found(6, 0, 0), ["recalls-over-quota"]);
    }

    #[test]
    fn expired_recalls_and_dropped_messages_are_found() {
        assert_eq!(found(3, 2, 0), ["recalls-not-swept"]);
        assert_eq!(found(1, 0, 10), ["recalled-full"]);
    }
}
