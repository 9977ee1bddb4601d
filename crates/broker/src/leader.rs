//! Finding quorum queues that have no leader although their replicas run.
//!
//! The API does not show it: it counts the process of a replica as a working replica, and the node that led
//! last as the leader. But only a leader reports statistics, every 5 s. So a queue without statistics for
//! long has no leader, or its broker keeps none. From 4.0, the statistics of an earlier leader stay. Then AMQP
//! reports no message, since the queue does not answer, and the API the same messages again and again.

use std::{
    collections::{BTreeMap, BTreeSet},
    thread,
    time::{Duration, Instant},
};

use delayline_amqp::{QueueDepth, Session};

use crate::{
    management::{ManagementApi, ManagementError, QueueInfo},
    snapshot::Snapshot,
};

/// How long a queue that was just declared, or whose node was just started, may take until it shows
/// statistics. The leader reports them every 5 s, and the API collects them every 5 s: 9 to 10 s were
/// measured. A node with thousands of queues and few cores takes longer. The wait is long because an
/// operator may delete a queue that is reported to have no leader.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long statistics stay as they are at most while a queue has a leader: they are renewed as above.
const RENEWED: Duration = Duration::from_secs(20);

/// How long to wait before asking again.
const PAUSE: Duration = Duration::from_secs(1);

/// The action while it is unknown whether queues have leaders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IfNew {
    /// Wait until it is known.
    Wait,
    /// Leave it open if there are no statistics of any of them: they were just declared, or the node was
    /// just started.
    LeaveOpen,
}

/// Whether it is known which queues have a leader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leaders {
    /// It is known.
    Known,
    /// Not yet.
    NotYet,
    /// Never: this broker keeps no statistics.
    Never,
}

impl Leaders {
    /// The text for a report.
    #[must_use]
    pub fn unchecked(self) -> Option<String> {
        let why = match self {
            Self::Known => return None,
            Self::NotYet => "the broker has no statistics of them yet (they take about 10 seconds)",
            Self::Never => "statistics are disabled on this broker",
        };
        Some(format!("whether each queue has a leader: {why}"))
    }
}

/// Marks the queues that have no leader. Waits only if a queue seems to have none.
///
/// # Errors If the API cannot be asked again.
pub fn mark_leaderless(
    api: &ManagementApi,
    session: &mut Session,
    snapshot: &mut Snapshot,
    names: &BTreeSet<String>,
    if_new: IfNew,
) -> Result<Leaders, ManagementError> {
    let mut silent = silent(snapshot.queues.values(), names);
    let found = still(snapshot.queues.values(), names, session);
    let mut still: BTreeMap<_, _> = found.into_iter().map(|(name, work)| (name, Still::new(work))).collect();
    if silent.is_empty() && still.is_empty() {
        return Ok(Leaders::Known);
    }
    if api.overview()?.disable_stats {
        return Ok(Leaders::Never);
    }
    let reports = |queue: &QueueInfo| names.contains(&queue.name) && queue.memory.is_some();
    if if_new == IfNew::LeaveOpen && !snapshot.queues.values().any(reports) {
        return Ok(Leaders::NotYet);
    }
    let begun = Instant::now();
    let open = |still: &BTreeMap<String, Still>| still.values().any(|it| it.since.elapsed() < RENEWED);
    while (!silent.is_empty() || open(&still)) && begun.elapsed() < PATIENCE {
        thread::sleep(PAUSE);
        let asked: BTreeSet<&str> = silent.iter().chain(still.keys()).map(String::as_str).collect();
        let found = api.queues_named(&snapshot.vhost, asked.into_iter(), snapshot.queues_in_all)?;
        silent = self::silent(&found, &silent);
        let names = still.keys().cloned().collect();
        let now = self::still(&found, &names, session);
        still.retain(|name, last| now.get(name).is_some_and(|work| last.note(*work)));
    }
    for queue in snapshot.queues.values_mut() {
        let is_still = still.get(&queue.name).is_some_and(|it| it.since.elapsed() >= RENEWED);
        queue.leaderless = silent.contains(&queue.name) || is_still;
    }
    Ok(Leaders::Known)
}

/// The queues of these names that should have statistics and have none.
fn silent<'a>(queues: impl IntoIterator<Item = &'a QueueInfo>, names: &BTreeSet<String>) -> BTreeSet<String> {
    let silent = |queue: &&QueueInfo| {
        names.contains(&queue.name)
            && !queue.members.is_empty()
            && queue.has_majority()
            && queue.memory.is_none()
    };
    queues.into_iter().filter(silent).map(|queue| queue.name.clone()).collect()
}

/// The statistics of a queue that seems not to answer.
struct Still {
    /// The work of its process.
    work: Option<u64>,
    /// Since when that is the same.
    since: Instant,
    renewals: u32,
}

impl Still {
    fn new(work: Option<u64>) -> Self {
        Self { work, since: Instant::now(), renewals: 0 }
    }

    /// Takes in the next look. False if the queue has a leader: a leader's last reports may still be on
    /// their way, but not more than one.
    fn note(&mut self, work: Option<u64>) -> bool {
        if work != self.work {
            (self.work, self.since, self.renewals) = (work, Instant::now(), self.renewals + 1);
        }
        self.renewals <= 1
    }
}

/// The queues of these names that seem not to answer over AMQP, with the work of their processes by the
/// statistics, which changes with each count.
fn still<'a>(
    queues: impl IntoIterator<Item = &'a QueueInfo>,
    names: &BTreeSet<String>,
    session: &mut Session,
) -> BTreeMap<String, Option<u64>> {
    let replicas = |queue: &&QueueInfo| {
        names.contains(&queue.name)
            && !queue.members.is_empty()
            && queue.has_majority()
            && queue.memory.is_some()
    };
    let is_still = |queue: &&QueueInfo| match session.queue_depth(&queue.name) {
        Ok(Some(depth)) => contradicts(depth, queue.messages_ready),
        // Without permissions, or without a connection, nothing is known.
        Ok(None) | Err(_) => false,
    };
    let still = queues.into_iter().filter(replicas).filter(is_still);
    still.map(|queue| (queue.name.clone(), queue.reductions)).collect()
}

/// Whether AMQP has no count, or no message where the statistics have some.
fn contradicts(depth: QueueDepth, ready: Option<u64>) -> bool {
    depth.ready.is_none() || depth.ready == Some(0) && ready > Some(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_may_not_answer_if_its_counts_contradict_each_other() {
        for (amqp, ready, expected) in [
            (QueueDepth::new(0, 0), Some(4), true),
            (QueueDepth::new(0, 0), Some(0), false),
            (QueueDepth::new(0, 0), None, false),
            (QueueDepth::new(4, 0), Some(0), false),
        ] {
            assert_eq!(contradicts(amqp, ready), expected, "{amqp:?} {ready:?}");
        }
    }

    #[test]
    fn a_queue_is_silent_if_its_replicas_run_and_none_reports() {
        let queue = |name: &str, members: usize, online: usize, memory: Option<u64>| QueueInfo {
            name: name.into(),
            members: ["a", "b", "c"].map(String::from)[..members].into(),
            online: ["a", "b", "c"].map(String::from)[..online].into(),
            memory,
            ..QueueInfo::default()
        };
        let queues = [
            queue("reports", 1, 1, Some(1)),
            queue("silent", 3, 2, None),
            queue("down", 3, 1, None),
            queue("classic", 0, 0, None),
            queue("other", 1, 1, None),
        ];
        let names = ["reports", "silent", "down", "classic"].map(String::from).into();
        assert_eq!(silent(&queues, &names), ["silent".to_owned()].into());
    }
}
