//! Sweeps at intervals, and counts.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use log::{Level, info, log};
use serde::Serialize;

use super::{SweepOptions, SweepReport, count_recalls, sweep_recalls};
use crate::{
    AdminError,
    journal::{JournalGlance, glance_at_journal},
    management::ManagementApi,
};
use delayline::{codec::AppKey, topology::Topology};
use delayline_settings::Settings;

/// How often it looks. Each time, the management API lists all recalls.
const EVERY: Duration = Duration::from_secs(600);

/// The most of its time that it spends: a look that takes long is repeated later.
const SHARE: u32 = 20;

/// How long it looks at journals, at most. Each takes about half a second.
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
    /// The ends of each application's journal, as far as there was time to look at them.
    pub journals: BTreeMap<String, JournalGlance>,
    /// Why nothing is removed at the moment, although something is over.
    pub postponed: Option<String>,
}

/// What a [`Sweeper`] has seen and done, for metrics and the page.
#[derive(Debug, Default)]
pub struct RecallStats(Mutex<RecallCounts>);

impl RecallStats {
    fn lock(&self) -> MutexGuard<'_, RecallCounts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
        let counted = count_recalls(settings, topology)?;
        let mut counts = self.lock();
        counts.at = Some(Timestamp::now());
        counts.apps.values_mut().for_each(AppRecalls::forget);
        for (name, counted) in counted {
            let app = counts.apps.entry(name).or_default();
            *app = AppRecalls { swept: app.swept, ..counted };
        }
        Ok(())
    }

    /// Looks at the ends of every journal, for so long at most.
    ///
    /// # Errors
    /// If there is no management API, or the broker refuses.
    pub fn glance(
        &self,
        settings: &Settings,
        topology: &Topology,
        at_most: Duration,
    ) -> Result<(), AdminError> {
        let Some(management) = &settings.management else { return Ok(()) };
        let queues = ManagementApi::new(management)?.queue_counts(&settings.broker.vhost)?;
        let (began, mut journals) = (Instant::now(), BTreeMap::new());
        for queue in queues.iter().filter(|queue| queue.messages > 0) {
            let app = topology.names().app_of_journal(&queue.name).and_then(|app| AppKey::new(app).ok());
            let Some(app) = app else { continue };
            if began.elapsed() > at_most {
                break;
            }
            journals.insert(app.to_string(), glance_at_journal(settings, topology, &app)?);
        }
        self.lock().journals = journals;
        Ok(())
    }

    /// Takes in what a sweep did.
    fn note(&self, report: &SweepReport, now: Timestamp) {
        let mut counts = self.lock();
        counts.at = Some(now);
        counts.postponed.clone_from(&report.postponed);
        counts.apps.values_mut().for_each(AppRecalls::forget);
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
    /// The last complaint, which is not repeated.
    told: Option<String>,
}

impl Sweeper {
    /// One for the set of the settings; nothing is asked yet.
    #[must_use]
    pub fn new(settings: Settings, stats: Arc<RecallStats>) -> Self {
        let topology = Topology::new(settings.topology.clone());
        let options = SweepOptions::default();
        Self { settings, topology, stats, options, every: EVERY, counts: false, told: None }
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
                    self.tell(Some(error));
                    AGAIN.min(self.every)
                }
            };
            next = Instant::now() + pause;
        }
    }

    fn turn(&mut self, stop: &AtomicBool) -> Result<(), String> {
        let (settings, topology) = (&self.settings, &self.topology);
        let glanced = self.stats.glance(settings, topology, GLANCES);
        if self.counts {
            self.stats
                .count(settings, topology)
                .map_err(|error| format!("recalls are not counted: {error}"))?;
        } else {
            let report = sweep_recalls(settings, topology, &self.options, stop)
                .map_err(|error| format!("recalls are not swept up: {error}"))?;
            self.note(&report);
        }
        glanced.map_err(|error| format!("journals are not looked at: {error}"))
    }

    fn note(&mut self, report: &SweepReport) {
        self.stats.note(report, Timestamp::now());
        if report.swept > 0 {
            let left = report.recalls - report.swept;
            info!("swept up {} recalls of messages that are over; {left} are pending", report.swept);
        }
        let postponed = report.postponed.as_ref();
        self.tell(postponed.map(|reason| format!("{} recalls are over and stay: {reason}", report.left)));
    }

    /// Logs a complaint once, until there is another.
    fn tell(&mut self, text: Option<String>) {
        if let Some(text) = text.as_ref().filter(|text| self.told.as_ref() != Some(text)) {
            // Who only counts may have a screen that a log would spoil.
            log!(if self.counts { Level::Debug } else { Level::Warn }, "{text}");
        }
        self.told = text;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SweptApp;

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
