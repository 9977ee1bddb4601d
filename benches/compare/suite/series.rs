//! One thing at a time: the number of hops, the number of waiting messages.

use std::time::Duration;

use super::{
    Fallible,
    broker::Broker,
    layouts::{DelaylineSet, Layout, NServiceBus},
    ledger::lateness,
    machine::quietest,
    phase::{self, Phase},
    results::{Hops, Waiting},
    runs::{drain, paced, per_1000},
    scale::Scale,
    stand::Stand,
    workload::Workload,
};

/// Six zeros below one bit, and so on to seven bits.
const DELAYS: [u64; 7] = [64, 96, 112, 120, 124, 126, 127];

/// A delay that outlasts every measurement.
const FOR_EVER: u64 = 1 << 20;

/// The layouts whose messages go through levels.
pub fn layouts() -> [(&'static str, Box<dyn Layout>); 2] {
    [("nservicebus", Box::new(NServiceBus)), ("delayline", Box::new(DelaylineSet))]
}

pub fn hops(broker: &Broker, scale: &Scale) -> Fallible<Vec<Hops>> {
    let workload = workload(scale, DELAYS.to_vec());
    let mut lines = Vec::new();
    for (id, mut layout) in layouts() {
        let mut stand = Stand::new(broker, layout.as_mut(), &workload)?;
        for delay in DELAYS {
            let (drained, stolen) = quietest(
                scale.attempts,
                || drain(&mut stand.vhost, layout.as_mut(), delay, scale.hops, scale.patience),
                keep_failure,
            );
            let drained = drained?;
            lines.push(Hops {
                layout: id.into(),
                hops: delay.count_ones(),
                delay,
                drain_rate: drained.arrived_per_s,
                header_bytes: drained.header_bytes,
                cpu_s_per_1000: per_1000(&drained),
                stolen,
            });
        }
    }
    Ok(lines)
}

pub fn waiting(broker: &Broker, scale: &Scale) -> Fallible<Vec<Waiting>> {
    let workload = workload(scale, (1..=60).collect());
    let mut lines = Vec::new();
    for (id, mut layout) in layouts() {
        let mut stand = Stand::new(broker, layout.as_mut(), &workload)?;
        // What the layout before has left behind is not this one's.
        let (mut there, before) = (0, broker.memory());
        for &waiting in &scale.waiting {
            let mut fill_rate = None;
            if waiting > there {
                let plan = Phase {
                    delay: &|_| FOR_EVER,
                    most: waiting - there,
                    limit: Duration::from_secs(120),
                    rate: None,
                    fill: true,
                    patience: None,
                };
                let filled = phase::run(&mut stand.vhost, layout.as_mut(), &plan)?;
                there += filled.sums.confirmed;
                fill_rate = Some(filled.published_per_s);
            }
            let (probe, stolen) = quietest(
                scale.attempts,
                || paced(&mut stand.vhost, layout.as_mut(), &workload, scale),
                keep_failure,
            );
            let probe = probe?;
            let lateness = lateness(&probe.sums).ok_or("nothing arrived")?;
            let memory = broker.memory().saturating_sub(before);
            lines.push(Waiting { layout: id.into(), waiting: there, lateness, memory, fill_rate, stolen });
        }
    }
    Ok(lines)
}

/// No attempt is better than one that failed.
fn keep_failure<T>(kept: &mut Fallible<T>, other: Fallible<T>) {
    if kept.is_ok() && other.is_err() {
        *kept = other;
    }
}

fn workload(scale: &Scale, delays: Vec<u64>) -> Workload {
    Workload {
        id: "series",
        title: "one thing at a time",
        unit_ms: scale.series_unit,
        cohorts: vec![(scale.series_unit, delays.clone())],
        steps: vec![1, 5, 15],
        delays,
        is_burst: false,
    }
}
