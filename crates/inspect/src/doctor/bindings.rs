//! The binding keys of the dispatch exchange.

use delayline_core::shell::command;
use std::collections::BTreeSet;

use crate::{finding::Finding, finding::FindingCode};
use delayline_broker::Snapshot;
use delayline_core::{
    codec::{Delay, RoutingKey},
    topology::{Topology, topic_matches},
};

/// Bindings that catch other applications' messages, or can.
pub(super) fn check(topology: &Topology, snapshot: &Snapshot) -> Vec<Finding> {
    let bindings = snapshot.dispatch_bindings(topology);
    let exact: Vec<_> = bindings
        .iter()
        .filter_map(|binding| Some((RoutingKey::app_of_pattern(&binding.key).ok()?, binding)))
        .collect();
    let mut findings = Vec::new();
    for binding in &bindings {
        if RoutingKey::app_of_pattern(&binding.key).is_ok() {
            continue;
        }
        let caught: BTreeSet<_> = exact
            .iter()
            .filter(|(app, other)| {
                let key = RoutingKey::new(Delay::ZERO, app.clone()).encode();
                other.destination != binding.destination && topic_matches(&binding.key, &key)
            })
            .map(|(app, _)| app)
            .collect();
        let advice = format!(
            "bind with `delay.`, seven times `*.` and the app key, then remove this binding; `{}` makes the exact \
             one",
            command(&["app", "add", "APP"])
        );
        findings.push(if caught.is_empty() {
            Finding::new(
                FindingCode::WildcardBinding,
                binding.to_string(),
                "it can catch messages of other applications",
                advice,
            )
        } else {
            let names: Vec<_> = caught.iter().map(|app| format!("`{app}`")).collect();
            Finding::new(
                FindingCode::BindingCollision,
                binding.to_string(),
                format!("it also receives the messages of {}", names.join(", ")),
                advice,
            )
            .about(caught)
        });
    }
    findings
}
