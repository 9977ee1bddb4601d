//! Removes expired recalls at intervals, and counts.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::AtomicBool},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use log::{Level, info};
use serde::Serialize;

use crate::{
    complaint::Complaint, error::AdminError, scheduled::AppRecalls, scheduled::SweepOptions,
    scheduled::SweepReport, scheduled::count_recalls, scheduled::recalls::Unlisted, scheduled::sweep_recalls,
};
use delayline_core::{backoff::wait, topology::Topology};
use delayline_settings::Settings;

/// How often it looks. Each time, the management API lists all recalls.
const EVERY: Duration = Duration::from_secs(600);

/// The largest share of its time that it works: after a slow run, it waits longer.
const SHARE: u32 = 20;

/// How soon it looks again after a failure.
const AGAIN: Duration = Duration::from_secs(60);

/// The counts of a sweeper.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct RecallCounts {
    /// When recalls were last counted; `None` if they could not be yet.
    pub at: Option<Timestamp>,
    /// By application, of those whose messages can be recalled.
    pub apps: BTreeMap<String, AppRecalls>,
    /// Why expired recalls are not removed at the moment.
    pub postponed: Option<String>,
}

impl RecallCounts {
    /// Begins with new counts. The last counts stay for applications whose recalls cannot be listed now.
    fn begin(&mut self, now: Timestamp, unlisted: &Unlisted) {
        self.at = Some(now);
        let known = self.apps.iter_mut().filter(|(name, _)| !unlisted.contains_key(*name));
        known.for_each(|(_, app)| app.forget());
    }
}

/// The counts of a [`Sweeper`], for metrics and the page.
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

    /// Counts the recalls of each application, and removes none.
    ///
    /// # Errors If there is no management API, or the broker refuses.
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

    /// Adds the result of a sweep.
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

/// Runs [`sweep_recalls`] automatically: every ten minutes, or less often if it takes long.
#[derive(Debug)]
pub struct Sweeper {
    settings: Settings,
    topology: Topology,
    stats: Arc<RecallStats>,
    options: SweepOptions,
    every: Duration,
    /// Whether it only counts.
    counts: bool,
    complaint: Complaint,
}

impl Sweeper {
    /// A sweeper for the set of the settings; nothing is asked yet.
    #[must_use]
    pub fn new(settings: Settings, stats: Arc<RecallStats>) -> Self {
        let topology = Topology::new(settings.topology.clone());
        let options = SweepOptions::default();
        let complaint = Complaint::of(module_path!());
        Self { settings, topology, stats, options, every: EVERY, counts: false, complaint }
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

    /// Sweeps until `stop` is set, through restarts of the broker. Without a management API it logs that
    /// and ends.
    pub fn run(mut self, stop: &AtomicBool) {
        if self.settings.management.is_none() {
            return info!("without a management API, expired recalls are not removed");
        }
        let mut pause = Duration::ZERO;
        while wait(stop, pause) {
            let began = Instant::now();
            pause = match self.turn(stop) {
                Ok(()) => self.every.max(began.elapsed() * SHARE),
                Err(error) => {
                    self.complaint.tell(self.level(), Some(error));
                    AGAIN.min(self.every)
                }
            };
        }
    }

    fn turn(&mut self, stop: &AtomicBool) -> Result<(), String> {
        let (settings, topology) = (&self.settings, &self.topology);
        if self.counts {
            self.stats
                .count(settings, topology)
                .map_err(|error| format!("recalls are not counted: {error}"))?;
        } else {
            let report = sweep_recalls(settings, topology, &self.options, stop)
                .map_err(|error| format!("expired recalls are not removed: {error}"))?;
            self.note(&report);
        }
        Ok(())
    }

    fn note(&mut self, report: &SweepReport) {
        self.stats.note(report, Timestamp::now());
        if report.swept > 0 {
            let left = report.recalls - report.swept;
            info!("removed {} expired recalls; {left} are pending", report.swept);
        }
        let postponed = report.postponed.as_ref();
        let postponed = postponed.map(|reason| format!("{} expired recalls stay: {reason}", report.left));
        let unlisted = report.unchecked.values().next().cloned();
        self.complaint.tell(self.level(), unlisted.or(postponed));
    }

    /// The log level of its warnings. A sweeper that only counts may have a screen that a log would spoil.
    fn level(&self) -> Level {
        if self.counts { Level::Debug } else { Level::Warn }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduled::SweptApp;

    #[test]
    fn removed_recalls_are_added_up_and_pending_ones_are_not() {
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
