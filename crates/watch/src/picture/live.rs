//! The latest picture, for many readers.

use std::{
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use jiff::Timestamp;

use delayline_admin::Kept;
use delayline_broker::Survey;
use delayline_core::{
    supervise::{end_by, start, supervised},
    topology::Topology,
};
use delayline_settings::Settings;

use super::{Collector, KeptView, Picture, SetView, Sources, kept};
use super::{
    compare::Turn,
    peeking::Peeking,
    state::{State, Task},
};

/// How often a picture is taken while a reader asks for it, and otherwise.
const BUSY: Duration = Duration::from_secs(1);
const IDLE: Duration = Duration::from_secs(5);

/// How long after its last request a reader counts as looking.
const LOOKING: Duration = Duration::from_secs(10);

/// How long stopping waits for a look in progress.
const FINISH: Duration = Duration::from_secs(2);

/// How often to check whether to stop.
const TICK: Duration = Duration::from_millis(250);

/// The latest picture. Reading it never waits for the broker, and readers put no load on the
/// broker.
#[derive(Debug)]
pub struct Live {
    state: Mutex<State>,
    changed: Condvar,
}

/// Takes pictures until it is dropped.
#[derive(Debug)]
pub struct Watch {
    live: Arc<Live>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Begins to take pictures of the set of the settings, through restarts of the broker.
    ///
    /// ```no_run
    /// use delayline_settings::Settings;
    /// use delayline_watch::picture::{Sources, Watch};
    ///
    /// let watch = Watch::start(Settings::from_url("amqp://localhost")?, Sources::default());
    /// println!("{}", watch.live().picture().verdict.headline);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn start(settings: Settings, sources: Sources) -> Self {
        let collector = Collector::new(settings, sources);
        let state = State::new(collector.last().clone(), collector.wants_ages());
        let live = Arc::new(Live { state: Mutex::new(state), changed: Condvar::new() });
        let stop = Arc::new(AtomicBool::new(false));
        let thread = {
            let (live, stop) = (Arc::clone(&live), Arc::clone(&stop));
            start("picture", move || keep(collector, &live, &stop))
        };
        Self { live, stop, thread: Some(thread) }
    }

    /// The pictures; they can still be read after the end.
    #[must_use]
    pub fn live(&self) -> Arc<Live> {
        Arc::clone(&self.live)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.live.changed.notify_all();
        // It may be asking a broker that is silent; nothing is lost if it ends with the process.
        let _ = self.thread.take().and_then(|thread| end_by(Instant::now() + FINISH, thread));
    }
}

impl Live {
    /// The latest picture. While a reader asks, there is a new picture every second, otherwise every
    /// five.
    #[must_use]
    pub fn picture(&self) -> Picture {
        let mut state = self.lock();
        state.asked = Some(Instant::now());
        self.changed.notify_all();
        state.current()
    }

    /// The latest picture, without counting as a reader.
    #[must_use]
    pub fn latest(&self) -> Picture {
        self.lock().current()
    }

    /// The contents of a queue that keeps messages, as last seen; also asks for a new look.
    /// `None` until it was seen once.
    #[must_use]
    pub fn kept(&self, which: &Kept) -> Option<KeptView> {
        let mut state = self.lock();
        let peek = state.kept.entry(which.clone()).or_default();
        peek.wanted = true;
        let report = peek.report.clone();
        self.changed.notify_all();
        report
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until there is something to do, or for `tick`.
    fn wait(&self, tick: Duration) {
        drop(self.changed.wait_timeout(self.lock(), tick).unwrap_or_else(PoisonError::into_inner));
    }
}

/// Takes pictures until `stop` is set.
fn keep(mut collector: Collector, live: &Live, stop: &AtomicBool) {
    let settings = collector.settings().clone();
    let (peeking, found, survey) = (collector.peeking(), collector.compared_elsewhere(), collector.survey());
    thread::scope(|scope| {
        // A long look at kept messages, or at the whole set, must not delay the picture.
        scope.spawn(|| supervised(|| peek(&settings, &peeking, live, stop)));
        scope.spawn(|| supervised(|| compare((&settings, &survey), &found, live, stop)));
        supervised(|| take(&mut collector, &peeking, live, stop));
    });
}

fn take(collector: &mut Collector, peeking: &Peeking, live: &Live, stop: &AtomicBool) {
    let mut next = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        let now = Instant::now();
        let since_asked = live.lock().asked.map(|asked| now.saturating_duration_since(asked));
        let looked_at = since_asked.is_some_and(|since| since < LOOKING);
        // A reader has started to look: the next picture is due sooner.
        if looked_at {
            next = next.min(now + BUSY);
        }
        // The next look finds out the changes.
        if live.lock().is_lost() {
            next = next.min(now + TICK);
        }
        if now < next {
            live.wait(TICK.min(next - now));
            continue;
        }
        live.lock().looking = Some((now, Timestamp::now()));
        // A broker that reports depths is not silent, even if its other answers are slow.
        let answered = |all: bool| live.lock().looking = (!all).then(|| (Instant::now(), Timestamp::now()));
        let picture = collector.look_with(answered).clone();
        let mut state = live.lock();
        (state.picture, state.line, state.looking) = (picture, collector.line(), None);
        if state.picture.broker.reachable {
            state.note_depths(|which| !peeking.is_at(which));
        }
        drop(state);
        next = Instant::now() + if looked_at { BUSY } else { IDLE };
    }
}

fn peek(settings: &Settings, peeking: &Peeking, live: &Live, stop: &AtomicBool) {
    let topology = Topology::new(settings.topology.clone());
    while !stop.load(Ordering::Relaxed) {
        let task = live.lock().task(Instant::now());
        let Some((which, task)) = task else {
            live.wait(TICK);
            continue;
        };
        peeking.begin(&which);
        let (report, first) = match task {
            Task::All => {
                let report = KeptView::look(&which, settings, &topology).map_err(|error| error.to_string());
                let first = report.as_ref().map(|report| report.first).map_err(Clone::clone);
                (Some(report), first)
            }
            Task::First => (None, kept::first(&which, settings, &topology)),
        };
        peeking.end(&which);
        live.lock().kept.entry(which).or_default().found(report, first, Instant::now());
    }
}

/// Compares the set with its definition until `stop` is set.
fn compare(
    (settings, survey): (&Settings, &Survey),
    found: &Mutex<Option<SetView>>,
    live: &Live,
    stop: &AtomicBool,
) {
    let topology = Topology::new(settings.topology.clone());
    let mut turn = Turn::default();
    while !stop.load(Ordering::Relaxed) {
        if !turn.is_due(&live.lock().picture.broker, Instant::now()) {
            live.wait(TICK);
            continue;
        }
        let began = Instant::now();
        let view = SetView::compare(settings, &topology, survey);
        turn.made(&view, (began, Instant::now()), survey);
        *found.lock().unwrap_or_else(PoisonError::into_inner) = Some(view);
    }
}
