//! Whether the due messages of each level move: the counts of the last minutes.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use delayline_broker::{APART, Look, RECENT, Stall, begin, is_open};

/// The distance between remembered counts: brokers count every 5 s.
const SPACING: Duration = Duration::from_secs(APART as u64);

/// How long they are remembered.
const MEMORY: Duration = Duration::from_secs(RECENT as u64);

/// The recent counts of all queues of levels, by their names.
#[derive(Debug, Default)]
pub(super) struct HandingOn {
    queues: BTreeMap<String, VecDeque<(Duration, Look)>>,
}

impl HandingOn {
    /// Whether nothing is remembered about a queue.
    pub(super) fn is_new(&self, queue: &str) -> bool {
        !self.queues.contains_key(queue)
    }

    /// Takes in the broker's counts from before a moment, the oldest first.
    pub(super) fn begin_with(&mut self, queue: &str, now: Duration, looks: &[Look]) {
        let looks = looks.iter().rev().enumerate();
        let seen = looks.filter_map(|(ago, look)| {
            let ago = SPACING.checked_mul(u32::try_from(ago).ok()? + 1)?;
            // Times before this process began count as its beginning.
            Some((now.saturating_sub(ago), *look))
        });
        let mut seen: Vec<_> = seen.collect();
        seen.reverse();
        self.queues.insert(queue.to_owned(), seen.into());
    }

    /// Notes the current count of a queue. Of counts closer together than the broker's own,
    /// only the last stays.
    pub(super) fn note(&mut self, queue: &str, now: Duration, look: Look) {
        let seen = self.queues.entry(queue.to_owned()).or_default();
        let last = seen.len().checked_sub(2).map(|before| (seen[before].0, seen[before + 1].0));
        if last.is_some_and(|(before, last)| last.saturating_sub(before) < SPACING) {
            seen.pop_back();
        }
        while seen.len() > 1 && seen.front().is_some_and(|(at, _)| *at + MEMORY < now) {
            seen.pop_front();
        }
        seen.push_back((now, look));
    }

    /// Forgets everything, because the counts since then are unknown.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }

    /// Whether it is too early to tell if the messages of a queue move.
    pub(super) fn is_open(&self, queue: &str) -> bool {
        let looks: Vec<_> = self.queues.get(queue).into_iter().flatten().map(|(_, look)| *look).collect();
        is_open(&looks)
    }

    /// How many messages of a queue do not move, and since when that has been seen; `None` if
    /// all move.
    pub(super) fn stuck(&self, queue: &str) -> Option<(u64, Duration)> {
        let (times, looks): (Vec<_>, Vec<_>) = self.queues.get(queue)?.iter().copied().unzip();
        match Stall::of(&looks).stuck() {
            0 => None,
            count => Some((count, times[begin(&looks)])),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The report on a level that had these numbers of messages, once a second.
    fn seen(counts: impl IntoIterator<Item = u64>) -> Vec<Option<u64>> {
        let mut levels = HandingOn::default();
        let looks = counts.into_iter().enumerate().map(|(second, due)| {
            let now = Duration::from_secs(100 + second as u64);
            levels.note("3", now, Look { due, messages: due, ..Look::default() });
            levels.stuck("3").map(|(count, _)| count)
        });
        looks.collect()
    }

    #[test]
    fn it_takes_some_looks_to_say_that_nothing_moves() {
        let said = seen([40; 30]);
        assert!(said[..10].iter().all(Option::is_none), "{said:?}");
        assert_eq!(said[29], Some(40), "{said:?}");
        // A number that falls with every count of the broker moves.
        let burst = (0..60).map(|second| 143_997 - second / 5 * 9_000);
        assert!(seen(burst).iter().all(Option::is_none));
    }

    #[test]
    fn what_flows_is_hardly_ever_taken_for_stuck() {
        for mean in [0.3_f64, 0.6, 1.0, 1.5, 2.0, 3.0, 6.0, 20.0] {
            let mut random = fastrand::Rng::with_seed(1);
            // Random arrivals of constant duration have this distribution.
            let mut on_their_way = || {
                let mut left = (-mean).exp();
                let mut count = 0;
                let mut chance = random.f64() - left;
                while chance > 0.0 && left > 0.0 {
                    count += 1;
                    left *= mean / count as f64;
                    chance -= left;
                }
                count
            };
            let mut levels = HandingOn::default();
            let mistaken = |at: &u64| {
                let (due, reductions) = (on_their_way(), Some(at * 300_000));
                levels.note(
                    "0",
                    Duration::from_secs(at * 5),
                    Look { due, messages: 9_000 + due, reductions },
                );
                levels.stuck("0").is_some()
            };
            let mistakes = (1..=10_000).filter(mistaken).count();
            assert!(mistakes < 5, "{mistakes} of 10,000 with {mean} on their way");
        }
    }

    #[test]
    fn since_when_is_when_it_was_seen_first_and_survives_what_is_dropped() {
        let mut levels = HandingOn::default();
        for second in 0..400 {
            levels.note("0", Duration::from_secs(second), Look { due: 5, messages: 5, ..Look::default() });
        }
        assert!(levels.queues["0"].len() < 45, "{:?}", levels.queues["0"]);
        let (count, _) = levels.stuck("0").unwrap();
        assert_eq!(count, 5);
        levels.note("0", Duration::from_secs(401), Look { due: 0, messages: 0, ..Look::default() });
        assert_eq!(levels.stuck("0"), None);
    }

    #[test]
    fn what_is_gone_is_not_stuck_before_the_broker_shows_the_rest_of_its_count() {
        let mut levels = HandingOn::default();
        let mut note = |at: u64, due, reductions| {
            let look = Look { due, messages: due, reductions: Some(reductions) };
            levels.note("0", Duration::from_secs(at * 5), look);
            levels.stuck("0").map(|(count, _)| count)
        };
        let said: Vec<_> = (1..=6).map(|at| note(at, 9, at * 500)).collect();
        assert_eq!(said[5], Some(9), "{said:?}");
        assert_eq!(note(7, 0, 3_000), None);
        assert_eq!(note(8, 0, 3_500), None);
        // Nor if that is shown with an older count.
        let said: Vec<_> = (9..=14).map(|at| note(at, 9, at * 500)).collect();
        assert_eq!(said[5], Some(9), "{said:?}");
        assert_eq!(note(15, 0, 5_000), None);
    }

    #[test]
    fn what_the_broker_remembers_speaks_at_the_first_look() {
        let mut levels = HandingOn::default();
        assert!(levels.is_new("9"));
        levels.begin_with("9", Duration::from_secs(2), &[Look { due: 7, messages: 8, ..Look::default() }; 6]);
        levels.note("9", Duration::from_secs(2), Look { due: 7, messages: 8, ..Look::default() });
        assert_eq!(levels.stuck("9").map(|(count, _)| count), Some(7));
        levels.forget();
        assert!(levels.is_new("9"));
    }
}
