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
    router::{Outcome, Stats},
};

use super::{Arrival, Figures, Flight, FlightError, Ledger, Pace, Plan, Probe};

/// How often it is looked whether to stop.
const TICK: Duration = Duration::from_millis(500);

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

    fn arrive(&mut self, id: u64, probe_of: impl FnOnce(u64) -> Probe) {
        match self.ledger.arrived(id, self.started.elapsed()) {
            Arrival::Late(probe, late) => {
                self.lateness.entry(probe).or_insert_with(|| Histogram::new(LATENESS_BOUNDS)).observe(late);
                self.last.insert(probe, late);
                let moment = self.moment();
                moment.arrived += 1;
                moment.latest = moment.latest.max(late);
                if moment.late.len() < SAMPLES {
                    moment.late.push(late);
                }
            }
            Arrival::Twice => self.ledger.count_twice(probe_of(id)),
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
    stats: Arc<Stats>,
    watched: Arc<Watched>,
}

impl Canary {
    /// A canary on the set of the settings.
    #[must_use]
    pub fn new(settings: Settings, plan: Plan, stats: Arc<Stats>, watched: Arc<Watched>) -> Self {
        watched.with(|inner| inner.state = State::Grounded("it has not been tried yet".into()));
        Self { settings, plan, pace: Pace::new(Pace::INTERVAL), stats, watched }
    }

    /// Flies until `stop` is set, through restarts of the broker.
    pub fn run(mut self, stop: &AtomicBool) {
        let run = format!("{:016x}", fastrand::u64(..));
        let mut next_id = 0;
        let mut last_reason = String::new();
        while !stop.load(Ordering::Relaxed) {
            let Err(error) = self.fly(&run, &mut next_id, stop) else { return };
            let reason = error.to_string();
            self.watched.with(|inner| {
                inner.ledger.disconnected();
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
        let unit = self.settings.topology.unit.duration();
        let started = self.watched.with(|inner| {
            inner.state = State::Flying(flight.slot());
            inner.ledger.connected(inner.started.elapsed());
            inner.started
        });
        info!("canary: one message every {:?}, in slot {}", Pace::INTERVAL, flight.slot());
        let ended = loop {
            if stop.load(Ordering::Relaxed) {
                break Ok(());
            }
            if self.pace.is_due(started.elapsed()) && self.watched.with(|inner| inner.ledger.has_room()) {
                let (id, probe) = (*next_id, self.plan.probe(*next_id));
                *next_id += 1;
                // Before it is sent: it may be back before this thread goes on.
                let due = started.elapsed() + probe.delay().duration(unit);
                self.watched.with(|inner| inner.ledger.sent(id, probe, due));
                let (_, outcome) = flight.send(&mut pipeline, unit, id, probe);
                if let Some(outcome) = outcome {
                    self.settle(&outcome);
                }
            }
            while let Some(outcome) = pipeline.try_next() {
                self.settle(&outcome);
            }
            let wait = self.pace.wait(started.elapsed()).min(TICK);
            match flight.next(&pipeline, wait) {
                Ok(Some(id)) => {
                    let plan = &self.plan;
                    self.watched.with(|inner| inner.arrive(id, |id| plan.probe(id)));
                }
                Ok(None) => self.watched.with(Inner::note_overdue),
                Err(error) => break Err(error),
            }
        };
        drop(pipeline);
        router.close(if ended.is_ok() { FINISH } else { Duration::ZERO });
        ended
    }

    fn settle(&self, outcome: &Outcome<u64>) {
        if let Err(error) = &outcome.result {
            debug!("canary: {error}");
            // One in doubt is not expected either: whether it comes says nothing.
            self.watched.with(|inner| inner.ledger.refused(outcome.tag));
        }
    }
}
