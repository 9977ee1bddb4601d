//! The phases that measurements consist of.

use std::time::Duration;

use super::{
    Fallible,
    broker::Vhost,
    layouts::Layout,
    phase::{self, Phase, PhaseFigures},
    scale::Scale,
    workload::Workload,
};

/// At a steady rate, through the entry.
pub fn paced(
    vhost: &mut Vhost<'_>,
    layout: &mut dyn Layout,
    workload: &Workload,
    scale: &Scale,
) -> Fallible<PhaseFigures> {
    let most = (scale.rate * scale.paced.as_secs_f64()) as u64;
    let plan = Phase {
        delay: &|id| workload.delay(id),
        most,
        // A layout that is too slow publishes fewer.
        limit: scale.paced * 3 / 2,
        rate: Some(scale.rate),
        fill: false,
        patience: Some(scale.patience),
    };
    phase::run(vhost, layout, &plan)
}

/// As fast as they are confirmed, through the entry, until the last has arrived.
pub fn flat_out(
    vhost: &mut Vhost<'_>,
    layout: &mut dyn Layout,
    workload: &Workload,
    scale: &Scale,
) -> Fallible<PhaseFigures> {
    let plan = Phase {
        delay: &|id| workload.delay(id),
        most: scale.flat_out,
        limit: Duration::from_secs(20),
        rate: None,
        fill: false,
        patience: Some(scale.patience),
    };
    phase::run(vhost, layout, &plan)
}

/// Messages of one delay, put past the entry, that fall due as fast as they went in.
pub fn drain(
    vhost: &mut Vhost<'_>,
    layout: &mut dyn Layout,
    delay: u64,
    count: u64,
    patience: Duration,
) -> Fallible<PhaseFigures> {
    let plan = Phase {
        delay: &|_| delay,
        most: count,
        limit: Duration::from_secs(20),
        rate: None,
        fill: true,
        patience: Some(patience),
    };
    phase::run(vhost, layout, &plan)
}

pub fn per_1000(outcome: &PhaseFigures) -> f64 {
    outcome.cpu * 1_000.0 / outcome.sums.confirmed.max(1) as f64
}

/// As fast as they are confirmed, through the entry. Returns how many per second.
pub fn publish(
    vhost: &mut Vhost<'_>,
    layout: &mut dyn Layout,
    delay: &dyn Fn(u64) -> u64,
    scale: &Scale,
) -> Fallible<f64> {
    let plan =
        Phase { delay, most: scale.flood_most, limit: scale.flood, rate: None, fill: false, patience: None };
    Ok(phase::run(vhost, layout, &plan)?.published_per_s)
}
