//! Recalls, and what was recalled.

use jiff::{SignedDuration, Timestamp};
use serde_json::Value as Json;

use crate::{
    doctor::facts::Facts,
    finding::{Finding, FindingCode},
    management::QueueInfo,
    number::grouped,
};
use delayline_core::{codec::AppKey, topology::Topology};

/// How long after its message was due a recall should be gone: they are swept up an hour after,
/// and the sweep may have been put off for a while.
const SWEPT_WITHIN: SignedDuration = SignedDuration::from_hours(24);

/// Checks every application whose messages can be recalled.
pub(super) fn check(topology: &Topology, facts: &Facts, now: Timestamp) -> Vec<Finding> {
    let names = topology.names();
    let apps = facts.observed.exchanges.iter().filter_map(|exchange| {
        let app = AppKey::new(names.app_of_recall(&exchange.name)?).ok()?;
        (names.recall(&app) == exchange.name).then_some(app)
    });
    apps.flat_map(|app| {
        let findings =
            [quota(facts, &app), not_swept(topology, facts, &app, now), full(topology, facts, &app)];
        findings.into_iter().flatten().map(move |finding| finding.about([&app]))
    })
    .collect()
}

fn quota(facts: &Facts, app: &AppKey) -> Option<Finding> {
    let pending = facts.recalls.get(app.as_str())?.pending;
    let most = facts.max_recalls.of(app);
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
            "{} of its recalls are pending, of {} that it may have (`max_recalls`)",
            grouped(pending),
            grouped(most)
        ),
        format!(
            "see what is recalled (delayline recall --pending --app {app}), and whether recalls that are over \
             are swept up (delayline serve, or delayline recall --sweep); raise `max_recalls`, if the broker \
             carries it (docs/recall.md), or take the right to recall away"
        ),
    ))
}

fn not_swept(topology: &Topology, facts: &Facts, app: &AppKey, now: Timestamp) -> Option<Finding> {
    let recalls = facts.recalls.get(app.as_str())?;
    let before = now.checked_sub(SWEPT_WITHIN).unwrap_or(Timestamp::MIN);
    recalls.oldest_over.is_some_and(|oldest| oldest < before).then(|| {
        Finding::new(
            FindingCode::RecallsNotSwept,
            format!("exchange `{}`", topology.names().recall(app)),
            format!(
                "{} of its bindings are recalls of messages that are over, some of them for more than a day",
                grouped(recalls.over)
            ),
            "run `delayline serve`, or `delayline recall --sweep`, which says what keeps it from removing them",
        )
    })
}

fn full(topology: &Topology, facts: &Facts, app: &AppKey) -> Option<Finding> {
    let name = topology.names().recalled(app);
    let queue = facts.observed.queues.iter().find(|queue| queue.name == name)?;
    let most = limit(queue)?;
    (queue.messages_ready >= most).then(|| {
        Finding::new(
            FindingCode::RecalledFull,
            format!("queue `{name}`"),
            format!(
                "it has {} messages, as many as it keeps: the oldest is dropped for each new one",
                grouped(most)
            ),
            format!(
                "look whether any are still wanted (delayline recalled list --app {app}), and send them on or \
                 discard them; nothing else depends on them"
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
    use crate::{AppRecalls, compare::Observed, management::ExchangeInfo};
    use delayline_core::topology::TopologySettings;
    use serde_json::json;

    const DAY: i64 = 86_400;

    /// Codes of what is found with so many recalls of which so many are over for two days, and
    /// so many messages in a queue for 10.
    fn found(recalls: u64, over: u64, messages: u64) -> Vec<&'static str> {
        let topology = Topology::new(TopologySettings::default());
        let mut observed = Observed::standing(&topology);
        for name in ["delay.recall.billing", "delay.through.billing"] {
            observed.exchanges.push(ExchangeInfo { name: name.into(), ..ExchangeInfo::default() });
        }
        observed.queues.push(QueueInfo {
            name: "delay.recalled.billing".into(),
            messages_ready: messages,
            arguments: [("x-max-length".to_owned(), json!(10))].into(),
            ..QueueInfo::default()
        });
        let day = |day: i64| Timestamp::from_second(day * DAY).unwrap();
        let count = AppRecalls {
            pending: recalls,
            over,
            oldest_over: (over > 0).then(|| day(8)),
            ..AppRecalls::default()
        };
        let facts = Facts {
            observed,
            max_recalls: "5 other=1".parse().unwrap(),
            recalls: [("billing".to_owned(), count)].into(),
            ..Facts::default()
        };
        let findings = check(&topology, &facts, day(10));
        assert!(findings.iter().all(|it| it.apps == ["billing"]), "{findings:#?}");
        findings.iter().map(|finding| finding.code.as_str()).collect()
    }

    #[test]
    fn the_number_of_recalls_is_judged_before_it_is_too_large() {
        assert_eq!(found(0, 0, 0), [""; 0]);
        assert_eq!(found(3, 0, 9), [""; 0]);
        assert_eq!(found(4, 0, 0), ["recalls-near-quota"]);
        assert_eq!(found(5, 0, 0), ["recalls-near-quota"]);
        assert_eq!(found(6, 0, 0), ["recalls-over-quota"]);
    }

    #[test]
    fn what_nobody_sweeps_up_and_what_is_dropped_is_found() {
        assert_eq!(found(3, 2, 0), ["recalls-not-swept"]);
        assert_eq!(found(1, 0, 10), ["recalled-full"]);
    }
}
