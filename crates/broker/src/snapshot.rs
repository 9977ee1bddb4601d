//! What a vhost contains, as the management API reports it.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    thread,
    time::Duration,
};

use delayline_core::{
    codec::Shortcut,
    topology::{Argument, Binding, Endpoint, Object, Topology},
};
use serde_json::Value as Json;

use crate::{
    about::About,
    grants::Grants,
    management::{BindingInfo, ExchangeInfo, ManagementApi, ManagementError, QueueInfo, Shovel},
    policy::Policies,
    stall::{APART, ENOUGH, Look, remembered},
};

/// The contents of a vhost at one moment, indexed.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// The vhost.
    pub vhost: String,
    /// Its exchanges, by name.
    pub exchanges: BTreeMap<String, ExchangeInfo>,
    /// Its queues, or those of interest, by name, with the policies that apply to them now.
    pub queues: BTreeMap<String, QueueInfo>,
    /// How many queues it has, whether they are here or not.
    pub queues_in_all: usize,
    /// All policies.
    pub policies: Policies,
    /// The rights of users, if they were asked for.
    pub grants: Option<Grants>,
    /// The broker's report about itself, if it was asked.
    pub about: About,
    /// The dead letters that are on their way from queues, as far as they were asked for: how
    /// many over the last minutes, the oldest first.
    pub dead_letters: BTreeMap<String, Vec<Look>>,
    /// The dynamic shovels, if they were asked for.
    pub shovels: Vec<Shovel>,
    /// The hosts that are known to be the broker's.
    pub hosts: BTreeSet<String>,
    /// The parts that are only known from the queues' statistics, which are some seconds old, and why.
    pub unchecked: Vec<String>,
    /// All bindings, in order and so by source, without those of the default exchange. Recalls
    /// are left out, if there can be any.
    bindings: Vec<Binding>,
    /// The arguments of those that have any, by place.
    arguments: HashMap<usize, BTreeMap<String, Json>>,
    /// The places of the bindings that lead to each queue or exchange.
    by_destination: HashMap<Endpoint, Vec<usize>>,
}

impl Snapshot {
    /// The contents of such lists of the API.
    #[must_use]
    pub fn new(
        vhost: &str,
        exchanges: Vec<ExchangeInfo>,
        queues: Vec<QueueInfo>,
        bindings: Vec<BindingInfo>,
    ) -> Self {
        let mut snapshot = Self { vhost: vhost.to_owned(), ..Self::default() };
        snapshot.enter(exchanges, queues, bindings);
        snapshot
    }

    /// Enters more objects that the API reports; of two with the same name, the new one counts.
    pub fn enter(
        &mut self,
        exchanges: impl IntoIterator<Item = ExchangeInfo>,
        queues: impl IntoIterator<Item = QueueInfo>,
        bindings: impl IntoIterator<Item = BindingInfo>,
    ) {
        self.exchanges.extend(exchanges.into_iter().map(|it| (it.name.clone(), it)));
        self.queues.extend(queues.into_iter().map(|it| (it.name.clone(), it)));
        let mut all = self.take_bindings();
        all.extend(bindings);
        self.index(all);
    }

    /// Enters objects as the API reports them once they are declared.
    #[must_use]
    pub fn with<'a>(mut self, objects: impl IntoIterator<Item = &'a Object>) -> Self {
        let json = |arguments: &BTreeMap<String, Argument>| {
            let json = |value| serde_json::to_value(value).unwrap_or_default();
            arguments.iter().map(|(name, value)| (name.clone(), json(value))).collect()
        };
        let mut bindings = Vec::new();
        for object in objects {
            match object {
                Object::Exchange(it) => {
                    let info = self.exchanges.entry(it.name.clone()).or_default();
                    (info.name, info.kind) = (it.name.clone(), it.kind.as_str().into());
                    (info.durable, info.arguments) = (true, json(&it.arguments));
                }
                Object::Queue(it) => {
                    let info = self.queues.entry(it.name.clone()).or_default();
                    (info.name, info.durable, info.arguments) = (it.name.clone(), true, json(&it.arguments));
                }
                Object::Binding(_) if self.has(object) => {}
                Object::Binding(it) => bindings.push(BindingInfo::from(it)),
            }
        }
        self.enter([], [], bindings);
        self
    }

    /// Leaves bindings out.
    pub fn retain_bindings(&mut self, keep: impl Fn(&Binding) -> bool) {
        let bindings = self.take_bindings();
        self.index(bindings.into_iter().filter(|info| keep(&info.into())));
    }

    fn take_bindings(&mut self) -> Vec<BindingInfo> {
        let bindings = std::mem::take(&mut self.bindings).into_iter().enumerate();
        let mut arguments = std::mem::take(&mut self.arguments);
        let info = |(at, binding): (usize, Binding)| BindingInfo {
            arguments: arguments.remove(&at).unwrap_or_default(),
            ..BindingInfo::from(&binding)
        };
        bindings.map(info).collect()
    }

    fn index(&mut self, bindings: impl IntoIterator<Item = BindingInfo>) {
        let bindings = bindings.into_iter().filter(|info| !info.source.is_empty());
        let mut bindings: Vec<_> = bindings.map(|info| (Binding::from(&info), info.arguments)).collect();
        let text = |arguments: &BTreeMap<String, Json>| format!("{arguments:?}");
        bindings.sort_by(|(one, with), (other, without)| {
            one.cmp(other).then_with(|| text(with).cmp(&text(without)))
        });
        // It may have been read from both of its ends.
        bindings.dedup();
        (self.arguments, self.by_destination) = Default::default();
        self.bindings.clear();
        for (at, (binding, arguments)) in bindings.into_iter().enumerate() {
            self.by_destination.entry(binding.destination.clone()).or_default().push(at);
            if !arguments.is_empty() {
                self.arguments.insert(at, arguments);
            }
            self.bindings.push(binding);
        }
    }

    /// Applies policies to the queues.
    pub fn apply(&mut self, policies: Policies) {
        match policies.apply(self.queues.values_mut()) {
            Ok(unchecked) => self.unchecked.extend(unchecked),
            Err(error) => {
                self.unchecked.push(format!("policies that were set in the last few seconds: {error}"));
            }
        }
        self.policies = policies;
    }

    /// Whether the broker has statistics of any queue; if not, it keeps none, or all queues are new.
    #[must_use]
    pub fn has_statistics(&self) -> bool {
        self.queues.values().any(|queue| queue.reductions.is_some())
    }

    /// Asks how many dead letters were on their way over the last minutes, of the queues of these
    /// names that have any now. A broker without statistics remembers nothing, so these queues are counted
    /// for 15 s; all of them match the pattern `names`.
    ///
    /// # Errors
    /// See [`ManagementError`].
    pub fn fetch_dead_letters(
        &mut self,
        api: &ManagementApi,
        names: Option<&str>,
        of: impl Fn(&str) -> bool,
    ) -> Result<(), ManagementError> {
        let remembers = self.has_statistics();
        for queue in self.queues.values().filter(|queue| queue.messages_dlx > Some(0) && of(&queue.name)) {
            let looks = match remembers {
                true => remembered(api, &self.vhost, queue)?,
                false => Look::now(queue).into_iter().collect(),
            };
            self.dead_letters.insert(queue.name.clone(), looks);
        }
        for _ in 1..ENOUGH {
            if remembers || self.dead_letters.is_empty() {
                break;
            }
            thread::sleep(Duration::from_secs(APART.into()));
            for queue in api.queue_counts(&self.vhost, names)? {
                if let Some(looks) = self.dead_letters.get_mut(&queue.name) {
                    looks.extend(Look::now(&queue));
                }
            }
        }
        Ok(())
    }

    /// All bindings, in order.
    #[must_use]
    pub fn bindings(&self) -> &[Binding] {
        &self.bindings
    }

    /// The bindings from an exchange.
    #[must_use]
    pub fn bindings_from(&self, exchange: &str) -> &[Binding] {
        &self.bindings[self.places_from(exchange)]
    }

    /// The same, each with its arguments.
    pub fn bindings_with_arguments(
        &self,
        exchange: &str,
    ) -> impl Iterator<Item = (&Binding, Option<&BTreeMap<String, Json>>)> {
        self.places_from(exchange).map(|at| (&self.bindings[at], self.arguments.get(&at)))
    }

    fn places_from(&self, exchange: &str) -> std::ops::Range<usize> {
        let begin = self.bindings.partition_point(|it| it.source.as_str() < exchange);
        let end = self.bindings.partition_point(|it| it.source.as_str() <= exchange);
        begin..end
    }

    /// The bindings to a queue or exchange.
    pub fn bindings_to(&self, destination: &Endpoint) -> impl Iterator<Item = &Binding> {
        self.by_destination.get(destination).into_iter().flatten().map(|at| &self.bindings[*at])
    }

    /// The bindings from or to an exchange.
    #[must_use]
    pub fn bindings_of(&self, exchange: &str) -> Vec<Binding> {
        let end = Endpoint::Exchange(exchange.to_owned());
        self.bindings_from(exchange).iter().chain(self.bindings_to(&end)).cloned().collect()
    }

    /// Whether there is an exchange or queue of this name, or this binding, whatever the arguments.
    #[must_use]
    pub fn has(&self, object: &Object) -> bool {
        match object {
            Object::Exchange(wanted) => self.exchanges.contains_key(&wanted.name),
            Object::Queue(wanted) => self.queues.contains_key(&wanted.name),
            Object::Binding(binding) => self.bindings.binary_search(binding).is_ok(),
        }
    }

    /// Whether any exchange or queue of a set exists.
    #[must_use]
    pub fn is_installed(&self, topology: &Topology) -> bool {
        topology.objects().iter().any(|object| !matches!(object, Object::Binding(_)) && self.has(object))
    }

    /// A set as it is installed here: whether its messages take shortcuts, if its settings leave that open,
    /// and which queues of shortcuts exist.
    #[must_use]
    pub fn as_installed(&self, topology: &Topology) -> Topology {
        let mut queues = Shortcut::all().map(|shortcut| Endpoint::Queue(topology.names().shortcut(shortcut)));
        let used = queues.any(|queue| self.bindings_to(&queue).next().is_some());
        topology.as_installed(used, |name| self.queues.contains_key(name))
    }

    /// The applications bound to a set's dispatch exchange, and where their messages go. Listeners, which
    /// only get copies, are not included, nor are the bindings for messages that can be recalled.
    #[must_use]
    pub fn app_bindings(&self, topology: &Topology) -> Vec<Binding> {
        let mut bindings = self.dispatch_bindings(topology);
        bindings.retain(|binding| !topology.names().listens(&binding.destination));
        bindings
    }

    /// All bindings of a set's dispatch exchange, without the bindings for messages that can be recalled.
    #[must_use]
    pub fn dispatch_bindings(&self, topology: &Topology) -> Vec<Binding> {
        let bindings = self.bindings_from(&topology.names().dispatch()).iter();
        bindings.filter(|binding| !topology.is_recall_route(binding)).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(bindings: &[(&str, &str, &str)]) -> Snapshot {
        let info = |(source, destination, key): &(&str, &str, &str)| BindingInfo {
            source: (*source).into(),
            destination: (*destination).into(),
            destination_type: "queue".into(),
            routing_key: (*key).into(),
            ..BindingInfo::default()
        };
        Snapshot::new("/", Vec::new(), Vec::new(), bindings.iter().map(info).collect())
    }

    #[test]
    fn bindings_are_found_by_both_ends() {
        let mut found =
            snapshot(&[("b", "one", "k"), ("a", "two", ""), ("", "one", "one"), ("b", "two", "")]);
        let names = |bindings: &[Binding]| {
            bindings.iter().map(|it| it.destination.name().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(
            (names(found.bindings_from("b")), names(found.bindings_from("a"))),
            (vec!["one".into(), "two".into()], vec!["two".into()])
        );
        assert!(found.bindings_from("c").is_empty() && found.bindings().len() == 3);
        let two = Endpoint::Queue("two".into());
        assert_eq!(found.bindings_to(&two).map(|it| it.source.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        found.retain_bindings(|binding| binding.source != "a");
        assert_eq!(found.bindings_to(&two).count(), 1);
        assert_eq!(found.bindings_to(&Endpoint::Exchange("two".into())).count(), 0);
    }

    #[test]
    fn arguments_stay_with_their_binding() {
        let info = |key: &str, arguments: Json| BindingInfo {
            source: "heads".into(),
            destination: "q".into(),
            routing_key: key.into(),
            arguments: serde_json::from_value(arguments).unwrap(),
            ..BindingInfo::default()
        };
        let bindings = vec![info("b", serde_json::json!({"kind": "b"})), info("a", serde_json::json!({}))];
        let binding =
            Binding { source: "also".into(), destination: Endpoint::Queue("q".into()), key: "".into() };
        let found = Snapshot::new("/", Vec::new(), Vec::new(), bindings).with(&[Object::Binding(binding)]);
        let kinds: Vec<_> = found
            .bindings_with_arguments("heads")
            .map(|(it, arguments)| (it.key.as_str(), arguments.is_some_and(|it| it["kind"] == "b")))
            .collect();
        assert_eq!(kinds, [("a", false), ("b", true)]);
    }

    #[test]
    fn only_exchanges_for_recalls_are_recognised() {
        let queues = ["delay.recalled.billing", "other.recalled.a.b"]
            .map(|name| QueueInfo { name: name.into(), ..QueueInfo::default() });
        let found = Snapshot::new("/", Vec::new(), queues.into(), Vec::new());
        let set = |name: &str, kind: &str| {
            let exchange = ExchangeInfo { name: name.into(), kind: kind.into(), ..ExchangeInfo::default() };
            found.set_of_recalls(&exchange).map(str::to_owned)
        };
        assert_eq!(set("delay.recall.billing", "direct").as_deref(), Some("delay"));
        assert_eq!(set("other.recall.a.b", "direct").as_deref(), Some("other"));
        for (name, kind) in [
            ("delay.recall.billing", "topic"),
            ("delay.recall.orders", "direct"),
            ("other.recall.billing", "direct"),
            ("delay.through.billing", "direct"),
            ("delay", "direct"),
            ("", "direct"),
        ] {
            assert_eq!(set(name, kind), None, "{name}");
        }
    }
}
