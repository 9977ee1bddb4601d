//! The confirmed messages, and what happened to each.

use std::{
    collections::{HashMap, HashSet},
    sync::{Mutex, MutexGuard, PoisonError},
};

use delayline_core::ledger::{self, Answer};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

use crate::help::Help;

/// A message that is later than this is late because of the fault.
const LATE_MS: i64 = 1_000;

/// Milliseconds on a clock that all processes of a machine share and that cannot be set. Due times
/// use it, so that the test does not depend on the router's time of day.
pub fn clock_ms() -> i64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec * 1_000 + now.tv_nsec / 1_000_000
}

/// Where a message can arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    Application,
    Unroutable,
    Recalled,
}

/// The answer to a recall.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Told {
    Recalled,
    TooLate,
    /// Uncertain, or no answer because of a fault: the message may or may not be recalled.
    Open,
}

/// The ledger of one scenario. Times are those of [`clock_ms`].
#[derive(Default)]
pub struct Ledger(Mutex<Entries>);

#[derive(Default)]
struct Entries {
    ledger: ledger::Ledger,
    failed: u64,
    /// Messages that the broker delivered again because the consumer's connection was lost before
    /// the acknowledgement.
    redelivered: u32,
    unroutable: HashSet<u64>,
    /// Messages that arrived at the application.
    delivered: HashSet<u64>,
    /// Messages that arrived in the queue of recalled messages.
    aside: HashSet<u64>,
    /// The answer to each recall, and when it came.
    told: HashMap<u64, (Told, i64)>,
    last: Option<i64>,
    help: Option<Help>,
}

impl Entries {
    /// The confirmed messages that arrived: number, due time, and the times of the first and the
    /// last arrival.
    fn delivered(&self) -> impl Iterator<Item = (u64, i64, (i64, i64))> {
        self.ledger.entries().filter_map(|(id, entry)| Some((id, entry.due?, entry.arrived?)))
    }

    /// Messages that were delivered although they were *recalled*: when each was recalled, due,
    /// and came.
    fn broken(&self) -> Vec<String> {
        let story = |(id, due, (first, last))| {
            let (told, at) = self.told.get(&id)?;
            let broken = *told == Told::Recalled && self.delivered.contains(&id);
            broken.then(|| format!("{at} ms: {id} was recalled, due at {due}; came at {first} and {last}"))
        };
        let mut all: Vec<_> = self.delivered().filter_map(story).collect();
        all.sort();
        all
    }

    fn recalls(&self) -> Recalls {
        let mut recalls = Recalls::default();
        for (id, (told, _)) in &self.told {
            let (delivered, aside) = (self.delivered.contains(id), self.aside.contains(id));
            match told {
                Told::Recalled => {
                    recalls.recalled += 1;
                    recalls.broken += usize::from(delivered);
                }
                Told::TooLate => {
                    recalls.too_late += 1;
                    recalls.astray += usize::from(aside);
                }
                Told::Open => {
                    recalls.open += 1;
                    recalls.open_aside += usize::from(aside);
                    recalls.both += usize::from(delivered && aside);
                }
            }
        }
        recalls.astray += self.aside.iter().filter(|id| !self.told.contains_key(id)).count();
        recalls
    }
}

/// What happened to the messages that were recalled, and whether the answers were true.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Recalls {
    /// Messages whose recall was answered with *recalled*.
    pub recalled: usize,
    /// Messages whose recall was answered with *too late*.
    pub too_late: usize,
    /// Messages whose recall was answered with *uncertain*, or failed.
    pub open: usize,
    /// Messages among `open` that were recalled after all.
    pub open_aside: usize,
    /// Messages that were delivered although they were *recalled*.
    pub broken: usize,
    /// Messages that were put aside without a recall, or despite the answer *too late*.
    pub astray: usize,
    /// Messages among `open` that are in both places; after a fault a message can come twice.
    pub both: usize,
}

/// What happened to the messages of a scenario.
#[derive(Debug, Clone, Serialize)]
pub struct Totals {
    /// Messages that the broker confirmed.
    pub confirmed: usize,
    /// Messages that the publisher reported as not confirmed.
    pub failed: u64,
    /// Confirmed messages that arrived at the application.
    pub delivered: usize,
    /// Confirmed messages that were in `unroutable` at the end.
    pub unroutable: usize,
    /// The last help that stuck messages needed, if any.
    pub help: Option<Help>,
    /// Confirmed messages that are nowhere.
    pub lost: usize,
    /// Arrivals beyond the first of the same message.
    pub duplicated: usize,
    /// Messages that were delivered again because the consumer had not acknowledged them.
    pub redelivered: u32,
    /// Messages that were early by more than a millisecond for each level.
    pub early: usize,
    /// How early the earliest of them was, in milliseconds.
    pub most_early_ms: i64,
    /// The lateness of the latest message in milliseconds.
    pub worst_late_ms: i64,
    /// Time from the end of the fault until the last message that was more than a second late, in
    /// milliseconds; 0 if none was.
    pub recovery_ms: i64,
    /// What happened to recalled messages, if any were recalled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recalls: Option<Recalls>,
    /// For each broken recall: when the message was recalled, due and delivered, on the clock of
    /// the log of faults.
    #[serde(skip)]
    pub broken: Vec<String>,
}

impl Ledger {
    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The broker may be early by a millisecond for each level, because it cuts off fractions of a
    /// millisecond.
    pub fn confirm(&self, id: u64, due: i64, levels: u32) {
        let ledger = &mut self.entries().ledger;
        ledger.promise(id, due, levels.into());
        ledger.answer(id, Answer::Confirmed);
    }

    pub fn fail(&self) {
        self.entries().failed += 1;
    }

    pub fn arrive(&self, id: u64, again: bool, place: Place) {
        let now = clock_ms();
        let mut entries = self.entries();
        entries.last = Some(now);
        // The second delivery of the same copy is caused by the consumer.
        if again && entries.ledger.has_arrived(id) {
            entries.redelivered += 1;
        } else {
            entries.ledger.arrive(id, now);
        }
        match place {
            Place::Application => entries.delivered.insert(id),
            Place::Unroutable => entries.unroutable.insert(id),
            Place::Recalled => entries.aside.insert(id),
        };
    }

    /// Records the answer to a recall.
    pub fn tell(&self, id: u64, told: Told) {
        self.entries().told.insert(id, (told, clock_ms()));
    }

    /// The number of answered recalls.
    pub fn told(&self) -> usize {
        self.entries().told.len()
    }

    /// Records that help was given, and that messages should arrive from now on.
    pub fn note_help(&self, help: Help) {
        let mut entries = self.entries();
        entries.help = Some(help);
        entries.last = Some(clock_ms());
    }

    /// The number of confirmed messages, and how many of them have not arrived.
    pub fn progress(&self) -> (usize, usize) {
        let ledger = &self.entries().ledger;
        (ledger.confirmed(), ledger.missing())
    }

    /// How long the first arrival of each message took in milliseconds, from its due time or from
    /// `back`, whichever was later.
    pub fn delays_since(&self, back: i64) -> Vec<i64> {
        self.entries().delivered().map(|(_, due, (first, _))| first - due.max(back)).collect()
    }

    /// Milliseconds since the last arrival.
    pub fn silence_ms(&self) -> Option<i64> {
        self.entries().last.map(|last| clock_ms() - last)
    }

    /// The final figures. `healed` is when the fault ended.
    pub fn totals(&self, healed: i64) -> Totals {
        let entries = self.entries();
        let sums = entries.ledger.summary();
        let count = |number: u64| usize::try_from(number).expect("a count");
        let mut totals = Totals {
            confirmed: count(sums.confirmed),
            failed: entries.failed,
            delivered: 0,
            unroutable: 0,
            help: entries.help,
            lost: count(sums.missing),
            duplicated: count(sums.duplicated),
            redelivered: entries.redelivered,
            early: count(sums.early),
            most_early_ms: sums.late.first().map_or(0, |least| (-least).max(0)),
            worst_late_ms: 0,
            recovery_ms: 0,
            recalls: (!entries.told.is_empty()).then(|| entries.recalls()),
            broken: entries.broken(),
        };
        for (id, due, (_, last)) in entries.delivered() {
            let unroutable = entries.unroutable.contains(&id);
            totals.unroutable += usize::from(unroutable);
            totals.delivered += usize::from(!unroutable && !entries.aside.contains(&id));
            totals.worst_late_ms = totals.worst_late_ms.max(last - due);
            if last - due > LATE_MS {
                totals.recovery_ms = totals.recovery_ms.max(last - healed);
            }
        }
        totals
    }
}
