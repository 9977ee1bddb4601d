//! The applications of a set, and their users.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::{apps::Unbound, apps::unbound};
use delayline_broker::{
    Grants, ManagementApi, ManagementError, Permission, QueueInfo, Retention, Scope, SeenSet, Snapshot,
    TopicPermission, apps_in, is_of_program, permits,
};
use delayline_core::{
    codec::{AppKey, Delay, RoutingKey},
    topology::{Binding, Endpoint, Topology},
};
use delayline_messages::{
    error::AdminError, examine::consumers, scheduled::AppRecalls, scheduled::count_recalls,
};
use delayline_settings::Settings;

/// The applications of a set.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct AppList {
    /// Whether the set is installed at all.
    pub installed: bool,
    /// An entry for each binding of the dispatch exchange. Without a binding, an entry for each landing
    /// queue, and for each user to which `app add` gave a queue.
    pub apps: Vec<AppEntry>,
    /// The checks that were not possible, and why.
    pub unchecked: Vec<String>,
}

/// An application.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct AppEntry {
    /// Its key; `None` if its binding is not an exact one, or if it has no binding and the keys that its
    /// user may publish do not identify the application.
    pub app: Option<String>,
    /// The binding key; `None` if it has none.
    pub binding: Option<String>,
    /// The queue or exchange that is bound to the dispatch exchange, or would be.
    pub bound: Endpoint,
    /// Its landing queue, if it has one; while it is paused, the queue in which its messages wait.
    pub landing: Option<LandingEntry>,
    /// Whether it is paused: its due messages wait until it is resumed.
    pub paused: bool,
    /// Its recalls, if its messages can be recalled.
    pub recall: Option<RecallEntry>,
    /// The queue it consumes, if that is known.
    pub queue: Option<String>,
    /// Messages in that queue, up to 5 s ago; `None` if there is no such queue, or the broker does not report
    /// their number.
    pub messages: Option<u64>,
    /// How many consume it; `None` likewise.
    pub consumers: Option<u64>,
    /// Users that may consume its queue or publish its key, without administrators; `None` if
    /// permissions cannot be seen.
    pub users: Option<Vec<AppUserEntry>>,
}

/// A landing queue.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct LandingEntry {
    /// Its name.
    pub queue: String,
    /// The exchange it passes messages on to; empty for the default exchange.
    pub exchange: String,
    /// The routing key that messages get; `None` if they keep theirs.
    pub key: Option<String>,
    /// Messages waiting to be accepted by the target, up to 5 s ago; `None` if that is not known.
    pub messages: Option<u64>,
}

/// The recalls of an application.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct RecallEntry {
    /// The queue of its recalled messages.
    pub queue: String,
    /// Messages in that queue, up to 5 s ago; `None` if that is not known.
    pub messages: Option<u64>,
    /// Recalls that were not removed yet: of messages that are not due yet, or were due within the last
    /// hour.
    pub pending: usize,
    /// The journal of scheduled messages, if it has a journal.
    pub journal: Option<JournalEntry>,
}

/// The journal of an application.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct JournalEntry {
    /// The stream.
    pub queue: String,
    /// How many messages it has, up to 5 s ago, whether they still wait or not; `None` if
    /// that is not known.
    pub messages: Option<u64>,
    /// How long it keeps a message after that was published, in the broker's words: `7776000s`.
    pub max_age: Option<String>,
    /// How many bytes it keeps.
    pub max_bytes: Option<u64>,
}

/// A user of an application.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
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

/// The management API, without which permissions and bindings cannot be seen.
fn api(settings: &Settings) -> Result<ManagementApi, AdminError> {
    delayline_messages::error::api(settings, "shows bindings and permissions")
}

/// Lists the applications.
///
/// # Errors
/// If there is no management API.
pub fn list_apps(settings: &Settings, topology: &Topology) -> Result<AppList, AdminError> {
    let api = api(settings)?;
    let vhost = &settings.broker.vhost;
    let SeenSet { snapshot, grants } = SeenSet::apps(&api, vhost, topology)?;
    let (access, unread) = match grants {
        Ok(grants) => (Some(grants), None),
        Err(error @ ManagementError::Refused { .. }) => (None, Some(error)),
        Err(error) => return Err(error.into()),
    };
    let mut list = apps_of(settings, topology, &snapshot, access.as_ref())?;
    list.unchecked.splice(0..0, unread.map(|error| format!("users and permissions: {error}")));
    Ok(list)
}

/// The applications of a set that was read with the queues that users may read.
///
/// # Errors
/// If recalls could not be counted.
pub fn apps_of(
    settings: &Settings,
    topology: &Topology,
    snapshot: &Snapshot,
    access: Option<&Grants>,
) -> Result<AppList, AdminError> {
    let (recalls, unlisted) = match snapshot.exchanges.contains_key(&topology.names().entry()) {
        true => count_recalls(settings, topology)?,
        false => (BTreeMap::new(), BTreeMap::new()),
    };
    let unchecked = unlisted.into_values().collect();
    let mut bound: BTreeMap<(String, Endpoint), Option<String>> = BTreeMap::new();
    let mut bindings = snapshot.app_bindings(topology);
    bindings.retain(|binding| !is_of_program(topology.names(), &binding.destination));
    for binding in bindings {
        let app = RoutingKey::app_of_pattern(&binding.key).ok().map(|app| app.to_string());
        bound.insert((binding.key, binding.destination), app);
    }
    let known = (snapshot, &recalls);
    let mut apps: Vec<_> = bound
        .into_iter()
        .map(|((key, end), app)| entry(topology, known, access, app, Some(key), end))
        .collect();
    for queue in snapshot.queues.values() {
        let end = Endpoint::Queue(queue.name.clone());
        if let Some(app) = topology.names().app_of_landing(&queue.name)
            && !apps
                .iter()
                .any(|entry| entry.bound == end || entry.paused && entry.app.as_deref() == Some(app))
        {
            apps.push(entry(topology, known, access, Some(app.into()), None, end));
        }
    }
    if let Some(grants) = access {
        let reached: BTreeSet<_> = apps.iter().filter_map(|entry| entry.queue.clone()).collect();
        let reached = reached.iter().map(String::as_str).collect();
        for Unbound { queue, app, .. } in unbound(topology, snapshot, grants, &reached) {
            if !apps.iter().any(|entry| entry.queue.as_ref() == Some(&queue)) {
                let app = app.map(|app| app.to_string());
                apps.push(entry(topology, known, Some(grants), app, None, Endpoint::Queue(queue)));
            }
        }
    }
    let uncounted = apps.iter().filter(|entry| entry.consumers.is_none()).filter_map(|it| it.queue.clone());
    let consumers = consumers(settings, uncounted);
    for entry in &mut apps {
        let asked = entry.queue.as_ref().and_then(|queue| consumers.get(queue).copied());
        entry.consumers = entry.consumers.or(asked);
    }
    apps.sort_by(|one, other| (&one.app, &one.bound).cmp(&(&other.app, &other.bound)));
    let dispatch = topology.names().dispatch();
    let installed = snapshot.exchanges.contains_key(&dispatch);
    Ok(AppList { installed, apps, unchecked })
}

fn entry(
    topology: &Topology,
    (snapshot, recalls): (&Snapshot, &BTreeMap<String, AppRecalls>),
    grants: Option<&Grants>,
    app: Option<String>,
    binding: Option<String>,
    bound: Endpoint,
) -> AppEntry {
    let (landing, queue) = path(topology, snapshot, &bound);
    let info = queue.as_deref().and_then(|name| snapshot.queues.get(name));
    let key = app.as_deref().and_then(|app| AppKey::new(app).ok());
    AppEntry {
        users: grants.map(|grants| users_of(topology, grants, key.as_ref(), queue.as_deref())),
        messages: info.and_then(|info| info.messages),
        consumers: info.and_then(|info| info.consumers),
        recall: key.as_ref().and_then(|key| recall(topology, snapshot, recalls, key)),
        app,
        paused: binding.is_some() && is_paused(topology, &bound),
        binding,
        bound,
        landing,
        queue,
    }
}

fn is_paused(topology: &Topology, bound: &Endpoint) -> bool {
    matches!(bound, Endpoint::Queue(name) if topology.names().app_of_paused(name).is_some())
}

/// The landing queue at the end of a binding, and the queue that is consumed.
fn path(
    topology: &Topology,
    snapshot: &Snapshot,
    bound: &Endpoint,
) -> (Option<LandingEntry>, Option<String>) {
    let Endpoint::Queue(name) = bound else { return (None, None) };
    match snapshot.queues.get(name).and_then(|info| landing(topology, info)) {
        Some(landing) => {
            let queue = receiving(snapshot, &landing).map(Endpoint::Queue);
            // A paused application may have a landing queue as well.
            let queue = queue.and_then(|queue| match is_paused(topology, bound) {
                true => path(topology, snapshot, &queue).1,
                false => Some(queue.name().to_owned()),
            });
            (Some(landing), queue)
        }
        None => (None, Some(name.clone())),
    }
}

/// The queue that an application consumes, according to its binding and its landing queue; `None` if they
/// name none or several, or cannot be seen.
#[must_use]
pub fn queue_of_app(settings: &Settings, topology: &Topology, app: &AppKey) -> Option<String> {
    let snapshot =
        Snapshot::fetch(&api(settings).ok()?, &settings.broker.vhost, Scope::Apps(topology, &[])).ok()?;
    let key = RoutingKey::binding_pattern(app);
    let bound = snapshot.app_bindings(topology).into_iter().filter(|binding| binding.key == key);
    // A queue that is bound to an exchange behind a landing queue may belong to another application.
    let queue = |binding: Binding| match path(topology, &snapshot, &binding.destination) {
        (Some(landing), _) if !landing.exchange.is_empty() => None,
        (_, queue) => queue,
    };
    let mut queues: Vec<_> = bound.filter_map(queue).collect();
    queues.dedup();
    queues.pop().filter(|_| queues.is_empty())
}

/// The applications whose messages a user may publish, if adding an application gave it its rights. Empty if
/// permissions cannot be seen.
///
/// # Errors
/// If there is no management API.
pub fn apps_of_publisher(
    settings: &Settings,
    topology: &Topology,
    user: &str,
) -> Result<Vec<String>, AdminError> {
    let grants = match Grants::fetch(&api(settings)?, &settings.broker.vhost) {
        Ok(grants) => grants,
        Err(ManagementError::Refused { .. }) => return Ok(Vec::new()),
        Err(error) => return Err(error.into()),
    };
    let rule = grants.topic(user, &topology.names().entry());
    let apps = rule.map(|rule| apps_in(&rule.write)).unwrap_or_default();
    Ok(apps.iter().map(ToString::to_string).collect())
}

/// The recalls of an application; `None` if its messages cannot be recalled.
fn recall(
    topology: &Topology,
    snapshot: &Snapshot,
    recalls: &BTreeMap<String, AppRecalls>,
    app: &AppKey,
) -> Option<RecallEntry> {
    let queue = topology.names().recalled(app);
    let info = snapshot.queues.get(&queue)?;
    let journal = topology.names().journal(app);
    let journal = snapshot.queues.get(&journal).map(|info| JournalEntry {
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
pub fn landing(topology: &Topology, info: &QueueInfo) -> Option<LandingEntry> {
    topology.names().app_of_landing(&info.name)?;
    let text = |key: &str| info.arguments.get(key).and_then(|value| value.as_str()).map(str::to_owned);
    Some(LandingEntry {
        queue: info.name.clone(),
        exchange: text("x-dead-letter-exchange").unwrap_or_default(),
        key: text("x-dead-letter-routing-key"),
        messages: info
            .messages
            .max(info.messages_dlx.zip(info.messages_ready).map(|(due, ready)| due + ready)),
    })
}

/// The queue or exchange to which a landing queue, or the queue of a paused application, passes its messages.
pub fn behind(topology: &Topology, info: &QueueInfo) -> Option<Endpoint> {
    let landing = landing(topology, info)?;
    Some(match landing.exchange.is_empty() {
        true => Endpoint::Queue(landing.key?),
        false => Endpoint::Exchange(landing.exchange),
    })
}

/// The queue behind a landing queue: the queue that it names, or the only queue bound to the exchange.
fn receiving(snapshot: &Snapshot, landing: &LandingEntry) -> Option<String> {
    if landing.exchange.is_empty() {
        return landing.key.clone();
    }
    let mut queues: Vec<_> = snapshot
        .bindings_from(&landing.exchange)
        .iter()
        .filter_map(|binding| match &binding.destination {
            Endpoint::Queue(name) => Some(name),
            Endpoint::Exchange(_) => None,
        })
        .collect();
    queues.sort_unstable();
    queues.dedup();
    match queues.as_slice() {
        [one] => Some((*one).clone()),
        _ => None,
    }
}

/// The users of an application, without administrators.
fn users_of(
    topology: &Topology,
    grants: &Grants,
    app: Option<&AppKey>,
    queue: Option<&str>,
) -> Vec<AppUserEntry> {
    let entry = topology.names().entry();
    let key = app.map(|app| RoutingKey::new(Delay::ZERO, app.clone()).encode());
    let mut users = Vec::new();
    for permission in grants.permissions.values() {
        let user = permission.user.as_str();
        let consumes = queue.map_or(Some(false), |queue| permits(&permission.read, queue).ok());
        let publishes =
            key.as_ref().map_or(Some(false), |key| match permits(&permission.write, &entry).ok()? {
                true => grants.may_publish_key(user, &entry, key).ok(),
                false => Some(false),
            });
        let has_none = consumes == Some(false) && publishes == Some(false);
        if has_none || grants.has_tag(user, "administrator") {
            continue;
        }
        let of_the_set = grants.topics(user).filter(|topic| topology.owns_exchange(&topic.exchange));
        users.push(AppUserEntry {
            name: user.to_owned(),
            consumes,
            publishes,
            permission: permission.clone(),
            topic_permissions: of_the_set.cloned().collect(),
        });
    }
    users
}
