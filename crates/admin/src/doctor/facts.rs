//! The facts that the checks work on.

use std::{
    collections::{BTreeMap, BTreeSet},
    thread,
    time::Duration,
};

use crate::{
    AdminError, AppRecalls, Kept, KeptReport,
    about::about,
    compare::{About, Observed},
    connect,
    handover::{Look, remembered},
    journal::{JournalBeginning, journal_beginning, lost::lost},
    leader::{IfNew, mark_leaderless},
    management::{DeprecatedFeature, ManagementApi, ManagementError, NodeInfo, PolicyKind, QueueInfo},
    observe,
    permitted::Grants,
    recalls::count_recalls,
    unstick::left_behind,
};
use delayline_core::{
    codec::AppKey,
    message::MaxRecalls,
    topology::{Object, Topology},
};
use delayline_settings::Settings;

use crate::doctor::{
    DoctorOptions,
    copies::{self, Copies},
    requeues,
    walk::{End, targets},
};

/// The period over which the unroutable queue is looked back at, in seconds; brokers keep
/// such figures for this long by default.
const HISTORY: u32 = 600;

/// How long a policy of ours may exist while somebody unsticks a queue.
const MOMENT: Duration = Duration::from_secs(3);

/// What was learned from the broker. What it would not say is `None`.
#[derive(Debug, Default)]
pub(super) struct Facts {
    pub(super) observed: Observed,
    pub(super) about: About,
    pub(super) nodes: Option<Vec<NodeInfo>>,
    pub(super) deprecated: Option<Vec<DeprecatedFeature>>,
    /// For each queue that has dead letters now, how many were on their way over the last
    /// minute, the oldest first.
    pub(super) dead_letters: BTreeMap<String, Vec<Look>>,
    /// How many messages were unroutable over time, the oldest first.
    pub(super) unroutable_history: Vec<u64>,
    /// The kept messages, as far as they were examined.
    pub(super) kept: BTreeMap<Kept, KeptReport>,
    /// The kinds of policies of ours that exist for longer than they should.
    pub(super) left_behind: Vec<PolicyKind>,
    pub(super) grants: Option<Grants>,
    /// How many recalls applications have, as far as they were counted.
    pub(super) recalls: BTreeMap<String, AppRecalls>,
    /// How many recalls applications may have pending.
    pub(super) max_recalls: MaxRecalls,
    /// What stands at the beginning of each journal, by its stream, as far as it was examined.
    pub(super) journals: BTreeMap<String, JournalBeginning>,
    /// The journals that are lost.
    pub(super) lost_journals: BTreeSet<String>,
    /// What was copied in the levels.
    pub(super) copies: Option<Copies>,
}

impl Facts {
    /// Whether any part of the set exists.
    pub(super) fn installed(&self, topology: &Topology) -> bool {
        let is_there = |object| !matches!(object, &Object::Binding(_)) && self.observed.has(object);
        topology.objects().iter().any(is_there)
    }
}

/// Asks the broker. What it would not say comes back as a list of reasons.
pub(super) fn gather(
    settings: &Settings,
    topology: &Topology,
    options: &DoctorOptions,
) -> Result<(Facts, Vec<String>), AdminError> {
    let mut session = connect(&settings.broker)?;
    let vhost = &settings.broker.vhost;
    let api = crate::api(settings, "lists queues")?;
    let management = settings.management.as_ref();
    // Before the objects: when an application is added, its permissions come last.
    let grants = Grants::ask(&api, vhost);
    let mut observed = observe(management, vhost)?.map_err(|reason| AdminError::NoManagement { reason })?;
    let (about, mut unchecked) = about(&session, management);
    observed.nodes = about.nodes;
    // The API's count is some seconds old; it is used where we lack the right to read the
    // queue.
    let mut waits = |name: &str| matches!(session.queue_depth(name), Ok(Some(depth)) if depth.ready > 0);
    let waiting = Kept::ALL.map(|kept| (waits(&kept.queue(topology).name), kept));
    drop(session);
    let queues = queues_on_the_way(topology, &observed);
    let leaders = mark_leaderless(&api, vhost, &mut observed, &queues, IfNew::Wait)?;
    unchecked.extend(leaders.unchecked());
    unchecked.extend(observed.unsettled.iter().cloned());

    let mut known = Facts { observed, about, max_recalls: settings.max_recalls.clone(), ..Facts::default() };
    known.nodes = or_unchecked(api.nodes(), "alarms of the nodes", &mut unchecked);
    // Old brokers have no such list, and nothing to put into it.
    known.deprecated =
        or_unchecked(api.deprecated_features_used(), "deprecated features in use", &mut unchecked)
            .map(Option::unwrap_or_default);
    known.grants = or_unchecked(grants, "who may publish, bind and purge", &mut unchecked);
    if known.installed(topology) {
        let history = api.queue_history(vhost, &topology.names().unroutable(), HISTORY);
        known.unroutable_history =
            or_unchecked(history, "whether the number of unroutable messages grows", &mut unchecked)
                .flatten()
                .map(|queue| queue.history())
                .unwrap_or_default();
        for (waits, kept) in waiting {
            let name = &kept.queue(topology).name.clone();
            let counted = |queue: &QueueInfo| queue.name == *name && queue.messages > 0;
            if options.sample == 0 || !(waits || known.observed.queues.iter().any(counted)) {
                continue;
            }
            let report = kept.list(settings, topology, options.sample, |_| {});
            let what = format!("which applications the {} messages are for", kept.as_str());
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
        known.journals = journals(settings, topology, &known.observed, options, &mut unchecked);
        known.lost_journals = lost_journals(settings, topology, &known.observed, options, &mut unchecked);
        let rates = api.redeliveries(vhost, requeues::PERIOD);
        let rates = or_unchecked(rates, "how fast messages are redelivered", &mut unchecked);
        for QueueInfo { name, message_stats, .. } in rates.into_iter().flatten() {
            for queue in known.observed.queues.iter_mut().filter(|queue| queue.name == name) {
                queue.message_stats.redeliver_details = message_stats.redeliver_details.clone();
                queue.message_stats.ack_details = message_stats.ack_details.clone();
            }
        }
        known.dead_letters = dead_letters(&api, vhost, topology, &known.observed)?;
        known.left_behind = lasting(|| left_behind(&api, vhost, &known.observed.queues));
        let copies = copies::count(&api, vhost, topology, &known.observed);
        known.copies = or_unchecked(copies, "whether messages are multiplied", &mut unchecked).flatten();
    }
    Ok((known, unchecked))
}

/// The policies that are still there a moment later.
fn lasting(look: impl Fn() -> Vec<PolicyKind>) -> Vec<PolicyKind> {
    let mut seen = look();
    if !seen.is_empty() {
        thread::sleep(MOMENT);
        let again = look();
        seen.retain(|kind| again.contains(kind));
    }
    seen
}

/// The queues that messages move through: the set's, landing queues, and the queues of
/// applications and of canaries.
fn queues_on_the_way(topology: &Topology, observed: &Observed) -> BTreeSet<String> {
    let mut names: BTreeSet<_> = topology.queues().map(|queue| queue.name.clone()).collect();
    let canaries = observed.queues.iter().filter(|queue| topology.names().is_canary(&queue.name));
    names.extend(canaries.map(|queue| queue.name.clone()));
    for target in targets(topology, observed) {
        names.extend(target.landing.map(|landing| landing.name.clone()));
        if let End::Queue(queue) = target.end {
            names.insert(queue.name.clone());
        }
    }
    names
}

/// The beginnings of the journals that have any message. Reading takes nothing out of them.
fn journals(
    settings: &Settings,
    topology: &Topology,
    observed: &Observed,
    options: &DoctorOptions,
    unchecked: &mut Vec<String>,
) -> BTreeMap<String, JournalBeginning> {
    let mut known = BTreeMap::new();
    if options.sample == 0 {
        return known;
    }
    for queue in observed.queues.iter().filter(|queue| queue.messages > 0) {
        let app = topology.names().app_of_journal(&queue.name).and_then(|app| AppKey::new(app).ok());
        let Some(app) = app else { continue };
        let beginning = journal_beginning(settings, topology, &app, options.sample);
        let what = format!("whether `{}` keeps its messages for as long as they wait", queue.name);
        if let Some(beginning) = or_unchecked(beginning, &what, unchecked) {
            known.insert(queue.name.clone(), beginning);
        }
    }
    known
}

/// The journals that are lost, of those without messages. RabbitMQ 4.0 does not list a lost one, so
/// it is looked for with each application whose messages can be recalled.
fn lost_journals(
    settings: &Settings,
    topology: &Topology,
    observed: &Observed,
    options: &DoctorOptions,
    unchecked: &mut Vec<String>,
) -> BTreeSet<String> {
    if options.sample == 0 {
        return BTreeSet::new();
    }
    let (names, queues) = (topology.names(), &observed.queues);
    let is_journal = |queue: &&QueueInfo| names.app_of_journal(&queue.name).is_some();
    let is_listed = |name: &String| queues.iter().any(|queue| queue.name == *name);
    let of_app = |queue: &QueueInfo| AppKey::new(names.app_of_recalled(&queue.name)?).ok();
    let unlisted = queues.iter().filter_map(of_app).map(|app| names.journal(&app));
    let unlisted = unlisted.filter(|name| !is_listed(name));
    let unlisted = unlisted.map(|name| QueueInfo { name, ..QueueInfo::default() });
    let mut found = BTreeSet::new();
    for queue in queues.iter().filter(is_journal).cloned().chain(unlisted) {
        let lost = lost(&settings.broker, &queue).map_err(AdminError::Connection);
        let what = format!("whether `{}` is lost", queue.name);
        if or_unchecked(lost, &what, unchecked).flatten().is_some() {
            found.insert(queue.name);
        }
    }
    found
}

/// The dead letters that are on their way from the set's own queues and from landing
/// queues.
fn dead_letters(
    api: &ManagementApi,
    vhost: &str,
    topology: &Topology,
    observed: &Observed,
) -> Result<BTreeMap<String, Vec<Look>>, ManagementError> {
    let ours = |name: &str| {
        topology.names().app_of_landing(name).is_some() || topology.queues().any(|queue| queue.name == name)
    };
    let mut counts = BTreeMap::new();
    for queue in observed.queues.iter().filter(|queue| queue.messages_dlx > 0 && ours(&queue.name)) {
        counts.insert(queue.name.clone(), remembered(api, vhost, queue)?);
    }
    Ok(counts)
}

fn or_unchecked<T, E: ToString>(result: Result<T, E>, what: &str, unchecked: &mut Vec<String>) -> Option<T> {
    result.map_err(|error| unchecked.push(format!("{what}: {}", error.to_string()))).ok()
}
