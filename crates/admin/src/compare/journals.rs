//! The journals of applications, against what they should be: pure.

use std::collections::BTreeMap;

use serde_json::Value as Json;

use super::{
    Difference, Observed,
    observed::{binding, compare_arguments, compare_properties},
};
use crate::management::QueueInfo;
use delayline_core::{
    codec::AppKey,
    topology::{Argument, JournalSettings, Object, Queue, Topology},
};

/// The arguments of a journal that `app add` lets people choose, or that follow from those.
const CHOSEN: [&str; 3] = ["x-max-age", "x-max-length-bytes", "x-stream-max-segment-size-bytes"];

impl Observed {
    /// Compares every journal with what it should be.
    pub(super) fn compare_journals(&self, topology: &Topology, differences: &mut Vec<Difference>) {
        for info in &self.queues {
            let app = topology.names().app_of_journal(&info.name).and_then(|app| AppKey::new(app).ok());
            let Some(app) = app else { continue };
            let mut found = Vec::new();
            for object in topology.journal(&app, JournalSettings::default()) {
                match object {
                    Object::Queue(wanted) => {
                        compare_stream(&wanted, info, &mut found);
                        self.compare_replicas(topology, info, differences);
                    }
                    Object::Binding(wanted)
                        if !self.bindings.iter().filter_map(binding).any(|it| it == wanted) =>
                    {
                        found.push(Difference::MissingBinding { binding: wanted });
                    }
                    Object::Binding(_) | Object::Exchange(_) => {}
                }
            }
            let of_app = |difference| Difference::Journal { app: app.to_string(), of: Box::new(difference) };
            differences.extend(found.into_iter().map(of_app));
        }
    }
}

fn compare_stream(wanted: &Queue, info: &QueueInfo, found: &mut Vec<Difference>) {
    let object = format!("queue `{}`", wanted.name);
    let properties = [
        ("durable", "true".to_owned(), info.durable.to_string()),
        ("auto-delete", "false".into(), info.auto_delete.to_string()),
    ];
    compare_properties(&object, properties, found);
    compare_arguments(&object, &chosen(&wanted.arguments, &info.arguments), &info.arguments, found);
}

/// The arguments with those values, of what people choose, that they chose; if they did.
fn chosen(wanted: &BTreeMap<String, Argument>, found: &BTreeMap<String, Json>) -> BTreeMap<String, Argument> {
    let mut wanted = wanted.clone();
    for name in CHOSEN {
        match found.get(name) {
            Some(Json::String(text)) if !text.is_empty() => {
                drop(wanted.insert(name.into(), text.as_str().into()))
            }
            Some(Json::Number(number)) if number.as_i64().is_some_and(|number| number > 0) => {
                wanted.insert(name.into(), number.as_i64().unwrap_or_default().into());
            }
            _ => {}
        }
    }
    wanted
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::{findings, standing::info};
    use delayline_core::topology::TopologySettings;

    /// A set with an application that has a journal of a week, changed by `change`: what
    /// differs.
    fn differs(change: impl FnOnce(&mut Observed)) -> Vec<String> {
        let topology = Topology::new(TopologySettings::default());
        let mut observed = Observed::standing(&topology);
        let week = JournalSettings::default().with_max_age("7d".parse().unwrap());
        for object in topology.journal(&AppKey::new("billing").unwrap(), week) {
            match object {
                Object::Queue(it) => {
                    let json = |value: &Argument| serde_json::to_value(value).unwrap();
                    observed.queues.push(QueueInfo {
                        name: it.name,
                        durable: true,
                        arguments: it
                            .arguments
                            .iter()
                            .map(|(name, value)| (name.clone(), json(value)))
                            .collect(),
                        ..QueueInfo::default()
                    });
                }
                Object::Binding(it) => observed.bindings.push(info(&it)),
                Object::Exchange(it) => panic!("{it:?}"),
            }
        }
        change(&mut observed);
        let differences = observed.compare(&topology);
        let found = findings(&topology.settings().set, &differences);
        assert_eq!(found.len(), usize::from(!differences.is_empty()), "{found:#?}");
        assert!(
            found
                .iter()
                .all(|it| it.apps == ["billing"] && it.advice.contains("app add billing --recall --journal"))
        );
        differences.iter().map(ToString::to_string).collect()
    }

    fn set(name: &str, value: Json) -> Vec<String> {
        differs(|observed| {
            let arguments = &mut observed.queues.last_mut().unwrap().arguments;
            match value {
                Json::Null => drop(arguments.remove(name)),
                value => drop(arguments.insert(name.into(), value)),
            }
        })
    }

    #[test]
    fn what_people_choose_is_as_they_chose() {
        assert_eq!(differs(|_| {}), [""; 0]);
        assert_eq!(set("x-max-age", "30D".into()), [""; 0]);
        assert_eq!(set("x-max-length-bytes", 5.into()), [""; 0]);
    }

    #[test]
    fn every_argument_and_its_binding_is_compared() {
        for name in CHOSEN {
            let found = set(name, Json::Null);
            assert!(found.len() == 1 && found[0].contains(name) && found[0].contains("not set"), "{found:?}");
        }
        assert_eq!(
            set("x-queue-type", "quorum".into()),
            ["queue `delay.journal.billing`: `x-queue-type` should be stream, but is quorum"]
        );
        let unbound = differs(|it| it.bindings.retain(|info| info.destination != "delay.journal.billing"));
        assert_eq!(
            unbound,
            ["binding `delay` -> queue `delay.journal.billing` with key `journal.billing` is missing"]
        );
    }
}
