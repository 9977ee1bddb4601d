//! The gateways that this daemon runs: the gateways of the set. It looks for new gateways from time to
//! time.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use crossbeam_channel::{Receiver, RecvTimeoutError, bounded};
use log::{info, warn};

use delayline_admin::gateway_names;
use delayline_broker::ManagementApi;
use delayline_client::gateway::{Gateway, GatewayCounters};
use delayline_core::topology::Topology;
use delayline_settings::Settings;

use super::TICK;

/// How often to look for gateways.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// A gateway at work.
struct Working {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<bool>,
}

/// Runs all gateways until `stop` is set. Returns whether all ended in order.
pub(crate) fn run(settings: &Settings, counters: &GatewayCounters, stop: &AtomicBool) -> bool {
    let Some(management) = &settings.management else {
        info!("no gateways: without the management API they cannot be found");
        return wait(stop);
    };
    let api = match ManagementApi::new(management) {
        Ok(api) => api,
        Err(error) => {
            warn!("no gateways: {error}");
            return wait(stop);
        }
    };
    let looks = look(api, settings);
    let mut working: BTreeMap<String, Working> = BTreeMap::new();
    let mut blind = false;
    let mut clean = true;
    while !stop.load(Ordering::Relaxed) {
        match looks.recv_timeout(TICK) {
            Ok(Ok(names)) => {
                blind = false;
                let gone: Vec<_> = working.keys().filter(|name| !names.contains(name)).cloned().collect();
                for name in gone {
                    info!("gateway {name}: it was removed");
                    clean &= working.remove(&name).is_none_or(Working::end);
                }
                for name in names {
                    if !working.contains_key(&name)
                        && let Some(started) = start(&name, settings, counters)
                    {
                        working.insert(name, started);
                    }
                }
            }
            // The known gateways continue.
            Ok(Err(error)) if !blind => {
                blind = true;
                warn!("new gateways are not noticed: {error}");
            }
            Ok(Err(_)) | Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => thread::sleep(TICK),
        }
    }
    working.values().for_each(|gateway| gateway.stop.store(true, Ordering::Relaxed));
    working.into_values().map(Working::end).fold(clean, |clean, ended| clean & ended)
}

/// Looks for gateways from time to time, until the receiver is dropped. An API that does not
/// answer delays only the looking, and not the end of the daemon.
fn look(api: ManagementApi, settings: &Settings) -> Receiver<Result<Vec<String>, String>> {
    let (found, looks) = bounded(0);
    let (vhost, topology) = (settings.broker.vhost.clone(), Topology::new(settings.topology.clone()));
    thread::spawn(move || {
        loop {
            let names = gateway_names(&api, &vhost, &topology).map_err(|error| error.to_string());
            if found.send(names).is_err() {
                return;
            }
            thread::sleep(LOOK_EVERY);
        }
    });
    looks
}

fn wait(stop: &AtomicBool) -> bool {
    while !stop.load(Ordering::Relaxed) {
        thread::sleep(TICK);
    }
    true
}

fn start(name: &str, settings: &Settings, counters: &GatewayCounters) -> Option<Working> {
    let gateway = match Gateway::new(settings.router(), name) {
        Ok(gateway) => gateway.counting(counters.of(name)),
        Err(error) => {
            warn!("gateway {name}: {error}");
            return None;
        }
    };
    info!("gateway {name}: started");
    let stop = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&stop);
    Some(Working { stop, thread: thread::spawn(move || gateway.run(&told)) })
}

impl Working {
    fn end(self) -> bool {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or(false)
    }
}
