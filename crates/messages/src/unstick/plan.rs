//! Which queues are touched, and with which kind of policy: pure.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value as Json;

use delayline_broker::{Policy, PolicyKind, QueueInfo, escape};

/// The name of the temporary policies of `unstick`, which shows where they came from.
pub const NAME: &str = "delayline-unstick";

/// The name of the temporary policies of `transfer` and `app discard`. `unstick` must not end them.
pub const NO_LIMIT: &str = "delayline-no-limit";

/// A queue with dead letters that cannot be touched without replacing a user's policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
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
    pub queues: BTreeMap<PolicyKind, Vec<String>>,
    pub occupied: Vec<Occupied>,
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

/// Chooses for each queue a kind of policy that it does not have, so existing policies stay in force. A
/// policy needs fewer rights than an operator policy, so it comes first.
pub(super) fn touches<'a>(queues: impl IntoIterator<Item = &'a QueueInfo>) -> Touches {
    let mut touches = Touches::default();
    for queue in queues {
        let others =
            |name: &Option<String>| name.clone().filter(|name| !["", NAME, NO_LIMIT].contains(&&**name));
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

/// A policy for exactly these queues that changes nothing about them. Such a queue has no consumers, so its
/// messages are never delivered that often. It gives way to any other policy, and one that lifts a limit to `unstick`,
/// since a queue's worker tries again only if another policy applies to the queue.
pub(super) fn policy(name: &str, queues: &[String]) -> Policy {
    let mut names: Vec<_> = queues.iter().map(String::as_str).collect();
    names.sort_unstable();
    names.dedup();
    Policy {
        name: name.into(),
        pattern: format!("^{}$", any_of(&names)).into(),
        apply_to: "queues".into(),
        definition: [("delivery-limit".to_owned(), i32::MAX.into())].into(),
        priority: if name == NO_LIMIT { -1_000_001 } else { -1_000_000 },
    }
}

/// A pattern for any of these names, which are sorted, with common parts once: brokers accept 1,024 bytes.
fn any_of(names: &[&str]) -> String {
    let (first, last) = match names {
        [] => return String::new(),
        [only] => return escape(only).into_owned(),
        [first, .., last] => (*first, *last),
    };
    let pairs = first.chars().zip(last.chars());
    let shared: usize = pairs.take_while(|(one, other)| one == other).map(|(one, _)| one.len_utf8()).sum();
    let rest: Vec<_> = names.iter().map(|name| &name[shared..]).collect();
    let groups = rest.chunk_by(|one, other| one.chars().next() == other.chars().next());
    let groups: Vec<_> = match shared {
        0 => groups.map(any_of).collect(),
        _ => return format!("{}{}", escape(&first[..shared]), any_of(&rest)),
    };
    format!("(?:{})", groups.join("|"))
}

#[cfg(test)]
mod tests {
    use delayline_core::{codec::Hop, topology::Names};
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
    fn no_other_policy_is_displaced() {
        let queues = [
            queue("free", None, Some("")),
            queue("with-policy", Some("theirs"), None),
            queue("with-operator-policy", None, Some("theirs")),
            queue("with-both", Some("a"), Some("b")),
            queue("left-over", Some(NAME), Some(NAME)),
            queue("left-over-beside", Some("theirs"), Some(NAME)),
            queue("in-transfer", Some(NO_LIMIT), None),
        ];
        let touches = touches(&queues);
        let of = |kind| touches.queues[&kind].iter().map(String::as_str).collect::<Vec<_>>();
        assert_eq!(of(PolicyKind::Policy), ["free", "with-operator-policy", "left-over", "in-transfer"]);
        assert_eq!(of(PolicyKind::OperatorPolicy), ["with-policy", "left-over-beside"]);
        let occupied =
            Occupied { queue: "with-both".into(), policy: "a".into(), operator_policy: "b".into() };
        assert_eq!(touches.occupied, [occupied]);
    }

    #[test]
    fn the_pattern_for_all_queues_of_a_set_is_short_enough() {
        let names = Names::new("x".repeat(64).parse().unwrap());
        let all: Vec<_> = Hop::all().map(|hop| names.hop(hop)).collect();
        let pattern = policy(NAME, &all).pattern;
        assert!(pattern.to_string().len() < 1_000, "{pattern:?}");
        for name in &all {
            assert_eq!(pattern.matches(name), Ok(true), "{name}");
        }
        let wrong = ["28", "0", "01.001", "01.1100", "03.1000", ""]
            .map(|end| format!("{}.level.{end}", "x".repeat(64)));
        assert!(wrong.iter().all(|name| pattern.matches(name) == Ok(false)));
    }

    #[test]
    fn the_pattern_is_for_these_queues_only() {
        let policy = policy(NAME, &["delay.level.00".into(), "a+b".into()]);
        for (name, matches) in [
            ("delay.level.00", true),
            ("a+b", true),
            ("delay.level.001", false),
            ("delay-level.00", false),
            ("my.delay.level.00", false),
            ("aab", false),
        ] {
            assert_eq!(policy.pattern.matches(name), Ok(matches), "{name}");
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
