//! A layout under a workload.

use std::{thread, time::Duration};

use delayline_measure::ledger::{Summary, percentile};

use super::{
    Fallible,
    broker::{Broker, Vhost},
    layouts::Layout,
    ledger::lateness,
    phase::{PhaseFigures, per_second},
    reference::Reference,
    results::Cell,
    runs::{drain, flat_out, paced, per_1000, publish},
    scale::Scale,
    stand::Stand,
    workload::Workload,
};

/// How long the broker's statistics can be out of date.
const STATISTICS_LAG: Duration = Duration::from_secs(6);

/// Measures everything about it. Never fails: a failure is a figure too.
pub fn measure<'b>(
    broker: &'b Broker,
    id: &str,
    layout: &mut dyn Layout,
    workload: &Workload,
    scale: &Scale,
    reference: &mut Reference<'b>,
) -> Cell {
    let cell = Cell {
        layout: id.into(),
        workload: workload.id.into(),
        unit_ms: workload.unit_ms,
        ..Cell::default()
    };
    let mut measuring =
        Measuring { broker, layout, workload, scale, reference, cell, total: Summary::default() };
    let failure = measuring.all().err().map(|error| error.to_string());
    let Measuring { cell, total, .. } = measuring;
    Cell {
        confirmed: total.confirmed,
        refused: total.refused,
        duplicated: total.duplicated,
        early: total.early,
        failure,
        ..cell
    }
}

struct Measuring<'a, 'b> {
    broker: &'b Broker,
    layout: &'a mut dyn Layout,
    workload: &'a Workload,
    scale: &'a Scale,
    reference: &'a mut Reference<'b>,
    cell: Cell,
    /// Of all phases that wait for messages.
    total: Summary,
}

impl<'b> Measuring<'_, 'b> {
    fn all(&mut self) -> Fallible<()> {
        if self.workload.is_burst {
            return self.drained();
        }
        self.paced()?;
        self.drained()?;
        if self.workload.is_headline() {
            self.flat_out()?;
        }
        self.flood()
    }

    fn stand(&mut self, workload: &Workload) -> Fallible<Stand<'b>> {
        Stand::new(self.broker, self.layout, workload)
    }

    fn paced(&mut self) -> Fallible<()> {
        let mut stand = self.stand(self.workload)?;
        let paced = paced(&mut stand.vhost, self.layout, self.workload, self.scale)?;
        self.cell.offered_rate = Some(self.scale.rate);
        self.cell.achieved_rate = Some(paced.published_per_s);
        self.note(&paced, &stand.vhost)?;
        self.count(&paced.sums, &stand.vhost)
    }

    /// What messages cost the broker on their whole way, published as fast as they are
    /// confirmed. What counts is the middle of several.
    fn flat_out(&mut self) -> Fallible<()> {
        let mut costs = Vec::new();
        for _ in 0..self.scale.floods {
            let mut stand = self.stand(self.workload)?;
            let outcome = flat_out(&mut stand.vhost, self.layout, self.workload, self.scale)?;
            costs.push(per_1000(&outcome));
            self.count(&outcome.sums, &stand.vhost)?;
        }
        self.cell.cpu_flat_out_s_per_1000 = middle(costs);
        Ok(())
    }

    /// Messages that fall due together, in turns with as many that go straight through.
    fn drained(&mut self) -> Fallible<()> {
        let cohorts: usize = self.workload.cohorts.iter().map(|(_, delays)| delays.len()).sum();
        let count = if cohorts == 1 { self.scale.drain } else { self.scale.cohort };
        let (mut ours, mut straight) = (Sum::default(), Sum::default());
        for (unit, delays) in &self.workload.cohorts {
            let workload = self.workload.in_unit(*unit);
            let mut stand = self.stand(&workload)?;
            for &delay in delays {
                let drained = drain(&mut stand.vhost, self.layout, delay, count, self.scale.patience)?;
                straight.add(&self.reference.drain(count, self.scale)?);
                ours.add(&drained);
                if self.workload.is_burst {
                    self.note(&drained, &stand.vhost)?;
                }
                self.count(&drained.sums, &stand.vhost)?;
                if drained.sums.missing > 0 {
                    drop(stand);
                    stand = self.stand(&workload)?;
                }
            }
        }
        self.cell.drain_rate = Some(ours.rate());
        self.cell.drain_share = Some(ours.rate() / straight.rate());
        Ok(())
    }

    /// As fast as they are confirmed, while nothing falls due; in turns with the limit.
    /// What counts is the middle of several.
    fn flood(&mut self) -> Fallible<()> {
        let far = self.workload.far();
        let mut stand = self.stand(&far)?;
        let (mut rates, mut shares) = (Vec::new(), Vec::new());
        for _ in 0..self.scale.floods {
            let limit = self.reference.publish(self.scale)?;
            let rate = publish(&mut stand.vhost, self.layout, &|id| far.delay(id), self.scale)?;
            rates.push(rate);
            shares.push(rate / limit);
        }
        (self.cell.publish_rate, self.cell.publish_share) = (middle(rates), middle(shares));
        Ok(())
    }

    /// Notes what messages cost and how late they were.
    fn note(&mut self, outcome: &PhaseFigures, vhost: &Vhost<'_>) -> Fallible<()> {
        let objects = vhost.objects()?;
        let cell = &mut self.cell;
        cell.lateness = lateness(&outcome.sums);
        cell.header_bytes = Some(outcome.header_bytes);
        cell.cpu_s_per_1000 = Some(per_1000(outcome));
        (cell.queues, cell.bindings) = (objects.queues, objects.bindings);
        Ok(())
    }

    /// Counts what became of messages. What did not come is lost, unless it is still in a
    /// queue.
    fn count(&mut self, sums: &Summary, vhost: &Vhost<'_>) -> Fallible<()> {
        self.total.add(sums);
        if sums.missing > 0 {
            thread::sleep(STATISTICS_LAG);
            let kept = vhost.objects()?.messages.min(sums.missing);
            self.cell.unfinished += kept;
            self.cell.lost += sums.missing - kept;
        }
        Ok(())
    }
}

fn middle(mut figures: Vec<f64>) -> Option<f64> {
    figures.sort_by(f64::total_cmp);
    percentile(&figures, 50.0)
}

/// What arrived, and in what time.
#[derive(Default)]
struct Sum {
    arrived: u64,
    arriving: Duration,
}

impl Sum {
    fn add(&mut self, outcome: &PhaseFigures) {
        self.arrived += outcome.sums.confirmed - outcome.sums.missing;
        self.arriving += outcome.arriving;
    }

    fn rate(&self) -> f64 {
        per_second(usize::try_from(self.arrived).unwrap_or(usize::MAX), self.arriving)
    }
}
