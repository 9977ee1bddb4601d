//! What the daemon's web server says.

use std::sync::{Arc, atomic::AtomicBool};

use jiff::Timestamp;
use serde_json::json;

use delayline_admin::{Kept, RecallStats, UnstickStats};
use delayline_client::{gateway::GatewayCounters, retry::RetryStats, router::Stats};
use delayline_settings::{Layout, Settings};
use delayline_watch::{
    canary::{LayoutCanary, Watched},
    metrics::{Exposition, Inside},
    picture::{Live, Sources, Watch, watch_layouts},
    web::{DASHBOARD, Site},
};

use super::{agreement::Agreement, checkup, readiness::readiness};

/// What is counted inside this process.
#[derive(Debug, Clone, Default)]
pub(super) struct Counters {
    /// What the retry service decides, if there is one.
    retries: Option<Arc<RetryStats>>,
    retry: Arc<Stats>,
    canary: Arc<Stats>,
    watched: Arc<Watched>,
    /// The layouts of others, and what is known of a canary in each.
    pub(super) layouts: Vec<(Layout, LayoutCanary)>,
    unstick: Arc<UnstickStats>,
    gateways: Option<Arc<GatewayCounters>>,
    /// What the sweeper sees and does, if there is one.
    recalls: Option<Arc<RecallStats>>,
}

impl Counters {
    pub(super) fn new(retrying: bool, gateways: bool, sweeping: bool, layouts: &[Layout]) -> Self {
        let layouts = layouts.iter().map(|layout| (layout.clone(), LayoutCanary::default())).collect();
        let gateways = gateways.then(Arc::default);
        let recalls = sweeping.then(Arc::default);
        Self { retries: retrying.then(Arc::default), layouts, gateways, recalls, ..Self::default() }
    }

    pub(super) fn of_retries(&self) -> (Arc<RetryStats>, Arc<Stats>) {
        (self.retries.clone().unwrap_or_default(), Arc::clone(&self.retry))
    }

    fn inside(&self) -> Inside {
        Inside {
            started: Some(Timestamp::now()),
            retry: self.retries.clone().map(|retries| (retries, Arc::clone(&self.retry))),
            canary: Some((Arc::clone(&self.watched), Arc::clone(&self.canary))),
            layouts: self.layouts.clone(),
            unstick: Some(Arc::clone(&self.unstick)),
            gateways: self.gateways.clone(),
            recalls: self.recalls.clone(),
        }
    }

    pub(super) fn of_gateways(&self) -> Arc<GatewayCounters> {
        self.gateways.clone().unwrap_or_default()
    }

    pub(super) fn of_sweeper(&self) -> Arc<RecallStats> {
        self.recalls.clone().unwrap_or_default()
    }

    pub(super) fn of_unsticker(&self) -> Arc<UnstickStats> {
        Arc::clone(&self.unstick)
    }

    pub(super) fn of_canary(&self) -> (Arc<Stats>, Arc<Watched>) {
        (Arc::clone(&self.canary), Arc::clone(&self.watched))
    }
}

/// Starts to watch the set for the visitors of the site.
pub(super) fn watch(settings: &Settings, counters: &Counters, stop: &Arc<AtomicBool>) -> Watch {
    let sources = Sources {
        retries: counters.retries.clone(),
        canary: Some(Arc::clone(&counters.watched)),
        recalls: counters.recalls.clone(),
        layouts: watch_layouts(settings, counters.layouts.clone(), stop),
        ages: true,
        ..Sources::default()
    };
    let recalls = counters.recalls.clone();
    checkup::start(settings.clone(), recalls, Arc::clone(&sources.checkup), Arc::clone(stop));
    Watch::start(settings.clone(), sources)
}

pub(super) fn site(counters: &Counters, live: &Arc<Live>, agreement: &Agreement) -> Site {
    let agreement = agreement.clone();
    let inside = counters.inside();
    let (metrics, ready) = (Arc::clone(live), Arc::clone(live));
    let (picture, unroutable, parked) = (Arc::clone(live), Arc::clone(live), Arc::clone(live));
    Site::new(DASHBOARD)
        .with_json("/api/picture", move || json!(picture.picture()))
        .with_json("/api/unroutable", move || json!(unroutable.kept(&Kept::Unroutable)))
        .with_json("/api/parked", move || json!(parked.kept(&Kept::Parked)))
        .with_metrics(move || Exposition { picture: metrics.latest(), inside: inside.clone() }.text())
        .with_readiness(move || {
            let mut readiness = readiness(&ready.latest());
            readiness.checks.push(agreement.check());
            readiness
        })
}
