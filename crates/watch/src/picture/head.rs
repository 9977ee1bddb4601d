//! How long the oldest message has been in a queue that keeps messages: pure.

use std::time::{Duration, Instant};

use jiff::Timestamp;

/// How often the first message is looked at even if nothing suggests that it is a new one:
/// looking takes it out of the queue for a moment.
const AGAIN: Duration = Duration::from_secs(300);

/// The pause after a look that failed.
const AFTER_FAILURE: Duration = Duration::from_secs(60);

/// The known facts about the first message of a queue.
#[derive(Debug, Default)]
pub(super) struct Head {
    depth: u64,
    /// Since when the queue has had messages, as far as that was seen.
    filled: Option<Timestamp>,
    /// When the first message arrived, according to itself.
    came: Option<Timestamp>,
    /// When it was looked at, and whether messages have left since, so that it may be a new
    /// one.
    looked: Option<Instant>,
    fell: bool,
    failed: Option<Instant>,
}

impl Head {
    /// Takes in a depth.
    pub(super) fn note(&mut self, depth: u64, at: Timestamp) {
        if depth == 0 {
            *self = Self::default();
            return;
        }
        self.fell |= depth < self.depth;
        self.depth = depth;
        self.filled.get_or_insert(at);
    }

    /// Whether the first message has to be looked at.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        let over = |since: Option<Instant>, time| {
            since.is_none_or(|since| now.saturating_duration_since(since) >= time)
        };
        self.depth > 0 && over(self.failed, AFTER_FAILURE) && (self.fell || over(self.looked, AGAIN))
    }

    /// Notes the headers of the first message.
    pub(super) fn found(&mut self, came: Option<Timestamp>, now: Instant) {
        (self.came, self.looked, self.fell, self.failed) = (came, Some(now), false, None);
    }

    /// Notes that it could not be looked at.
    pub(super) fn failed(&mut self, now: Instant) {
        self.failed = Some(now);
    }

    /// When the first message arrived; if its headers do not contain that, since when the queue has had
    /// messages.
    pub(super) fn since(&self) -> Option<Timestamp> {
        self.came.or(self.filled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// Whether it is due after each depth, seconds after the start; then it is looked at.
    fn looks<const N: usize>(depths: [(u64, u64); N]) -> [bool; N] {
        let (mut head, start) = (Head::default(), Instant::now());
        depths.map(|(depth, seconds)| {
            let now = start + Duration::from_secs(seconds);
            head.note(depth, at(0));
            let due = head.is_due(now);
            if due {
                head.found(None, now);
            }
            due
        })
    }

    #[test]
    fn looks_only_if_the_first_may_be_another() {
        let seen =
            looks([(0, 0), (3, 1), (3, 2), (9, 3), (8, 4), (8, 5), (8, 303), (8, 304), (0, 305), (1, 306)]);
        assert_eq!(seen, [false, true, false, false, true, false, false, true, false, true]);
    }

    #[test]
    fn one_that_could_not_be_looked_at_is_left_alone_for_a_minute_and_not_for_five() {
        let (mut head, start) = (Head::default(), Instant::now());
        let due = |head: &Head, seconds| head.is_due(start + Duration::from_secs(seconds));
        head.note(5, at(0));
        head.found(Some(at(-9)), start);
        head.note(4, at(1));
        head.failed(start);
        assert_eq!((due(&head, 59), due(&head, 60)), (false, true));
        assert_eq!(head.since(), Some(at(-9)));
    }

    #[test]
    fn what_does_not_say_is_as_old_as_the_queue_was_seen_filled() {
        let mut head = Head::default();
        assert_eq!(head.since(), None);
        head.note(1, at(10));
        head.note(2, at(20));
        assert_eq!(head.since(), Some(at(10)));
        head.found(Some(at(3)), Instant::now());
        assert_eq!(head.since(), Some(at(3)));
        head.note(0, at(30));
        assert_eq!(head.since(), None);
    }
}
