//! Which messages were confirmed, and what came of them.

use std::time::{Duration, Instant};

use crate::rank;

use super::{inbox::Arrival, outbox::Answer, results::Lateness};

/// How much before it is due a message may come: the broker counts in whole
/// milliseconds, and cuts off what is less at every hop.
const GRAIN_US: i64 = 2_000;

/// A message as it was published.
#[derive(Debug, Clone, Copy)]
pub struct Sent {
    pub at: Instant,
    pub delay: Duration,
}

/// The sum of it.
#[derive(Debug, Clone, Default)]
pub struct Verdict {
    pub confirmed: u64,
    pub refused: u64,
    /// Confirmed, and did not come while it was waited for.
    pub missing: u64,
    pub duplicated: u64,
    pub early: u64,
    /// By how many µs each message was late, ascending.
    late_us: Vec<i64>,
    pub header_bytes: f64,
}

impl Verdict {
    pub fn new(sent: &[Sent], answers: &[Answer], arrivals: &[Arrival]) -> Self {
        let mut verdict = Self::default();
        let mut times = vec![0_u64; sent.len()];
        for arrival in arrivals {
            let Some(index) = usize::try_from(arrival.id).ok().filter(|&index| index < sent.len()) else {
                continue;
            };
            times[index] += 1;
            if times[index] > 1 {
                verdict.duplicated += 1;
                continue;
            }
            let due = sent[index].at + sent[index].delay;
            let late = micros(arrival.at.saturating_duration_since(due))
                - micros(due.saturating_duration_since(arrival.at));
            verdict.early += u64::from(late < -GRAIN_US);
            verdict.late_us.push(late);
        }
        for (answer, times) in answers.iter().zip(&times) {
            match answer {
                Answer::Confirmed => {
                    verdict.confirmed += 1;
                    verdict.missing += u64::from(*times == 0);
                }
                Answer::Refused => verdict.refused += 1,
                Answer::None => {}
            }
        }
        verdict.late_us.sort_unstable();
        let bytes: usize = arrivals.iter().map(|arrival| arrival.header_bytes).sum();
        verdict.header_bytes = bytes as f64 / arrivals.len().max(1) as f64;
        verdict
    }

    /// The least lateness, in ms, of the slowest of so many per cent.
    pub fn late_ms(&self, per_cent: f64) -> f64 {
        rank::at(&self.late_us, per_cent).map_or(0.0, |late| late as f64 / 1_000.0)
    }

    pub fn lateness(&self) -> Option<Lateness> {
        (!self.late_us.is_empty()).then(|| Lateness {
            min: self.late_us.first().map_or(0.0, |&late| late as f64 / 1_000.0),
            p50: self.late_ms(50.0),
            p75: self.late_ms(75.0),
            p90: self.late_ms(90.0),
            p95: self.late_ms(95.0),
            p99: self.late_ms(99.0),
            p999: self.late_ms(99.9),
            max: self.late_ms(100.0),
        })
    }

    /// Adds another phase's sums.
    pub fn add(&mut self, other: &Self) {
        self.confirmed += other.confirmed;
        self.refused += other.refused;
        self.missing += other.missing;
        self.duplicated += other.duplicated;
        self.early += other.early;
    }
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notices_what_is_lost_early_and_twice() {
        let start = Instant::now();
        let ms = Duration::from_millis;
        let sent: Vec<_> = (0..5).map(|_| Sent { at: start, delay: ms(100) }).collect();
        let answers = [Answer::Confirmed; 4].into_iter().chain([Answer::Refused]).collect::<Vec<_>>();
        let arrival = |id, after| Arrival { id, at: start + ms(after), header_bytes: 10 };
        let arrivals = [arrival(0, 102), arrival(1, 90), arrival(0, 110), arrival(2, 100), arrival(9, 1)];
        let verdict = Verdict::new(&sent, &answers, &arrivals);
        let Verdict { confirmed, refused, missing, duplicated, early, .. } = verdict.clone();
        assert_eq!((confirmed, refused, missing, duplicated, early), (4, 1, 1, 1, 1));
        let lateness = verdict.lateness().unwrap();
        assert_eq!((lateness.min, lateness.p50, lateness.max), (-10.0, 0.0, 2.0));
    }

    #[test]
    fn a_percentile_is_one_of_the_values() {
        let verdict = Verdict { late_us: (1..=1_000).map(|ms| ms * 1_000).collect(), ..Verdict::default() };
        assert_eq!([50.0, 99.0, 99.9, 100.0].map(|at| verdict.late_ms(at)), [500.0, 990.0, 999.0, 1_000.0]);
        assert!(Verdict::default().lateness().is_none());
    }
}
