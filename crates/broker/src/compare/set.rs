//! The objects on the broker, compared with the wanted ones: pure, over plain data.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use delayline_core::{
    codec::RoutingKey,
    topology::{Argument, Binding, Endpoint, Exchange, Queue, Topology},
};
use serde_json::Value as Json;

use crate::{compare::Difference, management::QueueInfo, snapshot::Snapshot};

/// How many replicas a quorum queue gets by default, if the cluster has enough nodes (the default of
/// RabbitMQ itself; up to 3.10 it is 5).
const DEFAULT_REPLICAS: usize = 3;

/// The arguments that have the number of replicas at the beginning. Only the present number counts.
const REPLICAS: [&str; 2] = ["x-quorum-initial-group-size", "x-initial-cluster-size"];

/// The effect of a binding that stays because switching shortcuts on or off was not completed.
pub const REPLACED: &str = "switching shortcuts was not completed: their messages arrive twice";

/// The wanted and the present number of replicas, if a queue is as it should be apart from the number that it
/// began with.
#[must_use]
pub fn only_replicas(wanted: &Queue, found: &QueueInfo) -> Option<(Option<usize>, usize)> {
    let mut differences = Vec::new();
    compare_queue(wanted, &[], found, &mut differences);
    let asked = REPLICAS.iter().find_map(|name| wanted.arguments.get(*name));
    let began = REPLICAS.iter().find_map(|name| found.arguments.get(*name));
    let asked = match asked {
        Some(Argument::Number(number)) => usize::try_from(*number).ok(),
        _ => None,
    };
    let same = asked == began.and_then(Json::as_u64).and_then(|number| usize::try_from(number).ok());
    (!same && differences.is_empty() && !found.members.is_empty()).then_some((asked, found.members.len()))
}

impl Snapshot {
    /// Compares a vhost with the wanted objects: argument by argument, binding by binding. Empty if there
    /// is no difference.
    #[must_use]
    pub fn compare(&self, topology: &Topology) -> Vec<Difference> {
        let topology = &self.as_installed(topology);
        let mut differences = Vec::new();
        let earlier = self.earlier_bindings(topology);
        if earlier > 0 {
            differences.push(Difference::EarlierVersion { bindings: earlier });
        }
        self.compare_exchanges(topology, &mut differences);
        self.compare_queues(topology, &mut differences);
        self.compare_policies(topology, &mut differences);
        self.compare_shovels(topology, &mut differences);
        // All bindings of an earlier version differ, so listing them adds nothing.
        if earlier == 0 {
            self.compare_bindings(topology, &mut differences);
            self.compare_recalls(topology, &mut differences);
            self.compare_journals(topology, &mut differences);
        }
        differences
    }

    fn compare_exchanges(&self, topology: &Topology, differences: &mut Vec<Difference>) {
        for wanted in topology.exchanges() {
            self.compare_exchange(wanted, differences);
        }
    }

    pub(super) fn compare_exchange(&self, wanted: &Exchange, differences: &mut Vec<Difference>) {
        let object = format!("exchange `{}`", wanted.name);
        let Some(info) = self.exchanges.get(&wanted.name) else {
            differences.push(Difference::Missing { object });
            return;
        };
        let properties = [
            ("type", wanted.kind.as_str().to_owned(), info.kind.clone()),
            ("durable", "true".into(), info.durable.to_string()),
            ("auto-delete", "false".into(), info.auto_delete.to_string()),
            ("internal", "false".into(), info.internal.to_string()),
        ];
        compare_properties(&object, properties, differences);
        compare_arguments(&object, &wanted.arguments, &info.arguments, differences);
    }

    fn compare_queues(&self, topology: &Topology, differences: &mut Vec<Difference>) {
        for wanted in topology.queues() {
            let object = format!("queue `{}`", wanted.name);
            let Some(info) = self.queues.get(&wanted.name) else {
                differences.push(Difference::Missing { object });
                continue;
            };
            compare_queue(wanted, &[], info, differences);
            self.compare_replicas(topology, info, differences);
        }
    }

    pub(super) fn compare_replicas(
        &self,
        topology: &Topology,
        info: &QueueInfo,
        differences: &mut Vec<Difference>,
    ) {
        if info.members.is_empty() {
            // Not replicated, or still being declared.
            return;
        }
        let offline: Vec<_> =
            info.members.iter().filter(|member| !info.online.contains(member)).cloned().collect();
        if !offline.is_empty() {
            let stalled = !info.has_majority();
            differences.push(Difference::ReplicasOffline { queue: info.name.clone(), offline, stalled });
        }
        if info.leaderless {
            differences.push(Difference::NoLeader { queue: info.name.clone() });
        }
        let asked = topology.settings().replicas.map_or(DEFAULT_REPLICAS, |number| number.get().into());
        let wanted = self.about.nodes.as_ref().map_or(0, |nodes| asked.min(nodes.len()));
        if info.members.len() < wanted {
            let (queue, members) = (info.name.clone(), info.members.clone());
            differences.push(Difference::MissingReplicas { queue, members, wanted });
        }
    }

    fn compare_bindings(&self, topology: &Topology, differences: &mut Vec<Difference>) {
        let wanted: BTreeSet<&Binding> = topology.bindings().collect();
        let found: BTreeSet<&Binding> = self.bindings().iter().collect();
        let missing = wanted.difference(&found);
        differences.extend(missing.map(|&binding| Difference::MissingBinding { binding: binding.clone() }));

        let exchanges: HashSet<_> = topology.exchanges().map(|exchange| exchange.name.as_str()).collect();
        let queues: HashSet<_> = topology.queues().map(|queue| queue.name.as_str()).collect();
        let dispatch = topology.names().dispatch();
        let replaced: BTreeSet<_> = topology.replaced_bindings().into_values().collect();
        for &binding in found.difference(&wanted) {
            let into_the_set = match &binding.destination {
                Endpoint::Queue(name) => queues.contains(name.as_str()),
                Endpoint::Exchange(name) => exchanges.contains(name.as_str()),
            };
            let carries = binding.source == dispatch || exchanges.contains(binding.source.as_str());
            let effect = if carries && is_federated(binding) {
                "another broker federates the exchange: it copies messages, and can deliver them again"
            } else if binding.source == dispatch && into_the_set {
                "it sends due messages back into the set, where they can stay in a level and block it for every application"
            } else if binding.source == dispatch {
                match RoutingKey::app_of_pattern(&binding.key) {
                    Ok(_) => continue,
                    Err(_) if topology.is_recall_route(binding) => continue,
                    Err(_) => {
                        "its key is not `delay.` + seven times `*.` + one app key, so it can catch other apps' messages"
                    }
                }
            } else if topology.names().app_of_recall(&binding.source).is_some() {
                if !into_the_set {
                    continue;
                }
                "it sends due messages back into the set, where they can stay in a level and block it for every application"
            } else if topology.is_journal_binding(binding) {
                continue;
            } else if replaced.contains(binding) {
                REPLACED
            } else if exchanges.contains(binding.source.as_str()) {
                "it copies or diverts messages that are still waiting"
            } else {
                let ours =
                    into_the_set && binding.destination != Endpoint::Exchange(topology.names().entry());
                if !ours {
                    continue;
                }
                "it lets in messages that did not come through the entry exchange"
            };
            differences.push(Difference::ExtraBinding { binding: binding.clone(), effect });
        }
    }
}

/// Whether a binding is made by a broker that federates the exchange: it leads to an exchange that has this
/// beginning and the name of that broker.
#[must_use]
pub fn is_federated(binding: &Binding) -> bool {
    matches!(&binding.destination, Endpoint::Exchange(name) if name.starts_with("federation: "))
}

/// Compares a queue. Each of the `chosen` arguments may have any value.
pub(super) fn compare_queue(
    wanted: &Queue,
    chosen: &[&str],
    info: &QueueInfo,
    differences: &mut Vec<Difference>,
) {
    let object = format!("queue `{}`", wanted.name);
    let properties = [
        ("durable", "true".to_owned(), info.durable.to_string()),
        ("auto-delete", "false".into(), info.auto_delete.to_string()),
    ];
    compare_properties(&object, properties, differences);
    let mut arguments = wanted.arguments.clone();
    for name in chosen {
        match info.arguments.get(*name) {
            Some(Json::String(text)) if !text.is_empty() => {
                arguments.insert((*name).into(), text.as_str().into());
            }
            Some(Json::Number(number)) if number.as_i64().is_some_and(|number| number > 0) => {
                arguments.insert((*name).into(), number.as_i64().unwrap_or_default().into());
            }
            _ => {}
        }
    }
    compare_arguments(&object, &arguments, &info.arguments, differences);
}

fn compare_properties<const N: usize>(
    object: &str,
    properties: [(&str, String, String); N],
    differences: &mut Vec<Difference>,
) {
    for (argument, wanted, found) in properties {
        if wanted != found {
            differences.push(Difference::Different {
                object: object.into(),
                argument: argument.into(),
                wanted,
                found,
            });
        }
    }
}

fn compare_arguments(
    object: &str,
    wanted: &BTreeMap<String, Argument>,
    found: &BTreeMap<String, Json>,
    differences: &mut Vec<Difference>,
) {
    let names: BTreeSet<_> = wanted.keys().chain(found.keys()).collect();
    for name in names.into_iter().filter(|name| !REPLICAS.contains(&name.as_str())) {
        let (wanted, found) = (wanted.get(name), found.get(name));
        let same = match (wanted, found) {
            (Some(Argument::Number(wanted)), Some(found)) => found.as_i64() == Some(*wanted),
            (Some(Argument::Text(wanted)), Some(found)) => found.as_str() == Some(wanted),
            (Some(Argument::Flag(wanted)), Some(found)) => found.as_bool() == Some(*wanted),
            _ => false,
        };
        if !same {
            differences.push(Difference::Different {
                object: object.into(),
                argument: name.clone(),
                wanted: wanted.map_or_else(|| "not set".into(), ToString::to_string),
                found: found.map_or_else(|| "not set".into(), text),
            });
        }
    }
}

/// A value for display.
pub(super) fn text(json: &Json) -> String {
    json.as_str().map_or_else(|| json.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use delayline_core::{
        codec::AppKey,
        topology::{Object, TopologySettings},
    };

    use super::*;
    use crate::management::{ExchangeInfo, NodeInfo};

    #[test]
    fn finds_missing_and_silent_replicas() {
        let (topology, mut observed) = setup();
        observed.about.nodes = Some(vec![NodeInfo::default(); 3]);
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        for queue in observed.queues.values_mut() {
            (queue.members, queue.online) = (names(&["a", "b", "c"]), names(&["a", "b", "c"]));
        }
        assert_eq!(observed.compare(&topology), []);
        queue(&mut observed, "delay.level.00").members.pop();
        queue(&mut observed, "delay.level.00").online.pop();
        queue(&mut observed, "delay.level.01").online = names(&["b"]);
        let texts: Vec<_> = observed.compare(&topology).iter().map(ToString::to_string).collect();
        assert_eq!(texts.len(), 2, "{texts:?}");
        assert!(texts[0].contains("2 of 3 replicas, on a, b"), "{texts:?}");
        assert!(texts[1].contains("no running replica on a, c; it has no majority"), "{texts:?}");
        // A single node can hold only one replica.
        observed.about.nodes = Some(vec![NodeInfo::default()]);
        for queue in observed.queues.values_mut() {
            (queue.members, queue.online) = (names(&["a"]), names(&["a"]));
        }
        assert_eq!(observed.compare(&topology), []);
    }

    #[test]
    fn finds_bindings_between_exchanges_and_the_links_of_a_federation() {
        let (topology, observed) = setup();
        let own = RoutingKey::binding_pattern(&AppKey::new("orders").unwrap());
        for (source, exchange, key, effect) in [
            ("delay", "audit", "#", "copies or diverts"),
            ("delay.level.05", "audit", "#", "copies or diverts"),
            ("amq.topic", "delay.level.05", "#", "did not come through"),
            ("amq.topic", "delay.dispatch", "#", "did not come through"),
            ("delay.dispatch", "delay.level.05", &own, "can stay in a level"),
            (
                "delay.level.05",
                "federation: delay.level.05 -> b:/:delay.level.05",
                "#",
                "another broker federates",
            ),
            // A link has the keys of the applications there.
            (
                "delay.dispatch",
                "federation: delay.dispatch -> b:/:delay.dispatch",
                &own,
                "another broker federates",
            ),
        ] {
            let destination = Endpoint::Exchange(exchange.into());
            let binding = Object::Binding(Binding { source: source.into(), destination, key: key.into() });
            let differences = observed.clone().with(&[binding]).compare(&topology);
            assert_eq!(differences.len(), 1, "{source} -> {exchange}");
            assert!(differences[0].to_string().contains(effect), "{}", differences[0]);
        }
        let entry = Binding {
            source: "amq.topic".into(),
            destination: Endpoint::Exchange("delay".into()),
            key: "#".into(),
        };
        assert_eq!(observed.with(&[Object::Binding(entry)]).compare(&topology), []);
    }

    fn bound(source: &str, queue: &str, key: &str) -> Object {
        let destination = Endpoint::Queue(queue.into());
        Object::Binding(Binding { source: source.into(), destination, key: key.into() })
    }

    fn queue<'a>(observed: &'a mut Snapshot, name: &str) -> &'a mut QueueInfo {
        observed.queues.get_mut(name).unwrap()
    }

    fn setup() -> (Topology, Snapshot) {
        let topology = Topology::new(TopologySettings::default());
        let observed = Snapshot::default().with(topology.objects());
        (topology, observed)
    }

    #[test]
    fn finds_no_difference_in_an_installed_set() {
        let (topology, observed) = setup();
        assert_eq!(observed.compare(&topology), []);
        // Nor in the objects that applications are meant to add, and in foreign objects.
        let app = RoutingKey::binding_pattern(&AppKey::new("eu.orders").unwrap());
        let observed = observed.with(&[
            bound("delay.dispatch", "orders", &app),
            bound("", "delay.level.03", "delay.level.03"),
            bound("amq.topic", "orders", "#"),
            bound("delay", "delay.journal.billing", "journal.billing"),
        ]);
        assert_eq!(observed.compare(&topology), []);
        assert_eq!(observed.dispatch_bindings(&topology).len(), 1);
    }

    #[test]
    fn finds_missing_objects() {
        let (topology, observed) = setup();
        let nothing = Snapshot::default().compare(&topology);
        assert_eq!(nothing.len(), topology.objects().len());
        for index in [0, 100, 434, 597] {
            let mut observed = observed.clone();
            let gone = observed.bindings()[index].clone();
            observed.retain_bindings(|binding| *binding != gone);
            match &observed.compare(&topology)[..] {
                [Difference::MissingBinding { binding }] => assert_eq!(*binding, gone),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn finds_every_argument_that_differs() {
        let (topology, mut observed) = setup();
        let queue = queue(&mut observed, "delay.level.03");
        queue.arguments.insert("x-message-ttl".into(), 9_000.into());
        queue.arguments.remove("x-overflow");
        queue.arguments.insert("x-expires".into(), 5.into());
        queue.durable = false;
        let dispatch = |it: &mut ExchangeInfo| it.kind = "direct".into();
        observed.exchanges.entry("delay.dispatch".into()).and_modify(dispatch);
        let mut differences: Vec<_> = observed.compare(&topology).iter().map(ToString::to_string).collect();
        differences.sort();
        assert_eq!(
            differences,
            [
                "exchange `delay.dispatch`: `type` should be topic, but is direct",
                "queue `delay.level.03`: `durable` should be true, but is false",
                "queue `delay.level.03`: `x-expires` should be not set, but is 5",
                "queue `delay.level.03`: `x-message-ttl` should be 8000, but is 9000",
                "queue `delay.level.03`: `x-overflow` should be reject-publish, but is not set",
            ]
        );
    }

    #[test]
    fn finds_bindings_that_would_copy_or_divert_messages() {
        let (topology, observed) = setup();
        let own = RoutingKey::binding_pattern(&AppKey::new("orders").unwrap());
        for (source, queue, key, effect) in [
            ("delay", "spy", "#", "copies or diverts"),
            ("delay.level.05", "spy", "delay.#", "copies or diverts"),
            ("delay.unroutable", "spy", "", "copies or diverts"),
            ("delay.dispatch", "orders", "#.orders", "other apps"),
            ("delay.dispatch", "orders", "#", "other apps"),
            ("delay.dispatch", "delay.level.05", &own, "can stay in a level"),
            ("amq.topic", "delay.level.05", "#", "did not come through"),
            ("delay.aside", "delay.level.05", "05", "did not come through"),
        ] {
            let observed = observed.clone().with(&[bound(source, queue, key)]);
            let differences = observed.compare(&topology);
            assert_eq!(differences.len(), 1, "{source} -> {queue}");
            assert!(differences[0].to_string().contains(effect), "{}", differences[0]);
        }
    }

    #[test]
    fn finds_a_queue_without_a_leader() {
        let (topology, mut observed) = setup();
        let level = queue(&mut observed, "delay.level.03");
        (level.members, level.online) = (vec!["a".into()], vec!["a".into()]);
        observed.about.nodes = Some(vec![NodeInfo::default()]);
        let texts = |observed: &Snapshot| -> Vec<String> {
            observed.compare(&topology).iter().map(ToString::to_string).collect()
        };
        assert_eq!(texts(&observed), [""; 0]);
        queue(&mut observed, "delay.level.03").leaderless = true;
        let found = texts(&observed);
        assert!(found.len() == 1 && found[0].contains("`delay.level.03` has no leader"), "{found:?}");
    }
}
