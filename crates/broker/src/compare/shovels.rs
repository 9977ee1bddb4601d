//! Shovels that take messages out of a set, or publish into it past the entry exchange: pure.

use delayline_amqp::broker::Broker;
use delayline_core::{
    codec::RoutingKey,
    topology::{Endpoint, Topology},
};

use crate::{
    compare::Difference,
    management::{ManagementApi, ManagementError, NodeInfo, ShovelEnd},
    snapshot::Snapshot,
};

const PLUGIN: &str = "rabbitmq_shovel";
const TAKES: &str = "it takes messages away from their applications";
const COPIES: &str = "it copies messages that are still waiting";
const ENTERS: &str = "it lets in messages that did not come through the entry exchange";

impl Snapshot {
    /// Asks for the shovels of the vhost, unless no node can have any. `broker` is how we reach it.
    ///
    /// # Errors
    /// See [`ManagementError`].
    pub fn fetch_shovels(&mut self, api: &ManagementApi, broker: &Broker) -> Result<(), ManagementError> {
        let lacks = |node: &NodeInfo| {
            node.enabled_plugins.as_ref().is_some_and(|all| all.iter().all(|it| it != PLUGIN))
        };
        if self.about.nodes.as_ref().is_some_and(|nodes| !nodes.is_empty() && nodes.iter().all(lacks)) {
            return Ok(());
        }
        let others = broker.other_hosts.iter().map(|(host, _)| host);
        let ours = others.chain([&broker.host]).map(|host| host.to_lowercase());
        let names = self.about.nodes.iter().flatten().filter_map(|node| node.name.split_once('@'));
        self.hosts = names.map(|(_, host)| host.to_lowercase()).chain(ours).collect();
        self.shovels = api.shovels(&self.vhost)?;
        Ok(())
    }

    /// The shovels from or to exchanges and queues of a set, except to the entry exchange.
    pub(super) fn compare_shovels(&self, topology: &Topology, differences: &mut Vec<Difference>) {
        for (name, end, place, effect) in self.shovel_ends(topology) {
            if self.is_here(end) == Some(true) {
                differences.push(Difference::Shovel { name: name.into(), object: place.to_string(), effect });
            }
        }
    }

    /// The shovels that do the same if the broker they address is this one, which is unknown.
    #[must_use]
    pub fn unplaced_shovels(&self, topology: &Topology) -> Vec<String> {
        let unplaced = self.shovel_ends(topology).filter(|(_, end, ..)| self.is_here(end).is_none());
        let text = |(name, end, place, effect): (&str, &ShovelEnd, &Endpoint, &str)| {
            let hosts = end.addresses.iter().filter_map(|address| address.host.as_deref());
            format!(
                "shovel `{name}` on {place} of {}, if that is this broker: {effect}",
                hosts.collect::<Vec<_>>().join(", ")
            )
        };
        unplaced.map(text).collect()
    }

    /// The ends of shovels that have the name of an object of the set, and their effects.
    fn shovel_ends<'a>(
        &'a self,
        topology: &'a Topology,
    ) -> impl Iterator<Item = (&'a str, &'a ShovelEnd, &'a Endpoint, &'static str)> {
        self.shovels.iter().flat_map(move |shovel| {
            let source = shovel.source.place.as_ref();
            let takes = source.and_then(|place| taken(topology, place, &shovel.source.key));
            let enters = shovel.destination.place.as_ref().filter(|place| is_inside(topology, place));
            let source = source.zip(takes).map(|(place, effect)| (&shovel.source, place, effect));
            let destination = enters.map(|place| (&shovel.destination, place, ENTERS));
            let ends = source.into_iter().chain(destination);
            ends.map(|(end, place, effect)| (shovel.name.as_str(), end, place, effect))
        })
    }

    /// Whether an end is in this vhost of this broker; `None` if that is unknown.
    fn is_here(&self, end: &ShovelEnd) -> Option<bool> {
        let here = end.addresses.iter().map(|address| {
            let host = match &address.host {
                None => Some(true),
                Some(host) if self.hosts.contains(host) || is_loopback(host) => Some(true),
                Some(_) => None,
            };
            match &address.vhost {
                Some(vhost) if *vhost != self.vhost => Some(false),
                _ => host,
            }
        });
        // Any of them may be in use.
        let here: Vec<_> = here.collect();
        match here.contains(&Some(true)) {
            true => Some(true),
            false if here.contains(&None) => None,
            false => Some(false),
        }
    }
}

fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse().is_ok_and(|address: std::net::IpAddr| address.is_loopback())
}

/// The effect of a shovel that takes messages from a queue, or binds to an exchange with a key.
fn taken(topology: &Topology, place: &Endpoint, key: &str) -> Option<&'static str> {
    let names = topology.names();
    match place {
        // A stream keeps messages that were read.
        Endpoint::Queue(name) if names.app_of_journal(name).is_some() => None,
        Endpoint::Queue(name) => topology.owns_queue(name).then_some(TAKES),
        // Like an application: its binding is checked as one.
        Endpoint::Exchange(name) if *name == names.dispatch() && RoutingKey::app_of_pattern(key).is_ok() => {
            None
        }
        Endpoint::Exchange(name) => topology.owns_exchange(name).then_some(COPIES),
    }
}

fn is_inside(topology: &Topology, place: &Endpoint) -> bool {
    match place {
        Endpoint::Queue(name) => topology.owns_queue(name),
        Endpoint::Exchange(name) => topology.owns_exchange(name) && *name != topology.names().entry(),
    }
}

#[cfg(test)]
mod tests {
    use delayline_core::topology::TopologySettings;
    use serde_json::{Value as Json, json};

    use super::*;

    /// The differences for a shovel, and the unknown ones.
    fn found(value: &Json) -> (Vec<String>, Vec<String>) {
        let topology = Topology::new(TopologySettings::default());
        let mut observed = Snapshot::default().with(topology.objects());
        observed.vhost = "prod".into();
        observed.hosts = ["rabbit-1".to_owned(), "lb.example".to_owned()].into();
        observed.shovels = vec![serde_json::from_value(json!({"name": "s", "value": value})).unwrap()];
        let differences = observed.compare(&topology);
        let shovel = |it: &Difference| matches!(it, Difference::Shovel { name, .. } if name == "s");
        assert!(differences.iter().all(shovel), "{differences:?}");
        (differences.iter().map(ToString::to_string).collect(), observed.unplaced_shovels(&topology))
    }

    #[test]
    fn finds_shovels_out_of_the_set_and_into_it() {
        let ends = |source: Json, destination: Json| {
            let mut value = json!({"src-uri": "amqp://", "dest-uri": "amqp://"});
            let all = value.as_object_mut().unwrap();
            all.extend(source.as_object().unwrap().clone());
            all.extend(destination.as_object().unwrap().clone());
            let (found, unknown) = found(&value);
            assert_eq!(unknown, [""; 0]);
            found
        };
        let elsewhere = || json!({"dest-queue": "archive"});
        for (source, effect) in [
            (json!({"src-queue": "delay.level.03"}), TAKES),
            (json!({"src-queue": "delay.parked"}), TAKES),
            (json!({"src-queue": "delay.recalled.billing"}), TAKES),
            (json!({"src-exchange": "delay", "src-exchange-key": "#"}), COPIES),
            (json!({"src-exchange": "delay.dispatch", "src-exchange-key": "#"}), COPIES),
        ] {
            let found = ends(source, elsewhere());
            assert!(found.len() == 1 && found[0].ends_with(effect), "{found:?}");
        }
        let own = "delay.*.*.*.*.*.*.*.billing";
        for harmless in [
            json!({"src-queue": "billing"}),
            json!({"src-queue": "delay.journal.billing"}),
            json!({"src-exchange": "delay.dispatch", "src-exchange-key": own}),
        ] {
            assert_eq!(ends(harmless, elsewhere()), [""; 0]);
        }
        let outbox = || json!({"src-queue": "outbox"});
        assert_eq!(ends(outbox(), json!({"dest-exchange": "delay"})), [""; 0]);
        assert_eq!(ends(outbox(), json!({})), [""; 0]);
        for inside in [json!({"dest-exchange": "delay.level.26"}), json!({"dest-queue": "delay.level.03"})] {
            let found = ends(outbox(), inside);
            assert!(found.len() == 1 && found[0].ends_with(ENTERS), "{found:?}");
        }
        let both = ends(json!({"src-queue": "delay.level.03"}), json!({"dest-queue": "delay.parked"}));
        assert_eq!(both.len(), 2);
    }

    #[test]
    fn only_shovels_on_this_vhost_of_this_broker_count() {
        let at = |uri: Json| found(&json!({"src-uri": uri, "src-queue": "delay.parked", "dest-queue": "x"}));
        for here in
            ["amqp://", "amqp:///prod", "amqp://u:p@RABBIT-1/prod", "amqp://127.0.0.1", "amqp://lb.example"]
        {
            assert_eq!(at(here.into()).0.len(), 1, "{here}");
        }
        for elsewhere in ["amqp:///other", "amqp://rabbit-1/%2F", "amqp://far.example/other"] {
            assert_eq!(at(elsewhere.into()), (Vec::new(), Vec::new()), "{elsewhere}");
        }
        let (differences, unknown) = at("amqp://u:secret@far.example".into());
        assert_eq!(differences, [""; 0]);
        assert_eq!(
            unknown,
            [
                "shovel `s` on queue `delay.parked` of far.example, if that is this broker: it takes messages away \
              from their applications"
            ]
        );
        assert_eq!(at(json!(["amqp://far.example", "amqp://"])).0.len(), 1);
    }
}
