//! The index of scheduled messages in a daemon: answers in milliseconds, without reading a journal again.
//!
//! Each journal is read once and then followed. Its waiting messages are kept in a [`Store`] of their own, so
//! applications do not affect each other. The journals are the truth: a new process reads them again, and so
//! does an index that cannot be certain that it has everything.

mod answers;
mod build;
mod error;
mod follow;
mod store;

use std::{
    collections::{BTreeMap, HashSet},
    fmt,
    ops::Range,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, TryLockError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use jiff::{Timestamp, tz::TimeZone};
use serde::Serialize;

use delayline_core::{codec::AppKey, topology::Topology};
use delayline_settings::Settings;

use crate::error::AdminError;

use super::{
    AppCounts, CountBy, FoundMessage, JournalRead, ScheduleCount, ScheduleFilter, ScheduleList,
    count::Slots,
    list::{read_scheduled, recalls},
};

pub use error::{ShowError, Unindexed};

use answers::Question;
use build::Last;
use store::{Chosen, MAX_VALUE, Store};

/// How long a list of recalls is used: for one application, and for all of them.
const RECALLS: Duration = Duration::from_secs(2);
const RECALLS_OF_ALL: Duration = Duration::from_secs(10);

/// How far an index may be behind its journal to answer.
const BEHIND: Duration = Duration::from_secs(10);

/// How many turns the follower of a journal misses at most, while questions are answered.
const MISSED: u32 = 10;

/// The most messages that are shown with their contents at once, and the most bytes of each body.
const SHOWN: usize = 50;
const BODY: usize = 64 * 1024;

/// The index of all journals of a set.
pub struct Index {
    settings: Settings,
    topology: Topology,
    journals: Mutex<BTreeMap<AppKey, Arc<Journal>>>,
    /// Why the journals cannot be followed now.
    problem: Mutex<Option<String>>,
}

/// A journal in the index.
struct Journal {
    app: AppKey,
    state: Mutex<State>,
    /// Whether its follower has waited long enough: then questions wait.
    wanted: AtomicBool,
    /// The recalled keys, which parts of them are unknown, and when they were read.
    recalls: Mutex<Option<(Instant, Arc<Recalls>)>>,
}

type Recalls = (HashSet<String>, Vec<String>);

/// The contents and the state of a journal.
#[derive(Default)]
struct State {
    /// The messages; `None` until the journal was read.
    store: Option<Store>,
    read: JournalRead,
    /// How much later than its earliest due time a message is due at most, in ms.
    width: i64,
    /// The last indexed message.
    last: Option<Last>,
    /// When the broker last had no other messages.
    caught_up: Option<Instant>,
    /// How many messages were read by now, and their total.
    progress: (u64, u64),
    /// Why it is not in the index.
    problem: Option<String>,
    waiting: u64,
    bytes: u64,
}

impl State {
    /// Counts the messages and the bytes of the store.
    fn measure(&mut self) {
        let Some(store) = &self.store else { return };
        self.bytes = store.bytes().unwrap_or(self.bytes);
        self.waiting = store.waiting(Timestamp::now(), self.width).unwrap_or(self.waiting);
    }
}

/// A journal in the index, for metrics and findings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct IndexedJournal {
    /// The application.
    pub app: String,
    /// How many messages wait, recalled ones included; `None` until the journal was read.
    pub messages: Option<u64>,
    /// The bytes of the index.
    pub bytes: u64,
    /// How many seconds it is behind the journal; `None` until the journal was read.
    pub behind: Option<u64>,
    /// Why it is not indexed.
    pub problem: Option<String>,
}

impl Index {
    /// An empty index.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        let topology = Topology::new(settings.topology.clone());
        Self { settings, topology, journals: Mutex::default(), problem: Mutex::default() }
    }

    /// Reads and follows all journals until `stop` is set. `journals` are the queues that exist;
    /// `None` if they are unknown.
    pub fn run(&self, journals: impl Fn() -> Option<Vec<String>>, stop: &AtomicBool) {
        follow::run(self, journals, stop);
    }

    /// The journals in the index.
    #[must_use]
    pub fn journals(&self) -> Vec<IndexedJournal> {
        let of = |journal: &Arc<Journal>| {
            let state = journal.lock();
            IndexedJournal {
                app: journal.app.to_string(),
                messages: state.store.as_ref().map(|_| state.waiting),
                bytes: state.bytes,
                behind: state.caught_up.map(|at| at.elapsed().as_secs()),
                problem: state.problem.clone().or_else(|| self.problem()),
            }
        };
        self.all().iter().map(of).collect()
    }

    /// Lists scheduled messages, as [`list_scheduled`](super::list_scheduled).
    ///
    /// # Errors If the index has no complete answer.
    pub fn list(
        &self,
        app: &AppKey,
        filter: &ScheduleFilter,
        range: Range<usize>,
    ) -> Result<ScheduleList, Unindexed> {
        self.list_with(app, filter, range, RECALLS)
    }

    /// The same with recalls that are at most so old.
    fn list_with(
        &self,
        app: &AppKey,
        filter: &ScheduleFilter,
        range: Range<usize>,
        recalls: Duration,
    ) -> Result<ScheduleList, Unindexed> {
        self.ask(app, filter, recalls, |question, state, unchecked| {
            let Some(store) = &state.store else { return Ok(None) };
            let read = JournalRead { unreadable: question.unreadable(store)?, ..state.read.clone() };
            question.list(store, range, read, unchecked).map(Some)
        })
    }

    /// Counts scheduled messages, as [`count_scheduled`](super::count_scheduled).
    ///
    /// # Errors If the index has no complete answer.
    pub fn count(
        &self,
        app: &AppKey,
        filter: &ScheduleFilter,
        (by, zone): (CountBy, TimeZone),
    ) -> Result<ScheduleCount, Unindexed> {
        let mut slots = Slots::new(by, zone);
        let (estimated, journal, unchecked) =
            self.ask(app, filter, RECALLS, |question, state, unchecked| {
                let Some(store) = &state.store else { return Ok(None) };
                let read = JournalRead { unreadable: question.unreadable(store)?, ..state.read.clone() };
                Ok(Some((question.count(store, &mut slots)?, read, unchecked)))
            })?;
        Ok(slots.finish(app, estimated, journal, unchecked))
    }

    /// Counts the scheduled messages of one application, or of each, as [`count_apps`](super::count_apps). Among
    /// those of all, a recall may be missing for 10 s.
    ///
    /// # Errors If the index has no complete answer for the only application.
    pub fn count_apps(&self, app: Option<&AppKey>, filter: &ScheduleFilter) -> Result<AppCounts, Unindexed> {
        let (apps, recalls) = match app {
            Some(app) => (vec![app.clone()], RECALLS),
            None => (self.all().iter().map(|journal| journal.app.clone()).collect(), RECALLS_OF_ALL),
        };
        let mut counts = AppCounts::default();
        for each in apps {
            match self.list_with(&each, filter, 0..1, recalls) {
                Ok(list) => counts.apps.push(list),
                Err(error) if app.is_some() => return Err(error),
                Err(error @ (Unindexed::Past | Unindexed::Header(_))) => return Err(error),
                Err(error) => counts.unchecked.push(error.to_string()),
            }
        }
        Ok(counts)
    }

    /// Reads scheduled messages with their contents from the journal, 50 at most, and up to 64 KiB of each
    /// body.
    ///
    /// # Errors If the index has no complete answer, or the journal cannot be read.
    pub fn show(
        &self,
        app: &AppKey,
        filter: &ScheduleFilter,
        range: Range<usize>,
        body_bytes: usize,
    ) -> Result<Vec<FoundMessage>, ShowError> {
        let range = range.start..range.end.min(range.start.saturating_add(SHOWN));
        let list = self.list(app, filter, range)?;
        let mut found = Vec::new();
        let stop = AtomicBool::new(false);
        let of = (&self.settings, &self.topology, app);
        read_scheduled(of, &list, body_bytes.min(BODY), &stop, |message| {
            found.push(FoundMessage { body: Vec::new(), ..message });
            Ok::<_, AdminError>(())
        })?;
        found.sort_by_key(|it| it.message.due);
        Ok(found)
    }

    /// Puts a question to the store of an application.
    fn ask<T>(
        &self,
        app: &AppKey,
        filter: &ScheduleFilter,
        recalls: Duration,
        answer: impl FnOnce(&Question<'_>, &State, Vec<String>) -> rusqlite::Result<Option<T>>,
    ) -> Result<T, Unindexed> {
        let now = Timestamp::now();
        let from = filter.due_after.unwrap_or(now);
        if from < now {
            return Err(Unindexed::Past);
        }
        let mut headers = Vec::new();
        for header in &filter.headers {
            let place = self.settings.index.headers.iter().position(|name| *name == header.name);
            let Some(place) = place.filter(|_| header.value.len() <= MAX_VALUE) else {
                return Err(Unindexed::Header(header.name.clone()));
            };
            headers.push((place, header.value.as_str()));
        }
        let journal = self.all_locked().get(app).cloned();
        let journal = journal.ok_or_else(|| Unindexed::NoJournal(app.to_string()))?;
        journal.refuse_incomplete(self.problem())?;
        let failed = |reason: String| Unindexed::Failed { app: app.to_string(), reason };
        let known = self.recalls(&journal, recalls).map_err(|error| failed(error.to_string()))?;
        let state = journal.lock_in_turn();
        let chosen = Chosen {
            from: from.as_millisecond(),
            until: filter.due_before.map_or(i64::MAX, |before| before.as_millisecond()),
            width: state.width,
            id: filter.id.as_ref(),
            headers,
            place: filter.place,
            damaged: false,
        };
        let question = Question { app, filter, chosen, recalls: &known.0, now };
        match answer(&question, &state, known.1.clone()) {
            Ok(Some(answer)) => Ok(answer),
            Ok(None) => Err(Unindexed::NoJournal(app.to_string())),
            Err(error) => Err(failed(error.to_string())),
        }
    }

    /// The recalled keys of an application, at most so old.
    fn recalls(&self, journal: &Journal, age: Duration) -> Result<Arc<Recalls>, AdminError> {
        let mut known = journal.recalls.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, recalls)) = &*known
            && at.elapsed() < age
        {
            return Ok(Arc::clone(recalls));
        }
        let what = "which of them were recalled";
        let read = Arc::new(recalls(&self.settings, &self.topology, &journal.app, what)?);
        *known = Some((Instant::now(), Arc::clone(&read)));
        Ok(read)
    }

    fn all_locked(&self) -> MutexGuard<'_, BTreeMap<AppKey, Arc<Journal>>> {
        self.journals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn all(&self) -> Vec<Arc<Journal>> {
        self.all_locked().values().cloned().collect()
    }

    fn problem(&self) -> Option<String> {
        self.problem.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Journal {
    fn new(app: AppKey) -> Self {
        Self { app, state: Mutex::default(), wanted: AtomicBool::default(), recalls: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same after the follower's turn, if it waits.
    fn lock_in_turn(&self) -> MutexGuard<'_, State> {
        while self.wanted.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(1));
        }
        self.lock()
    }

    /// The same for the follower, which has missed its turn so many times; `None` while a question is answered,
    /// so that the other journals do not wait.
    fn turn(&self, missed: &mut u32) -> Option<MutexGuard<'_, State>> {
        let mut state = self.try_lock();
        if state.is_none() && *missed >= MISSED {
            self.wanted.store(true, Ordering::Relaxed);
            state = Some(self.lock());
            self.wanted.store(false, Ordering::Relaxed);
        }
        *missed = if state.is_some() { 0 } else { *missed + 1 };
        state
    }

    /// The same, but `None` while a question is answered.
    fn try_lock(&self) -> Option<MutexGuard<'_, State>> {
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(state)) => Some(state.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Fails if messages are missing.
    fn refuse_incomplete(&self, problem: Option<String>) -> Result<(), Unindexed> {
        let (state, app) = (self.lock(), self.app.to_string());
        if let Some(reason) = &state.problem {
            return Err(Unindexed::Failed { app, reason: reason.clone() });
        }
        let Some(caught_up) = state.caught_up.filter(|_| state.store.is_some()) else {
            let (read, all) = state.progress;
            return Err(Unindexed::Building { app, read, all });
        };
        if caught_up.elapsed() > BEHIND {
            let reason = problem.map(|problem| format!(": {problem}")).unwrap_or_default();
            return Err(Unindexed::Behind { app, seconds: caught_up.elapsed().as_secs(), reason });
        }
        Ok(())
    }
}

impl fmt::Debug for Index {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Index").field("journals", &self.journals()).finish_non_exhaustive()
    }
}
