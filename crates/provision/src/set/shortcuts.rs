//! Switching shortcuts on and off while messages wait.
//!
//! Each binding that leads elsewhere is made before the old one is removed, so every message finds a route. A
//! message that is published between the two takes both and arrives twice. The queues of shortcuts that were
//! switched off stay until they are empty.

use std::thread;

use delayline_amqp::Session;
use delayline_broker::{ManagementError, Snapshot};
use delayline_core::{
    codec::{Hop, Shortcut},
    topology::{Endpoint, Object, Queue, Topology},
};

use crate::{
    engine::Step, engine::Waiting, engine::contents, engine::contents::SETTLE, engine::contents::When,
};
use delayline_messages::error::AdminError;

/// The steps for a whole set. Each binding is followed by the removal of the binding that it replaces.
pub(crate) fn steps(topology: &Topology) -> impl Iterator<Item = Step> {
    let mut replaced = topology.replaced_bindings();
    topology.objects().iter().flat_map(move |object| {
        let old = match object {
            Object::Binding(binding) => replaced.remove(binding),
            _ => None,
        };
        std::iter::once(Step::Object(object.clone())).chain(old.map(Step::Unbound))
    })
}

/// The queues of shortcuts that are switched off, the longest wait first.
fn left(topology: &Topology) -> impl Iterator<Item = &Queue> {
    let off = !topology.has_shortcuts();
    topology.queues().rev().filter(move |queue| off && matches!(queue.hop, Some(Hop::Shortcut(_))))
}

/// The queues of switched-off shortcuts that are empty, and those that still hold messages.
pub(crate) fn left_over(
    topology: &Topology,
    session: &mut Session,
    snapshot: &Snapshot,
    when: When,
) -> Result<(Vec<String>, Vec<Waiting>), AdminError> {
    let names: Vec<_> = left(topology).map(|queue| queue.name.as_str()).collect();
    let kept = contents::waiting(session, &names, Some(snapshot), when)?;
    let empty = names.iter().filter(|name| kept.iter().all(|it| it.queue != **name));
    Ok((removable(topology, empty.map(|name| (*name).to_owned()).collect()), kept))
}

/// The queues among these that can be removed now. Over AMQP, only the first shortcut is looked for, so it stays
/// until the others are gone.
fn removable(topology: &Topology, mut empty: Vec<String>) -> Vec<String> {
    if empty.len() < left(topology).count() {
        let first = Shortcut::all().next().map(|first| topology.names().shortcut(first));
        empty.retain(|name| Some(name) != first.as_ref());
    }
    empty
}

/// Deletes the queues of switched-off shortcuts that are empty and bound nowhere. The broker's counts are up to
/// 10 s old, so they are read again after that time.
pub(crate) fn remove_left_over(
    topology: &Topology,
    session: &mut Session,
    look: impl Fn() -> Result<Result<Snapshot, String>, ManagementError>,
) -> Result<(Vec<String>, Vec<Waiting>), AdminError> {
    if left(topology).next().is_none() {
        return Ok((Vec::new(), Vec::new()));
    }
    let Ok(snapshot) = look()? else { return Ok((Vec::new(), Vec::new())) };
    let (before, kept) = left_over(topology, session, &snapshot, When::First)?;
    if before.is_empty() {
        return Ok((before, kept));
    }
    thread::sleep(SETTLE);
    let counted = contents::last(
        || {
            let Ok(snapshot) = look()? else { return Ok(None) };
            let (empty, kept) = left_over(topology, session, &snapshot, When::Last)?;
            Ok(Some((snapshot, empty, kept)))
        },
        |counted| counted.as_ref().map_or(&[], |(_, _, kept)| kept),
    )?;
    let Some((snapshot, mut empty, kept)) = counted else { return Ok((Vec::new(), kept)) };
    let is_bound = |name: &String| snapshot.bindings_to(&Endpoint::Queue(name.clone())).next().is_some();
    empty.retain(|name| before.contains(name) && !is_bound(name));
    let empty = removable(topology, empty);
    for name in &empty {
        contents::delete(session, name, &mut Vec::new())?;
    }
    Ok((empty, kept))
}

#[cfg(test)]
mod tests {
    use delayline_core::topology::TopologySettings;

    use super::*;

    #[test]
    fn an_old_binding_is_removed_right_after_its_successor_was_made() {
        let set = |on, exist| Topology::new(TopologySettings::default()).as_installed(on, |_| exist);
        for on in [false, true] {
            let steps: Vec<_> = steps(&set(on, true)).collect();
            let mut removed = 0;
            for pair in steps.windows(2) {
                if let [Step::Object(Object::Binding(made)), Step::Unbound(old)] = pair {
                    assert_eq!((&made.source, &made.key), (&old.source, &old.key));
                    assert_ne!(made.destination, old.destination);
                    removed += 1;
                }
            }
            let all = steps.iter().filter(|step| matches!(step, Step::Unbound(_))).count();
            assert_eq!((removed, all), (242, 242));
        }
        // Nothing is bound to queues that do not exist.
        assert!(!steps(&set(false, false)).any(|step| matches!(step, Step::Unbound(_))));
    }
}
