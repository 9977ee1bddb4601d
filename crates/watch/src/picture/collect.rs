//! Taking pictures: the only part that asks the broker.

mod api;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use jiff::Timestamp;

use crate::canary::Watched;
use delayline_admin::{FindingCode, Kept, RecallStats};
use delayline_amqp::{AmqpError, Line, Session};
use delayline_broker::{ManagementApi, ManagementError, OLD, Survey};
use delayline_client::retry::RetryStats;
use delayline_core::topology::Topology;
use delayline_schedules::ScheduleStats;
use delayline_settings::Settings;

use super::{CanaryView, Checkup, LayoutView, Level, Picture, Rates, SetView, Verdict, forecast};
use super::{
    compare::Comparison,
    flow::{Counts, Flow},
    handing_on::HandingOn,
    minute::LastMinute,
    nothing::nothing,
    peeking::Peeking,
    ready::Ready,
    services,
};

/// How long the management API may take for an answer that the picture waits for.
const API_PATIENCE: Duration = Duration::from_secs(3);

/// The same for a picture with a survey of its own.
const ALONE: Duration = Duration::from_secs(10);

/// An exchange that the broker itself declares in every vhost.
const EVERYWHERE: &str = "amq.topic";

/// The sources inside this process; each part is optional.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    /// The counters of the retry service.
    pub retries: Option<Arc<RetryStats>>,
    /// The results of the canary.
    pub canary: Option<Arc<Watched>>,
    /// The last check of the whole broker, put here by its thread.
    pub checkup: Arc<Mutex<Option<Checkup>>>,
    /// The last counts of the watched layouts, put here by their thread.
    pub layouts: Arc<Mutex<Vec<LayoutView>>>,
    /// The results of the sweeper.
    pub recalls: Option<Arc<RecallStats>>,
    /// The schedules.
    pub schedules: Option<Arc<ScheduleStats>>,
    /// The survey of the broker that all parts of a daemon share; without one, the picture makes its own.
    pub survey: Option<Arc<Survey>>,
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
    survey: Arc<Survey>,
    /// For further questions.
    api: Option<Result<ManagementApi, ManagementError>>,
    session: Option<Session>,
    started: Instant,
    flow: Flow,
    /// How many retries each application had.
    retried: LastMinute<BTreeMap<String, u64>>,
    /// How many messages were unroutable and parked.
    kept: LastMinute<(Option<u64>, Option<u64>)>,
    last: Picture,
    /// Why the management API gave no answer last time.
    api_problem: Option<String>,
    /// The parts that its last answer left out, and why.
    api_silence: Option<String>,
    comparison: Comparison,
    /// How many queues of the set are missing.
    missing: usize,
    /// Whether the set was ever there.
    installed: bool,
    /// The last answer of the management API: messages published to the entry exchange, and into
    /// all levels.
    entered: Option<u64>,
    published: Option<u64>,
    /// How many messages queues have, including unacknowledged messages, where there are any.
    in_hands: BTreeMap<String, u64>,
    handing_on: HandingOn,
    peeking: Arc<Peeking>,
}

impl Collector {
    /// A collector for the set of the settings; nothing is asked yet.
    #[must_use]
    pub fn new(settings: Settings, sources: Sources) -> Self {
        let topology = Topology::new(settings.topology.clone());
        Self {
            survey: sources.survey.clone().unwrap_or_else(|| Arc::new(Survey::new(&settings).within(ALONE))),
            api: client(&settings),
            session: None,
            started: Instant::now(),
            flow: Flow::default(),
            retried: LastMinute::default(),
            kept: LastMinute::default(),
            last: nothing(&settings, &topology),
            api_problem: None,
            api_silence: None,
            comparison: Comparison::default(),
            missing: 0,
            installed: false,
            entered: None,
            published: None,
            in_hands: BTreeMap::new(),
            handing_on: HandingOn::default(),
            peeking: Arc::default(),
            settings,
            topology,
            sources,
        }
    }

    /// Knows when kept messages are being examined.
    pub(super) fn peeking(&self) -> Arc<Peeking> {
        Arc::clone(&self.peeking)
    }

    /// The survey that it reads.
    pub(super) fn survey(&self) -> Arc<Survey> {
        Arc::clone(&self.survey)
    }

    /// Leaves comparing the set to another thread, which puts the findings here.
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
        self.look_with(|_| {})
    }

    /// The same; calls `answered` with each answer of the broker, and with `true` after its last one, since
    /// the rest may take time.
    pub(super) fn look_with(&mut self, mut answered: impl FnMut(bool)) -> &Picture {
        let now = self.started.elapsed();
        self.last.at = Timestamp::now();
        self.last.unchecked.clear();
        let counted = self.count(&mut || answered(false));
        self.note_broker(counted.as_ref().err().map(ToString::to_string));
        if let Ok(ready) = counted {
            answered(true);
            self.note_depths(ready);
            self.note_levels(now);
            self.note_kept(now);
            if let Some(found) =
                self.comparison.result(&self.last.broker, &self.settings, (&self.topology, &self.survey))
            {
                self.last.verified = found;
            }
        }
        self.note_sources(now);
        self.note_absence();
        self.last.verdict = Verdict::of(&self.last);
        &self.last
    }

    /// How many messages each queue of the set has ready, by its name.
    fn count(&mut self, answered: &mut dyn FnMut()) -> Result<BTreeMap<String, Ready>, AmqpError> {
        // A connection that was lost meanwhile does not describe the present.
        if let Some(session) = self.session.take()
            && let Ok(ready) = self.count_over(session, answered)
        {
            return Ok(ready);
        }
        self.last.unchecked.clear();
        self.count_over(Session::open_for(&self.settings.broker, "picture")?, answered)
    }

    fn count_over(
        &mut self,
        mut session: Session,
        answered: &mut dyn FnMut(),
    ) -> Result<BTreeMap<String, Ready>, AmqpError> {
        let mut ready = BTreeMap::new();
        let nothing_to_count = self.last.verified.awaited;
        if nothing_to_count {
            // An exchange that every vhost has: a broker logs each question about a missing exchange.
            session.exchange_exists(EVERYWHERE)?;
        }
        for queue in self.topology.queues().filter(|_| !nothing_to_count) {
            match session.queue_depth(&queue.name) {
                Ok(depth) => {
                    let counted = Ready::of(depth);
                    if counted == Ready::Unknown {
                        self.last.unchecked.push(format!("queue `{}`: it does not answer", queue.name));
                    }
                    ready.insert(queue.name.clone(), counted);
                }
                // A refusal concerns this queue; any other error, the connection.
                Err(error) if error.code().is_some() && !matches!(error, AmqpError::Closed { .. }) => {
                    self.last.unchecked.push(format!("queue `{}`: {error}", queue.name));
                }
                Err(error) => return Err(error),
            }
            answered();
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
            self.note_change();
        }
        (self.last.broker.reachable, self.last.broker.problem) = (reachable, problem);
    }

    /// Makes sure that everything is looked at again. Before the first look, nothing was.
    fn note_change(&mut self) {
        if self.last.broker.changed.replace(self.last.at).is_some() {
            self.survey.renew();
        }
    }

    /// Enters the counts, and asks the management API for the rest.
    fn note_depths(&mut self, ready: BTreeMap<String, Ready>) {
        // A queue that does not answer may come and go with every look.
        let missing = ready.values().filter(|ready| **ready == Ready::Missing).count();
        if missing != self.missing {
            self.missing = missing;
            self.note_change();
        }
        let names = self.topology.names();
        let of = |name: &str| ready.get(name)?.known();
        self.last.counted = Some(self.last.at);
        // Messages that are being examined are held for a moment, but still exist.
        let kept = |which: &Kept, name: &str, last: Option<u64>| match self.peeking.is_at(which) {
            true => last.or(of(name)),
            false => of(name).max(of(name).and(self.in_hands.get(name).copied())),
        };
        self.last.unroutable = kept(&Kept::Unroutable, &names.unroutable(), self.last.unroutable);
        self.last.parked = kept(&Kept::Parked, &names.parked(), self.last.parked);
        self.last.retry = of(&names.retry());
        match self.survey.first_reading(API_PATIENCE) {
            None => self.api_problem = Some("the management API has not answered yet".into()),
            Some(reading) if self.last.read == Some(reading.at) => {}
            Some(reading) => {
                self.last.read = reading.counts.is_ok().then_some(reading.at).or(self.last.read);
                self.api_problem = self.take_reading(&reading).err();
                if self.api_problem.is_some() {
                    // Its certificate may have been renewed.
                    self.api = client(&self.settings);
                }
            }
        }
        let age = self.last.read.and_then(|at| Duration::try_from(self.last.at.duration_since(at)).ok());
        if let Some(age) = age.filter(|age| *age > OLD && self.api_problem.is_none()) {
            let seconds = age.as_secs();
            self.last
                .unchecked
                .push(format!("the last {seconds} s: the counts of the management API are that old"));
        }
        // Reported in every picture until it works again.
        if let Some(reason) = &self.api_problem {
            self.last.unchecked.push(format!("stuck and published messages: {reason}"));
            self.forget_api();
        }
        self.last.unchecked.extend(self.api_silence.clone());
        self.note_ready(ready);
    }

    /// Enters how many messages wait in each level, and in all. Shortcuts are part of the level of their
    /// highest bit.
    fn note_ready(&mut self, mut ready: BTreeMap<String, Ready>) {
        // The API has just reported that these exist.
        let unseen = self.topology.queues().filter(|queue| !ready.contains_key(&queue.name));
        for queue in unseen.map(|queue| queue.name.clone()).collect::<Vec<_>>() {
            let depth = self.session.as_mut().and_then(|session| session.queue_depth(&queue).ok());
            ready.insert(queue, depth.map_or(Ready::Unknown, Ready::of));
        }
        for level in &mut self.last.levels {
            let shortcuts = self
                .topology
                .queues()
                .filter(|queue| queue.level.is_some_and(|it| it == level.level) && queue.name != level.queue);
            let of = |name: &str| ready.get(name).copied().unwrap_or(Ready::Missing);
            let in_shortcuts: Option<u64> = shortcuts.map(|queue| of(&queue.name).or_none()).sum();
            level.ready = of(&level.queue).known().zip(in_shortcuts).map(|(own, others)| own + others);
        }
        let levels = self.topology.queues().filter(|queue| queue.level.is_some());
        let levels: Vec<_> = levels.filter_map(|queue| ready.get(&queue.name)).collect();
        let any = levels.iter().any(|ready| **ready != Ready::Missing);
        self.last.waiting = levels.iter().map(|ready| ready.or_none()).sum::<Option<u64>>().filter(|_| any);
    }

    /// Computes the values that follow from the depths.
    fn note_levels(&mut self, now: Duration) {
        let levels = &self.last.levels;
        // Messages being passed on are still there. The counts of publishes are older than those
        // of depths, so the rate may be too low for a moment, but never too high.
        let messages = |level: &Level| Some(level.ready? + level.handing_on?);
        let messages = levels.iter().map(messages).sum();
        self.flow.note(now, Counts { entered: self.entered, published: self.published, messages });
        self.last.handing_on = levels.iter().map(|level| level.handing_on).sum();
        self.last.open = levels.iter().map(|level| level.open).sum();
        self.last.stuck = levels.iter().map(|level| level.stuck).sum();
        self.last.rates =
            Rates { entry_per_s: self.flow.entering_per_s(), dispatch_per_s: self.flow.leaving_per_s() };
        self.last.forecast = forecast(levels);
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

    /// Reports no problem with a set that never existed, if the daemon watches layouts. A set that
    /// was deleted is missed.
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
        self.last.schedules = self.sources.schedules.as_deref().map(|it| services::schedules(it.counts()));
        let Some(retries) = self.sources.retries.as_deref() else { return };
        let counts = retries.by_app();
        self.last.retries = Some(services::retries(&counts, self.retried.before(now)));
        self.retried.note(now, || counts.into_iter().map(|(app, count)| (app, count.retries)).collect());
    }
}

fn client(settings: &Settings) -> Option<Result<ManagementApi, ManagementError>> {
    settings.management.as_ref().map(|api| ManagementApi::within(api, API_PATIENCE))
}

#[cfg(test)]
mod tests;
