//! From repeated counts to the queues that should be made to try again: pure.

use std::{collections::BTreeMap, time::Duration};

use delayline_core::backoff::Doubling;

/// How long a queue must have had dead letters without any being seen to leave. It is longer than one
/// renewal of the broker's counts, every five seconds.
const STANDS: Duration = Duration::from_secs(6);

/// The same if some leave: others may be stuck among them, or they fall due faster than they leave.
const MOVES: Duration = Duration::from_secs(15);

/// The least number of counts it takes.
const LOOKS: u32 = 3;

/// The pause between two attempts for a queue that no dead letter leaves: at first, and later.
const PAUSE: Duration = Duration::from_secs(10);
const LATER: Duration = Duration::from_secs(30);

/// How many attempts are followed by the first pause.
const FIRST: u32 = 5;

/// The pauses for a queue that some dead letters leave.
const MOVING: Doubling = Doubling::new(Duration::from_secs(60), Duration::from_secs(600));

/// A queue that should be made to try again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Suspect {
    pub(super) queue: String,
    pub(super) dead_letters: u64,
    pub(super) since: Duration,
    /// Whether some were seen to leave.
    pub(super) moves: bool,
}

#[derive(Debug)]
struct Track {
    since: Duration,
    looks: u32,
    last: u64,
    moves: bool,
    attempts: u32,
    not_before: Duration,
}

/// The history of the queues that have dead letters on their way.
#[derive(Debug, Default)]
pub(super) struct Suspicion {
    tracks: BTreeMap<String, Track>,
}

impl Suspicion {
    /// Takes in the counts of all queues that have dead letters. Returns the queues to be made to try
    /// again, and the names of those that had been and have no dead letters now.
    pub(super) fn note(
        &mut self,
        now: Duration,
        counts: &BTreeMap<String, u64>,
    ) -> (Vec<Suspect>, Vec<String>) {
        let gone = |queue: &String| counts.get(queue).is_none_or(|count| *count == 0);
        let freed: Vec<_> = self
            .tracks
            .iter()
            .filter(|(queue, track)| gone(queue) && track.attempts > 0)
            .map(|(queue, _)| queue.clone())
            .collect();
        self.tracks.retain(|queue, _| !gone(queue));
        let mut suspects = Vec::new();
        for (queue, &count) in counts.iter().filter(|(_, count)| **count > 0) {
            let fresh = Track {
                since: now,
                looks: 0,
                last: count,
                moves: false,
                attempts: 0,
                not_before: Duration::ZERO,
            };
            let track = self.tracks.entry(queue.clone()).or_insert(fresh);
            track.looks += 1;
            track.moves |= count < track.last;
            track.last = count;
            let hold = if track.moves { MOVES } else { STANDS };
            let held = now.saturating_sub(track.since);
            if track.looks >= LOOKS && held >= hold && now >= track.not_before {
                let moves = track.moves;
                suspects.push(Suspect { queue: queue.clone(), dead_letters: count, since: held, moves });
            }
        }
        (suspects, freed)
    }

    /// Records an attempt for a queue, successful or not.
    pub(super) fn attempted(&mut self, now: Duration, queue: &str) {
        let Some(track) = self.tracks.get_mut(queue) else { return };
        let pause = match track.moves {
            false if track.attempts < FIRST => PAUSE,
            false => LATER,
            true => MOVING.pause(track.attempts),
        };
        track.attempts = track.attempts.saturating_add(1);
        track.not_before = now + pause;
        // Dead letters that leave because of the attempt are no evidence for later.
        track.moves = false;
    }

    /// Forgets everything, since the counts of the time without an answer are missing.
    pub(super) fn forget(&mut self) {
        self.tracks.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The seconds at which a queue is to be made to try again, if it is counted every two seconds.
    fn attempts(seconds: u64, count: impl Fn(u64) -> u64) -> Vec<u64> {
        let mut suspicion = Suspicion::default();
        let mut at = Vec::new();
        for second in (0..seconds).step_by(2) {
            let now = Duration::from_secs(second);
            let (suspects, _) = suspicion.note(now, &[("q".to_owned(), count(second))].into());
            for suspect in suspects {
                at.push(second);
                suspicion.attempted(now, &suspect.queue);
            }
        }
        at
    }

    #[test]
    fn a_queue_that_no_dead_letter_leaves_is_helped_soon_and_then_less_often() {
        assert_eq!(attempts(140, |_| 27), [6, 16, 26, 36, 46, 56, 86, 116]);
        // More and more fall due behind those that are stuck.
        assert_eq!(attempts(30, |second| 32 + second), [6, 16, 26]);
    }

    #[test]
    fn dead_letters_that_come_and_go_are_left_alone() {
        assert_eq!(attempts(300, |_| 0), [0; 0]);
        assert_eq!(attempts(300, |second| u64::from(!second.is_multiple_of(4))), [0; 0]);
    }

    #[test]
    fn where_some_leave_it_is_tried_seldom() {
        assert_eq!(attempts(300, |second| 20 + second % 6), [16, 76, 196]);
    }

    #[test]
    fn reports_queues_that_pass_messages_on_again() {
        let mut suspicion = Suspicion::default();
        let counts = |count| BTreeMap::from([("q".to_owned(), count)]);
        for second in 0..10 {
            let now = Duration::from_secs(second);
            let (suspects, freed) = suspicion.note(now, &counts(5));
            assert_eq!((suspects.len(), freed.len()), (usize::from(second >= 6), 0), "{second}");
        }
        suspicion.attempted(Duration::from_secs(10), "q");
        let (suspects, freed) = suspicion.note(Duration::from_secs(12), &counts(0));
        assert_eq!((suspects.len(), freed), (0, vec!["q".to_owned()]));
        // A queue that was never helped is not reported.
        suspicion.note(Duration::from_secs(13), &counts(5));
        assert_eq!(suspicion.note(Duration::from_secs(14), &BTreeMap::new()), (vec![], vec![]));
        // And it begins from the start.
        for second in 15..20 {
            assert_eq!(suspicion.note(Duration::from_secs(second), &counts(5)).0, []);
        }
    }
}
