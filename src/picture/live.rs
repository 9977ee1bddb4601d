//! The latest picture, for many readers.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use jiff::Timestamp;

use crate::{settings::Settings, topology::Topology};

use super::peeking::Peeking;
use super::{Collector, Kept, KeptReport, Picture, Sources, Verdict};

/// How often a picture is taken while somebody looks, and while nobody does.
const BUSY: Duration = Duration::from_secs(1);
const IDLE: Duration = Duration::from_secs(5);

/// For how long after the last question somebody counts as looking.
const LOOKING: Duration = Duration::from_secs(10);

/// How long a look may take until the broker counts as silent.
const SILENT: Duration = Duration::from_secs(5);

/// How often the kept messages may be looked at, however many ask for it.
const PEEK: Duration = Duration::from_secs(5);

/// How long ending waits for a look that is under way.
const FINISH: Duration = Duration::from_secs(2);

/// How often it is looked whether to stop.
const TICK: Duration = Duration::from_millis(250);

/// Keeps the latest picture. Reading it never waits for the broker, and how often it is
/// read makes no difference to the broker.
#[derive(Debug)]
pub struct Live {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    picture: Picture,
    /// When the look that is under way began.
    looking: Option<(Instant, Timestamp)>,
    asked: Option<Instant>,
    kept: BTreeMap<Kept, Peek>,
}

#[derive(Debug, Default)]
struct Peek {
    wanted: bool,
    ended: Option<Instant>,
    report: Option<KeptReport>,
}

/// Has pictures taken until it is dropped.
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
    /// use delayline::{Settings, picture::{Sources, Watch}};
    ///
    /// let watch = Watch::start(Settings::from_url("amqp://localhost")?, Sources::default());
    /// println!("{}", watch.live().picture().verdict.headline);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn start(settings: Settings, sources: Sources) -> Self {
        let collector = Collector::new(settings, sources);
        let state =
            State { picture: collector.last().clone(), looking: None, asked: None, kept: BTreeMap::new() };
        let live = Arc::new(Live { state: Mutex::new(state), changed: Condvar::new() });
        let stop = Arc::new(AtomicBool::new(false));
        let thread = {
            let (live, stop) = (Arc::clone(&live), Arc::clone(&stop));
            thread::spawn(move || keep(collector, &live, &stop))
        };
        Self { live, stop, thread: Some(thread) }
    }

    /// What is kept; it stays readable after the end.
    #[must_use]
    pub fn live(&self) -> Arc<Live> {
        Arc::clone(&self.live)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.live.changed.notify_all();
        let deadline = Instant::now() + FINISH;
        let Some(thread) = self.thread.take() else { return };
        while !thread.is_finished() {
            // It asks a broker that is silent; nothing is lost if it ends with the process.
            if Instant::now() > deadline {
                return;
            }
            thread::sleep(Duration::from_millis(10));
        }
        let _ = thread.join();
    }
}

impl Live {
    /// The latest picture. While somebody asks, there is a new one every second,
    /// otherwise every five.
    #[must_use]
    pub fn picture(&self) -> Picture {
        let mut state = self.lock();
        state.asked = Some(Instant::now());
        self.changed.notify_all();
        state.current()
    }

    /// The latest picture, without being somebody who looks.
    #[must_use]
    pub fn latest(&self) -> Picture {
        self.lock().current()
    }

    /// What a queue that keeps messages holds, as it was seen last, and has it looked at
    /// again; `None` until it was seen once.
    #[must_use]
    pub fn kept(&self, which: Kept) -> Option<KeptReport> {
        let mut state = self.lock();
        let peek = state.kept.entry(which).or_default();
        peek.wanted = true;
        let report = peek.report.clone();
        self.changed.notify_all();
        report
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until there is something to do or `tick` is over.
    fn wait(&self, tick: Duration) {
        drop(self.changed.wait_timeout(self.lock(), tick).unwrap_or_else(PoisonError::into_inner));
    }
}

impl State {
    fn current(&self) -> Picture {
        let mut picture = self.picture.clone();
        if let Some((began, at)) = self.looking
            && began.elapsed() > SILENT
            && picture.broker.reachable
        {
            picture.broker.reachable = false;
            picture.broker.since = Some(at);
            picture.broker.problem = Some("it does not answer".into());
            picture.verdict = Verdict::of(&picture);
        }
        picture
    }
}

/// Takes pictures until `stop` is set.
fn keep(mut collector: Collector, live: &Live, stop: &AtomicBool) {
    let settings = collector.settings().clone();
    thread::scope(|scope| {
        // A long look at kept messages must not hold up the picture.
        let peeking = collector.peeking();
        scope.spawn(move || peek(&settings, &peeking, live, stop));
        let mut next = Instant::now();
        while !stop.load(Ordering::Relaxed) {
            let now = Instant::now();
            let since_asked = live.lock().asked.map(|asked| now.saturating_duration_since(asked));
            let looked_at = since_asked.is_some_and(|since| since < LOOKING);
            // Somebody comes to look: the next picture is due sooner.
            if looked_at {
                next = next.min(now + BUSY);
            }
            if now < next {
                live.wait(TICK.min(next - now));
                continue;
            }
            live.lock().looking = Some((now, Timestamp::now()));
            let picture = collector.look().clone();
            let mut state = live.lock();
            (state.picture, state.looking) = (picture, None);
            drop(state);
            next = Instant::now() + if looked_at { BUSY } else { IDLE };
        }
    });
}

fn peek(settings: &Settings, peeking: &Peeking, live: &Live, stop: &AtomicBool) {
    let topology = Topology::new(settings.topology.clone());
    while !stop.load(Ordering::Relaxed) {
        let wanted = live.lock().kept.iter().find(|(_, peek)| peek.is_due()).map(|(which, _)| *which);
        let Some(which) = wanted else {
            live.wait(TICK);
            continue;
        };
        peeking.begin(which);
        let report = which.look(settings, &topology);
        peeking.end(which);
        let report = report.unwrap_or_else(|error| KeptReport::failed(error.to_string()));
        let ended = Some(Instant::now());
        live.lock().kept.insert(which, Peek { wanted: false, ended, report: Some(report) });
    }
}

impl Peek {
    fn is_due(&self) -> bool {
        self.wanted && self.ended.is_none_or(|ended| ended.elapsed() >= PEEK)
    }
}
