//! The set itself: what `verify` finds, with advice.

use crate::topology::{EARLIER_REMEDY, EARLIER_VERSION, Endpoint, Finding, Topology, unsuitable};

use super::{FindingCode, HealthFinding, facts::Facts};

pub(super) fn check(topology: &Topology, facts: &Facts) -> Vec<HealthFinding> {
    let mut findings: Vec<_> =
        unsuitable(topology.settings(), &facts.about).iter().filter_map(|it| finding(topology, it)).collect();
    if !facts.installed(topology) {
        let set = &topology.settings().set;
        findings.push(HealthFinding::new(
            FindingCode::SetDiffers,
            format!("set `{set}`"),
            "it is not installed in this vhost",
            "delayline install",
        ));
        return findings;
    }
    findings.extend(topology.compare(&facts.observed).iter().filter_map(|it| finding(topology, it)));
    findings
}

/// Whether it is a queue or exchange of the set that keeps what it gets.
fn keeps(topology: &Topology, destination: &Endpoint) -> bool {
    let ours = match destination {
        Endpoint::Queue(name) => topology.queues().any(|queue| queue.name == *name),
        Endpoint::Exchange(name) => topology.owns_exchange(name),
    };
    ours && !topology.leads_back(destination)
}

pub(super) fn finding(topology: &Topology, finding: &Finding) -> Option<HealthFinding> {
    let queue = |name: &String| format!("queue `{name}`");
    Some(match finding {
        Finding::Missing { object } => {
            HealthFinding::new(FindingCode::SetDiffers, object, "it is missing", "delayline install")
        }
        Finding::MissingBinding { binding } => HealthFinding::new(
            FindingCode::SetDiffers,
            binding.to_string(),
            "it is missing",
            "delayline install",
        ),
        Finding::EarlierVersion { bindings } => HealthFinding::new(
            FindingCode::SetDiffers,
            format!("set `{}`", topology.settings().set),
            format!("{EARLIER_VERSION}: {bindings} of its bindings expect one bit to a word"),
            EARLIER_REMEDY,
        ),
        Finding::Different { object, argument, wanted, found } => HealthFinding::new(
            FindingCode::SetDiffers,
            object,
            format!("`{argument}` should be {wanted}, but is {found}"),
            "if the set was installed with other settings, use those; if somebody declared it by hand, let it \
             run empty, delete it, and run `delayline install`",
        ),
        // What is wrong with most of these is said by the check of targets and bindings,
        // with names.
        Finding::ExtraBinding { binding, .. }
            if binding.source == topology.names().dispatch() && !keeps(topology, &binding.destination) =>
        {
            return None;
        }
        Finding::ExtraBinding { binding, effect } => HealthFinding::new(
            FindingCode::SetDiffers,
            binding.to_string(),
            *effect,
            "find out who made it, and unbind it; applications bind to the dispatch exchange only",
        ),
        Finding::Unsuitable { reason, remedy } => {
            HealthFinding::new(FindingCode::BrokerUnsuitable, "broker", reason, remedy)
        }
        Finding::MissingReplicas { queue: name, members, wanted } => HealthFinding::new(
            FindingCode::TooFewReplicas,
            queue(name),
            format!("it has {} of {wanted} replicas, on {}", members.len(), members.join(", ")),
            "rabbitmq-queues grow NODE all, for a node without one",
        ),
        Finding::ReplicasOffline { queue: name, offline, stalled: true } => HealthFinding::new(
            FindingCode::NoMajority,
            queue(name),
            format!(
                "no replica runs on {}: it has no majority, and everything in it waits",
                offline.join(", ")
            ),
            "start those nodes; if they are lost for good, docs/doctor.md says how to do without them, which \
             can lose messages",
        ),
        Finding::NoLeader { queue: name } => HealthFinding::new(
            FindingCode::NoLeader,
            queue(name),
            "its replicas run and none of them leads: nothing gets in or out, and so nothing leaves the levels \
             that hand on to it",
            "make sure (rabbitmq-queues quorum_status QUEUE), then delete the queue and run `delayline install`; \
             restarting the node does not help",
        ),
        Finding::ReplicasOffline { queue: name, offline, stalled: false } => HealthFinding::new(
            FindingCode::ReplicaOffline,
            queue(name),
            format!("no replica runs on {}", offline.join(", ")),
            "start those nodes before another one fails",
        ),
        Finding::Policy { queue: name, policy, effect } => HealthFinding::new(
            FindingCode::PolicyOnSet,
            queue(name),
            format!("{policy}: {effect}"),
            format!(
                "give the policy a pattern that leaves `{set}` and what begins with `{set}.` alone",
                set = topology.settings().set
            ),
        ),
    })
}
