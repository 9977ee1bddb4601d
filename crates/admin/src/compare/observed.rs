//! What is on the broker against what should be: pure, over plain data.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use serde_json::Value as Json;

use crate::management::{BindingInfo, ExchangeInfo, QueueInfo};
use delayline_core::codec::RoutingKey;

use crate::compare::{Difference, harm::harmful_policies};
use delayline_core::topology::{Argument, Binding, Endpoint, Exchange, Object, Topology};

/// The contents of a vhost, as the management API reports them.
#[derive(Debug, Clone, Default)]
pub struct Observed {
    /// All exchanges.
    pub exchanges: Vec<ExchangeInfo>,
    /// All queues.
    pub queues: Vec<QueueInfo>,
    /// All bindings, without the recalls if there can be any.
    pub bindings: Vec<BindingInfo>,
    /// How many nodes the cluster has, if that is known.
    pub nodes: Option<usize>,
    /// What comes only from the queues' statistics, which are some seconds old, and why.
    pub unsettled: Vec<String>,
}

/// How many replicas a quorum queue gets by default, if the cluster has as many nodes (the
/// default of RabbitMQ itself; up to 3.10 it is 5).
const DEFAULT_REPLICAS: usize = 3;

impl Observed {
    /// Compares a vhost with what is wanted: argument by argument, binding by
    /// binding. Empty if everything is as it should be.
    #[must_use]
    pub fn compare(&self, topology: &Topology) -> Vec<Difference> {
        let mut differences = Vec::new();
        let earlier = self.earlier_bindings(topology);
        if earlier > 0 {
            differences.push(Difference::EarlierVersion { bindings: earlier });
        }
        self.compare_exchanges(topology, &mut differences);
        self.compare_queues(topology, &mut differences);
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
        let Some(info) = self.exchanges.iter().find(|info| info.name == wanted.name) else {
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
        let found: HashMap<_, _> = self.queues.iter().map(|info| (info.name.as_str(), info)).collect();
        for wanted in topology.queues() {
            let object = format!("queue `{}`", wanted.name);
            let Some(info) = found.get(wanted.name.as_str()) else {
                differences.push(Difference::Missing { object });
                continue;
            };
            let properties = [
                ("durable", "true".to_owned(), info.durable.to_string()),
                ("auto-delete", "false".into(), info.auto_delete.to_string()),
            ];
            compare_properties(&object, properties, differences);
            compare_arguments(&object, &wanted.arguments, &info.arguments, differences);
            differences.extend(harmful_policies(info, wanted.level.is_some()));
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
        let wanted = self.nodes.map_or(0, |nodes| asked.min(nodes));
        if info.members.len() < wanted {
            let (queue, members) = (info.name.clone(), info.members.clone());
            differences.push(Difference::MissingReplicas { queue, members, wanted });
        }
    }

    fn compare_bindings(&self, topology: &Topology, differences: &mut Vec<Difference>) {
        let wanted: BTreeSet<&Binding> = topology.bindings().collect();
        let found: HashSet<Binding> = self.bindings.iter().filter_map(binding).collect();
        let missing = wanted.iter().filter(|binding| !found.contains(binding));
        differences.extend(missing.map(|&binding| Difference::MissingBinding { binding: binding.clone() }));

        let exchanges: HashSet<_> = topology.exchanges().map(|exchange| exchange.name.as_str()).collect();
        let queues: HashSet<_> = topology.queues().map(|queue| queue.name.as_str()).collect();
        let dispatch = topology.names().dispatch();
        let mut extra: Vec<_> = found.iter().filter(|&binding| !wanted.contains(binding)).collect();
        extra.sort();
        for binding in extra {
            let into_the_set = match &binding.destination {
                Endpoint::Queue(name) => queues.contains(name.as_str()),
                Endpoint::Exchange(name) => exchanges.contains(name.as_str()),
            };
            let effect = if binding.source == dispatch && into_the_set {
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
            } else if exchanges.contains(binding.source.as_str()) {
                "it copies or diverts messages that are still waiting"
            } else {
                let ours =
                    into_the_set && binding.destination != Endpoint::Exchange(topology.names().entry());
                if !ours || binding.source.is_empty() {
                    continue;
                }
                "it lets messages in that did not come through the entry exchange"
            };
            differences.push(Difference::ExtraBinding { binding: binding.clone(), effect });
        }
    }
}

pub(super) fn compare_properties<const N: usize>(
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

pub(super) fn compare_arguments(
    object: &str,
    wanted: &BTreeMap<String, Argument>,
    found: &BTreeMap<String, Json>,
    differences: &mut Vec<Difference>,
) {
    let names: BTreeSet<_> = wanted.keys().chain(found.keys()).collect();
    for name in names {
        let (wanted, found) = (wanted.get(name), found.get(name));
        let same = match (wanted, found) {
            (Some(Argument::Number(wanted)), Some(found)) => found.as_i64() == Some(*wanted),
            (Some(Argument::Text(wanted)), Some(found)) => found.as_str() == Some(wanted),
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

/// A binding from the API; `None` for those of the default exchange, which every queue has.
pub(super) fn binding(info: &BindingInfo) -> Option<Binding> {
    if info.source.is_empty() {
        return None;
    }
    let destination = match info.destination_type.as_str() {
        "exchange" => Endpoint::Exchange(info.destination.clone()),
        _ => Endpoint::Queue(info.destination.clone()),
    };
    Some(Binding { source: info.source.clone(), destination, key: info.routing_key.clone() })
}

impl Observed {
    /// Whether an exchange or queue of this name exists; a binding is proof enough.
    #[must_use]
    pub fn has(&self, object: &Object) -> bool {
        match object {
            Object::Exchange(wanted) => self.exchanges.iter().any(|info| info.name == wanted.name),
            Object::Queue(wanted) => self.queues.iter().any(|info| info.name == wanted.name),
            Object::Binding(_) => true,
        }
    }

    /// All bindings from or to an exchange.
    #[must_use]
    pub fn bindings_of(&self, exchange: &str) -> Vec<Binding> {
        let end = Endpoint::Exchange(exchange.into());
        self.bindings
            .iter()
            .filter_map(binding)
            .filter(|binding| binding.source == exchange || binding.destination == end)
            .collect()
    }

    /// The applications bound to a set's dispatch exchange, and where their messages go. Whoever
    /// only listens, and gets copies, is not among them, nor are the bindings for messages that
    /// can be recalled.
    #[must_use]
    pub fn app_bindings(&self, topology: &Topology) -> Vec<Binding> {
        let mut bindings = self.dispatch_bindings(topology);
        bindings.retain(|binding| !topology.names().listens(&binding.destination));
        bindings
    }

    /// All that is bound to a set's dispatch exchange, but for the bindings for messages that can
    /// be recalled.
    #[must_use]
    pub fn dispatch_bindings(&self, topology: &Topology) -> Vec<Binding> {
        let dispatch = topology.names().dispatch();
        let of_an_app = |b: &Binding| b.source == dispatch && !topology.is_recall_route(b);
        let mut bindings: Vec<_> = self.bindings.iter().filter_map(binding).filter(of_an_app).collect();
        bindings.sort();
        bindings
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::standing::info;
    use delayline_core::{codec::AppKey, topology::TopologySettings};

    #[test]
    fn finds_missing_and_silent_replicas() {
        let topology = Topology::new(TopologySettings::default());
        let mut observed = Observed::standing(&topology);
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        for queue in &mut observed.queues {
            (queue.members, queue.online) = (names(&["a", "b", "c"]), names(&["a", "b", "c"]));
        }
        assert_eq!(observed.compare(&topology), []);
        observed.queues[0].members.pop();
        observed.queues[0].online.pop();
        observed.queues[1].online = names(&["b"]);
        let texts: Vec<_> = observed.compare(&topology).iter().map(ToString::to_string).collect();
        assert_eq!(texts.len(), 2, "{texts:?}");
        assert!(texts[0].contains("2 of 3 replicas, on a, b"), "{texts:?}");
        assert!(texts[1].contains("no running replica on a, c; it has no majority"), "{texts:?}");
        // A single node cannot hold more than one.
        observed.nodes = Some(1);
        for queue in &mut observed.queues {
            (queue.members, queue.online) = (names(&["a"]), names(&["a"]));
        }
        assert_eq!(observed.compare(&topology), []);
    }

    fn queue_binding(source: &str, queue: &str, key: &str) -> BindingInfo {
        info(&Binding { source: source.into(), destination: Endpoint::Queue(queue.into()), key: key.into() })
    }

    fn setup() -> (Topology, Observed) {
        let topology = Topology::new(TopologySettings::default());
        let observed = Observed::standing(&topology);
        (topology, observed)
    }

    #[test]
    fn finds_nothing_in_what_was_installed() {
        let (topology, mut observed) = setup();
        assert_eq!(observed.compare(&topology), []);
        // Nor in what applications are meant to add, and what is not ours.
        let app = RoutingKey::binding_pattern(&AppKey::new("eu.orders").unwrap());
        observed.bindings.push(queue_binding("delay.dispatch", "orders", &app));
        observed.bindings.push(queue_binding("", "delay.level.03", "delay.level.03"));
        observed.bindings.push(queue_binding("amq.topic", "orders", "#"));
        observed.bindings.push(queue_binding("delay", "delay.journal.billing", "journal.billing"));
        assert_eq!(observed.compare(&topology), []);
        assert_eq!(observed.dispatch_bindings(&topology).len(), 1);
    }

    #[test]
    fn finds_what_is_missing() {
        let (topology, observed) = setup();
        let nothing = Observed::default().compare(&topology);
        assert_eq!(nothing.len(), topology.objects().len());
        for index in [0, 100, 434, 597] {
            let mut observed = observed.clone();
            let gone = observed.bindings.remove(index);
            match &observed.compare(&topology)[..] {
                [Difference::MissingBinding { binding }] => assert_eq!(info(binding), gone),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn finds_every_argument_that_differs() {
        let (topology, mut observed) = setup();
        let queue = observed.queues.iter_mut().find(|queue| queue.name == "delay.level.03").unwrap();
        queue.arguments.insert("x-message-ttl".into(), 9_000.into());
        queue.arguments.remove("x-overflow");
        queue.arguments.insert("x-expires".into(), 5.into());
        queue.durable = false;
        observed.exchanges[1].kind = "direct".into();
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
            let mut observed = observed.clone();
            observed.bindings.push(queue_binding(source, queue, key));
            let differences = observed.compare(&topology);
            assert_eq!(differences.len(), 1, "{source} -> {queue}");
            assert!(differences[0].to_string().contains(effect), "{}", differences[0]);
        }
    }

    #[test]
    fn finds_a_queue_without_a_leader() {
        let (topology, mut observed) = setup();
        let queue = observed.queues.iter_mut().find(|queue| queue.name == "delay.level.03").unwrap();
        (queue.members, queue.online) = (vec!["a".into()], vec!["a".into()]);
        observed.nodes = Some(1);
        let texts = |observed: &Observed| -> Vec<String> {
            observed.compare(&topology).iter().map(ToString::to_string).collect()
        };
        assert_eq!(texts(&observed), [""; 0]);
        observed.queues.iter_mut().find(|queue| queue.name == "delay.level.03").unwrap().leaderless = true;
        let found = texts(&observed);
        assert!(found.len() == 1 && found[0].contains("`delay.level.03` has no leader"), "{found:?}");
    }
}
