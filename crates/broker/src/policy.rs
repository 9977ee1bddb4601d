//! Which policies apply to a queue or exchange, computed from the policies themselves: pure.
//!
//! A queue's statistics show a policy only some seconds after it was set, which is too late for a check
//! right afterwards. So this follows the broker's rules, as `rabbit_policy` and `rabbit_policies` have them
//! in 3.10, 4.0 and 4.3.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value as Json;

use crate::management::{ExchangeInfo, ManagementApi, ManagementError, Policy, PolicyKind, QueueInfo};

/// A policy with any of these keys does not apply to a quorum queue at all, whatever else it sets. All
/// versions agree on these keys.
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

/// The same for a stream.
const NOT_FOR_STREAMS: [&str; 17] = [
    "expires",
    "message-ttl",
    "dead-letter-exchange",
    "dead-letter-routing-key",
    "max-length",
    "max-in-memory-length",
    "max-in-memory-bytes",
    "max-priority",
    "overflow",
    "queue-mode",
    "delivery-limit",
    "ha-mode",
    "ha-params",
    "ha-sync-mode",
    "ha-promote-on-shutdown",
    "queue-master-locator",
    "dead-letter-strategy",
];

/// Keys for which the lower value applies when a user policy and an operator policy set them. For other
/// keys the operator's value applies.
const LOWER_HOLDS: [&str; 7] = [
    "message-ttl",
    "max-length",
    "max-length-bytes",
    "max-in-memory-length",
    "max-in-memory-bytes",
    "expires",
    "delivery-limit",
];

/// For each key its value, and the policies that set it: `policy `x``, `operator policy `x``.
pub(crate) type Settings = BTreeMap<String, (Json, Vec<String>)>;

/// The policies of a vhost, as they are now.
#[derive(Debug, Clone)]
pub struct Policies {
    /// The policies, or why they cannot be read.
    pub user: Result<Vec<Policy>, ManagementError>,
    /// The operator policies, or why they cannot be read.
    pub operator: Result<Vec<Policy>, ManagementError>,
}

impl Default for Policies {
    fn default() -> Self {
        Self { user: Ok(Vec::new()), operator: Ok(Vec::new()) }
    }
}

impl Policies {
    /// Reads the current policies.
    #[must_use]
    pub fn fetch(api: &ManagementApi, vhost: &str) -> Self {
        let read = |kind| api.policies(kind, vhost);
        Self { user: read(PolicyKind::Policy), operator: read(PolicyKind::OperatorPolicy) }
    }

    /// Sets for every queue which policies apply to it and their settings, in place of its statistics.
    /// Returns the parts that are unknown, and why.
    ///
    /// # Errors Why the policies cannot be read; then nothing has changed.
    pub fn apply<'a>(
        &self,
        queues: impl IntoIterator<Item = &'a mut QueueInfo>,
    ) -> Result<Vec<String>, ManagementError> {
        let (user, operator) = self.read()?;
        for queue in queues {
            let kind = kind(queue);
            let users = holding(user, &queue.name, kind, queue.policy.as_deref());
            let operators = holding(operator, &queue.name, kind, queue.operator_policy.as_deref());
            let name = |holding: &[&Policy]| holding.first().map(|policy| policy.name.clone());
            (queue.policy, queue.operator_policy) = (name(&users), name(&operators));
            let merged = merge(&together("policy", &users), &together("operator policy", &operators));
            queue.policy_origins =
                merged.iter().map(|(key, (_, origins))| (key.clone(), origins.clone())).collect();
            queue.effective_policy_definition =
                Json::Object(merged.into_iter().map(|(key, (value, _))| (key, value)).collect());
        }
        let kinds = [("policy", user), ("operator policy", operator)];
        let all = kinds.into_iter().flat_map(|(kind, policies)| policies.iter().map(move |it| (kind, it)));
        let unreadable = all.filter(|(_, policy)| !policy.pattern.is_readable());
        let unchecked = unreadable.map(|(kind, policy)| {
            format!(
                "which queues {kind} `{}` applies to, if it was set in the last few seconds: its pattern \
                 `{}` cannot be read here",
                policy.name, policy.pattern
            )
        });
        Ok(unchecked.collect())
    }

    /// The settings that apply to an exchange; none if the policies cannot be read.
    pub(crate) fn on_exchange(&self, exchange: &ExchangeInfo) -> Settings {
        let Ok((user, operator)) = self.read() else { return Settings::new() };
        let of = |policies, shown| holding(policies, &exchange.name, EXCHANGE, shown);
        let users = of(user, exchange.policy.as_deref());
        merge(&together("policy", &users), &together("operator policy", &of(operator, None)))
    }

    fn read(&self) -> Result<(&[Policy], &[Policy]), ManagementError> {
        let user = self.user.as_ref().map_err(Clone::clone)?;
        let operator = self.operator.as_ref().map_err(Clone::clone)?;
        Ok((user, operator))
    }
}

/// The policies that apply to a queue or exchange: the matching one with the highest priority. If several
/// share that priority, the broker picks one, again after every change of a policy: then the result is all of
/// them. `shown` is the policy in its statistics, for patterns that cannot be read.
fn holding<'a>(policies: &'a [Policy], name: &str, kind: &str, shown: Option<&str>) -> Vec<&'a Policy> {
    let matching = |policy: &&Policy| {
        let named = policy.pattern.matches(name);
        named.unwrap_or_else(|_| shown == Some(policy.name.as_str())) && is_for(kind, policy)
    };
    let matching: Vec<_> = policies.iter().filter(matching).collect();
    let highest = matching.iter().map(|policy| policy.priority).max();
    let mut holding: Vec<_> =
        matching.into_iter().filter(|policy| Some(policy.priority) == highest).collect();
    holding.sort_by(|one, other| one.name.cmp(&other.name));
    holding
}

/// The type of a queue, by its own field or its argument: versions differ in what they report
/// for a queue that was just declared.
pub(crate) fn kind(queue: &QueueInfo) -> &'static str {
    let argument = queue.arguments.get("x-queue-type").and_then(Json::as_str).unwrap_or_default();
    let said = if queue.kind.is_empty() { argument } else { queue.kind.as_str() };
    ["quorum", "stream"].into_iter().find(|kind| said.contains(kind)).unwrap_or("classic")
}

/// In place of the type of a queue.
const EXCHANGE: &str = "exchange";

fn is_for(kind: &str, policy: &Policy) -> bool {
    let (apply_to, never): (&[&str], &[&str]) = match kind {
        EXCHANGE => (&["exchanges"], &[]),
        "quorum" => (&["queues", "quorum_queues"], &NOT_FOR_QUORUM),
        "stream" => (&["queues", "streams"], &NOT_FOR_STREAMS),
        _ => (&["queues", "classic_queues"], &NOT_FOR_CLASSIC),
    };
    (policy.apply_to == "all" || apply_to.contains(&policy.apply_to.as_str()))
        && !policy.definition.keys().any(|key| never.contains(&key.as_str()))
}

/// The combined settings of policies with the same priority: for each key the lowest value, which has the
/// worst effect.
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

    fn apply(info: &mut QueueInfo, user: &[Policy], operator: &[Policy]) -> Vec<String> {
        let policies = Policies { user: Ok(user.to_vec()), operator: Ok(operator.to_vec()) };
        policies.apply([info]).unwrap()
    }

    /// The settings that apply to a quorum queue, and the unreadable policies.
    fn applied(queue: &str, user: &[Policy], operator: &[Policy]) -> (QueueInfo, Vec<String>) {
        let mut info = QueueInfo { name: queue.into(), kind: "quorum".into(), ..QueueInfo::default() };
        let unsettled = apply(&mut info, user, operator);
        (info, unsettled)
    }

    fn holds(queue: &str, user: &[Policy], operator: &[Policy]) -> Json {
        let (info, unsettled) = applied(queue, user, operator);
        assert_eq!(unsettled, [""; 0]);
        info.effective_policy_definition
    }

    #[test]
    fn a_pattern_matches_anywhere_and_only_the_highest_priority_applies() {
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
    fn look_ahead_is_read_and_unreadable_patterns_are_reported() {
        let policies = [policy("most", "^(?!amq\\.)", 0, json!({"expires": 1}))];
        assert_eq!(holds("delay.level.03", &policies, &[]), json!({"expires": 1}));
        assert_eq!(holds("amq.gen-1", &policies, &[]), json!({}));
        let odd = [policy("odd", "(", 0, json!({"expires": 1}))];
        let (info, unsettled) = applied("delay.level.03", &odd, &[]);
        assert_eq!(info.effective_policy_definition, json!({}));
        assert!(unsettled.len() == 1 && unsettled[0].contains("policy `odd`"), "{unsettled:?}");
        // Then the queue's statistics show it, if a little late.
        let mut shown = QueueInfo { name: "q".into(), policy: Some("odd".into()), ..QueueInfo::default() };
        apply(&mut shown, &odd, &[]);
        assert_eq!(shown.effective_policy_definition, json!({"expires": 1}));
    }

    #[test]
    fn a_policy_applies_to_its_kind_of_object() {
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
        // Nor does a policy apply that has a key for other kinds of queues.
        let mirrored = policy("ha", "", 9, json!({"ha-mode": "all", "expires": 1}));
        assert_eq!(holds("q", std::slice::from_ref(&mirrored), &[]), json!({}));
        let below = policy("below", "", 0, json!({"expires": 2}));
        assert_eq!(holds("q", &[mirrored.clone(), below.clone()], &[]), json!({"expires": 2}));
        let mut classic = QueueInfo { name: "c".into(), kind: "classic".into(), ..QueueInfo::default() };
        apply(&mut classic, &[mirrored, below], &[]);
        assert_eq!(classic.policy.as_deref(), Some("ha"));
    }

    #[test]
    fn operator_and_user_policies_merge_and_the_lower_limit_applies() {
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
    fn of_two_policies_with_one_priority_either_may_apply() {
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
