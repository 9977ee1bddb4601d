//! Whether the dead letters of a queue move: pure, apart from asking the broker.
//!
//! A message whose time is up has left its queue and waits until the next queue confirms it.
//! When many fall due together, many wait although all of them move, so their number alone
//! says nothing. Stuck are those that a queue is seen to have again and again while nothing
//! leaves it.
//!
//! A queue that is busy may not count for a while, and the broker goes on showing its last
//! count. Such a count was taken once and says no more than that.
//!
//! While messages flow, some are always just being handed on, often the same few each time
//! the broker counts: of a hundred a second that take 10 ms each, one on average. So a queue
//! that works is looked at for longer than one that rests, in which nothing ever should be on
//! its way.

use crate::management::{ManagementApi, ManagementError, QueueInfo};

/// How many dead letters a queue passes on at a time by default. When that many are stuck, no
/// others move.
pub(crate) const PREFETCH: u64 = 32;

/// The interval of the samples, in seconds: brokers count every 5 s.
pub const APART: u32 = 5;

/// The period over which dead letters are looked back at, in seconds.
pub const RECENT: u32 = 180;

/// How many samples in a row show that dead letters do not move, in a queue that rests.
const ENOUGH: usize = 4;

/// How many samples show it when the number grows, as it also does while much falls due.
const LONG: usize = 10;

/// How many samples show it in a queue that works. With as many on their way as make a mistake
/// most likely, 1.5 on average, there is one in some 30,000 samples; with those of a queue that
/// rests there would be one in seven.
const AMID_OTHERS: usize = 24;

/// The most reductions from one count to the next of a queue that rests. Counting takes some
/// 500, and a message 700 to 1,200 (3.10.8, 4.0.5 and 4.3.6).
const REST: u64 = 10_000;

/// The counts of a queue at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Look {
    /// Messages that have left the queue and are not confirmed.
    pub due: u64,
    /// Those and all others.
    pub messages: u64,
    /// How much the queue's process had worked when it counted, in reductions of Erlang. To
    /// count is work, so looks with the same number show the same count. `None` if the broker
    /// does not say.
    pub reductions: Option<u64>,
}

impl Look {
    fn now(listed: &QueueInfo) -> Self {
        let (due, reductions) = (listed.messages_dlx, listed.reductions);
        Self { due, messages: listed.messages.max(due), reductions }
    }
}

/// What the samples of one queue show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sign {
    /// The dead letters come and go, or have not been there for long.
    Passing,
    /// So many do not move.
    Stuck(u64),
    /// There were more each time, for long, and nothing was seen to leave. Either nothing
    /// moves, or fewer leave than arrive.
    Rising(u64),
    /// They move, but there are always more than can be passed on at a time.
    Backlog(u64),
}

impl Sign {
    /// What the samples of a queue, `APART` seconds apart and the oldest first, say about its
    /// dead letters at the end.
    ///
    /// Stuck ones keep the count from falling below their number, and it returns to that
    /// number time and again; moving ones make it rise and fall. A broker that does not say how
    /// much a queue works is taken at its word, as if all of them rested.
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
        // Behind a blockage they gather as slowly as they fall due. The number of moving ones
        // varies more.
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

/// Every count once. A list of queues shows an old count after a newer one of the history, if it
/// was asked for before, or if the broker kept it: five times as long as making it took. And
/// brokers can show how many are due some seconds before the reductions of the same count: that
/// there are fewer is believed at once, that there are more with the next.
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

/// Whether something was seen to leave a queue since there have always been dead letters: then
/// what hands them on is alive.
pub fn moves(looks: &[Look]) -> bool {
    let counts = counts(looks);
    !nothing_left(&counts[begin(&counts)..])
}

/// Whether so many counts in a row show dead letters of which none has left, however many came.
/// Much that falls due can look like that for a while.
pub(crate) fn stands_still(looks: &[Look]) -> bool {
    let counts = counts(looks);
    let counts = &counts[begin(&counts)..];
    counts.len() >= ENOUGH && nothing_left(counts)
}

/// The sample from which on there was always something.
pub fn begin(looks: &[Look]) -> usize {
    looks.iter().rposition(|look| look.due == 0).map_or(0, |nothing| nothing + 1)
}

/// What the broker recorded for a queue over the last minutes, the oldest first, and what it says
/// of it now, where all queues are listed: there a count shows up to 5 s sooner.
pub fn remembered(
    api: &ManagementApi,
    vhost: &str,
    listed: &QueueInfo,
) -> Result<Vec<Look>, ManagementError> {
    let mut looks = looks(&api.queue_history(vhost, &listed.name, RECENT)?.unwrap_or_default());
    if listed.reductions.is_some() {
        looks.push(Look::now(listed));
    }
    Ok(looks)
}

/// The history of a queue. Brokers say of their newest count only later how much the queue had
/// worked, and until then it may be an old count: it is left out, unless they never say it.
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

    /// Looks at a queue that has nothing else.
    fn alone(counts: &[u64]) -> Vec<Look> {
        counts.iter().map(|&due| Look { due, messages: due, ..Look::default() }).collect()
    }

    #[test]
    fn tells_stuck_from_moving() {
        let rising: Vec<u64> = (0..12).map(|step| 200 + step * 100).collect();
        for (counts, expected) in [
            (&[][..], Sign::Passing),
            (&[0], Sign::Passing),
            (&[7], Sign::Passing),
            (&[7, 7, 7], Sign::Passing),
            (&[7, 7, 7, 0], Sign::Passing),
            (&[0, 7, 7, 7, 7], Sign::Stuck(7)),
            (&[0, 7, 9, 7, 7], Sign::Stuck(7)),
            (&[20, 31, 20, 23, 20, 20], Sign::Stuck(20)),
            // Of what has just come nobody knows yet.
            (&[1, 1, 1, 200], Sign::Stuck(1)),
            // Behind 32 that are stuck, all are.
            (&[40, 40, 40, 200], Sign::Stuck(200)),
            (&[5, 3, 9, 4], Sign::Passing),
            (&[7, 40, 42, 45, 47], Sign::Stuck(47)),
            (&[200, 310, 430, 531], Sign::Backlog(200)),
            (&rising, Sign::Rising(1_300)),
            (&[3, 4, 5, 6], Sign::Passing),
            (&[900, 400, 2_000, 60], Sign::Backlog(60)),
            (&[900, 400, 2_000, 0], Sign::Passing),
        ] {
            assert_eq!(Sign::of(&alone(counts)), expected, "{counts:?}");
        }
    }

    #[test]
    fn a_count_that_is_shown_again_was_taken_once() {
        let of = |looks: &[(u64, u64)]| {
            let look = |&(due, reductions)| Look { due, messages: due, reductions: Some(reductions) };
            Sign::of(&looks.iter().map(look).collect::<Vec<_>>())
        };
        assert_eq!(of(&[(0, 1), (90, 2), (90, 2), (90, 2), (90, 2), (90, 2), (90, 2)]), Sign::Passing);
        assert_eq!(of(&[(0, 1), (90, 2), (90, 2), (90, 3), (90, 3), (90, 4), (90, 4)]), Sign::Passing);
        assert_eq!(of(&[(0, 1), (90, 2), (90, 2), (90, 3), (90, 4), (90, 5)]), Sign::Stuck(90));
        // Behind newer ones, too.
        assert_eq!(of(&[(0, 1), (90, 2), (90, 3), (90, 4), (90, 2)]), Sign::Passing);
        assert_eq!(of(&[(0, 1), (90, 2), (90, 3), (90, 4), (90, 2), (90, 5)]), Sign::Stuck(90));
        assert_eq!(of(&[(90, 2), (90, 3), (90, 4), (90, 5), (90, 6), (0, 2)]), Sign::Passing);
    }

    #[test]
    fn what_flows_is_not_stuck_because_as_much_is_on_its_way_each_time() {
        let of = |counts: &[u64], work: u64| {
            let looks = counts.iter().zip(1..);
            let looks =
                looks.map(|(&due, at)| Look { due, messages: due + at % 3, reductions: Some(at * work) });
            Sign::of(&looks.collect::<Vec<_>>())
        };
        let (resting, working) = (500, 300_000);
        for counts in [&[1; 4][..], &[1; 23], &[2, 1, 1, 3, 1, 1, 1, 2], &[40, 41, 41, 43]] {
            assert_eq!(of(counts, working).stuck(), 0, "{counts:?}");
        }
        for counts in [&[1; 4][..], &[1; 23], &[2, 2, 5, 2, 2]] {
            assert_eq!(of(counts, resting), Sign::Stuck(counts[0]), "{counts:?}");
        }
        // What stays where it is for two minutes while others pass it is.
        assert_eq!(of(&[3; 24], working), Sign::Stuck(3));
        let others: Vec<_> = (0..24).map(|at| if at % 4 == 1 { 9 } else { 3 }).collect();
        assert_eq!(of(&others, working), Sign::Stuck(3));
        let half: Vec<_> = (0..36).map(|at| if at % 2 == 1 { 2 } else { 1 }).collect();
        assert_eq!(of(&half, working), Sign::Passing);
        // What was counted while the queue still worked does not count against what rests.
        let looks = [(1, 0), (2, 300_000), (7, 600_000), (7, 600_500), (7, 601_000), (7, 601_500)];
        let look = |(due, reductions)| Look { due, messages: due, reductions: Some(reductions) };
        assert_eq!(Sign::of(&looks.map(look)), Sign::Stuck(7));
        // Nothing leaves, and more and more comes.
        let growing: Vec<_> = (1..=10)
            .map(|at| Look { due: at * 100, messages: at * 500, reductions: Some(at * working) })
            .collect();
        assert_eq!(Sign::of(&growing), Sign::Rising(1_000));
    }

    #[test]
    fn a_count_of_which_nobody_knows_how_old_it_is_is_left_out() {
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
        // A broker that never says it is believed.
        assert_eq!(looks(&queue("null")), alone(&[7, 9]));
        assert!(looks(&QueueInfo::default()).is_empty());
    }

    #[test]
    fn what_leaves_past_stuck_ones_is_seen() {
        assert!(moves(&alone(&[0, 7, 9, 7, 7])));
        let of = |messages: [u64; 4]| messages.map(|messages| Look { due: 7, messages, ..Look::default() });
        assert!(moves(&of([20, 30, 25, 30])));
        assert!(!moves(&of([20, 20, 25, 30])));
        // And not in an old count.
        let counted = [(20, 1), (25, 2), (30, 3), (25, 2)];
        let look = |(messages, reductions)| Look { due: 7, messages, reductions: Some(reductions) };
        assert!(!moves(&counted.map(look)));
        // Before there were any is long ago.
        assert!(!moves(&alone(&[9, 0, 7, 7, 7])));
        assert!(!moves(&[]));
    }

    #[test]
    fn what_only_grows_stands_still_after_four_counts() {
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
    fn a_burst_that_moves_is_not_stuck_however_large() {
        let burst = [143_997, 120_000, 96_000, 72_000, 48_000, 24_000, 900];
        for end in 1..=burst.len() {
            assert_eq!(Sign::of(&alone(&burst[..end])).stuck(), 0, "{:?}", &burst[..end]);
        }
        // Nor if the last count is not renewed at once, or while more comes than goes.
        assert_eq!(Sign::of(&alone(&[143_997, 120_000, 96_000, 96_000, 96_000])).stuck(), 0);
        assert_eq!(Sign::of(&alone(&[9_000, 30_000, 60_000, 90_000, 100_000])).stuck(), 0);
        // Nor while what falls due grows for long, if the queue as a whole becomes less.
        let emptying = (0..12).map(|step| (1_000 + step * 500, 90_000 - step * 3_000));
        let emptying: Vec<_> =
            emptying.map(|(due, messages)| Look { due, messages, ..Look::default() }).collect();
        assert_eq!(Sign::of(&emptying).stuck(), 0);
        // What is left of it and stays is.
        assert_eq!(Sign::of(&alone(&[143_997, 96_000, 40, 40, 40, 40])), Sign::Stuck(40));
    }
}
