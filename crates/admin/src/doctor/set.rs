//! The set itself: the findings of `verify`.

use crate::{
    compare::{Difference, findings, unsuitable},
    doctor::facts::Facts,
    finding::{Finding, FindingCode},
};
use delayline_core::topology::{Endpoint, Topology};

pub(super) fn check(topology: &Topology, facts: &Facts) -> Vec<Finding> {
    let set = &topology.settings().set;
    let mut differences = unsuitable(topology.settings(), &facts.about);
    if !facts.installed(topology) {
        let mut found = findings(set, &differences);
        found.push(Finding::new(
            FindingCode::SetDiffers,
            format!("set `{set}`"),
            "it is not installed in this vhost",
            set.command("install"),
        ));
        return found;
    }
    differences.extend(facts.observed.compare(topology));
    // The checks of targets and bindings report most of these, with names.
    differences.retain(|difference| match difference {
        Difference::ExtraBinding { binding, .. } => {
            binding.source != topology.names().dispatch() || keeps(topology, &binding.destination)
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
