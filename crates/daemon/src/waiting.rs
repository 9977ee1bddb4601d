//! Waiting for the set: a daemon may only watch layouts.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use log::{info, warn};

use delayline_amqp::Session;
use delayline_broker::ManagementApi;
use delayline_core::{backoff::wait, supervise::start, topology::Names};
use delayline_settings::Settings;

/// How often to look again.
const TICK: Duration = Duration::from_millis(100);

/// How often to look for the set.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Closed until the set exists; services of the set wait behind it.
#[derive(Debug, Clone)]
pub(crate) struct Gate(Arc<AtomicBool>);

impl Gate {
    /// An open gate: each service reports a missing set on its own.
    pub(crate) fn open() -> Self {
        Self(Arc::new(AtomicBool::new(true)))
    }

    /// A gate that opens as soon as the set of the settings exists.
    pub(crate) fn closed(settings: &Settings, stop: &Arc<AtomicBool>) -> Self {
        let gate = Self(Arc::default());
        let (settings, stop, opened) = (settings.clone(), Arc::clone(stop), Arc::clone(&gate.0));
        // The thread is never joined: it changes nothing.
        start("gate", move || watch(&settings, &opened, &stop));
        gate
    }

    /// Waits until it is open. Returns whether it is, and not told to stop.
    pub(crate) fn pass(&self, stop: &AtomicBool) -> bool {
        while !self.0.load(Ordering::Relaxed) {
            if !wait(stop, TICK) {
                return false;
            }
        }
        !stop.load(Ordering::Relaxed)
    }
}

fn watch(settings: &Settings, opened: &AtomicBool, stop: &AtomicBool) {
    let api = settings.management.as_ref().and_then(|management| ManagementApi::new(management).ok());
    let set = &settings.topology.set;
    let mut said = String::new();
    while !stop.load(Ordering::Relaxed) {
        match is_there(settings, api.as_ref()) {
            Ok(true) => {
                if !said.is_empty() {
                    info!("the set `{set}` is here now");
                }
                return opened.store(true, Ordering::Relaxed);
            }
            Ok(false) => {
                let layouts: Vec<_> = settings.layouts.iter().map(ToString::to_string).collect();
                let layouts = layouts.join(", ");
                let line = format!(
                    "no set `{set}` here; watching {layouts}. Services of the set start once it is installed"
                );
                if said != line {
                    info!("{line}");
                    said = line;
                }
            }
            Err(reason) => {
                if said != reason {
                    warn!("cannot find out whether the set `{set}` exists: {reason}; trying again");
                    said = reason;
                }
            }
        }
        wait(stop, LOOK_EVERY);
    }
}

/// Whether services may look for the set: if the broker does not answer, each of them reports that.
fn is_there(settings: &Settings, api: Option<&ManagementApi>) -> Result<bool, String> {
    let (entry, broker) = (Names::new(settings.topology.set.clone()).entry(), &settings.broker);
    // Asked first: over AMQP, a broker logs each question about a missing object as an error.
    if let Some(Ok(found)) = api.map(|api| api.exchange(&broker.vhost, &entry)) {
        return Ok(found.is_some());
    }
    let mut session = Session::open_for(broker, "waiting").map_err(|error| error.to_string())?;
    Ok(session.exchange_exists(&entry).unwrap_or(true))
}
