//! The broker as a whole.

use crate::{doctor::evidence::Evidence, finding::Finding, finding::FindingCode};
use delayline_broker::unsuitable;
use delayline_core::topology::Topology;
use delayline_messages::number::counted;

pub(super) fn check(topology: &Topology, evidence: &Evidence) -> Vec<Finding> {
    let mut findings = Vec::new();
    for alarm in evidence.snapshot.about.alarms.iter().flatten() {
        let (what, helps) = match alarm.resource.as_str() {
            "disk" => ("disk space", "free some space, or enlarge the disk"),
            "memory" => ("memory", "give it more memory, or find the queues that use it"),
            other => (other, "free some of it"),
        };
        findings.push(Finding::new(
            FindingCode::BrokerAlarm,
            format!("node {}", alarm.node),
            format!("it is short of {what}, and the whole cluster accepts no messages"),
            helps,
        ));
    }
    if evidence.snapshot.about.without_statistics {
        let uncounted = evidence.snapshot.queues.values().filter(|queue| queue.uncounted).count() as u64;
        let messages = match uncounted {
            0 => String::new(),
            some => format!(", nor the messages of {}", counted(some, "queue")),
        };
        findings.push(Finding::new(
            FindingCode::StatisticsOff,
            "broker",
            format!(
                "it keeps no statistics (`management_agent.disable_metrics_collector = true`): consumers and \
                 rates are not known{messages}"
            ),
            "set management_agent.disable_metrics_collector = false on every node, and restart the nodes one \
             by one",
        ));
    }
    let needed = unsuitable(topology.settings(), &evidence.snapshot.about);
    for flag in evidence.snapshot.about.flags.iter().flatten() {
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
    for feature in evidence.snapshot.about.deprecated.iter().flatten() {
        findings.push(Finding::new(
            FindingCode::DeprecatedFeature,
            format!("deprecated feature `{}`", feature.name),
            format!("something on this broker uses it ({})", feature.deprecation_phase.replace('_', " ")),
            "find out who uses it before you upgrade the broker: a later version refuses it",
        ));
    }
    findings
}
