//! The highest rate that a layout sustains.

use std::time::Duration;

use super::{
    Fallible,
    broker::Broker,
    layouts::Layout,
    ledger::late_ms,
    machine::{Cpu, ENOUGH},
    phase::{self, Phase},
    results::{Knee, Step},
    scale::Scale,
    stand::Stand,
    workload::Workload,
};

/// A rate holds while the 99th percentile of lateness stays under it.
pub const LIMIT_MS: f64 = 50.0;

/// And while so much of it is achieved.
const ACHIEVED: f64 = 0.98;

const FIRST: f64 = 1_000.0;

/// The search ends when it knows the rate to within so much.
const PRECISION: f64 = 1.2;

/// How often a rate is tried at most.
const ATTEMPTS: u32 = 5;

/// Messages of a rate that is much too high pile up; they are not waited for long.
const PATIENCE: Duration = Duration::from_millis(700);

/// Searches with mixed delays of 1 to 60 units.
pub fn search(broker: &Broker, id: &str, layout: &mut dyn Layout, scale: &Scale) -> Fallible<Knee> {
    let workload = Workload {
        id: "knee",
        title: "mixed delays",
        unit_ms: scale.series_unit,
        delays: (1..=60).collect(),
        cohorts: Vec::new(),
        steps: vec![1, 5, 15, 60],
        is_burst: false,
    };
    let mut stand = Some(Stand::new(broker, layout, &workload)?);
    let mut steps = Vec::new();
    let rate = bisect(FIRST, PRECISION, |rate| {
        // The machine may have been busy with something else: twice is bad, not once, and
        // less often than that if its host kept it from us.
        let mut bad = 0;
        for _ in 0..ATTEMPTS {
            let mut current = match stand.take() {
                Some(stand) => stand,
                None => Stand::new(broker, layout, &workload)?,
            };
            let (step, missing) = attempt(&mut current, layout, &workload, rate, scale.knee)?;
            let holds = step.holds;
            bad += u32::from(!holds && step.stolen <= ENOUGH);
            steps.push(step);
            // What is left over would be in the way.
            if missing == 0 {
                stand = Some(current);
            }
            if holds || bad == 2 {
                return Ok(holds);
            }
        }
        Ok(false)
    })?;
    Ok(Knee { layout: id.into(), rate, steps })
}

fn attempt(
    stand: &mut Stand<'_>,
    layout: &mut dyn Layout,
    workload: &Workload,
    rate: f64,
    time: Duration,
) -> Fallible<(Step, u64)> {
    let plan = Phase {
        delay: &|id| workload.delay(id),
        most: (rate * time.as_secs_f64()) as u64,
        limit: time * 3 / 2,
        rate: Some(rate),
        fill: false,
        patience: Some(PATIENCE),
    };
    let before = Cpu::now();
    let outcome = phase::run(&mut stand.vhost, layout, &plan)?;
    let stolen = Cpu::now().stolen_since(before);
    let (achieved, p99_ms) = (outcome.published_per_s, late_ms(&outcome.sums, 99.0));
    let holds = outcome.sums.missing == 0 && achieved >= ACHIEVED * rate && p99_ms < LIMIT_MS;
    Ok((Step { rate, achieved, p99_ms, holds, stolen }, outcome.sums.missing))
}

/// The highest rate that holds, to within a factor. Zero if none does.
fn bisect(first: f64, precision: f64, mut holds: impl FnMut(f64) -> Fallible<bool>) -> Fallible<f64> {
    let (mut good, mut bad) = (None, None);
    loop {
        let rate = match (good, bad) {
            (None, None) => first,
            (Some(good), None) => good * 2.0,
            (None, Some(bad)) => bad / 2.0,
            (Some(good), Some(bad)) if bad / good > precision => f64::sqrt(good * bad),
            (Some(good), Some(_)) => return Ok(good),
        };
        if rate < 10.0 {
            return Ok(0.0);
        }
        match holds(rate)? {
            true => good = Some(rate),
            false => bad = Some(rate),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_rate() {
        for limit in [40.0, 999.0, 1_000.0, 3_456.0, 20_000.0] {
            let found = bisect(1_000.0, 1.1, |rate| Ok(rate <= limit)).unwrap();
            assert!(found <= limit && limit < found * 1.1, "{limit}: {found}");
        }
        assert_eq!(bisect(1_000.0, 1.1, |_| Ok(false)).unwrap(), 0.0);
        assert!(bisect(1_000.0, 1.1, |_| Err("the broker is gone".into())).is_err());
    }
}
