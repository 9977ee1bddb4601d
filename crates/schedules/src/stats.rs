//! Schedules as a daemon knows them, for metrics.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use jiff::Timestamp;
use serde::Serialize;

use crate::book::State;

/// A schedule as a daemon knows it.
#[derive(Debug, Clone, PartialEq, Serialize, schemars::JsonSchema)]
pub struct ScheduleLine {
    /// Its application.
    pub app: String,
    /// What it does.
    pub state: State,
    /// Its next occurrence; in the past if it should have been published.
    pub next: Option<Timestamp>,
    /// How many messages this daemon has published for it.
    pub published: u64,
    /// How many occurrences were missed and not published since this daemon started.
    pub missed: u64,
}

/// All schedules as a daemon knows them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct ScheduleCounts {
    /// Whether this daemon publishes; others wait for their turn.
    pub leads: bool,
    /// The schedules, by name.
    pub schedules: BTreeMap<String, ScheduleLine>,
}

/// The counts of a [`Scheduler`](crate::Scheduler).
#[derive(Debug, Default)]
pub struct ScheduleStats(Mutex<ScheduleCounts>);

impl ScheduleStats {
    pub(crate) fn lock(&self) -> MutexGuard<'_, ScheduleCounts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The counts as they are now.
    #[must_use]
    pub fn counts(&self) -> ScheduleCounts {
        self.lock().clone()
    }
}
