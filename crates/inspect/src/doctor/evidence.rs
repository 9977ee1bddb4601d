//! The evidence that the checks work on.

use std::{
    collections::{BTreeMap, BTreeSet},
    thread,
    time::Duration,
};

use crate::{doctor::DoctorOptions, doctor::copies, doctor::copies::Copies, doctor::requeues};
use delayline_broker::{
    About, Clash, End, IfNew, ManagementApi, ManagementError, PolicyKind, QueueInfo, Scope, SeenSet,
    Snapshot, is_open, mark_leaderless, routes,
};
use delayline_core::{
    codec::AppKey,
    message::{MaxRecalls, SMALLEST_FRAME_LIMIT},
    topology::Topology,
};
use delayline_messages::{
    error::AdminError, error::connect, held::Kept, held::KeptReport, scheduled::AppRecalls,
    scheduled::JournalBeginning, scheduled::count_recalls, scheduled::journal_beginning,
    scheduled::lost::lost, unstick::NAME, unstick::NO_LIMIT, unstick::left_behind,
};
use delayline_schedules::{ScheduleSummary, summaries};
use delayline_settings::Settings;
use jiff::Timestamp;

/// The period of the unroutable queue's history, in seconds. Brokers keep such figures for this long by
/// default.
const HISTORY: u32 = 600;

/// How long one of our policies may exist during an unstick run.
const MOMENT: Duration = Duration::from_secs(3);

/// The answers of the broker: the state of the vhost, and further counts and messages. A field is empty if
/// the broker would not report it.
#[derive(Debug, Default)]
pub(super) struct Evidence {
    pub(super) snapshot: Snapshot,
    /// How many messages were unroutable over time, the oldest first.
    pub(super) unroutable_history: Vec<u64>,
    /// The kept messages, if they were examined.
    pub(super) kept: BTreeMap<Kept, KeptReport>,
    /// The kinds of our policies that exist for longer than they should.
    pub(super) left_behind: Vec<(PolicyKind, &'static str)>,
    /// The number of recalls of each application, if they were counted.
    pub(super) recalls: BTreeMap<String, AppRecalls>,
    /// How many recalls applications may have pending.
    pub(super) max_recalls: MaxRecalls,
    /// The beginning of each journal, by its stream, if it was examined.
    pub(super) journals: BTreeMap<String, JournalBeginning>,
    /// The journals that are lost.
    pub(super) lost_journals: BTreeSet<String>,
    /// The schedules, if the set has any.
    pub(super) schedules: Vec<ScheduleSummary>,
    /// Missing queues of the set whose internal names are taken.
    pub(super) clashes: Vec<Clash>,
    /// The users with connections whose frame limit is the smallest one.
    pub(super) small_frames: BTreeSet<String>,
    /// The copies in the levels.
    pub(super) copies: Option<Copies>,
}

/// Asks the broker. Missing answers come back as a list of reasons.
pub(super) fn gather(
    settings: &Settings,
    topology: &Topology,
    options: &DoctorOptions,
    look: impl FnOnce(&ManagementApi) -> Result<SeenSet, ManagementError>,
) -> Result<(Evidence, Vec<String>), AdminError> {
    let mut session = connect(&settings.broker)?;
    let vhost = &settings.broker.vhost;
    let api = delayline_messages::error::api(settings, "lists queues")?;
    let management = settings.management.as_ref();
    let SeenSet { mut snapshot, grants } = match (look(&api), management) {
        (Ok(seen), _) => seen,
        (Err(error), Some(management)) => {
            return Err(AdminError::NoManagement { reason: error.absence(management)? });
        }
        (Err(error), None) => return Err(error.into()),
    };
    let topology = &snapshot.as_installed(topology);
    let (about, mut unchecked) = About::fetch(session.server_version(), management);
    snapshot.about = about;
    // The API's count is some seconds old. It is used if we lack the right to read the queue.
    let mut waits = |name: &str| session.queue_depth(name).ok().flatten().map(|depth| depth.ready);
    let waiting = Kept::ALL.map(|kept| (waits(&kept.queue(topology).name), kept));
    for (_, kept) in waiting.iter().filter(|(waits, _)| *waits == Some(None)) {
        unchecked.push(format!("the {} messages: their queue does not answer", kept.as_str()));
    }
    let queues = queues_on_the_way(topology, &snapshot);
    let leaders = mark_leaderless(&api, &mut session, &mut snapshot, &queues, IfNew::Wait)?;
    drop(session);
    unchecked.extend(leaders.unchecked());
    unchecked.append(&mut snapshot.unchecked);
    let shovels = snapshot.fetch_shovels(&api, &settings.broker);
    or_unchecked(shovels, "shovels on the set's exchanges and queues", &mut unchecked);
    unchecked.extend(snapshot.unplaced_shovels(topology));
    unchecked.extend(snapshot.unjudged(topology));
    snapshot.about.deprecated =
        or_unchecked(api.deprecated_features_used(), "deprecated features in use", &mut unchecked).flatten();
    snapshot.grants = or_unchecked(grants, "which users may publish, bind and purge", &mut unchecked);

    let mut known = Evidence { max_recalls: settings.max_recalls.clone(), ..Evidence::default() };
    if snapshot.is_installed(topology) {
        let history = api.queue_history(vhost, &topology.names().unroutable(), HISTORY);
        known.unroutable_history =
            or_unchecked(history, "whether the number of unroutable messages grows", &mut unchecked)
                .flatten()
                .map(|queue| queue.history())
                .unwrap_or_default();
        for (waits, kept) in waiting {
            let counted = snapshot.queues.get(&kept.queue(topology).name);
            let waits = waits.flatten() > Some(0);
            if options.sample == 0 || !(waits || counted.is_some_and(|queue| queue.messages != Some(0))) {
                continue;
            }
            let report = kept.list(settings, topology, options.sample, |_| {});
            let what = format!("the applications of the {} messages", kept.as_str());
            if let Some(report) = or_unchecked(report, &what, &mut unchecked) {
                let reasons = report.unchecked.iter().chain(&report.failure);
                unchecked.extend(reasons.map(|reason| format!("{what}: {reason}")));
                known.kept.insert(kept, report);
            }
        }
        known.recalls = match &options.recalls {
            Some(counts) => counts.apps.clone(),
            None => {
                let counted = count_recalls(settings, topology);
                let counted = or_unchecked(counted, "how many recalls are pending", &mut unchecked);
                let (recalls, unlisted) = counted.unwrap_or_default();
                unchecked.extend(unlisted.into_values());
                recalls
            }
        };
        let connections = or_unchecked(api.connections(vhost), "the frame limits of clients", &mut unchecked);
        let small =
            |limit: Option<usize>| limit.is_some_and(|limit| (1..=SMALLEST_FRAME_LIMIT).contains(&limit));
        let connections = connections.into_iter().flatten().filter(|it| small(it.frame_max));
        known.small_frames = connections.map(|connection| connection.user).collect();
        known.journals = journals(settings, topology, &snapshot, options, &mut unchecked);
        known.lost_journals = lost_journals(settings, topology, &snapshot, options, &mut unchecked);
        if topology.has_schedules() {
            let book = delayline_schedules::read(settings, topology);
            let book = or_unchecked(book, "whether schedules are published", &mut unchecked).flatten();
            known.schedules = summaries(&book.unwrap_or_default(), settings, Timestamp::now());
        }
        let ends = routes(topology, &snapshot).into_iter().filter_map(|route| match route.end {
            End::Queue(queue) => Some(queue.name.as_str()),
            End::Nowhere(_) | End::Back(_) => None,
        });
        let ends = ends.collect::<BTreeSet<_>>().into_iter();
        let rates = api.redeliveries(vhost, requeues::PERIOD, ends, snapshot.queues_in_all);
        let rates = or_unchecked(rates, "how fast messages are redelivered", &mut unchecked);
        for QueueInfo { name, message_stats, .. } in rates.into_iter().flatten() {
            if let Some(queue) = snapshot.queues.get_mut(&name) {
                queue.message_stats.redeliver_details = message_stats.redeliver_details;
                queue.message_stats.ack_details = message_stats.ack_details;
            }
        }
        let ours = |name: &str| {
            topology.names().app_of_landing(name).is_some()
                || topology.queues().any(|queue| queue.name == name)
        };
        snapshot.fetch_dead_letters(&api, Some(&Scope::Set(topology, &[]).pattern()), ours)?;
        let open = snapshot.dead_letters.iter().filter(|(_, looks)| is_open(looks));
        unchecked.extend(open.map(|(queue, _)| {
            format!("whether the due messages of `{queue}` move: they have just come; run this again in 30 s")
        }));
        known.left_behind = lasting(|| {
            let left = |own| {
                left_behind(&api, vhost, snapshot.queues.values(), own).into_iter().map(move |it| (it, own))
            };
            [NAME, NO_LIMIT].into_iter().flat_map(left).collect()
        });
        let copies = copies::count(&api, topology, &snapshot);
        known.copies = or_unchecked(copies, "whether messages are multiplied", &mut unchecked).flatten();
    }
    let missing: Vec<_> = topology.queues().filter(|it| !snapshot.queues.contains_key(&it.name)).collect();
    if !missing.is_empty() {
        let names = missing.iter().map(|queue| queue.name.as_str());
        let found = Clash::find(&api, vhost, names);
        known.clashes =
            or_unchecked(found, "whether names of queues are taken", &mut unchecked).unwrap_or_default();
    }
    known.snapshot = snapshot;
    Ok((known, unchecked))
}

/// The policies that still exist a moment later.
fn lasting<T: PartialEq>(look: impl Fn() -> Vec<T>) -> Vec<T> {
    let mut seen = look();
    if !seen.is_empty() {
        thread::sleep(MOMENT);
        let again = look();
        seen.retain(|kind| again.contains(kind));
    }
    seen
}

/// The queues that messages move through: the set's, landing queues, and the queues of applications and of
/// canaries.
fn queues_on_the_way(topology: &Topology, snapshot: &Snapshot) -> BTreeSet<String> {
    let mut names: BTreeSet<_> = topology.queues().map(|queue| queue.name.clone()).collect();
    let canaries = snapshot.queues.keys().filter(|name| topology.names().is_canary(name));
    names.extend(canaries.cloned());
    for target in routes(topology, snapshot) {
        names.extend(target.landing.map(|landing| landing.name.clone()));
        if let End::Queue(queue) = target.end {
            names.insert(queue.name.clone());
        }
    }
    names
}

/// The beginnings of the journals that have messages. Reading removes nothing from them.
fn journals(
    settings: &Settings,
    topology: &Topology,
    snapshot: &Snapshot,
    options: &DoctorOptions,
    unchecked: &mut Vec<String>,
) -> BTreeMap<String, JournalBeginning> {
    let mut known = BTreeMap::new();
    if options.sample == 0 {
        return known;
    }
    for queue in snapshot.queues.values().filter(|queue| queue.messages != Some(0)) {
        let app = topology.names().app_of_journal(&queue.name).and_then(|app| AppKey::new(app).ok());
        let Some(app) = app else { continue };
        let beginning = journal_beginning(settings, topology, &app, options.sample);
        let what = format!("whether `{}` keeps its messages until they are due", queue.name);
        if let Some(beginning) = or_unchecked(beginning, &what, unchecked) {
            known.insert(queue.name.clone(), beginning);
        }
    }
    known
}

/// The lost journals among those without messages. RabbitMQ 4.0 does not list a lost journal, so each
/// application with recall is checked.
fn lost_journals(
    settings: &Settings,
    topology: &Topology,
    snapshot: &Snapshot,
    options: &DoctorOptions,
    unchecked: &mut Vec<String>,
) -> BTreeSet<String> {
    if options.sample == 0 {
        return BTreeSet::new();
    }
    let (names, queues) = (topology.names(), &snapshot.queues);
    let is_journal = |queue: &&QueueInfo| names.app_of_journal(&queue.name).is_some();
    let of_app = |name: &String| AppKey::new(names.app_of_recalled(name)?).ok();
    let unlisted = queues.keys().filter_map(of_app).map(|app| names.journal(&app));
    let unlisted = unlisted.filter(|name| !queues.contains_key(name));
    let unlisted = unlisted.map(|name| QueueInfo { name, ..QueueInfo::default() });
    let mut found = BTreeSet::new();
    for queue in queues.values().filter(is_journal).cloned().chain(unlisted) {
        let lost = lost(&settings.broker, &queue).map_err(AdminError::Connection);
        let what = format!("whether `{}` is lost", queue.name);
        if or_unchecked(lost, &what, unchecked).flatten().is_some() {
            found.insert(queue.name);
        }
    }
    found
}

fn or_unchecked<T, E: ToString>(result: Result<T, E>, what: &str, unchecked: &mut Vec<String>) -> Option<T> {
    result.map_err(|error| unchecked.push(format!("{what}: {}", error.to_string()))).ok()
}
