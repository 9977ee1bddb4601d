//! The steps of a measurement, and their time limits.

use std::time::Duration;

use crate::capacity::Distribution;
use delayline_core::{codec::Delay, topology::Unit};

use super::mark::MARK;

/// The most queues that a message passes through in a drain measurement, so that its delay
/// stays short.
const MOST_HOPS: u32 = 12;

/// The measurements to make.
#[derive(Debug, Clone)]
pub struct BenchPlan {
    /// Messages per measurement; fewer if they would take too long.
    pub count: u64,
    /// The length of a body, in bytes.
    pub size: usize,
    /// How many queues the messages pass through in each drain measurement.
    pub hops: Vec<u32>,
    /// Messages per second of the steady load; 0 for none.
    pub rate: u32,
    /// Their delays.
    pub delays: Distribution,
    /// How long they are published.
    pub duration: Duration,
    /// The length of a unit of delay: how long a second of the delays above lasts during the
    /// measurement.
    pub unit: Unit,
    /// Whether to look for the highest rate at which messages are in time.
    pub knee: bool,
    /// How long each other measurement may take.
    pub patience: Duration,
}

/// Why something cannot be measured.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// Too few messages for a rate, or too many for a short run.
    #[error("{count} messages cannot be measured; use 100 to 1000000")]
    Count {
        /// The number asked for.
        count: u64,
    },
    /// Too small for the mark of a message, or too large.
    #[error("a body of {size} bytes cannot be measured; use {MARK} to 1048576")]
    Size {
        /// The size asked for.
        size: usize,
    },
    /// Not a possible number of queues.
    #[error("messages through {hops} queues cannot be measured; use 1 to {MOST_HOPS}")]
    Hops {
        /// The number asked for.
        hops: u32,
    },
    /// The delays are too long for a short run.
    #[error(
        "even {speed} times faster than real time, the longest of these delays lasts {seconds} s, and so \
         would the measurement; use shorter delays, or a higher --speed"
    )]
    Delays {
        /// How long it lasts, in seconds.
        seconds: u64,
        /// How many times faster than real time that already is.
        speed: u64,
    },
    /// The steady load has no duration.
    #[error("a steady load must last a second or more (--duration); a rate of 0 leaves it out")]
    Duration,
    /// Too many messages to keep track of.
    #[error("{messages} messages cannot be kept track of; use a lower rate or a shorter duration")]
    Load {
        /// The number that rate and duration make.
        messages: u64,
    },
}

impl BenchPlan {
    /// The longest a delay may last while it is measured.
    pub const LONGEST: Duration = Duration::from_secs(120);

    /// The most messages of one steady load.
    const MOST: u64 = 20_000_000;

    /// The plan, if it can be carried out.
    ///
    /// # Errors
    /// The first thing that cannot be.
    pub fn checked(self) -> Result<Self, PlanError> {
        if !(100..=1_000_000).contains(&self.count) {
            return Err(PlanError::Count { count: self.count });
        }
        if !(MARK..=1 << 20).contains(&self.size) {
            return Err(PlanError::Size { size: self.size });
        }
        if let Some(&hops) = self.hops.iter().find(|hops| !(1..=MOST_HOPS).contains(*hops)) {
            return Err(PlanError::Hops { hops });
        }
        if self.steady() && self.duration.is_zero() {
            return Err(PlanError::Duration);
        }
        let longest = self.longest();
        if self.steady() && longest > Self::LONGEST {
            let speed = 1_000 / u64::from(self.unit.millis());
            return Err(PlanError::Delays { seconds: longest.as_secs(), speed });
        }
        let messages = u64::from(self.rate) * self.duration.as_secs().max(1);
        if messages > Self::MOST {
            return Err(PlanError::Load { messages });
        }
        Ok(self)
    }

    /// Whether a steady load is measured at all.
    #[must_use]
    pub fn steady(&self) -> bool {
        self.rate > 0
    }

    /// How long the longest delay of the steady load lasts.
    #[must_use]
    pub fn longest(&self) -> Duration {
        self.delays.longest().duration(self.unit.duration())
    }
}

impl Default for BenchPlan {
    /// Takes about a minute.
    fn default() -> Self {
        Self {
            count: 20_000,
            size: 256,
            hops: vec![1, 3, 6],
            rate: 1_000,
            delays: "uniform:1s..60s".parse().expect("it is one"),
            duration: Duration::from_secs(10),
            unit: Unit::from_millis(50).expect("it is one"),
            knee: false,
            patience: Duration::from_secs(5),
        }
    }
}

/// The delay for messages that fall due together: it passes through so many queues, and is
/// long enough that all are in the first of them before any leaves it.
pub(super) fn delay_of(hops: u32, filling: Duration, unit: Unit) -> Delay {
    // One level for the wait, and the lowest ones for the other hops.
    let others = (1_u64 << (hops - 1)) - 1;
    let first =
        (hops - 1..28).find(|level| unit.duration().saturating_mul(1 << level) >= filling).unwrap_or(27);
    Delay::from_seconds((1 << first) + others).unwrap_or(Delay::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_can_be_carried_out() {
        assert!(BenchPlan::default().checked().is_ok());
    }

    #[test]
    fn says_what_cannot() {
        let plan = BenchPlan::default();
        for (plan, word) in [
            (BenchPlan { count: 5, ..plan.clone() }, "5 messages"),
            (BenchPlan { size: 1, ..plan.clone() }, "16 to"),
            (BenchPlan { hops: vec![1, 0], ..plan.clone() }, "0 queues"),
            (BenchPlan { hops: vec![13], ..plan.clone() }, "1 to 12"),
            (
                BenchPlan { delays: "fixed:1d".parse().unwrap(), ..plan.clone() },
                "of these delays lasts 4320 s",
            ),
            (BenchPlan { rate: 1_000_000, duration: Duration::from_secs(60), ..plan.clone() }, "60000000"),
            (BenchPlan { duration: Duration::ZERO, ..plan.clone() }, "a second or more"),
        ] {
            let error = plan.checked().expect_err(word).to_string();
            assert!(error.contains(word), "{word}: {error}");
        }
        // Without a steady load its delays do not matter.
        assert!(BenchPlan { rate: 0, delays: "fixed:1d".parse().unwrap(), ..plan }.checked().is_ok());
    }

    #[test]
    fn a_drained_message_passes_as_many_queues_as_asked() {
        let unit = Unit::from_millis(50).unwrap();
        for hops in 1..=12 {
            let delay = delay_of(hops, Duration::from_secs(2), unit);
            assert_eq!(delay.hops(), hops, "{delay}");
            let first = delay.levels().next().unwrap();
            assert!(unit.wait(first) >= Duration::from_secs(2) && first.number() >= hops as u8 - 1);
        }
        assert_eq!(delay_of(1, Duration::from_secs(2), unit).seconds(), 64);
    }
}
