//! `delayline serve`

mod health;
pub(crate) mod user;

use std::{
    path::Path,
    process,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use log::{error, info, warn};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
};

use delayline_admin::Layout;
use delayline_client::retry::Service;
use delayline_core::retry::SharedPolicies;
use delayline_daemon::{Parts, raise_limit};
use delayline_settings::{Settings, WebSettings};
use delayline_watch::web::Bound;

use crate::{flags::PolicyFile, values};
use delayline_term::{Code, Failure, Output};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  delayline serve
  delayline serve --policies /etc/delayline/policies.toml
  delayline serve --listen '[::]:15628'     reachable from outside; needs web_token_file
  delayline serve --no-retry                only the canary and the page
  delayline serve --layout nservicebus      and a layout
  DELAYLINE_LOG=warn delayline serve --prefetch 64
  delayline serve check                     is the daemon that runs here ready?
  delayline serve user delayline-serve      make its user

Applications give their queue `x-dead-letter-exchange: <set>.retry` and their app key as
`x-dead-letter-routing-key`, and bind it to `<set>.dispatch`, too. They reject failed
messages without requeue. The service sends these back later, or to the queue
`<set>.parked` after the last attempt. You can run several instances.

A canary sends a small message of its own every 2 s and measures how late it comes back.
Queues of the set that are stuck, for example after a restart of the broker, are made to
try again at once, as with `delayline unstick`; for that the user needs the tag
`policymaker`. The status page is at http://127.0.0.1:15628, with /metrics for Prometheus,
/healthz and /readyz; if another daemon uses that port, the first free port of the next nine
is taken.

With --layout, the page and the metrics also show the layout of NServiceBus or Celery in the
vhost of the set: waiting and stuck messages, and whether a guard exists (`delayline guard`).
The vhost then does not need a set; services of the set wait until it is installed.

Schedules (`delayline schedule add`) are published ahead by one of the daemons that run.
Gateways for messages with the header `x-delay` (`delayline gateway add`) are found every
five seconds; several daemons share their work.

The daemon waits for the broker and for the set. SIGHUP reads the policies again and keeps
the old ones if the new ones are invalid; SIGTERM and Ctrl-C finish the messages in flight.
The log has one line for each decision; DELAYLINE_LOG=warn leaves them out.")]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(flatten)]
    policies: PolicyFile,
    /// How many messages to hold at a time; fewer if they are large
    #[arg(long, value_name = "N", default_value_t = Service::PREFETCH, value_parser = values::whole::<u16>(1..))]
    prefetch: u16,
    /// Address of the page, the metrics and the health checks [default: web_listen, or
    /// 127.0.0.1:15628] [env: DELAYLINE_WEB_LISTEN]
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<String>,
    /// No page, no metrics and no health checks
    #[arg(long, conflicts_with = "listen")]
    no_web: bool,
    /// Also watch this layout: nservicebus, nservicebus:v1, celery or celery:PREFIX; repeatable
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
    /// Pause applications that block a level, at most N at a time, until their queues accept messages
    /// again; `serve user NAME --pause-blocking` gives the rights for this [default: 0]
    #[arg(
        hide_short_help = true,
        long,
        value_name = "N",
        conflicts_with = "no_unstick",
        default_value_t = 0,
        hide_default_value = true
    )]
    pause_blocking: usize,
    /// Do not sweep up expired recalls
    #[arg(long)]
    no_sweep: bool,
    /// Do not run gateways
    #[arg(long)]
    no_gateways: bool,
    /// Do not publish schedules
    #[arg(long)]
    no_schedules: bool,
    /// No index of scheduled messages
    #[arg(long)]
    no_index: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Ask the daemon that runs here whether it is ready
    #[command(after_help = "\
Examples:
  delayline serve check
  delayline serve check --listen 127.0.0.1:15630

For containers and scripts: exits with 0 if the daemon is ready, as /readyz shows, with 1 if
it is not, and with 3 if no daemon answers.")]
    Check {
        /// Address of its page [default: web_listen, or 127.0.0.1:15628] [env: DELAYLINE_WEB_LISTEN]
        #[arg(long, value_name = "ADDRESS:PORT")]
        listen: Option<String>,
    },
    /// Make the daemon's user, with the rights it needs and no others
    User(user::Args),
}

impl Args {
    /// Whether a daemon is to run, and not to be asked.
    pub(crate) fn runs(&self) -> bool {
        self.command.is_none()
    }
}

pub(crate) fn run(args: &Args, mut settings: Settings, output: &mut Output) -> Result<Code, Failure> {
    let listen = match &args.command {
        Some(Command::User(args)) => return user::run(args, &settings, output),
        Some(Command::Check { listen }) => listen,
        None => &args.listen,
    };
    if args.no_web {
        settings.web.listen = None;
    } else if let Some(listen) = listen {
        settings.web = WebSettings::new(Some(listen), settings.web.token.take())?;
    }
    if !args.runs() {
        return health::run(&settings.web, output);
    }
    settings.canary.enabled &= !args.no_canary;
    if !args.layouts.is_empty() {
        settings.layouts = Layout::distinct(args.layouts.iter().cloned());
    }
    let idle = args.no_retry && args.no_unstick && args.no_gateways && args.no_sweep && args.no_schedules;
    if idle && !settings.canary.enabled && settings.web.listen.is_none() {
        return Err(Failure::usage(
            "nothing is left to do: no retry service, no gateways, no schedules, no canary, no page, no \
             unsticking, and no sweeping",
        ));
    }
    raise_limit().map_err(Failure::usage)?;
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
                    warn!("a second signal: not waiting for messages in flight");
                    process::exit(Code::Interrupted.number().into());
                } else {
                    info!("stopping");
                }
            }
        })
    };
    let parts = Parts {
        retries: (!args.no_retry).then_some((policies, args.prefetch)),
        gateways: !args.no_gateways,
        schedules: !args.no_schedules,
        sweeping: !args.no_sweep,
        index: !args.no_index,
        unsticking: (!args.no_unstick).then_some(args.pause_blocking),
    };
    let ended = delayline_daemon::run(&settings, &parts, bound, &stop);
    handle.close();
    let _ = listener.join();
    match ended {
        Ok(true) => Ok(Code::Done),
        Ok(false) => Ok(Code::Problem),
        Err(error) => Err(Failure::new(Code::Problem, error)),
    }
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
