//! The broker as a whole.

use crate::compare::unsuitable;
use delayline_core::topology::Topology;

use crate::{
    doctor::facts::Facts,
    finding::{Finding, FindingCode},
};

pub(super) fn check(topology: &Topology, facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    for node in facts.nodes.iter().flatten() {
        for (on, what, helps) in [
            (node.mem_alarm, "memory", "give it more memory, or find the queues that use it"),
            (node.disk_free_alarm, "disk space", "free some space, or enlarge the disk"),
        ] {
            if on {
                findings.push(Finding::new(
                    FindingCode::BrokerAlarm,
                    format!("node {}", node.name),
                    format!("it is short of {what}, and the whole cluster accepts no messages"),
                    helps,
                ));
            }
        }
    }
    let needed = unsuitable(topology.settings(), &facts.about);
    for flag in facts.about.flags.iter().flatten() {
        let off = flag.state == "disabled" && matches!(flag.stability.as_str(), "stable" | "required");
        let said = needed.iter().any(|finding| finding.to_string().contains(&format!("`{}`", flag.name)));
        if off && !said {
            findings.push(Finding::new(
                FindingCode::FeatureFlagOff,
                format!("feature flag `{}`", flag.name),
                "it is stable but off; the next version may refuse to start without it",
                format!("rabbitmqctl enable_feature_flag {}", flag.name),
            ));
        }
    }
    for feature in facts.deprecated.iter().flatten() {
        findings.push(Finding::new(
            FindingCode::DeprecatedFeature,
            format!("deprecated feature `{}`", feature.name),
            format!("something on this broker uses it ({})", feature.deprecation_phase.replace('_', " ")),
            "find out who uses it before you upgrade the broker: a later version refuses it",
        ));
    }
    findings
}
