//! Applications whose user still exists, although they have no binding.

use std::collections::BTreeSet;

use crate::apps::landing;
use delayline_broker::{Grants, Snapshot, apps_in, names_in, permits};
use delayline_core::{codec::AppKey, topology::Topology};
use delayline_messages::held::Bound;

/// The rights of a user to consume a queue that gets no messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unbound {
    pub user: String,
    pub queue: String,
    /// Whether the queue exists, and only the binding is missing.
    pub queue_stands: bool,
    /// The application; `None` if the user may publish for several unbound applications, and none of them
    /// has the name of the queue or the user.
    pub app: Option<AppKey>,
}

/// Finds users that `app add` gave the right to publish an application's key and to consume a queue, where
/// no queue is bound for the key. `reached` are the queues that messages reach from the dispatch exchange.
/// The permissions must be older than the observed objects, since they come last when an application is
/// added.
///
/// Only these permissions are left of such an application. Permissions in another form are left out, since
/// their purpose is less clear.
pub(crate) fn unbound(
    topology: &Topology,
    snapshot: &Snapshot,
    grants: &Grants,
    reached: &BTreeSet<&str>,
) -> Vec<Unbound> {
    let entry = topology.names().entry();
    let bound = Bound::new(topology, snapshot);
    // A queue behind a bound landing queue may be missing, but its application is bound.
    let is_bound = |name: &str| topology.names().app_of_landing(name).is_some_and(|app| bound.has(app));
    let landings = snapshot.queues.values().filter(|queue| is_bound(&queue.name));
    let landings = landings.filter_map(|queue| landing(topology, queue));
    let behind: BTreeSet<_> = landings.filter(|it| it.exchange.is_empty()).filter_map(|it| it.key).collect();
    let mut found = Vec::new();
    for permission in grants.permissions.values() {
        let rule = grants.topic(&permission.user, &entry);
        let (Some(rule), Ok(true)) = (rule, permits(&permission.write, &entry)) else { continue };
        let mut queues = names_in(&permission.read).unwrap_or_default();
        queues.retain(|name| {
            !(topology.owns_queue(name)
                || topology.owns_exchange(name)
                || snapshot.exchanges.contains_key(name))
        });
        let is_reached = |queue: &String| reached.contains(queue.as_str()) || behind.contains(queue);
        if queues.iter().any(is_reached) || grants.has_tag(&permission.user, "administrator") {
            continue;
        }
        let mut apps = apps_in(&rule.write);
        apps.retain(|app| !bound.has(app.as_str()));
        let stands = |queue: &String| snapshot.queues.contains_key(queue);
        let queue = queues.iter().find(|queue| !stands(queue)).or(queues.first());
        let (Some(queue), false) = (queue, apps.is_empty()) else { continue };
        let named = apps.iter().find(|app| [queue.as_str(), &permission.user].contains(&app.as_str()));
        let app = named.or(Some(&apps[0]).filter(|_| apps.len() == 1)).cloned();
        let (user, queue_stands) = (permission.user.clone(), stands(queue));
        found.push(Unbound { user, queue: queue.clone(), queue_stands, app });
    }
    found
}
