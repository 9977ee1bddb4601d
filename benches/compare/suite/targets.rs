//! What the figures must show, as ratios within one run.

use super::{
    knee,
    results::{Cell, Run},
    table::{ms, table},
};

/// A target, and how far it is met.
#[derive(Debug, Clone)]
pub struct Target {
    pub broker: String,
    pub what: String,
    pub wanted: String,
    pub found: String,
    /// `None` where it is only told.
    pub met: Option<bool>,
}

/// The targets that these runs can speak of. Runs of the same broker belong together.
pub fn targets(runs: &[Run]) -> Vec<Target> {
    runs.iter().flat_map(of_run).collect()
}

fn of_run(run: &Run) -> Vec<Target> {
    let tuned = run.conditions.prefetch.is_some();
    let is_43 = run.conditions.rabbitmq.starts_with("4.3");
    // Shares of the limit, which was measured in turns with each: the machine may have
    // been faster for one of them than for the other.
    let publish = |id: &str| run.cell(id, "equal").and_then(|cell| cell.publish_share);
    let drain = |id: &str, workload: &str| run.cell(id, workload).and_then(|cell| cell.drain_share);
    let cpu = |id: &str| run.cell(id, "real-life").and_then(|cell| cell.cpu_flat_out_s_per_1000);
    let paced_cpu = |id: &str| run.cell(id, "real-life").and_then(|cell| cell.cpu_s_per_1000);
    let p99 = |id: &str| run.cell(id, "mixed").and_then(|cell| cell.lateness).map(|lateness| lateness.p99);
    let knee = |id: &str| run.knees.iter().find(|knee| knee.layout == id).map(|knee| knee.rate);
    let mut targets = Targets { broker: run.name(), list: Vec::new() };

    // A topic match costs a fifth on 4.3, so there is less to gain in its place.
    let by_version = |before: f64, since: f64| Some(if is_43 { since } else { before });
    targets.at_most(
        "the broker's CPU, real-life delays / NServiceBus'",
        cpu("delayline"),
        cpu("nservicebus"),
        by_version(0.6, 0.85),
    );
    targets.at_most("the same at 1,000 messages/s", paced_cpu("delayline"), paced_cpu("nservicebus"), None);
    targets.ratio("publishing / Celery's", publish("delayline"), publish("celery"), by_version(20.0, 10.0));
    targets.ratio("publishing / the limit", publish("delayline"), Some(1.0), is_43.then_some(0.8));
    targets.ratio(
        "publishing / NServiceBus'",
        publish("delayline"),
        publish("nservicebus"),
        by_version(1.8, 1.2),
    );
    targets.ratio(
        "draining real-life delays / NServiceBus'",
        drain("delayline", "real-life"),
        drain("nservicebus", "real-life"),
        by_version(2.0, if tuned { 1.5 } else { 1.1 }),
    );
    targets.ratio(
        "one-hop drain / what comes straight through",
        drain("delayline", "equal"),
        Some(1.0),
        None,
    );
    targets.ratio(
        "one-hop drain / NServiceBus'",
        drain("delayline", "equal"),
        drain("nservicebus", "equal"),
        None,
    );
    if let Some(late) = p99("delayline") {
        let most = if is_43 { 19.0 } else { 15.0 };
        targets.add("p99 lateness, mixed delays", &format!("under {most} ms"), ms(late), Some(late < most));
    }
    targets.ratio("per-message TTL's p99 / delayline's", p99("message-ttl"), p99("delayline"), Some(100.0));
    let what = format!("knee (p99 under {:.0} ms) / NServiceBus'", knee::LIMIT_MS);
    targets.ratio(&what, knee("delayline"), knee("nservicebus"), by_version(1.3, 1.1));
    let ours: Vec<_> = run.cells.iter().filter(|cell| cell.layout == "delayline").collect();
    if !ours.is_empty() {
        let (bad, of): (u64, u64) = (ours.iter().map(|cell| faults(cell)).sum(), sum(&ours));
        let found = format!("{bad} of {of}");
        targets.add("lost, early, twice or unfinished", "none", found, Some(bad == 0 && of > 0));
    }
    targets.list
}

fn faults(cell: &Cell) -> u64 {
    let Cell { lost, early, duplicated, unfinished, refused, failure, .. } = cell;
    lost + early + duplicated + unfinished + refused + u64::from(failure.is_some())
}

fn sum(cells: &[&Cell]) -> u64 {
    cells.iter().map(|cell| cell.confirmed).sum()
}

struct Targets {
    broker: String,
    list: Vec<Target>,
}

impl Targets {
    fn add(&mut self, what: &str, wanted: &str, found: String, met: Option<bool>) {
        let (what, wanted) = (what.to_owned(), wanted.to_owned());
        self.list.push(Target { broker: self.broker.clone(), what, wanted, found, met });
    }

    /// A ratio that must be at least `wanted`; only told if there is no such.
    fn ratio(&mut self, what: &str, ours: Option<f64>, theirs: Option<f64>, wanted: Option<f64>) {
        self.compared(what, ours, theirs, "at least", wanted, |ratio, wanted| ratio >= wanted);
    }

    /// A ratio that must be at most `wanted`.
    fn at_most(&mut self, what: &str, ours: Option<f64>, theirs: Option<f64>, wanted: Option<f64>) {
        self.compared(what, ours, theirs, "at most", wanted, |ratio, wanted| ratio <= wanted);
    }

    fn compared(
        &mut self,
        what: &str,
        ours: Option<f64>,
        theirs: Option<f64>,
        how: &str,
        wanted: Option<f64>,
        holds: fn(f64, f64) -> bool,
    ) {
        if let (Some(ours), Some(theirs)) = (ours, theirs) {
            let ratio = ours / theirs;
            let words = wanted.map_or_else(|| "–".to_owned(), |wanted| format!("{how} {wanted}x"));
            let found = if ratio.is_nan() { "neither".to_owned() } else { format!("{ratio:.2}x") };
            self.add(what, &words, found, wanted.map(|wanted| holds(ratio, wanted)));
        }
    }
}

pub fn print(targets: &[Target]) -> String {
    let rows = targets.iter().map(|target| {
        let met = match target.met {
            Some(true) => "met",
            Some(false) => "NOT MET",
            None => "",
        };
        [
            target.broker.clone(),
            target.what.clone(),
            target.wanted.clone(),
            target.found.clone(),
            met.to_owned(),
        ]
    });
    table(["RabbitMQ", "what", "wanted", "found", ""], rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::{conditions::Conditions, scale::Scale};

    fn run(rabbitmq: &str, prefetch: Option<u32>, rates: &[(&str, &str, f64)]) -> Run {
        let conditions =
            Conditions { rabbitmq: rabbitmq.into(), prefetch, ..Conditions::new(&Scale::tiny()) };
        let cell = |&(layout, workload, rate): &(&str, &str, f64)| Cell {
            layout: layout.into(),
            workload: workload.into(),
            publish_share: Some(rate),
            drain_share: Some(rate),
            confirmed: 100,
            ..Cell::default()
        };
        let cells = rates.iter().map(cell).collect();
        let (layouts, hops, waiting, knees, failures) = Default::default();
        Run { conditions, layouts, cells, hops, waiting, knees, failures }
    }

    fn verdict(run: Run, what: &str) -> Option<bool> {
        let targets = targets(&[run]);
        targets.iter().find(|target| target.what.contains(what)).expect(what).met
    }

    #[test]
    fn what_is_wanted_depends_on_version_and_configuration() {
        let rates = [("delayline", "real-life", 2_600.0), ("nservicebus", "real-life", 2_000.0)];
        let what = "draining real-life delays";
        assert_eq!(verdict(run("4.3.6", None, &rates), what), Some(true));
        assert_eq!(verdict(run("4.3.6", Some(512), &rates), what), Some(false));
        assert_eq!(verdict(run("3.10.8", None, &rates), what), Some(false));
    }

    #[test]
    fn a_ratio_is_met_or_not() {
        let slow = [("delayline", "equal", 19_900.0), ("celery", "equal", 1_000.0)];
        let fast = [("delayline", "equal", 20_000.0), ("celery", "equal", 1_000.0)];
        assert_eq!(verdict(run("3.10.8", None, &slow), "Celery"), Some(false));
        assert_eq!(verdict(run("3.10.8", None, &fast), "Celery"), Some(true));
    }

    #[test]
    fn the_brokers_work_must_not_be_more_than_asked() {
        let with_cpu = |ours: f64| {
            let mut run =
                run("4.3.6", None, &[("delayline", "real-life", 1.0), ("nservicebus", "real-life", 1.0)]);
            run.cells[0].cpu_flat_out_s_per_1000 = Some(ours);
            run.cells[1].cpu_flat_out_s_per_1000 = Some(1.0);
            verdict(run, "CPU")
        };
        assert_eq!([with_cpu(0.85), with_cpu(0.86)], [Some(true), Some(false)]);
    }

    #[test]
    fn a_fault_of_ours_is_counted_and_nothing_measured_is_no_success() {
        let mut faulty = run("4.3.6", None, &[("delayline", "equal", 1.0)]);
        assert_eq!(verdict(faulty.clone(), "lost"), Some(true));
        faulty.cells[0].early = 1;
        assert_eq!(verdict(faulty.clone(), "lost"), Some(false));
        faulty.cells[0] = Cell { confirmed: 0, early: 0, ..faulty.cells[0].clone() };
        assert_eq!(verdict(faulty, "lost"), Some(false));
        assert!(targets(&[run("4.3.6", None, &[])]).is_empty());
    }
}
