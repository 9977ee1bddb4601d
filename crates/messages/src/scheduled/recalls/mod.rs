//! The recalls of a set: the pending ones, and removing expired ones.
//!
//! A recall is a binding. It is not needed after its message has come, but no broker removes it. It must
//! stay while the message can still come, however late: without it, a recalled message would be delivered.
//! So a recall expires an hour after the due time of its message. It is not removed while a node has been
//! up for less than that, or while levels have messages on their way that may be stuck.

mod safe;
mod sweep;

use std::{
    collections::{BTreeMap, HashSet},
    hash::{BuildHasher, RandomState},
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;
use serde_json::Value as Json;

use delayline_core::{
    codec::AppKey,
    message::Handle,
    topology::{Argument, Binding, Endpoint, Topology},
};
use delayline_settings::{NO_MANAGEMENT, Settings};

use crate::{drain::DrainError, error::AdminError, error::connect, error::refuse_without_set};
use delayline_broker::{BindingInfo, ManagementApi, ManagementError};

pub use sweep::{SweepOptions, SweepReport, SweptApp, sweep_recalls};

/// A recall that was not removed yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct PendingRecall {
    /// The application.
    pub app: String,
    /// The routing key of the message, which is its handle.
    pub handle: String,
    /// When the message is due at the latest, once a sweep has noted it.
    pub due: Option<Timestamp>,
}

/// The recalls of an application.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct AppRecalls {
    /// Recalls after the last sweep, including expired ones.
    pub pending: u64,
    /// How many of those have expired and could not be removed yet.
    pub over: u64,
    /// When the message of the oldest of those was due, at the latest.
    pub oldest_over: Option<Timestamp>,
    /// How many this process has removed.
    pub swept: u64,
}

impl AppRecalls {
    /// Forgets the counts. The number of removed recalls stays when an application is removed.
    pub(super) fn forget(&mut self) {
        *self = Self { swept: self.swept, ..Self::default() };
    }
}

/// The binding key of a note with the latest due time of a recall's message. No message has such a key. The
/// recall itself cannot hold it: arguments on a key with `~` would break the management API's lists of
/// bindings.
const NOTE: &str = "due";

/// The arguments of a note: the handle, and the time in ms since the epoch.
const HANDLE: &str = "handle";
const DUE: &str = "due";

/// How long after the due time of its message a recall expires.
const GRACE: Duration = Duration::from_secs(3_600);

/// A recall and its notes.
#[derive(Debug, Clone)]
struct Recall {
    app: AppKey,
    handle: String,
    /// The latest due times of its message, as sweeps have noted them: several if several sweeps ran at
    /// once.
    notes: Vec<Timestamp>,
    /// Whether it is bound. If not, it was undone, and only its note is left.
    bound: bool,
}

/// Recalls that were not removed yet.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct PendingRecalls {
    /// The recalls, sorted by due time.
    pub pending: Vec<PendingRecall>,
    /// The applications whose recalls cannot be listed, and why.
    pub unchecked: Vec<String>,
}

/// The recalls of one application, or of all.
///
/// # Errors
/// If there is no management API (AMQP shows no bindings), no set, or if messages of the
/// application cannot be recalled.
pub fn pending_recalls(
    settings: &Settings,
    topology: &Topology,
    app: Option<&AppKey>,
) -> Result<PendingRecalls, AdminError> {
    let api = api(settings)?;
    let list = |app: &AppKey| recalls_of(&api, settings, topology, app);
    let (found, unlisted) = match app {
        Some(app) if !apps(&api, settings, topology)?.contains(app) => {
            refuse_without_set(&mut connect(&settings.broker)?, topology)?;
            return Err(DrainError::NotOffered { app: app.clone() }.into());
        }
        Some(app) => (BTreeMap::from([(app.to_string(), list(app)?)]), BTreeMap::new()),
        None => of_each(apps(&api, settings, topology)?, list)?,
    };
    let mut pending: Vec<_> = found
        .into_values()
        .flatten()
        .filter(|it| it.bound)
        .map(|it| PendingRecall { app: it.app.to_string(), due: it.due(), handle: it.handle })
        .collect();
    pending.sort_by(|one, other| (one.due, &one.handle).cmp(&(other.due, &other.handle)));
    Ok(PendingRecalls { pending, unchecked: unlisted.into_values().collect() })
}

/// The results by application, for those whose recalls the broker lists.
type OfEach<T> = BTreeMap<String, T>;

/// The applications whose recalls it does not list, and why.
pub(super) type Unlisted = BTreeMap<String, String>;

/// Runs a function for each application. If the recalls of an application cannot be listed, the others are
/// still listed, since any user that may recall its messages can cause that.
fn of_each<T>(
    apps: Vec<AppKey>,
    mut work: impl FnMut(&AppKey) -> Result<T, AdminError>,
) -> Result<(OfEach<T>, Unlisted), AdminError> {
    let (mut done, mut unlisted) = (BTreeMap::new(), BTreeMap::new());
    for app in apps {
        match work(&app) {
            Ok(result) => drop(done.insert(app.to_string(), result)),
            Err(error @ AdminError::RecallsUnlisted { .. }) => {
                unlisted.insert(app.to_string(), error.to_string());
            }
            Err(error) => return Err(error),
        }
    }
    Ok((done, unlisted))
}

/// The applications whose messages can be recalled.
///
/// # Errors
/// If there is no management API, or no set.
pub fn recallable_apps(settings: &Settings, topology: &Topology) -> Result<Vec<AppKey>, AdminError> {
    apps(&api(settings)?, settings, topology)
}

/// Whether the recall of a message is bound now. If the message was due already, it is unknown whether it
/// was bound in time.
///
/// # Errors If this is unknown: there is no management API, or it refuses us or cannot be reached.
pub fn is_recall_bound(
    settings: &Settings,
    topology: &Topology,
    handle: &Handle,
) -> Result<bool, AdminError> {
    let binding = Binding::recalling(topology.names(), handle.routing_key());
    Ok(api(settings)?.has_binding(&settings.broker.vhost, &binding)?)
}

fn apps(api: &ManagementApi, settings: &Settings, topology: &Topology) -> Result<Vec<AppKey>, AdminError> {
    let names = topology.names();
    let exchanges = api.exchange_definitions(&settings.broker.vhost)?;
    if !exchanges.iter().any(|info| info.name == names.entry()) {
        return Err(DrainError::Missing { what: Endpoint::Exchange(names.entry()) }.into());
    }
    let of = |name: &str| names.app_of_recall(name).and_then(|app| AppKey::new(app).ok());
    let found = exchanges.iter().filter_map(|info| Some((&info.name, of(&info.name)?)));
    Ok(found.filter(|(name, app)| names.recall(app) == **name).map(|(_, app)| app).collect())
}

impl Recall {
    /// When its message is due at the latest: the last of the noted times counts.
    fn due(&self) -> Option<Timestamp> {
        self.notes.iter().copied().max()
    }

    /// The binding itself.
    fn binding(&self, topology: &Topology) -> Binding {
        Binding { key: self.handle.clone(), ..self.note(topology, Timestamp::UNIX_EPOCH).0 }
    }

    /// All its notes.
    fn notes(&self, topology: &Topology) -> impl Iterator<Item = (Binding, BTreeMap<String, Argument>)> {
        self.notes.iter().map(|due| self.note(topology, *due))
    }

    /// The note with the latest due time of its message.
    fn note(&self, topology: &Topology, due: Timestamp) -> (Binding, BTreeMap<String, Argument>) {
        let names = topology.names();
        let binding = Binding {
            source: names.recall(&self.app),
            destination: Endpoint::Queue(names.recalled(&self.app)),
            key: NOTE.into(),
        };
        let due = due.as_millisecond().into();
        let arguments = [(HANDLE.to_owned(), self.handle.as_str().into()), (DUE.to_owned(), due)];
        (binding, arguments.into())
    }
}

/// The recalled keys of an application's messages, or why they are unknown.
///
/// # Errors Only if the management API refuses us and the user named it.
pub fn recalled_keys(
    settings: &Settings,
    topology: &Topology,
    app: &AppKey,
) -> Result<Result<HashSet<String>, String>, AdminError> {
    let Some(management) = &settings.management else {
        return Ok(Err(NO_MANAGEMENT.into()));
    };
    let mut keys = HashSet::new();
    let read = ManagementApi::new(management).map_err(AdminError::from).and_then(|api| {
        each(&api, settings, topology, app, |info| {
            if info.routing_key != NOTE {
                keys.insert(info.routing_key);
            }
        })
    });
    match read {
        Ok(()) => Ok(Ok(keys)),
        Err(AdminError::Management(error)) => Ok(Err(error.absence(management)?)),
        Err(error) => Ok(Err(error.to_string())),
    }
}

/// Counts the recalls of each application, and returns the applications for which that is not possible. The
/// broker lists all recalls for that, which takes it time and memory.
///
/// # Errors If there is no management API, or no set.
pub fn count_recalls(
    settings: &Settings,
    topology: &Topology,
) -> Result<(OfEach<AppRecalls>, Unlisted), AdminError> {
    let api = api(settings)?;
    of_each(apps(&api, settings, topology)?, |app| count_recalls_of(&api, settings, topology, app))
}

/// The same for one application.
pub fn count_recalls_of(
    api: &ManagementApi,
    settings: &Settings,
    topology: &Topology,
    app: &AppKey,
) -> Result<AppRecalls, AdminError> {
    let grace = SignedDuration::try_from(GRACE).unwrap_or(SignedDuration::MAX);
    let before = Timestamp::now().checked_sub(grace).unwrap_or(Timestamp::MIN);
    // Only a hash of each handle is kept, since there may be many.
    let (hasher, mut found) = (RandomState::new(), Paired::default());
    each(api, settings, topology, app, |info| found.add(&info, |handle| hasher.hash_one(handle)))?;
    Ok(found.counted(before))
}

/// The contents of a note: the handle, and the latest due time of its message.
fn noted(note: &BindingInfo) -> Option<(&str, Timestamp)> {
    let handle = note.arguments.get(HANDLE).and_then(Json::as_str)?;
    let due = note.arguments.get(DUE).and_then(Json::as_i64)?;
    Some((handle, Timestamp::from_millisecond(due).ok()?))
}

fn api(settings: &Settings) -> Result<ManagementApi, AdminError> {
    crate::error::api(settings, "shows bindings")
}

/// Each binding that recalls a message of an application, or is a note about a recall.
fn each(
    api: &ManagementApi,
    settings: &Settings,
    topology: &Topology,
    app: &AppKey,
    visit: impl FnMut(BindingInfo),
) -> Result<(), AdminError> {
    let (exchange, queue) = (topology.names().recall(app), topology.names().recalled(app));
    api.each_binding_between(&settings.broker.vhost, &exchange, &queue, visit).map_err(|error| match error {
        // What it answers if a recall has arguments. Any other failure has nothing to do with recalls.
        ManagementError::Unexpected { reason, .. } if reason.starts_with("HTTP status 500") => {
            AdminError::RecallsUnlisted { app: app.clone(), reason }
        }
        other => other.into(),
    })
}

/// The recalls of an application, with their notes.
fn recalls_of(
    api: &ManagementApi,
    settings: &Settings,
    topology: &Topology,
    app: &AppKey,
) -> Result<Vec<Recall>, AdminError> {
    let mut found = Paired::default();
    each(api, settings, topology, app, |info| found.add(&info, str::to_owned))?;
    let recall = |(handle, (bound, notes))| Recall { app: app.clone(), handle, notes, bound };
    Ok(found.0.into_iter().map(recall).collect())
}

/// The recalls of an application, by handle or by its hash: whether each is bound, and its notes.
struct Paired<K>(BTreeMap<K, (bool, Vec<Timestamp>)>);

impl<K> Default for Paired<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord> Paired<K> {
    fn add(&mut self, info: &BindingInfo, of: impl Fn(&str) -> K) {
        if info.routing_key != NOTE {
            self.0.entry(of(&info.routing_key)).or_default().0 = true;
        } else if let Some((handle, at)) = noted(info) {
            self.0.entry(of(handle)).or_default().1.push(at);
        }
    }

    /// A recall has expired if its message was due before this time, at the latest. A recall that was
    /// undone does not count.
    fn counted(&self, before: Timestamp) -> AppRecalls {
        let bound = || self.0.values().filter(|(bound, _)| *bound);
        let due = bound().filter_map(|(_, notes)| notes.iter().max());
        let over: Vec<_> = due.filter(|due| **due < before).collect();
        AppRecalls {
            pending: bound().count() as u64,
            over: over.len() as u64,
            oldest_over: over.into_iter().min().copied(),
            ..AppRecalls::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Two recalls, the second with two notes, and notes without a recall.
    fn bindings() -> [BindingInfo; 6] {
        let info = |key: &str, arguments: Json| -> BindingInfo {
            serde_json::from_value(json!({ "routing_key": key, "arguments": arguments })).unwrap()
        };
        [
            info("a", json!({})),
            info("b", json!({})),
            info(NOTE, json!({ "handle": "b", "due": 5_000 })),
            info(NOTE, json!({ "handle": "b", "due": 9_000 })),
            info(NOTE, json!({ "handle": "undone", "due": 1_000 })),
            info(NOTE, json!({ "handle": 7 })),
        ]
    }

    #[test]
    fn undone_recalls_are_not_counted_and_the_last_note_counts() {
        let mut paired = Paired::default();
        bindings().iter().for_each(|info| paired.add(info, str::to_owned));
        let counted = |before: i64| {
            let counted = paired.counted(Timestamp::from_second(before).unwrap());
            (counted.pending, counted.over, counted.oldest_over.map(Timestamp::as_second))
        };
        assert_eq!(counted(9), (2, 0, None));
        assert_eq!(counted(10), (2, 1, Some(9)));
    }

    #[test]
    fn notes_belong_to_their_recalls() {
        let mut paired = Paired::default();
        bindings().iter().for_each(|info| paired.add(info, str::to_owned));
        let found: Vec<_> = paired
            .0
            .into_iter()
            .map(|(handle, (bound, notes))| {
                (notes.iter().max().map(|due| due.as_second()), notes.len(), handle, bound)
            })
            .collect();
        let expected = [(None, 0, "a", true), (Some(9), 2, "b", true), (Some(1), 1, "undone", false)];
        assert_eq!(found, expected.map(|(due, notes, handle, bound)| (due, notes, handle.to_owned(), bound)));
    }
}
