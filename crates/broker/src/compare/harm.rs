//! Policies that change how an exchange or queue of the set works even though its arguments are right: pure.

use std::collections::{BTreeMap, BTreeSet};

use delayline_core::topology::{Endpoint, Topology};
use serde_json::Value as Json;

use super::{
    keys::{Part, harms, is_judged, takes_effect},
    set::text,
};
use crate::{compare::Difference, management::QueueInfo, policy::Settings, snapshot::Snapshot};

impl Snapshot {
    /// The policies that change how the exchanges and queues of a set, its applications and gateways work.
    /// How much a journal keeps is not included, nor limits on the length of a landing queue: those are
    /// checked for every queue at the end of a route.
    pub(super) fn compare_policies(&self, topology: &Topology, differences: &mut Vec<Difference>) {
        for (name, settings) in self.policies_on_exchanges(topology) {
            let object = Endpoint::Exchange(name.to_owned()).to_string();
            differences.extend(harms(Part::Exchange).filter_map(|(key, effect)| {
                let (value, origins) = settings.get(key)?;
                // No queues of its own.
                let is_none = key == "shards-per-node" && value == 0;
                (!is_none).then(|| difference(&object, key, value, origins.clone(), effect))
            }));
        }
        for info in self.queues.values() {
            let Some(part) = part_of(topology, &info.name) else { continue };
            let object = Endpoint::Queue(info.name.clone()).to_string();
            differences.extend(harms(part).filter_map(|(key, effect)| {
                let value = info.policy_value(key).filter(|value| takes_effect(part, key, value, info))?;
                Some(difference(&object, key, value, origins(info, key), effect))
            }));
        }
    }

    /// The policy keys on exchanges and queues of a set whose effect is unknown, each as a text.
    #[must_use]
    pub fn unjudged(&self, topology: &Topology) -> Vec<String> {
        let mut places: BTreeMap<(String, String), BTreeSet<String>> = BTreeMap::new();
        let mut add = |object: Endpoint, key: &str, origins: Vec<String>| {
            if !is_judged(key) {
                let key = (key.to_owned(), origins.join(" and "));
                places.entry(key).or_default().insert(object.to_string());
            }
        };
        for (name, settings) in self.policies_on_exchanges(topology) {
            for (key, (_, origins)) in settings {
                add(Endpoint::Exchange(name.to_owned()), &key, origins);
            }
        }
        for info in self.queues.values().filter(|info| topology.owns_queue(&info.name)) {
            for key in info.effective_policy_definition.as_object().into_iter().flatten().map(|it| it.0) {
                add(Endpoint::Queue(info.name.clone()), key, origins(info, key));
            }
        }
        let text = |((key, origins), objects): ((String, String), BTreeSet<String>)| {
            let more = match objects.len() {
                1 => String::new(),
                many => format!(" and {} more", many - 1),
            };
            let first = objects.into_iter().next().unwrap_or_default();
            format!(
                "the effect of `{key}` on {first}{more}, which {origins} sets: this version of delayline does \
                 not know the key"
            )
        };
        let mut unknown: Vec<_> = places.into_iter().map(text).collect();
        unknown.extend(self.unread_on_exchanges(topology));
        unknown
    }

    /// The settings of policies on the exchanges of a set.
    fn policies_on_exchanges(&self, topology: &Topology) -> impl Iterator<Item = (&str, Settings)> {
        let ours = self.exchanges.values().filter(|exchange| topology.owns_exchange(&exchange.name));
        ours.map(|exchange| (exchange.name.as_str(), self.policies.on_exchange(exchange)))
    }

    /// That a policy applies to an exchange of the set, if its settings cannot be read: unlike queues,
    /// exchanges report only its name.
    fn unread_on_exchanges(&self, topology: &Topology) -> Option<String> {
        let error = self.policies.user.as_ref().err()?;
        let named = |name: &str| self.exchanges.get(name)?.policy.clone().filter(|name| !name.is_empty());
        let mut ours = self.exchanges.keys().filter(|name| topology.owns_exchange(name));
        let (exchange, policy) = ours.find_map(|name| Some((name, named(name)?)))?;
        Some(format!("the effect of policy `{policy}` on exchange `{exchange}`: {error}"))
    }
}

/// The part of a queue with this name; `None` if it does not belong to the set, or is a journal.
fn part_of(topology: &Topology, queue: &str) -> Option<Part> {
    let names = topology.names();
    if let Some(wanted) = topology.queues().find(|wanted| wanted.name == queue) {
        return Some(match wanted.level {
            Some(_) => Part::Level,
            None if wanted.name == names.retry() => Part::Service,
            None => Part::Keeping,
        });
    }
    let parts = [
        (names.app_of_landing(queue), Part::Landing),
        (names.app_of_recalled(queue), Part::Recalled),
        (names.gateway_of(queue), Part::Service),
    ];
    parts.into_iter().find_map(|(of, part)| of.map(|_| part))
}

/// The policies that set a key of a queue.
fn origins(queue: &QueueInfo, key: &str) -> Vec<String> {
    let shown = || {
        let names = [("policy", &queue.policy), ("operator policy", &queue.operator_policy)];
        let named = |(kind, name): (&str, &Option<String>)| {
            name.as_ref().filter(|name| !name.is_empty()).map(|name| format!("{kind} `{name}`"))
        };
        names.into_iter().filter_map(named).collect()
    };
    queue.policy_origins.get(key).cloned().unwrap_or_else(shown)
}

fn difference(
    object: &str,
    key: &str,
    value: &Json,
    origins: Vec<String>,
    effect: &'static str,
) -> Difference {
    Difference::Policy {
        object: object.to_owned(),
        policy: format!("{} sets `{key}` to {}", origins.join(" and "), text(value)),
        origins,
        key: key.into(),
        value: text(value),
        effect,
    }
}

#[cfg(test)]
mod tests {
    use delayline_core::{
        codec::AppKey,
        topology::{Object, RecallSettings, TopologySettings},
    };

    use super::*;
    use crate::{management::ManagementError, policy::Policies};

    fn setup() -> (Topology, Snapshot) {
        let topology = Topology::new(TopologySettings::default());
        let observed = Snapshot::default().with(topology.objects());
        (topology, observed)
    }

    #[test]
    fn finds_policies_that_would_lose_or_hurry_messages() {
        let (topology, mut observed) = setup();
        let queue = observed.queues.get_mut("delay.level.03").unwrap();
        queue.policy = Some("all".into());
        queue.effective_policy_definition = serde_json::json!({
            "expires": 1, "message-ttl": 7_999, "dead-letter-routing-key": "x", "max-length": 9, "delivery-limit": 3,
        });
        assert_eq!(observed.compare(&topology).len(), 4);
        let queue = observed.queues.get_mut("delay.level.03").unwrap();
        queue.effective_policy_definition = serde_json::json!({"message-ttl": 8_000});
        assert_eq!(observed.compare(&topology), []);
    }

    #[test]
    fn finds_policies_that_drop_kept_messages() {
        let (topology, observed) = setup();
        for name in ["delay.unroutable", "delay.retry", "delay.parked"] {
            let mut observed = observed.clone();
            let queue = observed.queues.get_mut(name).unwrap();
            queue.effective_policy_definition = serde_json::json!({"message-ttl": 60_000});
            let texts: Vec<_> = observed.compare(&topology).iter().map(ToString::to_string).collect();
            let effect = if name == "delay.retry" { "as if they had been rejected" } else { "are dropped" };
            assert!(texts.len() == 1 && texts[0].contains(effect), "{name}: {texts:?}");
        }
    }

    /// The keys that change a queue or exchange of this name, of a policy that matches everything.
    fn found(objects: &[Object], name: &str, definition: &Json) -> Vec<String> {
        let (topology, observed) = setup();
        let mut observed = observed.with(objects);
        let policy = serde_json::json!({"name": "p", "apply-to": "all", "definition": definition});
        let policies =
            Policies { user: Ok(vec![serde_json::from_value(policy).unwrap()]), ..Policies::default() };
        observed.apply(policies);
        let mut differences = Vec::new();
        observed.compare_policies(&topology, &mut differences);
        let keys = differences.into_iter().filter_map(|difference| match difference {
            Difference::Policy { object, key, .. } if object.ends_with(&format!(" `{name}`")) => Some(key),
            other => {
                assert!(matches!(other, Difference::Policy { .. }), "{other:?}");
                None
            }
        });
        keys.collect()
    }

    #[test]
    fn finds_policies_that_hurt_a_landing_queue() {
        let topology = setup().0;
        let app = AppKey::new("billing").unwrap();
        let broad =
            serde_json::json!({"expires": 60_000, "message-ttl": 60_000, "dead-letter-routing-key": "x"});
        for (key, expected) in
            [(None, &["dead-letter-routing-key", "expires"][..]), (Some("billing"), &["expires"])]
        {
            let landing = [Object::Queue(topology.landing_queue(&app, "", key))];
            assert_eq!(found(&landing, "delay.landing.billing", &broad), expected);
        }
    }

    #[test]
    fn finds_policies_that_copy_messages_into_or_out_of_the_set() {
        for key in ["federation-upstream", "federation-upstream-pattern", "federation-upstream-set"] {
            let federated = serde_json::json!({key: "all"});
            // The exchange and the queue of a level share a name.
            assert_eq!(found(&[], "delay.level.03", &federated), [key, key]);
            assert_eq!(found(&[], "delay", &federated), [key]);
            assert_eq!(found(&[], "delay.parked", &federated), [key, key]);
        }
        let sharded = serde_json::json!({"shards-per-node": 2, "routing-key": "#"});
        assert_eq!(found(&[], "delay.dispatch", &sharded), ["shards-per-node"]);
        let none = serde_json::json!({"shards-per-node": 0});
        assert_eq!(found(&[], "delay.dispatch", &none), [""; 0]);
    }

    #[test]
    fn an_overflow_by_policy_takes_precedence_over_the_argument() {
        let (topology, app) = (setup().0, AppKey::new("billing").unwrap());
        let landing = [Object::Queue(topology.landing_queue(&app, "", Some("billing")))];
        for (value, harmful) in [("drop-head", true), ("reject-publish", false)] {
            let definition = serde_json::json!({"overflow": value});
            for name in ["delay.level.03", "delay.retry", "delay.landing.billing"] {
                let found = found(&landing, name, &definition);
                assert_eq!(found.len(), usize::from(harmful), "{name} {value}");
            }
            // They have no limit of length.
            assert_eq!(found(&landing, "delay.parked", &definition), [""; 0]);
        }
        let recalled = [Object::Queue(topology.recalled_queue(&app, RecallSettings::default()))];
        let refuse = serde_json::json!({"overflow": "reject-publish"});
        assert_eq!(found(&recalled, "delay.recalled.billing", &refuse), ["overflow"]);
    }

    #[test]
    fn finds_policies_that_undo_recalls_and_only_lower_limits() {
        let recalled = setup().0.recalled_queue(&AppKey::new("billing").unwrap(), RecallSettings::default());
        let recalled = [Object::Queue(recalled)];
        let found = |definition| found(&recalled, "delay.recalled.billing", &definition);
        assert_eq!(
            found(
                serde_json::json!({"expires": 1, "dead-letter-exchange": "x", "max-length": 5, "message-ttl": 1})
            ),
            ["dead-letter-exchange", "expires", "max-length", "message-ttl"]
        );
        assert_eq!(
            found(serde_json::json!({"max-length": 100_000, "message-ttl": 9_000_000_000_u64})),
            [""; 0]
        );
    }

    #[test]
    fn a_key_that_is_not_known_is_reported_as_that() {
        let (topology, mut observed) = setup();
        let policy = serde_json::json!({
            "name": "new", "apply-to": "all", "pattern": "^delay", "definition": {"x-later": 1, "max-age": "1D"},
        });
        observed.apply(Policies {
            user: Ok(vec![serde_json::from_value(policy).unwrap()]),
            ..Policies::default()
        });
        // A key for streams makes a policy one for exchanges and streams only.
        let unknown = observed.unjudged(&topology);
        assert!(
            unknown.len() == 1
                && unknown[0].starts_with(
                    "the effect of `x-later` on exchange `delay.dispatch` and 31 more, which policy `new`"
                ),
            "{unknown:?}"
        );
        observed.apply(Policies {
            user: Err(ManagementError::Unexpected { url: "u".into(), path: "p".into(), reason: "no".into() }),
            ..Policies::default()
        });
        assert_eq!(observed.unjudged(&topology), [""; 0]);
        observed.exchanges.get_mut("delay.level.03").unwrap().policy = Some("hidden".into());
        let unknown = observed.unjudged(&topology);
        assert!(unknown.len() == 1 && unknown[0].contains("policy `hidden` on exchange `delay.level.03`: "));
    }
}
