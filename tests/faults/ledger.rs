//! Who confirmed what, and what came of it.

use std::{
    collections::{HashMap, HashSet},
    sync::{Mutex, MutexGuard, PoisonError},
};

use delayline_measure::ledger::{self, Answer};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

use crate::help::Help;

/// A message that comes later than this came late because of the fault.
const LATE_MS: i64 = 1_000;

/// Milliseconds on a clock that all processes of a machine share and nobody can
/// set. Due times are kept on it, so that what a router believes of the time of
/// day is checked too, and not trusted.
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

/// What whoever recalled a message was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Told {
    Recalled,
    TooLate,
    /// Uncertain, or nothing because of a fault: what happened is open.
    Open,
}

/// One for a scenario. Times are those of [`clock_ms`].
#[derive(Default)]
pub struct Ledger(Mutex<Entries>);

#[derive(Default)]
struct Entries {
    ledger: ledger::Ledger,
    failed: u64,
    /// Messages that the broker handed out again after the consumer's own connection was
    /// lost, unacknowledged.
    redelivered: u32,
    unroutable: HashSet<u64>,
    /// Those that came to the application.
    delivered: HashSet<u64>,
    /// Those that came to the queue of recalled messages.
    aside: HashSet<u64>,
    /// What whoever recalled a message was told, and when.
    told: HashMap<u64, (Told, i64)>,
    last: Option<i64>,
    help: Option<Help>,
}

impl Entries {
    /// The confirmed messages that arrived: their number, when they were due, and when they
    /// arrived for the first time and for the last.
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

/// What became of the messages that somebody recalled, and whether the answers were true.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Recalls {
    /// Messages whose recall was answered with *recalled*.
    pub recalled: usize,
    /// With *too late*.
    pub too_late: usize,
    /// With *uncertain*, or with an error.
    pub open: usize,
    /// Those of the open ones that went aside.
    pub open_aside: usize,
    /// Messages that were delivered although they were *recalled*.
    pub broken: usize,
    /// Messages that went aside although nobody had recalled them, or *too late*.
    pub astray: usize,
    /// Copies of an open one in both places; after a fault a message can come twice.
    pub both: usize,
}

/// What became of the messages of a scenario.
#[derive(Debug, Clone, Serialize)]
pub struct Totals {
    /// Messages the broker took responsibility for.
    pub confirmed: usize,
    /// Messages the publisher was told were not confirmed.
    pub failed: u64,
    /// Confirmed messages that arrived at the application.
    pub delivered: usize,
    /// Confirmed messages that waited in `unroutable` at the end.
    pub unroutable: usize,
    /// What it took in the end, if messages stayed where they were.
    pub help: Option<Help>,
    /// Confirmed messages that are nowhere.
    pub lost: usize,
    /// Arrivals beyond the first of the same message.
    pub duplicated: usize,
    /// Messages handed out a second time as the consumer had not acknowledged them.
    pub redelivered: u32,
    /// Messages that came more than a millisecond for each level before they were due.
    pub early: usize,
    /// By how many milliseconds the first was before it was due.
    pub most_early_ms: i64,
    /// By how many milliseconds the latest was late.
    pub worst_late_ms: i64,
    /// From the end of the fault until the last message that was more than a second
    /// late had arrived, in milliseconds; 0 if there was none after it.
    pub recovery_ms: i64,
    /// What became of those that somebody recalled, if anybody did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recalls: Option<Recalls>,
    /// When each broken one of these was recalled, due and delivered, on the clock on which the
    /// faults are logged.
    #[serde(skip)]
    pub broken: Vec<String>,
}

impl Ledger {
    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The broker may be early by a millisecond for each level: it counts whole ones and cuts
    /// off the rest.
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
        // A second hand-out of the same delivery is the consumer's doing.
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

    /// Notes what somebody was told who recalled a message.
    pub fn tell(&self, id: u64, told: Told) {
        self.entries().told.insert(id, (told, clock_ms()));
    }

    /// How many recalls were answered.
    pub fn told(&self) -> usize {
        self.entries().told.len()
    }

    /// Notes that somebody helped, and that arrivals are expected from now on.
    pub fn note_help(&self, help: Help) {
        let mut entries = self.entries();
        entries.help = Some(help);
        entries.last = Some(clock_ms());
    }

    /// How many are confirmed, and how many of them have not arrived.
    pub fn progress(&self) -> (usize, usize) {
        let ledger = &self.entries().ledger;
        (ledger.confirmed(), ledger.missing())
    }

    /// By how much each message was late when it came first, in milliseconds, sorted.
    pub fn lateness_ms(&self) -> Vec<i64> {
        self.entries().ledger.summary().late
    }

    /// How long after it was due, or after `back` if that was later, each message came
    /// for the first time, in milliseconds.
    pub fn delays_since(&self, back: i64) -> Vec<i64> {
        self.entries().delivered().map(|(_, due, (first, _))| first - due.max(back)).collect()
    }

    /// Milliseconds since anything arrived.
    pub fn silence_ms(&self) -> Option<i64> {
        self.entries().last.map(|last| clock_ms() - last)
    }

    /// Closes the books. `healed` is when the fault ended.
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
