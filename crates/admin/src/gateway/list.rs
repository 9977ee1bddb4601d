//! The gateways of a set.

use serde::Serialize;

use crate::{
    AdminError,
    compare::Observed,
    gateway::{api, check::findings_of},
    management::{ManagementApi, ManagementError, QueueInfo},
    observe_with,
};
use delayline_core::topology::{Names, Topology};
use delayline_settings::Settings;

/// The gateways of a set.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct GatewayList {
    /// Whether the set is installed at all.
    pub installed: bool,
    /// One for each, by name.
    pub gateways: Vec<GatewayEntry>,
}

/// A gateway.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct GatewayEntry {
    /// Its name, which is also that of the exchange that consumers are bound to.
    pub gateway: String,
    /// The kind of that exchange; `None` if it is missing.
    pub kind: Option<String>,
    /// The exchange that publishers use.
    pub entry: String,
    /// Messages that no daemon has taken yet, up to 5 s ago.
    pub waiting: u64,
    /// Messages that came back from the levels, and that daemons hold or have not taken yet.
    pub due: u64,
    /// How many channels of daemons take messages; a daemon has several.
    pub channels: u64,
    /// How many bindings consumers have.
    pub bindings: usize,
    /// What is wrong with it, and what to do.
    pub problems: Vec<String>,
}

/// Lists the gateways, and what is wrong with them.
///
/// # Errors
/// If there is no management API.
pub fn list_gateways(settings: &Settings, topology: &Topology) -> Result<GatewayList, AdminError> {
    let observed = observe_with(&api(settings)?, &settings.broker.vhost)?;
    let names = names_among(topology.names(), &observed.queues);
    let entry_exchange = topology.names().entry();
    let installed = observed.exchanges.iter().any(|exchange| exchange.name == entry_exchange);
    Ok(GatewayList {
        installed,
        gateways: names.iter().map(|name| entry(topology, &observed, name)).collect(),
    })
}

/// The names of the gateways of a set, for a daemon that works for all of them.
///
/// # Errors
/// If the management API cannot be asked.
pub fn gateway_names(
    api: &ManagementApi,
    vhost: &str,
    topology: &Topology,
) -> Result<Vec<String>, ManagementError> {
    Ok(names_among(topology.names(), &api.queues(vhost)?))
}

pub(super) fn names_among(names: &Names, queues: &[QueueInfo]) -> Vec<String> {
    let mut found: Vec<_> =
        queues.iter().filter_map(|queue| names.gateway_of(&queue.name)).map(str::to_owned).collect();
    found.sort();
    found.dedup();
    found
}

fn entry(topology: &Topology, observed: &Observed, gateway: &str) -> GatewayEntry {
    let names = topology.names();
    let exchange = observed.exchanges.iter().find(|exchange| exchange.name == gateway);
    let queue = |name: String| observed.queues.iter().find(|queue| queue.name == name);
    let messages = |queue: Option<&QueueInfo>| queue.map_or(0, |queue| queue.messages);
    let (waiting, due) = (queue(names.gateway(gateway)), queue(names.gateway_due(gateway)));
    let findings = findings_of(topology, observed, gateway);
    GatewayEntry {
        gateway: gateway.into(),
        kind: exchange.map(|exchange| exchange.kind.clone()),
        entry: Names::gateway_entry(gateway),
        waiting: messages(waiting),
        due: messages(due),
        channels: waiting.map_or(0, |queue| queue.consumers),
        bindings: observed.bindings.iter().filter(|binding| binding.source == gateway).count(),
        problems: findings.into_iter().map(|it| format!("{}: {}", it.what, it.advice)).collect(),
    }
}
