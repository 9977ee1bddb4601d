//! Policies that change how a queue of the set works even though its arguments are right:
//! pure.

use serde_json::Value as Json;

use crate::management::QueueInfo;

use crate::compare::{Difference, observed::text};

/// Policy keys that affect a level queue even though its arguments are right: of two limits
/// the lower applies, and what no argument sets is the policy's alone.
const HARMFUL_POLICIES: [(&str, &str); 5] = [
    ("message-ttl", "messages leave this level too early if it is lower than the level's own"),
    ("expires", "the broker deletes the queue with all its messages once it is unused for that long"),
    ("max-length", "the queue refuses messages once it is full, and the level above stalls"),
    ("max-length-bytes", "the queue refuses messages once it is full, and the level above stalls"),
    (
        "dead-letter-routing-key",
        "it replaces the delay in the routing key, so every message ends up unroutable",
    ),
];

/// The same for a queue that keeps messages until somebody decides what to do with them.
const HARMFUL_TO_KEEPING: [(&str, &str); 5] = [
    ("message-ttl", "messages are dropped after that time"),
    ("expires", "the broker deletes the queue with all its messages once it is unused for that long"),
    ("max-length", "once it is full, messages are dropped, or the levels they come from stall"),
    ("max-length-bytes", "once it is full, messages are dropped, or the levels they come from stall"),
    ("delivery-limit", "messages are dropped after they were looked at that often"),
];

/// The same for a landing queue, which no application consumes and which passes messages on
/// at once.
const HARMFUL_TO_LANDING: [(&str, &str); 2] = [
    ("expires", "the broker deletes the queue with all its messages, as nobody consumes a landing queue"),
    ("dead-letter-routing-key", "it replaces the key that the application's messages should arrive with"),
];

/// What policies do to a queue of the set: a level, or a queue that keeps messages.
pub(super) fn harmful_policies(info: &QueueInfo, is_level: bool) -> impl Iterator<Item = Difference> + '_ {
    policies(info, if is_level { &HARMFUL_POLICIES } else { &HARMFUL_TO_KEEPING })
}

/// The policies that change how a landing queue works, except limits on its length: those are
/// checked as for every queue at the end of a route.
pub(crate) fn landing_policies(info: &QueueInfo) -> Vec<Difference> {
    policies(info, &HARMFUL_TO_LANDING).collect()
}

/// The values of these keys that policies set for a queue and that take effect.
fn policies<'a>(
    queue: &'a QueueInfo,
    harmful: &'static [(&str, &'static str)],
) -> impl Iterator<Item = Difference> + 'a {
    harmful.iter().filter_map(|&(key, effect)| {
        let value = queue.policy_value(key)?;
        if key == "delivery-limit" && value.as_i64().is_some_and(|limit| limit < 0) {
            return None;
        }
        // A limit above the level's own TTL changes nothing. Queues that keep messages have
        // no TTL.
        if key == "message-ttl"
            && let Some(own) = queue.arguments.get("x-message-ttl").and_then(Json::as_i64)
            && value.as_i64() >= Some(own)
        {
            return None;
        }
        // The queue's own argument takes precedence over the policy.
        if key == "dead-letter-routing-key" && queue.arguments.contains_key("x-dead-letter-routing-key") {
            return None;
        }
        let shown = || {
            let names = [("policy", &queue.policy), ("operator policy", &queue.operator_policy)];
            let named = |(kind, name): (&str, &Option<String>)| {
                name.as_ref().filter(|name| !name.is_empty()).map(|name| format!("{kind} `{name}`"))
            };
            names.into_iter().filter_map(named).collect()
        };
        let origins = queue.policy_origins.get(key).cloned().unwrap_or_else(shown);
        Some(Difference::Policy {
            queue: queue.name.clone(),
            policy: format!("{} sets `{key}` to {}", origins.join(" and "), text(value)),
            origins,
            key: key.into(),
            value: text(value),
            effect,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::Observed;
    use delayline_core::topology::{Topology, TopologySettings};

    fn setup() -> (Topology, Observed) {
        let topology = Topology::new(TopologySettings::default());
        let observed = Observed::standing(&topology);
        (topology, observed)
    }

    #[test]
    fn finds_policies_that_would_lose_or_hurry_messages() {
        let (topology, mut observed) = setup();
        let queue = observed.queues.iter_mut().find(|queue| queue.name == "delay.level.03").unwrap();
        queue.policy = Some("all".into());
        queue.effective_policy_definition = serde_json::json!({
            "expires": 1, "message-ttl": 7_999, "dead-letter-routing-key": "x", "max-length": 9, "delivery-limit": 3,
        });
        assert_eq!(observed.compare(&topology).len(), 4);
        let queue = observed.queues.iter_mut().find(|queue| queue.name == "delay.level.03").unwrap();
        queue.effective_policy_definition = serde_json::json!({"message-ttl": 8_000});
        assert_eq!(observed.compare(&topology), []);
    }

    #[test]
    fn finds_policies_that_drop_what_is_kept() {
        let (topology, observed) = setup();
        for name in ["delay.unroutable", "delay.retry", "delay.parked"] {
            let mut observed = observed.clone();
            let queue = observed.queues.iter_mut().find(|queue| queue.name == name).unwrap();
            queue.effective_policy_definition = serde_json::json!({"message-ttl": 60_000});
            let texts: Vec<_> = observed.compare(&topology).iter().map(ToString::to_string).collect();
            assert!(texts.len() == 1 && texts[0].contains("dropped after that time"), "{name}: {texts:?}");
        }
    }

    #[test]
    fn finds_policies_that_hurt_a_landing_queue() {
        let topology = Topology::new(TopologySettings::default());
        let mut info = QueueInfo { name: "delay.landing.billing".into(), ..QueueInfo::default() };
        let found = |info: &QueueInfo| landing_policies(info).len();
        info.effective_policy_definition =
            serde_json::json!({"expires": 60_000, "message-ttl": 60_000, "dead-letter-routing-key": "x"});
        assert_eq!(found(&info), 2);
        info.arguments.insert("x-dead-letter-routing-key".into(), "billing".into());
        assert_eq!(found(&info), 1);
        assert!(topology.names().app_of_landing(&info.name).is_some());
    }
}
