//! The gateways of a set, and their faults.

use delayline_broker::{ManagementApi, ManagementError, NO_STATISTICS, QueueInfo, Scope, Snapshot};
use delayline_core::shell::command;
use delayline_core::topology::{ExchangeKind, Names, Topology};
use delayline_settings::Settings;
use serde::Serialize;

use crate::{finding::Finding, finding::FindingCode};
use delayline_messages::{error::AdminError, error::api, examine::consumers, examine::describe};

/// The gateways of a set.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct GatewayList {
    /// Whether the set is installed at all.
    pub installed: bool,
    /// The gateways, by name.
    pub gateways: Vec<GatewayEntry>,
}

/// A gateway.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct GatewayEntry {
    /// Its name, which is also that of the exchange that consumers are bound to.
    pub gateway: String,
    /// The kind of that exchange; `None` if it is missing.
    pub kind: Option<String>,
    /// The exchange that publishers use.
    pub entry: String,
    /// Messages that no daemon has taken yet, up to 5 s ago; this and the next two are `None` if the broker
    /// does not report them.
    pub waiting: Option<u64>,
    /// Messages that came back from the levels, and that daemons hold or have not taken yet.
    pub due: Option<u64>,
    /// How many channels of daemons take messages; a daemon has several.
    pub channels: Option<u64>,
    /// How many bindings consumers have.
    pub bindings: usize,
    /// The faults, and the remedies.
    pub problems: Vec<String>,
    /// The checks that were not possible, and why.
    pub unchecked: Vec<String>,
}

/// Lists the gateways, and their faults.
///
/// # Errors If there is no management API.
pub fn list_gateways(settings: &Settings, topology: &Topology) -> Result<GatewayList, AdminError> {
    let mut snapshot =
        Snapshot::fetch(&api(settings, "lists queues")?, &settings.broker.vhost, Scope::Set(topology, &[]))?;
    let names = names_among(topology.names(), snapshot.queues.keys());
    let own = names.iter().map(|gateway| topology.names().gateway(gateway));
    let uncounted = own.filter(|name| snapshot.queues.get(name).is_some_and(|it| it.consumers.is_none()));
    for (name, count) in consumers(settings, uncounted.collect::<Vec<_>>().into_iter()) {
        snapshot.queues.entry(name).or_default().consumers = Some(count);
    }
    let entry_exchange = topology.names().entry();
    let installed = snapshot.exchanges.contains_key(&entry_exchange);
    Ok(GatewayList {
        installed,
        gateways: names.iter().map(|name| entry(topology, &snapshot, name)).collect(),
    })
}

/// The names of the gateways of a set.
///
/// # Errors If the management API cannot be asked.
pub fn gateway_names(
    api: &ManagementApi,
    vhost: &str,
    topology: &Topology,
) -> Result<Vec<String>, ManagementError> {
    let own = Scope::Set(topology, &[]).pattern();
    let queues = api.queue_counts(vhost, Some(&own))?;
    Ok(gateways_among(topology, &queues))
}

/// The same, from a list of queues.
#[must_use]
pub fn gateways_among(topology: &Topology, queues: &[QueueInfo]) -> Vec<String> {
    names_among(topology.names(), queues.iter().map(|queue| &queue.name))
}

/// The names of the gateways of a set, by its queues.
pub fn names_among<'a>(names: &Names, queues: impl Iterator<Item = &'a String>) -> Vec<String> {
    let mut found: Vec<_> = queues.filter_map(|queue| names.gateway_of(queue)).map(str::to_owned).collect();
    found.sort();
    found.dedup();
    found
}

fn entry(topology: &Topology, snapshot: &Snapshot, gateway: &str) -> GatewayEntry {
    let names = topology.names();
    let exchange = snapshot.exchanges.get(gateway);
    let queue = |name: String| snapshot.queues.get(&name);
    // A missing queue is a fault; it has nothing in it.
    let count = |queue: Option<&QueueInfo>, of: fn(&QueueInfo) -> Option<u64>| queue.map_or(Some(0), of);
    let (waiting, due) = (queue(names.gateway(gateway)), queue(names.gateway_due(gateway)));
    let findings = findings_of(topology, snapshot, gateway);
    GatewayEntry {
        gateway: gateway.into(),
        kind: exchange.map(|exchange| exchange.kind.clone()),
        entry: Names::gateway_entry(gateway),
        waiting: count(waiting, |queue| queue.messages),
        due: count(due, |queue| queue.messages),
        channels: count(waiting, |queue| queue.consumers),
        bindings: snapshot.bindings_from(gateway).len(),
        problems: findings.into_iter().map(|it| format!("{}: {}", it.what, it.advice)).collect(),
        unchecked: waiting
            .filter(|queue| queue.consumers.is_none())
            .map(|_| format!("whether a daemon takes its messages: {NO_STATISTICS}"))
            .into_iter()
            .collect(),
    }
}

/// Faults that harm messages now, or will: a gateway without a daemon does no harm while it has no
/// messages.
pub(super) fn findings(topology: &Topology, snapshot: &Snapshot) -> Vec<Finding> {
    let idle = |gateway: &str| {
        let queues = [topology.names().gateway(gateway), topology.names().gateway_due(gateway)];
        !queues.iter().filter_map(|name| snapshot.queues.get(name)).any(|queue| queue.messages > Some(0))
    };
    let names = names_among(topology.names(), snapshot.queues.keys());
    let of = |gateway: &String| {
        let mut findings = findings_of(topology, snapshot, gateway);
        findings.retain(|finding| finding.code != FindingCode::GatewayUnserved || !idle(gateway));
        findings
    };
    names.iter().flat_map(of).collect()
}

/// All faults of a gateway.
fn findings_of(topology: &Topology, snapshot: &Snapshot, gateway: &str) -> Vec<Finding> {
    let names = topology.names();
    let subject = format!("gateway `{gateway}`");
    let app = Names::gateway_app(gateway).ok();
    let finding = |code, what: String, advice: String| {
        Finding::new(code, subject.clone(), what, advice).about(app.iter())
    };
    let mut findings = Vec::new();
    // Users choose the kind; everything else is ours.
    let objects = topology.gateway(gateway, ExchangeKind::Topic).unwrap_or_default();
    let missing: Vec<_> = objects.iter().filter(|object| !snapshot.has(object)).map(describe).collect();
    if !missing.is_empty() {
        findings.push(finding(
            FindingCode::GatewayBroken,
            format!("{} missing", missing.join(", ")),
            format!("run `{}`, which makes the missing parts", command(&["gateway", "add", gateway])),
        ));
    }
    let entry = Names::gateway_entry(gateway);
    let own = names.gateway(gateway);
    let foreign = snapshot.bindings_from(&entry).iter().filter(|it| it.destination.name() != own);
    let mut foreign: Vec<_> = foreign.map(|it| it.destination.to_string()).collect();
    foreign.sort();
    foreign.dedup();
    if !foreign.is_empty() {
        findings.push(finding(
            FindingCode::GatewayBypassed,
            format!(
                "{} bound to exchange `{entry}`, and gets each message at once, without its delay",
                match foreign.as_slice() {
                    [one] => format!("{one} is"),
                    more => format!("each of {} is", more.join(", ")),
                }
            ),
            format!("bind it to exchange `{gateway}`, and unbind it from `{entry}`"),
        ));
    }
    if snapshot.queues.get(&own).is_none_or(|queue| queue.consumers == Some(0)) {
        let advice = format!("run `{}`", command(&["serve"]));
        findings.push(finding(FindingCode::GatewayUnserved, "no daemon takes its messages".into(), advice));
    }
    if snapshot.exchanges.contains_key(gateway) && snapshot.bindings_from(gateway).is_empty() {
        findings.push(finding(
            FindingCode::GatewayUnbound,
            format!(
                "no queue is bound to exchange `{gateway}`, so its messages end up in `{}`",
                names.unroutable()
            ),
            format!("bind the queues of its consumers to exchange `{gateway}`"),
        ));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use delayline_core::topology::{Binding, Endpoint, Object, TopologySettings};

    fn bind(snapshot: &mut Snapshot, source: &str, destination: &str, key: &str) {
        let destination = Endpoint::Queue(destination.into());
        let binding = Binding { source: source.into(), destination, key: key.into() };
        *snapshot = std::mem::take(snapshot).with(&[Object::Binding(binding)]);
    }

    /// A gateway with a binding and a daemon.
    fn healthy(topology: &Topology) -> Snapshot {
        let gateway = topology.gateway("orders", ExchangeKind::Topic).unwrap();
        let mut snapshot = Snapshot::default().with(topology.objects()).with(&gateway);
        snapshot.queues.values_mut().for_each(|queue| queue.consumers = Some(8));
        bind(&mut snapshot, "orders", "app", "#");
        snapshot
    }

    fn codes(topology: &Topology, snapshot: &Snapshot) -> Vec<&'static str> {
        findings(topology, snapshot).iter().map(|finding| finding.code.as_str()).collect()
    }

    #[test]
    fn each_fault_is_found() {
        let topology = Topology::new(TopologySettings::default());
        let with = |damage: fn(&mut Snapshot)| {
            let mut snapshot = healthy(&topology);
            damage(&mut snapshot);
            codes(&topology, &snapshot)
        };
        assert_eq!(with(|_| {}), [""; 0]);
        assert_eq!(with(|it| drop(it.exchanges.remove("orders.in"))), ["gateway-broken"]);
        assert_eq!(with(|it| bind(it, "orders.in", "app", "")), ["gateway-bypassed"]);
        assert_eq!(with(|it| it.retain_bindings(|it| it.source != "orders")), ["gateway-unbound"]);
        let alone: fn(&mut Snapshot) =
            |it| it.queues.values_mut().for_each(|queue| queue.consumers = Some(0));
        assert_eq!(with(alone), [""; 0], "it has no messages");
        let waits: fn(&mut Snapshot) = |it| {
            for queue in it.queues.values_mut() {
                (queue.consumers, queue.messages) = (Some(0), Some(3));
            }
        };
        assert_eq!(with(waits), ["gateway-unserved"]);
        let unknown: fn(&mut Snapshot) = |it| it.queues.values_mut().for_each(|queue| queue.consumers = None);
        assert_eq!(with(unknown), [""; 0]);
        let mut snapshot = healthy(&topology);
        unknown(&mut snapshot);
        let of = entry(&topology, &snapshot, "orders");
        assert!(of.problems.is_empty() && of.channels.is_none() && of.unchecked.len() == 1, "{of:?}");
        alone(&mut snapshot);
        let all = findings_of(&topology, &snapshot, "orders");
        assert_eq!(all[0].code, FindingCode::GatewayUnserved, "a list of the gateways shows it");
        assert_eq!(all[0].apps, ["gateway.orders"]);
    }
}
