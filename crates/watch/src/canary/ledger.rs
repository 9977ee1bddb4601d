//! The sent messages, the messages that came back, and the conclusions.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use super::{GRACE, MISSING_AFTER, Probe, flights::Flights};

/// How many arrivals are remembered, in order to notice duplicates.
const REMEMBERED: usize = 2_048;

/// How long after it was due a message is no longer expected, if its place was given to another: it is
/// lost, and the other shows the present state. The runbook names this bound.
const FORGET_AFTER: Duration = Duration::from_secs(600);

/// How long after it was due a message that was never confirmed is written off.
const UNCONFIRMED_FOR: Duration = Duration::from_secs(120);

/// How long before the end of a connection acknowledgements may have been lost with it: as
/// long as it may take to notice that the other end is gone, and a margin.
const DOUBTFUL: Duration = Duration::from_secs(30);

/// Every message of one canary. Times count from when it started.
#[derive(Debug, Default)]
pub struct Ledger {
    expected: BTreeMap<u64, Expected>,
    flights: Flights,
    arrived: VecDeque<(u64, Probe, Duration)>,
    /// Since when messages can arrive; `None` while there is no connection.
    listening: Option<Duration>,
    probes: BTreeMap<Probe, ProbeCounts>,
}

#[derive(Debug, Clone, Copy)]
struct Expected {
    probe: Probe,
    due: Duration,
    /// Whether the broker has confirmed it. Until then it is not missed.
    confirmed: bool,
    missing: bool,
}

#[derive(Debug, Clone, Copy, Default)]
struct ProbeCounts {
    sent: u64,
    arrived: u64,
    twice: u64,
    missing: u64,
}

/// The kind of an arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Arrival {
    /// An expected message, with its lateness.
    Late(Probe, Duration),
    /// A message that has arrived before.
    Twice(Probe),
    /// An unknown one.
    Unknown,
}

/// The figures at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Figures {
    /// On their way, the overdue and missing ones included.
    pub expected: usize,
    /// The figures of each probe.
    pub probes: BTreeMap<Probe, ProbeFigures>,
    /// For how long the oldest has been overdue.
    pub oldest_overdue: Option<Duration>,
}

/// The figures of one probe.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProbeFigures {
    /// Sent and confirmed.
    pub sent: u64,
    /// Arrived, duplicates not counted.
    pub arrived: u64,
    /// Arrived again.
    pub twice: u64,
    /// Due for more than [`GRACE`](super::GRACE) and not here, at the moment.
    pub overdue: u64,
    /// Due for more than [`MISSING_AFTER`](super::MISSING_AFTER) and not here, at the
    /// moment.
    pub missing: u64,
    /// All that ever were missing, even if they came later.
    pub ever_missing: u64,
}

impl Ledger {
    /// Whether another message of this probe may be sent: few are on their way at a time, since
    /// they could stop a level.
    pub fn admits(&mut self, probe: Probe, now: Duration) -> bool {
        self.flights.admits(probe, now)
    }

    /// Whether a message is so long overdue that the canary must ask whether its queue still takes
    /// messages.
    #[must_use]
    pub fn is_stale(&self, now: Duration) -> bool {
        self.flights.is_stale(now)
    }

    /// Notes that messages can arrive from now on: time before that is no message's fault.
    pub fn connected(&mut self, now: Duration) {
        self.listening = Some(now);
    }

    /// Notes that the canary's queue takes messages, so that lost messages may be replaced.
    pub fn queue_answered(&mut self, now: Duration) {
        self.flights.queue_answered(now);
    }

    /// Notes that no message and no confirm can arrive. Unconfirmed messages may have been lost with
    /// the connection, and messages acknowledged just before may be delivered again. Neither is the
    /// broker's fault.
    pub fn disconnected(&mut self, now: Duration) {
        self.listening = None;
        let unconfirmed = self.expected.iter().filter(|(_, expected)| !expected.confirmed);
        unconfirmed.for_each(|(id, _)| self.flights.doubtful(*id));
        self.expected.retain(|_, expected| expected.confirmed);
        self.arrived.retain(|(.., at)| now.saturating_sub(*at) > DOUBTFUL);
    }

    /// Notes that the canary did not read since then despite a connection, for example because the
    /// process was stopped. The arrival times of messages that were due meanwhile are unknown;
    /// messages that were overdue before still are.
    pub fn slept(&mut self, looked: Duration, now: Duration) {
        self.expected.retain(|_, expected| expected.due > now || expected.due + GRACE <= looked);
    }

    /// Notes a message that is published now and due then.
    pub fn sent(&mut self, id: u64, probe: Probe, due: Duration) {
        self.expected.insert(id, Expected { probe, due, confirmed: false, missing: false });
        self.flights.sent(id, probe, due);
    }

    /// Notes that the broker has confirmed it, and so has to deliver it.
    pub fn confirmed(&mut self, id: u64) {
        // It may have arrived before, and been counted then.
        if let Some(expected) = self.expected.get_mut(&id)
            && !expected.confirmed
        {
            expected.confirmed = true;
            self.probes.entry(expected.probe).or_default().sent += 1;
        }
    }

    /// Notes that the broker did not accept this message.
    pub fn refused(&mut self, id: u64) {
        self.withdrawn(id);
        self.flights.ended(id);
    }

    /// Notes that this message is no longer expected: the broker may not have accepted it.
    pub fn withdrawn(&mut self, id: u64) {
        self.flights.doubtful(id);
        self.forget(id);
    }

    /// Notes that the broker accepted this message, but for the way of another probe, or several times.
    /// It is not expected, and may still wait in a level.
    pub fn rerouted(&mut self, id: u64, probe: Probe, copies: u32) {
        self.flights.rerouted(id, probe, copies as usize);
        self.forget(id);
    }

    fn forget(&mut self, id: u64) {
        if let Some(expected) = self.expected.remove(&id)
            && expected.confirmed
        {
            let counts = self.probes.entry(expected.probe).or_default();
            counts.sent = counts.sent.saturating_sub(1);
        }
    }

    /// Notes an arrival.
    pub fn arrived(&mut self, id: u64, now: Duration) -> Arrival {
        self.flights.ended(id);
        let Some(expected) = self.expected.remove(&id) else {
            let earlier = self.arrived.iter().find(|(arrived, ..)| *arrived == id);
            return earlier.map_or(Arrival::Unknown, |(_, probe, _)| Arrival::Twice(*probe));
        };
        let counts = self.probes.entry(expected.probe).or_default();
        counts.sent += u64::from(!expected.confirmed);
        counts.arrived += 1;
        self.arrived.push_back((id, expected.probe, now));
        if self.arrived.len() > REMEMBERED {
            self.arrived.pop_front();
        }
        Arrival::Late(expected.probe, now.saturating_sub(expected.due))
    }

    /// Notes that a message of this probe came twice.
    pub fn count_twice(&mut self, probe: Probe) {
        self.probes.entry(probe).or_default().twice += 1;
    }

    /// The figures of this moment.
    pub fn figures(&mut self, now: Duration) -> Figures {
        let flights = &self.flights;
        self.expected.retain(|id, expected| {
            // A router gives up a message silently once its publisher no longer waits.
            let patience = if expected.confirmed { FORGET_AFTER } else { UNCONFIRMED_FOR };
            // While the queue answers nothing, no other message is sent that would show it.
            let stays = expected.confirmed && flights.holds(*id);
            stays || now < expected.due.saturating_add(patience)
        });
        let mut figures = Figures { expected: self.expected.len(), ..Figures::default() };
        for (probe, counts) in &self.probes {
            let of_probe = figures.probes.entry(*probe).or_default();
            (of_probe.sent, of_probe.arrived, of_probe.twice) = (counts.sent, counts.arrived, counts.twice);
        }
        let Some(listening) = self.listening else {
            self.fill_ever_missing(&mut figures);
            return figures;
        };
        for expected in self.expected.values_mut().filter(|expected| expected.confirmed) {
            // A message that was due during a lost connection is late only from its end on.
            let waited = now.saturating_sub(expected.due.max(listening));
            let of_probe = figures.probes.entry(expected.probe).or_default();
            if waited >= GRACE {
                of_probe.overdue += 1;
                figures.oldest_overdue = figures.oldest_overdue.max(Some(now.saturating_sub(expected.due)));
            }
            if waited >= MISSING_AFTER {
                of_probe.missing += 1;
                if !expected.missing {
                    expected.missing = true;
                    self.probes.entry(expected.probe).or_default().missing += 1;
                }
            }
        }
        self.fill_ever_missing(&mut figures);
        figures
    }

    fn fill_ever_missing(&self, figures: &mut Figures) {
        for (probe, counts) in &self.probes {
            figures.probes.entry(*probe).or_default().ever_missing = counts.missing;
        }
    }
}

impl Figures {
    /// The total of a number over all probes.
    #[must_use]
    pub fn total(&self, number: impl Fn(&ProbeFigures) -> u64) -> u64 {
        self.probes.values().map(number).sum()
    }
}

#[cfg(test)]
mod tests;
