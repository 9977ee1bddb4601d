//! How many messages enter and leave the levels per second: pure.

use std::{collections::VecDeque, time::Duration};

/// The period over which rates are measured. Brokers renew their counts every five seconds, at
/// different times, so a shorter period would be noise.
const PERIOD: Duration = Duration::from_secs(30);

/// The shortest period, after a start.
const SHORTEST: Duration = Duration::from_secs(10);

/// How far apart the remembered counts are, at least.
const SPACING: Duration = Duration::from_secs(2);

/// The counts at one moment; `None` if unknown.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counts {
    /// Messages ever published to the entry exchange.
    pub(super) entered: Option<u64>,
    /// Messages that publishers ever sent into any level.
    pub(super) published: Option<u64>,
    /// Messages in all levels, those that are being passed on included.
    pub(super) messages: Option<u64>,
}

/// The counts of the last half minute.
#[derive(Debug, Default)]
pub(super) struct Flow(VecDeque<(Duration, Counts)>);

impl Flow {
    /// Adds the counts of a moment, which counts from any fixed one.
    pub(super) fn note(&mut self, at: Duration, counts: Counts) {
        let last = self.0.len().checked_sub(2).map(|index| (self.0[index].0, self.0[index + 1].0));
        if last.is_some_and(|(before, last)| last.saturating_sub(before) < SPACING) {
            self.0.pop_back();
        }
        self.0.push_back((at, counts));
        while self.0.get(1).is_some_and(|(second, _)| at.saturating_sub(*second) >= PERIOD) {
            self.0.pop_front();
        }
    }

    /// Messages published to the entry exchange per second.
    pub(super) fn entering_per_s(&self) -> Option<f64> {
        let (now, then, seconds) = self.ends()?;
        // The count starts again at 0 when a broker forgets its statistics.
        Some(float(now.entered?.saturating_sub(then.entered?)) / seconds)
    }

    /// Messages per second that leave the levels for their destination: the published messages, less
    /// the growth of the levels.
    pub(super) fn leaving_per_s(&self) -> Option<f64> {
        let (now, then, seconds) = self.ends()?;
        let published = float(now.published?.saturating_sub(then.published?));
        let grown = float(now.messages?) - float(then.messages?);
        Some(((published - grown) / seconds).max(0.0))
    }

    fn ends(&self) -> Option<(Counts, Counts, f64)> {
        let ((first, then), (last, now)) = (self.0.front()?, self.0.back()?);
        let period = last.saturating_sub(*first);
        (period >= SHORTEST).then_some((*now, *then, period.as_secs_f64()))
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts of messages, for rates")]
fn float(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(counts: &[(u64, u64, u64)]) -> Flow {
        let mut flow = Flow::default();
        for (second, published, messages) in counts {
            let [entered, published, messages] = [published, published, messages].map(|it| Some(*it));
            flow.note(Duration::from_secs(*second), Counts { entered, published, messages });
        }
        flow
    }

    #[test]
    fn messages_that_were_published_and_are_gone_have_left() {
        assert_eq!(flow(&[(0, 0, 0)]).leaving_per_s(), None);
        assert_eq!(flow(&[(0, 0, 0), (9, 90, 0)]).entering_per_s(), None, "not long enough");
        let seen = flow(&[(0, 0, 0), (30, 500, 200)]);
        assert_eq!((seen.entering_per_s(), seen.leaving_per_s()), (Some(500.0 / 30.0), Some(10.0)));
        // A broker that has forgotten its statistics, and depths that are newer than publishes.
        let seen = flow(&[(0, 500, 0), (30, 20, 60)]);
        assert_eq!((seen.entering_per_s(), seen.leaving_per_s()), (Some(0.0), Some(0.0)));
        let mut seen = flow(&[(0, 0, 0), (30, 30, 0)]);
        seen.note(Duration::from_secs(40), Counts::default());
        assert_eq!((seen.entering_per_s(), seen.leaving_per_s()), (None, None));
    }

    #[test]
    fn rates_are_those_of_the_last_half_minute() {
        let every_second: Vec<_> = (0..=300).map(|at: u64| (at, at * at, 0)).collect();
        let seen = flow(&every_second);
        assert!(seen.0.len() <= 17, "{}", seen.0.len());
        let rate = seen.entering_per_s().unwrap();
        assert!((560.0..580.0).contains(&rate), "{rate}");
    }
}
