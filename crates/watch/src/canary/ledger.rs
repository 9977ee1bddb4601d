//! What was sent, what came back, and what follows from that.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use super::{GRACE, MISSING_AFTER, Probe, flights::Flights};

/// How many arrivals are remembered, in order to notice duplicates.
const REMEMBERED: usize = 2_048;

/// How long after it was due a message is no longer expected.
const FORGET_AFTER: Duration = Duration::from_secs(3_600);

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
    /// One that was expected, with its lateness.
    Late(Probe, Duration),
    /// One that has arrived before.
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

    /// Whether a message has been overdue for so long that the canary must ask its queue whether it
    /// still takes messages.
    #[must_use]
    pub fn is_stale(&self, now: Duration) -> bool {
        self.flights.is_stale(now)
    }

    /// Notes that messages can arrive from now on: time before that is no message's fault.
    pub fn connected(&mut self, now: Duration) {
        self.listening = Some(now);
    }

    /// Notes that the canary's queue takes messages, so that lost ones may be followed by others.
    pub fn queue_answered(&mut self, now: Duration) {
        self.flights.queue_answered(now);
    }

    /// Notes that no message and no confirm can arrive. What the broker has not confirmed
    /// until now may have been lost with the connection, which is not the broker's fault; nor
    /// is it if it delivers again what was acknowledged just before.
    pub fn disconnected(&mut self, now: Duration) {
        self.listening = None;
        let unconfirmed = self.expected.iter().filter(|(_, expected)| !expected.confirmed);
        unconfirmed.for_each(|(id, _)| self.flights.doubtful(*id));
        self.expected.retain(|_, expected| expected.confirmed);
        self.arrived.retain(|(.., at)| now.saturating_sub(*at) > DOUBTFUL);
    }

    /// Notes that nobody looked since then although there was a connection, for example
    /// because the process was stopped. When messages that were due meanwhile arrived is
    /// unknown; those that were overdue before still are.
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

    /// Notes that this message is no longer expected: the broker may not have accepted it, or
    /// it went another way.
    pub fn withdrawn(&mut self, id: u64) {
        self.flights.doubtful(id);
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
        self.expected.retain(|_, expected| {
            // A router gives up a message silently once its publisher waits no more.
            let patience = if expected.confirmed { FORGET_AFTER } else { UNCONFIRMED_FOR };
            now < expected.due.saturating_add(patience)
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
            // A message that was due while nobody could listen is late only from then on.
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
mod tests {
    use super::*;
    use crate::canary::flights::LANE;
    use delayline_core::codec::Delay;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn probe(seconds: u64) -> Probe {
        Probe::new(Delay::from_seconds(seconds).unwrap())
    }

    fn send(ledger: &mut Ledger, id: u64, due: u64) {
        ledger.sent(id, probe(4), s(due));
        ledger.confirmed(id);
    }

    fn ledger() -> Ledger {
        let mut ledger = Ledger::default();
        ledger.connected(s(0));
        ledger
    }

    fn overdue_and_missing(ledger: &mut Ledger, now: u64) -> (u64, u64) {
        let figures = ledger.figures(s(now));
        (figures.total(|probe| probe.overdue), figures.total(|probe| probe.missing))
    }

    #[test]
    fn says_how_late_and_notices_what_comes_twice() {
        let mut ledger = ledger();
        send(&mut ledger, 1, 4);
        assert_eq!(ledger.arrived(1, s(6)), Arrival::Late(probe(4), s(2)));
        assert_eq!(ledger.arrived(1, s(7)), Arrival::Twice(probe(4)));
        assert_eq!(ledger.arrived(2, s(7)), Arrival::Unknown);
        // Never later than nothing: clocks of a computer differ by less than they tick.
        ledger.sent(3, probe(4), s(20));
        assert_eq!(ledger.arrived(3, s(19)), Arrival::Late(probe(4), s(0)));
    }

    #[test]
    fn is_overdue_then_missing_then_forgotten() {
        let mut ledger = ledger();
        send(&mut ledger, 1, 10);
        let seen = [14, 15, 69, 70, 3_609, 3_610].map(|now| overdue_and_missing(&mut ledger, now));
        assert_eq!(seen, [(0, 0), (1, 0), (1, 0), (1, 1), (1, 1), (0, 0)]);
        assert_eq!(ledger.figures(s(4_000)).total(|probe| probe.ever_missing), 1);
    }

    #[test]
    fn what_was_missing_may_still_arrive() {
        let mut ledger = ledger();
        send(&mut ledger, 1, 10);
        assert_eq!(overdue_and_missing(&mut ledger, 100), (1, 1));
        assert_eq!(ledger.arrived(1, s(101)), Arrival::Late(probe(4), s(91)));
        assert_eq!(overdue_and_missing(&mut ledger, 101), (0, 0));
        assert_eq!(ledger.figures(s(101)).total(|probe| probe.ever_missing), 1);
    }

    #[test]
    fn the_time_without_a_connection_is_no_messages_fault() {
        let mut ledger = ledger();
        send(&mut ledger, 1, 10);
        ledger.disconnected(s(5));
        assert_eq!(overdue_and_missing(&mut ledger, 1_000), (0, 0));
        ledger.connected(s(1_000));
        let seen = [1_004, 1_005, 1_060].map(|now| overdue_and_missing(&mut ledger, now));
        assert_eq!(seen, [(0, 0), (1, 0), (1, 1)]);
    }

    #[test]
    fn what_was_withdrawn_is_not_expected() {
        let mut ledger = ledger();
        ledger.sent(1, probe(4), s(10));
        ledger.withdrawn(1);
        send(&mut ledger, 2, 10);
        ledger.withdrawn(2);
        let figures = ledger.figures(s(1_000));
        assert_eq!((figures.expected, figures.total(|probe| probe.sent)), (0, 0));
    }

    #[test]
    fn what_was_never_confirmed_is_never_missing() {
        let mut ledger = ledger();
        ledger.sent(1, probe(4), s(10));
        assert_eq!(overdue_and_missing(&mut ledger, 129), (0, 0));
        assert_eq!(ledger.figures(s(129)).expected, 1);
        assert_eq!(ledger.figures(s(130)).expected, 0);
        // With the connection, hope is gone as well.
        ledger.sent(2, probe(4), s(200));
        send(&mut ledger, 3, 200);
        ledger.disconnected(s(190));
        assert_eq!(ledger.figures(s(200)).expected, 1);
        ledger.connected(s(200));
        assert_eq!(ledger.arrived(2, s(200)), Arrival::Unknown);
        assert_eq!(ledger.arrived(3, s(200)), Arrival::Late(probe(4), s(0)));
    }

    #[test]
    fn what_is_handed_out_again_after_a_lost_connection_does_not_come_twice() {
        let mut ledger = ledger();
        for (id, at) in [(1, 50), (2, 99)] {
            send(&mut ledger, id, at);
            ledger.arrived(id, s(at));
        }
        ledger.disconnected(s(100));
        ledger.connected(s(110));
        assert_eq!(
            (ledger.arrived(1, s(110)), ledger.arrived(2, s(110))),
            (Arrival::Twice(probe(4)), Arrival::Unknown)
        );
    }

    #[test]
    fn the_time_nobody_looked_is_no_messages_fault() {
        let mut ledger = ledger();
        send(&mut ledger, 1, 10);
        send(&mut ledger, 2, 101);
        ledger.slept(s(9), s(100));
        assert_eq!(ledger.arrived(1, s(100)), Arrival::Unknown);
        assert_eq!(ledger.arrived(2, s(102)), Arrival::Late(probe(4), s(1)));
    }

    #[test]
    fn a_pause_wipes_out_nothing_that_was_missing_before() {
        let mut ledger = ledger();
        for (id, due) in [(1, 10), (2, 95), (3, 96)] {
            send(&mut ledger, id, due);
        }
        assert_eq!(overdue_and_missing(&mut ledger, 100), (2, 1));
        ledger.slept(s(100), s(104));
        assert_eq!(overdue_and_missing(&mut ledger, 110), (2, 1));
    }

    #[test]
    fn an_arrival_may_be_quicker_than_its_confirm() {
        let mut ledger = ledger();
        ledger.sent(1, probe(4), s(4));
        assert_eq!(ledger.arrived(1, s(4)), Arrival::Late(probe(4), s(0)));
        ledger.confirmed(1);
        let figures = ledger.figures(s(1_000));
        assert_eq!((figures.total(|probe| probe.sent), figures.total(|probe| probe.arrived)), (1, 1));
        assert_eq!(figures.total(|probe| probe.missing), 0);
    }

    #[test]
    fn stops_adding_to_what_is_stuck() {
        let mut ledger = ledger();
        let probe = probe(4);
        let mut sent = 0;
        while ledger.admits(probe, s(1)) {
            send(&mut ledger, sent, 5);
            sent += 1;
        }
        assert_eq!(sent, LANE as u64);
        // One that was refused takes no place; one in doubt does until it is due.
        ledger.refused(0);
        assert!(ledger.admits(probe, s(1)));
        send(&mut ledger, 2, 5);
        ledger.withdrawn(2);
        assert!(!ledger.admits(probe, s(5)) && ledger.admits(probe, s(10)));
        ledger.arrived(1, s(10));
        ledger.figures(s(10));
        assert!(ledger.admits(probe, s(10)));
    }
}
