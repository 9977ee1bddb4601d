//! A broker's measured limits.

use serde::{Deserialize, Serialize};

/// The share of its limit that a broker should be loaded with in steady work; above it,
/// lateness grows quickly.
pub const SAFE_LOAD: f64 = 0.5;

/// A broker's measured figures, as `delayline-bench run` finds them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Figures {
    /// A description of the measured broker.
    pub broker: String,
    /// Messages per second that can be published and confirmed while nothing else goes on.
    pub publish: f64,
    /// How many queues messages that fell due together passed through, and how many of them
    /// arrived per second.
    pub drain: Vec<(u32, f64)>,
    /// The highest steady rate that was found; if measured, everything estimated from
    /// `publish` and `drain` is scaled to it.
    pub knee: Option<Knee>,
    /// The broker's memory for one waiting message, in bytes.
    pub memory_per_message: f64,
    /// The disk space that a waiting message takes beyond its body, in bytes.
    pub disk_overhead: f64,
    /// The memory at which the broker stops accepting messages, in bytes.
    pub memory_limit: Option<f64>,
    /// Free disk space, in bytes.
    pub disk_free: Option<f64>,
}

/// The highest steady rate at which messages are in time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Knee {
    /// Messages per second, more than 0.
    pub rate: f64,
    /// How many queues these messages passed, on average.
    pub hops: f64,
}

impl Figures {
    /// The disk space that a waiting message takes beyond its body, in bytes: on 4.3 some
    /// 400, on 3.10 some 550. The management API does not report it, so it is not measured.
    pub const DISK_OVERHEAD: f64 = 500.0;

    /// The further memory of each message until the write-ahead log is written out, and the most that all of
    /// these take, in bytes. A million messages of 256 bytes took 570 to 920 bytes each on 4.3, and each of ten
    /// million 130 (docs/benchmarks/waiting.csv); 80 remain.
    pub const FRESH: (f64, f64) = (1_400.0, 840e6);

    /// How long it takes from the start of a killed node until every level accepts messages, and how much longer
    /// for each waiting message, in seconds: on 4.3, 4.8 s with none, 12 and 17 s with a million, 28 s with three
    /// and 84 s with ten (docs/benchmarks/waiting.csv).
    pub const RESTART: (f64, f64) = (4.8, 8e-6);

    /// RabbitMQ 4.3 with `dead_letter_worker_consumer_prefetch` at 512, one node and its
    /// clients on two cores of a virtual machine, with 4 GB of memory (the broker uses 40%) and
    /// 50 GB of disk. Use these figures until you have measured your own broker.
    #[must_use]
    pub fn reference() -> Self {
        Self {
            broker: "a reference: RabbitMQ 4.3 with 2 cores, shared with its clients, 4 GB and 50 GB of disk"
                .into(),
            publish: 19_000.0,
            drain: vec![(1, 14_400.0), (3, 7_700.0), (6, 4_100.0)],
            knee: Some(Knee { rate: 2_500.0, hops: 2.93 }),
            memory_per_message: 80.0,
            disk_overhead: Self::DISK_OVERHEAD,
            memory_limit: Some(1.6e9),
            disk_free: Some(50e9),
        }
    }

    /// The most messages per second that one level can drain.
    #[must_use]
    pub fn level_limit(&self) -> f64 {
        self.drain.iter().map(|(hops, rate)| rate * f64::from((*hops).min(1))).fold(0.0, f64::max)
    }

    /// The broker's cost of a message beyond publishing: seconds for the message itself, and
    /// seconds for each queue it passes through. The line through the measured points, with
    /// neither part below zero.
    #[must_use]
    pub fn costs(&self) -> (f64, f64) {
        let points: Vec<(f64, f64)> = self
            .drain
            .iter()
            .filter(|(_, rate)| *rate > 0.0)
            .map(|(hops, rate)| (f64::from(*hops), rate.recip()))
            .collect();
        #[expect(clippy::cast_precision_loss, reason = "a handful")]
        let count = points.len().max(1) as f64;
        let mean = |part: fn(&(f64, f64)) -> f64| points.iter().map(part).sum::<f64>() / count;
        let (hops, seconds) = (mean(|point| point.0), mean(|point| point.1));
        let spread: f64 = points.iter().map(|point| (point.0 - hops).powi(2)).sum();
        if spread == 0.0 {
            // A single point: all of it counts for the hops.
            return (0.0, if hops > 0.0 { seconds / hops } else { 0.0 });
        }
        let slope = points.iter().map(|point| (point.0 - hops) * (point.1 - seconds)).sum::<f64>() / spread;
        let slope = slope.max(0.0);
        let base = seconds - slope * hops;
        if base >= 0.0 {
            return (base, slope);
        }
        // Through the origin instead.
        let squares: f64 = points.iter().map(|point| point.0.powi(2)).sum();
        (0.0, points.iter().map(|point| point.0 * point.1).sum::<f64>() / squares)
    }

    /// Seconds of the broker's work for a message that passes so many queues,
    /// from its publishing to its consumer.
    ///
    /// Without a knee this is for the broker at full speed, when many messages are behind and
    /// it can write them in large batches.
    #[must_use]
    pub fn work(&self, hops: f64) -> f64 {
        let work = self.work_in_bursts(hops);
        let at_knee = self.knee.map(|knee| knee.rate * self.work_in_bursts(knee.hops));
        at_knee.filter(|used| *used > 0.0).map_or(work, |used| work / used)
    }

    fn work_in_bursts(&self, hops: f64) -> f64 {
        let (base, each) = self.costs();
        let publish = if self.publish > 0.0 { self.publish.recip() } else { 0.0 };
        publish + base + each * hops
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn figures(drain: &[(u32, f64)]) -> Figures {
        Figures { publish: 10_000.0, drain: drain.to_vec(), knee: None, ..Figures::reference() }
    }

    #[test]
    fn finds_the_two_parts_of_the_cost() {
        // 50 µs for itself, 100 µs for each queue.
        let drain = [(1, 1e6 / 150.0), (3, 1e6 / 350.0), (6, 1e6 / 650.0)];
        let (base, each) = figures(&drain).costs();
        assert!((base - 50e-6).abs() < 1e-9 && (each - 100e-6).abs() < 1e-9, "{base} {each}");
        assert!((figures(&drain).work(2.0) - 350e-6).abs() < 1e-9);
        assert!((figures(&drain).level_limit() - 1e6 / 150.0).abs() < 1e-6);
    }

    #[test]
    fn a_knee_that_was_measured_overrules_what_is_reckoned() {
        let bursts = figures(&[(1, 5_000.0), (3, 2_500.0)]);
        let figures = Figures { knee: Some(Knee { rate: 1_000.0, hops: 3.0 }), ..bursts.clone() };
        assert!((figures.work(3.0) - 0.001).abs() < 1e-9);
        let ratio = |figures: &Figures| figures.work(6.0) / figures.work(1.0);
        assert!((ratio(&figures) - ratio(&bursts)).abs() < 1e-9);
        // Missing figures change nothing.
        let nothing = Figures { knee: Some(Knee { rate: 0.0, hops: 3.0 }), ..bursts.clone() };
        assert_eq!(nothing.work(2.0), bursts.work(2.0));
    }

    #[test]
    fn few_or_odd_points_still_give_an_answer() {
        assert_eq!(figures(&[(2, 1_000.0)]).costs(), (0.0, 0.000_5));
        assert_eq!(figures(&[]).costs(), (0.0, 0.0));
        // As fast over six queues as over one: the hops cost nothing.
        let (base, each) = figures(&[(1, 1_000.0), (6, 1_000.0)]).costs();
        assert!((base - 0.001).abs() < 1e-9 && each == 0.0);
    }

    proptest! {
        #[test]
        fn no_cost_is_negative(
            rates in proptest::collection::vec((1_u32..28, 1.0..1e5), 0..6),
            hops in 0.0..28.0,
            knee in proptest::option::of((1.0..1e5, 0.0..28.0)),
        ) {
            let knee = knee.map(|(rate, hops)| Knee { rate, hops });
            let figures = Figures { knee, ..figures(&rates) };
            let (base, each) = figures.costs();
            prop_assert!(base >= 0.0 && each >= 0.0 && base.is_finite() && each.is_finite());
            prop_assert!(figures.work(hops) > 0.0);
            prop_assert!(figures.work(hops + 1.0) >= figures.work(hops));
        }
    }
}
