//! The daemon of a set: the retry service, gateways, schedules, sweeping, unsticking, a canary and a page.
//!
//! Each part has a thread of its own. What depends on the time acts only while the clock and the unit
//! agree with the broker's. A part that panics ends the daemon, and what starts it again finds all parts
//! at work.

mod agreement;
mod checkup;
mod files;
mod gateways;
mod parts;
mod readiness;
mod scheduled;
mod site;
mod waiting;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use log::{error, info, warn};

use delayline_admin::{Sweeper, Unsticker};
use delayline_broker::Survey;
use delayline_client::retry::Service;
use delayline_core::{
    retry::SharedPolicies,
    supervise::{end_by, has_panicked, start},
};
use delayline_schedules::Scheduler;
use delayline_settings::{Settings, WebSettings};
use delayline_watch::{
    canary::Canary,
    picture::Watch,
    web::{Bound, Server, Site, WebError},
};

use agreement::Agreement;
use waiting::Gate;

pub use files::raise_limit;
pub use parts::Parts;

/// How often a daemon checks whether to stop.
const TICK: Duration = Duration::from_millis(100);

/// How long all parts have together to end. Kubernetes and many service managers kill after 30 s.
const GRACE: Duration = Duration::from_secs(25);

/// What the threads of all parts share.
struct Daemon {
    settings: Settings,
    counters: site::Counters,
    survey: Arc<Survey>,
    agreement: Agreement,
    gate: Gate,
    stop: Arc<AtomicBool>,
}

/// Runs until `stop` is set, or a part ends. Returns whether all parts ended in order.
///
/// # Errors
/// There is no page, although the settings have one. All other parts have ended then.
pub fn run(
    settings: &Settings,
    parts: &Parts,
    bound: Option<Bound>,
    stop: &Arc<AtomicBool>,
) -> Result<bool, WebError> {
    let counters = site::Counters::new(settings, parts);
    let survey = Arc::new(Survey::new(settings));
    survey.keep(stop);
    let agreement = Agreement::watched(settings, stop);
    // Without a page, the layouts would not be shown.
    let gate = match settings.layouts.is_empty() || bound.is_none() {
        true => Gate::open(),
        false => Gate::closed(settings, stop),
    };
    let (settings, stop) = (settings.clone(), Arc::clone(stop));
    Daemon { settings, counters, survey, agreement, gate, stop }.run(parts, bound)
}

impl Daemon {
    fn run(self, parts: &Parts, bound: Option<Bound>) -> Result<bool, WebError> {
        let canary = self.settings.canary.enabled.then(|| self.canary());
        let unsticker = parts.unsticking.map(|most| self.unsticker(most));
        let sweeper = parts.sweeping.then(|| self.sweeper());
        let gateways = parts.gateways.then(|| self.gateways());
        let schedules = parts.schedules.then(|| self.schedules());
        let watch =
            bound.is_some().then(|| site::watch(&self.settings, &self.survey, &self.counters, &self.stop));
        let indexing = self.counters.index().filter(|_| bound.is_some()).map(|index| {
            let survey = Arc::clone(&self.survey);
            self.behind(move |stop| index.run(|| scheduled::queues(&survey), stop))
        });
        let site = watch
            .as_ref()
            .map(|watch| site::site(&self.counters, &watch.live(), &self.agreement, &self.settings));
        let web = bound.zip(site).map(|(bound, site)| open(bound, &self.settings, site));
        // Even so, each part cleans up: a policy of the unsticker may be set already.
        let (web, no_web) = match web.transpose() {
            Ok(web) => (web, None),
            Err(error) => {
                self.stop.store(true, Ordering::Relaxed);
                (None, Some(error))
            }
        };
        let retries =
            parts.retries.as_ref().map(|(policies, prefetch)| self.retries(policies.clone(), *prefetch));
        let ended = || has_panicked() || retries.as_ref().is_some_and(JoinHandle::is_finished);
        while !self.stop.load(Ordering::Relaxed) && !ended() {
            thread::sleep(TICK);
        }
        if has_panicked() {
            error!("a part of the daemon has panicked, so the daemon ends");
        }
        self.stop.store(true, Ordering::Relaxed);
        let deadline = Instant::now() + GRACE;
        let ended = |part, thread: JoinHandle<bool>| in_time(deadline, part, thread).unwrap_or(false);
        let clean = retries.is_none_or(|thread| ended("the retry service", thread));
        let clean = gateways.is_none_or(|thread| ended("the service for gateways", thread)) && clean;
        let clean = schedules.is_none_or(|thread| ended("publishing schedules", thread)) && clean;
        drop::<(Option<Server>, Option<Watch>)>((web, watch));
        let _ = canary.and_then(|thread| in_time(deadline, "the canary", thread));
        let _ = unsticker.and_then(|thread| in_time(deadline, "the search for stuck queues", thread));
        let _ = sweeper.and_then(|thread| in_time(deadline, "sweeping", thread));
        let _ = indexing.and_then(|thread| in_time(deadline, "the index", thread));
        match no_web {
            Some(error) => Err(error),
            None => Ok(clean && !has_panicked()),
        }
    }

    fn retries(&self, policies: SharedPolicies, prefetch: u16) -> JoinHandle<bool> {
        let (retries, stats) = self.counters.of_retries();
        let service = Service::new(self.settings.router().counting(stats), policies)
            .with_prefetch(prefetch)
            .counting(retries);
        self.acting(move |stop| service.run(stop))
    }

    fn canary(&self) -> JoinHandle<()> {
        let (stats, watched) = self.counters.of_canary();
        let settings = self.settings.clone();
        // Until the set exists, the canary is off, and not overdue.
        self.behind(move |stop| Canary::new(settings, stats, watched).run(stop))
    }

    fn unsticker(&self, most_paused: usize) -> JoinHandle<()> {
        let (settings, survey) = (self.settings.clone(), Arc::clone(&self.survey));
        let unsticker = Unsticker::new(settings, survey, self.counters.of_unsticker()).pausing(most_paused);
        // Policies that it set are deleted before the process ends.
        self.behind(move |stop| unsticker.run(stop))
    }

    fn sweeper(&self) -> JoinHandle<bool> {
        let (settings, stats) = (self.settings.clone(), self.counters.of_sweeper());
        self.acting(move |stop| {
            Sweeper::new(settings.clone(), Arc::clone(&stats)).run(stop);
            true
        })
    }

    fn schedules(&self) -> JoinHandle<bool> {
        let (settings, stats) = (self.settings.clone(), self.counters.of_schedules());
        self.acting(move |stop| {
            Scheduler::new(settings.clone(), Arc::clone(&stats)).run(stop);
            true
        })
    }

    fn gateways(&self) -> JoinHandle<bool> {
        let (settings, survey) = (self.settings.clone(), Arc::clone(&self.survey));
        let counters = self.counters.of_gateways();
        self.acting(move |stop| gateways::run(&settings, &survey, &counters, stop))
    }

    /// Does something that depends on the time, once the gate is open.
    fn acting(&self, work: impl Fn(&AtomicBool) -> bool + Send + 'static) -> JoinHandle<bool> {
        let (gate, agreement, stop) = (self.gate.clone(), self.agreement.clone(), Arc::clone(&self.stop));
        start("service", move || !gate.pass(&stop) || agreement.run_while(&stop, work))
    }

    /// Does something once the gate is open.
    fn behind(&self, work: impl FnOnce(&AtomicBool) + Send + 'static) -> JoinHandle<()> {
        let (gate, stop) = (self.gate.clone(), Arc::clone(&self.stop));
        start("part", move || {
            if gate.pass(&stop) {
                work(&stop);
            }
        })
    }
}

/// Waits for a part until the deadline: it may wait for a broker or a management API that does not answer.
fn in_time<T>(deadline: Instant, part: &str, thread: JoinHandle<T>) -> Option<T> {
    let ended = end_by(deadline, thread);
    if ended.is_none() {
        warn!("{part} did not end in time; the daemon ends without waiting for it");
    }
    ended?.ok()
}

fn open(bound: Bound, settings: &Settings, site: Site) -> Result<Server, WebError> {
    let address = bound.address();
    if !settings.web.explicit && settings.web.listen != Some(address) {
        warn!("another process has {}", WebSettings::LISTEN);
    }
    let server = bound.serve(site)?;
    info!("page at http://{address}/, metrics at http://{address}/metrics");
    Ok(server)
}
