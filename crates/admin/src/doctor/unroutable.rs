//! Unroutable messages.

use std::collections::BTreeMap;

use crate::{Kept, KeptGroup, Reason};
use delayline_core::topology::Topology;

use crate::{
    doctor::facts::Facts,
    finding::{Finding, FindingCode},
    number::{counted, grouped},
};

pub(super) fn check(topology: &Topology, facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    let name = topology.names().unroutable();
    let queue = format!("queue `{name}`");
    let waiting =
        facts.observed.queues.iter().find(|queue| queue.name == name).map_or(0, |queue| queue.messages);
    let report = facts.kept.get(&Kept::Unroutable);
    let groups = report.map(|report| report.groups.as_slice()).unwrap_or_default();
    let count_of = |wanted: fn(&&KeptGroup) -> bool| -> u64 {
        groups.iter().filter(wanted).map(|group| group.group.count).sum()
    };
    // Only the first messages are examined.
    let all_seen = report.is_some_and(|report| report.examined >= report.waiting);
    let at_least = if all_seen { "" } else { "at least " };
    findings.extend(of_gateways(topology, facts, groups, at_least));
    let own = |group: &&KeptGroup| is_for_nobody(group) && group.cause.gateway.is_none();
    for group in groups.iter().filter(own) {
        let Some(app) = &group.cause.app else { continue };
        findings.push(
            Finding::new(
                FindingCode::NobodyBound,
                format!("app key `{app}`"),
                format!("nobody is bound for it, and {at_least}{} unroutable", messages(group.group.count)),
                format!(
                    "if the application exists, bind it (delayline app add {app}) and then send them on \
                     (delayline unroutable replay --app {app}); if not, stop its publishers and discard them \
                     (delayline unroutable discard --app {app})"
                ),
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
            "see what is wrong with them (delayline unroutable list), correct their publishers, and \
             discard the messages (delayline unroutable discard --reason malformed)",
        ));
    }
    let known = malformed + count_of(|group| is_for_nobody(group));
    // Without a sample there is only the count, which is a little older.
    let (others, whose) = match report {
        Some(_) if all_seen => {
            (count_of(|_| true).saturating_sub(known), "for applications that are bound now, or ")
        }
        Some(report) => (report.waiting.saturating_sub(known), "for whom is not all known, "),
        None => (waiting, ""),
    };
    if others > 0 {
        findings.push(Finding::new(
            FindingCode::UnroutableWaiting,
            queue.clone(),
            format!("{} kept {whose}for reasons that `delayline unroutable list` shows", are(others)),
            "messages for applications that are bound by now can be sent on: delayline unroutable replay --all",
        ));
    }
    if let (Some(first), Some(last)) = (facts.unroutable_history.first(), facts.unroutable_history.last())
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
            "delayline unroutable list says which applications they are for, and what is wrong",
        ));
    }
    findings
}

/// Messages that came through gateways and that nobody is bound for.
fn of_gateways(topology: &Topology, facts: &Facts, groups: &[KeptGroup], at_least: &str) -> Vec<Finding> {
    let mut counts: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for group in groups.iter().filter(|group| is_for_nobody(group)) {
        if let (Some(gateway), Some(app)) = (&group.cause.gateway, &group.cause.app) {
            *counts.entry((gateway, app)).or_default() += group.group.count;
        }
    }
    let stands = |gateway: &str| {
        let queue = topology.names().gateway(gateway);
        facts.observed.queues.iter().any(|found| found.name == queue)
    };
    let finding = |((gateway, app), count): ((&str, &str), u64)| {
        let add = match stands(gateway) {
            true => String::new(),
            false => format!("add the gateway again (delayline gateway add {gateway}), "),
        };
        Finding::new(
            FindingCode::NobodyBound,
            format!("gateway `{gateway}`"),
            format!(
                "nobody is bound to exchange `{gateway}` for {at_least}{} of it",
                counted(count, "message")
            ),
            format!(
                "{add}bind a queue to exchange `{gateway}` for their routing keys (delayline unroutable show \
                 --app {app}), and then send them on (delayline unroutable replay --app {app}); if nobody \
                 wants them, discard them (delayline unroutable discard --app {app})"
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
