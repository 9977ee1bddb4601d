//! A canary that runs until it is stopped.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use log::{debug, info, warn};

use delayline_broker::ManagementApi;
use delayline_client::router::{Outcome, Pipeline, Stats};
use delayline_core::{backoff::wait, codec::Shortcut, topology::Names};
use delayline_settings::Settings;

use super::{
    CanaryConnection, CanaryError, CanaryState, Interval, Probe, ProbePlan, Watched, connection::Sent,
    plan::Turns, watched::Inner,
};

/// How often it checks whether to stop.
const TICK: Duration = Duration::from_millis(500);

/// After this pause without looking, the process was not running, and arrival times are unknown.
const ASLEEP: Duration = Duration::from_secs(3);

/// The pause before another attempt to connect, and the pause if an operator has to fix something
/// first.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));

/// How often the queue is asked whether it takes messages, while some are lost.
const ASK_EVERY: Duration = Duration::from_secs(30);

/// How long stopping waits for the last confirms.
const FINISH: Duration = Duration::from_secs(1);

/// Sends probes and watches them arrive.
#[derive(Debug)]
pub struct Canary {
    settings: Settings,
    plan: ProbePlan,
    /// How often each probe is sent.
    times: u64,
    turns: Turns,
    /// Whether a probe is sent only after its own delay: an earlier canary may have sent some.
    warms_up: bool,
    interval: Interval,
    stats: Arc<Stats>,
    watched: Arc<Watched>,
}

impl Canary {
    /// Why it does not run at first.
    pub const UNTRIED: &'static str = "not tried yet";

    /// A canary on the set of the settings, whose router counts in `stats` and which records
    /// what it sees in `watched`.
    #[must_use]
    pub fn new(settings: Settings, stats: Arc<Stats>, watched: Arc<Watched>) -> Self {
        watched.with(|inner| inner.state = CanaryState::Paused(Self::UNTRIED.into()));
        let plan = ProbePlan::up_to(settings.canary.horizon);
        let interval = Interval::new(settings.canary.interval);
        let (times, turns) = (u64::MAX, Turns::of(&plan, u64::MAX));
        Self { settings, plan, times, turns, warms_up: true, interval, stats, watched }
    }

    /// Sends each probe this many times and then stops, beginning with all of them at once.
    #[must_use]
    pub fn with_rounds(mut self, rounds: u32) -> Self {
        self.times = rounds.into();
        self.turns = Turns::of(&self.plan, self.times);
        self.warms_up = false;
        self
    }

    /// The messages that it sends.
    #[must_use]
    pub fn plan(&self) -> &ProbePlan {
        &self.plan
    }

    /// Runs until `stop` is set, through restarts of the broker.
    pub fn run(mut self, stop: &AtomicBool) {
        let run = format!("{:016x}", fastrand::u64(..));
        let mut next_id = 0;
        let mut last_reason = String::new();
        while !stop.load(Ordering::Relaxed) {
            let Err(error) = self.run_once(&run, &mut next_id, stop) else { break };
            let reason = error.to_string();
            self.watched.with(|inner| {
                inner.ledger.disconnected(inner.started.elapsed());
                inner.state = CanaryState::Paused(reason.clone());
            });
            // The same line every few seconds would fill a log while a broker is down.
            if reason != last_reason {
                warn!("canary: {reason}; trying again");
                last_reason = reason;
            }
            let pause = if matches!(error, CanaryError::Broker(_)) { PAUSE.0 } else { PAUSE.1 };
            wait(stop, pause);
        }
    }

    fn run_once(&mut self, run: &str, next_id: &mut u64, stop: &AtomicBool) -> Result<(), CanaryError> {
        let connection = CanaryConnection::open(&self.settings, run)?;
        let plan = ProbePlan::of(self.settings.canary.horizon, self.has_shortcuts());
        if plan != self.plan {
            (self.turns, self.plan) = (Turns::of(&plan, self.times), plan);
        }
        let router = CanaryConnection::router(&self.settings, Arc::clone(&self.stats))?;
        let mut pipeline = router.pipeline();
        let (slot, every) = (connection.slot(), self.settings.canary.interval);
        let started = self.watched.with(|inner| {
            inner.connected(slot);
            inner.started
        });
        info!("canary: one message every {every:?}, in slot {slot}");
        let mut looked = started.elapsed();
        let mut ask_at = looked;
        let ended = loop {
            if stop.load(Ordering::Relaxed) {
                break Ok(());
            }
            let now = started.elapsed();
            if now.saturating_sub(looked) > ASLEEP {
                self.watched.with(|inner| {
                    inner.ledger.slept(looked, now);
                    // No answer could arrive then.
                    inner.unanswered = None;
                });
            }
            looked = now;
            if now >= ask_at && self.watched.with(|inner| inner.ledger.is_stale(now)) {
                ask_at = now + ASK_EVERY;
                if let Some(outcome) = connection.send(&mut pipeline, Sent::Question) {
                    self.settle(&outcome, connection.slot());
                }
            }
            self.send(&connection, &mut pipeline, next_id, started);
            while let Some(outcome) = pipeline.try_next() {
                self.settle(&outcome, connection.slot());
            }
            self.watched.with(|inner| inner.note_silence(started.elapsed()));
            let wait = self.interval.wait(started.elapsed()).min(TICK);
            match connection.next(&pipeline, wait) {
                Ok(Some(received)) => self.watched.with(|inner| inner.arrive(received)),
                Ok(None) => self.watched.with(Inner::note_overdue),
                Err(error) => break Err(error),
            }
        };
        drop(pipeline);
        // A probe that is not confirmed is not waited for.
        let _ = router.close(if ended.is_ok() { FINISH } else { Duration::ZERO });
        ended
    }

    /// Whether the set has shortcuts. If the settings leave that open, the first queue shows it.
    fn has_shortcuts(&self) -> bool {
        let topology = &self.settings.topology;
        let exists = || {
            let api = ManagementApi::new(self.settings.management.as_ref()?).ok()?;
            let first = Names::new(topology.set.clone()).shortcut(Shortcut::all().next()?);
            api.queue(&self.settings.broker.vhost, &first).ok()?
        };
        topology.shortcuts.unwrap_or_else(|| exists().is_some())
    }

    /// Sends the next probe if it is time.
    fn send(
        &mut self,
        connection: &CanaryConnection,
        pipeline: &mut Pipeline<Sent>,
        next_id: &mut u64,
        started: Instant,
    ) {
        let now = started.elapsed();
        if !self.interval.is_due(now) {
            return;
        }
        let unit = self.settings.topology.unit.duration();
        let waits = |probe: Probe| probe.delay().duration(unit);
        let Self { turns, watched, warms_up, .. } = self;
        let probe = watched.with(|inner| {
            turns.next(|probe| (!*warms_up || waits(probe) <= now) && inner.ledger.admits(probe, now))
        });
        let Some(probe) = probe else { return };
        let id = *next_id;
        *next_id += 1;
        // Before it is sent: it may be back before this thread continues.
        let due = started.elapsed() + waits(probe);
        self.watched.with(|inner| {
            inner.handed_over += 1;
            inner.unanswered.get_or_insert(started.elapsed());
            inner.ledger.sent(id, probe, due);
        });
        if let Some(outcome) = connection.send(pipeline, Sent::Probe { id, probe }) {
            self.settle(&outcome, connection.slot());
        }
    }

    fn settle(&self, outcome: &Outcome<Sent>, slot: u8) {
        let (id, asked) = match outcome.tag {
            Sent::Probe { id, probe } => (id, probe.delay()),
            Sent::Question if outcome.result.is_ok() => {
                return self.watched.with(|inner| inner.ledger.queue_answered(inner.started.elapsed()));
            }
            Sent::Question => return,
        };
        self.watched.with(|inner| match &outcome.result {
            Ok(receipt) => {
                inner.answered(slot);
                // Published once, and on the intended route: not after a pause that took a
                // second off its delay, and so a level off its route.
                if receipt.delay == asked && receipt.publishes == 1 {
                    inner.ledger.confirmed(id);
                } else {
                    inner.ledger.rerouted(id, Probe::new(receipt.delay), receipt.publishes);
                }
            }
            Err(error) => {
                debug!("canary: {error}");
                inner.refusal = Some(error.to_string());
                // A message in doubt is not expected either: whether it arrives shows
                // nothing.
                match error.maybe_delivered() {
                    true => inner.ledger.withdrawn(id),
                    false => inner.ledger.refused(id),
                }
            }
        });
    }
}
