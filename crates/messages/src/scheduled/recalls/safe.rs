//! Whether messages that were due long ago may still come.

use delayline_core::shell::command;
use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use crate::error::AdminError;
use delayline_broker::{ManagementApi, QueueInfo, Scope};
use delayline_core::{codec::Hop, topology::Topology};
use delayline_settings::Settings;

/// How often the counts of the levels are read, at most, to see each without messages on
/// their way. Brokers renew them every five seconds.
const LOOKS: u32 = 4;

/// The pause between two looks.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Why messages that were due long ago may still come.
pub(super) fn postponed(
    api: &ManagementApi,
    settings: &Settings,
    topology: &Topology,
    grace: Duration,
    stop: &AtomicBool,
) -> Result<Option<String>, AdminError> {
    for node in api.nodes()? {
        if !node.running {
            return Ok(Some(format!("node {} is down, and messages may wait for it", node.name)));
        }
        let up = node.uptime.map(Duration::from_millis);
        if up.is_none_or(|up| up < grace) {
            return Ok(Some(format!(
                "node {} has not been up for {} s yet, and messages that fell due while it was down may \
                 still be on their way",
                node.name,
                grace.as_secs()
            )));
        }
    }
    let mut suspects: Vec<_> = Hop::all().map(|hop| topology.names().hop(hop)).collect();
    for look in 0..LOOKS {
        if look > 0 {
            thread::sleep(LOOK_EVERY);
        }
        let own = Scope::Set(topology, &[]).pattern();
        let counts = api.queue_counts(&settings.broker.vhost, Some(&own))?;
        let may_have = |info: &QueueInfo| info.messages_dlx > Some(0) || info.uncounted;
        suspects.retain(|name| counts.iter().any(|info| info.name == *name && may_have(info)));
        if suspects.is_empty() || stop.load(Ordering::Relaxed) {
            break;
        }
    }
    Ok(suspects.first().map(|queue| {
        format!(
            "`{queue}` has, or may have, messages on their way that are stuck (`{}`; docs/runbook/stuck.md)",
            command(&["unstick"])
        )
    }))
}
