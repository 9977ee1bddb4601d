//! Published messages without a confirm on a channel, by delivery tag. Pure.

use std::collections::BTreeMap;

use delayline_core::message::nearest;

/// Messages that wait for the broker's answer, in the order in which they were published.
///
/// It settles every tag once, in whatever order the broker answers. The client library's own helper
/// reports nack(2) followed by ack(3, multiple) as ack(2).
///
/// Tags count from 1 on each channel, so a new channel needs a new one:
/// [`take_all`](Self::take_all) empties it.
#[derive(Debug)]
pub struct Outstanding<T> {
    /// Messages with their sizes. When a message is given up, its entry stays: the broker may still
    /// answer, and its bytes may still be waiting to be written.
    by_tag: BTreeMap<u64, (Option<T>, usize)>,
    last_tag: u64,
    len: usize,
    bytes: usize,
}

impl<T> Default for Outstanding<T> {
    fn default() -> Self {
        Self { by_tag: BTreeMap::new(), last_tag: 0, len: 0, bytes: 0 }
    }
}

impl<T> Outstanding<T> {
    /// How many messages are waiting.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no message is waiting.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether the broker can mean only one message.
    #[must_use]
    pub fn is_alone(&self) -> bool {
        self.len == 1 && self.by_tag.len() == 1
    }

    /// The total size in bytes of the messages without an answer.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The messages, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.by_tag.values().filter_map(|(message, _)| message.as_ref())
    }

    /// Records the next publish on the channel, with its size in bytes.
    pub fn push(&mut self, message: T, bytes: usize) {
        self.last_tag += 1;
        self.len += 1;
        self.bytes += bytes;
        self.by_tag.insert(self.last_tag, (Some(message), bytes));
    }

    /// The messages that an answer refers to, oldest first. Empty for a tag that was settled before
    /// or never used.
    pub fn settle(&mut self, tag: u64, multiple: bool) -> Vec<T> {
        let settled: Vec<_> = if multiple {
            let later = self.by_tag.split_off(&tag.saturating_add(1));
            std::mem::replace(&mut self.by_tag, later).into_values().collect()
        } else {
            self.by_tag.remove(&tag).into_iter().collect()
        };
        self.bytes -= settled.iter().map(|(_, bytes)| bytes).sum::<usize>();
        let settled: Vec<_> = settled.into_iter().filter_map(|(message, _)| message).collect();
        self.len -= settled.len();
        settled
    }

    /// Removes the message that was returned: it differs least from the returned one, according
    /// to `differences`.
    pub fn take_returned(&mut self, differences: impl Fn(&T) -> Option<usize>) -> Option<T> {
        let waiting = self.by_tag.iter().filter_map(|(tag, (message, _))| Some((*tag, message.as_ref()?)));
        let tag = nearest(waiting.map(|(tag, message)| (tag, differences(message))))?;
        self.settle(tag, false).pop()
    }

    /// Takes out messages whose deadline has passed. The broker may still answer for them.
    pub fn give_up(&mut self, is_late: impl Fn(&T) -> bool) -> Vec<T> {
        let late = self.by_tag.values_mut().filter_map(|(message, _)| message.take_if(|it| is_late(it)));
        let late: Vec<_> = late.collect();
        self.len -= late.len();
        late
    }

    /// Empties it, oldest first, for a new channel on which tags count from 1 again.
    pub fn take_all(&mut self) -> impl Iterator<Item = T> + use<T> {
        std::mem::take(self).by_tag.into_values().filter_map(|(message, _)| message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Holds the messages 1, 2, … under the same tags, with the same sizes in bytes.
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
    fn the_broker_may_mean_a_message_that_was_given_up() {
        let mut waiting = outstanding(2);
        assert!(!waiting.is_alone());
        waiting.settle(1, false);
        assert!(waiting.is_alone());
        waiting.push(3, 3);
        assert_eq!(waiting.give_up(|message| *message == 2), [2]);
        // Its bytes may still be waiting to be written.
        assert_eq!((waiting.len(), waiting.bytes(), waiting.is_alone()), (1, 5, false));
        assert_eq!(waiting.settle(2, false), [0; 0]);
        assert_eq!((waiting.len(), waiting.bytes(), waiting.is_alone()), (1, 3, true));
        // Tags begin again on the next channel.
        assert_eq!(waiting.take_all().collect::<Vec<_>>(), [3]);
        waiting.push(4, 4);
        assert_eq!(waiting.settle(1, false), [4]);
    }
}
