//! The recalls of a set: which are pending, and removing those that are over.
//!
//! A recall is a binding. It is of no use any more once its message has come, but nothing
//! removes it by itself. It must stay as long as the message can still come, however late:
//! without it, a message that was recalled would be delivered. So nothing is removed until an
//! hour after the message was due, nor while nodes have been up for less than that, or levels
//! have messages on their way that may be stuck.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;
use serde_json::Value as Json;

use delayline::{
    amqp::Session,
    codec::{AppKey, RoutingKey},
    topology::{Argument, Binding, Endpoint, Topology},
};
use delayline_settings::Settings;

use crate::{
    AdminError, doing,
    management::{BindingInfo, ManagementApi},
};

/// How often the counts of the levels are read, at most, to see each without messages on
/// their way. Brokers renew them every five seconds.
const LOOKS: u32 = 4;

/// The pause between two looks.
const LOOK_EVERY: Duration = Duration::from_secs(5);

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

/// How to remove recalls that are over.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SweepOptions {
    /// How long after its message was due a recall stays: an hour by default. Nodes must have
    /// been up for as long.
    pub grace: Duration,
    /// The most that are removed in one run; 100,000 by default.
    pub at_most: usize,
    /// How many are removed each second, at most; 100 by default.
    pub per_second: u32,
    /// Whether to change nothing.
    pub dry_run: bool,
}

impl Default for SweepOptions {
    fn default() -> Self {
        Self { grace: Duration::from_secs(3_600), at_most: 100_000, per_second: 100, dry_run: false }
    }
}

impl SweepOptions {
    /// Sets how long a recall stays after its message was due.
    #[must_use]
    pub fn with_grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Changes nothing.
    #[must_use]
    pub fn dry_run(mut self) -> Self {
        self.dry_run = true;
        self
    }
}

/// What a sweep did.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct SweepReport {
    /// Whether nothing was changed.
    pub dry_run: bool,
    /// How many recalls there were.
    pub recalls: usize,
    /// How many were removed, or would be.
    pub swept: usize,
    /// How many were found for the first time. It is noted when their messages are due at the
    /// latest: after their delay, counted from now.
    pub noted: usize,
    /// How many are over and stay until the next run: there were too many, or it was
    /// interrupted.
    pub left: usize,
    /// How many have a key that no message can have, and nobody knows what they are for.
    pub odd: usize,
    /// Why nothing is removed at the moment, although something is over.
    pub postponed: Option<String>,
    /// Whether it was interrupted.
    pub interrupted: bool,
}

/// The binding key of a note that says when the message of a recall is due at the latest. No
/// message has such a key. The recall itself cannot say it: with arguments and the `~` in its
/// key, it would break the management API's lists of bindings.
const NOTE: &str = "due";

/// The arguments of a note: the handle, and the time in ms since the epoch.
const HANDLE: &str = "handle";
const DUE: &str = "due";

/// A recall as it is found.
struct Recall {
    app: AppKey,
    handle: String,
    due: Option<Timestamp>,
}

/// What to do about a recall.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Keep,
    Sweep,
    /// Note that its message is due at this time at the latest.
    Note(Timestamp),
    Odd,
}

/// The recalls of one application, or of all.
///
/// # Errors
/// If there is no management API: AMQP shows no bindings.
pub fn pending_recalls(
    settings: &Settings,
    topology: &Topology,
    app: Option<&AppKey>,
) -> Result<Vec<PendingRecall>, AdminError> {
    let api = api(settings)?;
    let found = recalls(&api, settings, topology, app)?;
    let mut pending: Vec<_> = found
        .into_iter()
        .map(|it| PendingRecall { app: it.app.to_string(), handle: it.handle, due: it.due })
        .collect();
    pending.sort_by(|one, other| (one.due, &one.handle).cmp(&(other.due, &other.handle)));
    Ok(pending)
}

/// Removes the recalls whose messages are over, if that is safe now.
///
/// # Errors
/// If there is no management API, or the broker refuses; another run continues from there.
pub fn sweep_recalls(
    settings: &Settings,
    topology: &Topology,
    options: &SweepOptions,
    stop: &AtomicBool,
) -> Result<SweepReport, AdminError> {
    let api = api(settings)?;
    let mut report = SweepReport { dry_run: options.dry_run, ..SweepReport::default() };
    let (mut over, mut new) = (Vec::new(), Vec::new());
    let now = Timestamp::now();
    for recall in recalls(&api, settings, topology, None)? {
        report.recalls += 1;
        match step(&recall, options.grace, topology, now) {
            Step::Keep => {}
            Step::Sweep => over.push(recall),
            Step::Note(at) => new.push(Recall { due: Some(at), ..recall }),
            Step::Odd => report.odd += 1,
        }
    }
    let mut session = Session::open(&settings.broker).map_err(doing("connecting"))?;
    let mut pace = Pace::new(options.per_second);
    for recall in &new {
        if report.stopped(stop) {
            return Ok(report);
        }
        if !options.dry_run {
            pace.wait();
            let (binding, arguments) = recall.note(topology);
            session
                .bind_with(&binding, &arguments)
                .map_err(doing(format!("noting when `{}` is due", recall.handle)))?;
        }
        report.noted += 1;
    }
    if over.is_empty() {
        return Ok(report);
    }
    report.postponed = postponed(&api, settings, topology, options.grace, stop)?;
    if report.postponed.is_some() {
        report.left = over.len();
        return Ok(report);
    }
    for (index, recall) in over.iter().enumerate() {
        if index >= options.at_most || report.stopped(stop) {
            report.left = over.len() - index;
            break;
        }
        if !options.dry_run {
            pace.wait();
            let (note, arguments) = recall.note(topology);
            // The note goes last: without it, the recall would be noted again.
            session
                .unbind(&Binding { key: recall.handle.clone(), ..note.clone() })
                .and_then(|()| session.unbind_with(&note, &arguments))
                .map_err(doing(format!("removing the recall of `{}`", recall.handle)))?;
        }
        report.swept += 1;
    }
    Ok(report)
}

impl SweepReport {
    fn stopped(&mut self, stop: &AtomicBool) -> bool {
        self.interrupted |= stop.load(Ordering::Relaxed);
        self.interrupted
    }
}

/// Keeps changes apart.
struct Pace {
    pause: Duration,
    last: Option<Instant>,
}

impl Pace {
    fn new(per_second: u32) -> Self {
        Self { pause: Duration::from_secs(1) / per_second.max(1), last: None }
    }

    fn wait(&mut self) {
        if let Some(last) = self.last {
            thread::sleep(self.pause.saturating_sub(last.elapsed()));
        }
        self.last = Some(Instant::now());
    }
}

impl Recall {
    /// The note that belongs to it.
    fn note(&self, topology: &Topology) -> (Binding, BTreeMap<String, Argument>) {
        let names = topology.names();
        let binding = Binding {
            source: names.recall(&self.app),
            destination: Endpoint::Queue(names.recalled(&self.app)),
            key: NOTE.into(),
        };
        let due = self.due.map_or(0, Timestamp::as_millisecond);
        let arguments = [(HANDLE.to_owned(), self.handle.as_str().into()), (DUE.to_owned(), due.into())];
        (binding, arguments.into())
    }
}

fn api(settings: &Settings) -> Result<ManagementApi, AdminError> {
    let management = settings.management.as_ref().ok_or_else(|| AdminError::Blind {
        reason: "none is configured (--management-url), and only the API shows bindings".into(),
    })?;
    Ok(ManagementApi::new(management)?)
}

/// The recalls of one application, or of all, with what was noted about them.
fn recalls(
    api: &ManagementApi,
    settings: &Settings,
    topology: &Topology,
    app: Option<&AppKey>,
) -> Result<Vec<Recall>, AdminError> {
    let (names, vhost) = (topology.names(), &settings.broker.vhost);
    let apps: Vec<AppKey> = match app {
        Some(app) => vec![app.clone()],
        None => {
            let exchanges = api.exchanges(vhost)?;
            let of = |name: &str| names.app_of_recall(name).and_then(|app| AppKey::new(app).ok());
            let found = exchanges.iter().filter_map(|info| Some((&info.name, of(&info.name)?)));
            found.filter(|(name, app)| names.recall(app) == **name).map(|(_, app)| app).collect()
        }
    };
    let mut found = Vec::new();
    for app in apps {
        let queue = names.recalled(&app);
        let mut bindings = api.bindings_from(vhost, &names.recall(&app))?;
        bindings.retain(|info| info.destination == queue);
        found.extend(paired(&app, &bindings));
    }
    Ok(found)
}

/// The recalls among the bindings of an application's exchange, each with its note. A note
/// whose recall was undone counts as one, so that it goes when its time has come.
fn paired(app: &AppKey, bindings: &[BindingInfo]) -> Vec<Recall> {
    let mut due: BTreeMap<&str, Timestamp> = BTreeMap::new();
    for info in bindings.iter().filter(|info| info.routing_key == NOTE) {
        let handle = info.arguments.get(HANDLE).and_then(Json::as_str);
        let at = info.arguments.get(DUE).and_then(Json::as_i64);
        if let Some((handle, at)) = handle.zip(at.and_then(|at| Timestamp::from_millisecond(at).ok())) {
            // The later one counts, if two ran at once.
            due.entry(handle).and_modify(|known| *known = at.max(*known)).or_insert(at);
        }
    }
    let handles: BTreeSet<_> =
        bindings.iter().map(|info| info.routing_key.as_str()).filter(|key| *key != NOTE).collect();
    let all = handles.into_iter().chain(due.keys().copied()).collect::<BTreeSet<_>>();
    let recall =
        |handle: &str| Recall { app: app.clone(), handle: handle.to_owned(), due: due.get(handle).copied() };
    all.into_iter().map(recall).collect()
}

fn step(recall: &Recall, grace: Duration, topology: &Topology, now: Timestamp) -> Step {
    let grace = SignedDuration::try_from(grace).unwrap_or(SignedDuration::MAX);
    match (recall.due, recall.handle.parse::<RoutingKey>()) {
        (Some(due), _) if now.duration_since(due) > grace => Step::Sweep,
        (Some(_), _) => Step::Keep,
        // The message was published before it was recalled, so it is due in so long at most.
        (None, Ok(key)) => {
            let delay = key.delay.duration(topology.settings().unit.duration());
            now.checked_add(delay).map_or(Step::Odd, Step::Note)
        }
        (None, Err(_)) => Step::Odd,
    }
}

/// Why messages that were due long ago may still come.
fn postponed(
    api: &ManagementApi,
    settings: &Settings,
    topology: &Topology,
    grace: Duration,
    stop: &AtomicBool,
) -> Result<Option<String>, AdminError> {
    for node in api.nodes()? {
        if !node.running {
            return Ok(Some(format!("node {} is down, and messages may wait for it", node.name)));
        }
        let up = node.uptime.map(Duration::from_millis);
        if up.is_none_or(|up| up < grace) {
            return Ok(Some(format!(
                "node {} has not been up for {} s yet, and messages that fell due while it was down may \
                 still be on their way",
                node.name,
                grace.as_secs()
            )));
        }
    }
    let mut suspects: Vec<_> =
        topology.queues().filter(|queue| queue.level.is_some()).map(|queue| queue.name.clone()).collect();
    for look in 0..LOOKS {
        if look > 0 {
            thread::sleep(LOOK_EVERY);
        }
        let counts = api.queue_counts(&settings.broker.vhost)?;
        suspects.retain(|name| counts.iter().any(|info| info.name == *name && info.messages_dlx > 0));
        if suspects.is_empty() || stop.load(Ordering::Relaxed) {
            break;
        }
    }
    Ok(suspects.first().map(|queue| {
        format!("`{queue}` has messages on their way that may be stuck (delayline unstick; docs/doctor.md)")
    }))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use delayline::topology::TopologySettings;

    const KEY: &str = "delay.0000.0000.0000.0000.0000.0000.1010.billing.~.17";

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn step_at(now: i64, handle: &str, due: Option<i64>) -> Step {
        let topology = Topology::new(TopologySettings::default());
        let recall = Recall { app: AppKey::new("billing").unwrap(), handle: handle.into(), due: due.map(at) };
        step(&recall, Duration::from_secs(3_600), &topology, at(now))
    }

    #[test]
    fn a_recall_stays_for_an_hour_after_its_message_was_due() {
        assert_eq!(step_at(0, KEY, Some(1_000)), Step::Keep);
        assert_eq!(step_at(1_000 + 3_600, KEY, Some(1_000)), Step::Keep);
        assert_eq!(step_at(1_000 + 3_601, KEY, Some(1_000)), Step::Sweep);
    }

    #[test]
    fn the_message_of_a_new_recall_is_due_at_the_latest_after_its_delay() {
        assert_eq!(step_at(100, KEY, None), Step::Note(at(110)));
        assert_eq!(step_at(100, "anything", None), Step::Odd);
        assert_eq!(step_at(100 + 3_600, "anything", Some(5)), Step::Sweep);
    }

    #[test]
    fn notes_belong_to_their_recalls() {
        let info = |key: &str, arguments: Json| -> BindingInfo {
            serde_json::from_value(json!({ "routing_key": key, "arguments": arguments })).unwrap()
        };
        let bindings = [
            info("a", json!({})),
            info("b", json!({})),
            info(NOTE, json!({ "handle": "b", "due": 5_000 })),
            info(NOTE, json!({ "handle": "b", "due": 9_000 })),
            info(NOTE, json!({ "handle": "undone", "due": 1_000 })),
            info(NOTE, json!({ "handle": 7 })),
        ];
        let found: Vec<_> = paired(&AppKey::new("billing").unwrap(), &bindings)
            .into_iter()
            .map(|it| (it.handle, it.due.map(Timestamp::as_second)))
            .collect();
        let expected = [("a", None), ("b", Some(9)), ("undone", Some(1))];
        assert_eq!(found, expected.map(|(handle, due)| (handle.to_owned(), due)));
    }
}
