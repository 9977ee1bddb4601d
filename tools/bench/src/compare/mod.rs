//! `delayline-bench compare`: ways to delay messages, with the same messages, client and broker.

mod layouts;
mod site;

use std::{thread, time::Duration};

use serde::Serialize;

use delayline_cli::program::{Code, Failure, Output, aside, grouped, table, whole};
use delayline_core::ledger::percentile;
use delayline_node::{NodeOptions, PrivateNode};

pub use layouts::{WAYS, Way};
pub use site::Site;

use crate::{bare::Fallible, measure::Late};
use layouts::{FAR, STRAIGHT};
use site::{Figures, Round};

/// Delays of several hops that fall due together, in units.
const SEVERAL_HOPS: [u64; 3] = [5, 30, 60];

/// A delay of one hop, and the least delay of messages that fall due together: they must be published
/// before.
const ONE_HOP: Duration = Duration::from_millis(800);
const TOGETHER: Duration = Duration::from_secs(1);

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  delayline-bench compare                              nine minutes or so
  delayline-bench compare --quick --times 1            less precise
  delayline-bench compare --layouts delayline,celery,straight --json | jq .layouts
  RABBITMQ_ROOT=/opt/rabbitmq delayline-bench compare  of another version
  delayline-bench compare --unit 4 --delays 1,30,60,300,3600  up to an hour, shortened

Each layout gets a private RabbitMQ node of its own, which must be installed and not running:
  publish  as fast as messages are confirmed, through the entry
  drain    messages that fall due together: of one hop, and of 5, 30 and 60 units or the given
           delays from a second on
  late     at 1,000 messages a second with delays of 1 to 60 units, or the given delays
  CPU      of the broker for each of the same messages, published as fast as they are confirmed
The number in brackets is the share of publishing directly to a queue, measured in turns.
docs/benchmarks explains the numbers. Exits with 1 if a message was lost or early, or if a
layout could not be measured.")]
pub(crate) struct Args {
    /// Only these layouts: message-ttl, ttl-queues, fixed-queues, shared-queues, nservicebus,
    /// celery, delayline, shortcuts, landing, straight
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', value_parser = way)]
    layouts: Vec<&'static str>,
    /// A tenth of the messages
    #[arg(long)]
    quick: bool,
    /// Delays in units instead of 1 to 60, each as frequent as the others
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = whole::<u64>(1..=FAR - 1))]
    delays: Vec<u64>,
    /// The length of a unit in milliseconds
    #[arg(long, value_name = "MS", default_value_t = Scale::FULL.unit_ms, value_parser = whole::<u64>(2..=1_000))]
    unit: u64,
    /// How often publishing and CPU are measured; the middle counts
    #[arg(long, value_name = "N", default_value_t = Scale::FULL.times, value_parser = whole::<usize>(1..=99))]
    times: usize,
    /// How many messages each dead-letter worker of the broker has on their way [default: the
    /// broker's, 32]
    #[arg(long, value_name = "N", value_parser = whole::<u32>(1..=65_535))]
    prefetch: Option<u32>,
}

fn way(text: &str) -> Result<&'static str, String> {
    let known = WAYS.iter().map(|way| way.id);
    known.clone().find(|id| *id == text).ok_or_else(|| {
        format!("there is no layout `{}`; use {}", text.escape_debug(), known.collect::<Vec<_>>().join(", "))
    })
}

/// How much is measured.
#[derive(Debug, Clone)]
pub struct Scale {
    /// The length of a unit of delay.
    pub unit_ms: u64,
    /// The delays in units; 1 to 60 if empty.
    pub delays: Vec<u64>,
    /// Messages that fall due together, or are published as fast as they are confirmed.
    pub count: u64,
    /// Messages per second where lateness is measured.
    pub rate: f64,
    /// For how long they are published, and how long publishing is measured.
    pub time: Duration,
    /// How often publishing and CPU are measured; the middle counts.
    pub times: usize,
}

impl Scale {
    const FULL: Self = Self {
        unit_ms: 50,
        delays: Vec::new(),
        count: 6_000,
        rate: 1_000.0,
        time: Duration::from_secs(3),
        times: 3,
    };
    const QUICK: Self = Self {
        unit_ms: 50,
        delays: Vec::new(),
        count: 600,
        rate: 1_000.0,
        time: Duration::from_millis(300),
        times: 1,
    };
}

#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct Report {
    broker: String,
    prefetch: Option<u32>,
    processors: usize,
    load_before: String,
    layouts: Vec<Measured>,
}

/// The figures of a layout.
#[derive(Debug, Default, Serialize, schemars::JsonSchema)]
pub struct Measured {
    layout: &'static str,
    title: &'static str,
    publish: Compared,
    drain_one_hop: Compared,
    drain_several_hops: Compared,
    late_ms: Late,
    cpu_us: f64,
    queues: usize,
    bindings: usize,
    /// Messages of all rounds that did not arrive.
    pub lost: u64,
    /// Arrivals beyond the first of the same message.
    pub twice: u64,
    /// Messages that arrived before they were due.
    pub early: u64,
    /// Why it could not be measured to the end.
    pub failure: Option<String>,
}

/// A rate, and its share of the limit that was measured in turns with it.
#[derive(Debug, Clone, Copy, Default, Serialize, schemars::JsonSchema)]
struct Compared {
    per_second: f64,
    share: f64,
}

pub(crate) fn run(args: &Args, output: &mut Output) -> Result<Code, Failure> {
    let scale = if args.quick { Scale::QUICK } else { Scale::FULL };
    let scale = Scale { unit_ms: args.unit, delays: args.delays.clone(), times: args.times, ..scale };
    let wanted: Vec<_> =
        WAYS.iter().filter(|way| args.layouts.is_empty() || args.layouts.contains(&way.id)).collect();
    let mut report = Report {
        broker: String::new(),
        prefetch: args.prefetch,
        processors: thread::available_parallelism().map_or(0, usize::from),
        load_before: std::fs::read_to_string("/proc/loadavg").unwrap_or_default().trim().into(),
        layouts: Vec::new(),
    };
    let rabbit = args.prefetch.map(|number| format!("{{dead_letter_worker_consumer_prefetch, {number}}}"));
    let options = NodeOptions { rabbit: rabbit.into_iter().collect(), ..NodeOptions::default() };
    let bar = output.progress(Some(wanted.len() as u64), "layouts");
    for way in wanted {
        let node = PrivateNode::start(options.clone()).map_err(|error| Failure::new(Code::Broker, error))?;
        let measured = Site::new(&node, scale.unit_ms).map(|mut site| {
            report.broker = site.version();
            measure(&mut site, way, &scale)
        });
        report.layouts.push(measured.map_err(|error| Failure::new(Code::Broker, error))?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    let wrong = |one: &Measured| one.failure.is_some() || one.lost + one.early > 0;
    let code = if report.layouts.iter().any(wrong) { Code::Problem } else { Code::Done };
    output.report(&report, show)?;
    Ok(code)
}

/// Measures one layout. A failure is a result, too.
pub fn measure(site: &mut Site<'_>, way: &'static Way, scale: &Scale) -> Measured {
    let mut measured = Measured { layout: way.id, title: way.title, ..Measured::default() };
    measured.failure = measured.all(site, way, scale).err().map(|error| error.to_string());
    measured
}

impl Measured {
    fn all(&mut self, site: &mut Site<'_>, way: &Way, scale: &Scale) -> Fallible<()> {
        (way.install)(site)?;
        site.rest(scale.time.min(Duration::from_secs(2)));
        let (mixed, together): (Vec<u64>, Vec<u64>) = match &*scale.delays {
            [] => ((1..=60).collect(), SEVERAL_HOPS.into()),
            given => {
                let together = |delay: &u64| Duration::from_millis(scale.unit_ms * delay) >= TOGETHER;
                (given.into(), given.iter().copied().filter(together).collect())
            }
        };
        let one_hop = ONE_HOP.as_millis() as u64 / scale.unit_ms;
        let limit = Duration::from_secs(20);
        let all = Round { delays: &mixed, consumed: true, ..Round::default() };
        let count = (scale.rate * scale.time.as_secs_f64()) as u64;
        // A layout that is too slow publishes fewer.
        let late = Round { count, rate: Some(scale.rate), limit: scale.time * 3 / 2, ..all };
        self.late_ms = self.counted(site.run(way, &late)?).late;
        (self.queues, self.bindings) = site.objects()?;
        self.drain_one_hop = self.drain(site, way, &[one_hop.next_power_of_two()], scale.count)?;
        self.drain_several_hops = self.drain(site, way, &together, scale.count / 4)?;
        let mut costs = Vec::new();
        for _ in 0..scale.times {
            let round = Round { count: scale.count, limit, ..all };
            costs.push(self.counted(site.run(way, &round)?).cpu_us);
        }
        self.cpu_us = middle(costs);
        // Last, since these messages stay.
        let (mut rates, mut shares) = (Vec::new(), Vec::new());
        for _ in 0..scale.times {
            let round = Round { delays: &[FAR], count: u64::MAX, limit: scale.time / 2, ..Round::default() };
            let limit = site.run(&STRAIGHT, &round)?.published_per_s;
            site.empty_inbox()?;
            rates.push(site.run(way, &round)?.published_per_s);
            shares.push(rates[rates.len() - 1] / limit);
            site.empty_inbox()?;
        }
        self.publish = Compared { per_second: middle(rates), share: middle(shares) };
        Ok(())
    }

    /// Drains messages of each delay, in turns with as many that go straight through.
    fn drain(&mut self, site: &mut Site<'_>, way: &Way, delays: &[u64], count: u64) -> Fallible<Compared> {
        let (mut ours, mut straight) = ((0, Duration::ZERO), (0, Duration::ZERO));
        for delay in delays {
            let limit = Duration::from_secs(20);
            let round = Round { delays: &[*delay], count, limit, fill: true, consumed: true, rate: None };
            for (way, sum) in [(way, &mut ours), (&STRAIGHT, &mut straight)] {
                let figures = self.counted(site.run(way, &round)?);
                *sum = (sum.0 + figures.arrived, sum.1 + figures.arriving);
            }
        }
        let [ours, straight] = [ours, straight].map(|(count, time)| count as f64 / time.as_secs_f64());
        Ok(Compared { per_second: ours, share: ours / straight })
    }

    fn counted(&mut self, figures: Figures) -> Figures {
        self.lost += figures.lost;
        self.twice += figures.twice;
        self.early += figures.early;
        figures
    }
}

fn middle(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    percentile(&figures, 50.0).unwrap_or(0.0)
}

fn show(report: &Report, output: &mut Output) -> Result<(), Failure> {
    let prefetch = report.prefetch.map_or_else(String::new, |number| format!(", prefetch {number}"));
    output.line(format!(
        "RabbitMQ {}{prefetch}; {} processors shared by broker and client; load before: {}",
        report.broker, report.processors, report.load_before
    ))?;
    let rate = |rate: &Compared| format!("{}/s ({:.2})", grouped(rate.per_second.round() as u64), rate.share);
    let rows = report.layouts.iter().map(|one| {
        vec![
            one.title.to_owned(),
            rate(&one.publish),
            rate(&one.drain_one_hop),
            rate(&one.drain_several_hops),
            format!("{:.1} ms", one.late_ms.p50),
            format!("{:.1} ms", one.late_ms.p99),
            format!("{:.0} us", one.cpu_us),
            one.queues.to_string(),
            one.bindings.to_string(),
            format!("{}, {}, {}", one.lost, one.twice, one.early),
        ]
    });
    let header = [
        "layout",
        ">publish",
        ">drain, 1 hop",
        ">several hops",
        ">late, p50",
        ">p99",
        ">CPU",
        ">queues",
        ">bindings",
        ">lost, twice, early",
    ];
    output.line(table(&header, rows))?;
    for one in &report.layouts {
        if let Some(failure) = &one.failure {
            aside(format!("{}: {failure}", one.title));
        }
    }
    Ok(())
}
