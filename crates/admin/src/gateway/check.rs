//! What is wrong with gateways: pure.

use crate::{
    compare::Observed,
    finding::{Finding, FindingCode},
    gateway::{list::names_among, stands},
    install::describe,
};
use delayline_core::topology::{ExchangeKind, Names, Topology};

/// What harms messages now, or will: a gateway without a daemon does no harm while nothing waits.
pub(crate) fn findings(topology: &Topology, observed: &Observed) -> Vec<Finding> {
    let idle = |gateway: &str| {
        let queues = [topology.names().gateway(gateway), topology.names().gateway_due(gateway)];
        !observed.queues.iter().any(|queue| queue.messages > 0 && queues.contains(&queue.name))
    };
    let names = names_among(topology.names(), &observed.queues);
    let of = |gateway: &String| {
        let mut findings = findings_of(topology, observed, gateway);
        findings.retain(|finding| finding.code != FindingCode::GatewayUnserved || !idle(gateway));
        findings
    };
    names.iter().flat_map(of).collect()
}

/// Everything that is wrong with one.
pub(super) fn findings_of(topology: &Topology, observed: &Observed, gateway: &str) -> Vec<Finding> {
    let names = topology.names();
    let subject = format!("gateway `{gateway}`");
    let app = Names::gateway_app(gateway).ok();
    let finding = |code, what: String, advice: String| {
        Finding::new(code, subject.clone(), what, advice).about(app.iter())
    };
    let mut findings = Vec::new();
    // The kind is the users' affair; everything else is ours.
    let objects = topology.gateway(gateway, ExchangeKind::Topic).unwrap_or_default();
    let missing: Vec<_> = objects.iter().filter(|object| !stands(observed, object)).map(describe).collect();
    if !missing.is_empty() {
        findings.push(finding(
            FindingCode::GatewayBroken,
            format!("{} missing", missing.join(", ")),
            format!("`delayline gateway add {gateway}` makes what is missing"),
        ));
    }
    let entry = Names::gateway_entry(gateway);
    let own = names.gateway(gateway);
    let foreign = observed.bindings.iter().filter(|it| it.source == entry && it.destination != own);
    let mut foreign: Vec<_> =
        foreign.map(|it| format!("{} `{}`", it.destination_type, it.destination)).collect();
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
    if !observed.queues.iter().any(|queue| queue.name == own && queue.consumers > 0) {
        let (what, advice) = ("no daemon takes its messages", "run `delayline serve`");
        findings.push(finding(FindingCode::GatewayUnserved, what.into(), advice.into()));
    }
    let stands = observed.exchanges.iter().any(|exchange| exchange.name == gateway);
    if stands && !observed.bindings.iter().any(|binding| binding.source == gateway) {
        findings.push(finding(
            FindingCode::GatewayUnbound,
            format!(
                "nobody is bound to exchange `{gateway}`, so its messages end up in `{}`",
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
    use crate::management::{BindingInfo, ExchangeInfo, QueueInfo};
    use delayline_core::topology::{Endpoint, Exchange, Object, TopologySettings};

    fn bind(observed: &mut Observed, source: &str, destination: &str, key: &str) {
        observed.bindings.push(BindingInfo {
            source: source.into(),
            destination: destination.into(),
            destination_type: "queue".into(),
            routing_key: key.into(),
            ..BindingInfo::default()
        });
    }

    /// A gateway that somebody is bound to and that a daemon takes messages of.
    fn healthy(topology: &Topology) -> Observed {
        let mut observed = Observed::standing(topology);
        for object in topology.gateway("orders", ExchangeKind::Topic).unwrap() {
            match object {
                Object::Exchange(Exchange { name, .. }) => {
                    observed.exchanges.push(ExchangeInfo { name, ..ExchangeInfo::default() });
                }
                Object::Queue(queue) => {
                    let name = queue.name;
                    observed.queues.push(QueueInfo { name, consumers: 8, ..QueueInfo::default() });
                }
                Object::Binding(binding) => {
                    if let Endpoint::Queue(queue) = &binding.destination {
                        bind(&mut observed, &binding.source, queue, &binding.key);
                    }
                }
            }
        }
        bind(&mut observed, "orders", "app", "#");
        observed
    }

    fn codes(topology: &Topology, observed: &Observed) -> Vec<&'static str> {
        findings(topology, observed).iter().map(|finding| finding.code.as_str()).collect()
    }

    #[test]
    fn each_fault_is_found() {
        let topology = Topology::new(TopologySettings::default());
        let with = |damage: fn(&mut Observed)| {
            let mut observed = healthy(&topology);
            damage(&mut observed);
            codes(&topology, &observed)
        };
        assert_eq!(with(|_| {}), [""; 0]);
        assert_eq!(with(|it| it.exchanges.retain(|it| it.name != "orders.in")), ["gateway-broken"]);
        assert_eq!(with(|it| bind(it, "orders.in", "app", "")), ["gateway-bypassed"]);
        assert_eq!(with(|it| it.bindings.retain(|it| it.source != "orders")), ["gateway-unbound"]);
        let alone: fn(&mut Observed) = |it| it.queues.iter_mut().for_each(|queue| queue.consumers = 0);
        assert_eq!(with(alone), [""; 0], "nothing waits");
        let waits: fn(&mut Observed) = |it| {
            for queue in &mut it.queues {
                (queue.consumers, queue.messages) = (0, 3);
            }
        };
        assert_eq!(with(waits), ["gateway-unserved"]);
        let mut observed = healthy(&topology);
        alone(&mut observed);
        let all = findings_of(&topology, &observed, "orders");
        assert_eq!(all[0].code, FindingCode::GatewayUnserved, "whoever asks for it is told");
        assert_eq!(all[0].apps, ["gateway.orders"]);
    }
}
