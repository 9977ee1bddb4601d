//! What the broker shows about an application that is to be checked, and about the other ones.

use super::{
    AppSpec, AppUser,
    rights::{keeps_rejected, may_park},
};
use delayline_broker::{Scope, Snapshot};
use delayline_core::{
    codec::{AppKey, RoutingKey},
    topology::{Endpoint, Topology},
};
use delayline_settings::Settings;

/// Another application, and its queue if that is known.
pub(super) type Other = (AppKey, Option<String>);

/// The set and the application's queue. The management API is asked with our own user.
pub(super) fn snapshot(settings: &Settings, topology: &Topology, spec: &AppSpec) -> Result<Snapshot, String> {
    let queue: Vec<_> =
        spec.queue_name().map(|queue| Endpoint::Queue(queue.to_owned())).into_iter().collect();
    let scope = Scope::Set(topology, &queue);
    Snapshot::try_fetch(settings.management.as_ref(), &settings.broker.vhost, scope)
        .unwrap_or_else(|error| Err(error.to_string()))
}

/// Whether the user should be able to park messages of the application; `None` if unknown. Only its queue shows
/// whether it was registered with retries.
pub(super) fn parks(
    snapshot: Result<&Snapshot, &String>,
    topology: &Topology,
    spec: &AppSpec,
    user: &AppUser,
    unchecked: &mut Vec<String>,
) -> Option<bool> {
    match (may_park(spec, user), spec.queue_name(), snapshot) {
        (true, ..) => Some(true),
        (false, None, _) => Some(false),
        (false, Some(queue), Ok(snapshot)) => {
            let queue = snapshot.queues.get(queue);
            Some(queue.is_some_and(|queue| keeps_rejected(topology, &spec.app, queue)))
        }
        (false, Some(queue), Err(reason)) => {
            unchecked.push(format!("whether the user should park messages that `{queue}` rejects: {reason}"));
            None
        }
    }
}

/// The other bound applications.
pub(super) fn others(
    snapshot: Result<&Snapshot, &String>,
    topology: &Topology,
    spec: &AppSpec,
    user: &AppUser,
    unchecked: &mut Vec<String>,
) -> Vec<Other> {
    let bindings = match snapshot {
        Ok(snapshot) => snapshot.app_bindings(topology),
        Err(reason) => {
            unchecked.push(format!("the keys and queues of the other applications: {reason}"));
            return Vec::new();
        }
    };
    let mut others: Vec<_> = bindings
        .into_iter()
        .filter_map(|binding| {
            let app = RoutingKey::app_of_pattern(&binding.key).ok()?;
            let queue = match binding.destination {
                Endpoint::Queue(name) => Some(name),
                Endpoint::Exchange(_) => None,
            };
            let theirs = user.may_publish.contains(&app) || user.may_recall.contains(&app);
            (app != spec.app && !theirs).then_some((app, queue))
        })
        .collect();
    others.sort_unstable();
    others.dedup();
    others
}
