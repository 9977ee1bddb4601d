//! The objects for recalling an application's messages, compared with the wanted ones: pure.

use std::collections::BTreeSet;

use super::set::compare_queue;
use crate::{compare::Difference, snapshot::Snapshot};
use delayline_core::{
    codec::AppKey,
    topology::{Binding, Endpoint, Object, RecallSettings, Topology},
};

/// The arguments of a queue of recalled messages that users of `app add` choose.
const CHOSEN: [&str; 2] = ["x-message-ttl", "x-max-length"];

impl Snapshot {
    /// Compares all objects for recalls, of every application that has any of them.
    pub(super) fn compare_recalls(&self, topology: &Topology, differences: &mut Vec<Difference>) {
        for app in self.recallable(topology) {
            let mut found = Vec::new();
            for object in self.wanted(topology, &app) {
                match &object {
                    Object::Exchange(wanted) => self.compare_exchange(wanted, &mut found),
                    Object::Queue(wanted) => match self.queues.get(&wanted.name) {
                        Some(info) => {
                            compare_queue(wanted, &CHOSEN, info, &mut found);
                            self.compare_replicas(topology, info, differences);
                        }
                        None => {
                            found.push(Difference::Missing { object: format!("queue `{}`", wanted.name) })
                        }
                    },
                    Object::Binding(_) if self.has(&object) => {}
                    Object::Binding(wanted) => {
                        found.push(Difference::MissingBinding { binding: wanted.clone() });
                    }
                }
            }
            let of_app = |difference| Difference::Recall { app: app.to_string(), of: Box::new(difference) };
            differences.extend(found.into_iter().map(of_app));
        }
    }

    /// The applications that have any of the objects.
    fn recallable(&self, topology: &Topology) -> BTreeSet<AppKey> {
        let names = topology.names();
        let exchanges = self.exchanges.keys().filter_map(|name| names.app_of_recall(name));
        let queues = self.queues.keys().filter_map(|name| names.app_of_recalled(name));
        exchanges.chain(queues).filter_map(|app| AppKey::new(app).ok()).collect()
    }

    /// The wanted objects: messages that are not recalled go wherever those without an id go.
    fn wanted(&self, topology: &Topology, app: &AppKey) -> Vec<Object> {
        let own = topology.app_binding(app, "");
        let places: BTreeSet<_> =
            self.bindings_from(&own.source).iter().filter(|it| it.key == own.key).collect();
        let nowhere = Endpoint::Queue(String::new());
        let mut objects = topology.recall(app, nowhere.clone(), RecallSettings::default());
        objects.retain(|object| !matches!(object, Object::Binding(it) if it.destination == nowhere));
        objects.extend(places.into_iter().map(|place| {
            let destination = place.destination.clone();
            Object::Binding(Binding {
                source: topology.names().through(app),
                destination,
                key: String::new(),
            })
        }));
        objects
    }
}

#[cfg(test)]
mod tests {
    use delayline_core::topology::TopologySettings;
    use serde_json::Value as Json;

    use super::*;
    use crate::management::{ExchangeInfo, QueueInfo};

    /// The differences of a set with an application whose messages can be recalled, changed by `change`.
    fn differs(change: impl FnOnce(&mut Snapshot)) -> Vec<String> {
        let topology = Topology::new(TopologySettings::default());
        let app = AppKey::new("billing").unwrap();
        let settings = RecallSettings::default().with_keep("1d".parse().unwrap());
        let recall = topology.recall(&app, Endpoint::Queue("in".into()), settings);
        let binding = [Object::Binding(topology.app_binding(&app, "in"))];
        let mut observed = Snapshot::default().with(topology.objects()).with(&binding).with(&recall);
        change(&mut observed);
        let differences = observed.compare(&topology);
        let of_app = |it: &Difference| matches!(it, Difference::Recall { app, .. } if app == "billing");
        assert!(differences.iter().all(of_app), "{differences:?}");
        differences.iter().map(ToString::to_string).collect()
    }

    fn queue(observed: &mut Snapshot) -> &mut QueueInfo {
        observed.queues.get_mut("delay.recalled.billing").unwrap()
    }

    fn exchange<'a>(observed: &'a mut Snapshot, name: &str) -> &'a mut ExchangeInfo {
        observed.exchanges.get_mut(name).unwrap()
    }

    #[test]
    fn chosen_arguments_are_no_difference() {
        assert_eq!(differs(|_| {}), [""; 0]);
        assert_eq!(differs(|it| drop(queue(it).arguments.insert("x-max-length".into(), 5.into()))), [""; 0]);
        for (name, value) in [("x-max-length", Json::Null), ("x-message-ttl", Json::from(0))] {
            let found = differs(|it| match value.is_null() {
                true => drop(queue(it).arguments.remove(name)),
                false => drop(queue(it).arguments.insert(name.into(), value)),
            });
            assert!(found.len() == 1 && found[0].contains(name), "{found:?}");
        }
    }

    #[test]
    fn every_argument_and_every_binding_is_compared() {
        let overflow = |it: &mut Snapshot| {
            queue(it).arguments.insert("x-overflow".into(), "reject-publish".into());
        };
        assert_eq!(
            differs(overflow),
            ["queue `delay.recalled.billing`: `x-overflow` should be drop-head, but is reject-publish"]
        );
        let alternate = |it: &mut Snapshot| {
            let other = Json::from("delay.unroutable");
            exchange(it, "delay.recall.billing").arguments.insert("alternate-exchange".into(), other);
        };
        assert_eq!(
            differs(alternate),
            [
                "exchange `delay.recall.billing`: `alternate-exchange` should be delay.through.billing, but is \
              delay.unroutable"
            ]
        );
        let kind = |it: &mut Snapshot| exchange(it, "delay.through.billing").kind = "topic".into();
        assert_eq!(
            differs(kind),
            ["exchange `delay.through.billing`: `type` should be fanout, but is topic"]
        );
        let gone = |it: &mut Snapshot| drop(it.queues.remove("delay.recalled.billing"));
        assert_eq!(differs(gone), ["queue `delay.recalled.billing` is missing"]);
        let through = |it: &mut Snapshot| it.retain_bindings(|it| it.source != "delay.through.billing");
        assert_eq!(
            differs(through),
            ["binding `delay.through.billing` -> queue `in` with key `` is missing"]
        );
        let route =
            |it: &mut Snapshot| it.retain_bindings(|it| it.destination.name() != "delay.recall.billing");
        assert!(differs(route)[0].contains("`delay.dispatch` -> exchange `delay.recall.billing`"));
    }

    #[test]
    fn a_second_queue_of_the_application_gets_messages_with_an_id_too() {
        let topology = Topology::new(TopologySettings::default());
        let second = topology.app_binding(&AppKey::new("billing").unwrap(), "second");
        let second = [Object::Binding(second)];
        let found = differs(|it| *it = std::mem::take(it).with(&second));
        assert_eq!(found, ["binding `delay.through.billing` -> queue `second` with key `` is missing"]);
    }
}
