//! Which messages were confirmed, and what came of them.

use std::time::{Duration, Instant};

use delayline_measure::ledger::{Answer, Ledger, Summary};

use super::{inbox::Arrival, results::Lateness};

/// How much before it is due a message may come: the broker counts in whole
/// milliseconds, and cuts off what is less at every hop.
const GRAIN_US: i64 = 2_000;

/// A message as it was published.
#[derive(Debug, Clone, Copy)]
pub struct Sent {
    pub at: Instant,
    pub delay: Duration,
}

/// The sums, in µs.
pub fn sums(sent: &[Sent], answers: &[Option<Answer>], arrivals: &[Arrival]) -> Summary {
    let Some(epoch) = sent.first().map(|first| first.at) else { return Summary::default() };
    let mut ledger = Ledger::default();
    for (id, (sent, answer)) in (0..).zip(sent.iter().zip(answers)) {
        ledger.promise(id, micros(sent.at - epoch + sent.delay), GRAIN_US);
        if let Some(answer) = answer {
            ledger.answer(id, *answer);
        }
    }
    for arrival in arrivals.iter().filter(|arrival| arrival.id < sent.len() as u64) {
        ledger.arrive(arrival.id, micros(arrival.at.saturating_duration_since(epoch)));
    }
    ledger.summary()
}

/// The least lateness, in ms, of the slowest of so many per cent.
pub fn late_ms(sums: &Summary, per_cent: f64) -> f64 {
    sums.percentile(per_cent).map_or(0.0, |late| late as f64 / 1_000.0)
}

pub fn lateness(sums: &Summary) -> Option<Lateness> {
    let at = |per_cent| late_ms(sums, per_cent);
    (!sums.late.is_empty()).then(|| Lateness {
        min: at(0.0),
        p50: at(50.0),
        p75: at(75.0),
        p90: at(90.0),
        p95: at(95.0),
        p99: at(99.0),
        p999: at(99.9),
        max: at(100.0),
    })
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
        let answers = [Answer::Confirmed; 4].into_iter().chain([Answer::Refused]).map(Some);
        let arrival = |id, after| Arrival { id, at: start + ms(after), header_bytes: 10 };
        let arrivals = [arrival(0, 102), arrival(1, 90), arrival(0, 110), arrival(2, 100), arrival(9, 1)];
        let sums = sums(&sent, &answers.collect::<Vec<_>>(), &arrivals);
        assert_eq!((sums.confirmed, sums.refused, sums.missing), (4, 1, 1));
        assert_eq!((sums.duplicated, sums.early), (1, 1));
        let lateness = lateness(&sums).unwrap();
        assert_eq!((lateness.min, lateness.p50, lateness.max), (-10.0, 0.0, 2.0));
        assert!(super::lateness(&Summary::default()).is_none());
    }
}
