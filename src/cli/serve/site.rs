//! What the daemon's web server says.

use std::sync::{Arc, atomic::AtomicBool};

use serde_json::json;

use crate::{Settings, canary::Watched, retry::Tally, router::Stats, web::Site};

/// What is counted inside this process.
#[derive(Debug, Clone, Default)]
pub(super) struct Counters {
    /// What the retry service decides, if there is one.
    tally: Option<Arc<Tally>>,
    retry: Arc<Stats>,
    canary: Arc<Stats>,
    watched: Arc<Watched>,
}

impl Counters {
    pub(super) fn new(retrying: bool) -> Self {
        Self { tally: retrying.then(Arc::default), ..Self::default() }
    }

    pub(super) fn of_retries(&self) -> (Arc<Tally>, Arc<Stats>) {
        (self.tally.clone().unwrap_or_default(), Arc::clone(&self.retry))
    }

    pub(super) fn of_canary(&self) -> (Arc<Stats>, Arc<Watched>) {
        (Arc::clone(&self.canary), Arc::clone(&self.watched))
    }
}

pub(super) fn site(_settings: &Settings, _counters: &Counters, _stop: &Arc<AtomicBool>) -> Site {
    Site::new("delayline").with_json("/api/picture", || json!({}))
}
