//! Messages that were sent, the broker's answers, and the arrivals. Pure.
//!
//! Times are whole ticks of any length from any starting point, on a clock that publisher and
//! consumer share.

use std::collections::HashMap;

/// The broker's answer to a publish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// It has taken responsibility for the message.
    Confirmed,
    /// It has not.
    Refused,
}

/// One message of a [`Ledger`]. Its arrival may be recorded before anything else.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Entry {
    /// When it is due, if that is known.
    pub due: Option<i64>,
    /// How much before that time it does not count as early.
    pub grain: i64,
    /// The broker's answer, if there is one.
    pub answer: Option<Answer>,
    /// When it arrived first and last; `None` if it has not arrived.
    pub arrived: Option<(i64, i64)>,
    /// How often it arrived.
    pub arrivals: u32,
}

impl Entry {
    /// How late the first arrival was; negative if it was early.
    #[must_use]
    pub fn late(&self) -> Option<i64> {
        Some(self.arrived?.0 - self.due?)
    }

    fn is_confirmed(&self) -> bool {
        self.answer == Some(Answer::Confirmed)
    }
}

/// An account of messages, by number. The order in which events are recorded does not change the
/// sums.
#[derive(Debug, Default)]
pub struct Ledger {
    entries: HashMap<u64, Entry>,
    confirmed: usize,
    arrived: usize,
    missing: usize,
}

/// The sums of a [`Ledger`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// Messages that the broker confirmed.
    pub confirmed: u64,
    /// Messages that it refused.
    pub refused: u64,
    /// Confirmed messages that have not arrived.
    pub missing: u64,
    /// Arrivals beyond the first of the same message.
    pub duplicated: u64,
    /// Messages that arrived before their due time.
    pub early: u64,
    /// How late the first arrival of each message was, in ticks, ascending.
    pub late: Vec<i64>,
}

impl Ledger {
    /// Records when a message is due, and how much before that time it does not count as early.
    pub fn promise(&mut self, id: u64, due: i64, grain: i64) {
        let entry = self.entries.entry(id).or_default();
        (entry.due, entry.grain) = (Some(due), grain);
    }

    /// Records the broker's answer. Only the first one counts.
    pub fn answer(&mut self, id: u64, answer: Answer) {
        let entry = self.entries.entry(id).or_default();
        if entry.answer.is_none() {
            entry.answer = Some(answer);
            self.confirmed += usize::from(entry.is_confirmed());
            self.missing += usize::from(entry.is_confirmed() && entry.arrivals == 0);
        }
    }

    /// Records an arrival. Returns whether it is the first of this message.
    pub fn arrive(&mut self, id: u64, at: i64) -> bool {
        let entry = self.entries.entry(id).or_default();
        let is_first = entry.arrivals == 0;
        entry.arrivals += 1;
        entry.arrived = Some((entry.arrived.map_or(at, |(first, _)| first), at));
        self.arrived += usize::from(is_first);
        self.missing -= usize::from(is_first && entry.is_confirmed());
        is_first
    }

    /// Whether a message has arrived.
    #[must_use]
    pub fn has_arrived(&self, id: u64) -> bool {
        self.entries.get(&id).is_some_and(|entry| entry.arrivals > 0)
    }

    /// How many messages are confirmed.
    #[must_use]
    pub fn confirmed(&self) -> usize {
        self.confirmed
    }

    /// How many messages have arrived, each counted once.
    #[must_use]
    pub fn arrived(&self) -> usize {
        self.arrived
    }

    /// How many messages are confirmed and have not arrived.
    #[must_use]
    pub fn missing(&self) -> usize {
        self.missing
    }

    /// The messages, in no particular order.
    pub fn entries(&self) -> impl Iterator<Item = (u64, &Entry)> {
        self.entries.iter().map(|(id, entry)| (*id, entry))
    }

    /// The sums.
    #[must_use]
    pub fn summary(&self) -> Summary {
        let mut summary =
            Summary { confirmed: self.confirmed as u64, missing: self.missing as u64, ..Summary::default() };
        for entry in self.entries.values() {
            summary.refused += u64::from(entry.answer == Some(Answer::Refused));
            summary.duplicated += u64::from(entry.arrivals.saturating_sub(1));
            if let Some(late) = entry.late() {
                summary.early += u64::from(late + entry.grain < 0);
                summary.late.push(late);
            }
        }
        summary.late.sort_unstable();
        summary
    }
}

impl Summary {
    /// The least lateness, in ticks, that this percentage of messages does not exceed. `None`
    /// without arrivals.
    #[must_use]
    pub fn percentile(&self, per_cent: f64) -> Option<i64> {
        percentile(&self.late, per_cent)
    }
}

/// The least value that this percentage of values does not exceed (the nearest rank), exactly: no
/// histogram, no interpolation. `None` without values.
#[must_use]
pub fn percentile<T: Copy>(sorted: &[T], per_cent: f64) -> Option<T> {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "a rank in a list"
    )]
    // Rounds off the last digits, which 99.9 / 100 does not represent exactly.
    let rank = (per_cent / 100.0 * sorted.len() as f64 - 1e-6).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Due at 100, and early before 98.
    fn ledger(messages: u64) -> Ledger {
        let mut ledger = Ledger::default();
        for id in 0..messages {
            ledger.promise(id, 100, 2);
            ledger.answer(id, Answer::Confirmed);
        }
        ledger
    }

    #[test]
    fn counts_missing_early_and_duplicate_messages() {
        let mut ledger = ledger(5);
        ledger.promise(5, 100, 2);
        ledger.answer(5, Answer::Refused);
        for (id, at, first) in [(0, 103, true), (1, 97, true), (0, 110, false), (2, 98, true)] {
            assert_eq!(ledger.arrive(id, at), first, "{id}");
        }
        assert_eq!((ledger.confirmed(), ledger.arrived(), ledger.missing()), (5, 3, 2));
        assert!(ledger.has_arrived(2) && !ledger.has_arrived(3));
        let expected =
            Summary { confirmed: 5, refused: 1, missing: 2, duplicated: 1, early: 1, late: vec![-3, -2, 3] };
        assert_eq!(ledger.summary(), expected);
        let (_, twice) = ledger.entries().find(|(id, _)| *id == 0).unwrap();
        assert_eq!((twice.arrived, twice.arrivals, twice.late()), (Some((103, 110)), 2, Some(3)));
    }

    #[test]
    fn an_arrival_may_be_quicker_than_its_confirm() {
        let mut early = Ledger::default();
        early.arrive(0, 101);
        assert_eq!((early.missing(), early.summary().late), (0, vec![]), "its due time is unknown");
        early.answer(0, Answer::Confirmed);
        early.promise(0, 100, 2);
        let mut late = ledger(1);
        late.arrive(0, 101);
        assert_eq!(early.summary(), late.summary());
        assert_eq!((early.missing(), late.missing()), (0, 0));
    }

    #[test]
    fn a_message_is_answered_once() {
        let mut ledger = ledger(1);
        ledger.answer(0, Answer::Refused);
        ledger.answer(0, Answer::Confirmed);
        let summary = ledger.summary();
        assert_eq!((summary.confirmed, summary.refused, summary.missing), (1, 0, 1));
    }

    #[test]
    fn a_percentile_is_one_of_the_values() {
        let values: Vec<_> = (1..=1_000).collect();
        assert_eq!(
            [50.0, 99.0, 99.9, 100.0].map(|at| percentile(&values, at)),
            [500, 990, 999, 1_000].map(Some)
        );
        assert_eq!(percentile::<i64>(&[], 50.0), None);
    }
}
