//! How much is measured.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The sizes of all measurements. They say nothing about what is measured.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Scale {
    pub name: String,
    /// Messages per second where lateness is measured, and for how long.
    pub rate: f64,
    pub paced: Duration,
    /// Publishing without a limit: for so long, and so many messages at most.
    pub flood: Duration,
    pub flood_most: u64,
    /// How often; what counts is the one in the middle.
    pub floods: u32,
    /// Messages on their whole way, published as fast as they are confirmed.
    pub flat_out: u64,
    /// How often a measurement is made at most, if the host of a virtual machine keeps part of
    /// the processors meanwhile.
    pub attempts: u32,
    /// Messages that fall due together, and of each delay where there are several.
    pub drain: u64,
    pub cohort: u64,
    /// The unit of each workload in ms.
    pub equal_unit: u64,
    pub mixed_unit: u64,
    pub real_life_unit: u64,
    /// The units in which messages of a real-life delay fall due together: up to 30, up
    /// to 300, and longer.
    pub cohort_units: [u64; 3],
    /// And of the series.
    pub series_unit: u64,
    /// The longest of the real-life delays that is used, in units.
    pub longest: u64,
    /// Messages for each number of hops.
    pub hops: u64,
    /// Numbers of waiting messages.
    pub waiting: Vec<u64>,
    /// How long each step of the search for the knee takes; no search if zero.
    pub knee: Duration,
    /// How long after the last message is due the others are waited for.
    pub patience: Duration,
    /// How long the idle broker is watched.
    pub rest: Duration,
}

impl Scale {
    /// About 25 minutes for each version, with both configurations.
    pub fn full() -> Self {
        Self {
            name: "full".into(),
            rate: 1_000.0,
            paced: Duration::from_secs(3),
            flood: Duration::from_millis(1_500),
            flood_most: 30_000,
            floods: 3,
            flat_out: 10_000,
            attempts: 3,
            drain: 6_000,
            cohort: 1_500,
            equal_unit: 1_000,
            mixed_unit: 50,
            real_life_unit: 1,
            cohort_units: [200, 10, 2],
            series_unit: 10,
            longest: 3_600,
            hops: 3_000,
            waiting: vec![0, 20_000, 100_000],
            knee: Duration::from_secs(2),
            patience: Duration::from_secs(10),
            rest: Duration::from_secs(3),
        }
    }

    /// About eight minutes for each version: shows that everything works, and roughly where things stand.
    pub fn quick() -> Self {
        Self {
            name: "quick".into(),
            paced: Duration::from_secs(1),
            flood: Duration::from_millis(400),
            flood_most: 5_000,
            floods: 1,
            flat_out: 2_000,
            attempts: 1,
            drain: 1_500,
            cohort: 400,
            equal_unit: 500,
            mixed_unit: 20,
            cohort_units: [50, 5, 2],
            longest: 300,
            hops: 500,
            waiting: vec![0, 5_000],
            knee: Duration::from_secs(1),
            rest: Duration::from_secs(1),
            ..Self::full()
        }
    }

    /// Some seconds: for the tests, which look at no rates.
    pub fn tiny() -> Self {
        Self {
            name: "tiny".into(),
            rate: 200.0,
            paced: Duration::from_millis(300),
            flood: Duration::from_millis(50),
            flood_most: 50,
            floods: 1,
            flat_out: 50,
            attempts: 1,
            drain: 60,
            cohort: 20,
            equal_unit: 100,
            mixed_unit: 5,
            cohort_units: [5, 1, 1],
            series_unit: 1,
            longest: 60,
            hops: 20,
            waiting: vec![0, 200],
            knee: Duration::ZERO,
            // A test machine can be slow; nothing waits for this unless messages are missing.
            patience: Duration::from_secs(60),
            rest: Duration::from_millis(100),
            ..Self::full()
        }
    }
}
