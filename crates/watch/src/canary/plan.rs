//! Which probes are sent, and when.

use std::{collections::VecDeque, fmt, time::Duration};

use delayline_core::codec::{Delay, LEVELS, Shortcut};
use delayline_settings::CanarySettings;

/// The highest level that is probed by default: 2^6 = 64 s.
pub const HORIZON: u8 = CanarySettings::HORIZON;

/// A message of the canary: a delay, and so a route through the levels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Probe {
    delay: Delay,
}

impl Probe {
    /// A probe with this delay.
    #[must_use]
    pub const fn new(delay: Delay) -> Self {
        Self { delay }
    }

    /// How long it waits, in units of the set.
    #[must_use]
    pub const fn delay(self) -> Delay {
        self.delay
    }
}

impl fmt::Display for Probe {
    /// The levels it passes through, the longest wait first: `06`, `06+04+02+00`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, level) in self.delay.levels().enumerate() {
            write!(f, "{}{level:02}", if index > 0 { "+" } else { "" })?;
        }
        Ok(())
    }
}

/// The probes of one round: each level up to a horizon alone, so that a level that is
/// stuck can be named; all of them together; and every other one, twice, so that each
/// is also entered from above over zeros.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbePlan {
    probes: Vec<Probe>,
}

impl ProbePlan {
    /// The probes for all levels up to `horizon`, which is 27 at most.
    #[must_use]
    pub fn up_to(horizon: u8) -> Self {
        Self::of(horizon, false)
    }

    /// The same; in a set with shortcuts, each shortcut up to the horizon alone as well.
    #[must_use]
    pub fn of(horizon: u8, shortcuts: bool) -> Self {
        let horizon = horizon.min(LEVELS - 1);
        let all = (1_u64 << (horizon + 1)) - 1;
        let singles = (0..=horizon).map(|level| 1_u64 << level);
        let combinations = [all, all & 0x5555_5555, all & 0xaaaa_aaaa];
        let shortcuts = Shortcut::all().filter(|shortcut| shortcuts && shortcut.level().number() <= horizon);
        let shortcuts = shortcuts.map(|shortcut| shortcut.units().into());
        let mut probes = Vec::new();
        for seconds in singles.chain(combinations).chain(shortcuts) {
            let probe = Delay::from_seconds(seconds).map(Probe::new).expect("no more bits than levels");
            if seconds > 0 && !probes.contains(&probe) {
                probes.push(probe);
            }
        }
        Self { probes }
    }

    /// The probes, in the order in which they are sent.
    #[must_use]
    pub fn probes(&self) -> &[Probe] {
        &self.probes
    }
}

/// The next probe. A probe that may not be sent now is sent first once it may.
#[derive(Debug)]
pub(super) struct Turns(VecDeque<(Probe, u64)>);

impl Turns {
    /// Each probe of a plan, this many times.
    pub(super) fn of(plan: &ProbePlan, times: u64) -> Self {
        Self(plan.probes.iter().map(|probe| (*probe, times)).collect())
    }

    /// The next probe among those that may be sent.
    pub(super) fn next(&mut self, mut may: impl FnMut(Probe) -> bool) -> Option<Probe> {
        let place = self.0.iter().position(|(probe, left)| *left > 0 && may(*probe))?;
        let (probe, left) = self.0.remove(place)?;
        self.0.push_back((probe, left - 1));
        Some(probe)
    }
}

/// When probes are sent: one for each interval, without making up for missed intervals.
#[derive(Debug, Clone, Copy)]
pub struct Interval {
    interval: Duration,
    next: Duration,
}

impl Interval {
    /// The first one is sent at once. Times count from any fixed moment.
    #[must_use]
    pub const fn new(interval: Duration) -> Self {
        Self { interval, next: Duration::ZERO }
    }

    /// Whether one is due at `now`; the next then comes no sooner than an interval later.
    pub fn is_due(&mut self, now: Duration) -> bool {
        let due = now >= self.next;
        if due {
            self.next = now.saturating_add(self.interval);
        }
        due
    }

    /// How long until the next one.
    #[must_use]
    pub fn wait(&self, now: Duration) -> Duration {
        self.next.saturating_sub(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_has_each_level_alone_and_combinations() {
        let plan = ProbePlan::up_to(HORIZON);
        let names: Vec<_> = plan.probes().iter().map(Probe::to_string).collect();
        let expected =
            ["00", "01", "02", "03", "04", "05", "06", "06+05+04+03+02+01+00", "06+04+02+00", "05+03+01"];
        assert_eq!(names, expected);
        assert_eq!(ProbePlan::up_to(0).probes().len(), 1);
        assert_eq!(ProbePlan::up_to(200), ProbePlan::up_to(27));
    }

    #[test]
    fn shortcuts_are_probed_alone() {
        let plan = ProbePlan::of(HORIZON, true);
        // Eleven of word 0, and 3, 5, 6 and 7 of word 1.
        assert_eq!(plan.probes().len(), 10 + 11 + 4);
        assert!(plan.probes().iter().any(|probe| probe.to_string() == "06+04"));
    }

    #[test]
    fn a_probe_that_had_to_wait_comes_before_the_others() {
        let mut turns = Turns::of(&ProbePlan::up_to(2), 2);
        let mut next =
            |blocked: &str| turns.next(|probe| probe.to_string() != blocked).map(|it| it.to_string());
        let order: Vec<_> = ["02", "02", "02", "", "", "", "", "02", "", "", ""]
            .iter()
            .map_while(|blocked| next(blocked))
            .collect();
        assert_eq!(order, ["00", "01", "02+01+00", "02", "02+00", "00", "01", "02+01+00", "02", "02+00"]);
    }
}
