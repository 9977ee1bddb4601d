//! A canary that flies as long as it is let.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use log::{debug, info, warn};

use crate::{
    Settings,
    histogram::{Counted, Histogram},
    router::{Outcome, Pipeline, Stats},
};

use super::{Arrival, Figures, Flight, FlightError, Ledger, Pace, Plan, Probe, Received};

/// How often it is looked whether to stop.
const TICK: Duration = Duration::from_millis(500);

/// Whoever has not looked for so long was not running, and can't tell when a message came.
const ASLEEP: Duration = Duration::from_secs(3);

/// The pause before another attempt to fly, and where it must be helped first.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));

/// How long stopping waits for the last confirms.
const FINISH: Duration = Duration::from_secs(1);

/// The upper bounds of lateness, in seconds.
const LATENESS_BOUNDS: &[f64] =
    &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];

/// The length of a moment of the history, and how many are kept: half an hour.
const MOMENT: Duration = Duration::from_secs(10);
const MOMENTS: usize = 180;

/// The most arrivals of one moment of which the middle is taken.
const SAMPLES: usize = 64;

/// Whether it flies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// It is not wanted.
    Off,
    /// It does, in this slot.
    Flying(u8),
    /// It does not, and this is why.
    Grounded(String),
}

/// What is known of a canary; it and whoever looks at it share one.
#[derive(Debug)]
pub struct Watched(Mutex<Inner>);

#[derive(Debug)]
struct Inner {
    state: State,
    started: Instant,
    ledger: Ledger,
    lateness: BTreeMap<Probe, Histogram>,
    last: BTreeMap<Probe, Duration>,
    worst: BTreeMap<Probe, Duration>,
    handed_over: u64,
    history: VecDeque<Moment>,
}

/// Ten seconds of a canary's history.
#[derive(Debug, Clone)]
pub(crate) struct Moment {
    pub(crate) at: Timestamp,
    began: Duration,
    pub(crate) arrived: u64,
    pub(crate) late: Vec<Duration>,
    pub(crate) latest: Duration,
    /// For how long the oldest was overdue, at worst.
    pub(crate) overdue: Duration,
}

impl Default for Watched {
    fn default() -> Self {
        Self(Mutex::new(Inner {
            state: State::Off,
            started: Instant::now(),
            ledger: Ledger::default(),
            lateness: BTreeMap::new(),
            last: BTreeMap::new(),
            worst: BTreeMap::new(),
            handed_over: 0,
            history: VecDeque::new(),
        }))
    }
}

impl Watched {
    fn with<T>(&self, work: impl FnOnce(&mut Inner) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether it flies.
    #[must_use]
    pub fn state(&self) -> State {
        self.with(|inner| inner.state.clone())
    }

    /// Its figures at this moment.
    #[must_use]
    pub fn figures(&self) -> Figures {
        self.with(|inner| inner.ledger.figures(inner.started.elapsed()))
    }

    /// How late its messages were, by probe.
    #[must_use]
    pub fn lateness(&self) -> BTreeMap<Probe, Counted> {
        self.with(|inner| {
            inner.lateness.iter().map(|(probe, histogram)| (*probe, histogram.counted())).collect()
        })
    }

    /// How late the last message of each probe was.
    #[must_use]
    pub fn last(&self) -> BTreeMap<Probe, Duration> {
        self.with(|inner| inner.last.clone())
    }

    /// How late the latest message of each probe was.
    #[must_use]
    pub fn worst(&self) -> BTreeMap<Probe, Duration> {
        self.with(|inner| inner.worst.clone())
    }

    /// How many messages it handed to its router.
    #[must_use]
    pub fn handed_over(&self) -> u64 {
        self.with(|inner| inner.handed_over)
    }

    pub(crate) fn history(&self) -> Vec<Moment> {
        self.with(|inner| {
            inner.note_overdue();
            inner.history.iter().cloned().collect()
        })
    }
}

impl Inner {
    fn moment(&mut self) -> &mut Moment {
        let now = self.started.elapsed();
        if self.history.back().is_none_or(|last| now.saturating_sub(last.began) >= MOMENT) {
            if self.history.len() == MOMENTS {
                self.history.pop_front();
            }
            self.history.push_back(Moment {
                at: Timestamp::now(),
                began: now,
                arrived: 0,
                late: Vec::new(),
                latest: Duration::ZERO,
                overdue: Duration::ZERO,
            });
        }
        self.history.back_mut().expect("one was pushed")
    }

    fn note_overdue(&mut self) {
        if self.state == State::Off {
            return;
        }
        let oldest = self.ledger.figures(self.started.elapsed()).oldest_overdue.unwrap_or_default();
        let moment = self.moment();
        moment.overdue = moment.overdue.max(oldest);
    }

    fn arrive(&mut self, received: Received, plan: &Plan) {
        match self.ledger.arrived(received.id, self.started.elapsed()) {
            Arrival::Late(probe, late) => {
                self.lateness.entry(probe).or_insert_with(|| Histogram::new(LATENESS_BOUNDS)).observe(late);
                self.last.insert(probe, late);
                let worst = self.worst.entry(probe).or_default();
                *worst = late.max(*worst);
                let moment = self.moment();
                moment.arrived += 1;
                moment.latest = moment.latest.max(late);
                if moment.late.len() < SAMPLES {
                    moment.late.push(late);
                }
            }
            Arrival::Twice if received.redelivered => debug!("canary: a message was handed out again"),
            Arrival::Twice => self.ledger.count_twice(plan.probe(received.id)),
            Arrival::Unknown => debug!("canary: a message came that was given up"),
        }
    }
}

/// Sends probes and watches them arrive.
#[derive(Debug)]
pub struct Canary {
    settings: Settings,
    plan: Plan,
    pace: Pace,
    /// How many messages it sends.
    most: u64,
    stats: Arc<Stats>,
    watched: Arc<Watched>,
}

impl Canary {
    /// Why it does not fly at first.
    pub const UNTRIED: &'static str = "it has not been tried yet";

    /// A canary on the set of the settings, whose router counts into `stats` and which
    /// puts what it sees into `watched`.
    #[must_use]
    pub fn new(settings: Settings, stats: Arc<Stats>, watched: Arc<Watched>) -> Self {
        watched.with(|inner| inner.state = State::Grounded(Self::UNTRIED.into()));
        let plan = Plan::up_to(settings.canary.horizon);
        let pace = Pace::new(settings.canary.interval);
        Self { settings, plan, pace, most: u64::MAX, stats, watched }
    }

    /// Sends each probe so many times and then no more.
    #[must_use]
    pub fn with_rounds(mut self, rounds: u32) -> Self {
        self.most = u64::from(rounds) * self.plan.probes().len() as u64;
        self
    }

    /// What it sends.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Flies until `stop` is set, through restarts of the broker.
    pub fn run(mut self, stop: &AtomicBool) {
        let run = format!("{:016x}", fastrand::u64(..));
        let mut next_id = 0;
        let mut last_reason = String::new();
        while !stop.load(Ordering::Relaxed) {
            let Err(error) = self.fly(&run, &mut next_id, stop) else { break };
            let reason = error.to_string();
            self.watched.with(|inner| {
                inner.ledger.disconnected(inner.started.elapsed());
                inner.state = State::Grounded(reason.clone());
            });
            // The same every few seconds would fill a log while a broker is down.
            if reason != last_reason {
                warn!("canary: {reason}; it tries again");
                last_reason = reason;
            }
            let pause = if matches!(error, FlightError::Broker(_)) { PAUSE.0 } else { PAUSE.1 };
            let until = Instant::now() + pause;
            while !stop.load(Ordering::Relaxed) && Instant::now() < until {
                thread::sleep(TICK);
            }
        }
    }

    fn fly(&mut self, run: &str, next_id: &mut u64, stop: &AtomicBool) -> Result<(), FlightError> {
        let flight = Flight::open(&self.settings, run)?;
        let router = Flight::router(&self.settings, Arc::clone(&self.stats))?;
        let mut pipeline = router.pipeline();
        let started = self.watched.with(|inner| {
            inner.state = State::Flying(flight.slot());
            inner.ledger.connected(inner.started.elapsed());
            inner.started
        });
        info!("canary: one message every {:?}, in slot {}", self.settings.canary.interval, flight.slot());
        let mut looked = started.elapsed();
        let ended = loop {
            if stop.load(Ordering::Relaxed) {
                break Ok(());
            }
            let now = started.elapsed();
            if now.saturating_sub(looked) > ASLEEP {
                self.watched.with(|inner| inner.ledger.slept(now));
            }
            looked = now;
            self.send(&flight, &mut pipeline, next_id, started);
            while let Some(outcome) = pipeline.try_next() {
                self.settle(&outcome);
            }
            let wait = self.pace.wait(started.elapsed()).min(TICK);
            match flight.next(&pipeline, wait) {
                Ok(Some(received)) => self.watched.with(|inner| inner.arrive(received, &self.plan)),
                Ok(None) => self.watched.with(Inner::note_overdue),
                Err(error) => break Err(error),
            }
        };
        drop(pipeline);
        router.close(if ended.is_ok() { FINISH } else { Duration::ZERO });
        ended
    }

    /// Sends the next probe if it is time.
    fn send(
        &mut self,
        flight: &Flight,
        pipeline: &mut Pipeline<'_, u64>,
        next_id: &mut u64,
        started: Instant,
    ) {
        if *next_id >= self.most {
            return;
        }
        if !self.pace.is_due(started.elapsed()) || !self.watched.with(|inner| inner.ledger.has_room()) {
            return;
        }
        let (id, probe) = (*next_id, self.plan.probe(*next_id));
        *next_id += 1;
        // Before it is sent: it may be back before this thread goes on.
        let due = started.elapsed() + probe.delay().duration(self.settings.topology.unit.duration());
        self.watched.with(|inner| {
            inner.handed_over += 1;
            inner.ledger.sent(id, probe, due);
        });
        if let Some(outcome) = flight.send(pipeline, id, probe) {
            self.settle(&outcome);
        }
    }

    fn settle(&self, outcome: &Outcome<u64>) {
        let asked = self.plan.probe(outcome.tag).delay();
        self.watched.with(|inner| match &outcome.result {
            // Published once, and the way it was meant to go: not after a pause that took a
            // second off its delay, and so a level off its way.
            Ok(receipt) if receipt.delay == asked && receipt.publishes == 1 => {
                inner.ledger.confirmed(outcome.tag);
            }
            Ok(_) => inner.ledger.withdrawn(outcome.tag),
            Err(error) => {
                debug!("canary: {error}");
                // One in doubt is not expected either: whether it comes says nothing.
                inner.ledger.withdrawn(outcome.tag);
            }
        });
    }
}
