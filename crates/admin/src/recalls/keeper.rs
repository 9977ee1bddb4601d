//! Sweeps at intervals, and counts.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use log::{Level, info};
use serde::Serialize;

use super::{SweepOptions, SweepReport, Unlisted, count_recalls, sweep_recalls};
use crate::{
    AdminError,
    complaint::Complaint,
    journal::{JournalGlance, glance_at_journal},
    management::ManagementApi,
};
use delayline_core::{codec::AppKey, topology::Topology};
use delayline_settings::Settings;

/// How often it looks. Each time, the management API lists all recalls.
const EVERY: Duration = Duration::from_secs(600);

/// The most of its time that it spends: a look that takes long is repeated later.
const SHARE: u32 = 20;

/// How long it looks at journals, at most. Each takes a second or two.
const GLANCES: Duration = Duration::from_secs(60);

/// How soon it looks again after a failure.
const AGAIN: Duration = Duration::from_secs(60);

/// How often it checks whether to stop.
const TICK: Duration = Duration::from_millis(100);

/// What is known of the recalls of an application.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct AppRecalls {
    /// Recalls that were there after the last sweep, also those that are over.
    pub pending: u64,
    /// Those of them that are over and could not be removed yet.
    pub over: u64,
    /// When the message of the oldest of those was due, at the latest.
    pub oldest_over: Option<Timestamp>,
    /// How many this process has removed.
    pub swept: u64,
}

impl AppRecalls {
    /// Forgets what was seen. What was removed stays counted when an application is gone.
    fn forget(&mut self) {
        *self = Self { swept: self.swept, ..Self::default() };
    }
}

/// What a sweeper has seen and done.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct RecallCounts {
    /// When recalls were last counted; `None` if they could not be yet.
    pub at: Option<Timestamp>,
    /// By application, of those whose messages can be recalled.
    pub apps: BTreeMap<String, AppRecalls>,
    /// The ends of each application's journal when it was last looked at: where there are many,
    /// not all are each time.
    pub journals: BTreeMap<String, JournalGlance>,
    /// Why nothing is removed at the moment, although something is over.
    pub postponed: Option<String>,
}

impl RecallCounts {
    /// Begins with new counts. Of applications whose recalls cannot be listed now, the last ones
    /// stay.
    fn begin(&mut self, now: Timestamp, unlisted: &Unlisted) {
        self.at = Some(now);
        let known = self.apps.iter_mut().filter(|(name, _)| !unlisted.contains_key(*name));
        known.for_each(|(_, app)| app.forget());
    }
}

/// What a [`Sweeper`] has seen and done, for metrics and the page.
#[derive(Debug, Default)]
pub struct RecallStats {
    counts: Mutex<RecallCounts>,
    /// When each journal was last looked at, in vain or not.
    looks: Mutex<BTreeMap<String, Instant>>,
}

impl RecallStats {
    fn lock(&self) -> MutexGuard<'_, RecallCounts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The counts as they are now.
    #[must_use]
    pub fn counts(&self) -> RecallCounts {
        self.lock().clone()
    }

    /// Counts the recalls of each application, and sweeps up none.
    ///
    /// # Errors
    /// If there is no management API, or the broker refuses.
    pub fn count(&self, settings: &Settings, topology: &Topology) -> Result<(), AdminError> {
        let (counted, unlisted) = count_recalls(settings, topology)?;
        let mut counts = self.lock();
        counts.begin(Timestamp::now(), &unlisted);
        for (name, counted) in counted {
            let app = counts.apps.entry(name).or_default();
            *app = AppRecalls { swept: app.swept, ..counted };
        }
        drop(counts);
        unlisted.into_values().next().map_or(Ok(()), |reason| Err(AdminError::NoManagement { reason }))
    }

    /// Looks at the ends of every journal, for so long at most: first at those that it looked
    /// at longest ago. What it knew of the others stays.
    ///
    /// # Errors
    /// If there is no management API, or the broker refuses. If journals cannot be read, it
    /// looks at the others, and tells of the first one.
    pub fn glance(
        &self,
        settings: &Settings,
        topology: &Topology,
        at_most: Duration,
        stop: &AtomicBool,
    ) -> Result<(), AdminError> {
        let Some(management) = &settings.management else { return Ok(()) };
        let queues = ManagementApi::new(management)?.queue_counts(&settings.broker.vhost)?;
        let of = |name: &str| topology.names().app_of_journal(name).and_then(|app| AppKey::new(app).ok());
        let filled = queues.iter().filter(|queue| queue.messages > 0);
        let copies: HashMap<_, _> =
            filled.filter_map(|queue| Some((of(&queue.name)?, queue.messages))).collect();
        self.look_in_turn(copies.keys().cloned().collect(), at_most, stop, |app| {
            glance_at_journal(settings, topology, (app, copies[app]), stop)
        })
    }

    /// Looks at the journals of these applications, and forgets all others.
    fn look_in_turn(
        &self,
        mut apps: Vec<AppKey>,
        at_most: Duration,
        stop: &AtomicBool,
        mut look: impl FnMut(&AppKey) -> Result<JournalGlance, AdminError>,
    ) -> Result<(), AdminError> {
        let mut looks = self.looks.lock().unwrap_or_else(PoisonError::into_inner);
        apps.sort_by_key(|app| looks.get(app.as_str()).copied());
        self.lock().journals.retain(|name, _| apps.iter().any(|app| app.as_str() == name));
        let (began, mut failed) = (Instant::now(), Ok(()));
        for app in &apps {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            looks.insert(app.to_string(), Instant::now());
            match look(app) {
                // What was stopped may have seen nothing.
                Ok(_) if stop.load(Ordering::Relaxed) => {}
                Ok(glance) => drop(self.lock().journals.insert(app.to_string(), glance)),
                Err(error) => failed = failed.and(Err(error)),
            }
            if began.elapsed() > at_most {
                break;
            }
        }
        looks.retain(|name, _| apps.iter().any(|app| app.as_str() == name));
        failed
    }

    /// Takes in what a sweep did.
    fn note(&self, report: &SweepReport, now: Timestamp) {
        let mut counts = self.lock();
        counts.begin(now, &report.unchecked);
        counts.postponed.clone_from(&report.postponed);
        for (name, swept) in &report.apps {
            let app = counts.apps.entry(name.clone()).or_default();
            app.pending = (swept.recalls - swept.swept) as u64;
            (app.over, app.oldest_over) = (swept.left as u64, swept.oldest_left);
            app.swept += swept.swept as u64;
        }
    }
}

/// Does what [`sweep_recalls`] does, by itself: every ten minutes, or less often where it takes
/// long. It looks at journals, too.
#[derive(Debug)]
pub struct Sweeper {
    settings: Settings,
    topology: Topology,
    stats: Arc<RecallStats>,
    options: SweepOptions,
    every: Duration,
    /// Whether it only counts.
    counts: bool,
    of_recalls: Complaint,
    of_journals: Complaint,
}

impl Sweeper {
    /// One for the set of the settings; nothing is asked yet.
    #[must_use]
    pub fn new(settings: Settings, stats: Arc<RecallStats>) -> Self {
        let topology = Topology::new(settings.topology.clone());
        let options = SweepOptions::default();
        let (of_recalls, of_journals) = (Complaint::of(module_path!()), Complaint::of(module_path!()));
        Self { settings, topology, stats, options, every: EVERY, counts: false, of_recalls, of_journals }
    }

    /// Lets it change nothing, and only count.
    #[must_use]
    pub fn only_counting(self) -> Self {
        Self { counts: true, ..self }
    }

    /// Sets how it sweeps.
    #[must_use]
    pub fn with(self, options: SweepOptions) -> Self {
        Self { options, ..self }
    }

    /// Sets how often it sweeps; every ten minutes by default.
    #[must_use]
    pub fn every(self, every: Duration) -> Self {
        Self { every, ..self }
    }

    /// Sweeps until `stop` is set, through restarts of the broker. Without a management API it
    /// can do nothing, says so and ends.
    pub fn run(mut self, stop: &AtomicBool) {
        if self.settings.management.is_none() {
            return info!("without a management API, recalls are not swept up");
        }
        let mut next = Instant::now();
        while !stop.load(Ordering::Relaxed) {
            if Instant::now() < next {
                thread::sleep(TICK);
                continue;
            }
            let began = Instant::now();
            let pause = match self.turn(stop) {
                Ok(()) => self.every.max(began.elapsed() * SHARE),
                Err(error) => {
                    self.of_recalls.tell(self.level(), Some(error));
                    AGAIN.min(self.every)
                }
            };
            next = Instant::now() + pause;
        }
    }

    fn turn(&mut self, stop: &AtomicBool) -> Result<(), String> {
        let (settings, topology) = (&self.settings, &self.topology);
        // A journal that cannot be read is no reason to sweep more often.
        let glanced = self.stats.glance(settings, topology, GLANCES, stop).err();
        let blind = glanced.map(|error| format!("the ends of a journal are not known: {error}"));
        self.of_journals.tell(self.level(), blind);
        if self.counts {
            self.stats
                .count(settings, topology)
                .map_err(|error| format!("recalls are not counted: {error}"))?;
        } else {
            let report = sweep_recalls(settings, topology, &self.options, stop)
                .map_err(|error| format!("recalls are not swept up: {error}"))?;
            self.note(&report);
        }
        Ok(())
    }

    fn note(&mut self, report: &SweepReport) {
        self.stats.note(report, Timestamp::now());
        if report.swept > 0 {
            let left = report.recalls - report.swept;
            info!("swept up {} recalls of messages that are over; {left} are pending", report.swept);
        }
        let postponed = report.postponed.as_ref();
        let postponed =
            postponed.map(|reason| format!("{} recalls are over and stay: {reason}", report.left));
        let unlisted = report.unchecked.values().next().cloned();
        self.of_recalls.tell(self.level(), unlisted.or(postponed));
    }

    /// How loud complaints are: who only counts may have a screen that a log would spoil.
    fn level(&self) -> Level {
        if self.counts { Level::Debug } else { Level::Warn }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SweptApp;

    #[test]
    fn a_journal_that_cannot_be_read_keeps_nobody_from_the_others() {
        let apps = |names: &[&str]| names.iter().map(|name| AppKey::new(*name).unwrap()).collect::<Vec<_>>();
        let (stats, stop) = (RecallStats::default(), AtomicBool::new(false));
        let seen = std::cell::RefCell::new(Vec::new());
        let look = |app: &AppKey| {
            seen.borrow_mut().push(app.to_string());
            match app.as_str() {
                "b" => Err(AdminError::NoManagement { reason: "it is broken".into() }),
                _ => Ok(JournalGlance {
                    cut_off: Some(seen.borrow().len() as u64),
                    ..JournalGlance::default()
                }),
            }
        };
        let failed = stats.look_in_turn(apps(&["b", "a", "c"]), Duration::MAX, &stop, look);
        assert!(failed.unwrap_err().to_string().contains("it is broken"));
        assert_eq!(seen.take(), ["b", "a", "c"]);
        let known: Vec<_> = stats.counts().journals.into_keys().collect();
        assert_eq!(known, ["a", "c"]);

        // Without time for all, the next one is that which was looked at longest ago; the others
        // stay known, and one that is gone does not.
        let one = |names| {
            drop(stats.look_in_turn(apps(names), Duration::ZERO, &stop, |app| {
                thread::sleep(Duration::from_millis(1));
                look(app)
            }))
        };
        one(&["a", "b", "c", "d"]);
        one(&["a", "b", "c"]);
        one(&["a", "b", "c"]);
        assert_eq!(seen.take(), ["d", "b", "a"]);
        let known: Vec<_> = stats.counts().journals.into_keys().collect();
        assert_eq!(known, ["a", "c"]);

        stop.store(true, Ordering::Relaxed);
        assert!(stats.look_in_turn(apps(&["a"]), Duration::MAX, &stop, look).is_ok());
        assert_eq!(seen.take(), [""; 0]);
    }

    #[test]
    fn what_was_removed_is_added_up_and_what_is_there_is_not() {
        let stats = RecallStats::default();
        let report = |app: &str, recalls, swept, left| {
            let mut report = SweepReport::default();
            let mut of = SweptApp::default();
            (of.recalls, of.swept, of.left) = (recalls, swept, left);
            report.apps.insert(app.into(), of);
            report
        };
        stats.note(&report("a", 10, 4, 0), Timestamp::UNIX_EPOCH);
        stats.note(&report("a", 9, 2, 3), Timestamp::UNIX_EPOCH);
        let counts = stats.counts();
        assert_eq!(counts.apps["a"], AppRecalls { pending: 7, over: 3, oldest_over: None, swept: 6 });
        // It was removed.
        stats.note(&report("b", 1, 0, 0), Timestamp::UNIX_EPOCH);
        let counts = stats.counts();
        assert_eq!(counts.apps["a"], AppRecalls { swept: 6, ..AppRecalls::default() });
        assert_eq!(counts.apps["b"].pending, 1);
    }
}
