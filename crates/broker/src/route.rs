//! The routes of applications' messages: to their queues directly, through their exchanges, or behind a
//! landing queue.

use std::collections::BTreeSet;

use delayline_core::{
    codec::{AppKey, Delay, RoutingKey},
    topology::{Binding, Endpoint, Topology, topic_matches},
};
use delayline_settings::Layout;
use serde_json::Value as Json;

use crate::{limit::limit, management::QueueInfo, snapshot::Snapshot};

/// A queue at the end of an application's route, or an exchange that leads to none.
#[derive(Debug, Clone)]
pub struct Route<'a> {
    /// The app key, or the binding key if it is not an exact one.
    pub app: String,
    /// Where it ends.
    pub end: End<'a>,
    /// The landing queue in front of it: if the target refuses, only this application waits.
    pub landing: Option<&'a QueueInfo>,
}

/// Where a route ends.
#[derive(Debug, Clone)]
pub enum End<'a> {
    /// In a queue.
    Queue(&'a QueueInfo),
    /// An exchange that passes the message on to no queue, or that does not exist.
    Nowhere(String),
    /// An exchange or queue of the set, from which the message reaches dispatch again.
    Back(Endpoint),
}

/// Why a queue does not accept messages now, if that is known.
#[must_use]
pub fn refuses(queue: &QueueInfo) -> Option<String> {
    if !queue.has_majority() {
        return Some(format!("queue `{}` has no majority of its replicas", queue.name));
    }
    if queue.leaderless {
        return Some(format!("queue `{}` has no leader", queue.name));
    }
    limit(queue)
        .filter(|limit| limit.full)
        .map(|limit| format!("queue `{}` is full ({})", queue.name, limit.text))
}

impl<'a> Route<'a> {
    /// The stream that it leads to, if it does.
    #[must_use]
    pub fn stream(&self) -> Option<&'a QueueInfo> {
        match self.end {
            End::Queue(queue) if queue.kind.contains("stream") => Some(queue),
            _ => None,
        }
    }
}

fn is_refusing(snapshot: &Snapshot, queue: &str) -> bool {
    snapshot.queues.get(queue).is_some_and(|info| refuses(info).is_some())
}

impl Route<'_> {
    /// Why the target does not accept messages now, if that is known.
    #[must_use]
    pub fn blocked(&self) -> Option<String> {
        match &self.end {
            End::Nowhere(exchange) => Some(format!("exchange `{exchange}` leads to no queue")),
            End::Back(_) => None,
            End::Queue(queue) => refuses(queue),
        }
    }

    /// The queue that a level hands its messages to, if there is one.
    fn first_queue(&self) -> Option<&str> {
        match (self.landing, &self.end) {
            (Some(landing), _) => Some(&landing.name),
            (None, End::Queue(queue)) => Some(&queue.name),
            (None, End::Nowhere(_) | End::Back(_)) => None,
        }
    }

    /// Whether a level hands the same messages to another queue of this other route.
    #[must_use]
    pub fn shares(&self, other: &Route<'_>) -> bool {
        let catches = |pattern: &str, app: &str| {
            AppKey::new(app)
                .is_ok_and(|app| topic_matches(pattern, &RoutingKey::new(Delay::ZERO, app).encode()))
        };
        let same = self.app == other.app || catches(&self.app, &other.app) || catches(&other.app, &self.app);
        same && other.first_queue().is_some_and(|queue| self.first_queue() != Some(queue))
    }
}

/// The streams that a queue or exchange leads messages with this key to, whether or not it is
/// bound to dispatch yet.
#[must_use]
pub fn streams_behind<'a>(
    topology: &Topology,
    snapshot: &'a Snapshot,
    to: &Endpoint,
    key: &str,
) -> Vec<&'a QueueInfo> {
    let route = (String::new(), key.to_owned(), to.clone());
    let (routes, _) = ends(topology, snapshot, [route].into_iter());
    let mut streams: Vec<_> = routes.iter().filter_map(Route::stream).collect();
    streams.dedup_by(|one, other| one.name == other.name);
    streams
}

/// Everything bound to dispatch, followed to its end.
#[must_use]
pub fn routes<'a>(topology: &Topology, snapshot: &'a Snapshot) -> Vec<Route<'a>> {
    ends(topology, snapshot, begins(topology, snapshot)).0
}

/// Everything bound behind the levels of a layout, followed to its end.
#[must_use]
pub fn layout_routes<'a>(topology: &Topology, layout: &Layout, snapshot: &'a Snapshot) -> Vec<Route<'a>> {
    ends(topology, snapshot, layout_begins(layout, snapshot)).0
}

/// The queues and exchanges on these routes and behind `also`, whether they exist or not.
pub(crate) fn passed(
    topology: &Topology,
    layout: Option<&Layout>,
    snapshot: &Snapshot,
    also: &[Endpoint],
) -> BTreeSet<Endpoint> {
    let also = also.iter().map(|end| (String::new(), String::new(), end.clone()));
    match layout {
        None => ends(topology, snapshot, begins(topology, snapshot).chain(also)).1,
        Some(layout) => ends(topology, snapshot, layout_begins(layout, snapshot).chain(also)).1,
    }
}

/// The beginning of a route: an app, a key that means any key if it is empty, and a queue or exchange.
type Begin = (String, String, Endpoint);

fn begins(topology: &Topology, snapshot: &Snapshot) -> impl Iterator<Item = Begin> {
    let route = |binding: Binding| {
        let (app, key) = match RoutingKey::app_of_pattern(&binding.key) {
            Ok(app) => (app.to_string(), RoutingKey::new(Delay::ZERO, app).encode()),
            // It can catch messages with any key.
            Err(pattern) => (pattern.to_owned(), String::new()),
        };
        (app, key, binding.destination)
    };
    snapshot.dispatch_bindings(topology).into_iter().map(route)
}

fn layout_begins(layout: &Layout, snapshot: &Snapshot) -> impl Iterator<Item = Begin> {
    let route = |binding: &Binding| {
        let exact = binding.key.strip_prefix("#.").filter(|rest| !rest.contains(['*', '#']));
        let (app, key) = match exact {
            Some(destination) => (destination.to_owned(), layout.key(Delay::ZERO, destination)),
            None => (binding.key.clone(), String::new()),
        };
        (app, key, binding.destination.clone())
    };
    snapshot.bindings_from(&layout.delivery()).iter().map(route)
}

/// Where routes lead, and what they pass.
fn ends<'a>(
    topology: &Topology,
    snapshot: &'a Snapshot,
    routes: impl Iterator<Item = Begin>,
) -> (Vec<Route<'a>>, BTreeSet<Endpoint>) {
    let (mut targets, mut passed) = (Vec::new(), BTreeSet::new());
    for (app, key, destination) in routes {
        let mut walk =
            Walk { topology, snapshot, landings: Vec::new(), ends: Vec::new(), passed: &mut passed };
        match &destination {
            // Its messages are not needed, and it matters only if it refuses.
            Endpoint::Queue(queue) if topology.names().is_canary(queue) && !is_refusing(snapshot, queue) => {}
            Endpoint::Queue(queue) => walk.queue(queue, &key),
            Endpoint::Exchange(exchange) => walk.publish(exchange, &key),
        }
        let ends = walk.ends.into_iter();
        targets.extend(ends.map(|(end, landing)| (key.clone(), Route { app: app.clone(), end, landing })));
    }
    // A message follows all bindings that match its key. A branch that leads nowhere matters only if no
    // other leads to a queue.
    let dead_end = |target: &Route<'_>| target.landing.is_none() && matches!(target.end, End::Nowhere(_));
    let arriving: BTreeSet<_> = targets
        .iter()
        .filter(|(_, target)| !dead_end(target))
        .map(|(_, target)| target.app.clone())
        .collect();
    targets.retain(|(key, target)| {
        let arrives = || {
            arriving.contains(&target.app)
                || !key.is_empty() && arriving.iter().any(|pattern| topic_matches(pattern, key))
        };
        !dead_end(target) || !arrives()
    });
    (targets.into_iter().map(|(_, target)| target).collect(), passed)
}

struct Walk<'a, 't> {
    topology: &'t Topology,
    /// The queues and exchanges on the way.
    passed: &'t mut BTreeSet<Endpoint>,
    snapshot: &'a Snapshot,
    /// The landing queues on the way, the last one last.
    landings: Vec<&'a QueueInfo>,
    ends: Vec<(End<'a>, Option<&'a QueueInfo>)>,
}

/// The route of a message that is published to an exchange, at dispatch or behind a landing queue.
#[derive(Default)]
struct Hop {
    /// The exchanges it came through. The broker, too, passes each only once.
    seen: BTreeSet<String>,
    /// Whether any queue gets it.
    arrives: bool,
    /// The exchanges that pass it on to no queue.
    nowhere: Vec<String>,
}

impl<'a> Walk<'a, '_> {
    fn end(&mut self, end: End<'a>) {
        self.ends.push((end, self.landings.last().copied()));
    }

    /// Whether the route ends here because it returns to the set.
    fn goes_back(&mut self, to: Endpoint) -> bool {
        let back = self.topology.leads_back(&to);
        if back {
            self.end(End::Back(to));
        }
        back
    }

    fn find(&mut self, queue: &str) -> Option<&'a QueueInfo> {
        self.passed.insert(Endpoint::Queue(queue.to_owned()));
        self.snapshot.queues.get(queue)
    }

    fn queue(&mut self, name: &str, key: &str) {
        if self.goes_back(Endpoint::Queue(name.to_owned())) {
            return;
        }
        let Some(queue) = self.find(name) else { return };
        let text = |argument: &str| queue.arguments.get(argument).and_then(Json::as_str);
        let again = self.landings.iter().any(|landing| landing.name == name);
        let to = match self.topology.names().app_of_landing(name) {
            Some(_) if !again => text("x-dead-letter-exchange"),
            _ => None,
        };
        let Some(exchange) = to else {
            self.end(End::Queue(queue));
            return;
        };
        let key = text("x-dead-letter-routing-key").unwrap_or(key).to_owned();
        self.landings.push(queue);
        match exchange {
            "" if self.find(&key).is_some() => self.queue(&key, &key),
            "" => self.end(End::Nowhere(format!("(default, with key {key})"))),
            exchange => self.publish(exchange, &key),
        }
        self.landings.pop();
    }

    fn publish(&mut self, exchange: &str, key: &str) {
        let mut hop = Hop::default();
        self.exchange(exchange, key, &mut hop);
        if hop.arrives {
            return;
        }
        if hop.nowhere.is_empty() {
            // Exchanges that lead to each other and nowhere else.
            hop.nowhere.push(exchange.to_owned());
        }
        for exchange in hop.nowhere {
            self.end(End::Nowhere(exchange));
        }
    }

    fn exchange(&mut self, name: &str, key: &str, hop: &mut Hop) {
        if !hop.seen.insert(name.to_owned()) {
            return;
        }
        if self.goes_back(Endpoint::Exchange(name.to_owned())) {
            hop.arrives = true;
            return;
        }
        self.passed.insert(Endpoint::Exchange(name.to_owned()));
        let snapshot = self.snapshot;
        let Some(exchange) = snapshot.exchanges.get(name) else {
            hop.nowhere.push(name.to_owned());
            return;
        };
        let passes = |binding: &&Binding| match exchange.kind.as_str() {
            // An empty key means any key.
            "topic" => key.is_empty() || topic_matches(&binding.key, key),
            "direct" => key.is_empty() || binding.key == key,
            _ => true,
        };
        let mut bound = false;
        for binding in snapshot.bindings_from(name).iter().filter(passes) {
            bound = true;
            match &binding.destination {
                Endpoint::Exchange(to) => self.exchange(to, key, hop),
                Endpoint::Queue(to) => {
                    hop.arrives = true;
                    self.queue(to, key);
                }
            }
        }
        match exchange.arguments.get("alternate-exchange").and_then(Json::as_str) {
            _ if bound => {}
            Some(alternate) => self.exchange(alternate, key, hop),
            None => hop.nowhere.push(name.to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_passes_the_same_messages_to_every_bound_queue() {
        let [small, tap, landing, behind] = ["small", "tap", "landing", "behind"]
            .map(|name| QueueInfo { name: name.into(), ..QueueInfo::default() });
        let route =
            |app: &str, queue, landing| Route { app: app.to_owned(), end: End::Queue(queue), landing };
        let tiny = route("tiny", &small, None);
        assert!(tiny.shares(&route("tiny", &tap, None)));
        assert!(tiny.shares(&route("#", &tap, None)) && route("#", &tap, None).shares(&tiny));
        assert!(tiny.shares(&route("tiny", &behind, Some(&landing))));
        // Others, the same queue, and two ends behind one landing queue.
        assert!(!tiny.shares(&route("other", &tap, None)) && !tiny.shares(&route("#.other", &tap, None)));
        assert!(!tiny.shares(&tiny) && !tiny.shares(&route("#", &small, None)));
        let [one, other] = [&small, &behind].map(|queue| route("tiny", queue, Some(&landing)));
        assert!(!one.shares(&other));
    }
}
