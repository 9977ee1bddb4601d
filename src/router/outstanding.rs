//! Messages that were published and not yet confirmed, by delivery tag.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use crate::{amqp::Returned, message::nearest};

use super::ticket::Job;

/// A published message.
#[derive(Debug)]
pub(super) struct Sent {
    pub(super) job: Job,
    pub(super) at: Instant,
}

/// Settles every tag once, in whatever order the broker answers. The client library's own
/// helper reports nack(2) followed by ack(3, multiple) as ack(2).
#[derive(Debug, Default)]
pub(super) struct Outstanding {
    by_tag: BTreeMap<u64, Sent>,
    last_tag: u64,
    bytes: usize,
    /// Whether a message was given up that the broker may still refuse.
    forgotten: bool,
}

impl Outstanding {
    pub(super) fn len(&self) -> usize {
        self.by_tag.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_tag.is_empty()
    }

    /// Whether the broker can be referring to exactly one message.
    pub(super) fn is_alone(&self) -> bool {
        self.by_tag.len() == 1 && !self.forgotten
    }

    /// The total length of the bodies.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Records the next publish on the channel.
    pub(super) fn push(&mut self, job: Job, at: Instant) {
        self.last_tag += 1;
        self.bytes += job.body().len();
        self.by_tag.insert(self.last_tag, Sent { job, at });
    }

    /// The messages that an answer is about, oldest first; none for a tag that
    /// was settled before or never used.
    pub(super) fn settle(&mut self, tag: u64, multiple: bool) -> Vec<Sent> {
        let settled = if multiple {
            let later = self.by_tag.split_off(&(tag + 1));
            std::mem::replace(&mut self.by_tag, later).into_values().collect()
        } else {
            self.by_tag.remove(&tag).into_iter().collect::<Vec<_>>()
        };
        for sent in &settled {
            self.bytes -= sent.job.body().len();
        }
        settled
    }

    /// Removes the message that was returned. `entry` is the exchange that messages go to by
    /// default.
    pub(super) fn take_returned(&mut self, entry: &str, returned: &Returned) -> Option<Sent> {
        let returned = returned.published();
        let tag = nearest(self.by_tag.iter().map(|(tag, Sent { job, at })| {
            // What would be written of it is not worked out in vain.
            let differences = (job.body() == returned.body)
                .then(|| job.wire(*at))
                .and_then(|wire| wire.published(entry, job.body()).differences(returned));
            (*tag, differences)
        }))?;
        self.settle(tag, false).pop()
    }

    /// Removes messages whose publishers have given up.
    pub(super) fn drop_late(&mut self, now: Instant) {
        let Self { by_tag, bytes, forgotten, .. } = self;
        by_tag.retain(|_, sent| {
            let late = sent.job.is_late(now);
            if late {
                *bytes -= sent.job.body().len();
                *forgotten = true;
            }
            !late
        });
    }

    /// Whether a message has waited too long, not counting the time before `since`: for
    /// `limit`, and twice as long for each further time it was published.
    pub(super) fn is_overdue(&self, now: Instant, since: Instant, limit: Duration) -> bool {
        self.by_tag.values().any(|sent| {
            let patience = limit.saturating_mul(1 << sent.job.publishes().saturating_sub(1).min(16));
            now.saturating_duration_since(sent.at.max(since)) >= patience
        })
    }

    /// Empties it, for a new channel on which tags count from 1 again.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = Job> + use<> {
        let all = std::mem::take(self);
        all.by_tag.into_values().map(|sent| sent.job)
    }
}
