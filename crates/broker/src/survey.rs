//! The report of the management API that all parts of a daemon share.
//!
//! Each part used to ask on its own, so a broker with many queues worked for the daemon alone. Now it is asked at
//! one rate, which falls with the time that it takes.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use delayline_core::{backoff::wait, topology::Topology};
use delayline_settings::{Management, NO_MANAGEMENT, Settings};
use jiff::Timestamp;

use crate::{
    fetch::Scope,
    grants::Grants,
    management::{Alarm, ExchangeInfo, ManagementApi, ManagementError, QueueInfo},
    snapshot::Snapshot,
};

/// How often counts are read if that takes the broker little time: it renews them every 5 s. The number limits the
/// share of time: with 100, reading takes a hundredth, unless counts would be older than [`OLD`].
const EVERY: (Duration, u32) = (Duration::from_secs(5), 100);

/// The same while due messages are on their way, which may be stuck.
const SOON: (Duration, u32) = (Duration::from_secs(2), 20);

/// How soon they are read again after a failure.
const AGAIN: Duration = Duration::from_secs(10);

/// The same limit for counts that would be older.
const MOST: u32 = 10;

/// Counts older than this say little about the present.
pub const OLD: Duration = Duration::from_secs(60);

/// How often to check whether to read, or to stop.
const TICK: Duration = Duration::from_millis(100);

/// The counts of a set and of layouts at one moment.
#[derive(Debug)]
pub struct Reading {
    /// When it was complete.
    pub at: Timestamp,
    /// How long the broker took.
    pub took: Duration,
    /// The counts, or why there are none.
    pub counts: Result<QueueCounts, String>,
}

/// The counts of queues.
#[derive(Debug)]
pub struct QueueCounts {
    /// Each queue of the set and of the layouts.
    pub queues: Vec<QueueInfo>,
    /// The entry exchange, with its counts; `None` if it is missing, or has none.
    pub entry: Option<ExchangeInfo>,
    /// The alarms, or why they are unknown.
    pub alarms: Result<Vec<Alarm>, ManagementError>,
    /// Whether the broker keeps no statistics.
    pub without_statistics: bool,
}

/// A set, and the rights of users before it was read.
#[derive(Debug, Clone)]
pub struct SeenSet {
    /// The set.
    pub snapshot: Snapshot,
    /// The rights of users. Adding an application sets them last, so they are read first.
    pub grants: Result<Grants, ManagementError>,
}

impl SeenSet {
    /// Asks for a set, and for the queues that users may read.
    ///
    /// # Errors
    /// See [`ManagementError`]. Rights that cannot be read are no error.
    pub fn fetch(api: &ManagementApi, vhost: &str, topology: &Topology) -> Result<Self, ManagementError> {
        let grants = Grants::fetch(api, vhost);
        let named = grants.as_ref().map(Grants::names_read).unwrap_or_default();
        Ok(Self { snapshot: Snapshot::fetch(api, vhost, Scope::Set(topology, &named))?, grants })
    }
}

/// Asks the management API on behalf of each part of a daemon.
#[derive(Debug)]
pub struct Survey {
    management: Option<Management>,
    /// How long an answer may take, if not as long as for a command.
    patience: Option<Duration>,
    vhost: String,
    topology: Topology,
    /// A pattern for the names of the queues.
    names: String,
    state: Mutex<State>,
    seen: Mutex<Option<Seen>>,
    /// Whether a thread reads, so that no other one needs to wait for the API.
    kept: AtomicBool,
}

#[derive(Debug)]
struct State {
    api: Option<ManagementApi>,
    last: Option<Arc<Reading>>,
    next: Instant,
    /// Whether a reading is in progress.
    reading: bool,
}

#[derive(Debug)]
struct Seen {
    at: Instant,
    took: Duration,
    set: Arc<SeenSet>,
}

impl Survey {
    /// For the set and the layouts of the settings; nothing is asked yet.
    #[must_use]
    pub fn new(settings: &Settings) -> Self {
        let topology = Topology::new(settings.topology.clone());
        let layouts = settings.layouts.iter().map(|layout| Scope::Layout(&topology, layout));
        let scopes = std::iter::once(Scope::Set(&topology, &[])).chain(layouts);
        let names: Vec<_> = scopes.filter_map(|scope| scope.pattern()).collect();
        Self {
            management: settings.management.clone(),
            patience: None,
            vhost: settings.broker.vhost.clone(),
            names: names.join("|"),
            topology,
            state: Mutex::new(State { api: None, last: None, next: Instant::now(), reading: false }),
            seen: Mutex::new(None),
            kept: AtomicBool::new(false),
        }
    }

    /// The same, with this time limit for an answer.
    #[must_use]
    pub fn within(self, patience: Duration) -> Self {
        Self { patience: Some(patience), ..self }
    }

    /// Reads in a thread of its own until `stop` is set.
    pub fn keep(self: &Arc<Self>, stop: &Arc<AtomicBool>) {
        let (survey, stop) = (Arc::clone(self), Arc::clone(stop));
        self.kept.store(true, Ordering::Relaxed);
        // It is never joined: it changes nothing, and may be waiting for a silent API.
        thread::spawn(move || {
            while wait(&stop, TICK) {
                survey.read_if_due();
            }
        });
    }

    /// The last reading; reads first if it is time and no other thread does. `None` before the first one.
    pub fn reading(&self) -> Option<Arc<Reading>> {
        if !self.kept.load(Ordering::Relaxed) {
            self.read_if_due();
        }
        self.lock().last.clone()
    }

    /// The same, but waits for the first one for as long as `limit`.
    pub fn first_reading(&self, limit: Duration) -> Option<Arc<Reading>> {
        let until = Instant::now() + limit;
        loop {
            match self.reading() {
                None if Instant::now() < until => thread::sleep(TICK),
                reading => return reading,
            }
        }
    }

    /// Makes the next reading due at once.
    pub fn renew(&self) {
        self.lock().next = Instant::now();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read_if_due(&self) {
        let began = Instant::now();
        let api = {
            let mut state = self.lock();
            if state.reading || began < state.next {
                return;
            }
            state.reading = true;
            state.api.take()
        };
        let (api, counts) = match api.map_or_else(|| self.client(), Ok) {
            Ok(api) => {
                let counts = self.count(&api).map_err(|error| error.to_string());
                (Some(api), counts)
            }
            Err(reason) => (None, Err(reason)),
        };
        let took = began.elapsed();
        let mut state = self.lock();
        // After a failure, a new client: its certificate may have been renewed.
        state.api = api.filter(|_| counts.is_ok());
        state.next = Instant::now() + pause(took, &counts);
        state.last = Some(Arc::new(Reading { at: Timestamp::now(), took, counts }));
        state.reading = false;
    }

    fn client(&self) -> Result<ManagementApi, String> {
        let management = self.management.as_ref().ok_or(NO_MANAGEMENT)?;
        match self.patience {
            Some(patience) => ManagementApi::within(management, patience),
            None => ManagementApi::new(management),
        }
        .map_err(|error| error.to_string())
    }

    fn count(&self, api: &ManagementApi) -> Result<QueueCounts, ManagementError> {
        let queues = api.queue_counts(&self.vhost, Some(&self.names))?;
        let has_statistics = queues.iter().any(|queue| queue.reductions.is_some());
        let entry = match has_statistics {
            true => api.exchange(&self.vhost, &self.topology.names().entry())?,
            false => None,
        };
        // Queues without any statistics may also be new.
        let without_statistics = !has_statistics && api.overview()?.disable_stats;
        Ok(QueueCounts { queues, entry, alarms: api.alarms(), without_statistics })
    }

    /// The set as it was at most `age` ago, or longer if reading it takes the broker long. Threads that ask at the
    /// same time share one answer.
    ///
    /// # Errors
    /// Why the management API gave no answer.
    pub fn set(&self, age: Duration) -> Result<Arc<SeenSet>, ManagementError> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = seen.as_ref().filter(|last| last.at.elapsed() <= age.max(last.took * MOST)) {
            return Ok(Arc::clone(&last.set));
        }
        *seen = None;
        let began = Instant::now();
        let Some(management) = &self.management else {
            return Err(ManagementError::Unreachable { url: String::new(), reason: NO_MANAGEMENT.into() });
        };
        let api = ManagementApi::new(management)?;
        let set = Arc::new(SeenSet::fetch(&api, &self.vhost, &self.topology)?);
        *seen = Some(Seen { at: began, took: began.elapsed(), set: Arc::clone(&set) });
        Ok(set)
    }
}

/// How long to wait after a reading.
fn pause(took: Duration, counts: &Result<QueueCounts, String>) -> Duration {
    let rate = match counts {
        // It may have waited in vain, which is no work.
        Err(_) => return AGAIN,
        Ok(counts) if counts.queues.iter().any(|queue| queue.messages_dlx > Some(0)) => SOON,
        Ok(_) => EVERY,
    };
    rest(took, rate, OLD)
}

/// How long to wait after work: at least a time, and so many times as long as it took. The second counts only up to
/// `most`, or ten times as long as it took: one slow look, as on a busy machine, must not blind a daemon for an hour.
#[must_use]
pub fn rest(took: Duration, (least, times): (Duration, u32), most: Duration) -> Duration {
    least.max((took * times).min(most.max(took * MOST)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_broker_is_asked_less_often() {
        let counts = |due: u64| {
            let queue = QueueInfo { messages_dlx: Some(due), ..QueueInfo::default() };
            Ok(QueueCounts {
                queues: vec![queue],
                entry: None,
                alarms: Ok(Vec::new()),
                without_statistics: false,
            })
        };
        let ms = Duration::from_millis;
        for (took, due, expected) in [
            (10, 0, 5_000),
            (10, 3, 2_000),
            (200, 3, 4_000),
            (200, 0, 20_000),
            (3_000, 0, 60_000),
            (20_000, 3, 200_000),
        ] {
            assert_eq!(pause(ms(took), &counts(due)), ms(expected), "{took} {due}");
        }
        assert_eq!(pause(ms(10), &Err("down".into())), AGAIN);
        let rests = [100, 2_000, 20_000].map(|took| rest(ms(took), (ms(60_000), 100), ms(180_000)));
        assert_eq!(rests, [ms(60_000), ms(180_000), ms(200_000)]);
    }
}
