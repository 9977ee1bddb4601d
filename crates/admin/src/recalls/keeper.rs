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
use log::{info, warn};
use serde::Serialize;

use super::{SweepOptions, SweepReport, sweep_recalls};
use delayline::topology::Topology;
use delayline_settings::Settings;

/// How often it looks. Each time, the management API lists all recalls.
const EVERY: Duration = Duration::from_secs(600);

/// The most of its time that it spends: a look that takes long is repeated later.
const SHARE: u32 = 20;

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
    /// How many this process has removed.
    pub swept: u64,
}

/// What a sweeper has seen and done.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct RecallCounts {
    /// When recalls were last counted; `None` if they could not be yet.
    pub at: Option<Timestamp>,
    /// By application, of those whose messages can be recalled.
    pub apps: BTreeMap<String, AppRecalls>,
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

    /// Takes in what a sweep did.
    fn note(&self, report: &SweepReport, now: Timestamp) {
        let mut counts = self.lock();
        counts.at = Some(now);
        counts.postponed.clone_from(&report.postponed);
        // What was removed stays counted when an application is gone.
        for app in counts.apps.values_mut() {
            (app.pending, app.over) = (0, 0);
        }
        for (name, swept) in &report.apps {
            let app = counts.apps.entry(name.clone()).or_default();
            app.pending = (swept.recalls - swept.swept) as u64;
            app.over = swept.left as u64;
            app.swept += swept.swept as u64;
        }
    }
}

/// Does what [`sweep_recalls`] does, by itself: every ten minutes, or less often where it takes
/// long.
#[derive(Debug)]
pub struct Sweeper {
    settings: Settings,
    topology: Topology,
    stats: Arc<RecallStats>,
    options: SweepOptions,
    every: Duration,
    /// The last complaint, which is not repeated.
    told: Option<String>,
}

impl Sweeper {
    /// One for the set of the settings; nothing is asked yet.
    #[must_use]
    pub fn new(settings: Settings, stats: Arc<RecallStats>) -> Self {
        let topology = Topology::new(settings.topology.clone());
        let options = SweepOptions::default();
        Self { settings, topology, stats, options, every: EVERY, told: None }
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
            let pause = match sweep_recalls(&self.settings, &self.topology, &self.options, stop) {
                Ok(report) => {
                    self.note(&report);
                    self.every.max(began.elapsed() * SHARE)
                }
                Err(error) => {
                    self.tell(Some(format!("recalls are not swept up: {error}")));
                    AGAIN.min(self.every)
                }
            };
            next = Instant::now() + pause;
        }
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
            warn!("{text}");
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
        assert_eq!(counts.apps["a"], AppRecalls { pending: 7, over: 3, swept: 6 });
        // It was removed.
        stats.note(&report("b", 1, 0, 0), Timestamp::UNIX_EPOCH);
        let counts = stats.counts();
        assert_eq!(counts.apps["a"], AppRecalls { pending: 0, over: 0, swept: 6 });
        assert_eq!(counts.apps["b"].pending, 1);
    }
}
