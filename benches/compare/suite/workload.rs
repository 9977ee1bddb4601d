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
    /// The delays of messages that fall due together, one after the other.
    pub cohorts: Vec<u64>,
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
                cohorts: vec![1],
                steps: vec![1, 5, 15],
                is_burst: false,
            },
            Self {
                id: "mixed",
                title: "mixed delays, 1 to 60 units",
                unit_ms: scale.mixed_unit,
                delays: (1..=60).collect(),
                cohorts: vec![11, 19, 22],
                steps: vec![1, 5, 15, 60],
                is_burst: false,
            },
            Self {
                id: "real-life",
                title: "real-life delays",
                unit_ms: scale.real_life_unit,
                delays: real_life.clone(),
                cohorts: real_life.clone(),
                steps: real_life,
                is_burst: false,
            },
            Self {
                id: "burst",
                title: "a burst due at once",
                unit_ms: scale.mixed_unit,
                delays: vec![10],
                cohorts: vec![10],
                steps: vec![1, 5, 15],
                is_burst: true,
            },
        ]
    }

    /// The delay of a message, the same in every run.
    pub fn delay(&self, id: u64) -> u64 {
        let index = fastrand::Rng::with_seed(id).usize(..self.delays.len());
        self.delays[index]
    }

    /// Every delay that can come up.
    pub fn all_delays(&self) -> Vec<u64> {
        let mut delays = [&self.delays[..], &self.cohorts].concat();
        delays.sort_unstable();
        delays.dedup();
        delays
    }
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
}
