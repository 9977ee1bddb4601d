//! `delayline serve`

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use log::{error, info};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
};

use crate::{
    Settings,
    retry::{Policies, Service, SharedPolicies},
};

use super::{Code, Failure, policies};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  delayline serve
  delayline serve --policies /etc/delayline/policies.toml
  DELAYLINE_LOG=warn delayline serve --prefetch 64

Applications give their queue `x-dead-letter-exchange: <set>.retry` and their app key as
`x-dead-letter-routing-key`, bind it to `<set>.dispatch` too, and reject without requeue
what they could not process. The service sends it back to them later, or to the queue
`<set>.parked` after the last attempt. Run as many of it as you like.

It waits for the broker and for the set. SIGHUP reads the policies again, and keeps the
old ones if the new ones are broken; SIGTERM and Ctrl-C finish what is in flight. The log
has one line for each decision; DELAYLINE_LOG=warn leaves them out.")]
pub(super) struct Args {
    #[command(flatten)]
    policies: policies::Source,
    /// How many messages to hold at a time; less for bodies of many megabytes
    #[arg(long, value_name = "N", default_value_t = Service::PREFETCH, value_parser = clap::value_parser!(u16).range(1..))]
    prefetch: u16,
}

pub(super) fn run(args: &Args, settings: Settings) -> Result<Code, Failure> {
    let file = args.policies.file();
    let policies = SharedPolicies::new(args.policies.load()?);
    match &file {
        Some(file) => info!("policies from {}", file.display()),
        None => info!("no policies file; the built-in policy holds for all"),
    }
    let stop = Arc::new(AtomicBool::new(false));
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM])?;
    let handle = signals.handle();
    let service = Service::new(settings, policies.clone()).with_prefetch(args.prefetch);
    let listener = {
        let stop = Arc::clone(&stop);
        thread::spawn(move || {
            for signal in &mut signals {
                if signal == SIGHUP {
                    reload(file.as_deref(), &policies);
                } else {
                    info!("stopping");
                    stop.store(true, Ordering::Relaxed);
                }
            }
        })
    };
    let clean = service.run(&stop);
    handle.close();
    let _ = listener.join();
    Ok(if clean { Code::Done } else { Code::Problem })
}

fn reload(file: Option<&Path>, policies: &SharedPolicies) {
    let Some(file) = file else {
        info!("there is no policies file to read again");
        return;
    };
    match Policies::load(file) {
        Ok(new) => {
            policies.replace(new);
            info!("policies from {} read again", file.display());
        }
        Err(reason) => error!("the old policies stay, because the new ones are broken: {reason}"),
    }
}
