//! Applications whose user is still there, although nothing is bound for them any more.

use std::collections::BTreeSet;

use crate::{
    apps::{
        list::landing,
        rights::{apps_in, names_in},
    },
    compare::Observed,
    kept::Bound,
    permitted::{Grants, matches},
};
use delayline_core::{codec::AppKey, topology::Topology};

/// What a user was given to consume, and does not get.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unbound {
    pub(crate) user: String,
    pub(crate) queue: String,
    /// Whether the queue is there, and only the binding is not.
    pub(crate) queue_stands: bool,
    /// The application; `None` if the user may publish for several that nothing is bound for,
    /// and none of them is called like the queue or the user.
    pub(crate) app: Option<AppKey>,
}

/// Finds users that `app add` gave the right to publish an application's key and to consume a
/// queue, where nothing is bound for the key. `reached` are the queues that messages get to from
/// the dispatch exchange. The permissions have to be older than what was observed, since they
/// come last when an application is added.
///
/// They are all that is left of such an application. Those that somebody wrote in another form
/// say less about what they are for, and are left out.
pub(crate) fn unbound(
    topology: &Topology,
    observed: &Observed,
    grants: &Grants,
    reached: &BTreeSet<&str>,
) -> Vec<Unbound> {
    let entry = topology.names().entry();
    let bound = Bound::new(topology, observed);
    let standing: BTreeSet<_> = observed.queues.iter().map(|queue| queue.name.as_str()).collect();
    let exchanges: BTreeSet<_> = observed.exchanges.iter().map(|exchange| exchange.name.as_str()).collect();
    // Behind a landing queue that is bound a queue may be missing, and its application is bound.
    let is_bound = |name: &str| topology.names().app_of_landing(name).is_some_and(|app| bound.has(app));
    let landings = observed.queues.iter().filter(|queue| is_bound(&queue.name));
    let landings = landings.filter_map(|queue| landing(topology, queue));
    let behind: BTreeSet<_> = landings.filter(|it| it.exchange.is_empty()).filter_map(|it| it.key).collect();
    let mut found = Vec::new();
    for permission in &grants.permissions {
        let rule = grants.topics.iter().find(|it| it.user == permission.user && it.exchange == entry);
        let (Some(rule), Ok(true)) = (rule, matches(&permission.write, &entry)) else { continue };
        let mut queues = names_in(&permission.read).unwrap_or_default();
        queues.retain(|name| {
            !(topology.owns_queue(name) || topology.owns_exchange(name) || exchanges.contains(name.as_str()))
        });
        let is_reached = |queue: &String| reached.contains(queue.as_str()) || behind.contains(queue);
        if queues.iter().any(is_reached) || grants.has_tag(&permission.user, "administrator") {
            continue;
        }
        let mut apps = apps_in(&rule.write);
        apps.retain(|app| !bound.has(app.as_str()));
        let stands = |queue: &String| standing.contains(queue.as_str());
        let queue = queues.iter().find(|queue| !stands(queue)).or(queues.first());
        let (Some(queue), false) = (queue, apps.is_empty()) else { continue };
        let named = apps.iter().find(|app| [queue.as_str(), &permission.user].contains(&app.as_str()));
        let app = named.or(Some(&apps[0]).filter(|_| apps.len() == 1)).cloned();
        let (user, queue_stands) = (permission.user.clone(), stands(queue));
        found.push(Unbound { user, queue: queue.clone(), queue_stands, app });
    }
    found
}
