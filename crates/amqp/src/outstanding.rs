//! Messages that were published on a channel and are not confirmed yet, by delivery tag: pure.

use std::collections::BTreeMap;

use delayline_core::message::nearest;

/// What waits for the broker's answer, in the order in which it was published.
///
/// It settles every tag once, in whatever order the broker answers. The client library's own
/// helper reports nack(2) followed by ack(3, multiple) as ack(2).
///
/// Tags count from 1 on each channel, so a new channel needs a new one:
/// [`take_all`](Self::take_all) empties it.
#[derive(Debug)]
pub struct Outstanding<T> {
    by_tag: BTreeMap<u64, Entry<T>>,
    last_tag: u64,
    bytes: usize,
    /// Whether a message was given up that the broker may still refuse.
    forgotten: bool,
}

#[derive(Debug)]
struct Entry<T> {
    message: T,
    bytes: usize,
}

impl<T> Default for Outstanding<T> {
    fn default() -> Self {
        Self { by_tag: BTreeMap::new(), last_tag: 0, bytes: 0, forgotten: false }
    }
}

impl<T> Outstanding<T> {
    /// How many messages wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_tag.len()
    }

    /// Whether none waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_tag.is_empty()
    }

    /// Whether the broker can be referring to exactly one message.
    #[must_use]
    pub fn is_alone(&self) -> bool {
        self.by_tag.len() == 1 && !self.forgotten
    }

    /// The total length of the bodies, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The messages, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.by_tag.values().map(|entry| &entry.message)
    }

    /// Records the next publish on the channel, whose body has so many bytes.
    pub fn push(&mut self, message: T, bytes: usize) {
        self.last_tag += 1;
        self.bytes += bytes;
        self.by_tag.insert(self.last_tag, Entry { message, bytes });
    }

    /// The messages that an answer is about, oldest first; none for a tag that was settled
    /// before or never used.
    pub fn settle(&mut self, tag: u64, multiple: bool) -> Vec<T> {
        let settled: Vec<_> = if multiple {
            let later = self.by_tag.split_off(&tag.saturating_add(1));
            std::mem::replace(&mut self.by_tag, later).into_values().collect()
        } else {
            self.by_tag.remove(&tag).into_iter().collect()
        };
        self.bytes -= settled.iter().map(|entry| entry.bytes).sum::<usize>();
        settled.into_iter().map(|entry| entry.message).collect()
    }

    /// Removes the message that was returned: the one that differs least from it, according
    /// to `differences`.
    pub fn take_returned(&mut self, differences: impl Fn(&T) -> Option<usize>) -> Option<T> {
        let tag = nearest(self.by_tag.iter().map(|(tag, entry)| (*tag, differences(&entry.message))))?;
        self.settle(tag, false).pop()
    }

    /// Removes messages that nobody waits for any more. The broker may still answer for them.
    pub fn forget(&mut self, given_up: impl Fn(&T) -> bool) {
        let Self { by_tag, bytes, forgotten, .. } = self;
        by_tag.retain(|_, entry| {
            let gone = given_up(&entry.message);
            if gone {
                *bytes -= entry.bytes;
                *forgotten = true;
            }
            !gone
        });
    }

    /// Empties it, oldest first, for a new channel on which tags count from 1 again.
    pub fn take_all(&mut self) -> impl Iterator<Item = T> + use<T> {
        std::mem::take(self).by_tag.into_values().map(|entry| entry.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With the messages 1, 2, … under the same tags, as many bytes long.
    fn outstanding(count: usize) -> Outstanding<usize> {
        let mut outstanding = Outstanding::default();
        (1..=count).for_each(|message| outstanding.push(message, message));
        outstanding
    }

    #[test]
    fn every_tag_is_settled_once() {
        let mut waiting = outstanding(5);
        assert_eq!((waiting.len(), waiting.bytes()), (5, 15));
        assert_eq!(waiting.settle(2, false), [2]);
        assert_eq!(waiting.settle(4, true), [1, 3, 4]);
        for (tag, multiple) in [(2, false), (4, true), (99, false)] {
            assert_eq!(waiting.settle(tag, multiple), [0; 0]);
        }
        assert_eq!((waiting.len(), waiting.bytes()), (1, 5));
        assert_eq!(waiting.settle(u64::MAX, true), [5]);
        assert!(waiting.is_empty() && waiting.bytes() == 0);
    }

    #[test]
    fn a_return_takes_the_nearest() {
        let mut waiting = outstanding(4);
        assert_eq!(waiting.take_returned(|_| None), None);
        assert_eq!(waiting.take_returned(|message| Some(message.abs_diff(3))), Some(3));
        // The confirm that follows it finds nothing.
        assert_eq!(waiting.settle(3, false), [0; 0]);
        assert_eq!(waiting.iter().copied().collect::<Vec<_>>(), [1, 2, 4]);
    }

    #[test]
    fn what_was_forgotten_may_be_what_the_broker_means() {
        let mut waiting = outstanding(2);
        assert!(!waiting.is_alone());
        waiting.settle(1, false);
        assert!(waiting.is_alone());
        waiting.push(3, 3);
        waiting.forget(|message| *message == 2);
        assert_eq!((waiting.len(), waiting.bytes(), waiting.is_alone()), (1, 3, false));
        // Not so on the next channel, whose tags begin again.
        assert_eq!(waiting.take_all().collect::<Vec<_>>(), [3]);
        waiting.push(4, 4);
        assert!(waiting.is_alone());
        assert_eq!(waiting.settle(1, false), [4]);
    }
}
