//! The gateways that this daemon runs: the gateways of the set. It looks for new gateways from time to
//! time.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use log::{info, warn};

use delayline_admin::gateways_among;
use delayline_broker::Survey;
use delayline_client::gateway::{Gateway, GatewayCounters};
use delayline_core::{backoff::wait, supervise, topology::Topology};
use delayline_settings::Settings;

/// How often to look again.
const TICK: Duration = Duration::from_millis(100);

/// A gateway at work.
struct Working {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<bool>,
}

/// Runs all gateways until `stop` is set. Returns whether all ended in order.
pub(crate) fn run(
    settings: &Settings,
    survey: &Survey,
    counters: &GatewayCounters,
    stop: &AtomicBool,
) -> bool {
    if settings.management.is_none() {
        info!("no gateways: without the management API they cannot be found");
    }
    let topology = Topology::new(settings.topology.clone());
    let mut working: BTreeMap<String, Working> = BTreeMap::new();
    let (mut last, mut blind, mut clean) = (None, settings.management.is_none(), true);
    while !stop.load(Ordering::Relaxed) {
        let Some(reading) = survey.reading().filter(|reading| last != Some(reading.at)) else {
            wait(stop, TICK);
            continue;
        };
        last = Some(reading.at);
        match &reading.counts {
            Ok(counts) => {
                blind = false;
                let names = gateways_among(&topology, &counts.queues);
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
            Err(error) if !blind => {
                blind = true;
                warn!("new gateways are not noticed: {error}");
            }
            Err(_) => {}
        }
    }
    working.values().for_each(|gateway| gateway.stop.store(true, Ordering::Relaxed));
    working.into_values().map(Working::end).fold(clean, |clean, ended| clean & ended)
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
    Some(Working { stop, thread: supervise::start("gateway", move || gateway.run(&told)) })
}

impl Working {
    fn end(self) -> bool {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or(false)
    }
}
