//! The machine that all this runs on, and what its host keeps for others.

use std::{fs, thread, time::Duration};

/// `USER_HZ`, the unit of times in `/proc`: 100 on all of today's architectures.
const TICKS_PER_SECOND: f64 = 100.0;

/// A measurement is made again while the host keeps more than this share of what is wanted
/// of the processors.
pub const ENOUGH: f64 = 0.05;

/// How long to wait before that: others' work comes in bursts.
const PAUSE: Duration = Duration::from_secs(10);

/// Seconds since the machine was started, of all its processors together.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cpu {
    /// What processes and the kernel had, or would have had if the host had not kept it.
    pub wanted: f64,
    /// What the host of a virtual machine kept.
    pub stolen: f64,
}

impl Cpu {
    pub fn now() -> Self {
        Self::read(&fs::read_to_string("/proc/stat").unwrap_or_default())
    }

    fn read(stat: &str) -> Self {
        // user, nice, system, idle, waiting for disks, interrupts (2), stolen
        let ticks: Vec<f64> =
            stat.split_whitespace().skip(1).take(8).filter_map(|text| text.parse().ok()).collect();
        let idle: f64 = ticks.iter().skip(3).take(2).sum();
        let stolen = ticks.get(7).copied().unwrap_or(0.0);
        Self {
            wanted: (ticks.iter().sum::<f64>() - idle) / TICKS_PER_SECOND,
            stolen: stolen / TICKS_PER_SECOND,
        }
    }

    /// The share of what was wanted since then that the host kept.
    pub fn stolen_since(self, before: Self) -> f64 {
        let wanted = self.wanted - before.wanted;
        if wanted > 0.0 { (self.stolen - before.stolen) / wanted } else { 0.0 }
    }
}

/// Measures, and measures again while the host keeps too much, so often at most. Returns the
/// attempt it disturbed least, and the share it kept; `add` gives that attempt what must not
/// be forgotten of the others.
pub fn quietest<T>(
    attempts: u32,
    mut attempt: impl FnMut() -> T,
    mut add: impl FnMut(&mut T, T),
) -> (T, f64) {
    let mut measured = || {
        let before = Cpu::now();
        let result = attempt();
        (result, Cpu::now().stolen_since(before))
    };
    let (mut kept, mut least) = measured();
    for _ in 1..attempts {
        if least <= ENOUGH {
            break;
        }
        thread::sleep(PAUSE);
        let (mut other, stolen) = measured();
        if stolen < least {
            least = stolen;
            std::mem::swap(&mut kept, &mut other);
        }
        add(&mut kept, other);
    }
    (kept, least)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_host_kept_is_a_share_of_what_was_wanted() {
        let before = Cpu::read("cpu  1000 0 500 9000 100 0 50 50 0 0\ncpu0 1 2 3");
        assert_eq!(before, Cpu { wanted: 16.0, stolen: 0.5 });
        let after = Cpu::read("cpu  1100 0 540 9900 100 0 60 100 0 0");
        assert!((after.stolen_since(before) - 0.25).abs() < 1e-9);
        assert_eq!(before.stolen_since(before), 0.0);
        assert_eq!(Cpu::read(""), Cpu { wanted: 0.0, stolen: 0.0 });
    }

    #[test]
    fn nothing_that_was_measured_is_forgotten() {
        let mut count = 0;
        let (kept, stolen) = quietest(
            2,
            || {
                count += 1;
                vec![count]
            },
            |kept, mut other| kept.append(&mut other),
        );
        assert!((0.0..=1.0).contains(&stolen) && (1..=2).contains(&kept.len()), "{kept:?} {stolen}");
    }
}
