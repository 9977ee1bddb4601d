//! What would be lost with a queue: counted before it is deleted, and as it is deleted.

use std::{thread, time::Duration};

use log::debug;
use serde::Serialize;

use crate::{compare::Observed, management::QueueInfo};
use delayline_amqp::{HAND_OVER, QueueDepth, Session};

use crate::{AdminError, doing};

/// How long to wait between closing the way in and counting again. Messages on their way
/// between two queues are seen only in the management API's counts. A queue renews its own every
/// 5 s, and the API collects them every 5 s: up to 9.8 s were measured, on 3.10 and 4.3.
pub(super) const SETTLE: Duration = Duration::from_secs(12);

/// Messages in a queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Waiting {
    /// The queue.
    pub queue: String,
    /// How many, stuck ones included where they can be seen.
    pub messages: u64,
}

/// What a queue holds, and how many consume it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Contents {
    pub(super) messages: u64,
    pub(super) consumers: u64,
}

/// Counts a queue both ways. A missing queue counts as empty.
pub(super) fn contents(
    session: &mut Session,
    name: &str,
    observed: Option<&Observed>,
) -> Result<Contents, AdminError> {
    let depth = session.queue_depth(name).map_err(doing(format!("counting `{name}`")))?;
    let known = observed.and_then(|observed| observed.queues.iter().find(|info| info.name == name));
    Ok(larger(depth, known))
}

/// AMQP has the current count without stuck messages, and 0 for a queue without a leader; the
/// API has a count up to 10 s old with them. The larger one is used.
fn larger(depth: Option<QueueDepth>, known: Option<&QueueInfo>) -> Contents {
    let (ready, consumers) =
        depth.map_or((0, 0), |depth| (u64::from(depth.ready), u64::from(depth.consumers)));
    let Some(info) = known else { return Contents { messages: ready, consumers } };
    Contents {
        messages: info.messages.max(info.messages_dlx + info.messages_unacknowledged + ready),
        consumers: info.consumers.max(consumers),
    }
}

/// Stops the flow between queues before they are deleted, by throwing away what is left to
/// flow. The queues come in the order in which messages pass them.
///
/// A dead-letter worker whose own queue is deleted while it has messages in hand can crash
/// and be started again in a loop, and after a hundred starts within a second a node of
/// RabbitMQ 4.3 gives up all such workers, of every set and vhost, until it is restarted.
pub(super) fn calm<'a>(session: &mut Session, queues: impl Iterator<Item = &'a str> + Clone) {
    // Messages in hand at the first purge are in the next queue at the second.
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

/// Deletes a queue, and records what was lost with it if that is more than was counted
/// before.
pub(super) fn delete(
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
        Some(waiting) => waiting.messages = waiting.messages.max(deleted),
        None if deleted > 0 => discarded.push(Waiting { queue: name.into(), messages: deleted }),
        None => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_the_larger_of_two_counts() {
        let info = |messages, messages_dlx, messages_unacknowledged, consumers| QueueInfo {
            messages,
            messages_dlx,
            messages_unacknowledged,
            consumers,
            ..QueueInfo::default()
        };
        for (depth, known, expected) in [
            (None, None, (0, 0)),
            (Some((3, 1)), None, (3, 1)),
            // Without a leader AMQP says 0, and the API what it was told last.
            (Some((0, 0)), Some(info(5, 0, 0, 2)), (5, 2)),
            (None, Some(info(5, 0, 0, 0)), (5, 0)),
            // Some came since the API was told; others are on their way or in hands.
            (Some((7, 0)), Some(info(5, 2, 1, 1)), (10, 1)),
        ] {
            let depth = depth.map(|(ready, consumers)| QueueDepth::new(ready, consumers));
            let found = larger(depth, known.as_ref());
            assert_eq!((found.messages, found.consumers), expected, "{depth:?} {known:?}");
        }
    }

    #[test]
    fn notes_what_came_after_it_was_counted() {
        let mut discarded = vec![Waiting { queue: "a".into(), messages: 5 }];
        for (name, deleted) in [("a", 3), ("b", 0), ("c", 2)] {
            note(&mut discarded, name, deleted);
        }
        let found: Vec<_> = discarded.iter().map(|it| (it.queue.as_str(), it.messages)).collect();
        assert_eq!(found, [("a", 5), ("c", 2)]);
        note(&mut discarded, "a", 8);
        assert_eq!(discarded[0].messages, 8);
    }
}
