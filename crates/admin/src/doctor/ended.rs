//! Nodes on which no level passes messages on.
//!
//! No API shows whether the workers that dead-letter at least once still run. The sign is
//! that no level passes anything on although no bound queue is known to refuse.

use std::collections::BTreeMap;

use crate::{
    compare::forgery,
    doctor::facts::Facts,
    finding::{Finding, FindingCode},
    handover::moves,
};

/// Looks at the queues whose dead letters are stuck for no known reason, and at the streams that
/// due messages reach.
pub(super) fn check(facts: &Facts, unexplained: &[&str], streams: &[&str]) -> Vec<Finding> {
    let forgeable = forgery(facts.about.version.as_deref()).is_some();
    let mut nodes: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let leader = |name: &str| {
        let info = facts.observed.queues.iter().find(|queue| queue.name == name);
        info.map_or("", |queue| &queue.leader)
    };
    for &name in unexplained {
        nodes.entry(leader(name)).or_default().push(format!("`{name}`"));
    }
    // All workers of a node end together: where one hands something on, none has ended.
    for (name, _) in facts.dead_letters.iter().filter(|(_, looks)| moves(looks)) {
        nodes.remove(leader(name));
    }
    // A single level may have a reason of its own, where one message cannot end all of them.
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
               if it has ended. The command in docs/doctor.md then starts it again and loses nothing";
    if forgeable {
        advice += "; a restart does not help if a forged header `x-death` ended it";
    }
    Finding::new(
        FindingCode::DeadLetteringEnded,
        subject,
        format!(
            "nothing that is due leaves {}, and no bound queue is known to refuse: {cause}",
            queues.join(", ")
        ),
        advice,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        compare::{About, Observed},
        handover::Look,
        management::QueueInfo,
    };

    fn facts(version: &str) -> Facts {
        let queue = |(name, leader): (&str, &str)| QueueInfo {
            name: name.into(),
            leader: leader.into(),
            ..QueueInfo::default()
        };
        let queues = [("q0", "a"), ("q1", "a"), ("q2", "b"), ("q3", "")].map(queue).into();
        Facts {
            observed: Observed { queues, ..Observed::default() },
            about: About { version: Some(version.into()), ..About::default() },
            ..Facts::default()
        }
    }

    fn subjects(facts: &Facts, unexplained: &[&str]) -> Vec<String> {
        check(facts, unexplained, &[]).into_iter().map(|finding| finding.subject).collect()
    }

    #[test]
    fn one_level_is_a_sign_where_one_message_can_end_all_and_two_are_anywhere() {
        let (old, new) = (facts("3.10.8"), facts("4.3.6"));
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
    fn nothing_has_ended_on_a_node_where_something_is_handed_on() {
        let mut facts = facts("3.10.8");
        let mut looks = |name: &str, counts: [u64; 5]| {
            facts
                .dead_letters
                .insert(name.into(), counts.map(|due| Look { due, messages: due, ..Look::default() }).into());
        };
        looks("q0", [7; 5]);
        looks("q1", [3, 9, 4, 3, 5]);
        looks("q2", [7; 5]);
        assert_eq!(subjects(&facts, &["q0", "q2"]), ["node b"]);
        // Those that are stuck keep their places, and others leave past them.
        facts.dead_letters.insert(
            "q2".into(),
            [9, 7, 7, 7].map(|due| Look { due, messages: due, ..Look::default() }).into(),
        );
        assert_eq!(subjects(&facts, &["q0", "q2"]), [""; 0]);
    }
}
