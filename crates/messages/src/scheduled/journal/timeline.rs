//! When the messages of a journal were published, by the broker's clock.
//!
//! AMQP 0-9-1 does not deliver the time at which a stream stored a message. But a consumer can begin at a
//! time, and the place of its first message separates the messages that were stored before and after. Each
//! such probe narrows the times of all messages.

use std::collections::BTreeMap;

use jiff::Timestamp;

use delayline_amqp::StreamStart;

use crate::error::AdminError;

use super::reader::Reading;

/// How many probes are made at once, on one connection.
const AT_ONCE: usize = 64;

/// The place behind the last message.
const END: u64 = u64::MAX;

/// How much two clocks may differ, in seconds.
pub(super) const SKEW: i64 = 60;

/// The times between which the messages of a journal were published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Timeline {
    /// By time, in seconds since the epoch: the place of the first message that was stored then or later.
    marks: BTreeMap<i64, u64>,
}

impl Timeline {
    /// Asks the broker, with about `budget` probes.
    pub(super) fn probe(reading: &Reading<'_>, queue: &str, budget: usize) -> Result<Self, AdminError> {
        let now = Timestamp::now().as_second();
        let mut timeline = Self { marks: [(0, 0), (now + SKEW, END)].into() };
        if budget == 0 {
            return Ok(timeline);
        }
        let last = reading.first_places(queue, &[StreamStart::Last])?[0];
        // The times are unevenly spaced at first: the age of a journal is unknown.
        let mut times: Vec<_> =
            std::iter::once(now).chain((0..16).map(|power| now - (1_i64 << (2 * power)))).collect();
        let mut left = budget;
        while !times.is_empty() {
            left = left.saturating_sub(times.len());
            let starts: Vec<_> = times.iter().map(|time| StreamStart::At(*time)).collect();
            let places = reading.first_places(queue, &starts)?;
            timeline.marks.extend(times.into_iter().zip(places.into_iter().map(|it| it.unwrap_or(END))));
            times = timeline.next_times(left.min(AT_ONCE));
        }
        timeline.drop_unsure(last);
        Ok(timeline)
    }

    /// The times to probe next, `most` at most: they divide the longest times in which messages were stored.
    fn next_times(&self, most: usize) -> Vec<i64> {
        let pairs = self.marks.iter().zip(self.marks.iter().skip(1));
        let wide = pairs.filter(|((from, begin), (to, end))| begin < end && *to - *from > 1);
        let mut wide: Vec<_> = wide.map(|((from, _), (to, _))| (*to - *from, *from)).collect();
        wide.sort_unstable_by_key(|it| std::cmp::Reverse(*it));
        wide.truncate(most);
        let parts = i64::try_from(most / wide.len().max(1)).unwrap_or(1) + 1;
        let divide = |(width, from): (i64, i64)| {
            let parts = parts.min(width);
            (1..parts).map(move |part| from + width * part / parts)
        };
        wide.into_iter().flat_map(divide).collect()
    }

    /// A consumer that gets no message began behind the last one. But RabbitMQ 3.10 also delivers none if
    /// the time is between two files of the stream. `last` is the first place of the part that was written
    /// last: if no probe got as far, it is unknown which of the two it was.
    fn drop_unsure(&mut self, last: Option<u64>) {
        let furthest = self.marks.values().copied().filter(|place| *place != END).max();
        if last.is_none() || furthest < last {
            let latest = self.marks.keys().next_back().copied();
            self.marks.retain(|time, place| *place != END || Some(*time) == latest);
        }
    }

    /// The time at which the message at a place was published at the earliest, and before which it was, in
    /// seconds since the epoch.
    pub(super) fn published(&self, place: u64) -> (i64, i64) {
        let before = self.marks.iter().rev().find(|(_, begin)| **begin <= place).map_or(0, |(time, _)| *time);
        // The order counts if a clock was set back.
        let after = self.marks.range(before..).find(|(_, begin)| **begin > place);
        (before, after.map_or(before + 1, |(time, _)| *time))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The timeline of messages that were stored at these times, each at its index, after `probes` probes.
    fn timeline(stored: &[i64], now: i64, probes: usize) -> Timeline {
        let mut timeline = Timeline { marks: [(0, 0), (now, END)].into() };
        let mut left = probes;
        loop {
            let times = timeline.next_times(left.min(AT_ONCE));
            if times.is_empty() {
                return timeline;
            }
            left = left.saturating_sub(times.len());
            for time in times {
                let place = stored.iter().position(|at| *at >= time).map_or(END, |place| place as u64);
                timeline.marks.insert(time, place);
            }
        }
    }

    #[test]
    fn bursts_are_dated_to_the_second() {
        let day = 86_400;
        let stored: Vec<_> = (0..30).chain(5 * day..5 * day + 20).chain([29 * day]).collect();
        let stored: Vec<_> = stored.into_iter().map(|at| at + 1_700_000_000).collect();
        let timeline = timeline(&stored, 1_700_000_000 + 30 * day, 1_000);
        for (place, at) in stored.iter().enumerate() {
            assert_eq!(timeline.published(place as u64), (*at, at + 1));
        }
    }

    #[test]
    fn a_bounded_number_of_probes_bounds_the_error_and_no_time_is_wrong() {
        let stored: Vec<_> = (0..10_000).map(|number| 1_000_000 + number * 100).collect();
        let timeline = timeline(&stored, 2_100_000, 600);
        for (place, at) in stored.iter().enumerate() {
            let (from, to) = timeline.published(place as u64);
            assert!(from <= *at && *at < to && to - from < 5_000, "{at}: {from} to {to}");
        }
    }

    #[test]
    fn an_answer_that_can_mean_two_things_counts_only_behind_the_last_part() {
        let marks = [(0, 0), (10, 5), (20, END), (60, END)].into();
        let seen = |last| {
            let mut timeline = Timeline { marks };
            timeline.drop_unsure(last);
            (timeline.published(4), timeline.published(7))
        };
        assert_eq!(seen.clone()(Some(5)), ((0, 10), (10, 20)));
        assert_eq!(seen.clone()(Some(6)), ((0, 10), (10, 60)));
        assert_eq!(seen(None), ((0, 10), (10, 60)));
    }
}
