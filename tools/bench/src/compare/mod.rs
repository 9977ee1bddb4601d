//! `delayline-bench compare`: ways to delay messages, with the same messages, client and broker.

mod layouts;
mod site;

use std::{fmt, thread, time::Duration};

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
  delayline-bench compare                              a quarter of an hour or so
  delayline-bench compare --quick                      a minute, and less precise
  delayline-bench compare --layouts delayline,celery,straight --json | jq .layouts
  RABBITMQ_ROOT=/opt/rabbitmq delayline-bench compare  of another version
  delayline-bench compare --unit 4 --delays 1,30,60,300,3600  up to an hour, shortened

Each layout gets a private RabbitMQ node of its own, which must be installed and not running:
  publish  as fast as messages are confirmed, through the entry
  drain    messages that fall due together: of one hop, and of 5, 30 and 60 units or the given
           delays from a second on
  late     at 1,000 messages a second with delays of 1 to 60 units, or the given delays
  CPU      of the broker for each of the same messages, published as fast as they are confirmed
All layouts are measured in turns, --times times, since a machine does not stay equally fast.
The number in brackets is the share of publishing directly to a queue, also in turns.
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
    /// How often each layout is measured; the middle of each figure counts
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
    /// How often each layout is measured; the middle of each figure counts.
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
        times: 3,
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

/// The figures of one turn.
struct Turn {
    publish: Compared,
    drain_one_hop: Compared,
    drain_several_hops: Compared,
    late_ms: Late,
    cpu_us: f64,
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
    let bar = output.progress(Some((wanted.len() * (scale.times + 1)) as u64), "layouts");
    let broker = |error: &dyn fmt::Display| Failure::new(Code::Broker, error.to_string());
    let nodes = wanted.iter().map(|_| PrivateNode::start(options.clone())).collect::<Result<Vec<_>, _>>();
    let nodes = nodes.map_err(|error| broker(&error))?;
    let sites = nodes.iter().zip(wanted).map(|(node, way)| Ok((Site::new(node, scale.unit_ms)?, way)));
    let mut sites = sites.collect::<Fallible<Vec<_>>>().map_err(|error| broker(&error))?;
    report.broker = sites.first().map(|(site, _)| site.version()).unwrap_or_default();
    report.layouts = measure(&mut sites, &scale, || bar.inc(1));
    bar.finish_and_clear();
    let wrong = |one: &Measured| one.failure.is_some() || one.lost + one.early > 0;
    let code = if report.layouts.iter().any(wrong) { Code::Problem } else { Code::Done };
    output.report(&report, show)?;
    Ok(code)
}

/// Measures layouts in turns, and reports each step. A failure is a result, too.
pub fn measure(sites: &mut [(Site<'_>, &'static Way)], scale: &Scale, step: impl Fn()) -> Vec<Measured> {
    let mut all: Vec<(Measured, Vec<Turn>)> = Vec::new();
    for (site, way) in &mut *sites {
        let mut measured = Measured { layout: way.id, title: way.title, ..Measured::default() };
        measured.failure = measured.install(site, way, scale).err().map(|error| error.to_string());
        all.push((measured, Vec::new()));
        step();
    }
    for _ in 0..scale.times {
        for ((site, way), (measured, turns)) in sites.iter_mut().zip(&mut all) {
            if measured.failure.is_none() {
                match measured.turn(site, way, scale) {
                    Ok(turn) => turns.push(turn),
                    Err(error) => measured.failure = Some(error.to_string()),
                }
            }
            step();
        }
    }
    all.into_iter().map(|(measured, turns)| measured.middle(&turns)).collect()
}

impl Measured {
    fn install(&mut self, site: &mut Site<'_>, way: &Way, scale: &Scale) -> Fallible<()> {
        (way.install)(site)?;
        site.rest(scale.time.min(Duration::from_secs(2)));
        Ok(())
    }

    fn turn(&mut self, site: &mut Site<'_>, way: &Way, scale: &Scale) -> Fallible<Turn> {
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
        let late_ms = self.counted(site.run(way, &late)?).late;
        (self.queues, self.bindings) = site.objects()?;
        let drain_one_hop = self.drain(site, way, &[one_hop.next_power_of_two()], scale.count)?;
        let drain_several_hops = self.drain(site, way, &together, scale.count)?;
        let round = Round { count: scale.count, limit, ..all };
        let cpu_us = self.counted(site.run(way, &round)?).cpu_us;
        let round = Round { delays: &[FAR], count: u64::MAX, limit: scale.time / 2, ..Round::default() };
        let limit = site.run(&STRAIGHT, &round)?.published_per_s;
        site.empty()?;
        let per_second = site.run(way, &round)?.published_per_s;
        site.empty()?;
        let publish = Compared { per_second, share: per_second / limit };
        Ok(Turn { late_ms, drain_one_hop, drain_several_hops, cpu_us, publish })
    }

    /// With the middle of each figure.
    fn middle(self, turns: &[Turn]) -> Self {
        let of = |figure: &dyn Fn(&Turn) -> f64| {
            let mut figures: Vec<_> = turns.iter().map(figure).collect();
            figures.sort_by(f64::total_cmp);
            percentile(&figures, 50.0).unwrap_or(0.0)
        };
        let compared = |of_turn: fn(&Turn) -> Compared| Compared {
            per_second: of(&|turn| of_turn(turn).per_second),
            share: of(&|turn| of_turn(turn).share),
        };
        let late = |of_late: fn(Late) -> f64| of(&|turn| of_late(turn.late_ms));
        Self {
            publish: compared(|turn| turn.publish),
            drain_one_hop: compared(|turn| turn.drain_one_hop),
            drain_several_hops: compared(|turn| turn.drain_several_hops),
            late_ms: Late {
                p50: late(|it| it.p50),
                p90: late(|it| it.p90),
                p99: late(|it| it.p99),
                p999: late(|it| it.p999),
                max: late(|it| it.max),
            },
            cpu_us: of(&|turn| turn.cpu_us),
            ..self
        }
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
