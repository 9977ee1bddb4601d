//! What lets an application's messages be recalled, against what it should be: pure.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value as Json;

use super::{
    Difference, Observed,
    observed::{binding, compare_arguments, compare_properties},
};
use delayline_core::{
    codec::AppKey,
    topology::{Argument, Binding, Endpoint, Object, Queue, RecallSettings, Topology},
};

/// The arguments of a queue of recalled messages that `app add` lets people choose.
const CHOSEN: [&str; 2] = ["x-message-ttl", "x-max-length"];

impl Observed {
    /// Compares everything that lets messages be recalled, of every application that has any
    /// of it.
    pub(super) fn compare_recalls(&self, topology: &Topology, differences: &mut Vec<Difference>) {
        let bindings: BTreeSet<Binding> = self.bindings.iter().filter_map(binding).collect();
        for app in self.recallable(topology) {
            let mut found = Vec::new();
            for object in self.wanted(topology, &app, &bindings) {
                match object {
                    Object::Exchange(wanted) => self.compare_exchange(&wanted, &mut found),
                    Object::Queue(wanted) => {
                        self.compare_recalled(topology, &wanted, &mut found, differences)
                    }
                    Object::Binding(wanted) if !bindings.contains(&wanted) => {
                        found.push(Difference::MissingBinding { binding: wanted });
                    }
                    Object::Binding(_) => {}
                }
            }
            let of_app = |difference| Difference::Recall { app: app.to_string(), of: Box::new(difference) };
            differences.extend(found.into_iter().map(of_app));
        }
    }

    /// The applications that have any of the objects.
    fn recallable(&self, topology: &Topology) -> BTreeSet<AppKey> {
        let names = topology.names();
        let exchanges = self.exchanges.iter().filter_map(|info| names.app_of_recall(&info.name));
        let queues = self.queues.iter().filter_map(|info| names.app_of_recalled(&info.name));
        exchanges.chain(queues).filter_map(|app| AppKey::new(app).ok()).collect()
    }

    /// What there should be: messages that are not recalled go wherever those without an id
    /// go.
    fn wanted(&self, topology: &Topology, app: &AppKey, bindings: &BTreeSet<Binding>) -> Vec<Object> {
        let own = topology.app_binding(app, "");
        let places = bindings.iter().filter(|it| it.source == own.source && it.key == own.key);
        let nowhere = Endpoint::Queue(String::new());
        let mut objects = topology.recall(app, nowhere.clone(), RecallSettings::default());
        objects.retain(|object| !matches!(object, Object::Binding(it) if it.destination == nowhere));
        objects.extend(places.map(|place| {
            let destination = place.destination.clone();
            Object::Binding(Binding {
                source: topology.names().through(app),
                destination,
                key: String::new(),
            })
        }));
        objects
    }

    fn compare_recalled(
        &self,
        topology: &Topology,
        wanted: &Queue,
        found: &mut Vec<Difference>,
        differences: &mut Vec<Difference>,
    ) {
        let object = format!("queue `{}`", wanted.name);
        let Some(info) = self.queues.iter().find(|info| info.name == wanted.name) else {
            found.push(Difference::Missing { object });
            return;
        };
        let properties = [
            ("durable", "true".to_owned(), info.durable.to_string()),
            ("auto-delete", "false".into(), info.auto_delete.to_string()),
        ];
        compare_properties(&object, properties, found);
        compare_arguments(&object, &chosen(&wanted.arguments, &info.arguments), &info.arguments, found);
        self.compare_replicas(topology, info, differences);
    }
}

/// The arguments with those values, of what people choose, that they chose; if they did.
fn chosen(wanted: &BTreeMap<String, Argument>, found: &BTreeMap<String, Json>) -> BTreeMap<String, Argument> {
    let mut wanted = wanted.clone();
    for name in CHOSEN {
        if let Some(value) = found.get(name).and_then(Json::as_i64).filter(|value| *value > 0) {
            wanted.insert(name.into(), value.into());
        }
    }
    wanted
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        compare::{findings, standing::info},
        management::{ExchangeInfo, QueueInfo},
    };
    use delayline_core::topology::TopologySettings;

    /// A set with an application whose messages can be recalled, changed by `change`: what
    /// differs.
    fn differs(change: impl FnOnce(&mut Observed)) -> Vec<String> {
        let topology = Topology::new(TopologySettings::default());
        let mut observed = Observed::standing(&topology);
        let app = AppKey::new("billing").unwrap();
        let place = Endpoint::Queue("in".into());
        let json = |value: &Argument| serde_json::to_value(value).unwrap();
        observed.bindings.push(info(&topology.app_binding(&app, "in")));
        let settings = RecallSettings::default().with_keep("1d".parse().unwrap());
        for object in topology.recall(&app, place, settings) {
            match object {
                Object::Exchange(it) => observed.exchanges.push(ExchangeInfo {
                    name: it.name,
                    kind: it.kind.as_str().into(),
                    durable: true,
                    arguments: it.arguments.iter().map(|(name, value)| (name.clone(), json(value))).collect(),
                    ..ExchangeInfo::default()
                }),
                Object::Queue(it) => observed.queues.push(QueueInfo {
                    name: it.name,
                    durable: true,
                    arguments: it.arguments.iter().map(|(name, value)| (name.clone(), json(value))).collect(),
                    ..QueueInfo::default()
                }),
                Object::Binding(it) => observed.bindings.push(info(&it)),
            }
        }
        change(&mut observed);
        let differences = observed.compare(&topology);
        let found = findings(&topology.settings().set, &differences);
        assert_eq!(found.len(), usize::from(!differences.is_empty()), "{found:#?}");
        assert!(
            found.iter().all(|it| it.apps == ["billing"] && it.advice.contains("app add billing --recall"))
        );
        differences.iter().map(ToString::to_string).collect()
    }

    fn queue(observed: &mut Observed) -> &mut QueueInfo {
        observed.queues.iter_mut().find(|info| info.name == "delay.recalled.billing").unwrap()
    }

    fn exchange<'a>(observed: &'a mut Observed, name: &str) -> &'a mut ExchangeInfo {
        observed.exchanges.iter_mut().find(|info| info.name == name).unwrap()
    }

    #[test]
    fn what_people_choose_is_as_they_chose() {
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
        let overflow = |it: &mut Observed| {
            queue(it).arguments.insert("x-overflow".into(), "reject-publish".into());
        };
        assert_eq!(
            differs(overflow),
            ["queue `delay.recalled.billing`: `x-overflow` should be drop-head, but is reject-publish"]
        );
        let alternate = |it: &mut Observed| {
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
        let kind = |it: &mut Observed| exchange(it, "delay.through.billing").kind = "topic".into();
        assert_eq!(
            differs(kind),
            ["exchange `delay.through.billing`: `type` should be fanout, but is topic"]
        );
        let gone = |it: &mut Observed| it.queues.retain(|info| info.name != "delay.recalled.billing");
        assert_eq!(differs(gone), ["queue `delay.recalled.billing` is missing"]);
        let through = |it: &mut Observed| it.bindings.retain(|info| info.source != "delay.through.billing");
        assert_eq!(
            differs(through),
            ["binding `delay.through.billing` -> queue `in` with key `` is missing"]
        );
        let route = |it: &mut Observed| it.bindings.retain(|info| info.destination != "delay.recall.billing");
        assert!(differs(route)[0].contains("`delay.dispatch` -> exchange `delay.recall.billing`"));
    }

    #[test]
    fn a_second_queue_of_the_application_gets_messages_with_an_id_too() {
        let topology = Topology::new(TopologySettings::default());
        let second = info(&topology.app_binding(&AppKey::new("billing").unwrap(), "second"));
        let found = differs(|it| it.bindings.push(second));
        assert_eq!(found, ["binding `delay.through.billing` -> queue `second` with key `` is missing"]);
    }
}
