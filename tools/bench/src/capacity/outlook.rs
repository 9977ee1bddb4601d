//! Whether a broker can carry a load.

use serde::Serialize;

use super::{Figures, Load, SAFE_LOAD};

/// The demands of a load, compared with the limits of a broker.
#[derive(Debug, Clone, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Outlook {
    /// Whether the broker can carry the load.
    pub verdict: Fit,
    /// The resources that can run out, the scarcest first.
    pub limits: Vec<Limit>,
    /// Messages per second of this kind that it carries at a safe load.
    pub safe_rate: f64,
    /// Messages per second of this kind at which it is at its limit.
    pub full_rate: f64,
    /// How many sets are needed so that no level is loaded above the safe load. More sets
    /// help only where cores are idle: on one broker they share its work.
    pub sets: u64,
    /// How many brokers like the measured one are needed.
    pub brokers: u64,
    /// Memory for the waiting messages, in bytes.
    pub memory: f64,
    /// Further memory for the newest of them, until the write-ahead log is written out.
    pub memory_fresh: f64,
    /// How long it takes from the start of a killed node until every level accepts messages, in seconds.
    pub restart: f64,
    /// Disk space for the waiting messages, in bytes.
    pub disk: f64,
}

/// A limited resource.
#[derive(Debug, Clone, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Limit {
    /// Its name.
    pub what: String,
    /// The part of it that the load uses; 1 is all.
    pub used: f64,
}

/// The answer in a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Fit {
    /// With room to spare: nothing is used above [`SAFE_LOAD`].
    Holds,
    /// As long as nothing else uses the broker.
    Tight,
    /// The broker cannot carry it.
    TooMuch,
}

impl Outlook {
    /// Compares a load of messages of `size` bytes with a broker's figures.
    #[must_use]
    pub fn new(load: &Load, size: f64, figures: &Figures) -> Self {
        let hottest = load.hottest();
        let waiting = load.waiting();
        let memory = waiting * figures.memory_per_message;
        let disk = waiting * (size + figures.disk_overhead);
        let level = part(hottest.per_second, figures.level_limit());
        let work = load.rate * figures.work(load.hops);
        let mut limits = vec![
            Limit {
                what: format!("level {:02}, which most messages pass through", hottest.level),
                used: level,
            },
            Limit { what: "the broker's work".into(), used: work },
        ];
        if let Some(limit) = figures.memory_limit {
            limits.push(Limit { what: "memory, up to its high watermark".into(), used: part(memory, limit) });
        }
        if let Some(free) = figures.disk_free {
            limits.push(Limit { what: "free disk space".into(), used: part(disk, free) });
        }
        limits.sort_by(|a, b| b.used.total_cmp(&a.used));
        let most = limits[0].used;
        // More sets spread the levels; brokers must share everything else.
        let others = limits.iter().filter(|limit| !limit.what.starts_with("level")).map(|limit| limit.used);
        let others = others.fold(0.0, f64::max);
        Self {
            verdict: match most {
                used if used <= SAFE_LOAD => Fit::Holds,
                used if used <= 1.0 => Fit::Tight,
                _ => Fit::TooMuch,
            },
            // All of it grows with the rate, and so do the waiting messages.
            safe_rate: part(load.rate * SAFE_LOAD, most),
            full_rate: part(load.rate, most),
            sets: pieces(level),
            brokers: pieces(others),
            memory,
            memory_fresh: (waiting * Figures::FRESH.0).min(Figures::FRESH.1),
            restart: Figures::RESTART.0 + waiting * Figures::RESTART.1,
            disk,
            limits,
        }
    }
}

/// A part of a whole; of nothing, any part is too much.
fn part(used: f64, all: f64) -> f64 {
    if all > 0.0 {
        used / all
    } else if used > 0.0 {
        f64::MAX
    } else {
        0.0
    }
}

/// How many of something are needed so that each is loaded safely.
fn pieces(used: f64) -> u64 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a float saturates")]
    let pieces = (used / SAFE_LOAD).ceil() as u64;
    pieces.max(1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use delayline_core::codec::Tolerance;

    fn figures() -> Figures {
        Figures {
            broker: "test".into(),
            publish: 10_000.0,
            drain: vec![(1, 5_000.0), (3, 2_500.0)],
            knee: None,
            memory_per_message: 100.0,
            disk_overhead: 200.0,
            memory_limit: Some(1e9),
            disk_free: Some(1e10),
        }
    }

    fn outlook(rate: f64, delays: &str) -> Outlook {
        Outlook::new(&Load::new(rate, &delays.parse().unwrap(), Tolerance::NONE, false), 256.0, &figures())
    }

    #[test]
    fn work_runs_out_before_a_level_does_and_each_level_needs_its_sets() {
        // 0.1 ms publishing, 0.1 ms for itself and 0.1 ms for each hop.
        let outlook = outlook(2_000.0, "fixed:1s");
        assert_eq!(outlook.verdict, Fit::Tight);
        assert_eq!(outlook.limits[0].what, "the broker's work");
        assert!((outlook.limits[0].used - 0.6).abs() < 1e-9, "{outlook:?}");
        assert!((outlook.full_rate - 3_333.3).abs() < 1.0 && outlook.brokers == 2 && outlook.sets == 1);
        // 5,000/s go through a level, half of them safely.
        assert_eq!(self::outlook(20_000.0, "fixed:1s").sets, 8);
    }

    #[test]
    fn what_waits_can_be_the_limit() {
        let outlook = outlook(100.0, "fixed:30d");
        assert_eq!((outlook.verdict, outlook.sets), (Fit::TooMuch, 1));
        assert!(outlook.limits[0].what.starts_with("memory"), "{outlook:?}");
        let waiting = 100.0 * 30.0 * 86_400.0;
        assert_eq!((outlook.memory, outlook.disk), (waiting * 100.0, waiting * 456.0));
        assert_eq!((outlook.memory_fresh, outlook.restart.round()), (840e6, 2_078.0));
        assert_eq!(outlook.brokers, (waiting * 100.0 / 1e9 / SAFE_LOAD).ceil() as u64);
        // A rate that is reported as safe is sustainable.
        assert!(outlook.safe_rate < outlook.full_rate && outlook.full_rate < 100.0, "{outlook:?}");
        assert_eq!(self::outlook(outlook.safe_rate * 0.999, "fixed:30d").verdict, Fit::Holds);
    }

    #[test]
    fn a_broker_that_hands_nothing_on_carries_nothing() {
        let figures = Figures { drain: vec![], publish: 0.0, ..figures() };
        let load = Load::new(1.0, &"fixed:1s".parse().unwrap(), Tolerance::NONE, false);
        assert_eq!(Outlook::new(&load, 1.0, &figures).verdict, Fit::TooMuch);
    }

    proptest! {
        #[test]
        fn more_is_never_easier(rate in 1.0..1e6, factor in 1.0..10.0, seconds in 1_u32..1_000_000) {
            let delays = format!("fixed:{seconds}");
            let (one, more) = (outlook(rate, &delays), outlook(rate * factor, &delays));
            prop_assert!(more.limits[0].used >= one.limits[0].used - 1e-9);
            prop_assert!(more.sets >= one.sets && more.brokers >= one.brokers);
            // The rates do not depend on the rate.
            prop_assert!((more.full_rate / one.full_rate - 1.0).abs() < 1e-6);
            prop_assert!((one.safe_rate / one.full_rate - SAFE_LOAD).abs() < 1e-9);
        }
    }
}
