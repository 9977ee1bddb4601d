//! How many messages of a canary are on their way at most: pure.
//!
//! A level hands on 32 messages at a time. A message whose queue does not answer keeps its place, and
//! 32 such messages stop the level for every application. So a canary limits its messages on their
//! way that leave the same level last: [`LANE`] with a single level, and the same number with several
//! levels. With all slots taken, canaries can fill 24 of the 32 places.

use std::{collections::BTreeMap, time::Duration};

use super::{GRACE, Probe};

/// How many messages of a lane are on their way at a time.
pub(super) const LANE: usize = 2;

/// How long after it was due a message counts as lost, if the canary's queue takes messages: a level
/// tries again every 180 s.
pub(super) const LOST_AFTER: Duration = Duration::from_secs(200);

/// The messages on their way, or overdue.
#[derive(Debug, Default)]
pub(super) struct Flights(BTreeMap<u64, Flight>);

#[derive(Debug)]
struct Flight {
    probe: Probe,
    due: Duration,
    /// How often it was published.
    copies: usize,
    /// Whether the broker may have it, or not.
    doubtful: bool,
}

/// Messages that leave the same level last, as far as they pass as many.
type Lane = (u32, bool);

fn lane(probe: Probe) -> Lane {
    let units = probe.delay().seconds();
    (units.trailing_zeros(), units.is_power_of_two())
}

impl Flights {
    /// Whether another message of this probe may be sent: there is a place in its lane, and no lane has
    /// more than its share because of messages that took another way.
    pub(super) fn admits(&mut self, probe: Probe, now: Duration) -> bool {
        self.0.retain(|_, flight| !flight.doubtful || now < flight.due + GRACE);
        let mut lanes = BTreeMap::from([(lane(probe), 1)]);
        self.0.values().for_each(|flight| *lanes.entry(lane(flight.probe)).or_default() += flight.copies);
        lanes.into_values().all(|copies| copies <= LANE)
    }

    /// Notes a message that is sent now.
    pub(super) fn sent(&mut self, id: u64, probe: Probe, due: Duration) {
        self.0.insert(id, Flight { probe, due, copies: 1, doubtful: false });
    }

    /// Notes a message that has arrived, or that was not published.
    pub(super) fn ended(&mut self, id: u64) {
        self.0.remove(&id);
    }

    /// Notes that a message takes the way of another probe, or takes its way several times.
    pub(super) fn rerouted(&mut self, id: u64, probe: Probe, copies: usize) {
        if let Some(flight) = self.0.get_mut(&id) {
            (flight.probe, flight.copies) = (probe, copies);
        }
    }

    /// Notes a message whose confirm did not come.
    pub(super) fn doubtful(&mut self, id: u64) {
        if let Some(flight) = self.0.get_mut(&id) {
            flight.doubtful = true;
        }
    }

    /// Whether a message still takes a place.
    pub(super) fn holds(&self, id: u64) -> bool {
        self.0.contains_key(&id)
    }

    /// Whether a message has been overdue for [`LOST_AFTER`], so that the canary must ask its queue.
    pub(super) fn is_stale(&self, now: Duration) -> bool {
        self.0.values().any(|flight| now >= flight.due + LOST_AFTER)
    }

    /// Notes that the queue takes messages: those that are overdue for [`LOST_AFTER`] occupy no place
    /// because of it.
    pub(super) fn queue_answered(&mut self, now: Duration) {
        self.0.retain(|_, flight| now < flight.due + LOST_AFTER);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::canary::{ProbePlan, SLOTS};
    use delayline_core::codec::Delay;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn probe(seconds: u64) -> Probe {
        Probe::new(Delay::from_seconds(seconds).unwrap())
    }

    #[test]
    fn all_canaries_together_leave_places_of_each_level_free() {
        const PLACES: usize = 32;
        for horizon in 0..=9 {
            let mut flights = Flights::default();
            // A day of messages that never arrive.
            let plan = ProbePlan::up_to(horizon);
            for (id, probe) in (0..40_000).zip(plan.probes().iter().cycle()) {
                let now = s(id * 2);
                if flights.admits(*probe, now) {
                    flights.sent(id, *probe, now + s(probe.delay().seconds().into()));
                }
            }
            for level in 0..=u32::from(horizon) {
                let last = |flight: &&Flight| lane(flight.probe).0 == level;
                let of_one = flights.0.values().filter(last).count();
                assert!(
                    of_one > 0 && of_one * usize::from(SLOTS) <= PLACES * 3 / 4,
                    "{horizon} {level}: {of_one}"
                );
            }
        }
    }

    #[test]
    fn an_arrival_makes_room_and_so_does_what_was_never_sent() {
        let mut flights = Flights::default();
        (0..2).for_each(|id| flights.sent(id, probe(1), s(1)));
        assert!(!flights.admits(probe(1), s(2)));
        // Another level, and a way through several.
        assert!(flights.admits(probe(2), s(2)) && flights.admits(probe(5), s(2)));
        flights.ended(0);
        assert!(flights.admits(probe(1), s(2)));
        // Three and five leave the same level last.
        flights.sent(2, probe(3), s(9));
        flights.sent(3, probe(5), s(9));
        assert!(!flights.admits(probe(127), s(9)));
    }

    #[test]
    fn messages_on_another_way_keep_their_places_there() {
        let mut flights = Flights::default();
        for id in 0..2 {
            flights.sent(id, probe(4), s(4));
        }
        flights.rerouted(0, probe(3), 1);
        assert!(flights.admits(probe(4), s(2)) && flights.admits(probe(5), s(2)));
        flights.rerouted(1, probe(3), 2);
        // The lane is overfull: another message could take this way as well.
        assert!(!flights.admits(probe(4), s(20)));
        flights.ended(1);
        assert!(flights.admits(probe(4), s(20)));
    }

    #[test]
    fn what_is_in_doubt_counts_until_it_is_due() {
        let mut flights = Flights::default();
        (0..2).for_each(|id| flights.sent(id, probe(64), s(64)));
        flights.doubtful(0);
        assert!(!flights.admits(probe(64), s(68)) && flights.admits(probe(64), s(69)));
    }

    #[test]
    fn a_lost_message_counts_until_the_queue_answers() {
        let mut flights = Flights::default();
        (0..2).for_each(|id| flights.sent(id, probe(1), s(1)));
        assert!(!flights.is_stale(s(200)) && flights.is_stale(s(201)));
        assert!(!flights.admits(probe(1), s(9_000)));
        flights.queue_answered(s(200));
        assert!(!flights.admits(probe(1), s(9_000)));
        flights.queue_answered(s(201));
        assert!(flights.admits(probe(1), s(9_000)) && !flights.is_stale(s(9_000)));
    }
}
