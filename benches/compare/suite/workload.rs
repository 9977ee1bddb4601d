//! Which delays, and in what order.

use super::scale::Scale;

/// Seven delays that applications use, in seconds.
const REAL_LIFE: [u64; 7] = [1, 5, 30, 60, 300, 900, 3_600];

/// A mix of delays.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workload {
    pub id: &'static str,
    pub title: &'static str,
    pub unit_ms: u64,
    /// What is drawn from, in units; each as often.
    pub delays: Vec<u64>,
    /// The delays of messages that fall due together, one after the other; each with a
    /// unit in ms with which they are all in before the first queue hands one on.
    pub cohorts: Vec<(u64, Vec<u64>)>,
    /// The wait queues of layouts that have a fixed number of them.
    pub steps: Vec<u64>,
    /// Whether all that is measured is how messages come out that fall due together.
    pub is_burst: bool,
}

impl Workload {
    pub fn all(scale: &Scale) -> Vec<Self> {
        let real_life: Vec<_> = REAL_LIFE.into_iter().filter(|&delay| delay <= scale.longest).collect();
        vec![
            Self {
                id: "equal",
                title: "equal short delays",
                unit_ms: scale.equal_unit,
                delays: vec![1],
                cohorts: vec![(scale.equal_unit, vec![1])],
                steps: vec![1, 5, 15],
                is_burst: false,
            },
            Self {
                id: "mixed",
                title: "mixed delays, 1 to 60 units",
                unit_ms: scale.mixed_unit,
                delays: (1..=60).collect(),
                cohorts: vec![(scale.mixed_unit, vec![11, 19, 22])],
                steps: vec![1, 5, 15, 60],
                is_burst: false,
            },
            Self {
                id: "real-life",
                title: "real-life delays",
                unit_ms: scale.real_life_unit,
                delays: real_life.clone(),
                cohorts: real_life_cohorts(&real_life, scale.cohort_units),
                steps: real_life,
                is_burst: false,
            },
            Self {
                id: "burst",
                title: "a burst due at once",
                unit_ms: scale.mixed_unit,
                delays: vec![10],
                cohorts: vec![(scale.mixed_unit, vec![10])],
                steps: vec![1, 5, 15],
                is_burst: true,
            },
        ]
    }

    /// Whether it stands for what applications do, so that the page begins with its figures.
    pub fn is_headline(&self) -> bool {
        self.id == "real-life"
    }

    /// The delay of a message, the same in every run.
    pub fn delay(&self, id: u64) -> u64 {
        let index = fastrand::Rng::with_seed(id).usize(..self.delays.len());
        self.delays[index]
    }

    /// The same with each delay so much longer that nothing falls due while it is
    /// published: a minute and more, through as many levels.
    pub fn far(&self) -> Self {
        let times = |delays: &[u64]| delays.iter().map(|delay| delay << 6).collect();
        Self {
            unit_ms: 1_000,
            delays: times(&self.delays),
            cohorts: Vec::new(),
            steps: times(&self.steps),
            ..self.clone()
        }
    }

    /// The same in another unit.
    pub fn in_unit(&self, unit_ms: u64) -> Self {
        Self { unit_ms, ..self.clone() }
    }

    /// Every delay that can come up.
    pub fn all_delays(&self) -> Vec<u64> {
        let cohorts = self.cohorts.iter().flat_map(|(_, delays)| delays);
        let mut delays: Vec<_> = self.delays.iter().chain(cohorts).copied().collect();
        delays.sort_unstable();
        delays.dedup();
        delays
    }
}

/// A short delay needs a long unit; a long one would never end with that.
fn real_life_cohorts(delays: &[u64], units: [u64; 3]) -> Vec<(u64, Vec<u64>)> {
    let part = |least: u64, most: u64| -> Vec<u64> {
        delays.iter().copied().filter(|delay| (least..=most).contains(delay)).collect()
    };
    let parts = [(units[0], part(1, 30)), (units[1], part(31, 300)), (units[2], part(301, u64::MAX))];
    parts.into_iter().filter(|(_, delays)| !delays.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_run_has_the_same_delays_and_all_of_them() {
        for workload in Workload::all(&Scale::full()) {
            let drawn: std::collections::BTreeSet<_> = (0..2_000).map(|id| workload.delay(id)).collect();
            assert_eq!(drawn.into_iter().collect::<Vec<_>>(), workload.delays, "{}", workload.id);
            assert_eq!(workload.delay(5), workload.delay(5));
        }
    }

    #[test]
    fn each_delay_has_its_cohort() {
        for workload in Workload::all(&Scale::full()) {
            let cohorts: Vec<u64> = workload.cohorts.iter().flat_map(|(_, delays)| delays.clone()).collect();
            if workload.id == "real-life" {
                assert_eq!(cohorts, workload.delays);
            }
            // 20,000 messages go in per second, or more.
            for (unit, delays) in &workload.cohorts {
                let first = |delay: &u64| unit << delay.ilog2();
                let count = if cohorts.len() == 1 { Scale::full().drain } else { Scale::full().cohort };
                assert!(delays.iter().all(|delay| first(delay) >= count / 20), "{}", workload.id);
            }
        }
    }
}
