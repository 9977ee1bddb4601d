//! The answers of the daemon's web server.

use std::sync::{Arc, atomic::AtomicBool};

use jiff::Timestamp;
use serde_json::json;

use delayline_admin::{Index, Kept, RecallStats, UnstickStats};
use delayline_broker::Survey;
use delayline_client::{gateway::GatewayCounters, retry::RetryStats, router::Stats};
use delayline_schedules::ScheduleStats;
use delayline_settings::Settings;
use delayline_watch::{
    canary::Watched,
    metrics::{Exposition, Inside},
    picture::{Live, Sources, Watch, watch_layouts},
    web::{DASHBOARD, Site},
};

use super::{agreement::Agreement, checkup, parts::Parts, readiness::readiness, scheduled};

/// The counters of this process.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counters {
    /// The decisions of the retry service, if it runs.
    retries: Option<Arc<RetryStats>>,
    retry: Arc<Stats>,
    canary: Arc<Stats>,
    watched: Arc<Watched>,
    unstick: Arc<UnstickStats>,
    gateways: Option<Arc<GatewayCounters>>,
    /// The results of the sweeper, if it runs.
    recalls: Option<Arc<RecallStats>>,
    /// The schedules, if it publishes any.
    schedules: Option<Arc<ScheduleStats>>,
    /// The index of scheduled messages, if it keeps one.
    index: Option<Arc<Index>>,
}

impl Counters {
    pub(crate) fn new(settings: &Settings, parts: &Parts) -> Self {
        Self {
            retries: parts.retries.is_some().then(Arc::default),
            gateways: parts.gateways.then(Arc::default),
            recalls: parts.sweeping.then(Arc::default),
            schedules: parts.schedules.then(Arc::default),
            index: parts.index.then(|| Arc::new(Index::new(settings.clone()))),
            ..Self::default()
        }
    }

    pub(crate) fn of_retries(&self) -> (Arc<RetryStats>, Arc<Stats>) {
        (self.retries.clone().unwrap_or_default(), Arc::clone(&self.retry))
    }

    fn inside(&self) -> Inside {
        Inside {
            started: Some(Timestamp::now()),
            retry: self.retries.clone().map(|retries| (retries, Arc::clone(&self.retry))),
            canary: Some((Arc::clone(&self.watched), Arc::clone(&self.canary))),
            unstick: Some(Arc::clone(&self.unstick)),
            gateways: self.gateways.clone(),
            recalls: self.recalls.clone(),
            schedules: self.schedules.clone(),
            index: self.index.clone(),
        }
    }

    pub(crate) fn index(&self) -> Option<Arc<Index>> {
        self.index.clone()
    }

    pub(crate) fn of_gateways(&self) -> Arc<GatewayCounters> {
        self.gateways.clone().unwrap_or_default()
    }

    pub(crate) fn of_sweeper(&self) -> Arc<RecallStats> {
        self.recalls.clone().unwrap_or_default()
    }

    pub(crate) fn of_schedules(&self) -> Arc<ScheduleStats> {
        self.schedules.clone().unwrap_or_default()
    }

    pub(crate) fn of_unsticker(&self) -> Arc<UnstickStats> {
        Arc::clone(&self.unstick)
    }

    pub(crate) fn of_canary(&self) -> (Arc<Stats>, Arc<Watched>) {
        (Arc::clone(&self.canary), Arc::clone(&self.watched))
    }
}

/// Starts to watch the set for the visitors of the site.
pub(crate) fn watch(
    settings: &Settings,
    survey: &Arc<Survey>,
    counters: &Counters,
    stop: &Arc<AtomicBool>,
) -> Watch {
    let sources = Sources {
        retries: counters.retries.clone(),
        canary: Some(Arc::clone(&counters.watched)),
        recalls: counters.recalls.clone(),
        schedules: counters.schedules.clone(),
        layouts: watch_layouts(settings, survey, stop),
        survey: Some(Arc::clone(survey)),
        ages: true,
        ..Sources::default()
    };
    let recalls = counters.recalls.clone();
    let of = (settings.clone(), Arc::clone(survey));
    checkup::start(of, (recalls, counters.index()), Arc::clone(&sources.checkup), Arc::clone(stop));
    Watch::start(settings.clone(), sources)
}

pub(crate) fn site(
    counters: &Counters,
    live: &Arc<Live>,
    agreement: &Agreement,
    settings: &Settings,
) -> Site {
    let agreement = agreement.clone();
    let inside = counters.inside();
    let (metrics, ready) = (Arc::clone(live), Arc::clone(live));
    let (picture, unroutable, parked) = (Arc::clone(live), Arc::clone(live), Arc::clone(live));
    let mut site = Site::new(DASHBOARD);
    if let Some(index) = counters.index() {
        let settings = settings.clone();
        site = site.with_queries("/api/scheduled/", move |visitor, path, query| {
            scheduled::answer((&index, &settings), visitor, path, query)
        });
    }
    site.with_json("/api/picture", move || json!(picture.picture()))
        .with_json("/api/unroutable", move || json!(unroutable.kept(&Kept::Unroutable)))
        .with_json("/api/parked", move || json!(parked.kept(&Kept::Parked)))
        .with_metrics(move || Exposition { picture: metrics.latest(), inside: inside.clone() }.text())
        .with_readiness(move || {
            let mut readiness = readiness(&ready.latest());
            readiness.checks.push(agreement.check());
            readiness
        })
}
