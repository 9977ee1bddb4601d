//! The recalls of a set: which are pending, and removing those that are over.
//!
//! A recall is a binding. It is of no use any more once its message has come, but nothing
//! removes it by itself. It must stay as long as the message can still come, however late:
//! without it, a message that was recalled would be delivered. So nothing is removed until an
//! hour after the message was due, nor while nodes have been up for less than that, or levels
//! have messages on their way that may be stuck.

mod keeper;
mod safe;
mod sweep;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
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

use crate::{
    AdminError, connect,
    drain::DrainError,
    management::{BindingInfo, ManagementApi, ManagementError},
    refuse_without_set,
};

pub use keeper::{AppRecalls, RecallCounts, RecallStats, Sweeper};
pub use sweep::{SweepOptions, SweepReport, SweptApp, sweep_recalls};

/// A recall that was not removed yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PendingRecall {
    /// The application.
    pub app: String,
    /// The routing key of the message, which is its handle.
    pub handle: String,
    /// When the message is due at the latest, once a sweep has noted it.
    pub due: Option<Timestamp>,
}

/// The binding key of a note that says when the message of a recall is due at the latest. No
/// message has such a key. The recall itself cannot say it: with arguments and the `~` in its
/// key, it would break the management API's lists of bindings.
const NOTE: &str = "due";

/// The arguments of a note: the handle, and the time in ms since the epoch.
const HANDLE: &str = "handle";
const DUE: &str = "due";

/// How long after its message was due a recall is over.
const GRACE: Duration = Duration::from_secs(3_600);

/// A recall as it is found.
#[derive(Debug, Clone)]
struct Recall {
    app: AppKey,
    handle: String,
    /// When its message is due at the latest, as sweeps have noted it: several that ran at once
    /// have noted several times.
    notes: Vec<Timestamp>,
    /// Whether it is bound. If not, it was undone, and only its note is left.
    bound: bool,
}

/// Recalls that were not removed yet.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PendingRecalls {
    /// The recalls, those that are due first before the others.
    pub pending: Vec<PendingRecall>,
    /// Of which applications the recalls cannot be listed, and why.
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

/// What came of each application whose recalls the broker lists.
type OfEach<T> = BTreeMap<String, T>;

/// The applications whose recalls it does not list, and why.
type Unlisted = BTreeMap<String, String>;

/// Does something for each application. One whose recalls cannot be listed hides nothing of the
/// others: anybody who may recall its messages can bring that about.
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

/// Whether the recall of a message is bound now. Once the message was due, this does not say
/// whether it was bound in time.
///
/// # Errors
/// If nobody can say: there is no management API, or it refuses us or cannot be reached.
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
    let exchanges = api.exchanges(&settings.broker.vhost)?;
    if !exchanges.iter().any(|info| info.name == names.entry()) {
        return Err(DrainError::Missing { what: Endpoint::Exchange(names.entry()) }.into());
    }
    let of = |name: &str| names.app_of_recall(name).and_then(|app| AppKey::new(app).ok());
    let found = exchanges.iter().filter_map(|info| Some((&info.name, of(&info.name)?)));
    Ok(found.filter(|(name, app)| names.recall(app) == **name).map(|(_, app)| app).collect())
}

impl Recall {
    /// When its message is due at the latest: the last of the times that were noted counts.
    fn due(&self) -> Option<Timestamp> {
        self.notes.iter().copied().max()
    }

    /// The binding itself.
    fn binding(&self, topology: &Topology) -> Binding {
        Binding { key: self.handle.clone(), ..self.note(topology, Timestamp::UNIX_EPOCH).0 }
    }

    /// All that is noted about it.
    fn notes(&self, topology: &Topology) -> impl Iterator<Item = (Binding, BTreeMap<String, Argument>)> {
        self.notes.iter().map(|due| self.note(topology, *due))
    }

    /// The note that says when its message is due at the latest.
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

/// The keys of an application's messages that were recalled, or why they cannot be known.
///
/// # Errors
/// Only if the management API refuses us and the user named it.
pub(crate) fn recalled_keys(
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

/// Counts the recalls of each application, and says of which that is not possible. The broker
/// lists them all for that, which takes it time and memory.
///
/// # Errors
/// If there is no management API, or no set.
pub(crate) fn count_recalls(
    settings: &Settings,
    topology: &Topology,
) -> Result<(OfEach<AppRecalls>, Unlisted), AdminError> {
    let api = api(settings)?;
    of_each(apps(&api, settings, topology)?, |app| count_recalls_of(&api, settings, topology, app))
}

/// The same for one application.
pub(crate) fn count_recalls_of(
    api: &ManagementApi,
    settings: &Settings,
    topology: &Topology,
    app: &AppKey,
) -> Result<AppRecalls, AdminError> {
    let grace = SignedDuration::try_from(GRACE).unwrap_or(SignedDuration::MAX);
    let before = Timestamp::now().checked_sub(grace).unwrap_or(Timestamp::MIN);
    let mut counting = Counting::default();
    each(api, settings, topology, app, |info| counting.add(&info))?;
    Ok(counting.counted(before))
}

/// The recalls of an application while they are counted. Of each handle only a hash is kept: there
/// may be many.
#[derive(Default)]
struct Counting {
    hasher: RandomState,
    bound: HashSet<u64>,
    /// When each is due at the latest, of those about which that is noted.
    notes: HashMap<u64, Timestamp>,
}

impl Counting {
    fn add(&mut self, info: &BindingInfo) {
        if info.routing_key != NOTE {
            self.bound.insert(self.hasher.hash_one(info.routing_key.as_str()));
        } else if let Some((handle, due)) = noted(info) {
            let latest = self.notes.entry(self.hasher.hash_one(handle)).or_insert(due);
            *latest = due.max(*latest);
        }
    }

    /// A recall that was due before this time is over. One that was undone does not count.
    fn counted(self, before: Timestamp) -> AppRecalls {
        let of_recalls = self.notes.iter().filter(|(handle, _)| self.bound.contains(handle));
        let over: Vec<_> = of_recalls.map(|(_, due)| *due).filter(|due| *due < before).collect();
        AppRecalls {
            pending: self.bound.len() as u64,
            over: over.len() as u64,
            oldest_over: over.into_iter().min(),
            ..AppRecalls::default()
        }
    }
}

/// What a note says: about which handle, and when its message is due at the latest.
fn noted(note: &BindingInfo) -> Option<(&str, Timestamp)> {
    let handle = note.arguments.get(HANDLE).and_then(Json::as_str)?;
    let due = note.arguments.get(DUE).and_then(Json::as_i64)?;
    Some((handle, Timestamp::from_millisecond(due).ok()?))
}

fn api(settings: &Settings) -> Result<ManagementApi, AdminError> {
    crate::api(settings, "shows bindings")
}

/// Each binding that recalls a message of an application, or notes something about one.
fn each(
    api: &ManagementApi,
    settings: &Settings,
    topology: &Topology,
    app: &AppKey,
    visit: impl FnMut(BindingInfo),
) -> Result<(), AdminError> {
    let (exchange, queue) = (topology.names().recall(app), topology.names().recalled(app));
    api.each_binding_between(&settings.broker.vhost, &exchange, &queue, visit).map_err(|error| match error {
        ManagementError::Unexpected { reason, .. } => {
            AdminError::RecallsUnlisted { app: app.clone(), reason }
        }
        other => other.into(),
    })
}

/// The recalls of an application, with what was noted about them.
fn recalls_of(
    api: &ManagementApi,
    settings: &Settings,
    topology: &Topology,
    app: &AppKey,
) -> Result<Vec<Recall>, AdminError> {
    let mut found = Paired::default();
    each(api, settings, topology, app, |info| found.add(info))?;
    Ok(found.recalls(app).collect())
}

/// The recalls of an application by handle: whether each is bound, and what is noted about it.
#[derive(Default)]
struct Paired(BTreeMap<String, (bool, Vec<Timestamp>)>);

impl Paired {
    fn add(&mut self, info: BindingInfo) {
        if info.routing_key != NOTE {
            self.0.entry(info.routing_key).or_default().0 = true;
            return;
        }
        if let Some((handle, at)) = noted(&info) {
            self.0.entry(handle.to_owned()).or_default().1.push(at);
        }
    }

    fn recalls(self, app: &AppKey) -> impl Iterator<Item = Recall> {
        let recall = |(handle, (bound, notes))| Recall { app: app.clone(), handle, notes, bound };
        self.0.into_iter().map(recall)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Two recalls, of which one has two notes, and notes of what is no recall.
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
    fn what_was_undone_is_not_counted_and_the_last_note_of_a_recall_counts() {
        let counted = |before: i64| {
            let mut counting = Counting::default();
            bindings().iter().for_each(|info| counting.add(info));
            let counted = counting.counted(Timestamp::from_second(before).unwrap());
            (counted.pending, counted.over, counted.oldest_over.map(Timestamp::as_second))
        };
        assert_eq!(counted(9), (2, 0, None));
        assert_eq!(counted(10), (2, 1, Some(9)));
    }

    #[test]
    fn notes_belong_to_their_recalls() {
        let mut paired = Paired::default();
        bindings().into_iter().for_each(|info| paired.add(info));
        let found: Vec<_> = paired
            .recalls(&AppKey::new("billing").unwrap())
            .map(|it| (it.due().map(Timestamp::as_second), it.notes.len(), it.handle, it.bound))
            .collect();
        let expected = [(None, 0, "a", true), (Some(9), 2, "b", true), (Some(1), 1, "undone", false)];
        assert_eq!(found, expected.map(|(due, notes, handle, bound)| (due, notes, handle.to_owned(), bound)));
    }
}
