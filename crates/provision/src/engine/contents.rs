//! The messages that would be lost with a queue: counted before it is deleted, and as it is deleted.

use std::{
    fmt, thread,
    time::{Duration, Instant},
};

use log::debug;
use serde::Serialize;

use delayline_amqp::{AmqpError, HAND_OVER, QueueDepth, Session};
use delayline_broker::{ManagementApi, ManagementError, QueueInfo, Snapshot};
use delayline_core::shell::quoted;
use delayline_messages::{error::AdminError, error::doing, number::counted, number::either, number::named};

/// How long to wait between closing the entry and counting again. Messages between two queues are seen only
/// in the management API's counts. A queue renews its own every 5 s, and the API collects them every 5 s:
/// up to 9.8 s were measured, on 3.10 and 4.3.
pub(crate) const SETTLE: Duration = Duration::from_secs(12);

/// How long to wait before counting again.
const AGAIN: Duration = Duration::from_secs(1);

/// Which count of a queue it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    /// The first one. The broker may have no statistics of a new queue yet.
    First,
    /// The last one before it is deleted, after [`SETTLE`]: now statistics that are missing were lost, such
    /// as in a restart.
    Last,
}

/// Messages in a queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct Waiting {
    /// The queue.
    pub queue: String,
    /// How many; stuck messages are included if they can be seen. `None` if that is unknown: the queue does
    /// not answer, or the broker has no statistics of it.
    pub messages: Option<u64>,
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { queue, messages } = self;
        match messages {
            Some(messages) => {
                write!(
                    f,
                    "{} {} in `{queue}`",
                    counted(*messages, "message"),
                    either(*messages, "waits", "wait")
                )
            }
            None => f.write_str(&uncounted([queue.as_str()])),
        }
    }
}

/// Why it is unknown whether queues hold messages.
pub(crate) fn uncounted<'a>(queues: impl IntoIterator<Item = &'a str>) -> String {
    let queues = named(queues.into_iter().map(|queue| format!("`{queue}`")));
    format!(
        "it is unknown whether messages wait in {queues}: the queue does not answer, or the broker has no \
         statistics of it"
    )
}

/// The number of messages and consumers of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Contents {
    /// `None` if it is not known.
    pub(crate) messages: Option<u64>,
    pub(crate) consumers: u64,
}

/// Counts a queue both ways, and asks the queue itself if it seems to be empty: a broker reports a queue
/// that does not answer as empty, and its statistics stay as they were. A missing queue counts as empty.
pub(crate) fn contents(
    session: &mut Session,
    name: &str,
    snapshot: Option<&Snapshot>,
    when: When,
) -> Result<Contents, AdminError> {
    let depth = session.queue_depth(name).map_err(doing(format!("counting `{name}`")))?;
    let known = snapshot.and_then(|snapshot| snapshot.queues.get(name));
    let mut found = larger(depth, known);
    if let Some(depth) = depth.filter(|_| found.messages == Some(0)) {
        let asked = session.is_empty(name);
        if let Err(error) = &asked {
            debug!("whether `{name}` is empty: {error}");
        }
        found.messages = certain(depth, known, when, &asked);
    }
    Ok(found)
}

/// How many messages a queue has that seems to be empty.
fn certain(
    depth: QueueDepth,
    known: Option<&QueueInfo>,
    when: When,
    asked: &Result<bool, AmqpError>,
) -> Option<u64> {
    // Only statistics show messages that are being handed on.
    let counted = known.is_none_or(|info| info.messages.is_some());
    match asked {
        Ok(true) => (counted || when == When::First).then_some(0),
        Ok(false) => Some(1),
        // Then both counts have to show that it is empty.
        Err(error) if error.code().is_some_and(|code| UNASKABLE.contains(&code)) => {
            (depth.ready == Some(0) && known.is_some() && counted).then_some(0)
        }
        Err(_) => None,
    }
}

/// AMQP's reply codes if a queue may not be asked for a message: without the permission to read it, and if it
/// allows only one consumer.
const UNASKABLE: [u16; 2] = [403, 405];

/// The queues among these that hold messages, or may hold some.
pub(crate) fn waiting(
    session: &mut Session,
    queues: &[&str],
    snapshot: Option<&Snapshot>,
    when: When,
) -> Result<Vec<Waiting>, AdminError> {
    let mut waiting = Vec::new();
    for &queue in queues {
        let messages = contents(session, queue, snapshot, when)?.messages;
        if messages != Some(0) {
            waiting.push(Waiting { queue: queue.into(), messages });
        }
    }
    Ok(waiting)
}

/// The last count of queues. Counts again for a while if one is unknown: a busy broker is late with the
/// statistics of a new queue.
pub(crate) fn last<T>(
    mut count: impl FnMut() -> Result<T, AdminError>,
    waiting: impl Fn(&T) -> &[Waiting],
) -> Result<T, AdminError> {
    let until = Instant::now() + 2 * SETTLE;
    loop {
        let counted = count()?;
        let unknown = waiting(&counted).iter().any(|it| it.messages.is_none());
        if !unknown || Instant::now() > until {
            return Ok(counted);
        }
        thread::sleep(AGAIN);
    }
}

/// Whether only the API counts these messages: its count may be older than a purge.
pub(crate) fn may_be_gone(session: &mut Session, waiting: &[Waiting]) -> Result<bool, AdminError> {
    for Waiting { queue, .. } in waiting {
        let depth = session.queue_depth(queue).map_err(doing(format!("counting `{queue}`")))?;
        if depth.is_some_and(|depth| depth.ready > Some(0)) {
            return Ok(false);
        }
    }
    Ok(!waiting.is_empty())
}

/// AMQP has the current count without stuck messages, and 0 for a queue without a leader; the
/// API has a count up to 10 s old with them. The larger one is used.
fn larger(depth: Option<QueueDepth>, known: Option<&QueueInfo>) -> Contents {
    let of = |count: fn(QueueDepth) -> Option<u32>| depth.and_then(count).map_or(0, u64::from);
    let (ready, consumers) = (of(|depth| depth.ready), of(|depth| depth.consumers));
    let Some(info) = known else { return Contents { messages: Some(ready), consumers } };
    let count = |count: Option<u64>| count.unwrap_or(0);
    let messages =
        count(info.messages).max(count(info.messages_dlx) + count(info.messages_unacknowledged) + ready);
    Contents {
        messages: (!info.uncounted || messages > 0).then_some(messages),
        consumers: count(info.consumers).max(consumers),
    }
}

/// The most queues that a vhost may have; `None` without a limit, or if it cannot be seen: then the broker's own
/// refusal names it.
pub(crate) fn most_queues(api: &ManagementApi, vhost: &str) -> Result<Option<u64>, AdminError> {
    match api.most_queues(vhost) {
        Err(ManagementError::Refused { .. }) => Ok(None),
        limit => Ok(limit?),
    }
}

/// Why the vhost's limit leaves no room for so many more queues, and what to do. The broker refuses the
/// first queue beyond it only when the others are declared already.
pub(crate) fn no_room(limit: Option<u64>, snapshot: &Snapshot, more: usize) -> Option<(String, String)> {
    let (stand, vhost) = (snapshot.queues_in_all, &snapshot.vhost);
    let full = limit.filter(|limit| more > 0 && (stand + more) as u64 > *limit);
    full.map(|limit| {
        let needed = stand + more;
        (
            format!(
                "vhost `{vhost}` may have {limit} queues, has {stand}, and {more} more are needed (limit `max-queues`)"
            ),
            format!(
                "raise the limit to {needed} or more (rabbitmqctl set_vhost_limits -p {} '{{\"max-queues\": \
                 {needed}}}'), which replaces all limits of the vhost",
                quoted(vhost)
            ),
        )
    })
}

/// Empties queues before they are deleted, so that no messages move between them. The queues come in the
/// order in which messages pass them.
///
/// A dead-letter worker can crash if its own queue is deleted while it handles messages. It is started
/// again, in a loop. After a hundred starts within a second a node of RabbitMQ 4.3 stops all such workers,
/// of every set and vhost, until it is restarted.
pub(crate) fn calm<'a>(session: &mut Session, queues: impl Iterator<Item = &'a str> + Clone) {
    // Messages that a worker has at the first purge are in the next queue at the second.
    for _ in 0..2 {
        for queue in queues.clone() {
            // Without read permission the queue is deleted as it is.
            if let Err(error) = session.purge_queue(queue) {
                debug!("deleting `{queue}` with the messages it holds: {error}");
            }
        }
        thread::sleep(HAND_OVER);
    }
}

/// Deletes a queue, and records the number of lost messages if it is larger than the counted one.
pub(crate) fn delete(
    session: &mut Session,
    name: &str,
    discarded: &mut Vec<Waiting>,
) -> Result<(), AdminError> {
    let deleted = session.delete_queue(name).map_err(doing(format!("removing queue `{name}`")))?;
    note(discarded, name, deleted.into());
    Ok(())
}

fn note(discarded: &mut Vec<Waiting>, name: &str, deleted: u64) {
    match discarded.iter_mut().find(|waiting| waiting.queue == name) {
        Some(waiting) => waiting.messages = waiting.messages.max(Some(deleted)),
        None if deleted > 0 => discarded.push(Waiting { queue: name.into(), messages: Some(deleted) }),
        None => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_the_larger_of_two_counts() {
        let info = |messages, messages_dlx, messages_unacknowledged, consumers| QueueInfo {
            messages: Some(messages),
            messages_dlx: Some(messages_dlx),
            messages_unacknowledged: Some(messages_unacknowledged),
            consumers: Some(consumers),
            ..QueueInfo::default()
        };
        for (depth, known, expected) in [
            (None, None, (0, 0)),
            (Some((3, 1)), None, (3, 1)),
            // Without a leader AMQP reports 0, and the API its last count.
            (Some((0, 0)), Some(info(5, 0, 0, 2)), (5, 2)),
            (None, Some(info(5, 0, 0, 0)), (5, 0)),
            // Some messages came after the API's count; others are between queues or with consumers.
            (Some((7, 0)), Some(info(5, 2, 1, 1)), (10, 1)),
        ] {
            let depth = depth.map(|(ready, consumers)| QueueDepth::new(ready, consumers));
            let found = larger(depth, known.as_ref());
            let expected = (Some(expected.0), expected.1);
            assert_eq!((found.messages, found.consumers), expected, "{depth:?} {known:?}");
        }
        // What the broker does not count may have messages; what it has not counted yet is new.
        let uncounted = QueueInfo { uncounted: true, ..QueueInfo::default() };
        for (ready, info, expected) in
            [(0, &uncounted, None), (3, &uncounted, Some(3)), (0, &QueueInfo::default(), Some(0))]
        {
            assert_eq!(larger(Some(QueueDepth::new(ready, 0)), Some(info)).messages, expected, "{ready}");
        }
    }

    #[test]
    fn records_messages_that_came_after_the_count() {
        let mut discarded = vec![Waiting { queue: "a".into(), messages: Some(5) }];
        for (name, deleted) in [("a", 3), ("b", 0), ("c", 2)] {
            note(&mut discarded, name, deleted);
        }
        let found: Vec<_> = discarded.iter().map(|it| (it.queue.as_str(), it.messages)).collect();
        assert_eq!(found, [("a", Some(5)), ("c", Some(2))]);
        note(&mut discarded, "a", 8);
        assert_eq!(discarded[0].messages, Some(8));
    }
}
