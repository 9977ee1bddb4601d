//! Applications that exist already, and whose messages go another way than they should.

use delayline_broker::Snapshot;
use delayline_core::{
    codec::AppKey,
    topology::{Binding, Endpoint, Object, Topology},
};

use super::{AppSpec, Delivery, Target};
use crate::{engine::Found, engine::Move, engine::Step};

/// Whether a binding of an application is missing only because its messages go another way now: to the
/// target of its landing queue without that queue, to the queue of a paused application, or through an
/// exchange that moves them. Then the step is replaced by a move, or they stay where they are.
pub(super) fn resolve(topology: &Topology, spec: &AppSpec, snapshot: &Snapshot, part: &mut (Step, Found)) {
    let (Step::Only(wanted), found) = &*part else { return };
    if !matches!(found, Found::Missing | Found::Blocked(_)) {
        return;
    }
    let [entry, _] = topology.names().moving(&spec.app);
    let present = |end: &Endpoint| {
        snapshot.has(&Object::Binding(Binding { destination: end.clone(), ..wanted.clone() }))
    };
    if present(&Endpoint::Queue(topology.names().paused(&spec.app))) {
        part.1 = Found::Same;
        return;
    }
    let is_moving = present(&Endpoint::Exchange(entry.clone()));
    let Delivery::Landing(target) = &spec.delivery else {
        if is_moving {
            let set = &topology.settings().set;
            part.1 = Found::Blocked(format!(
                "exchange `{entry}` moves its messages to another queue, and the command that did so was \
                 interrupted. Run that command again (`{}`, `{}` or `{}`)",
                set.command(&["app", "add", spec.app.as_str(), "--landing"]),
                set.command(&["app", "pause", spec.app.as_str()]),
                set.command(&["app", "resume", spec.app.as_str()]),
            ));
        }
        return;
    };
    let from = match target {
        Target::Queue(queue) => Endpoint::Queue(queue.name.clone()),
        Target::Exchange { exchange, .. } => Endpoint::Exchange(exchange.clone()),
    };
    if is_moving || present(&from) {
        let what = format!("{}, in place of {from}", part.0);
        *part = (Step::Moved(Move::new(topology, &spec.app, from, wanted.clone())), Found::Replaced(what));
    }
}

/// Whether the application is paused.
pub(super) fn is_paused(topology: &Topology, app: &AppKey, snapshot: &Snapshot) -> bool {
    let paused = topology.names().paused(app);
    snapshot.has(&Object::Binding(topology.app_binding(app, &paused)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apps::AppQueue;
    use delayline_core::topology::TopologySettings;

    #[test]
    fn an_interrupted_move_names_the_commands_for_its_set() {
        let mut settings = TopologySettings::default();
        settings.set = "later".parse().unwrap();
        let topology = Topology::new(settings);
        let spec = AppSpec::new(AppKey::new("billing").unwrap(), Delivery::Direct(AppQueue::new("in")));
        let wanted = topology.app_binding(&spec.app, "in");
        let [entry, _] = topology.names().moving(&spec.app);
        let moving = Binding { destination: Endpoint::Exchange(entry), ..wanted.clone() };
        let snapshot = Snapshot::default().with(&[Object::Binding(moving)]);
        let mut part = (Step::Only(wanted), Found::Missing);
        resolve(&topology, &spec, &snapshot, &mut part);
        let Found::Blocked(reason) = &part.1 else { panic!("{part:?}") };
        assert_eq!(reason.matches("billing --set later").count(), 2, "{reason}");
        assert!(reason.contains("`delayline app add billing --landing --set later`"), "{reason}");
    }
}
