//! Whether the dead letters of a queue move: pure, apart from asking the broker.
//!
//! A due message has left its queue and waits until the next queue confirms it. When many fall due
//! together, many wait although all of them move, so their number alone is no evidence. Dead letters are
//! stuck if a queue has them in every count while no message leaves it.
//!
//! A busy queue may not count for a while, and the broker goes on showing its last count. Such a count was
//! taken once and is no further evidence.
//!
//! While messages flow, some are always just being passed on, often the same few each time the broker
//! counts. With a hundred messages a second that take 10 ms each, it is one on average. A resting queue
//! should never have any on their way, so a working queue is observed for longer.

use crate::management::{ManagementApi, ManagementError, QueueInfo};

/// How many dead letters a queue passes on at a time by default. When that many are stuck, no
/// others move.
pub const PREFETCH: u64 = 32;

/// The interval of the samples, in seconds: brokers count every 5 s.
pub const APART: u32 = 5;

/// The period over which dead letters are looked back at, in seconds.
pub const RECENT: u32 = 180;

/// How many samples in a row show that dead letters do not move, in a resting queue.
pub(crate) const ENOUGH: usize = 4;

/// How many samples show it when the number grows, as it also does while many messages fall due.
const LONG: usize = 10;

/// How many samples show it in a working queue. With 1.5 messages on their way on average, mistakes are
/// most likely: one in some 30,000 samples. With the number of samples for a resting queue, it would be one
/// in seven.
const AMID_OTHERS: usize = 24;

/// The most reductions from one count to the next of a resting queue. Counting takes some 500, and a
/// message 700 to 1,200 (3.10.8, 4.0.5 and 4.3.6).
const REST: u64 = 10_000;

/// The counts of a queue at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Look {
    /// Messages that have left the queue and are not confirmed.
    pub due: u64,
    /// These and all other messages.
    pub messages: u64,
    /// The work of the queue's process until the count, in reductions of Erlang. Counting is work, so looks
    /// with the same number show the same count. `None` if the broker does not report it.
    pub reductions: Option<u64>,
}

impl Look {
    /// `None` if the broker did not count the queue.
    pub(crate) fn now(listed: &QueueInfo) -> Option<Self> {
        let (due, reductions) = (listed.messages_dlx?, listed.reductions);
        Some(Self { due, messages: listed.messages.unwrap_or(0).max(due), reductions })
    }
}

/// Whether the dead letters of a queue move, according to its samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stall {
    /// The dead letters come and go, or have not existed for long.
    Passing,
    /// This many do not move.
    Stuck(u64),
    /// There were more in every count, for long, and none was seen to leave. Either none moves, or they
    /// leave more slowly than they arrive.
    Rising(u64),
    /// They move, but there are always more than can be passed on at a time.
    Backlog(u64),
}

impl Stall {
    /// The result of the samples of a queue, `APART` seconds apart and the oldest first, for the dead
    /// letters at the end.
    ///
    /// Stuck ones keep the count from falling below their number, and it returns to that number again and
    /// again; moving ones make it rise and fall. If a broker does not report the work of a queue, the queue
    /// counts as resting.
    pub fn of(looks: &[Look]) -> Self {
        let counts = counts(looks);
        let looks = &counts[begin(&counts)..];
        match &looks[rest(looks)..] {
            resting if resting.len() >= ENOUGH => Self::of_resting(resting),
            _ => Self::of_working(looks),
        }
    }

    fn of_resting(looks: &[Look]) -> Self {
        let (least, last) = (least(looks), looks[looks.len() - 1]);
        let nothing_left = nothing_left(looks);
        // Behind stuck messages, others gather as slowly as they fall due. The number of moving ones varies
        // more.
        let tail = &looks[looks.len() - ENOUGH..];
        let gathers = tail[0].due >= PREFETCH
            && self::nothing_left(tail)
            && tail.windows(2).all(|pair| pair[1].due - pair[0].due <= PREFETCH);
        let often = times(looks, least) * 2 >= looks.len();
        // A count that has only just reached this value may still be falling.
        let first = looks.iter().position(|look| look.due == least);
        let for_long = first.is_some_and(|first| first + ENOUGH <= looks.len());
        match least {
            PREFETCH.. if often && for_long && nothing_left => Self::Stuck(last.due),
            _ if gathers => Self::Stuck(last.due),
            _ if often && for_long => Self::Stuck(least),
            _ if nothing_left && looks.len() >= LONG => Self::Rising(last.due),
            PREFETCH.. => Self::Backlog(least),
            _ => Self::Passing,
        }
    }

    fn of_working(looks: &[Look]) -> Self {
        if looks.len() < ENOUGH {
            return Self::Passing;
        }
        let least = least(looks);
        if looks.len() >= LONG && nothing_left(looks) {
            return Self::Rising(looks[looks.len() - 1].due);
        }
        if looks.len() >= AMID_OTHERS && times(looks, least) * 3 >= looks.len() * 2 {
            return Self::Stuck(least);
        }
        if least >= PREFETCH { Self::Backlog(least) } else { Self::Passing }
    }

    /// How many do not move.
    pub fn stuck(self) -> u64 {
        match self {
            Self::Stuck(count) | Self::Rising(count) => count,
            Self::Passing | Self::Backlog(_) => 0,
        }
    }
}

/// Every count once. A list of queues can show an old count after a newer one of the history, if it was
/// requested before, or if the broker cached it: five times as long as making it took. Brokers can also
/// show the number of due messages some seconds before the reductions of the same count. A lower number is
/// accepted at once, a higher one with the next count.
fn counts(looks: &[Look]) -> Vec<Look> {
    let mut counts: Vec<Look> = Vec::with_capacity(looks.len());
    for look in looks {
        let is_same = |count: &Look| look.reductions.is_some() && look.reductions == count.reductions;
        if !counts.iter().any(is_same) {
            counts.push(*look);
        } else if let Some(last) = counts.last_mut() {
            last.due = last.due.min(look.due);
        }
    }
    counts
}

/// The sample from which on the queue rested.
fn rest(looks: &[Look]) -> usize {
    let works = |pair: &[Look]| {
        let of = |look: &Look| look.reductions.unwrap_or(0);
        of(&pair[1]).abs_diff(of(&pair[0])) > REST
    };
    looks.windows(2).rposition(works).map_or(0, |last| last + 1)
}

fn least(looks: &[Look]) -> u64 {
    looks.iter().map(|look| look.due).min().unwrap_or(0)
}

/// How often a number was counted.
fn times(looks: &[Look], due: u64) -> usize {
    looks.iter().filter(|look| look.due == due).count()
}

fn nothing_left(looks: &[Look]) -> bool {
    looks.windows(2).all(|pair| pair[0].due <= pair[1].due && pair[0].messages <= pair[1].messages)
}

/// Whether a dead letter was seen to leave a queue since it always had some: then its dead-letter worker
/// runs.
pub fn moves(looks: &[Look]) -> bool {
    let counts = counts(looks);
    !nothing_left(&counts[begin(&counts)..])
}

/// Whether enough counts in a row show dead letters and none has left, however many came. Many messages
/// that fall due can look like that for a while.
pub fn stands_still(looks: &[Look]) -> bool {
    let counts = counts(looks);
    let counts = &counts[begin(&counts)..];
    counts.len() >= ENOUGH && nothing_left(counts)
}

/// Whether it is too early to tell if the dead letters move: there are some, none was seen to leave, and
/// the samples are too few to call them stuck.
#[must_use]
pub fn is_open(looks: &[Look]) -> bool {
    let counts = counts(looks);
    let counts = &counts[begin(&counts)..];
    !counts.is_empty() && nothing_left(counts) && Stall::of(looks).stuck() == 0
}

/// The sample from which on there were always dead letters.
pub fn begin(looks: &[Look]) -> usize {
    looks.iter().rposition(|look| look.due == 0).map_or(0, |nothing| nothing + 1)
}

/// The broker's records of a queue over the last minutes, the oldest first, and its current count. That
/// count comes from the list of all queues, which can be up to 5 s newer.
pub fn remembered(
    api: &ManagementApi,
    vhost: &str,
    listed: &QueueInfo,
) -> Result<Vec<Look>, ManagementError> {
    let mut looks = looks(&api.queue_history(vhost, &listed.name, RECENT)?.unwrap_or_default());
    if listed.reductions.is_some() {
        looks.extend(Look::now(listed));
    }
    Ok(looks)
}

/// The history of a queue. Brokers report the work of a queue some seconds after its newest count, and
/// until then it may be an old count. It is left out, unless they never report it.
fn looks(info: &QueueInfo) -> Vec<Look> {
    let counts = info.dead_letter_history().into_iter().zip(info.history());
    let looks = counts.zip(info.reductions_history()).map(|((due, messages), reductions)| Look {
        due,
        messages,
        reductions,
    });
    let (known, unknown): (Vec<_>, Vec<_>) = looks.partition(|look| look.reductions.is_some());
    if known.is_empty() { unknown } else { known }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Samples of a queue without other messages.
    fn alone(counts: &[u64]) -> Vec<Look> {
        counts.iter().map(|&due| Look { due, messages: due, ..Look::default() }).collect()
    }

    #[test]
    fn distinguishes_stuck_from_moving() {
        let rising: Vec<u64> = (0..12).map(|step| 200 + step * 100).collect();
        for (counts, expected) in [
            (&[][..], Stall::Passing),
            (&[0], Stall::Passing),
            (&[7], Stall::Passing),
            (&[7, 7, 7], Stall::Passing),
            (&[7, 7, 7, 0], Stall::Passing),
            (&[0, 7, 7, 7, 7], Stall::Stuck(7)),
            (&[0, 7, 9, 7, 7], Stall::Stuck(7)),
            (&[20, 31, 20, 23, 20, 20], Stall::Stuck(20)),
            // Dead letters that have just come are neither.
            (&[1, 1, 1, 200], Stall::Stuck(1)),
            // Behind 32 that are stuck, all are.
            (&[40, 40, 40, 200], Stall::Stuck(200)),
            (&[5, 3, 9, 4], Stall::Passing),
            (&[7, 40, 42, 45, 47], Stall::Stuck(47)),
            (&[200, 310, 430, 531], Stall::Backlog(200)),
            (&rising, Stall::Rising(1_300)),
            (&[3, 4, 5, 6], Stall::Passing),
            (&[900, 400, 2_000, 60], Stall::Backlog(60)),
            (&[900, 400, 2_000, 0], Stall::Passing),
        ] {
            assert_eq!(Stall::of(&alone(counts)), expected, "{counts:?}");
        }
    }

    #[test]
    fn a_count_that_is_shown_again_was_taken_once() {
        let of = |looks: &[(u64, u64)]| {
            let look = |&(due, reductions)| Look { due, messages: due, reductions: Some(reductions) };
            Stall::of(&looks.iter().map(look).collect::<Vec<_>>())
        };
        assert_eq!(of(&[(0, 1), (90, 2), (90, 2), (90, 2), (90, 2), (90, 2), (90, 2)]), Stall::Passing);
        assert_eq!(of(&[(0, 1), (90, 2), (90, 2), (90, 3), (90, 3), (90, 4), (90, 4)]), Stall::Passing);
        assert_eq!(of(&[(0, 1), (90, 2), (90, 2), (90, 3), (90, 4), (90, 5)]), Stall::Stuck(90));
        // Also after newer counts.
        assert_eq!(of(&[(0, 1), (90, 2), (90, 3), (90, 4), (90, 2)]), Stall::Passing);
        assert_eq!(of(&[(0, 1), (90, 2), (90, 3), (90, 4), (90, 2), (90, 5)]), Stall::Stuck(90));
        assert_eq!(of(&[(90, 2), (90, 3), (90, 4), (90, 5), (90, 6), (0, 2)]), Stall::Passing);
    }

    #[test]
    fn a_flowing_queue_is_not_stuck_although_every_count_is_the_same() {
        let of = |counts: &[u64], work: u64| {
            let looks = counts.iter().zip(1..);
            let looks =
                looks.map(|(&due, at)| Look { due, messages: due + at % 3, reductions: Some(at * work) });
            Stall::of(&looks.collect::<Vec<_>>())
        };
        let (resting, working) = (500, 300_000);
        for counts in [&[1; 4][..], &[1; 23], &[2, 1, 1, 3, 1, 1, 1, 2], &[40, 41, 41, 43]] {
            assert_eq!(of(counts, working).stuck(), 0, "{counts:?}");
        }
        for counts in [&[1; 4][..], &[1; 23], &[2, 2, 5, 2, 2]] {
            assert_eq!(of(counts, resting), Stall::Stuck(counts[0]), "{counts:?}");
        }
        // A message that stays for two minutes while others pass it is stuck.
        assert_eq!(of(&[3; 24], working), Stall::Stuck(3));
        let others: Vec<_> = (0..24).map(|at| if at % 4 == 1 { 9 } else { 3 }).collect();
        assert_eq!(of(&others, working), Stall::Stuck(3));
        let half: Vec<_> = (0..36).map(|at| if at % 2 == 1 { 2 } else { 1 }).collect();
        assert_eq!(of(&half, working), Stall::Passing);
        // Counts while the queue still worked are no evidence about a resting queue.
        let looks = [(1, 0), (2, 300_000), (7, 600_000), (7, 600_500), (7, 601_000), (7, 601_500)];
        let look = |(due, reductions)| Look { due, messages: due, reductions: Some(reductions) };
        assert_eq!(Stall::of(&looks.map(look)), Stall::Stuck(7));
        // None leaves, and more and more come.
        let growing: Vec<_> = (1..=10)
            .map(|at| Look { due: at * 100, messages: at * 500, reductions: Some(at * working) })
            .collect();
        assert_eq!(Stall::of(&growing), Stall::Rising(1_000));
    }

    #[test]
    fn a_count_of_unknown_age_is_left_out() {
        let counts = r#"{"samples": [{"sample": 9, "timestamp": 2}, {"sample": 7, "timestamp": 1}]}"#;
        let held = r#"{"samples": [{"sample": 0, "timestamp": 2}, {"sample": 0, "timestamp": 1}]}"#;
        let queue = |reductions: &str| -> QueueInfo {
            let text = format!(
                r#"{{"messages_details": {counts}, "messages_ready_details": {held},
                    "messages_unacknowledged_details": {held}, "reductions_details": {reductions}}}"#
            );
            serde_json::from_str(&text).unwrap()
        };
        let known = looks(&queue(r#"{"samples": [{"sample": 70, "timestamp": 1}]}"#));
        assert_eq!(known, [Look { due: 7, messages: 7, reductions: Some(70) }]);
        // A broker that never reports it is believed.
        assert_eq!(looks(&queue("null")), alone(&[7, 9]));
        assert!(looks(&QueueInfo::default()).is_empty());
    }

    #[test]
    fn dead_letters_that_leave_past_stuck_ones_are_seen() {
        assert!(moves(&alone(&[0, 7, 9, 7, 7])));
        let of = |messages: [u64; 4]| messages.map(|messages| Look { due: 7, messages, ..Look::default() });
        assert!(moves(&of([20, 30, 25, 30])));
        assert!(!moves(&of([20, 20, 25, 30])));
        // But not in an old count.
        let counted = [(20, 1), (25, 2), (30, 3), (25, 2)];
        let look = |(messages, reductions)| Look { due: 7, messages, reductions: Some(reductions) };
        assert!(!moves(&counted.map(look)));
        // The time before there were any is long ago.
        assert!(!moves(&alone(&[9, 0, 7, 7, 7])));
        assert!(!moves(&[]));
    }

    #[test]
    fn dead_letters_that_have_just_come_are_neither_stuck_nor_moving() {
        for (counts, expected) in [
            (&[][..], false),
            (&[0], false),
            (&[7], true),
            (&[0, 7, 7, 7], true),
            (&[0, 7, 9, 40], true),
            (&[0, 7, 5], false),
            (&[7, 7, 7, 7], false),
            (&[7, 7, 7, 0], false),
        ] {
            assert_eq!(is_open(&alone(counts)), expected, "{counts:?}");
        }
    }

    #[test]
    fn a_growing_number_counts_as_standing_still_after_four_counts() {
        for (counts, expected) in [
            (&[3, 9, 9, 40][..], true),
            (&[0, 3, 9, 9, 40], true),
            (&[0, 3, 9, 40], false),
            (&[3, 9, 8, 40], false),
            (&[3, 9, 40, 0], false),
            (&[], false),
        ] {
            assert_eq!(stands_still(&alone(counts)), expected, "{counts:?}");
        }
    }

    #[test]
    fn a_large_burst_that_moves_is_not_stuck() {
        let burst = [143_997, 120_000, 96_000, 72_000, 48_000, 24_000, 900];
        for end in 1..=burst.len() {
            assert_eq!(Stall::of(&alone(&burst[..end])).stuck(), 0, "{:?}", &burst[..end]);
        }
        // Nor if the last count is not renewed at once, or while more come than leave.
        assert_eq!(Stall::of(&alone(&[143_997, 120_000, 96_000, 96_000, 96_000])).stuck(), 0);
        assert_eq!(Stall::of(&alone(&[9_000, 30_000, 60_000, 90_000, 100_000])).stuck(), 0);
        // Nor while the due messages grow for long, if the queue as a whole shrinks.
        let emptying = (0..12).map(|step| (1_000 + step * 500, 90_000 - step * 3_000));
        let emptying: Vec<_> =
            emptying.map(|(due, messages)| Look { due, messages, ..Look::default() }).collect();
        assert_eq!(Stall::of(&emptying).stuck(), 0);
        // The rest that stays is stuck.
        assert_eq!(Stall::of(&alone(&[143_997, 96_000, 40, 40, 40, 40])), Stall::Stuck(40));
    }
}
