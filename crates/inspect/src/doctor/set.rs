//! The set itself: the findings of `verify`.

use crate::{doctor::evidence::Evidence, finding::Finding, finding::FindingCode, finding::findings};
use delayline_broker::{Difference, is_federated, unsuitable};
use delayline_core::topology::{Endpoint, Topology};

pub(super) fn check(topology: &Topology, evidence: &Evidence) -> Vec<Finding> {
    let mut found = differences(topology, evidence);
    found.extend(evidence.clashes.iter().map(|clash| {
        Finding::new(
            FindingCode::NameClash,
            format!("queue `{}`", clash.queue.name),
            format!("{clash}: the broker refuses to declare it (`cluster_not_formed`)"),
            "rename a queue or a vhost, or delete the other queue. A restart of \
             the node does not help",
        )
    }));
    found
}

fn differences(topology: &Topology, evidence: &Evidence) -> Vec<Finding> {
    let set = &topology.settings().set;
    let mut differences = unsuitable(topology.settings(), &evidence.snapshot.about);
    if !evidence.snapshot.is_installed(topology) {
        let mut found = findings(set, &differences);
        found.push(Finding::new(
            FindingCode::SetDiffers,
            format!("set `{set}`"),
            "it is not installed in this vhost",
            set.command(&["install"]),
        ));
        return found;
    }
    differences.extend(evidence.snapshot.compare(topology));
    // The checks of targets and bindings report most of these, with names.
    differences.retain(|difference| match difference {
        Difference::ExtraBinding { binding, .. } => {
            binding.source != topology.names().dispatch()
                || keeps(topology, &binding.destination)
                || is_federated(binding)
        }
        _ => true,
    });
    findings(set, &differences)
}

/// Whether this queue or exchange of the set keeps the messages it gets.
fn keeps(topology: &Topology, destination: &Endpoint) -> bool {
    let ours = match destination {
        Endpoint::Queue(name) => topology.queues().any(|queue| queue.name == *name),
        Endpoint::Exchange(name) => topology.owns_exchange(name),
    };
    ours && !topology.leads_back(destination)
}
