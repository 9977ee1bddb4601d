//! The load that a workload puts on each level.

use serde::Serialize;

use delayline_core::codec::{Hop, LEVELS, Level, Tolerance};

use super::Distribution;

/// The load of a steady rate of messages on the levels of one set.
#[derive(Debug, Clone, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Load {
    /// Messages per second that come in.
    pub rate: f64,
    /// The levels, from 0 up.
    pub levels: Vec<LevelLoad>,
    /// How many queues a message passes through, on average.
    pub hops: f64,
    /// How long a message waits, on average, in seconds, including the tolerance.
    pub mean_delay: f64,
}

/// The load on one level.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, schemars::JsonSchema)]
pub struct LevelLoad {
    /// 0 to 27.
    pub level: Level,
    /// The share of the messages that pass through it, 0 to 1.
    pub share: f64,
    /// Messages per second through it.
    pub per_second: f64,
    /// Messages that wait in it at any time.
    pub waiting: f64,
}

impl Load {
    /// The load of `rate` messages per second with such delays, each made longer
    /// within the tolerance where that saves hops.
    ///
    /// The numbers are those of the steady state: a level keeps filling up for as long as its
    /// longest messages wait. Shortcuts count as part of the level of their highest bit, so a level is
    /// loaded no more than this.
    #[must_use]
    pub fn new(rate: f64, delays: &Distribution, tolerance: Tolerance, shortcuts: bool) -> Self {
        let mut shares = [(0.0, 0.0); LEVELS as usize];
        delays.visit(|delay, share| {
            for hop in Hop::of(tolerance.round_for(delay, shortcuts), shortcuts) {
                let (passing, waits) = &mut shares[hop.level().index()];
                *passing += share;
                *waits += share * f64::from(hop.units());
            }
        });
        let levels: Vec<_> = Level::all()
            .zip(shares)
            .map(|(level, (share, waits))| LevelLoad {
                level,
                share,
                per_second: rate * share,
                waiting: rate * waits,
            })
            .collect();
        Self {
            rate,
            hops: shares.iter().map(|(share, _)| share).sum(),
            mean_delay: shares.iter().map(|(_, waits)| waits).sum(),
            levels,
        }
    }

    /// Messages that wait at any time, in all levels.
    #[must_use]
    pub fn waiting(&self) -> f64 {
        self.levels.iter().map(|level| level.waiting).sum()
    }

    /// The level that most messages pass through; the lowest of them if there are several, as
    /// nearly as shares are known.
    #[must_use]
    pub fn hottest(&self) -> LevelLoad {
        const ALIKE: f64 = 0.004;
        let most = self.levels.iter().map(|level| level.share).fold(0.0, f64::max);
        let hottest = self.levels.iter().find(|level| level.share >= most * (1.0 - ALIKE));
        *hottest.expect("the level with the most passes the filter")
    }

    /// The levels that hold the most messages, in this order, until together they hold a
    /// share of all.
    #[must_use]
    pub fn fullest(&self, share: f64) -> Vec<LevelLoad> {
        let mut levels = self.levels.clone();
        levels.sort_by(|a, b| b.waiting.total_cmp(&a.waiting));
        let (all, mut sum) = (self.waiting(), 0.0);
        let enough = |level: &LevelLoad| {
            let more = sum < share * all && level.waiting > 0.0;
            sum += level.waiting;
            more
        };
        levels.into_iter().take_while(enough).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn load(rate: f64, delays: &str, tolerance: &str) -> Load {
        Load::new(rate, &delays.parse().unwrap(), tolerance.parse().unwrap(), false)
    }

    #[test]
    fn a_fixed_delay_passes_the_levels_of_its_bits() {
        let load = load(100.0, "fixed:5s", "0s");
        let passed: Vec<_> = load.levels.iter().filter(|level| level.share > 0.0).collect();
        assert_eq!(passed.iter().map(|level| level.level).collect::<Vec<_>>(), [0, 2]);
        assert_eq!(passed.iter().map(|level| level.waiting).collect::<Vec<_>>(), [100.0, 400.0]);
        assert_eq!((load.hops, load.mean_delay, load.waiting()), (2.0, 5.0, 500.0));
    }

    #[test]
    fn a_year_of_delays_fills_the_upper_levels_and_heats_all_alike() {
        let load = load(100_000.0, "uniform:1s..365d", "0s");
        assert!((load.hottest().share - 0.5).abs() < 0.04, "{:?}", load.hottest());
        assert!((load.waiting() / (100_000.0 * 365.0 * 43_200.0) - 1.0).abs() < 0.001);
        let fullest: Vec<_> = load.fullest(0.9).iter().map(|level| level.level).collect();
        assert_eq!(fullest, [24, 23, 22, 21]);
    }

    #[test]
    fn a_level_that_few_pass_is_hotter_than_one_that_none_passes() {
        assert_eq!(load(100.0, "mix:0s=99.9%,8s=0.1%", "0%").hottest().level, 3);
    }

    #[test]
    fn shortcuts_save_hops_and_no_time() {
        let of = |shortcuts| Load::new(1.0, &"uniform:1s..1h".parse().unwrap(), Tolerance::NONE, shortcuts);
        let (without, with) = (of(false), of(true));
        assert!(with.hops < without.hops * 0.6, "{} {}", with.hops, without.hops);
        assert!((with.mean_delay - without.mean_delay).abs() < 1e-6 && with.waiting() > 1_000.0);
    }

    #[test]
    fn a_tolerance_saves_hops() {
        let (exact, rounded) = (load(1.0, "uniform:1s..1h", "0s"), load(1.0, "uniform:1s..1h", "5%"));
        assert!(rounded.hops < exact.hops * 0.75, "{} {}", rounded.hops, exact.hops);
        assert!(rounded.mean_delay > exact.mean_delay && rounded.mean_delay < exact.mean_delay * 1.05);
    }

    fn distribution() -> impl Strategy<Value = String> {
        let delay = 0_u64..5_000;
        prop_oneof![
            delay.clone().prop_map(|d| format!("fixed:{d}")),
            (delay.clone(), delay.clone()).prop_map(|(a, b)| format!("uniform:{}..{}", a.min(b), a.max(b))),
            (1_u64..300).prop_map(|mean| format!("exponential:{mean}")),
            (delay.clone(), delay, 1_u32..100)
                .prop_map(|(a, b, share)| format!("mix:{a}={share}%,{b}={}%", 100 - share)),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Little's law: the number of waiting messages is the rate times their mean wait.
        #[test]
        fn as_many_wait_as_come_in_while_one_waits(delays in distribution(), rate in 1.0..1e6) {
            let load = load(rate, &delays, "0s");
            let mut mean = 0.0;
            delays.parse::<Distribution>().unwrap().visit(|delay, share| mean += share * f64::from(delay.seconds()));
            prop_assert!((load.waiting() - rate * mean).abs() <= 1e-6 * rate * mean.max(1.0));
            prop_assert!((load.mean_delay - mean).abs() <= 1e-6 * mean.max(1.0));
        }

        #[test]
        fn shares_are_shares_and_twice_the_rate_is_twice_the_load(delays in distribution(), rate in 1.0..1e6) {
            let (one, two) = (load(rate, &delays, "0s"), load(2.0 * rate, &delays, "0s"));
            for (a, b) in one.levels.iter().zip(&two.levels) {
                prop_assert!((0.0..=1.0 + 1e-9).contains(&a.share));
                prop_assert!((b.per_second - 2.0 * a.per_second).abs() <= 1e-6 * rate);
            }
            prop_assert!(one.hops <= 28.0);
        }

        /// More tolerance never costs a hop, and a delay grows by no more than it allows.
        #[test]
        fn tolerance_never_hurts(delays in distribution(), small in 0_u32..50, more in 0_u32..50) {
            let loads = [0, small, small + more].map(|per_cent| load(1.0, &delays, &format!("{per_cent}%")));
            prop_assert!(loads[1].hops <= loads[0].hops + 1e-9);
            prop_assert!(loads[2].hops <= loads[1].hops + 1e-9);
            let limit = loads[0].mean_delay * (1.0 + f64::from(small) / 100.0);
            prop_assert!(loads[1].mean_delay <= limit + 1e-6 && loads[1].mean_delay >= loads[0].mean_delay - 1e-6);
        }
    }
}
