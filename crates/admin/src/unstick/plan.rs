//! Which queues are touched, and with which kind of policy: pure.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value as Json;

use crate::management::{Policy, PolicyKind, QueueInfo};

/// The name of the policies this sets, so that anybody who finds one knows where it came
/// from.
pub(crate) const NAME: &str = "delayline-unstick";

/// A queue with dead letters that cannot be touched without replacing somebody's policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Occupied {
    /// The queue.
    pub queue: String,
    /// The policy that applies to it.
    pub policy: String,
    /// The operator policy that applies to it.
    pub operator_policy: String,
}

/// The policies to set for a moment, at most one of each kind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Touches {
    pub(super) queues: BTreeMap<PolicyKind, Vec<String>>,
    pub(super) occupied: Vec<Occupied>,
}

/// Whether the dead-letter worker of a queue waits for confirms: its dead-lettering is
/// at-least-once.
pub(super) fn hands_on_at_least_once(queue: &QueueInfo) -> bool {
    let says = |argument: &str, key: &str, value: &str| {
        let argument = queue.arguments.get(argument);
        argument.or_else(|| queue.policy_value(key)).and_then(Json::as_str) == Some(value)
    };
    queue.kind.contains("quorum")
        && says("x-dead-letter-strategy", "dead-letter-strategy", "at-least-once")
        && says("x-overflow", "overflow", "reject-publish")
}

/// Chooses for each queue a kind of policy that it does not have: existing policies stay in
/// force, whoever made them. A policy needs fewer rights than an operator policy, so it comes
/// first.
pub(super) fn touches<'a>(queues: impl IntoIterator<Item = &'a QueueInfo>) -> Touches {
    let mut touches = Touches::default();
    for queue in queues {
        let others = |name: &Option<String>| name.clone().filter(|name| !name.is_empty() && name != NAME);
        let kind = match (others(&queue.policy), others(&queue.operator_policy)) {
            (None, _) => PolicyKind::Policy,
            (Some(_), None) => PolicyKind::OperatorPolicy,
            (Some(policy), Some(operator_policy)) => {
                touches.occupied.push(Occupied { queue: queue.name.clone(), policy, operator_policy });
                continue;
            }
        };
        touches.queues.entry(kind).or_default().push(queue.name.clone());
    }
    touches
}

/// A policy for exactly these queues that changes nothing about them: nobody consumes such a
/// queue, so nothing in it is delivered, let alone that often. It gives way to any other
/// policy.
pub(super) fn policy(queues: &[String]) -> Policy {
    let names: Vec<_> = queues.iter().map(|name| regex::escape(name)).collect();
    Policy {
        name: NAME.into(),
        pattern: format!("^(?:{})$", names.join("|")),
        apply_to: "queues".into(),
        definition: [("delivery-limit".to_owned(), i32::MAX.into())].into(),
        priority: -1_000_000,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn queue(name: &str, policy: Option<&str>, operator_policy: Option<&str>) -> QueueInfo {
        QueueInfo {
            name: name.into(),
            policy: policy.map(Into::into),
            operator_policy: operator_policy.map(Into::into),
            ..QueueInfo::default()
        }
    }

    #[test]
    fn no_policy_of_anybody_is_displaced() {
        let queues = [
            queue("free", None, Some("")),
            queue("with-policy", Some("theirs"), None),
            queue("with-operator-policy", None, Some("theirs")),
            queue("with-both", Some("a"), Some("b")),
            queue("left-over", Some(NAME), Some(NAME)),
            queue("left-over-beside", Some("theirs"), Some(NAME)),
        ];
        let touches = touches(&queues);
        let of = |kind| touches.queues[&kind].iter().map(String::as_str).collect::<Vec<_>>();
        assert_eq!(of(PolicyKind::Policy), ["free", "with-operator-policy", "left-over"]);
        assert_eq!(of(PolicyKind::OperatorPolicy), ["with-policy", "left-over-beside"]);
        let occupied =
            Occupied { queue: "with-both".into(), policy: "a".into(), operator_policy: "b".into() };
        assert_eq!(touches.occupied, [occupied]);
    }

    #[test]
    fn the_pattern_is_for_these_queues_only() {
        let policy = policy(&["delay.level.00".into(), "a+b".into()]);
        let pattern = regex::Regex::new(&policy.pattern).unwrap();
        for (name, matches) in [
            ("delay.level.00", true),
            ("a+b", true),
            ("delay.level.001", false),
            ("delay-level.00", false),
            ("my.delay.level.00", false),
            ("aab", false),
        ] {
            assert_eq!(pattern.is_match(name), matches, "{name}");
        }
    }

    #[test]
    fn only_workers_that_wait_are_touched() {
        let mut queue = QueueInfo { kind: "quorum".into(), ..QueueInfo::default() };
        assert!(!hands_on_at_least_once(&queue));
        queue.effective_policy_definition = json!({"dead-letter-strategy": "at-least-once"});
        queue.arguments.insert("x-overflow".into(), "reject-publish".into());
        assert!(hands_on_at_least_once(&queue));
        queue.arguments.insert("x-dead-letter-strategy".into(), "at-most-once".into());
        assert!(!hands_on_at_least_once(&queue));
        queue.arguments.insert("x-dead-letter-strategy".into(), "at-least-once".into());
        queue.kind = "classic".into();
        assert!(!hands_on_at_least_once(&queue));
    }
}
