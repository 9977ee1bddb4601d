//! The report of the management API that all parts of a daemon share.
//!
//! Each part used to ask on its own, so a broker with many queues worked for the daemon alone. Now it is asked at
//! one rate, which falls with the time that it takes.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use delayline_core::{
    backoff::wait,
    supervise,
    topology::{Endpoint, Names, Topology},
};
use delayline_settings::{Management, NO_MANAGEMENT, Settings};
use jiff::Timestamp;

use crate::{
    fetch::Scope,
    grants::Grants,
    management::{Alarm, ExchangeInfo, ManagementApi, ManagementError, QueueInfo},
    snapshot::Snapshot,
};

/// How often counts are read if that takes the broker little time: it renews them every 5 s. The number limits the
/// share of time: with 300, reading takes a 300th, unless counts would be older than [`MOST_OLD`].
const EVERY: (Duration, u32) = (Duration::from_secs(5), 300);

/// The same while due messages are on their way, which may be stuck.
const SOON: (Duration, u32) = (Duration::from_secs(2), 20);

/// How soon they are read again after a failure.
const AGAIN: Duration = Duration::from_secs(10);

/// The same limit for counts that would be older.
const MOST: u32 = 10;

/// Counts older than this say little about the present.
pub const OLD: Duration = Duration::from_secs(60);

/// How old counts may become to spare the broker. Reading them takes time as well.
const MOST_OLD: Duration = Duration::from_secs(45);

/// Several daemons share the reading, up to so many: with more, each would know too little.
const SHARERS: u32 = 3;

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
        let (grants, named) = Self::granted(api, vhost);
        Ok(Self { snapshot: Snapshot::fetch(api, vhost, Scope::Set(topology, &named))?, grants })
    }

    /// The same, with the bindings of its applications alone.
    ///
    /// # Errors
    /// See [`ManagementError`]. Rights that cannot be read are no error.
    pub fn apps(api: &ManagementApi, vhost: &str, topology: &Topology) -> Result<Self, ManagementError> {
        let (grants, named) = Self::granted(api, vhost);
        Ok(Self { snapshot: Snapshot::fetch(api, vhost, Scope::Apps(topology, &named))?, grants })
    }

    /// The rights of users, and the queues that they may read.
    fn granted(api: &ManagementApi, vhost: &str) -> (Result<Grants, ManagementError>, Vec<Endpoint>) {
        let grants = Grants::fetch(api, vhost);
        let named = grants.as_ref().map(Grants::names_read).unwrap_or_default();
        (grants, named.into_iter().map(Endpoint::Queue).collect())
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
    /// How many daemons serve this set, at most [`SHARERS`].
    daemons: AtomicU32,
}

#[derive(Debug)]
struct State {
    api: Option<ManagementApi>,
    last: Option<Arc<Reading>>,
    next: Instant,
    /// Whether a reading is in progress.
    reading: bool,
    /// The set is read again if it was read before this.
    renewed: Option<Instant>,
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
        let names: Vec<_> = scopes.map(|scope| scope.pattern()).collect();
        Self {
            management: settings.management.clone(),
            patience: None,
            vhost: settings.broker.vhost.clone(),
            names: names.join("|"),
            topology,
            state: Mutex::new(State {
                api: None,
                last: None,
                next: Instant::now(),
                reading: false,
                renewed: None,
            }),
            seen: Mutex::new(None),
            kept: AtomicBool::new(false),
            daemons: AtomicU32::new(1),
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
        supervise::start("survey", move || {
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

    /// Makes the next reading due at once. An earlier answer about the set is not used again.
    pub fn renew(&self) {
        let mut state = self.lock();
        state.next = Instant::now();
        state.renewed = Some(state.next);
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
        let rate = match &counts {
            Ok(counts) => {
                self.daemons.store(daemons(self.topology.names(), &counts.queues), Ordering::Relaxed);
                match counts.queues.iter().any(|queue| queue.messages_dlx > Some(0)) {
                    true => Some(SOON),
                    false => Some(EVERY),
                }
            }
            // It may have waited in vain, which is no work.
            Err(_) => None,
        };
        let pause = rate.map_or(AGAIN, |rate| self.rest(took, rate, MOST_OLD));
        let mut state = self.lock();
        // After a failure, a new client: its certificate may have been renewed.
        state.api = api.filter(|_| counts.is_ok());
        state.next = Instant::now() + pause;
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

    /// How long to wait after work for which the broker is asked: at least a time, and so many times as long as it
    /// took. The second counts only up to `most`, or ten times as long as it took: one slow look, as on a busy machine,
    /// must not blind a daemon for an hour. Two daemons each wait twice as long: together, they ask no more than one.
    pub fn rest(&self, took: Duration, rate: (Duration, u32), most: Duration) -> Duration {
        rest(self.daemons.load(Ordering::Relaxed), took, rate, most)
    }

    /// The set as it was at most `age` ago, or longer if reading it takes the broker long. Threads that ask at the
    /// same time share one answer.
    ///
    /// # Errors
    /// Why the management API gave no answer.
    pub fn set(&self, age: Duration) -> Result<Arc<SeenSet>, ManagementError> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let renewed = self.lock().renewed;
        let is_new = |last: &Seen| last.at.elapsed() <= age.max(last.took * MOST) && Some(last.at) >= renewed;
        if let Some(last) = seen.as_ref().filter(|last| is_new(last)) {
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

/// How many daemons share the reading of a set. Each has a canary, unless that is switched off.
fn daemons(names: &Names, queues: &[QueueInfo]) -> u32 {
    let canaries = queues.iter().filter(|queue| names.is_canary(&queue.name) && queue.consumers > Some(0));
    u32::try_from(canaries.count()).unwrap_or(SHARERS).clamp(1, SHARERS)
}

/// See [`Survey::rest`], for so many daemons.
fn rest(daemons: u32, took: Duration, (least, times): (Duration, u32), most: Duration) -> Duration {
    daemons * least.max((took * times).min(most.max(took * MOST)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use delayline_core::topology::TopologySettings;

    #[test]
    fn a_slow_broker_is_asked_less_often_and_several_daemons_do_not_ask_more() {
        let ms = Duration::from_millis;
        for (took, rate, expected) in [
            (10, EVERY, 5_000),
            (10, SOON, 2_000),
            (200, SOON, 4_000),
            (100, EVERY, 30_000),
            (3_000, EVERY, 45_000),
            (20_000, SOON, 200_000),
        ] {
            assert_eq!(rest(1, ms(took), rate, MOST_OLD), ms(expected), "{took} {rate:?}");
            assert_eq!(rest(2, ms(took), rate, MOST_OLD), ms(2 * expected), "{took} {rate:?}");
        }
        let rests = [100, 2_000, 100_000].map(|took| rest(1, ms(took), (ms(60_000), 300), ms(600_000)));
        assert_eq!(rests, [ms(60_000), ms(600_000), ms(1_000_000)]);
        let names = Topology::new(TopologySettings::default()).names().clone();
        let queue =
            |name: &str, consumers| QueueInfo { name: name.into(), consumers, ..QueueInfo::default() };
        let mut queues = vec![queue("delay.retry", Some(2)), queue("delay.canary.0", Some(0))];
        assert_eq!(daemons(&names, &queues), 1);
        for (number, sharing) in (1..).zip([1, 2, 3, 3]) {
            queues.push(queue(&format!("delay.canary.{number}"), Some(1)));
            assert_eq!(daemons(&names, &queues), sharing);
        }
    }
}
