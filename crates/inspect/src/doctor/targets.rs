//! The queues in which applications' messages end up.

use std::collections::{BTreeMap, BTreeSet};

use crate::{finding::Finding, finding::FindingCode};
use delayline_broker::{End, QueueInfo, Route, Snapshot, limit};
use delayline_core::{
    shell::command,
    topology::{Endpoint, QueueType, SetName, Topology},
};
use delayline_messages::{number::counted, number::either, number::grouped};

/// Checks every queue in which messages end up.
pub(super) fn check(topology: &Topology, snapshot: &Snapshot, targets: &[Route<'_>]) -> Vec<Finding> {
    let mut findings = streams(targets);
    let mut seen = BTreeSet::new();
    for target in targets {
        if let Some(landing) = target.landing
            && seen.insert(&landing.name)
        {
            // Refused messages return to the levels, whatever is behind it.
            let advice = "it must never refuse: exclude it from that policy".to_owned();
            findings.extend(refusals(landing, advice).map(|finding| finding.about([&target.app])));
            findings.extend(replicas(landing, STOPS).into_iter().map(|finding| finding.about([&target.app])));
        }
        let queue = match &target.end {
            End::Queue(queue) => queue,
            End::Nowhere(exchange) => {
                findings.push(dead_end(target, exchange));
                continue;
            }
            End::Back(to) => {
                findings.push(loops(target, to));
                continue;
            }
        };
        if !seen.insert(&queue.name) {
            continue;
        }
        if topology.names().is_listener(&queue.name) {
            findings.extend(replicas(queue, STOPS).map(|finding| finding.about([&target.app])));
            findings.extend(left_by_a_listener(&topology.settings().set, queue, &target.app));
            continue;
        }
        let apps = || targets.iter().filter(|other| is_at(other, queue)).map(|other| &other.app);
        let subject = format!("queue `{}`", queue.name);
        let finding = |code, what: String, advice: String| {
            Finding::new(code, subject.clone(), what, advice).about(apps())
        };
        if target.landing.is_none() {
            let advice = format!(
                "consume from it, and put a landing queue in front of it ({}). Or remove the limit, or let \
                 the queue drop its oldest messages (x-overflow: drop-head)",
                land(&target.app, &queue.name)
            );
            findings.extend(refusals(queue, advice).map(|finding| finding.about(apps())));
        }
        findings.extend(replicas(queue, stalls(target)).into_iter().map(|finding| finding.about(apps())));
        let quorum_set = topology.settings().queue_type == QueueType::Quorum;
        if quorum_set && queue.durable && queue.kind.contains("classic") {
            let mut what =
                "it is a classic queue behind a set of quorum queues: messages that were replicated until \
                            now are on one node only, and lost with its disk"
                    .to_owned();
            if snapshot.about.nodes.as_ref().is_some_and(|nodes| nodes.len() > 1) && target.landing.is_none()
            {
                what += &format!("; while its node is down it accepts no messages, and {STOPS}");
            }
            findings.push(finding(
                FindingCode::TargetClassic,
                what,
                format!(
                    "declare it again as a quorum queue (x-queue-type: quorum); `{}` does that",
                    command(&["app", "add", &target.app])
                ),
            ));
        }
        if target.landing.is_none() && (!queue.durable || queue.exclusive || queue.auto_delete) {
            let goes = match (queue.exclusive, queue.auto_delete) {
                (true, _) => "the connection that declared it",
                (_, true) => "its last consumer",
                _ => "the node's next restart",
            };
            findings.push(finding(
                FindingCode::TargetTransient,
                format!(
                    "it disappears with {goes}: a message that is just being passed to it gets stuck in its \
                     level, and messages that fall due afterwards become unroutable"
                ),
                format!(
                    "declare a durable queue, or put a landing queue in front of it ({})",
                    land(&target.app, &queue.name)
                ),
            ));
        }
        // A stream keeps messages after they were read.
        if let (Some(0), Some(ready @ 1..)) = (queue.consumers, queue.messages_ready)
            && !queue.kind.contains("stream")
        {
            findings.push(finding(
                FindingCode::NobodyConsumes,
                format!(
                    "{} {}, and it has no consumers",
                    counted(ready, "message"),
                    either(ready, "waits", "wait")
                ),
                format!(
                    "start the application. If it is gone for good, remove it (`{}`)",
                    command(&["app", "remove", &target.app])
                ),
            ));
        }
    }
    findings
}

/// The streams in which applications' messages end up, whatever is in front of them: a landing queue passes
/// messages on in the same way as a level.
pub(crate) fn streams(targets: &[Route<'_>]) -> Vec<Finding> {
    let mut found: BTreeMap<&str, BTreeSet<&String>> = BTreeMap::new();
    for target in targets {
        if let Some(stream) = target.stream() {
            found.entry(&stream.name).or_default().insert(&target.app);
        }
    }
    let finding = |(name, apps): (&str, BTreeSet<&String>)| {
        Finding::new(
            FindingCode::TargetStream,
            format!("queue `{name}`"),
            format!(
                "it is a stream, and messages that are due for {} reach it. A message that a stream cannot \
                 store, such as a message with a decimal in a header, ends all dead-lettering of a node, \
                 for every application",
                apps.iter().map(|app| format!("`{app}`")).collect::<Vec<_>>().join(", ")
            ),
            "unbind it from the dispatch exchange, or from the exchange that leads to it, and bind a quorum \
             queue in its place. A shovel or your own program can copy that queue's messages to the stream",
        )
        .about(apps)
    };
    found.into_iter().map(finding).collect()
}

/// Whether a killed `delayline listen` has left this queue behind.
fn left_by_a_listener(set: &SetName, queue: &QueueInfo, app: &str) -> Option<Finding> {
    let ready = queue.messages_ready.filter(|ready| *ready > 0 && queue.consumers == Some(0));
    ready.map(|ready| {
        let name = &queue.name;
        Finding::new(
            FindingCode::NobodyConsumes,
            format!("queue `{name}`"),
            format!(
                "a killed `delayline listen` has left it behind, and it still gets copies of all messages \
                 for `{app}` ({} now)",
                grouped(ready)
            ),
            format!(
                "run `{}`, and end it with Ctrl-C: that removes the queue. Do not delete it while it is bound",
                set.command(&["listen", "--app", app, "--queue", name])
            ),
        )
        .about([app])
    })
}

fn is_at(target: &Route<'_>, queue: &QueueInfo) -> bool {
    matches!(&target.end, End::Queue(other) if other.name == queue.name)
}

/// The effect when the first queue behind dispatch refuses messages.
const STOPS: &str = "once 32 messages are due for it, they block a level for every application";

fn stalls(target: &Route<'_>) -> &'static str {
    match target.landing {
        Some(_) => "its landing queue keeps them",
        None => STOPS,
    }
}

/// Whether too few of a queue's replicas run.
pub(super) fn replicas(queue: &QueueInfo, effect: &str) -> Option<Finding> {
    let subject = format!("queue `{}`", queue.name);
    if !queue.has_majority() {
        let (online, members) = (queue.online.len(), queue.members.len());
        return Some(Finding::new(
            FindingCode::NoMajority,
            subject,
            format!("{online} of {members} replicas run: it accepts no messages, and {effect}"),
            "start the nodes of the others",
        ));
    }
    queue.leaderless.then(|| {
        Finding::new(
            FindingCode::NoLeader,
            subject,
            format!("its replicas run but none of them leads: it accepts no messages, and {effect}"),
            format!(
                "check that (rabbitmq-queues quorum_status QUEUE), then delete it and declare it again \
                 (`{}`, then `{}`). A restart of the node does not help",
                command(&["app", "remove", "APP"]),
                command(&["app", "add", "APP"])
            ),
        )
    })
}

fn dead_end(target: &Route<'_>, exchange: &str) -> Finding {
    Finding::new(
        FindingCode::TargetDeadEnd,
        format!("exchange `{exchange}`"),
        format!("`{}` leads to it, and it leads to no queue: {}", target.app, stalls(target)),
        "bind the application's queue to it, or unbind it from the dispatch exchange: then its messages go \
         to the unroutable queue and block no other application",
    )
    .about([&target.app])
}

fn loops(target: &Route<'_>, to: &Endpoint) -> Finding {
    Finding::new(
        FindingCode::TargetLoop,
        to.to_string(),
        format!(
            "messages that are due for `{}` come back there. The broker treats that as a cycle: a message \
             that no other queue gets stays in its level, and {STOPS}",
            target.app
        ),
        format!(
            "remove the binding that leads there, from the dispatch exchange or from the application's own. \
             Then run `{}`: the messages reach the application or the unroutable queue",
            command(&["unstick"])
        ),
    )
    .about([&target.app])
}

/// The command that puts a landing queue in front of a bound queue, while messages flow. Its user keeps its
/// rights.
fn land(app: &str, queue: &str) -> String {
    format!("`{}`", command(&["app", "add", app, "--to-queue", queue, "--no-user"]))
}

fn refusals(queue: &QueueInfo, advice: String) -> Option<Finding> {
    limit(queue).map(|limit| {
        let (code, what) = match limit.full {
            true => (
                FindingCode::TargetRefuses,
                format!(
                    "it is full ({}) and refuses messages: 32 messages due for it block a level for every \
                     application",
                    limit.text
                ),
            ),
            false => (
                FindingCode::TargetCanRefuse,
                format!(
                    "it refuses messages once it is full ({}), and then 32 messages due for it block a level \
                     for every application",
                    limit.text
                ),
            ),
        };
        Finding::new(code, format!("queue `{}`", queue.name), what, advice)
    })
}
