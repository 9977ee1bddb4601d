//! The result of a transfer: pure.

use std::{collections::BTreeMap, time::Duration};

use serde::Serialize;

use crate::{drain::Decision, drain::Drained};

use super::{Evidence, SAMPLE, site::Site};

/// The moved messages, and the messages that stay, with the reason.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct TransferReport {
    /// The set or layout that messages were moved from.
    pub from: String,
    /// The set that they were moved to.
    pub to: String,
    /// Whether nothing was changed. Then the counts show what would be moved and what would stay, of the
    /// examined messages.
    pub dry_run: bool,
    /// Messages that waited at the start; `None` if not every level could be counted.
    pub waiting: Option<u64>,
    /// How many of those a dry run has not examined. It is unknown whether they would be moved.
    pub unexamined: u64,
    /// Messages that were between two levels at the start, and could not be taken.
    pub handing_on: Option<u64>,
    /// Messages that were moved: confirmed at the destination, and removed here.
    pub moved: u64,
    /// How many messages were sent, by the evidence of their due times; some of them may not have been
    /// accepted.
    pub told: BTreeMap<Evidence, u64>,
    /// How late messages with an unknown remaining delay may be at most, in ms.
    pub late_by_ms: u64,
    /// By level, the highest first.
    pub levels: Vec<TransferLevel>,
    /// Messages that stay because their remaining delay is unknown.
    pub untold: u64,
    /// Messages that stay because no queue is bound for them at the destination, by app.
    pub unbound: BTreeMap<String, u64>,
    /// Messages that stay because they have an id, which would change their handles.
    pub with_id: u64,
    /// Messages that stay because they were recalled: each goes to the source's queue of recalled messages
    /// when it is due.
    pub recalled: u64,
    /// Messages that stay because of their keys.
    pub malformed: u64,
    /// The fault of the first of those keys.
    pub malformed_because: Option<String>,
    /// Messages that stay because the destination did not accept them.
    pub refused: u64,
    /// Why the first of those was refused.
    pub refusal: Option<String>,
    /// Messages that were sent but not confirmed, or not removed here. They may arrive twice.
    pub in_doubt: u64,
    /// Messages that the broker should have delivered but did not.
    pub withheld: u64,
    /// Queues with messages that a dry run has only counted, since reading them uses up deliveries.
    pub only_counted: Vec<String>,
    /// Queues that did not answer: it is unknown whether they have messages.
    pub uncounted: Vec<String>,
    /// How often all levels were read.
    pub rounds: u32,
    /// Whether the last round still found messages: they keep coming.
    pub unfinished: bool,
    /// Whether it was interrupted.
    pub interrupted: bool,
    /// What ended it early, if anything did. Running it again continues from there.
    pub failure: Option<String>,
}

/// The messages moved from one level.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct TransferLevel {
    /// Its queue.
    pub queue: String,
    /// Messages that waited in it at the start; `None` if it was too slow to count them.
    pub waiting: Option<u64>,
    /// Messages that were moved.
    pub moved: u64,
    /// Messages that stay.
    pub stay: u64,
    /// Messages that a dry run has not examined.
    pub unexamined: u64,
    /// Why those stay.
    #[serde(skip)]
    stays: BTreeMap<Stay, u64>,
    #[serde(skip)]
    malformed_because: Option<String>,
    #[serde(skip)]
    withheld: u64,
}

/// Why a message stays.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stay {
    /// Its remaining delay is unknown.
    Untold,
    /// No queue is bound for its app at the destination.
    Unbound(String),
    /// It has an id.
    WithId,
    /// It was recalled.
    Recalled,
    /// Its key.
    Malformed,
    /// The destination did not accept it.
    Refused,
}

/// The decisions about the messages of one level, in one round.
#[derive(Debug, Default)]
pub(super) struct Tally {
    sent: BTreeMap<Evidence, u64>,
    late_by: Duration,
    stays: BTreeMap<Stay, u64>,
    malformed_because: Option<String>,
}

impl Tally {
    /// The level is read from the start, and kept messages are found again.
    pub(super) fn begin(&mut self) {
        (self.stays, self.malformed_because) = Default::default();
    }

    pub(super) fn moved(&mut self, by: Evidence, late_by: Duration) {
        *self.sent.entry(by).or_default() += 1;
        self.late_by = self.late_by.max(late_by);
    }

    pub(super) fn stays(&mut self, why: Stay) -> Decision {
        *self.stays.entry(why).or_default() += 1;
        Decision::Keep
    }

    pub(super) fn malformed(&mut self, reason: String) -> Decision {
        self.malformed_because.get_or_insert(reason);
        self.stays(Stay::Malformed)
    }
}

impl TransferReport {
    pub(super) fn new(from: String, to: String, dry_run: bool) -> Self {
        Self { from, to, dry_run, ..Self::default() }
    }

    /// Enters the messages that wait at the start.
    pub(super) fn begin(&mut self, sites: &[Site]) {
        let level = |site: &Site| TransferLevel {
            queue: site.queue.name.clone(),
            waiting: site.ready,
            ..TransferLevel::default()
        };
        self.levels = sites.iter().map(level).collect();
        self.waiting = sites.iter().map(|site| site.ready).sum();
        let slow = sites.iter().filter(|site| site.ready.is_none());
        self.uncounted = slow.map(|site| site.queue.name.clone()).collect();
        self.handing_on = sites.iter().map(|site| site.handing_on).sum();
    }

    /// Enters that nothing of a level was examined.
    pub(super) fn not_examined(&mut self, queue: &str) {
        self.only_counted.push(queue.to_owned());
        if let Some(level) = self.levels.iter_mut().find(|level| level.queue == queue) {
            level.unexamined = level.waiting.unwrap_or(0);
            self.unexamined += level.unexamined;
        }
    }

    /// Enters the result for the messages of a level.
    pub(super) fn note(&mut self, queue: &str, drained: &Drained, tally: Tally) {
        let sent = tally.sent.values().sum::<u64>();
        for (by, count) in tally.sent {
            *self.told.entry(by).or_default() += count;
        }
        let late_by = u64::try_from(tally.late_by.as_millis()).unwrap_or(u64::MAX);
        self.late_by_ms = self.late_by_ms.max(late_by);
        let moved = if self.dry_run { sent } else { drained.sent };
        self.moved += moved;
        if let Some(level) = self.levels.iter_mut().find(|level| level.queue == queue) {
            level.moved += moved;
            (level.stays, level.malformed_because) = (tally.stays, tally.malformed_because);
            level.stays.insert(Stay::Refused, drained.refused);
            level.withheld = drained.withheld;
            level.stay = level.stays.values().sum();
            let examined = level.moved + level.stay;
            // There were fewer messages, since some fall due meanwhile.
            if self.dry_run && examined >= SAMPLE {
                level.unexamined = level.waiting.unwrap_or(0).saturating_sub(examined);
                self.unexamined += level.unexamined;
            }
        }
        // A later round finds the messages again that stay.
        self.unbound.clear();
        (self.untold, self.with_id, self.recalled, self.malformed, self.refused) = Default::default();
        for (why, count) in self.levels.iter().flat_map(|level| &level.stays) {
            *match why {
                Stay::Untold => &mut self.untold,
                Stay::Unbound(app) => self.unbound.entry(app.clone()).or_default(),
                Stay::WithId => &mut self.with_id,
                Stay::Recalled => &mut self.recalled,
                Stay::Malformed => &mut self.malformed,
                Stay::Refused => &mut self.refused,
            } += count;
        }
        self.malformed_because = self.levels.iter().find_map(|level| level.malformed_because.clone());
        self.withheld = self.levels.iter().map(|level| level.withheld).sum();
        self.refusal = self.refusal.take().or_else(|| drained.refusal.clone());
        self.in_doubt += drained.in_doubt;
        self.interrupted |= drained.interrupted;
        self.failure = self.failure.take().or_else(|| drained.failure.clone());
    }

    /// Whether messages were left in a level by an earlier round.
    pub(super) fn stays_in(&self, queue: &str) -> bool {
        self.levels.iter().any(|level| level.queue == queue && level.stay > 0)
    }

    pub(super) fn ended(&self) -> bool {
        self.interrupted || self.failure.is_some()
    }

    /// How many of the examined messages stay.
    #[must_use]
    pub fn stay(&self) -> u64 {
        self.levels.iter().map(|level| level.stay).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_that_stay_are_counted_once_in_all_rounds() {
        let level = TransferLevel { queue: "q".into(), ..TransferLevel::default() };
        let mut report = TransferReport { levels: vec![level], ..TransferReport::default() };
        for round in 0..3 {
            let mut tally = Tally::default();
            tally.moved(Evidence::Death, Duration::ZERO);
            tally.stays(Stay::Unbound("a".into()));
            // A second run of the same round.
            tally.begin();
            tally.stays(Stay::Unbound("a".into()));
            tally.stays(Stay::Untold);
            report.note("q", &Drained { sent: 1, ..Drained::default() }, tally);
            assert_eq!(
                (report.moved, report.untold, report.unbound["a"], report.stay()),
                (round + 1, 1, 1, 2)
            );
        }
        assert_eq!(report.told, [(Evidence::Death, 3)].into());
    }

    #[test]
    fn a_dry_run_reports_how_many_it_has_not_examined() {
        let level = |queue: &str, waiting| TransferLevel {
            queue: queue.into(),
            waiting: Some(waiting),
            ..TransferLevel::default()
        };
        let levels = vec![level("few", 10), level("many", SAMPLE + 7), level("counted", 5)];
        let mut report = TransferReport { levels, dry_run: true, ..TransferReport::default() };
        for (queue, examined) in [("few", 9), ("many", SAMPLE)] {
            let mut tally = Tally::default();
            (1..examined).for_each(|_| drop(tally.stays(Stay::Untold)));
            tally.moved(Evidence::Death, Duration::ZERO);
            report.note(queue, &Drained::default(), tally);
        }
        report.not_examined("counted");
        let unexamined: Vec<_> = report.levels.iter().map(|level| level.unexamined).collect();
        assert_eq!((unexamined, report.unexamined), (vec![0, 7, 5], 12));
    }
}
