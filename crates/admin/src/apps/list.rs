//! The applications of a set, and their users.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::{
    compare::Observed,
    management::{ManagementError, Permission, QueueInfo, TopicPermission},
};
use delayline_core::{
    codec::{AppKey, Delay, RoutingKey},
    topology::{Binding, Endpoint, Topology},
};
use delayline_settings::Settings;

use crate::{
    AdminError, AppRecalls,
    apps::{Unbound, api, unbound},
    observe_with,
    permitted::{Grants, key_matches, matches},
    recalls::count_recalls,
    retention::Retention,
};

/// The applications of a set.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct AppList {
    /// Whether the set is installed at all.
    pub installed: bool,
    /// One for each binding of the dispatch exchange, and one for each landing queue and each
    /// user that `app add` gave a queue to, without a binding.
    pub apps: Vec<AppEntry>,
    /// What could not be checked, and why.
    pub unchecked: Vec<String>,
}

/// An application.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct AppEntry {
    /// Its key; `None` if its binding is not an exact one, or if it has none and the keys that
    /// its user may publish do not tell which one it is.
    pub app: Option<String>,
    /// The binding key; `None` if it has none.
    pub binding: Option<String>,
    /// What is bound to the dispatch exchange, or would be.
    pub bound: Endpoint,
    /// Its landing queue, if it has one.
    pub landing: Option<LandingEntry>,
    /// What was recalled of its messages, if they can be.
    pub recall: Option<RecallEntry>,
    /// The queue it consumes, as far as that can be told.
    pub queue: Option<String>,
    /// Messages in that queue, up to 5 s ago; `None` if there is no such queue.
    pub messages: Option<u64>,
    /// How many consume it; `None` if there is no such queue.
    pub consumers: Option<u64>,
    /// Users that may consume its queue or publish its key, without administrators; `None` if
    /// permissions cannot be seen.
    pub users: Option<Vec<AppUserEntry>>,
}

/// A landing queue.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct LandingEntry {
    /// Its name.
    pub queue: String,
    /// The exchange it passes messages on to; empty for the default exchange.
    pub exchange: String,
    /// The routing key that messages get; `None` if they keep theirs.
    pub key: Option<String>,
    /// Messages waiting to be accepted by the target, up to 5 s ago.
    pub messages: u64,
}

/// What was recalled of an application's messages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RecallEntry {
    /// The queue of its recalled messages.
    pub queue: String,
    /// Messages in that queue, up to 5 s ago.
    pub messages: u64,
    /// Recalls that were not swept up: of messages that are not due yet, or were due within
    /// the last hour.
    pub pending: usize,
    /// The journal of what is scheduled, if there is one.
    pub journal: Option<JournalEntry>,
}

/// The journal of an application.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct JournalEntry {
    /// The stream.
    pub queue: String,
    /// How many messages it has, up to 5 s ago, whether they still wait or not.
    pub messages: u64,
    /// How long it keeps a message after that was published, in the broker's words: `7776000s`.
    pub max_age: Option<String>,
    /// How many bytes it keeps.
    pub max_bytes: Option<u64>,
}

/// A user of an application.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct AppUserEntry {
    /// Its name.
    pub name: String,
    /// Whether it may consume the application's queue; `None` if its pattern cannot be
    /// read.
    pub consumes: Option<bool>,
    /// Whether it may publish the application's key.
    pub publishes: Option<bool>,
    /// What it may do in the vhost.
    pub permission: Permission,
    /// The keys it may use on the exchanges of the set. Without an entry for an exchange, it
    /// may use all keys there.
    pub topic_permissions: Vec<TopicPermission>,
}

/// Lists the applications.
///
/// # Errors
/// If there is no management API.
pub fn list_apps(settings: &Settings, topology: &Topology) -> Result<AppList, AdminError> {
    let api = api(settings)?;
    let vhost = &settings.broker.vhost;
    // Before the objects: when an application is added, its permissions come last.
    let grants = Grants::ask(&api, vhost);
    let observed = observe_with(&api, vhost)?;
    let (recalls, unlisted) =
        match observed.exchanges.iter().any(|exchange| exchange.name == topology.names().entry()) {
            true => count_recalls(settings, topology)?,
            false => (BTreeMap::new(), BTreeMap::new()),
        };
    let (access, mut unchecked) = match grants {
        Ok(grants) => (Some(VhostUsers { vhost, grants }), Vec::new()),
        Err(error @ ManagementError::Refused { .. }) => {
            (None, vec![format!("users and permissions: {error}")])
        }
        Err(error) => return Err(error.into()),
    };
    unchecked.extend(unlisted.into_values());
    let mut bound: BTreeMap<(String, Endpoint), Option<String>> = BTreeMap::new();
    for binding in observed.app_bindings(topology) {
        let app = RoutingKey::app_of_pattern(&binding.key).ok().map(|app| app.to_string());
        bound.insert((binding.key, binding.destination), app);
    }
    let known = (&observed, &recalls);
    let mut apps: Vec<_> = bound
        .into_iter()
        .map(|((key, end), app)| entry(topology, known, access.as_ref(), app, Some(key), end))
        .collect();
    for queue in &observed.queues {
        let end = Endpoint::Queue(queue.name.clone());
        if let Some(app) = topology.names().app_of_landing(&queue.name)
            && !apps.iter().any(|entry| entry.bound == end)
        {
            apps.push(entry(topology, known, access.as_ref(), Some(app.into()), None, end));
        }
    }
    if let Some(access) = &access {
        let reached: BTreeSet<_> = apps.iter().filter_map(|entry| entry.queue.clone()).collect();
        let reached = reached.iter().map(String::as_str).collect();
        for Unbound { queue, app, .. } in unbound(topology, &observed, &access.grants, &reached) {
            if !apps.iter().any(|entry| entry.queue.as_ref() == Some(&queue)) {
                let app = app.map(|app| app.to_string());
                apps.push(entry(topology, known, Some(access), app, None, Endpoint::Queue(queue)));
            }
        }
    }
    apps.sort_by(|one, other| (&one.app, &one.bound).cmp(&(&other.app, &other.bound)));
    let dispatch = topology.names().dispatch();
    let installed = observed.exchanges.iter().any(|exchange| exchange.name == dispatch);
    Ok(AppList { installed, apps, unchecked })
}

fn entry(
    topology: &Topology,
    (observed, recalls): (&Observed, &BTreeMap<String, AppRecalls>),
    access: Option<&VhostUsers<'_>>,
    app: Option<String>,
    binding: Option<String>,
    bound: Endpoint,
) -> AppEntry {
    let (landing, queue) = path(topology, observed, &bound);
    let info = queue.as_deref().and_then(|name| find(observed, name));
    let key = app.as_deref().and_then(|app| AppKey::new(app).ok());
    AppEntry {
        users: access.map(|access| access.users_of(topology, key.as_ref(), queue.as_deref())),
        messages: info.map(|info| info.messages),
        consumers: info.map(|info| info.consumers),
        recall: key.as_ref().and_then(|key| recall(topology, observed, recalls, key)),
        app,
        binding,
        bound,
        landing,
        queue,
    }
}

fn find<'a>(observed: &'a Observed, queue: &str) -> Option<&'a QueueInfo> {
    observed.queues.iter().find(|info| info.name == queue)
}

/// The landing queue at the end of a binding, and the queue that is consumed.
fn path(
    topology: &Topology,
    observed: &Observed,
    bound: &Endpoint,
) -> (Option<LandingEntry>, Option<String>) {
    let Endpoint::Queue(name) = bound else { return (None, None) };
    match find(observed, name).and_then(|info| landing(topology, info)) {
        Some(landing) => {
            let queue = receiving(observed, &landing);
            (Some(landing), queue)
        }
        None => (None, Some(name.clone())),
    }
}

/// The queue that an application consumes, as its binding and its landing queue say; `None` if
/// they name none or several, or cannot be seen.
#[must_use]
pub fn queue_of_app(settings: &Settings, topology: &Topology, app: &AppKey) -> Option<String> {
    let observed = observe_with(&api(settings).ok()?, &settings.broker.vhost).ok()?;
    let key = RoutingKey::binding_pattern(app);
    let bound = observed.app_bindings(topology).into_iter().filter(|binding| binding.key == key);
    // What is bound to an exchange behind a landing queue need not be the application's.
    let queue = |binding: Binding| match path(topology, &observed, &binding.destination) {
        (Some(landing), _) if !landing.exchange.is_empty() => None,
        (_, queue) => queue,
    };
    let mut queues: Vec<_> = bound.filter_map(queue).collect();
    queues.dedup();
    queues.pop().filter(|_| queues.is_empty())
}

/// What was recalled of an application's messages; `None` if they cannot be.
fn recall(
    topology: &Topology,
    observed: &Observed,
    recalls: &BTreeMap<String, AppRecalls>,
    app: &AppKey,
) -> Option<RecallEntry> {
    let queue = topology.names().recalled(app);
    let info = observed.queues.iter().find(|info| info.name == queue)?;
    let journal = topology.names().journal(app);
    let journal = observed.queues.iter().find(|info| info.name == journal).map(|info| JournalEntry {
        queue: journal.clone(),
        messages: info.messages,
        max_age: Retention::effective(info).max_age.map(|age| format!("{}s", age.as_secs())),
        max_bytes: Retention::effective(info).max_bytes,
    });
    let pending = recalls.get(app.as_str()).map_or(0, |recalls| recalls.pending);
    let pending = usize::try_from(pending).unwrap_or(usize::MAX);
    Some(RecallEntry { messages: info.messages, pending, queue, journal })
}

/// The target of a landing queue, from its arguments.
pub(super) fn landing(topology: &Topology, info: &QueueInfo) -> Option<LandingEntry> {
    topology.names().app_of_landing(&info.name)?;
    let text = |key: &str| info.arguments.get(key).and_then(|value| value.as_str()).map(str::to_owned);
    Some(LandingEntry {
        queue: info.name.clone(),
        exchange: text("x-dead-letter-exchange").unwrap_or_default(),
        key: text("x-dead-letter-routing-key"),
        messages: info.messages.max(info.messages_dlx + info.messages_ready),
    })
}

/// The queue behind a landing queue: the one that is named, or the only one bound to the
/// exchange.
fn receiving(observed: &Observed, landing: &LandingEntry) -> Option<String> {
    if landing.exchange.is_empty() {
        return landing.key.clone();
    }
    let mut queues: Vec<_> = observed
        .bindings_of(&landing.exchange)
        .into_iter()
        .filter_map(|binding| match binding.destination {
            Endpoint::Queue(name) => Some(name),
            Endpoint::Exchange(_) => None,
        })
        .collect();
    queues.sort_unstable();
    queues.dedup();
    match queues.as_slice() {
        [one] => Some(one.clone()),
        _ => None,
    }
}

struct VhostUsers<'a> {
    vhost: &'a str,
    grants: Grants,
}

impl VhostUsers<'_> {
    fn users_of(&self, topology: &Topology, app: Option<&AppKey>, queue: Option<&str>) -> Vec<AppUserEntry> {
        let entry = topology.names().entry();
        let mut users = Vec::new();
        for permission in &self.grants.permissions {
            if self.grants.has_tag(&permission.user, "administrator") {
                continue;
            }
            let of_user = |topic: &&TopicPermission| topic.user == permission.user;
            let consumes = queue.map_or(Some(false), |queue| matches(&permission.read, queue).ok());
            let publishes = app.map_or(Some(false), |app| {
                if !matches(&permission.write, &entry).ok()? {
                    return Some(false);
                }
                let key = RoutingKey::new(Delay::ZERO, app.clone()).encode();
                let user = (permission.user.as_str(), self.vhost);
                key_matches(&self.grants.topics, user, &entry, &key, |topic| &topic.write).ok()
            });
            if consumes == Some(false) && publishes == Some(false) {
                continue;
            }
            users.push(AppUserEntry {
                name: permission.user.clone(),
                consumes,
                publishes,
                permission: permission.clone(),
                topic_permissions: self
                    .grants
                    .topics
                    .iter()
                    .filter(of_user)
                    .filter(|topic| topology.owns_exchange(&topic.exchange))
                    .cloned()
                    .collect(),
            });
        }
        users
    }
}
