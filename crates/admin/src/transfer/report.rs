//! What became of the messages: pure.

use std::{collections::BTreeMap, time::Duration};

use serde::Serialize;

use crate::drain::{Decision, Drained};

use super::{Evidence, SAMPLE, site::Site};

/// What was moved, and what stays and why.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct TransferReport {
    /// The set or layout that messages were moved from.
    pub from: String,
    /// The set that they were moved to.
    pub to: String,
    /// Whether nothing was changed. Then what was moved is what would be, and what stays would
    /// stay, of those messages that were examined.
    pub dry_run: bool,
    /// Messages that waited at the start.
    pub waiting: u64,
    /// How many of those a dry run has not examined: whether they would be moved is not known.
    pub unexamined: u64,
    /// Messages that were between two levels at the start, and cannot be taken while they are.
    pub handing_on: u64,
    /// Messages that were moved: confirmed there, and gone here.
    pub moved: u64,
    /// By what their due times were known, how many were sent; some of them may not have been
    /// accepted.
    pub told: BTreeMap<Evidence, u64>,
    /// By how much those may be late of which nothing told how long they had waited, in ms.
    pub late_by_ms: u64,
    /// By level, the highest first.
    pub levels: Vec<TransferLevel>,
    /// Messages that stay because nothing tells how long they have waited.
    pub untold: u64,
    /// Messages that stay because nobody is bound for them at the destination, by app.
    pub unbound: BTreeMap<String, u64>,
    /// Messages that stay because they have an id, which would change their handles.
    pub with_id: u64,
    /// Messages that stay because they were recalled: each goes to the source's queue of recalled
    /// messages when it is due.
    pub recalled: u64,
    /// Messages that stay because of their keys.
    pub malformed: u64,
    /// What is wrong with the first of those.
    pub malformed_because: Option<String>,
    /// Messages that stay because the destination did not accept them.
    pub refused: u64,
    /// Why the first of those was refused.
    pub refusal: Option<String>,
    /// Messages that were sent and not confirmed, or not removed here: they may arrive twice.
    pub in_doubt: u64,
    /// Messages that the broker should have delivered but did not.
    pub withheld: u64,
    /// Queues with messages that a dry run has only counted: reading them uses up deliveries.
    pub only_counted: Vec<String>,
    /// How often all levels were read.
    pub rounds: u32,
    /// Whether the last round still found messages: they keep coming.
    pub unfinished: bool,
    /// Whether it was interrupted.
    pub interrupted: bool,
    /// What ended it early, if anything did. Running it again continues from there.
    pub failure: Option<String>,
}

/// What was moved from one level.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct TransferLevel {
    /// Its queue.
    pub queue: String,
    /// Messages that waited in it at the start.
    pub waiting: u64,
    /// Messages that were moved.
    pub moved: u64,
    /// Messages that stay.
    pub stay: u64,
    /// Messages that a dry run has not examined.
    pub unexamined: u64,
    #[serde(skip)]
    keeps: Keeps,
}

/// Why messages stay.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Keeps {
    untold: u64,
    unbound: BTreeMap<String, u64>,
    with_id: u64,
    recalled: u64,
    malformed: u64,
    malformed_because: Option<String>,
    refused: u64,
    withheld: u64,
}

/// What was decided about the messages of one level, in one round.
#[derive(Debug, Default)]
pub(super) struct Tally {
    sent: BTreeMap<Evidence, u64>,
    late_by: Duration,
    keeps: Keeps,
}

impl Tally {
    /// The level is read from the start; what was kept is found again.
    pub(super) fn begin(&mut self) {
        self.keeps = Keeps::default();
    }

    pub(super) fn moved(&mut self, by: Evidence, late_by: Duration) {
        *self.sent.entry(by).or_default() += 1;
        self.late_by = self.late_by.max(late_by);
    }

    pub(super) fn untold(&mut self) -> Decision {
        self.keeps.untold += 1;
        Decision::Keep
    }

    pub(super) fn unbound(&mut self, app: &str) -> Decision {
        *self.keeps.unbound.entry(app.to_owned()).or_default() += 1;
        Decision::Keep
    }

    pub(super) fn with_id(&mut self) -> Decision {
        self.keeps.with_id += 1;
        Decision::Keep
    }

    pub(super) fn recalled(&mut self) -> Decision {
        self.keeps.recalled += 1;
        Decision::Keep
    }

    pub(super) fn malformed(&mut self, reason: String) -> Decision {
        self.keeps.malformed += 1;
        self.keeps.malformed_because.get_or_insert(reason);
        Decision::Keep
    }
}

impl TransferReport {
    pub(super) fn new(from: String, to: String, dry_run: bool) -> Self {
        Self { from, to, dry_run, ..Self::default() }
    }

    /// Enters what waits at the start.
    pub(super) fn begin(&mut self, sites: &[Site]) {
        let level = |site: &Site| TransferLevel {
            queue: site.queue.name.clone(),
            waiting: site.ready,
            ..TransferLevel::default()
        };
        self.levels = sites.iter().map(level).collect();
        self.waiting = sites.iter().map(|site| site.ready).sum();
        self.handing_on = sites.iter().map(|site| site.handing_on).sum();
    }

    /// Enters that nothing of a level was examined.
    pub(super) fn not_examined(&mut self, queue: &str) {
        self.only_counted.push(queue.to_owned());
        if let Some(level) = self.levels.iter_mut().find(|level| level.queue == queue) {
            level.unexamined = level.waiting;
            self.unexamined += level.waiting;
        }
    }

    /// Enters what became of the messages of a level.
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
            level.keeps = Keeps { refused: drained.refused, withheld: drained.withheld, ..tally.keeps };
            let unbound: u64 = level.keeps.unbound.values().sum();
            level.stay = level.keeps.untold
                + unbound
                + level.keeps.with_id
                + level.keeps.recalled
                + level.keeps.malformed
                + level.keeps.refused;
            let examined = level.moved + level.stay;
            // Fewer were all that there were: some fall due meanwhile.
            if self.dry_run && examined >= SAMPLE {
                level.unexamined = level.waiting.saturating_sub(examined);
                self.unexamined += level.unexamined;
            }
        }
        // A later round finds again what stays.
        self.untold = self.levels.iter().map(|level| level.keeps.untold).sum();
        self.with_id = self.levels.iter().map(|level| level.keeps.with_id).sum();
        self.recalled = self.levels.iter().map(|level| level.keeps.recalled).sum();
        self.malformed = self.levels.iter().map(|level| level.keeps.malformed).sum();
        self.malformed_because = self.levels.iter().find_map(|level| level.keeps.malformed_because.clone());
        self.unbound.clear();
        for (app, count) in self.levels.iter().flat_map(|level| &level.keeps.unbound) {
            *self.unbound.entry(app.clone()).or_default() += count;
        }
        self.refused = self.levels.iter().map(|level| level.keeps.refused).sum();
        self.refusal = self.refusal.take().or_else(|| drained.refusal.clone());
        self.in_doubt += drained.in_doubt;
        self.withheld = self.levels.iter().map(|level| level.keeps.withheld).sum();
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

    /// How many messages stay, as far as they were read.
    #[must_use]
    pub fn stay(&self) -> u64 {
        self.levels.iter().map(|level| level.stay).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stays_is_counted_once_however_often_it_is_read() {
        let level = TransferLevel { queue: "q".into(), ..TransferLevel::default() };
        let mut report = TransferReport { levels: vec![level], ..TransferReport::default() };
        for round in 0..3 {
            let mut tally = Tally::default();
            tally.moved(Evidence::Death, Duration::ZERO);
            tally.unbound("a");
            // A second run of the same round.
            tally.begin();
            tally.unbound("a");
            tally.untold();
            report.note("q", &Drained { sent: 1, ..Drained::default() }, tally);
            assert_eq!(
                (report.moved, report.untold, report.unbound["a"], report.stay()),
                (round + 1, 1, 1, 2)
            );
        }
        assert_eq!(report.told, [(Evidence::Death, 3)].into());
    }

    #[test]
    fn a_dry_run_says_how_many_it_has_not_examined() {
        let level =
            |queue: &str, waiting| TransferLevel { queue: queue.into(), waiting, ..TransferLevel::default() };
        let levels = vec![level("few", 10), level("many", SAMPLE + 7), level("counted", 5)];
        let mut report = TransferReport { levels, dry_run: true, ..TransferReport::default() };
        for (queue, examined) in [("few", 9), ("many", SAMPLE)] {
            let mut tally = Tally::default();
            (1..examined).for_each(|_| drop(tally.untold()));
            tally.moved(Evidence::Death, Duration::ZERO);
            report.note(queue, &Drained::default(), tally);
        }
        report.not_examined("counted");
        let unexamined: Vec<_> = report.levels.iter().map(|level| level.unexamined).collect();
        assert_eq!((unexamined, report.unexamined), (vec![0, 7, 5], 12));
    }
}
