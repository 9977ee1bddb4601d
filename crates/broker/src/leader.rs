//! Finding quorum queues that have no leader although their replicas run.
//!
//! The API does not show it: it counts the process of a replica as a working replica, and the node that led
//! last as the leader. But only a leader reports statistics, every 5 s. So a queue without statistics for
//! long has no leader, or its broker keeps none.

use std::{
    collections::BTreeSet,
    thread,
    time::{Duration, Instant},
};

use crate::{
    management::{ManagementApi, ManagementError, QueueInfo},
    snapshot::Snapshot,
};

/// How long a queue that was just declared, or whose node was just started, may take until it shows
/// statistics. The leader reports them every 5 s, and the API collects them every 5 s: 9 to 10 s were
/// measured. A node with thousands of queues and few cores takes longer. The wait is long because an
/// operator may delete a queue that is reported to have no leader.
const PATIENCE: Duration = Duration::from_secs(60);

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
    snapshot: &mut Snapshot,
    names: &BTreeSet<String>,
    if_new: IfNew,
) -> Result<Leaders, ManagementError> {
    let mut silent = silent(snapshot.queues.values(), names);
    if silent.is_empty() {
        return Ok(Leaders::Known);
    }
    if api.overview()?.disable_stats {
        return Ok(Leaders::Never);
    }
    let reports = |queue: &QueueInfo| names.contains(&queue.name) && queue.memory.is_some();
    if if_new == IfNew::LeaveOpen && !snapshot.queues.values().any(reports) {
        return Ok(Leaders::NotYet);
    }
    let until = Instant::now() + PATIENCE;
    while !silent.is_empty() && Instant::now() < until {
        thread::sleep(PAUSE);
        let names = silent.iter().map(String::as_str);
        silent = self::silent(&api.queues_named(&snapshot.vhost, names, snapshot.queues_in_all)?, &silent);
    }
    for queue in snapshot.queues.values_mut() {
        queue.leaderless = silent.contains(&queue.name);
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

#[cfg(test)]
mod tests {
    use super::*;

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
