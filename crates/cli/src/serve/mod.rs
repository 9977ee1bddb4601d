//! `delayline serve`

mod agreement;
mod checkup;
mod ending;
mod files;
mod gateways;
mod health;
mod readiness;
mod site;
mod waiting;

use std::{
    path::Path,
    process,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use log::{error, info, warn};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
};

use delayline_admin::{Layout, Sweeper, Unsticker};
use delayline_client::retry::Service;
use delayline_core::retry::SharedPolicies;
use delayline_settings::{Settings, WebSettings};
use delayline_watch::{
    canary::Canary,
    picture::Watch,
    web::{Bound, Server, Site, WebError},
};

use crate::{Code, Failure, Output, args, policies};

use agreement::Agreement;
use ending::{GRACE, end_by};
use waiting::Gate;

/// How often a daemon without a retry service checks whether to stop.
const TICK: Duration = Duration::from_millis(100);

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  delayline serve
  delayline serve --policies /etc/delayline/policies.toml
  delayline serve --listen '[::]:15628'     reachable from outside; needs web_token_file
  delayline serve --no-retry                only the canary and the page
  delayline serve --layout nservicebus      and the delays of others
  DELAYLINE_LOG=warn delayline serve --prefetch 64
  delayline serve --health                  is the one that runs here ready?

Applications give their queue `x-dead-letter-exchange: <set>.retry` and their app key as
`x-dead-letter-routing-key`, bind it to `<set>.dispatch` too, and reject without requeue
what they could not process. The service sends it back to them later, or to the queue
`<set>.parked` after the last attempt. You can run several instances.

A canary sends a small message of its own every 2 s and measures how late it comes back.
Queues of the set that are stuck, for example after a restart of the broker, are made to
try again at once, as with `delayline unstick`; for that the user needs the tag
`policymaker`. The status page is at http://127.0.0.1:15628, with /metrics for Prometheus,
/healthz and /readyz; if another daemon uses that port, one of the next nine is taken.

The page and the metrics also show the delays of NServiceBus or Celery in the vhost of the
set, if they are named: what waits, what is stuck, and whether `delayline guard` stands. Where
it does, a canary sends its messages through these levels, too. With --layout, the vhost does
not need a set; whatever does need one waits until it is installed.

Gateways for messages with the header `x-delay` (`delayline gateway add`) are found every
five seconds; several daemons share their work.

The daemon waits for the broker and for the set. SIGHUP reads the policies again and keeps
the old ones if the new ones are invalid; SIGTERM and Ctrl-C finish what is in flight. The
log has one line for each decision; DELAYLINE_LOG=warn leaves them out.

--health is for containers and scripts: it exits with 0 if the daemon is ready, with 1 if
it is not, and with 3 if no daemon answers.")]
pub(super) struct Args {
    #[command(flatten)]
    policies: policies::Source,
    /// How many messages to hold at a time; of large ones, it holds fewer by itself
    #[arg(long, value_name = "N", default_value_t = Service::PREFETCH, value_parser = args::whole::<u16>(1..))]
    prefetch: u16,
    /// Address of the page, the metrics and the health checks [default: web_listen, or
    /// 127.0.0.1:15628] [env: DELAYLINE_WEB_LISTEN]
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<String>,
    /// Start nothing: ask the daemon that runs at this address whether it is ready, as /readyz
    /// says
    #[arg(long, conflicts_with_all = ["no_web", "no_canary", "no_retry", "no_unstick", "no_sweep", "no_gateways", "policies"])]
    health: bool,
    /// No page, no metrics and no health checks
    #[arg(long, conflicts_with = "listen")]
    no_web: bool,
    /// Also watch the delays of this layout: nservicebus, celery or celery:PREFIX; repeatable
    #[arg(long = "layout", value_name = "LAYOUT")]
    layouts: Vec<Layout>,
    /// No canary
    #[arg(long)]
    no_canary: bool,
    /// No retry service
    #[arg(long)]
    no_retry: bool,
    /// Do not unstick queues
    #[arg(long)]
    no_unstick: bool,
    /// Do not sweep up recalls of messages that are over
    #[arg(long)]
    no_sweep: bool,
    /// Do not work for gateways
    #[arg(long)]
    no_gateways: bool,
}

pub(super) fn run(args: &Args, mut settings: Settings, output: &mut Output) -> Result<Code, Failure> {
    if args.no_web {
        settings.web.listen = None;
    } else if let Some(listen) = &args.listen {
        settings.web = WebSettings::new(Some(listen), settings.web.token.take())?;
    }
    if args.health {
        return health::run(&settings.web, output);
    }
    settings.canary.enabled &= !args.no_canary;
    if !args.layouts.is_empty() {
        settings.layouts = Layout::distinct(args.layouts.iter().cloned());
    }
    let idle = args.no_retry && args.no_unstick && args.no_gateways && args.no_sweep;
    if idle && !settings.canary.enabled && settings.web.listen.is_none() {
        return Err(Failure::usage(
            "nothing is left to do: no retry service, no gateways, no canary, no page, no unsticking, and \
             no sweeping",
        ));
    }
    files::raise_limit().map_err(Failure::usage)?;
    let file = args.policies.file();
    let policies = SharedPolicies::new(args.policies.load()?);
    let bound = Bound::of(&settings.web).map_err(Failure::usage)?;
    if let (false, Some(file)) = (args.no_retry, &file) {
        info!("policies from {}", file.display());
    } else if !args.no_retry {
        info!("no policies file; the built-in policy applies to all applications");
    }
    let stop = Arc::new(AtomicBool::new(false));
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM])?;
    let handle = signals.handle();
    let listener = {
        let (stop, policies) = (Arc::clone(&stop), policies.clone());
        thread::spawn(move || {
            for signal in &mut signals {
                if signal == SIGHUP {
                    reload(file.as_deref(), &policies);
                } else if stop.swap(true, Ordering::Relaxed) {
                    warn!("a second signal: not waiting for what is in flight");
                    process::exit(Code::Interrupted.number().into());
                } else {
                    info!("stopping");
                }
            }
        })
    };
    let counters = site::Counters::new(!args.no_retry, !args.no_gateways, !args.no_sweep, &settings.layouts);
    let agreement = Agreement::watched(&settings, &stop);
    // Without a page, nobody would see the layouts.
    let gate = match settings.layouts.is_empty() || bound.is_none() {
        true => Gate::open(),
        false => Gate::closed(&settings, &stop),
    };
    let canary = settings.canary.enabled.then(|| run_canary(&settings, &counters, &gate, &stop));
    // Nobody looks at the layouts without a page, and so nobody knows whether they are guarded.
    let abroad = match settings.canary.enabled && bound.is_some() {
        true => canaries_of_layouts(&settings, &counters, &stop),
        false => Vec::new(),
    };
    let unsticker = (!args.no_unstick).then(|| unstick(&settings, &counters, &gate, &stop));
    let sweeper = (!args.no_sweep).then(|| sweep(&settings, &counters, (&gate, &agreement), &stop));
    let gateways =
        (!args.no_gateways).then(|| run_gateways(&settings, &counters, (&gate, &agreement), &stop));
    let watch = bound.is_some().then(|| site::watch(&settings, &counters, &stop));
    let live = watch.as_ref().map(Watch::live);
    let site = live.map(|live| site::site(&counters, &live, &agreement));
    let web = bound.zip(site).map(|(bound, site)| open(bound, &settings, site));
    let web = web.transpose().map_err(|error| {
        stop.store(true, Ordering::Relaxed);
        Failure::new(Code::Problem, error)
    })?;
    let retries = (!args.no_retry).then(|| {
        let (retries, stats) = counters.of_retries();
        let service = Service::new(settings.router().counting(stats), policies)
            .with_prefetch(args.prefetch)
            .counting(retries);
        acting(&gate, &agreement, &stop, move |stop| service.run(stop))
    });
    while !stop.load(Ordering::Relaxed) && !retries.as_ref().is_some_and(JoinHandle::is_finished) {
        thread::sleep(TICK);
    }
    let deadline = Instant::now() + GRACE;
    let ended = |part, thread: JoinHandle<bool>| end_by(deadline, part, thread).unwrap_or(false);
    let clean = retries.is_none_or(|thread| ended("the retry service", thread));
    let clean = gateways.is_none_or(|thread| ended("the service for gateways", thread)) && clean;
    drop((web, watch));
    for thread in canary.into_iter().chain(abroad) {
        let _ = end_by(deadline, "a canary", thread);
    }
    let _ = unsticker.and_then(|thread| end_by(deadline, "the search for stuck queues", thread));
    let _ = sweeper.and_then(|thread| end_by(deadline, "sweeping", thread));
    handle.close();
    let _ = listener.join();
    Ok(if clean { Code::Done } else { Code::Problem })
}

fn run_canary(
    settings: &Settings,
    counters: &site::Counters,
    gate: &Gate,
    stop: &Arc<AtomicBool>,
) -> JoinHandle<()> {
    let (stats, watched) = counters.of_canary();
    let settings = settings.clone();
    // One that is not there yet is off, and not held up.
    behind(gate, stop, move |stop| Canary::new(settings, stats, watched).run(stop))
}

/// Those wait for nothing but a guard.
fn canaries_of_layouts(
    settings: &Settings,
    counters: &site::Counters,
    stop: &Arc<AtomicBool>,
) -> Vec<JoinHandle<()>> {
    let start = |(layout, canary)| {
        let (canary, stop) = (Canary::in_layout(settings.clone(), layout, canary), Arc::clone(stop));
        thread::spawn(move || canary.run(&stop))
    };
    counters.layouts.iter().cloned().map(start).collect()
}

fn unstick(
    settings: &Settings,
    counters: &site::Counters,
    gate: &Gate,
    stop: &Arc<AtomicBool>,
) -> JoinHandle<()> {
    let unsticker = Unsticker::new(settings.clone(), counters.of_unsticker());
    // Policies that it set are deleted before the process ends.
    behind(gate, stop, move |stop| unsticker.run(stop))
}

fn sweep(
    settings: &Settings,
    counters: &site::Counters,
    (gate, agreement): (&Gate, &Agreement),
    stop: &Arc<AtomicBool>,
) -> JoinHandle<bool> {
    let (settings, stats) = (settings.clone(), counters.of_sweeper());
    acting(gate, agreement, stop, move |stop| {
        Sweeper::new(settings.clone(), Arc::clone(&stats)).run(stop);
        true
    })
}

fn run_gateways(
    settings: &Settings,
    counters: &site::Counters,
    (gate, agreement): (&Gate, &Agreement),
    stop: &Arc<AtomicBool>,
) -> JoinHandle<bool> {
    let (settings, counters) = (settings.clone(), counters.of_gateways());
    acting(gate, agreement, stop, move |stop| gateways::run(&settings, &counters, stop))
}

/// Does something that depends on the time, once the gate is open.
fn acting(
    gate: &Gate,
    agreement: &Agreement,
    stop: &Arc<AtomicBool>,
    work: impl Fn(&AtomicBool) -> bool + Send + 'static,
) -> JoinHandle<bool> {
    let (gate, agreement, stop) = (gate.clone(), agreement.clone(), Arc::clone(stop));
    thread::spawn(move || !gate.pass(&stop) || agreement.run_while(&stop, work))
}

/// Does something once the gate is open.
fn behind(
    gate: &Gate,
    stop: &Arc<AtomicBool>,
    work: impl FnOnce(&AtomicBool) + Send + 'static,
) -> JoinHandle<()> {
    let (gate, stop) = (gate.clone(), Arc::clone(stop));
    thread::spawn(move || {
        if gate.pass(&stop) {
            work(&stop);
        }
    })
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

fn reload(file: Option<&Path>, policies: &SharedPolicies) {
    let Some(file) = file else {
        info!("there is no policies file to reload");
        return;
    };
    match delayline_settings::load_policies(file) {
        Ok(new) => {
            policies.replace(new);
            info!("policies from {} reloaded", file.display());
        }
        Err(reason) => error!("the old policies stay, because the new ones are invalid: {reason}"),
    }
}
