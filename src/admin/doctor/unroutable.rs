//! What could not be delivered.

use crate::{admin::Reason, topology::Topology};

use super::{FindingCode, HealthFinding, facts::Facts};

pub(super) fn check(topology: &Topology, facts: &Facts) -> Vec<HealthFinding> {
    let mut findings = Vec::new();
    let queue = format!("queue `{}`", topology.names().unroutable());
    // Only the first messages are looked at.
    let at_least = match &facts.unroutable {
        Some(report) if report.examined < report.waiting => "at least ",
        _ => "",
    };
    for group in facts.unroutable_for(Reason::NobodyBound) {
        let (Some(app), Some(false)) = (&group.diagnosis.app, group.bound) else { continue };
        let (count, subject) = (group.group.count, format!("app key `{app}`"));
        findings.push(
            HealthFinding::new(
                FindingCode::NobodyBound,
                subject,
                format!("nobody is bound for it, and {at_least}{} unroutable", messages(count)),
                format!(
                    "if the application exists, bind it (delayline app add {app}) and then send them on \
                     (delayline unroutable replay --app {app}); if not, stop who publishes for it and \
                     discard them (delayline unroutable purge --app {app})"
                ),
            )
            .about([app]),
        );
    }
    let malformed: u64 = facts.unroutable_for(Reason::Malformed).map(|group| group.group.count).sum();
    if malformed > 0 {
        findings.push(HealthFinding::new(
            FindingCode::MalformedMessages,
            queue.clone(),
            format!("{at_least}{} a malformed routing key", have(malformed)),
            "see what is wrong with the keys (delayline unroutable list), correct who publishes them, and \
             discard them (delayline unroutable purge --reason malformed)",
        ));
    }
    if let (Some(first), Some(last)) = (facts.unroutable_history.first(), facts.unroutable_history.last())
        && last > first
    {
        findings.push(HealthFinding::new(
            FindingCode::UnroutableGrowing,
            queue,
            format!("it grew from {first} to {last} messages in the last ten minutes"),
            "delayline unroutable list says for whom they are, and what is wrong",
        ));
    }
    findings
}

fn messages(count: u64) -> String {
    if count == 1 { "1 message for it is".into() } else { format!("{count} messages for it are") }
}

fn have(count: u64) -> String {
    if count == 1 { "1 message has".into() } else { format!("{count} messages have") }
}
