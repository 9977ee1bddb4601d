//! What the daemon's web server says.

use std::sync::Arc;

use serde_json::json;

use crate::{
    Settings,
    canary::Watched,
    picture::{Kept, Live, Sources, Watch},
    retry::Tally,
    router::Stats,
    web::{DASHBOARD, Site},
};

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

/// Begins to watch the set, for whoever looks at the site.
pub(super) fn watch(settings: &Settings, counters: &Counters) -> Watch {
    let sources = Sources {
        tally: counters.tally.clone(),
        canary: Some(Arc::clone(&counters.watched)),
        ..Sources::default()
    };
    Watch::start(settings.clone(), sources)
}

pub(super) fn site(_settings: &Settings, _counters: &Counters, live: &Arc<Live>) -> Site {
    let (picture, unroutable, parked) = (Arc::clone(live), Arc::clone(live), Arc::clone(live));
    Site::new(DASHBOARD)
        .with_json("/api/picture", move || json!(picture.picture()))
        .with_json("/api/unroutable", move || json!(unroutable.kept(Kept::Unroutable)))
        .with_json("/api/parked", move || json!(parked.kept(Kept::Parked)))
}
