//! What the two sides of a router have in common: its limits, and what they tell each other
//! besides the messages.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use delayline_core::topology::Names;

use super::{Cause, RouterBuilder, Stats};

/// The worker's settings, and its counters.
#[derive(Debug)]
pub(super) struct Limits {
    pub(super) window: usize,
    pub(super) confirm_timeout: Duration,
    pub(super) entry: String,
    pub(super) stats: Arc<Stats>,
}

impl Limits {
    pub(super) fn new(builder: &RouterBuilder) -> Self {
        Self {
            window: builder.window,
            confirm_timeout: builder.confirm_timeout,
            entry: Names::new(builder.set.clone()).entry(),
            stats: Arc::clone(&builder.stats),
        }
    }
}

/// What publishers and the worker tell each other besides the messages.
#[derive(Debug, Default)]
pub(super) struct Shared(Mutex<SharedState>);

#[derive(Debug, Default)]
pub(super) struct SharedState {
    pub(super) waiting: Option<Cause>,
    pub(super) close_by: Option<Instant>,
    pub(super) given_up: usize,
}

impl Shared {
    pub(super) fn with<T>(&self, work: impl FnOnce(&mut SharedState) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Why nothing can be sent at the moment.
    pub(super) fn reason_for_waiting(&self) -> Option<Cause> {
        self.with(|state| state.waiting.clone())
    }

    /// Records that there is no connection, and why.
    pub(super) fn not_connected(&self, reason: &dyn ToString) {
        let reason = reason.to_string();
        self.with(|state| state.waiting = Some(Cause::NotConnected { reason }));
    }

    /// Asks the worker to end by that time.
    pub(super) fn close_by(&self, deadline: Instant) {
        self.with(|state| state.close_by = Some(deadline));
    }

    /// How many messages were not confirmed when the router was closed.
    pub(super) fn given_up(&self) -> usize {
        self.with(|state| state.given_up)
    }
}
