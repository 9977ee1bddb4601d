//! A canary that runs until it is stopped.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use log::{debug, info, warn};

use delayline_client::router::{Outcome, Pipeline, Stats};
use delayline_core::topology::Unit;
use delayline_settings::{Layout, Settings};

use super::{
    CanaryConnection, CanaryError, CanaryState, Pace, Probe, ProbePlan, Watched, connection::Sent,
    plan::Turns, watched::Inner,
};

/// How often it checks whether to stop.
const TICK: Duration = Duration::from_millis(500);

/// After so long without looking, the process was not running, and cannot tell when a message
/// came.
const ASLEEP: Duration = Duration::from_secs(3);

/// The pause before another attempt to connect, and the pause if somebody has to fix
/// something first.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));

/// How often the queue is asked whether it takes messages, while some are lost.
const ASK_EVERY: Duration = Duration::from_secs(30);

/// How long stopping waits for the last confirms.
const FINISH: Duration = Duration::from_secs(1);

/// What is known about a canary in the levels of others; shared like [`Watched`].
#[derive(Debug, Clone, Default)]
pub struct LayoutCanary {
    /// What it saw.
    pub watched: Arc<Watched>,
    /// What its routers did.
    pub stats: Arc<Stats>,
    /// Whether these levels have a guard, as somebody saw last.
    pub guarded: Arc<AtomicBool>,
}

/// Sends probes and watches them arrive.
#[derive(Debug)]
pub struct Canary {
    settings: Settings,
    layout: Option<Layout>,
    /// Whether the levels of others have a guard, if somebody looks after that.
    guarded: Option<Arc<AtomicBool>>,
    plan: ProbePlan,
    turns: Turns,
    /// Whether a probe is sent only after its own delay: an earlier canary may have sent some.
    warms_up: bool,
    pace: Pace,
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
        let pace = Pace::new(settings.canary.interval);
        let turns = Turns::of(&plan, u64::MAX);
        Self { settings, layout: None, guarded: None, plan, turns, warms_up: true, pace, stats, watched }
    }

    /// A canary in the levels of others that sends nothing while they have no guard, as somebody
    /// who looks at them tells it.
    #[must_use]
    pub fn in_layout(settings: Settings, layout: Layout, canary: LayoutCanary) -> Self {
        let LayoutCanary { watched, stats, guarded } = canary;
        let canary = Self::new(settings, stats, Arc::clone(&watched)).through(layout);
        watched.with(|inner| inner.state = CanaryState::Off);
        Self { guarded: Some(guarded), ..canary }
    }

    /// Sends through the levels of others instead of the set's; only if they have a guard when it
    /// connects.
    #[must_use]
    pub fn through(mut self, layout: Layout) -> Self {
        self.watched.with(|inner| inner.name = format!("canary of {layout}"));
        // Theirs are whole seconds, whatever a set was declared with.
        self.settings.topology.unit = Unit::SECOND;
        self.layout = Some(layout);
        self
    }

    /// Sends each probe this many times and then no more, beginning with all of them at once.
    #[must_use]
    pub fn with_rounds(mut self, rounds: u32) -> Self {
        self.turns = Turns::of(&self.plan, rounds.into());
        self.warms_up = false;
        self
    }

    /// What it sends.
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
            if self.lacks_a_guard() {
                self.rest();
                continue;
            }
            let Err(error) = self.run_once(&run, &mut next_id, stop) else { break };
            // What it found itself, before somebody else has looked again.
            if self.guarded.is_some() && matches!(error, CanaryError::Unguarded { .. }) {
                self.rest();
                continue;
            }
            let reason = error.to_string();
            self.watched.with(|inner| {
                inner.ledger.disconnected(inner.started.elapsed());
                inner.state = CanaryState::Paused(reason.clone());
            });
            // The same line every few seconds would fill a log while a broker is down.
            if reason != last_reason {
                let name = self.watched.with(|inner| inner.name.clone());
                warn!("{name}: {reason}; trying again");
                last_reason = reason;
            }
            let pause = if matches!(error, CanaryError::Broker(_)) { PAUSE.0 } else { PAUSE.1 };
            let until = Instant::now() + pause;
            while !stop.load(Ordering::Relaxed) && !self.lacks_a_guard() && Instant::now() < until {
                thread::sleep(TICK);
            }
        }
    }

    fn lacks_a_guard(&self) -> bool {
        self.guarded.as_ref().is_some_and(|guarded| !guarded.load(Ordering::Relaxed))
    }

    /// Waits a moment for a guard. What is on its way still comes to its queue, which outlives it.
    fn rest(&self) {
        self.watched.with(|inner| {
            if inner.state != CanaryState::Off {
                info!("{}: no message while there is no guard", inner.name);
                inner.ledger.disconnected(inner.started.elapsed());
                inner.state = CanaryState::Off;
            }
        });
        thread::sleep(TICK);
    }

    fn run_once(&mut self, run: &str, next_id: &mut u64, stop: &AtomicBool) -> Result<(), CanaryError> {
        let connection = CanaryConnection::open(&self.settings, self.layout.as_ref(), run)?;
        let router = CanaryConnection::router(&self.settings, Arc::clone(&self.stats))?;
        let mut pipeline = router.pipeline();
        let (slot, every) = (connection.slot(), self.settings.canary.interval);
        let started = self.watched.with(|inner| {
            inner.connected(slot);
            info!("{}: one message every {every:?}, in slot {slot}", inner.name);
            inner.started
        });
        let mut looked = started.elapsed();
        let mut ask_at = looked;
        let ended = loop {
            if stop.load(Ordering::Relaxed) {
                break Ok(());
            }
            if let (true, Some(layout)) = (self.lacks_a_guard(), self.layout.clone()) {
                break Err(CanaryError::Unguarded { layout });
            }
            let now = started.elapsed();
            if now.saturating_sub(looked) > ASLEEP {
                self.watched.with(|inner| {
                    inner.ledger.slept(looked, now);
                    // Nobody could hear an answer then.
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
            let wait = self.pace.wait(started.elapsed()).min(TICK);
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

    /// Sends the next probe if it is time.
    fn send(
        &mut self,
        connection: &CanaryConnection,
        pipeline: &mut Pipeline<'_, Sent>,
        next_id: &mut u64,
        started: Instant,
    ) {
        let now = started.elapsed();
        if !self.pace.is_due(now) {
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
                // second off its delay, and so a level off its route. A key of others stays as it
                // is.
                let as_asked = self.layout.is_some() || receipt.delay == asked;
                if as_asked && receipt.publishes == 1 {
                    inner.ledger.confirmed(id);
                } else {
                    inner.ledger.withdrawn(id);
                }
            }
            Err(error) => {
                debug!("{}: {error}", inner.name);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_cannot_fly_rests_once_there_is_no_guard() {
        // Without the management API, nobody can see whether there is a guard.
        let settings = Settings::from_url("amqp://localhost").unwrap();
        let (known, stop) = (LayoutCanary::default(), Arc::new(AtomicBool::new(false)));
        let canary = Canary::in_layout(settings, Layout::nservicebus(), known.clone());
        assert_eq!(known.watched.state(), CanaryState::Off);
        let running = {
            let stop = Arc::clone(&stop);
            thread::spawn(move || canary.run(&stop))
        };
        let reaches = |expected: fn(&CanaryState) -> bool| {
            let until = Instant::now() + Duration::from_secs(60);
            while !expected(&known.watched.state()) {
                assert!(Instant::now() < until, "{:?}", known.watched.state());
                thread::sleep(Duration::from_millis(20));
            }
        };
        known.guarded.store(true, Ordering::Relaxed);
        reaches(|state| matches!(state, CanaryState::Paused(reason) if reason.contains("management API")));
        known.guarded.store(false, Ordering::Relaxed);
        reaches(|state| *state == CanaryState::Off);
        stop.store(true, Ordering::Relaxed);
        running.join().unwrap();
    }
}
