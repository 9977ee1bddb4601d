//! The journals of applications, compared with the wanted ones: pure.

use super::set::compare_queue;
use crate::{compare::Difference, snapshot::Snapshot};
use delayline_core::{
    codec::AppKey,
    topology::{JournalSettings, Object, Topology},
};

/// The arguments of a journal that users of `app add` choose, or that follow from those.
const CHOSEN: [&str; 3] = ["x-max-age", "x-max-length-bytes", "x-stream-max-segment-size-bytes"];

impl Snapshot {
    /// Compares every journal with the wanted one.
    pub(super) fn compare_journals(&self, topology: &Topology, differences: &mut Vec<Difference>) {
        for info in self.queues.values() {
            let app = topology.names().app_of_journal(&info.name).and_then(|app| AppKey::new(app).ok());
            let Some(app) = app else { continue };
            let mut found = Vec::new();
            for object in topology.journal(&app, JournalSettings::default()) {
                match &object {
                    Object::Queue(wanted) => {
                        compare_queue(wanted, &CHOSEN, info, &mut found);
                        self.compare_replicas(topology, info, differences);
                    }
                    Object::Binding(_) if self.has(&object) => {}
                    Object::Binding(wanted) => {
                        found.push(Difference::MissingBinding { binding: wanted.clone() });
                    }
                    Object::Exchange(_) => {}
                }
            }
            let of_app = |difference| Difference::Journal { app: app.to_string(), of: Box::new(difference) };
            differences.extend(found.into_iter().map(of_app));
        }
    }
}

#[cfg(test)]
mod tests {
    use delayline_core::topology::TopologySettings;
    use serde_json::Value as Json;

    use super::*;

    /// The differences of a set with an application that has a journal of a week, changed by `change`.
    fn differs(change: impl FnOnce(&mut Snapshot)) -> Vec<String> {
        let topology = Topology::new(TopologySettings::default());
        let week = JournalSettings::default().with_max_age("7d".parse().unwrap());
        let journal = topology.journal(&AppKey::new("billing").unwrap(), week);
        let mut observed = Snapshot::default().with(topology.objects()).with(&journal);
        change(&mut observed);
        let differences = observed.compare(&topology);
        let of_app = |it: &Difference| matches!(it, Difference::Journal { app, .. } if app == "billing");
        assert!(differences.iter().all(of_app), "{differences:?}");
        differences.iter().map(ToString::to_string).collect()
    }

    fn set(name: &str, value: Json) -> Vec<String> {
        differs(|observed| {
            let arguments = &mut observed.queues.get_mut("delay.journal.billing").unwrap().arguments;
            match value {
                Json::Null => drop(arguments.remove(name)),
                value => drop(arguments.insert(name.into(), value)),
            }
        })
    }

    #[test]
    fn chosen_arguments_are_no_difference() {
        assert_eq!(differs(|_| {}), [""; 0]);
        assert_eq!(set("x-max-age", "30D".into()), [""; 0]);
        assert_eq!(set("x-max-length-bytes", 5.into()), [""; 0]);
    }

    #[test]
    fn every_argument_and_its_bindings_are_compared() {
        for name in CHOSEN {
            let found = set(name, Json::Null);
            assert!(found.len() == 1 && found[0].contains(name) && found[0].contains("not set"), "{found:?}");
        }
        assert_eq!(
            set("x-queue-type", "quorum".into()),
            ["queue `delay.journal.billing`: `x-queue-type` should be stream, but is quorum"]
        );
        let unbound = differs(|it| it.retain_bindings(|it| it.destination.name() != "delay.journal.billing"));
        assert_eq!(
            unbound,
            ["", ".~.*"].map(|id| format!(
                "binding `delay` -> queue `delay.journal.billing` with key `delay.*.*.*.*.*.*.*.billing{id}` \
                 is missing"
            ))
        );
    }
}
