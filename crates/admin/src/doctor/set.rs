//! The set itself: the findings of `verify`, by cause.

use crate::compare::{Cause, Finding, causes, unsuitable};
use delayline::topology::{Endpoint, Topology};

use crate::doctor::{FindingCode, HealthFinding, facts::Facts};

pub(super) fn check(topology: &Topology, facts: &Facts) -> Vec<HealthFinding> {
    let mut findings = unsuitable(topology.settings(), &facts.about);
    if !facts.installed(topology) {
        let set = &topology.settings().set;
        let mut found = health(topology, &findings);
        found.push(HealthFinding::new(
            FindingCode::SetDiffers,
            format!("set `{set}`"),
            "it is not installed in this vhost",
            "delayline install",
        ));
        return found;
    }
    findings.extend(facts.observed.compare(topology));
    // The checks of targets and bindings report most of these, with names.
    findings.retain(|finding| match finding {
        Finding::ExtraBinding { binding, .. } => {
            binding.source != topology.names().dispatch() || keeps(topology, &binding.destination)
        }
        _ => true,
    });
    health(topology, &findings)
}

/// Whether this queue or exchange of the set keeps the messages it gets.
fn keeps(topology: &Topology, destination: &Endpoint) -> bool {
    let ours = match destination {
        Endpoint::Queue(name) => topology.queues().any(|queue| queue.name == *name),
        Endpoint::Exchange(name) => topology.owns_exchange(name),
    };
    ours && !topology.leads_back(destination)
}

/// One finding for each cause, with its effect.
pub(super) fn health(topology: &Topology, findings: &[Finding]) -> Vec<HealthFinding> {
    causes(&topology.settings().set, findings)
        .into_iter()
        .filter_map(|Cause { subject, what, remedy, findings }| {
            let code = code(findings.first()?);
            let details = match findings.as_slice() {
                [_] => Vec::new(),
                several => several.iter().map(ToString::to_string).collect(),
            };
            Some(HealthFinding { details, ..HealthFinding::new(code, subject, what, remedy) })
        })
        .collect()
}

fn code(finding: &Finding) -> FindingCode {
    match finding {
        Finding::Missing { .. }
        | Finding::EarlierVersion { .. }
        | Finding::MissingBinding { .. }
        | Finding::Different { .. }
        | Finding::ExtraBinding { .. } => FindingCode::SetDiffers,
        Finding::Unsuitable { .. } => FindingCode::BrokerUnsuitable,
        Finding::MissingReplicas { .. } => FindingCode::TooFewReplicas,
        Finding::ReplicasOffline { stalled: true, .. } => FindingCode::NoMajority,
        Finding::ReplicasOffline { stalled: false, .. } => FindingCode::ReplicaOffline,
        Finding::NoLeader { .. } => FindingCode::NoLeader,
        Finding::Policy { .. } => FindingCode::PolicyOnSet,
    }
}
