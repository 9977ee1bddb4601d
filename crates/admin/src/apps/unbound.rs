//! Applications whose user is still there, although nothing is bound for them any more.

use std::collections::BTreeSet;

use crate::{
    apps::rights::names_in,
    compare::Observed,
    kept::Bound,
    permitted::{ANY_APP, Grants, key_matches, matches},
};
use delayline::{
    codec::{AppKey, Delay, RoutingKey},
    topology::Topology,
};

/// What a user was given to consume, and does not get.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unbound {
    pub(crate) user: String,
    pub(crate) queue: String,
    /// Whether the queue is there, and only the binding is not.
    pub(crate) queue_stands: bool,
    /// The application, if it has the name of the queue or of the user.
    pub(crate) app: Option<AppKey>,
}

/// Finds users that `app add` gave the right to consume a queue and to publish an
/// application's key, where the queue is gone or nothing is bound for the key. `reached` are
/// the queues that messages get to from the dispatch exchange.
///
/// The permissions are all that is left of such an application. Those that somebody wrote by
/// hand say less about what they are for, and are left out.
pub(crate) fn unbound(
    topology: &Topology,
    observed: &Observed,
    (grants, vhost): (&Grants, &str),
    reached: &BTreeSet<&str>,
) -> Vec<Unbound> {
    let standing: BTreeSet<_> = observed.queues.iter().map(|queue| queue.name.as_str()).collect();
    let bound = Bound::new(topology, observed);
    let entry = topology.names().entry();
    let any = AppKey::new(ANY_APP).expect("it is one");
    let mut found = Vec::new();
    for permission in &grants.permissions {
        let user = (permission.user.as_str(), vhost);
        let publishes = |app: &AppKey| {
            let key = RoutingKey::new(Delay::ZERO, app.clone()).encode();
            key_matches(&grants.topics, user, &entry, &key, |topic| &topic.write) == Ok(true)
        };
        // Only `app add` and those who follow it limit the keys.
        let limited = matches(&permission.write, &entry) == Ok(true) && !publishes(&any);
        if !limited || grants.has_tag(&permission.user, "administrator") {
            continue;
        }
        let queues = names_in(&permission.read).unwrap_or_default();
        let theirs = |name: &String| !topology.owns_queue(name) && !topology.owns_exchange(name);
        for queue in queues.into_iter().filter(theirs) {
            let queue_stands = standing.contains(queue.as_str());
            if queue_stands && reached.contains(queue.as_str()) {
                continue;
            }
            let unheard = |app: &AppKey| publishes(app) && !bound.has(app.as_str());
            let named = [&queue, &permission.user].map(|name| AppKey::new(name).ok());
            let app = named.into_iter().flatten().find(unheard);
            if app.is_some() || !queue_stands {
                found.push(Unbound { user: permission.user.clone(), queue, queue_stands, app });
            }
        }
    }
    found
}
