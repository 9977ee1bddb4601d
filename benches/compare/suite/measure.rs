//! A layout under a workload.

use std::{any::Any, thread, time::Duration};

use crate::rank;

use super::{
    Fallible,
    broker::{Broker, Vhost},
    layouts::{Layout, Straight},
    ledger::Verdict,
    phase::{self, Outcome, Plan, per_second},
    results::Cell,
    scale::Scale,
    workload::Workload,
};

/// How long the broker's statistics can be out of date.
const STATISTICS_LAG: Duration = Duration::from_secs(6);

/// A layout that stands in a vhost of its own.
pub struct Stand<'b> {
    // Before the vhost that it works in.
    _helper: Option<Box<dyn Any>>,
    pub vhost: Vhost<'b>,
}

impl<'b> Stand<'b> {
    /// Sets it up; a broker that was busy a moment ago gets a second chance.
    pub fn new(broker: &'b Broker, layout: &mut dyn Layout, workload: &Workload) -> Fallible<Self> {
        match Self::set_up(broker, layout, workload) {
            Ok(stand) => Ok(stand),
            Err(error) => {
                eprintln!("   once more, since: {error}");
                thread::sleep(Duration::from_secs(2));
                Self::set_up(broker, layout, workload)
            }
        }
    }

    fn set_up(broker: &'b Broker, layout: &mut dyn Layout, workload: &Workload) -> Fallible<Self> {
        let mut vhost = broker.vhost(workload.unit_ms)?;
        layout.install(&mut vhost, workload)?;
        Ok(Self { _helper: layout.helper(&vhost)?, vhost })
    }
}

/// Measures everything about it. Never fails: a failure is a figure too.
pub fn measure(
    broker: &Broker,
    id: &str,
    layout: &mut dyn Layout,
    workload: &Workload,
    scale: &Scale,
    reference: &mut Reference<'_>,
) -> Cell {
    let mut cell = Cell {
        layout: id.into(),
        workload: workload.id.into(),
        unit_ms: workload.unit_ms,
        ..Cell::default()
    };
    if let Err(error) = fill_in(&mut cell, broker, layout, workload, scale, reference) {
        cell.failure = Some(error.to_string());
    }
    cell
}

fn fill_in(
    cell: &mut Cell,
    broker: &Broker,
    layout: &mut dyn Layout,
    workload: &Workload,
    scale: &Scale,
    reference: &mut Reference<'_>,
) -> Fallible<()> {
    let mut stand = Stand::new(broker, layout, workload)?;
    let mut total = Verdict::default();
    if !workload.is_burst {
        let paced = paced(&mut stand.vhost, layout, workload, scale)?;
        cell.offered_rate = Some(scale.rate);
        cell.achieved_rate = Some(paced.published_per_s);
        cell.lateness = paced.verdict.lateness();
        cell.header_bytes = Some(paced.verdict.header_bytes);
        cell.cpu_s_per_1000 = Some(per_1000(&paced));
        total.add(&paced.verdict);
        let objects = stand.vhost.objects()?;
        (cell.queues, cell.bindings) = (objects.queues, objects.bindings);
        if paced.verdict.missing > 0 {
            note_missing(cell, &stand.vhost, paced.verdict.missing)?;
        }
    }
    drop(stand);
    drained(cell, &mut total, broker, layout, workload, scale, reference)?;
    if !workload.is_burst {
        flood(cell, broker, layout, workload, scale, reference)?;
    }
    cell.confirmed = total.confirmed;
    cell.refused = total.refused;
    cell.duplicated = total.duplicated;
    cell.early = total.early;
    Ok(())
}

/// Messages that fall due together, in turns with as many that go straight through.
fn drained(
    cell: &mut Cell,
    total: &mut Verdict,
    broker: &Broker,
    layout: &mut dyn Layout,
    workload: &Workload,
    scale: &Scale,
    reference: &mut Reference<'_>,
) -> Fallible<()> {
    let cohorts: usize = workload.cohorts.iter().map(|(_, delays)| delays.len()).sum();
    let count = if cohorts == 1 { scale.drain } else { scale.cohort };
    let (mut ours, mut straight) = (Sum::default(), Sum::default());
    for (unit, delays) in &workload.cohorts {
        let workload = workload.in_unit(*unit);
        let mut stand = Stand::new(broker, layout, &workload)?;
        for &delay in delays {
            let drained = drain(&mut stand.vhost, layout, delay, count, scale.patience)?;
            straight.add(&reference.drain(count, scale)?);
            ours.add(&drained);
            total.add(&drained.verdict);
            if workload.is_burst {
                cell.lateness = drained.verdict.lateness();
                cell.header_bytes = Some(drained.verdict.header_bytes);
                cell.cpu_s_per_1000 = Some(per_1000(&drained));
                let objects = stand.vhost.objects()?;
                (cell.queues, cell.bindings) = (objects.queues, objects.bindings);
            }
            if drained.verdict.missing > 0 {
                note_missing(cell, &stand.vhost, drained.verdict.missing)?;
                drop(stand);
                stand = Stand::new(broker, layout, &workload)?;
            }
        }
    }
    cell.drain_rate = Some(ours.rate());
    cell.drain_share = Some(ours.rate() / straight.rate());
    Ok(())
}

/// What arrived, and in what time.
#[derive(Default)]
struct Sum {
    arrived: u64,
    arriving: Duration,
}

impl Sum {
    fn add(&mut self, outcome: &Outcome) {
        self.arrived += outcome.verdict.confirmed - outcome.verdict.missing;
        self.arriving += outcome.arriving;
    }

    fn rate(&self) -> f64 {
        per_second(usize::try_from(self.arrived).unwrap_or(usize::MAX), self.arriving)
    }
}

/// As fast as they are confirmed, through the entry, while nothing falls due; in turns
/// with the limit. What counts is the middle of several.
fn flood(
    cell: &mut Cell,
    broker: &Broker,
    layout: &mut dyn Layout,
    workload: &Workload,
    scale: &Scale,
    reference: &mut Reference<'_>,
) -> Fallible<()> {
    let far = workload.far();
    let mut stand = Stand::new(broker, layout, &far)?;
    let (mut rates, mut shares) = (Vec::new(), Vec::new());
    for _ in 0..scale.floods {
        let limit = reference.publish(scale)?;
        let rate = publish(&mut stand.vhost, layout, &|id| far.delay(id), scale)?;
        rates.push(rate);
        shares.push(rate / limit);
    }
    let middle = |mut figures: Vec<f64>| {
        figures.sort_by(f64::total_cmp);
        rank::at(&figures, 50.0)
    };
    (cell.publish_rate, cell.publish_share) = (middle(rates), middle(shares));
    Ok(())
}

fn publish(
    vhost: &mut Vhost<'_>,
    layout: &mut dyn Layout,
    delay: &dyn Fn(u64) -> u64,
    scale: &Scale,
) -> Fallible<f64> {
    let plan =
        Plan { delay, most: scale.flood_most, limit: scale.flood, rate: None, fill: false, patience: None };
    Ok(phase::run(vhost, layout, &plan)?.published_per_s)
}

/// The limit, to measure in turns with every layout: machines get faster and slower
/// within minutes.
pub struct Reference<'b> {
    stand: Stand<'b>,
}

impl<'b> Reference<'b> {
    pub fn new(broker: &'b Broker, workload: &Workload) -> Fallible<Self> {
        Ok(Self { stand: Stand::new(broker, &mut Straight, workload)? })
    }

    fn publish(&mut self, scale: &Scale) -> Fallible<f64> {
        let rate = publish(&mut self.stand.vhost, &mut Straight, &|_| 1, scale)?;
        self.stand.vhost.empty_inbox()?;
        Ok(rate)
    }

    fn drain(&mut self, count: u64, scale: &Scale) -> Fallible<Outcome> {
        drain(&mut self.stand.vhost, &mut Straight, 1, count, scale.patience)
    }
}

/// At a steady rate, through the entry.
pub fn paced(
    vhost: &mut Vhost<'_>,
    layout: &mut dyn Layout,
    workload: &Workload,
    scale: &Scale,
) -> Fallible<Outcome> {
    let most = (scale.rate * scale.paced.as_secs_f64()) as u64;
    let plan = Plan {
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

/// Messages of one delay, put past the entry, that fall due as fast as they went in.
pub fn drain(
    vhost: &mut Vhost<'_>,
    layout: &mut dyn Layout,
    delay: u64,
    count: u64,
    patience: Duration,
) -> Fallible<Outcome> {
    let plan = Plan {
        delay: &|_| delay,
        most: count,
        limit: Duration::from_secs(20),
        rate: None,
        fill: true,
        patience: Some(patience),
    };
    phase::run(vhost, layout, &plan)
}

pub fn per_1000(outcome: &Outcome) -> f64 {
    outcome.cpu * 1_000.0 / outcome.verdict.confirmed.max(1) as f64
}

/// What did not come is lost, unless it is still in a queue.
fn note_missing(cell: &mut Cell, vhost: &Vhost<'_>, missing: u64) -> Fallible<()> {
    thread::sleep(STATISTICS_LAG);
    let kept = vhost.objects()?.messages.min(missing);
    cell.unfinished += kept;
    cell.lost += missing - kept;
    Ok(())
}
