//! The figures, as they are kept in JSON.

use serde::{Deserialize, Serialize};

use super::{Fallible, conditions::Conditions, layouts::Description, machine::ENOUGH};

/// All that was measured on one broker with one configuration.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Run {
    pub conditions: Conditions,
    pub layouts: Vec<Description>,
    pub cells: Vec<Cell>,
    pub hops: Vec<Hops>,
    pub waiting: Vec<Waiting>,
    pub knees: Vec<Knee>,
    /// Why series are missing.
    pub failures: Vec<String>,
}

/// A layout under a workload.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Cell {
    pub layout: String,
    pub workload: String,
    pub unit_ms: u64,
    /// Messages per second through the entry, as fast as they are confirmed.
    pub publish_rate: Option<f64>,
    /// The share of what went straight into a queue in turns with it.
    pub publish_share: Option<f64>,
    /// Messages per second that come out when many are due.
    pub drain_rate: Option<f64>,
    /// The share of what came straight through in turns with it.
    pub drain_share: Option<f64>,
    /// At so many messages per second, or as many as the layout took of them …
    pub offered_rate: Option<f64>,
    pub achieved_rate: Option<f64>,
    /// … they were so late, in ms.
    pub lateness: Option<Lateness>,
    /// Over all phases that wait for messages.
    pub confirmed: u64,
    pub refused: u64,
    pub lost: u64,
    /// Confirmed, still in a queue long after they were due.
    pub unfinished: u64,
    pub duplicated: u64,
    pub early: u64,
    pub queues: usize,
    pub bindings: usize,
    /// The broker's CPU seconds per 1,000 messages, at the steady rate …
    pub cpu_s_per_1000: Option<f64>,
    /// … and published as fast as they are confirmed, where that was measured.
    pub cpu_flat_out_s_per_1000: Option<f64>,
    pub header_bytes: Option<f64>,
    /// The share of what was wanted of the processors that the host kept meanwhile.
    pub stolen: f64,
    /// Why there is no figure.
    pub failure: Option<String>,
}

/// Milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Lateness {
    pub min: f64,
    pub p50: f64,
    pub p75: f64,
    pub p90: f64,
    pub p95: f64,
    pub p99: f64,
    pub p999: f64,
    pub max: f64,
}

/// What a number of hops costs.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Hops {
    pub layout: String,
    pub hops: u32,
    pub delay: u64,
    pub drain_rate: f64,
    pub header_bytes: f64,
    pub cpu_s_per_1000: f64,
    /// The share of what was wanted of the processors that the host kept meanwhile.
    pub stolen: f64,
}

/// What a number of waiting messages costs.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Waiting {
    pub layout: String,
    pub waiting: u64,
    /// Of other messages meanwhile.
    pub lateness: Lateness,
    /// Bytes that the broker holds beside those it held before.
    pub memory: u64,
    /// At which they came in.
    pub fill_rate: Option<f64>,
    /// The share of what was wanted of the processors that the host kept meanwhile.
    pub stolen: f64,
}

/// The highest sustained rate at which the 99th percentile of lateness stays low.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Knee {
    pub layout: String,
    pub rate: f64,
    pub steps: Vec<Step>,
}

/// One attempt of the search.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Step {
    pub rate: f64,
    pub achieved: f64,
    pub p99_ms: f64,
    pub holds: bool,
    /// The share of what was wanted of the processors that the host kept meanwhile.
    pub stolen: f64,
}

impl Knee {
    /// The share of what was wanted of the processors that the host kept: at each rate, in
    /// the attempt that it disturbed least; the most of these.
    pub fn stolen(&self) -> f64 {
        let same_rate = |a: &Step, b: &Step| a.rate == b.rate;
        let least = |steps: &[Step]| steps.iter().map(|step| step.stolen).fold(f64::INFINITY, f64::min);
        self.steps.chunk_by(same_rate).map(least).fold(0.0, f64::max)
    }
}

impl Cell {
    /// Counts what became of messages in another attempt at the same.
    pub fn count(&mut self, other: Self) {
        self.confirmed += other.confirmed;
        self.refused += other.refused;
        self.lost += other.lost;
        self.unfinished += other.unfinished;
        self.duplicated += other.duplicated;
        self.early += other.early;
        self.failure = self.failure.take().or(other.failure);
    }
}

impl Run {
    pub fn cell(&self, layout: &str, workload: &str) -> Option<&Cell> {
        self.cells.iter().find(|cell| cell.layout == layout && cell.workload == workload)
    }

    /// What there is, or a note why there is nothing.
    pub fn noting<T>(&mut self, what: &str, result: Fallible<T>) -> Option<T> {
        result.map_err(|error| self.failures.push(format!("{what}: {error}"))).ok()
    }

    /// All measurements, and the share of what was wanted of the processors that the host of
    /// a virtual machine kept during each.
    fn stolen_by_measurement(&self) -> impl Iterator<Item = (String, f64)> + '_ {
        let cells = self.cells.iter().map(|cell| (&cell.layout, cell.workload.clone(), cell.stolen));
        let hops = self.hops.iter().map(|line| (&line.layout, format!("{} hops", line.hops), line.stolen));
        let waiting = self.waiting.iter();
        let waiting = waiting.map(|line| (&line.layout, format!("{} waiting", line.waiting), line.stolen));
        let knees = self.knees.iter().map(|knee| (&knee.layout, "the knee".to_owned(), knee.stolen()));
        let all = cells.chain(hops).chain(waiting).chain(knees);
        all.map(|(layout, what, stolen)| (format!("{} ({what})", self.title(layout)), stolen))
    }

    /// The largest of these shares.
    pub fn stolen(&self) -> f64 {
        self.stolen_by_measurement().map(|(_, stolen)| stolen).fold(0.0, f64::max)
    }

    /// The measurements during which the host kept too much.
    pub fn disturbed(&self) -> Vec<String> {
        let disturbed = self.stolen_by_measurement().filter(|(_, stolen)| *stolen > ENOUGH);
        disturbed.map(|(what, _)| what).collect()
    }

    pub fn title(&self, layout: &str) -> &str {
        self.layouts.iter().find(|other| other.id == layout).map_or("", |other| other.title.as_str())
    }

    /// Such as "4.3.6" or "4.3.6, prefetch 512".
    pub fn name(&self) -> String {
        let Conditions { rabbitmq, prefetch, .. } = &self.conditions;
        prefetch.map_or_else(|| rabbitmq.clone(), |number| format!("{rabbitmq}, prefetch {number}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::{layouts, scale::Scale};

    #[test]
    fn a_knee_is_disturbed_by_what_no_attempt_at_a_rate_was_spared() {
        let step = |rate, stolen| Step { rate, achieved: rate, p99_ms: 1.0, holds: true, stolen };
        let steps = vec![step(1_000.0, 0.3), step(1_000.0, 0.0), step(2_000.0, 0.2), step(2_000.0, 0.1)];
        let knee = Knee { layout: "delayline".into(), rate: 2_000.0, steps };
        assert_eq!(knee.stolen(), 0.1);
        assert_eq!(Knee { steps: vec![], ..knee }.stolen(), 0.0);
    }

    #[test]
    fn what_the_host_disturbed_is_named() {
        let cell = |workload: &str, stolen| Cell {
            layout: "celery".into(),
            workload: workload.into(),
            stolen,
            ..Cell::default()
        };
        let hops = Hops {
            layout: "celery".into(),
            hops: 3,
            delay: 7,
            drain_rate: 1.0,
            header_bytes: 1.0,
            cpu_s_per_1000: 1.0,
            stolen: 0.06,
        };
        let run = Run {
            conditions: Conditions::new(&Scale::tiny()),
            layouts: layouts::all().into_iter().map(|(description, _)| description).collect(),
            cells: vec![cell("equal", 0.05), cell("mixed", 0.2)],
            hops: vec![hops],
            waiting: vec![],
            knees: vec![],
            failures: vec![],
        };
        assert_eq!(run.stolen(), 0.2);
        let title = run.title("celery");
        assert_eq!(run.disturbed(), [format!("{title} (mixed)"), format!("{title} (3 hops)")]);
    }
}
