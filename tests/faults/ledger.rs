//! Who confirmed what, and what came of it.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

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

/// One for a scenario.
#[derive(Default)]
pub struct Ledger(Mutex<Entries>);

#[derive(Default)]
struct Entries {
    confirmed: HashMap<u64, Promise>,
    failed: u64,
    arrived: HashMap<u64, Arrival>,
    /// How many of the confirmed have not arrived.
    missing: usize,
    last: Option<i64>,
    help: Option<Help>,
}

/// What was promised of a message.
struct Promise {
    due: i64,
    /// By how much the broker may be early: it counts whole milliseconds at each level
    /// and cuts off the rest.
    cut: i64,
}

#[derive(Default)]
struct Arrival {
    times: Vec<i64>,
    /// How many of these the broker handed out again after the consumer's own
    /// connection was lost, unacknowledged.
    again: u32,
    unroutable: bool,
}

/// What became of the messages of a scenario.
#[derive(Debug, Clone, Serialize)]
pub struct Verdict {
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
    /// Arrivals more than a millisecond for each level before the message was due.
    pub early: usize,
    /// By how many milliseconds the first was before it was due.
    pub most_early_ms: i64,
    /// By how many milliseconds the latest was late.
    pub worst_late_ms: i64,
    /// From the end of the fault until the last message that was more than a second
    /// late had arrived, in milliseconds; 0 if there was none after it.
    pub recovery_ms: i64,
}

impl Ledger {
    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn confirm(&self, id: u64, due: i64, levels: u32) {
        let mut entries = self.entries();
        entries.confirmed.insert(id, Promise { due, cut: levels.into() });
        entries.missing += usize::from(!entries.arrived.contains_key(&id));
    }

    pub fn fail(&self) {
        self.entries().failed += 1;
    }

    pub fn arrive(&self, id: u64, again: bool, unroutable: bool) {
        let now = clock_ms();
        let mut entries = self.entries();
        entries.last = Some(now);
        if !entries.arrived.contains_key(&id) && entries.confirmed.contains_key(&id) {
            entries.missing -= 1;
        }
        let arrival = entries.arrived.entry(id).or_default();
        // A second hand-out of the same delivery is the consumer's doing.
        if again && !arrival.times.is_empty() {
            arrival.again += 1;
        } else {
            arrival.times.push(now);
        }
        arrival.unroutable |= unroutable;
    }

    /// Notes that somebody helped, and that arrivals are expected from now on.
    pub fn note_help(&self, help: Help) {
        let mut entries = self.entries();
        entries.help = Some(help);
        entries.last = Some(clock_ms());
    }

    /// How many are confirmed, and how many of them have not arrived.
    pub fn progress(&self) -> (usize, usize) {
        let entries = self.entries();
        (entries.confirmed.len(), entries.missing)
    }

    /// By how much each arrival was late, in milliseconds, sorted.
    pub fn lateness_ms(&self) -> Vec<i64> {
        let entries = self.entries();
        let late =
            |(id, promise): (&u64, &Promise)| Some(entries.arrived.get(id)?.times.first()? - promise.due);
        let mut lateness: Vec<_> = entries.confirmed.iter().filter_map(late).collect();
        lateness.sort_unstable();
        lateness
    }

    /// How long after it was due, or after `back` if that was later, each message came
    /// for the first time, in milliseconds.
    pub fn delays_since(&self, back: i64) -> Vec<i64> {
        let entries = self.entries();
        let delay = |(id, promise): (&u64, &Promise)| {
            Some(entries.arrived.get(id)?.times.first()? - promise.due.max(back))
        };
        entries.confirmed.iter().filter_map(delay).collect()
    }

    /// Milliseconds since anything arrived.
    pub fn silence_ms(&self) -> Option<i64> {
        self.entries().last.map(|last| clock_ms() - last)
    }

    /// Closes the books. `healed` is when the fault ended.
    pub fn verdict(&self, healed: i64) -> Verdict {
        let entries = self.entries();
        let mut verdict = Verdict {
            confirmed: entries.confirmed.len(),
            failed: entries.failed,
            delivered: 0,
            unroutable: 0,
            help: entries.help,
            lost: 0,
            duplicated: 0,
            redelivered: entries.arrived.values().map(|arrival| arrival.again).sum(),
            early: 0,
            most_early_ms: 0,
            worst_late_ms: 0,
            recovery_ms: 0,
        };
        for (id, Promise { due, cut }) in &entries.confirmed {
            match entries.arrived.get(id) {
                None => verdict.lost += 1,
                Some(arrival) => {
                    verdict.unroutable += usize::from(arrival.unroutable);
                    verdict.delivered += usize::from(!arrival.unroutable);
                    for time in &arrival.times {
                        let late = time - due;
                        verdict.early += usize::from(late + cut < 0);
                        verdict.most_early_ms = verdict.most_early_ms.max(-late);
                        verdict.worst_late_ms = verdict.worst_late_ms.max(late);
                        if late > LATE_MS {
                            verdict.recovery_ms = verdict.recovery_ms.max(time - healed);
                        }
                    }
                }
            }
        }
        verdict.duplicated = entries.arrived.values().map(|arrival| arrival.times.len() - 1).sum();
        verdict
    }
}
