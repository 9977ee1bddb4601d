//! Unroutable messages.

use delayline_core::shell::command;
use std::collections::BTreeMap;

use crate::{doctor::evidence::Evidence, finding::Finding, finding::FindingCode};
use delayline_broker::is_canary_app;
use delayline_core::topology::Topology;
use delayline_messages::{held::Kept, held::KeptGroup, held::Reason, number::counted, number::grouped};

pub(super) fn check(topology: &Topology, evidence: &Evidence) -> Vec<Finding> {
    let mut findings = Vec::new();
    let name = topology.names().unroutable();
    let queue = format!("queue `{name}`");
    let waiting = evidence.snapshot.queues.get(&name).and_then(|queue| queue.messages);
    let report = evidence.kept.get(&Kept::Unroutable);
    let groups = report.map(|report| report.groups.as_slice()).unwrap_or_default();
    let count_of = |wanted: fn(&&KeptGroup) -> bool| -> u64 {
        groups.iter().filter(wanted).map(|group| group.group.count).sum()
    };
    // Only the first messages are examined.
    let all_seen = report.is_some_and(|report| report.examined >= report.waiting);
    let at_least = if all_seen { "" } else { "at least " };
    findings.extend(of_gateways(topology, evidence, groups, at_least));
    let own = |group: &&KeptGroup| is_for_nobody(group) && group.cause.gateway.is_none();
    for group in groups.iter().filter(own) {
        let Some(app) = &group.cause.app else { continue };
        let discard = unroutable("discard", &["--app", app]);
        let advice = match is_canary_app(app) {
            true => {
                format!("these are test messages of a canary that was stopped: discard them (`{discard}`)")
            }
            false => format!(
                "if the application exists, bind it (`{}`, or its platform file) and then replay them (`{}`); if not, stop its \
                 publishers and discard them (`{discard}`)",
                command(&["app", "add", app]),
                unroutable("replay", &["--app", app])
            ),
        };
        findings.push(
            Finding::new(
                FindingCode::NobodyBound,
                format!("app key `{app}`"),
                format!("no queue is bound for it, and {at_least}{} unroutable", messages(group.group.count)),
                advice,
            )
            .about([app]),
        );
    }
    let malformed = count_of(|group| group.cause.reason == Reason::Malformed.as_str());
    if malformed > 0 {
        findings.push(Finding::new(
            FindingCode::MalformedMessages,
            queue.clone(),
            format!("{at_least}{} a malformed routing key or delay", have(malformed)),
            format!(
                "look up the fault of each (`{}`), correct their publishers, and discard the messages \
                (`{}`)",
                unroutable("list", &[]),
                unroutable("discard", &["--reason", "malformed"])
            ),
        ));
    }
    let known = malformed + count_of(|group| is_for_nobody(group));
    // Without a sample, only the count is known, which is a little older.
    let (others, whose) = match report {
        Some(_) if all_seen => (
            count_of(|_| true).saturating_sub(known),
            "kept for applications that are bound now, or for other reasons",
        ),
        Some(report) => (report.waiting.saturating_sub(known), "kept, and not all of them were examined"),
        // An unknown number has a finding of its own.
        None => (waiting.unwrap_or(0), "kept"),
    };
    if others > 0 {
        findings.push(Finding::new(
            FindingCode::UnroutableWaiting,
            queue.clone(),
            format!("{} {whose}; `{}` lists them", are(others), unroutable("list", &[])),
            format!(
                "messages for applications that are bound by now can be replayed: `{}`",
                unroutable("replay", &["--all"])
            ),
        ));
    }
    if let (Some(first), Some(last)) =
        (evidence.unroutable_history.first(), evidence.unroutable_history.last())
        && last > first
    {
        findings.push(Finding::new(
            FindingCode::UnroutableGrowing,
            queue,
            format!(
                "it grew from {} to {} in the last ten minutes",
                grouped(*first),
                counted(*last, "message")
            ),
            format!("`{}` shows their applications, and the fault", unroutable("list", &[])),
        ));
    }
    findings
}

/// A command on unroutable messages.
fn unroutable(verb: &str, more: &[&str]) -> String {
    command(&[&["held", verb, "--kind", "unroutable"], more].concat())
}

/// Unroutable messages of gateways without a binding for them.
fn of_gateways(
    topology: &Topology,
    evidence: &Evidence,
    groups: &[KeptGroup],
    at_least: &str,
) -> Vec<Finding> {
    let mut counts: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for group in groups.iter().filter(|group| is_for_nobody(group)) {
        if let (Some(gateway), Some(app)) = (&group.cause.gateway, &group.cause.app) {
            *counts.entry((gateway, app)).or_default() += group.group.count;
        }
    }
    let stands = |gateway: &str| {
        let queue = topology.names().gateway(gateway);
        evidence.snapshot.queues.contains_key(&queue)
    };
    let finding = |((gateway, app), count): ((&str, &str), u64)| {
        let add = match stands(gateway) {
            true => String::new(),
            false => format!("add the gateway again (`{}`), ", command(&["gateway", "add", gateway])),
        };
        Finding::new(
            FindingCode::NobodyBound,
            format!("gateway `{gateway}`"),
            format!(
                "no queue is bound to exchange `{gateway}` for {at_least}{} of it",
                counted(count, "message")
            ),
            format!(
                "{add}bind a queue to exchange `{gateway}` for their routing keys (`{}`), and then replay \
                 them (`{}`); if no application wants them, discard them (`{}`)",
                unroutable("show", &["--app", app]),
                unroutable("replay", &["--app", app]),
                unroutable("discard", &["--app", app])
            ),
        )
        .about([app])
    };
    counts.into_iter().map(finding).collect()
}

fn is_for_nobody(group: &KeptGroup) -> bool {
    group.cause.reason == Reason::NobodyBound.as_str() && group.bound == Some(false)
}

fn messages(count: u64) -> String {
    if count == 1 { "1 message for it is".into() } else { format!("{} messages for it are", grouped(count)) }
}

fn have(count: u64) -> String {
    if count == 1 { "1 message has".into() } else { format!("{} messages have", grouped(count)) }
}

fn are(count: u64) -> String {
    if count == 1 { "1 message is".into() } else { format!("{} messages are", grouped(count)) }
}
