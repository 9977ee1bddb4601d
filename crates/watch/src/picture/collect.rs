//! Taking pictures: the only part that asks the broker.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use jiff::Timestamp;

use crate::canary::Watched;
use delayline_admin::{
    AppBinding, FindingCode, Kept, RecallStats,
    handover::{Look, remembered},
    management::{ExchangeInfo, ManagementApi, ManagementError, QueueInfo},
};
use delayline_amqp::{AmqpError, Line, Session};
use delayline_client::retry::RetryStats;
use delayline_core::{codec::LEVELS, topology::Topology};
use delayline_settings::{NO_MANAGEMENT, Settings};

use super::{
    AppRetries, CanaryView, Checkup, Depths, History, LayoutView, Picture, Rates, SetView, Verdict, forecast,
};
use super::{
    compare::Comparison, handing_on::HandingOn, minute::LastMinute, nothing::nothing, peeking::Peeking,
    services,
};

/// How often the management API is asked; its numbers are renewed every 5 s.
const API_EVERY: Duration = Duration::from_secs(2);

/// How soon it is asked again after a failure.
const API_AGAIN: Duration = Duration::from_secs(10);

/// How long it may take for an answer: the picture waits for it.
const API_PATIENCE: Duration = Duration::from_secs(3);

/// An exchange that the broker itself declares in every vhost.
const EVERYWHERE: &str = "amq.topic";

/// The levels as an array has them.
const COUNT: usize = LEVELS as usize;

/// What is known inside this process; each part is optional.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    /// The counters of the retry service.
    pub retries: Option<Arc<RetryStats>>,
    /// What the canary saw.
    pub canary: Option<Arc<Watched>>,
    /// The last check of the whole broker, put here by whoever does it.
    pub checkup: Arc<Mutex<Option<Checkup>>>,
    /// What was seen of the delays of others, put here by whoever looks.
    pub layouts: Arc<Mutex<Vec<LayoutView>>>,
    /// What the sweeper has seen and done.
    pub recalls: Option<Arc<RecallStats>>,
    /// Whether to ask who is bound to the dispatch exchange: one more request.
    pub apps: bool,
    /// Whether to find out how long the oldest kept messages have been there. That takes the
    /// first message of a queue out for a moment, every five minutes and whenever there may
    /// be a new one.
    pub ages: bool,
}

/// Takes pictures of one set, one after the other, over one connection.
#[derive(Debug)]
pub struct Collector {
    settings: Settings,
    topology: Topology,
    sources: Sources,
    api: Option<Result<ManagementApi, ManagementError>>,
    session: Option<Session>,
    started: Instant,
    history: History,
    /// How many retries each application had.
    retried: LastMinute<BTreeMap<String, u64>>,
    /// How many messages were unroutable and parked.
    kept: LastMinute<(Option<u64>, Option<u64>)>,
    last: Picture,
    asked_api: Option<Duration>,
    /// Why the management API gave no answer last time.
    api_problem: Option<String>,
    comparison: Comparison,
    /// Whether the set was ever there.
    installed: bool,
    /// The last answer of the management API, by level from 0.
    published: [Option<u64>; COUNT],
    entered: Option<u64>,
    /// How many messages queues have including those that are held, where somebody holds any.
    in_hands: BTreeMap<String, u64>,
    handing_on: HandingOn,
    peeking: Arc<Peeking>,
}

impl Collector {
    /// A collector for the set of the settings; nothing is asked yet.
    #[must_use]
    pub fn new(settings: Settings, sources: Sources) -> Self {
        let topology = Topology::new(settings.topology.clone());
        let unit = topology.settings().unit;
        Self {
            api: settings.management.as_ref().map(|api| ManagementApi::within(api, API_PATIENCE)),
            session: None,
            started: Instant::now(),
            history: History::new(|level| unit.wait(level)),
            retried: LastMinute::default(),
            kept: LastMinute::default(),
            last: nothing(&settings, &topology),
            asked_api: None,
            api_problem: None,
            comparison: Comparison::default(),
            installed: false,
            published: [None; COUNT],
            entered: None,
            in_hands: BTreeMap::new(),
            handing_on: HandingOn::default(),
            peeking: Arc::default(),
            settings,
            topology,
            sources,
        }
    }

    /// Tells when kept messages are being looked at.
    pub(super) fn peeking(&self) -> Arc<Peeking> {
        Arc::clone(&self.peeking)
    }

    /// Leaves comparing the set to somebody else, who puts the findings here.
    pub(super) fn compared_elsewhere(&mut self) -> Arc<Mutex<Option<SetView>>> {
        let found = Arc::default();
        self.comparison = Comparison::Elsewhere(Arc::clone(&found));
        found
    }

    /// The connection of the last picture, if it still exists.
    pub(super) fn line(&self) -> Option<Line> {
        self.session.as_ref().map(Session::line)
    }

    /// Whether to find out how long the oldest kept messages have been there.
    pub(super) fn wants_ages(&self) -> bool {
        self.sources.ages
    }

    /// The settings it was made with.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The last picture; an empty one before the first look.
    #[must_use]
    pub fn last(&self) -> &Picture {
        &self.last
    }

    /// Takes a picture. A broker that cannot be reached is part of the picture: the depths
    /// are then those of the last time.
    pub fn look(&mut self) -> &Picture {
        self.look_with(|| {})
    }

    /// The same; calls `answered` as soon as the broker has answered, since the rest may take
    /// time.
    pub(super) fn look_with(&mut self, answered: impl FnOnce()) -> &Picture {
        let now = self.started.elapsed();
        self.last.at = Timestamp::now();
        self.last.unchecked.clear();
        let counted = self.count();
        self.note_broker(counted.as_ref().err().map(ToString::to_string));
        if let Ok(ready) = counted {
            answered();
            let depths = self.depths(now, &ready);
            self.history.push(depths);
            self.note_levels();
            self.note_kept(now);
            if let Some(found) = self.comparison.result(&self.last.broker, &self.settings, &self.topology) {
                self.last.verified = found;
            }
        }
        self.note_sources(now);
        self.note_absence();
        self.last.verdict = Verdict::of(&self.last);
        &self.last
    }

    /// How many messages each queue of the set has ready, by its name.
    fn count(&mut self) -> Result<BTreeMap<String, Option<u64>>, AmqpError> {
        // A connection that was lost meanwhile says nothing about now.
        if let Some(session) = self.session.take()
            && let Ok(ready) = self.count_over(session)
        {
            return Ok(ready);
        }
        self.last.unchecked.clear();
        self.count_over(Session::open_for(&self.settings.broker, "picture")?)
    }

    fn count_over(&mut self, mut session: Session) -> Result<BTreeMap<String, Option<u64>>, AmqpError> {
        let mut ready = BTreeMap::new();
        let nothing_to_count = self.last.verified.awaited;
        if nothing_to_count {
            // An exchange that every vhost has: a broker logs each question about one that is not there.
            session.exchange_exists(EVERYWHERE)?;
        }
        for queue in self.topology.queues().filter(|_| !nothing_to_count) {
            match session.queue_depth(&queue.name) {
                Ok(depth) => {
                    ready.insert(queue.name.clone(), depth.map(|depth| depth.ready.into()));
                }
                // A refusal concerns this queue; any other error, the connection.
                Err(error) if error.code().is_some() && !matches!(error, AmqpError::Closed { .. }) => {
                    self.last.unchecked.push(format!("queue `{}`: {error}", queue.name));
                }
                Err(error) => return Err(error),
            }
        }
        self.last.broker.version = session.server_version();
        self.session = Some(session);
        Ok(ready)
    }

    fn note_broker(&mut self, problem: Option<String>) {
        let broker = &mut self.last.broker;
        let reachable = problem.is_none();
        if broker.since.is_none() || broker.reachable != reachable {
            broker.since = Some(self.last.at);
            // Anything may have happened meanwhile: everything is looked at again.
            self.asked_api = None;
        }
        (broker.reachable, broker.problem) = (reachable, problem);
    }

    /// Enters the counts, and asks the management API for the rest.
    fn depths(&mut self, now: Duration, ready: &BTreeMap<String, Option<u64>>) -> Depths {
        let names = self.topology.names();
        let of = |name: &str| ready.get(name).copied().flatten();
        self.last.counted = Some(self.last.at);
        // Messages that somebody is looking at are held for a moment, but still there.
        let kept = |which: &Kept, name: &str, last: Option<u64>| match self.peeking.is_at(which) {
            true => last.or(of(name)),
            false => of(name).max(of(name).and(self.in_hands.get(name).copied())),
        };
        self.last.unroutable = kept(&Kept::Unroutable, &names.unroutable(), self.last.unroutable);
        self.last.parked = kept(&Kept::Parked, &names.parked(), self.last.parked);
        self.last.retry = of(&names.retry());
        let mut depths = Depths::unknown(now);
        for level in &mut self.last.levels {
            level.ready = of(&level.queue);
            depths.ready[usize::from(level.level)] = level.ready;
        }
        let every = if self.api_problem.is_none() { API_EVERY } else { API_AGAIN };
        if self.asked_api.is_none_or(|at| now.saturating_sub(at) >= every) {
            self.api_problem = self.ask_api().err();
            // The request may have taken long.
            self.asked_api = Some(self.started.elapsed());
        }
        // Reported in every picture until it works again.
        if let Some(reason) = &self.api_problem {
            self.last.unchecked.push(format!("stuck messages and what is published: {reason}"));
            self.forget_api();
        }
        (depths.published, depths.entered) = (self.published, self.entered);
        // Messages being passed on are still there. The counts of publishes are older than
        // those of depths, so what passes may be underestimated for a moment, but never
        // overestimated.
        for level in &self.last.levels {
            let messages = level.ready.map(|ready| ready + level.handing_on.unwrap_or(0));
            depths.messages[usize::from(level.level)] = messages;
        }
        depths
    }

    fn ask_api(&mut self) -> Result<(), String> {
        let api = match &self.api {
            None => return Err(NO_MANAGEMENT.into()),
            Some(Err(error)) => return Err(error.to_string()),
            Some(Ok(api)) => api,
        };
        let vhost = &self.settings.broker.vhost;
        let queues = api.queue_counts(vhost).map_err(|error| error.to_string())?;
        let totals = api.queue_totals(vhost).map_err(|error| error.to_string())?;
        let entry = api.exchange(vhost, &self.topology.names().entry()).map_err(|error| error.to_string())?;
        if self.sources.apps {
            let bindings = api.bindings_from(vhost, &self.topology.names().dispatch());
            let bindings = bindings.map_err(|error| error.to_string())?;
            self.last.apps = Some(AppBinding::all(&self.topology, bindings));
        }
        let names = self.topology.names();
        let recalls = self.sources.recalls.as_deref().map(RecallStats::counts);
        self.last.recalls = Some(services::recalls(names, &self.settings, recalls.as_ref(), &queues));
        self.last.gateways = Some(services::gateways(names, &queues));
        self.entered = entry.map(|entry: ExchangeInfo| entry.message_stats.publish_in);
        let held = queues.iter().filter(|queue| queue.messages_unacknowledged > 0);
        self.in_hands = held.map(|queue| (queue.name.clone(), queue.messages)).collect();
        let queues: BTreeMap<&str, &QueueInfo> =
            queues.iter().map(|queue| (queue.name.as_str(), queue)).collect();
        let totals: BTreeMap<&str, &QueueInfo> =
            totals.iter().map(|queue| (queue.name.as_str(), queue)).collect();
        let (now, at) = (self.started.elapsed(), self.last.at);
        for level in &mut self.last.levels {
            let queue = queues.get(level.queue.as_str());
            self.published[usize::from(level.level)] = queue.map(|queue| queue.message_stats.publish);
            let Some(queue) = queue else {
                (level.handing_on, level.stuck, level.stuck_since) = (None, None, None);
                continue;
            };
            let sooner = totals.get(level.queue.as_str()).copied().map_or(0, gone);
            let due = queue.messages_dlx.max(sooner);
            // The broker knows what happened before the first look.
            if due > 0 && self.handing_on.is_new(level.level) {
                let looks = remembered(api, vhost, queue).map_err(|error| error.to_string())?;
                self.handing_on.begin_with(level.level, now, &looks);
            }
            let (messages, reductions) = (queue.messages.max(due), queue.reductions);
            self.handing_on.note(level.level, now, Look { due, messages, reductions });
            let stuck = self.handing_on.stuck(level.level);
            level.handing_on = Some(due);
            level.stuck = Some(stuck.map_or(0, |(count, _)| count.min(due)));
            let ago = |since: Duration| at.checked_sub(now.saturating_sub(since)).unwrap_or(at);
            level.stuck_since =
                stuck.map(|(_, since)| level.stuck_since.map_or(ago(since), |known| known.min(ago(since))));
        }
        Ok(())
    }

    fn forget_api(&mut self) {
        self.last.apps = None;
        self.last.recalls = None;
        self.last.gateways = None;
        self.entered = None;
        self.in_hands.clear();
        self.published = [None; COUNT];
        self.handing_on.forget();
        for level in &mut self.last.levels {
            (level.handing_on, level.stuck, level.stuck_since) = (None, None, None);
        }
    }

    /// Computes what follows from the depths.
    fn note_levels(&mut self) {
        let history = &self.history;
        for level in &mut self.last.levels {
            level.in_per_s = history.in_per_s(level.level);
            level.out_per_s = history.out_per_s(level.level);
            level.published_per_s = history.published_per_s(level.level);
            level.passing_per_s = history.passing_per_s(level.level);
            level.change_per_s = history.change_per_s(level.level);
        }
        let levels = &self.last.levels;
        self.last.waiting = levels.iter().filter_map(|level| level.ready).reduce(|all, more| all + more);
        self.last.handing_on = levels.iter().map(|level| level.handing_on).sum();
        self.last.stuck = levels.iter().map(|level| level.stuck).sum();
        self.last.rates =
            Rates { entry_per_s: history.entering_per_s(), dispatch_per_s: history.passing_per_s(0) };
        self.last.forecast = forecast(levels, |level, seconds| history.lowest(level, seconds));
    }

    /// By how much the unroutable or parked messages grew in the last minute.
    fn note_kept(&mut self, now: Duration) {
        let grown =
            |now: Option<u64>, then: Option<u64>| i64::try_from(now?).ok()?.checked_sub_unsigned(then?);
        let then = self.kept.before(now).copied();
        let (unroutable, parked) = (self.last.unroutable, self.last.parked);
        self.last.unroutable_last_minute = then.and_then(|then| grown(unroutable, then.0));
        self.last.parked_last_minute = then.and_then(|then| grown(parked, then.1));
        self.kept.note(now, || (unroutable, parked));
    }

    /// Says nothing against a set that was never there, if the daemon is there for the delays of
    /// others. One that is gone is missed.
    fn note_absence(&mut self) {
        let Picture { verified, layouts, checkup, .. } = &mut self.last;
        self.installed |= verified.installed == Some(true);
        let optional = !self.installed && !layouts.is_empty();
        verified.awaited = optional && verified.installed == Some(false);
        if verified.awaited {
            verified.problems.clear();
        }
        if let Some(checkup) = checkup.as_mut().filter(|_| optional) {
            checkup.findings.retain(|finding| finding.code != FindingCode::SetDiffers);
        }
    }

    fn note_sources(&mut self, now: Duration) {
        self.last.canary = self.sources.canary.as_deref().and_then(CanaryView::of);
        let checkup = self.sources.checkup.lock().unwrap_or_else(PoisonError::into_inner);
        self.last.checkup.clone_from(&checkup);
        drop(checkup);
        let layouts = self.sources.layouts.lock().unwrap_or_else(PoisonError::into_inner);
        self.last.layouts.clone_from(&layouts);
        drop(layouts);
        let Some(retries) = self.sources.retries.as_deref() else { return };
        let counts = retries.by_app();
        let before = self.retried.before(now);
        let mut apps: Vec<_> = counts
            .iter()
            .map(|(app, count)| {
                let then = before.and_then(|then| then.get(app)).copied().unwrap_or(0);
                AppRetries {
                    app: app.clone(),
                    retries: count.retries,
                    last_minute: count.retries.saturating_sub(then),
                    parked: count.parked.values().sum(),
                }
            })
            .collect();
        apps.sort_by_key(|app| std::cmp::Reverse((app.last_minute, app.retries, app.parked)));
        self.last.retries = Some(apps);
        self.retried.note(now, || counts.into_iter().map(|(app, count)| (app, count.retries)).collect());
    }
}

/// Messages that are neither ready nor held, as reported by the queue's own node: they have
/// left it and are not confirmed. With several replicas, a node may report figures from when
/// it had the leader.
fn gone(queue: &QueueInfo) -> u64 {
    match queue.members.len() {
        1 => queue.messages.saturating_sub(queue.messages_ready + queue.messages_unacknowledged),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::picture::sample;
    use delayline_admin::Finding;

    #[test]
    fn a_set_that_was_never_there_is_missed_only_if_nothing_else_is_watched() {
        let settings = Settings::from_url("amqp://localhost").unwrap();
        let mut collector = Collector::new(settings, Sources::default());
        let differs = Finding::new(FindingCode::SetDiffers, "set `delay`", "", "");
        let alarm = Finding::new(FindingCode::BrokerAlarm, "node `a`", "", "");
        // What is said of the set: whether it is awaited, its problems, and the findings.
        let mut said = |installed: Option<bool>, layouts: Vec<LayoutView>| {
            let problems = vec!["the set is missing".to_owned()];
            let ok = installed.map(|_| false);
            collector.last.verified = SetView { ok, installed, problems, ..SetView::default() };
            let findings = vec![differs.clone(), alarm.clone()];
            collector.last.checkup = Some(Checkup { findings, ..Checkup::default() });
            collector.last.layouts = layouts;
            collector.note_absence();
            let Picture { verified, checkup, .. } = &collector.last;
            (verified.awaited, verified.problems.len(), checkup.as_ref().unwrap().findings.len())
        };
        assert_eq!(said(Some(false), vec![]), (false, 1, 2));
        assert_eq!(said(None, vec![sample::layout()]), (false, 1, 1), "not compared yet");
        assert_eq!(said(Some(false), vec![sample::layout()]), (true, 0, 1));
        assert_eq!(said(Some(true), vec![sample::layout()]), (false, 1, 2), "half of it is there");
        assert_eq!(said(Some(false), vec![sample::layout()]), (false, 1, 2), "somebody removed it");
    }

    #[test]
    fn without_the_management_api_nothing_is_known_to_be_stuck() {
        let settings = Settings::from_url("amqp://localhost").unwrap();
        let mut collector = Collector::new(settings, Sources::default());
        let level = &mut collector.last.levels[0];
        (level.stuck, level.stuck_since) = (Some(20), Some(Timestamp::UNIX_EPOCH));
        collector.forget_api();
        let level = &collector.last.levels[0];
        assert_eq!((level.stuck, level.stuck_since), (None, None));
    }
}
