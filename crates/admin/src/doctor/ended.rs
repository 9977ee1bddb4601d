//! Nodes on which no level passes messages on.
//!
//! No API shows whether the workers that dead-letter at least once still run. The sign is
//! that levels pass nothing on although no bound queue is known to refuse.

use std::collections::BTreeMap;

use crate::compare::forgery;

use crate::{
    doctor::facts::Facts,
    finding::{Finding, FindingCode},
};

/// Looks at the queues whose dead letters are stuck for no known reason.
pub(super) fn check(facts: &Facts, unexplained: &[&str]) -> Vec<Finding> {
    let forgeable = forgery(facts.about.version.as_deref()).is_some();
    let mut nodes: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for &name in unexplained {
        let info = facts.observed.queues.iter().find(|queue| queue.name == name);
        nodes.entry(info.map_or("", |queue| &queue.leader)).or_default().push(format!("`{name}`"));
    }
    // A single level may have a reason of its own, on versions where one message cannot end
    // all of them.
    nodes.retain(|_, queues| forgeable || queues.len() > 1);
    nodes.into_iter().map(|(node, queues)| finding(node, &queues, forgeable)).collect()
}

fn finding(node: &str, queues: &[String], forgeable: bool) -> Finding {
    let subject = if node.is_empty() { "broker".into() } else { format!("node {node}") };
    let mut advice =
        "check it: on that node, rabbitmqctl eval 'whereis(rabbit_fifo_dlx_sup).' prints undefined. The \
                      command in docs/doctor.md then starts it again and loses nothing"
            .to_owned();
    if forgeable {
        advice += "; a restart does not help if a forged header `x-death` ended it";
    }
    Finding::new(
        FindingCode::DeadLetteringEnded,
        subject,
        format!(
            "nothing that is due leaves {}, and no bound queue is known to refuse: all dead-lettering of \
             this node seems to have ended, for every vhost",
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
        management::QueueInfo,
    };

    fn subjects(version: &str, unexplained: &[&str]) -> Vec<String> {
        let queue = |(name, leader): (&str, &str)| QueueInfo {
            name: name.into(),
            leader: leader.into(),
            ..QueueInfo::default()
        };
        let queues = [("q0", "a"), ("q1", "a"), ("q2", "b"), ("q3", "")].map(queue).into();
        let facts = Facts {
            observed: Observed { queues, ..Observed::default() },
            about: About { version: Some(version.into()), ..About::default() },
            ..Facts::default()
        };
        let mut findings = check(&facts, unexplained);
        findings.iter_mut().map(|finding| std::mem::take(&mut finding.subject)).collect()
    }

    #[test]
    fn one_level_is_a_sign_where_one_message_can_end_all_and_two_are_anywhere() {
        assert_eq!(subjects("3.10.8", &[]), [""; 0]);
        assert_eq!(subjects("3.10.8", &["q0", "q1", "q2", "q3"]), ["broker", "node a", "node b"]);
        assert_eq!(subjects("4.3.6", &["q0", "q2", "q3"]), [""; 0]);
        assert_eq!(subjects("4.3.6", &["q0", "q1", "q2"]), ["node a"]);
    }
}
