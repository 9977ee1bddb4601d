//! Applications that exist already, and whose messages go another way than they should.

use delayline_broker::{Snapshot, refuses};
use delayline_core::{
    codec::AppKey,
    topology::{Binding, Endpoint, Object, Topology},
};

use super::{AppQueue, AppSpec, Delivery, Target};
use crate::{engine::Found, engine::Move, engine::Step, engine::interrupted};
use delayline_inspect::behind;

/// Whether a binding of an application is missing only because its messages go another way now: to the
/// target of its landing queue without that queue, or through a landing queue that it should not have, to the
/// queue of a paused application, or through an exchange that moves them. Then the step is replaced by a
/// move, or they stay where they are.
pub(super) fn resolve(topology: &Topology, spec: &AppSpec, snapshot: &Snapshot, part: &mut (Step, Found)) {
    let (Step::Only(wanted), found) = &*part else { return };
    let names = topology.names();
    let present = |end: &Endpoint| {
        snapshot.has(&Object::Binding(Binding { destination: end.clone(), ..wanted.clone() }))
    };
    let [entry, _] = names.moving(&spec.app);
    let is_moving = present(&Endpoint::Exchange(entry.clone()));
    if !matches!(found, Found::Missing | Found::Blocked(_)) && !is_moving {
        return;
    }
    if present(&Endpoint::Queue(names.paused(&spec.app))) {
        part.1 = Found::Same;
        return;
    }
    let other = match &spec.delivery {
        Delivery::Landing(Target::Queue(queue)) => Some(Endpoint::Queue(queue.name.clone())),
        Delivery::Landing(Target::Exchange { exchange, .. }) => Some(Endpoint::Exchange(exchange.clone())),
        Delivery::Direct(queue) => landed(topology, spec, queue, snapshot).map(Endpoint::Queue),
        Delivery::Nothing => None,
    };
    let from = match is_moving {
        true => interrupted(topology, &spec.app, snapshot)
            .filter(|now| other.as_ref() == Some(now) || *now == wanted.destination),
        false => other.filter(present),
    };
    let Some(from) = from else {
        if is_moving {
            let set = &topology.settings().set;
            part.1 = Found::Blocked(format!(
                "exchange `{entry}` moves its messages to another queue, and the command that did so was \
                 interrupted. Run that command again (`{}` or `{}`)",
                set.command(&["app", "pause", spec.app.as_str()]),
                set.command(&["app", "resume", spec.app.as_str()]),
            ));
        }
        return;
    };
    let refusal = snapshot.queues.get(wanted.destination.name()).and_then(refuses);
    if let (Delivery::Direct(_), Some(reason)) = (&spec.delivery, refusal) {
        part.1 = Found::Blocked(format!(
            "{reason}: without its landing queue, its messages would block a level for every application. \
             Consume from it first"
        ));
        return;
    }
    let what = format!("{}, in place of {from}", part.0);
    *part =
        (Step::Moved(Move::new(topology, &spec.app, snapshot, from, wanted.clone())), Found::Replaced(what));
}

/// The landing queue in front of an application's own queue.
pub(super) fn landed(
    topology: &Topology,
    spec: &AppSpec,
    queue: &AppQueue,
    snapshot: &Snapshot,
) -> Option<String> {
    let landing = topology.names().landing(&spec.app);
    let target = behind(topology, snapshot.queues.get(&landing)?)?;
    (target == Endpoint::Queue(queue.name.clone())).then_some(landing)
}

/// The landing queue that is not needed once the application is bound directly.
pub(super) fn left_over(topology: &Topology, spec: &AppSpec, snapshot: &Snapshot) -> Option<String> {
    let Delivery::Direct(queue) = &spec.delivery else { return None };
    let paused = topology.names().paused(&spec.app);
    landed(topology, spec, queue, snapshot).filter(|_| !snapshot.queues.contains_key(&paused))
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
        let moving = Binding { destination: Endpoint::Exchange(entry.clone()), ..wanted.clone() };
        let paused = Endpoint::Queue(topology.names().paused(&spec.app));
        let switch = Binding { source: entry, destination: paused, key: String::new() };
        let snapshot = Snapshot::default().with(&[Object::Binding(moving), Object::Binding(switch)]);
        let mut part = (Step::Only(wanted), Found::Missing);
        resolve(&topology, &spec, &snapshot, &mut part);
        let Found::Blocked(reason) = &part.1 else { panic!("{part:?}") };
        assert_eq!(reason.matches("billing --set later").count(), 2, "{reason}");
    }
}
