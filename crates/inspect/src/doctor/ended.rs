//! Nodes on which no level passes messages on.
//!
//! No API shows whether the workers for at-least-once dead-lettering still run. The evidence is that no
//! level passes on messages although no bound queue is known to refuse.

use std::collections::BTreeMap;

use crate::{doctor::evidence::Evidence, finding::Finding, finding::FindingCode};
use delayline_broker::{forgery, moves};

/// Examines the queues whose dead letters are stuck for no known reason, and the streams that due messages
/// reach.
pub(super) fn check(evidence: &Evidence, unexplained: &[&str], streams: &[&str]) -> Vec<Finding> {
    let forgeable = forgery(evidence.snapshot.about.version.as_deref()).is_some();
    let mut nodes: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let leader = |name: &str| evidence.snapshot.queues.get(name).map_or("", |queue| &queue.leader);
    for &name in unexplained {
        nodes.entry(leader(name)).or_default().push(format!("`{name}`"));
    }
    // All workers of a node end together: if one passes a message on, all run.
    for (name, _) in evidence.snapshot.dead_letters.iter().filter(|(_, looks)| moves(looks)) {
        nodes.remove(leader(name));
    }
    // A single level may have its own reason, unless one message can end all of them.
    nodes.retain(|_, queues| forgeable || !streams.is_empty() || queues.len() > 1);
    nodes.into_iter().map(|(node, queues)| finding(node, &queues, streams, forgeable)).collect()
}

fn finding(node: &str, queues: &[String], streams: &[&str], forgeable: bool) -> Finding {
    let subject = if node.is_empty() { "broker".into() } else { format!("node {node}") };
    let cause = match queues {
        [_] => {
            "either all dead-lettering of this node has ended, for every vhost, or a queue was deleted while \
             messages were handed to it"
        }
        _ => "all dead-lettering of this node seems to have ended, for every vhost",
    };
    let streams: Vec<_> = streams.iter().map(|stream| format!("`{stream}`")).collect();
    let (mut cause, mut advice) = (cause.to_owned(), String::new());
    if !streams.is_empty() {
        let streams = streams.join(", ");
        cause += &format!("; the likely cause is a message that the stream {streams} cannot store");
        advice = format!("first unbind {streams}, or the same message ends it again. Then ");
    }
    advice += "check it: on that node, rabbitmqctl eval 'whereis(rabbit_fifo_dlx_sup).' prints undefined \
               if it has ended. The command in docs/runbook/stuck.md then starts it again and loses nothing";
    if forgeable {
        advice += "; a restart does not help if a forged header `x-death` ended it";
    }
    Finding::new(
        FindingCode::DeadLetteringEnded,
        subject,
        format!(
            "no due message leaves {}, and no bound queue is known to refuse: {cause}",
            queues.join(", ")
        ),
        advice,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use delayline_broker::{Look, QueueInfo, Snapshot};

    fn evidence(version: &str) -> Evidence {
        let queue = |(name, leader): (&str, &str)| QueueInfo {
            name: name.into(),
            leader: leader.into(),
            ..QueueInfo::default()
        };
        let queues = [("q0", "a"), ("q1", "a"), ("q2", "b"), ("q3", "")].map(queue).into();
        let mut snapshot = Snapshot::new("/", Vec::new(), queues, Vec::new());
        snapshot.about.version = Some(version.into());
        Evidence { snapshot, ..Evidence::default() }
    }

    fn subjects(evidence: &Evidence, unexplained: &[&str]) -> Vec<String> {
        check(evidence, unexplained, &[]).into_iter().map(|finding| finding.subject).collect()
    }

    #[test]
    fn one_level_is_evidence_where_one_message_can_end_all_and_two_are_anywhere() {
        let (old, new) = (evidence("3.10.8"), evidence("4.3.6"));
        assert_eq!(subjects(&old, &[]), [""; 0]);
        assert_eq!(subjects(&old, &["q0", "q1", "q2", "q3"]), ["broker", "node a", "node b"]);
        assert_eq!(subjects(&new, &["q0", "q2", "q3"]), [""; 0]);
        assert_eq!(subjects(&new, &["q0", "q1", "q2"]), ["node a"]);
        let finding = |names: &[&str], streams: &[&str]| check(&new, names, streams).remove(0);
        assert!(check(&old, &["q0"], &[]).remove(0).what.contains("or a queue was deleted"));
        assert!(!finding(&["q0", "q1"], &[]).what.contains("or a queue was deleted"));
        let finding = finding(&["q0"], &["audit", "log"]);
        assert!(finding.what.ends_with("that the stream `audit`, `log` cannot store"), "{finding:#?}");
        assert!(finding.advice.starts_with("first unbind `audit`, `log`"), "{finding:#?}");
    }

    #[test]
    fn nothing_has_ended_on_a_node_that_passes_messages_on() {
        let mut evidence = evidence("3.10.8");
        let mut looks = |name: &str, counts: [u64; 5]| {
            evidence
                .snapshot
                .dead_letters
                .insert(name.into(), counts.map(|due| Look { due, messages: due, ..Look::default() }).into());
        };
        looks("q0", [7; 5]);
        looks("q1", [3, 9, 4, 3, 5]);
        looks("q2", [7; 5]);
        assert_eq!(subjects(&evidence, &["q0", "q2"]), ["node b"]);
        // Stuck messages keep their places, and others leave past them.
        evidence.snapshot.dead_letters.insert(
            "q2".into(),
            [9, 7, 7, 7].map(|due| Look { due, messages: due, ..Look::default() }).into(),
        );
        assert_eq!(subjects(&evidence, &["q0", "q2"]), [""; 0]);
    }
}
