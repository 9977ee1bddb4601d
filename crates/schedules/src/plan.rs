//! Which occurrences of a schedule to publish now. Pure.

use jiff::{SignedDuration, Timestamp};

use delayline_core::{codec::Delay, topology::Unit};

use crate::{
    book::{Entry, State},
    definition::{Missed, Times, ms},
};

/// The most messages of a schedule that wait at any time.
pub(crate) const MOST_AHEAD: usize = 500;

/// How many occurrences are published ahead at least, however far they are.
const LEAST_AHEAD: usize = 2;

/// An occurrence that is later than this many seconds when it is published was missed.
const MISSED_AFTER: i64 = 60;

/// How far ahead occurrences are published that cannot be recalled, in seconds.
const WITHOUT_RECALL: i64 = 15 * 60;

/// The most occurrences that are counted at a time: more were missed than anyone would send.
const MOST_COUNTED: u64 = 10_000;

/// What to do for a schedule.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// The occurrences to publish, in their order.
    pub(crate) publish: Vec<Timestamp>,
    /// How many were missed and are not published.
    pub(crate) missed: u64,
    /// How far it is published then, if that changes.
    pub(crate) through: Option<Timestamp>,
    /// When to plan again; `None` if there is nothing left to do.
    pub(crate) again: Option<Timestamp>,
}

/// The conditions of a plan.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    pub(crate) now: Timestamp,
    pub(crate) unit: Unit,
    /// Whether messages of the application can be recalled.
    pub(crate) recall: bool,
}

/// How far ahead occurrences are published, in ms.
pub(crate) fn ahead_ms(entry: &Entry, unit: Unit, recall: bool) -> i64 {
    let ahead = ms(entry.definition.spec.ahead, unit);
    if recall { ahead } else { ahead.min(WITHOUT_RECALL * i64::from(unit.millis())) }
}

pub(crate) fn plan(entry: &Entry, times: &Times, Rules { now, unit, recall }: Rules) -> Plan {
    let definition = &entry.definition;
    let mut plan = Plan::default();
    if definition.state != State::Active {
        return plan;
    }
    let earlier = |from: Timestamp, ms: i64| {
        from.checked_sub(SignedDuration::from_millis(ms)).unwrap_or(Timestamp::MIN)
    };
    let missed_before = earlier(now, MISSED_AFTER * i64::from(unit.millis()));
    let oldest = earlier(missed_before, ms(definition.spec.missed_within, unit));
    let mut at = entry.published_through();
    let mut next = times.next(at);
    while let Some(missed) = next.filter(|next| *next <= missed_before) {
        (at, plan.through, plan.missed) = (missed, Some(missed), plan.missed + 1);
        if missed > oldest {
            match definition.spec.missed {
                Missed::Skip => {}
                Missed::Once => plan.publish = vec![missed],
                Missed::All => plan.publish.push(missed),
            }
        } else if plan.missed > MOST_COUNTED {
            at = oldest;
        }
        if plan.publish.len() == MOST_AHEAD {
            plan.missed -= plan.publish.len() as u64;
            plan.again = Some(now);
            return plan;
        }
        next = times.next(at);
    }
    plan.missed -= plan.publish.len() as u64;

    let waiting = entry.ahead(now);
    let ahead = ahead_ms(entry, unit, recall);
    let later = |ms: i64| now.checked_add(SignedDuration::from_millis(ms)).unwrap_or(Timestamp::MAX);
    let least = if recall { LEAST_AHEAD } else { 0 };
    let (begin, end) = (later(ahead - ahead / 8), later(ahead));
    let many = MOST_AHEAD - MOST_AHEAD / 8;
    let wanted = next
        .is_some_and(|next| next <= now || waiting.len() < least || next <= begin && waiting.len() < many);
    let mut number = waiting.len();
    // A delay counts from the beginning of the present unit.
    let longest = later(ms(Delay::MAX, unit) - ms(definition.spec.jitter, unit) - i64::from(unit.millis()));
    while let Some(publish) = next
        .filter(|next| wanted && *next <= longest && number < MOST_AHEAD && (*next <= end || number < least))
    {
        plan.publish.push(publish);
        plan.through = Some(publish);
        number += 1;
        next = times.next(publish);
    }
    plan.again = match next {
        _ if !plan.publish.is_empty() || plan.through.is_some() => Some(now),
        None => None,
        Some(next) => {
            // When it comes near enough, and so many messages were due that there is room for it.
            let near = earlier(next, ahead - ahead / 8);
            let room = waiting.len().checked_sub(many).and_then(|at| waiting.get(at));
            let last = waiting.len().checked_sub(least).and_then(|at| waiting.get(at)).filter(|_| least > 0);
            let near = room.map_or(near, |room| near.max(*room));
            Some(last.map_or(near, |last| near.min(*last)))
        }
    };
    plan
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::{
        book::{Definition, Sent},
        definition::{Spec, Timing},
    };
    use delayline_core::codec::AppKey;

    const HOUR: i64 = 3_600;

    fn second(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// A schedule, added at 0 s, as it goes on.
    struct Running(Entry, bool);

    impl Running {
        fn new(every: i64, missed: Missed, recall: bool) -> Self {
            let every = Delay::from_seconds(every.unsigned_abs()).unwrap();
            let mut spec = Spec::new(AppKey::new("billing").unwrap(), Timing::Every { every });
            spec.missed = missed;
            let (name, after) = ("a".parse().unwrap(), second(0));
            let definition = Definition { name, rev: 1, state: State::Active, after, spec };
            Self(Entry { definition, through: None, sent: BTreeSet::new() }, recall)
        }

        fn plan(&self, at: i64) -> Plan {
            let times = Times::of(&self.0.definition.spec, Unit::SECOND).unwrap();
            plan(&self.0, &times, Rules { now: second(at), unit: Unit::SECOND, recall: self.1 })
        }

        /// Plans, and does it. The published occurrences, in seconds, and how many were missed.
        fn run(&mut self, at: i64) -> (Vec<i64>, u64) {
            let plan = self.plan(at);
            self.0.sent.extend(plan.publish.iter().map(|at| Sent(at.as_millisecond(), 0, Delay::ZERO)));
            self.0.through = plan.through.or(self.0.through);
            (plan.publish.iter().map(|at| at.as_second()).collect(), plan.missed)
        }
    }

    #[test]
    fn occurrences_are_published_a_day_ahead() {
        let mut hourly = Running::new(HOUR, Missed::Once, true);
        assert_eq!(hourly.run(0).0, (1..=24).map(|hour| hour * HOUR).collect::<Vec<_>>());
        let idle = hourly.plan(0);
        assert_eq!((idle.publish.len(), idle.through), (0, None));
        // In portions of an eighth: 3 h.
        assert_eq!(idle.again, Some(second(4 * HOUR)));
        assert!(hourly.run(4 * HOUR - 1).0.is_empty());
        assert_eq!(hourly.run(4 * HOUR).0, [25, 26, 27, 28].map(|hour| hour * HOUR));
        // It is asked again when there is something to do, and never in vain.
        let mut at = 4 * HOUR;
        for _ in 0..100 {
            at = hourly.plan(at).again.unwrap().as_second();
            assert!(!hourly.run(at).0.is_empty());
        }
    }

    #[test]
    fn two_occurrences_are_published_however_far_they_are() {
        let mut weekly = Running::new(7 * 24 * HOUR, Missed::Once, true);
        let week = 7 * 24 * HOUR;
        assert_eq!(weekly.run(0).0, [week, 2 * week]);
        assert_eq!(weekly.plan(0).again, Some(second(week)));
        assert_eq!(weekly.run(week).0, [3 * week]);
        // Without recall, only what is due soon.
        let mut weekly = Running::new(week, Missed::Once, false);
        let soon = Timestamp::from_millisecond((week - WITHOUT_RECALL) * 1_000 + WITHOUT_RECALL * 125).ok();
        assert_eq!((weekly.run(0).0, weekly.plan(0).again), (vec![], soon));
        assert_eq!(weekly.run(week - WITHOUT_RECALL / 2).0, [week]);
    }

    #[test]
    fn nothing_is_published_that_no_delay_is_long_enough_for() {
        let (every, year) = (i64::from(Delay::MAX.seconds()) / 2 - HOUR, Spec::year());
        let mut rare = Running::new(every, Missed::Once, true);
        assert_eq!(rare.run(0).0, [every, 2 * every]);
        let mut rare = Running::new(every, Missed::Once, true);
        rare.0.definition.spec.jitter = year;
        assert_eq!((rare.run(0).0, rare.plan(0).publish), (vec![every], vec![]));
        assert_eq!(rare.run(i64::from(year.seconds())).0, [2 * every]);
    }

    #[test]
    fn no_schedule_fills_the_levels() {
        let mut quick = Running::new(10, Missed::Once, true);
        assert_eq!(quick.run(0).0.len(), MOST_AHEAD);
        let again = quick.plan(0).again.unwrap().as_second();
        assert_eq!(again, 10 * 63);
        assert_eq!(quick.run(again).0.len(), 63);
    }

    #[test]
    fn an_outage_shorter_than_what_is_ahead_misses_nothing() {
        let mut hourly = Running::new(HOUR, Missed::Skip, true);
        let mut all = hourly.run(0).0;
        let (more, missed) = hourly.run(20 * HOUR);
        all.extend(more);
        assert_eq!((all, missed), ((1..=44).map(|hour| hour * HOUR).collect(), 0));
    }

    #[test]
    fn missed_occurrences_are_left_out_or_sent_once_or_all() {
        for (missed, late, left_out) in
            [(Missed::Skip, vec![], 4), (Missed::Once, vec![28], 3), (Missed::All, vec![25, 26, 27, 28], 0)]
        {
            let mut hourly = Running::new(HOUR, missed, true);
            hourly.run(0);
            let (mut published, missed) = hourly.run(28 * HOUR + 100);
            let ahead = published.split_off(late.len());
            assert_eq!((published, missed), (late.iter().map(|hour| hour * HOUR).collect(), left_out));
            assert_eq!((ahead[0], ahead.len()), (29 * HOUR, 24));
            assert_eq!(hourly.run(28 * HOUR + 100), (vec![], 0));
        }
    }

    #[test]
    fn a_minute_late_is_not_missed() {
        let mut hourly = Running::new(HOUR, Missed::Skip, true);
        hourly.run(0);
        assert_eq!(hourly.run(25 * HOUR + MISSED_AFTER - 1).0[0], 25 * HOUR);
        let (published, missed) = hourly.run(50 * HOUR + MISSED_AFTER);
        assert_eq!((published[0], missed), (51 * HOUR, 1));
    }

    #[test]
    fn what_was_missed_long_ago_is_not_sent() {
        let mut hourly = Running::new(HOUR, Missed::All, true);
        hourly.run(0);
        let (published, missed) = hourly.run(100 * HOUR);
        // 100 h is not late yet; of those before, the ones of the last 24 h are sent.
        assert_eq!((published[0], missed), (76 * HOUR, 100 - 24 - 25));
        let mut quick = Running::new(10, Missed::Once, true);
        let (published, missed) = quick.run(365 * 24 * HOUR);
        assert_eq!(published[0], 365 * 24 * HOUR - MISSED_AFTER);
        assert!(missed > MOST_COUNTED, "{missed}");
        let mut quick = Running::new(10, Missed::All, true);
        assert_eq!(quick.run(24 * HOUR).0.len(), MOST_AHEAD);
        assert_eq!(quick.run(24 * HOUR).0[0], 10 * 501);
    }

    #[test]
    fn a_paused_or_ended_schedule_publishes_nothing() {
        let mut ending = Running::new(HOUR, Missed::Once, true);
        ending.0.definition.spec.end = Some(second(5 * HOUR));
        assert_eq!(ending.run(0).0.len(), 5);
        assert_eq!(ending.plan(10 * HOUR), Plan::default());
        let mut paused = Running::new(HOUR, Missed::Once, true);
        paused.0.definition.state = State::Paused;
        assert_eq!(paused.plan(10 * HOUR), Plan::default());
    }
}
