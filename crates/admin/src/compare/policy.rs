//! Which policies apply to a queue, computed from the policies themselves: pure.
//!
//! A queue's statistics show a policy only some seconds after it was set: too late for
//! whoever looks right afterwards. So the broker's rules are followed here, as
//! `rabbit_policy` and `rabbit_policies` have them in 3.10, 4.0 and 4.3.

use std::collections::{BTreeMap, BTreeSet};

use fancy_regex::Regex;
use serde_json::Value as Json;

use crate::management::{ManagementApi, ManagementError, Policy, PolicyKind, QueueInfo};

use crate::compare::Observed;

/// A policy with one of these keys does not apply to a quorum queue at all, whatever else it
/// sets. These are the keys that all versions agree on.
const NOT_FOR_QUORUM: [&str; 11] = [
    "max-priority",
    "queue-mode",
    "ha-mode",
    "ha-params",
    "ha-sync-mode",
    "ha-promote-on-shutdown",
    "ha-promote-on-failure",
    "queue-master-locator",
    "max-age",
    "stream-max-segment-size-bytes",
    "initial-cluster-size",
];

/// The same for a classic queue.
const NOT_FOR_CLASSIC: [&str; 5] = [
    "max-age",
    "stream-max-segment-size-bytes",
    "initial-cluster-size",
    "delivery-limit",
    "dead-letter-strategy",
];

/// Keys for which the lower value applies when a user policy and an operator policy set them;
/// for all others the operator's applies.
const LOWER_HOLDS: [&str; 7] = [
    "message-ttl",
    "max-length",
    "max-length-bytes",
    "max-in-memory-length",
    "max-in-memory-bytes",
    "expires",
    "delivery-limit",
];

/// A policy with its pattern compiled.
struct Rule<'a> {
    policy: &'a Policy,
    /// `None` if we cannot compile it.
    pattern: Option<Regex>,
}

/// The value of a key, and the policies that set it.
type Settings = BTreeMap<String, (Json, Vec<String>)>;

impl Observed {
    /// Reads the current policies and [applies](Self::apply_policies) them.
    ///
    /// # Errors
    /// See [`ManagementError`]; then nothing has changed.
    pub fn read_policies(&mut self, api: &ManagementApi, vhost: &str) -> Result<(), ManagementError> {
        let user = api.policies(PolicyKind::Policy, vhost)?;
        let operator = api.policies(PolicyKind::OperatorPolicy, vhost)?;
        self.apply_policies(&user, &operator);
        Ok(())
    }

    /// Sets for every queue which policies apply to it and what they set, from the policies
    /// as they are now, in place of its statistics.
    pub fn apply_policies(&mut self, user: &[Policy], operator: &[Policy]) {
        let (user, operator) = (read(user), read(operator));
        for (kind, rules) in [("policy", &user), ("operator policy", &operator)] {
            let unreadable = rules.iter().filter(|rule| rule.pattern.is_none());
            self.unsettled.extend(unreadable.map(|Rule { policy, .. }| {
                format!(
                    "which queues {kind} `{}` applies to, if it was set in the last few seconds: its pattern \
                     `{}` cannot be read here",
                    policy.name, policy.pattern
                )
            }));
        }
        for queue in &mut self.queues {
            let users = holding(&user, queue, queue.policy.as_deref());
            let operators = holding(&operator, queue, queue.operator_policy.as_deref());
            let name = |holding: &[&Policy]| holding.first().map(|policy| policy.name.clone());
            (queue.policy, queue.operator_policy) = (name(&users), name(&operators));
            let merged = merge(&together("policy", &users), &together("operator policy", &operators));
            queue.policy_origins =
                merged.iter().map(|(key, (_, origins))| (key.clone(), origins.clone())).collect();
            queue.effective_policy_definition =
                Json::Object(merged.into_iter().map(|(key, (value, _))| (key, value)).collect());
        }
    }
}

fn read(policies: &[Policy]) -> Vec<Rule<'_>> {
    policies.iter().map(|policy| Rule { policy, pattern: Regex::new(&policy.pattern).ok() }).collect()
}

/// The policies that apply to a queue: the matching one with the highest priority. If several
/// share that priority, the broker picks one, anew after every change of a policy: then it is
/// all of them. `shown` is what the queue's statistics name, for patterns that cannot be
/// read.
fn holding<'a>(rules: &[Rule<'a>], queue: &QueueInfo, shown: Option<&str>) -> Vec<&'a Policy> {
    let kind = kind(queue);
    let matching = |rule: &&Rule<'_>| {
        let named = match &rule.pattern {
            // A pattern that gives up on this name counts as unreadable.
            Some(pattern) => pattern.is_match(&queue.name).ok(),
            None => None,
        };
        let named = named.unwrap_or_else(|| shown == Some(rule.policy.name.as_str()));
        named && is_for(kind, rule.policy)
    };
    let matching: Vec<_> = rules.iter().filter(matching).map(|rule| rule.policy).collect();
    let highest = matching.iter().map(|policy| policy.priority).max();
    let mut holding: Vec<_> =
        matching.into_iter().filter(|policy| Some(policy.priority) == highest).collect();
    holding.sort_by(|one, other| one.name.cmp(&other.name));
    holding
}

/// The type of a queue, by its own field or its argument: versions differ in what they report
/// for a queue that was just declared.
fn kind(queue: &QueueInfo) -> &'static str {
    let argument = queue.arguments.get("x-queue-type").and_then(Json::as_str).unwrap_or_default();
    let said = if queue.kind.is_empty() { argument } else { queue.kind.as_str() };
    ["quorum", "stream"].into_iter().find(|kind| said.contains(kind)).unwrap_or("classic")
}

fn is_for(kind: &str, policy: &Policy) -> bool {
    let (apply_to, never): (_, &[&str]) = match kind {
        "quorum" => ("quorum_queues", &NOT_FOR_QUORUM),
        "stream" => ("streams", &[]),
        _ => ("classic_queues", &NOT_FOR_CLASSIC),
    };
    ["all", "queues", apply_to].contains(&policy.apply_to.as_str())
        && !policy.definition.keys().any(|key| never.contains(&key.as_str()))
}

/// The combined settings of policies of which any may apply: for each key the lowest value,
/// which hurts most.
fn together(kind: &str, policies: &[&Policy]) -> Settings {
    let mut settings = Settings::new();
    for policy in policies {
        let others: BTreeSet<_> =
            policies.iter().map(|other| &other.name).filter(|name| **name != policy.name).collect();
        let others: Vec<_> = others.into_iter().map(|name| format!("`{name}`")).collect();
        let origin = match others.is_empty() {
            true => format!("{kind} `{}`", policy.name),
            false => format!(
                "{kind} `{}` (it and {} have the same priority, and the broker chooses which applies)",
                policy.name,
                others.join(", ")
            ),
        };
        for (key, value) in &policy.definition {
            match settings.get_mut(key) {
                Some((before, _)) if lower(before, value) == *before => {}
                _ => {
                    settings.insert(key.clone(), (value.clone(), vec![origin.clone()]));
                }
            }
        }
    }
    settings
}

/// A user policy and an operator policy together, as the broker merges them.
fn merge(user: &Settings, operator: &Settings) -> Settings {
    let mut merged = user.clone();
    for (key, (value, origins)) in operator {
        let Some((users, _)) = merged.get(key) else {
            merged.insert(key.clone(), (value.clone(), origins.clone()));
            continue;
        };
        let holds = match LOWER_HOLDS.contains(&key.as_str()) {
            // A negative value means no limit.
            true if [users, value].into_iter().any(|it| it.as_i64().is_some_and(|it| it < 0)) => {
                higher(users, value)
            }
            true => lower(users, value),
            false => value.clone(),
        };
        let holders: Vec<_> = [(users, &user[key].1), (value, origins)]
            .into_iter()
            .filter(|(set, _)| **set == holds)
            .flat_map(|(_, origins)| origins.clone())
            .collect();
        merged.insert(key.clone(), (holds, holders));
    }
    merged
}

fn lower(one: &Json, other: &Json) -> Json {
    if other.as_i64() < one.as_i64() { other.clone() } else { one.clone() }
}

fn higher(one: &Json, other: &Json) -> Json {
    if other.as_i64() > one.as_i64() { other.clone() } else { one.clone() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn policy(name: &str, pattern: &str, priority: i64, definition: Json) -> Policy {
        serde_json::from_value(json!({
            "name": name, "pattern": pattern, "apply-to": "all", "priority": priority, "definition": definition,
        }))
        .unwrap()
    }

    /// What holds for a quorum queue, and what could not be read.
    fn applied(queue: &str, user: &[Policy], operator: &[Policy]) -> (QueueInfo, Vec<String>) {
        let info = QueueInfo { name: queue.into(), kind: "quorum".into(), ..QueueInfo::default() };
        let mut observed = Observed { queues: vec![info], ..Observed::default() };
        observed.apply_policies(user, operator);
        (observed.queues.remove(0), observed.unsettled)
    }

    fn holds(queue: &str, user: &[Policy], operator: &[Policy]) -> Json {
        let (info, unsettled) = applied(queue, user, operator);
        assert_eq!(unsettled, [""; 0]);
        info.effective_policy_definition
    }

    #[test]
    fn a_pattern_matches_anywhere_and_the_highest_priority_holds_alone() {
        let policies = [
            policy("low", "level", 0, json!({"expires": 1, "max-length": 2})),
            policy("high", "^delay\\.", 7, json!({"message-ttl": 3})),
            policy("other", "^orders$", 9, json!({"expires": 4})),
        ];
        assert_eq!(holds("delay.level.03", &policies, &[]), json!({"message-ttl": 3}));
        assert_eq!(holds("my.level", &policies, &[]), json!({"expires": 1, "max-length": 2}));
        assert_eq!(holds("orders", &policies, &[]), json!({"expires": 4}));
        assert_eq!(holds("delay", &policies, &[]), json!({}));
        let (info, _) = applied("delay.level.03", &policies, &[]);
        assert_eq!(info.policy.as_deref(), Some("high"));
        assert_eq!(info.policy_origins["message-ttl"], ["policy `high`"]);
    }

    #[test]
    fn look_ahead_is_read_and_what_cannot_be_is_said() {
        let policies = [policy("most", "^(?!amq\\.)", 0, json!({"expires": 1}))];
        assert_eq!(holds("delay.level.03", &policies, &[]), json!({"expires": 1}));
        assert_eq!(holds("amq.gen-1", &policies, &[]), json!({}));
        let odd = [policy("odd", "(", 0, json!({"expires": 1}))];
        let (info, unsettled) = applied("delay.level.03", &odd, &[]);
        assert_eq!(info.effective_policy_definition, json!({}));
        assert!(unsettled.len() == 1 && unsettled[0].contains("policy `odd`"), "{unsettled:?}");
        // Then the queue's statistics say it, if a little late.
        let shown = QueueInfo { name: "q".into(), policy: Some("odd".into()), ..QueueInfo::default() };
        let mut observed = Observed { queues: vec![shown], ..Observed::default() };
        observed.apply_policies(&odd, &[]);
        assert_eq!(observed.queues[0].effective_policy_definition, json!({"expires": 1}));
    }

    #[test]
    fn a_policy_is_for_one_kind_of_thing() {
        let apply_to = |to: &str| {
            let policy = policy("p", "", 0, json!({"expires": 1}));
            Policy { apply_to: to.into(), ..policy }
        };
        for (to, expected) in [
            ("all", true),
            ("queues", true),
            ("quorum_queues", true),
            ("classic_queues", false),
            ("streams", false),
            ("exchanges", false),
        ] {
            assert_eq!(holds("q", &[apply_to(to)], &[]) != json!({}), expected, "{to}");
        }
        // Nor does one hold that sets what a quorum queue does not know.
        let mirrored = policy("ha", "", 9, json!({"ha-mode": "all", "expires": 1}));
        assert_eq!(holds("q", std::slice::from_ref(&mirrored), &[]), json!({}));
        let below = policy("below", "", 0, json!({"expires": 2}));
        assert_eq!(holds("q", &[mirrored.clone(), below.clone()], &[]), json!({"expires": 2}));
        let classic = QueueInfo { name: "c".into(), kind: "classic".into(), ..QueueInfo::default() };
        let mut observed = Observed { queues: vec![classic], ..Observed::default() };
        observed.apply_policies(&[mirrored, below], &[]);
        assert_eq!(observed.queues[0].policy.as_deref(), Some("ha"));
    }

    #[test]
    fn operators_and_users_merge_and_the_lower_limit_holds() {
        let user = [policy(
            "mine",
            "",
            0,
            json!({"expires": 5, "max-length": 9, "overflow": "drop-head", "delivery-limit": 4}),
        )];
        let operator = [policy(
            "theirs",
            "",
            0,
            json!({"expires": 7, "max-length": 3, "overflow": "reject-publish", "delivery-limit": -1, "message-ttl": 1}),
        )];
        let (info, _) = applied("q", &user, &operator);
        assert_eq!(
            info.effective_policy_definition,
            json!({"delivery-limit": 4, "expires": 5, "max-length": 3, "message-ttl": 1, "overflow": "reject-publish"})
        );
        let origin = |key: &str| info.policy_origins[key].clone();
        assert_eq!(origin("expires"), ["policy `mine`"]);
        assert_eq!(origin("max-length"), ["operator policy `theirs`"]);
        assert_eq!(origin("message-ttl"), ["operator policy `theirs`"]);
        let (both, _) = applied("q", &user, &user);
        assert_eq!(both.policy_origins["expires"], ["policy `mine`", "operator policy `mine`"]);
    }

    #[test]
    fn of_two_with_one_priority_either_may_hold() {
        let policies = [
            policy("b", "", 1, json!({"expires": 5, "max-length": 1})),
            policy("a", "", 1, json!({"expires": 9})),
            policy("c", "", 0, json!({"expires": 1})),
        ];
        let (info, _) = applied("q", &policies, &[]);
        assert_eq!(info.effective_policy_definition, json!({"expires": 5, "max-length": 1}));
        assert_eq!(
            info.policy_origins["expires"],
            ["policy `b` (it and `a` have the same priority, and the broker chooses which applies)"]
        );
    }
}
