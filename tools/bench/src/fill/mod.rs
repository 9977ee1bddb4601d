//! `delayline-bench fill`: a private broker with very many waiting messages.

mod site;

use std::{
    collections::BTreeSet,
    sync::atomic::AtomicBool,
    time::{Duration, Instant},
};

use serde::Serialize;

use delayline_cli::program::{
    Code, Failure, Output, aside, delay, grouped, on_signal_or_without_reader, table, whole,
};
use delayline_core::codec::Delay;
use delayline_node::NodeOptions;

use crate::{
    bare::Fallible,
    capacity::Distribution,
    measure::{BenchError, Late},
};
use site::Site;

/// The period in which the messages that fall due together do so.
const MINUTE: Duration = Duration::from_secs(60);

/// The lowest rate that is expected when the last messages are published, as a share of that of the others.
const SLOWER: f64 = 0.5;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  delayline-bench fill --messages 100000 --pause 2m         about six minutes
  delayline-bench fill --messages 10000000 --at 1000000,3000000 --place /data
                                                            an hour or more, 10 GB of disk
  delayline-bench fill --messages 1000000 --nodes 3 --json  on a cluster

Starts private RabbitMQ nodes, which must be installed and not running, and fills a set with
messages of mixed delays. Then a part of them falls due within a minute. Measures memory and
disk of the first node, what commands and a restart after a kill take, and the lateness of short
delays: with nothing waiting, at each count of --at, with everything waiting, and while the part
falls due. Exits with 1 if a message was lost or early, or if the last measurements took longer
than the pause.")]
pub(crate) struct Args {
    /// How many messages wait
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = whole::<u64>(1_000..))]
    messages: u64,
    /// At which numbers of waiting messages to measure, too, separated by commas
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = whole::<u64>(1..))]
    at: Vec<u64>,
    /// How many of these fall due within a minute [default: a tenth, 1,000,000 at most]
    #[arg(long, value_name = "N", value_parser = whole::<u64>(1..))]
    together: Option<u64>,
    /// How long the others wait: fixed:30h, uniform:1h..7d, exponential:2d, mix:1h=40%,5d=60%
    #[arg(long, value_name = "D", default_value = "uniform:1h..7d")]
    delays: Distribution,
    /// Bytes per message
    #[arg(long, value_name = "BYTES", default_value_t = 256, value_parser = whole::<usize>(16..=1 << 20))]
    size: usize,
    /// How long the measurements may take before messages fall due
    #[arg(long, value_name = "D", default_value = "5m", value_parser = delay)]
    pause: Delay,
    /// Nodes of the cluster; each queue has a replica on every node
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole::<usize>(1..=7))]
    nodes: usize,
    /// Directory for the data of the nodes [default: that for temporary files]
    #[arg(long, value_name = "DIR")]
    place: Option<std::path::PathBuf>,
    /// How many messages each dead-letter worker of the broker has on their way [default: the
    /// broker's, 32]
    #[arg(long, value_name = "N", value_parser = whole::<u32>(1..=65_535))]
    prefetch: Option<u32>,
}

/// The figures of a broker with many waiting messages.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct Report {
    broker: String,
    nodes: usize,
    prefetch: Option<u32>,
    processors: usize,
    load_before: String,
    messages: u64,
    /// How many of them fell due within a minute.
    together: u64,
    delays: String,
    size: usize,
    /// How long the installation of the set took, in seconds.
    install_s: f64,
    published_per_s: f64,
    /// CPU time of the first node for each published message, in µs.
    publish_cpu_us: f64,
    /// With nothing waiting, at other numbers, and with everything waiting.
    stages: Vec<Stage>,
    drain: Drain,
    /// Whether the measurements ended before the messages fell due.
    in_time: bool,
    lost: u64,
    twice: u64,
    early: u64,
}

/// The figures at one number of waiting messages.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
struct Stage {
    waiting: u64,
    before: State,
    /// The first node was killed after that.
    restart: Restart,
    after: State,
}

impl Stage {
    fn measure(site: &mut Site<'_>, waiting: u64) -> Fallible<Self> {
        aside(format!("measuring while {} messages wait", grouped(waiting)));
        Ok(Self { waiting, before: site.state()?, restart: site.restart()?, after: site.state()? })
    }
}

/// The first node at one moment, and what commands take then.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
struct State {
    /// In bytes.
    memory: u64,
    disk: u64,
    /// The part of the disk that write-ahead logs take.
    wal: u64,
    /// Seconds for an installation that changes nothing.
    install_s: f64,
    looks: Looks,
    /// The lateness of short delays.
    late_ms: Late,
}

/// What those who look at the set see, and how many seconds it takes.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
struct Looks {
    verify_s: f64,
    doctor_s: f64,
    /// The codes of the findings of `doctor`.
    findings: BTreeSet<String>,
    /// A picture for the page.
    page_s: f64,
    /// Its main sentence.
    headline: String,
}

impl Looks {
    /// Adds later ones: the longest times, and all findings.
    fn add(&mut self, other: Self) {
        self.verify_s = self.verify_s.max(other.verify_s);
        self.doctor_s = self.doctor_s.max(other.doctor_s);
        self.page_s = self.page_s.max(other.page_s);
        self.findings.extend(other.findings);
    }
}

/// The end and the restart of the first node.
#[derive(Debug, Clone, Copy, Serialize, schemars::JsonSchema)]
struct Restart {
    /// Seconds until it answers.
    serves_s: f64,
    /// Seconds until every level accepts messages.
    accepts_s: f64,
    /// Seconds until every level accepts messages through another node, before the restart.
    takeover_s: Option<f64>,
}

/// The messages that fell due within a minute.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
struct Drain {
    /// From the first arrival to the last.
    per_s: f64,
    /// CPU time of the first node for each, in µs.
    cpu_us: f64,
    late_ms: Late,
    /// The lateness of short delays meanwhile.
    beside_ms: Late,
    /// The longest times and all findings meanwhile, and the first headline.
    looks: Option<Looks>,
}

pub(crate) fn run(args: &Args, output: &mut Output) -> Result<Code, Failure> {
    let together = args.together.unwrap_or_else(|| (args.messages / 10).clamp(1, 1_000_000));
    if together > args.messages {
        return Err(Failure::usage("--together cannot be more than --messages"));
    }
    let at: BTreeSet<u64> = args.at.iter().copied().collect();
    if at.last().is_some_and(|last| *last > args.messages - together) {
        return Err(Failure::usage("--at cannot be more than --messages without --together"));
    }
    let stop = on_signal_or_without_reader()?;
    let report = match measure(args, together, &at, &stop) {
        Ok(report) => report,
        Err(error) if matches!(error.downcast_ref(), Some(BenchError::Interrupted)) => {
            return Ok(Code::Interrupted);
        }
        Err(error) => return Err(Failure::new(Code::Broker, error)),
    };
    let wrong = report.lost + report.early > 0 || !report.in_time;
    output.report(&report, show)?;
    if !report.in_time {
        aside("messages fell due before the measurements ended: use a longer --pause");
    }
    Ok(if wrong { Code::Problem } else { Code::Done })
}

fn measure(args: &Args, together: u64, at: &BTreeSet<u64>, stop: &AtomicBool) -> Fallible<Report> {
    let rabbit = args.prefetch.map(|number| format!("{{dead_letter_worker_consumer_prefetch, {number}}}"));
    let options = NodeOptions {
        rabbit: rabbit.into_iter().collect(),
        place: args.place.clone(),
        ..NodeOptions::default()
    };
    let load_before = std::fs::read_to_string("/proc/loadavg").unwrap_or_default().trim().to_owned();
    let (mut site, install_s) = Site::start(args.nodes, options, args.size, stop)?;
    let mut stages = vec![Stage::measure(&mut site, 0)?];

    let mut random = fastrand::Rng::new();
    let far = args.messages - together;
    let mut published = 0;
    for &count in at {
        aside(format!("publishing until {} wait", grouped(count)));
        site.publish(count - published, |_| args.delays.sample(&mut random))?;
        published = count;
        stages.push(Stage::measure(&mut site, count)?);
    }
    aside(format!("publishing until {} wait", grouped(args.messages)));
    site.publish(far - published, |_| args.delays.sample(&mut random))?;
    let rate = if far > 0 { site.published_per_s() } else { 1_000.0 };
    let pause = Duration::from_secs(args.pause.seconds().into());
    let due = Instant::now() + Duration::from_secs_f64(together as f64 / (rate * SLOWER)) + pause;
    let within = MINUTE.as_secs_f64();
    site.publish_together(together, |now| {
        let wait = (due + Duration::from_secs_f64(random.f64() * within)).saturating_duration_since(now);
        Delay::from_seconds(wait.as_secs_f64().ceil() as u64).unwrap_or(Delay::MAX)
    })?;
    stages.push(Stage::measure(&mut site, args.messages)?);
    let in_time = Instant::now() < due;
    aside("waiting until messages fall due");
    let (drain, sums) = site.drain(together, due + MINUTE)?;
    Ok(Report {
        broker: site.version(),
        nodes: args.nodes,
        prefetch: args.prefetch,
        processors: std::thread::available_parallelism().map_or(0, usize::from),
        load_before,
        messages: args.messages,
        together,
        delays: args.delays.to_string(),
        size: args.size,
        install_s,
        published_per_s: site.published_per_s(),
        publish_cpu_us: site.publish_cpu_us(),
        stages,
        drain,
        in_time,
        lost: sums.lost,
        twice: sums.twice,
        early: sums.early,
    })
}

fn show(report: &Report, output: &mut Output) -> Result<(), Failure> {
    let prefetch = report.prefetch.map_or_else(String::new, |number| format!(", prefetch {number}"));
    output.line(format!(
        "RabbitMQ {}{prefetch}, {} nodes; {} processors shared by broker and client; load before: {}",
        report.broker, report.nodes, report.processors, report.load_before
    ))?;
    output.line(format!(
        "{} messages of {} bytes, {} of them due within a minute, the others {}",
        grouped(report.messages),
        report.size,
        grouped(report.together),
        report.delays
    ))?;
    let states: Vec<_> = report
        .stages
        .iter()
        .flat_map(|stage| {
            let waiting = grouped(stage.waiting);
            [(format!(">{waiting} wait"), &stage.before), (">after a kill".to_owned(), &stage.after)]
        })
        .collect();
    let row = |what: &str, of: &dyn Fn(&State) -> String| {
        std::iter::once(what.to_owned()).chain(states.iter().map(|(_, state)| of(state))).collect::<Vec<_>>()
    };
    let megabytes = |bytes: u64| format!("{:.0} MB", bytes as f64 / 1e6);
    let seconds = |value: f64| format!("{value:.2} s");
    let rows = [
        row("memory", &|it| megabytes(it.memory)),
        row("disk", &|it| megabytes(it.disk)),
        row("write-ahead logs", &|it| megabytes(it.wal)),
        row("install, nothing new", &|it| seconds(it.install_s)),
        row("verify", &|it| seconds(it.looks.verify_s)),
        row("doctor", &|it| seconds(it.looks.doctor_s)),
        row("a picture for the page", &|it| seconds(it.looks.page_s)),
        row("findings", &|it| found(&it.looks.findings)),
        row("short delays late by p50", &|it| milliseconds(it.late_ms.p50)),
        row("short delays late by p99", &|it| milliseconds(it.late_ms.p99)),
    ];
    let titles: Vec<_> = std::iter::once("").chain(states.iter().map(|(title, _)| title.as_str())).collect();
    output.line(table(&titles, rows))?;
    for Stage { waiting, restart, .. } in &report.stages {
        let takeover = restart.takeover_s.map_or_else(String::new, |taken| {
            format!("; without the node, every level accepts messages after {taken:.1} s")
        });
        output.line(format!(
            "Restart while {} wait: answers after {:.1} s, every level accepts messages after {:.1} s{takeover}",
            grouped(*waiting),
            restart.serves_s,
            restart.accepts_s
        ))?;
    }
    if let [empty, .., full] = &report.stages[..] {
        let each = |after: u64, before: u64| (after as f64 - before as f64) / report.messages as f64;
        output.line(format!(
            "Each message: {:.0} bytes of memory ({:.0} after the restart), {:.0} of disk",
            each(full.before.memory, empty.after.memory),
            each(full.after.memory, empty.after.memory),
            each(full.before.disk, empty.after.disk)
        ))?;
    }
    output.line(format!(
        "Installed in {:.1} s; published {:.0}/s, {:.0} µs of broker CPU each",
        report.install_s, report.published_per_s, report.publish_cpu_us
    ))?;
    let drain = &report.drain;
    output.line(format!(
        "Due within a minute: {:.0}/s, {:.0} µs of broker CPU each, late by p50 {}, at most {}; short delays \
         meanwhile p50 {}, p99 {}",
        drain.per_s,
        drain.cpu_us,
        milliseconds(drain.late_ms.p50),
        milliseconds(drain.late_ms.max),
        milliseconds(drain.beside_ms.p50),
        milliseconds(drain.beside_ms.p99)
    ))?;
    if let Some(looks) = &drain.looks {
        output.line(format!(
            "Meanwhile verify took up to {:.2} s, doctor {:.2} s and a picture {:.2} s; findings: {}. The page: {}",
            looks.verify_s,
            looks.doctor_s,
            looks.page_s,
            found(&looks.findings),
            looks.headline
        ))?;
    }
    output.line(format!("Lost {}, twice {}, early {}", report.lost, report.twice, report.early))?;
    Ok(())
}

fn found(findings: &BTreeSet<String>) -> String {
    let all: Vec<_> = findings.iter().map(String::as_str).collect();
    if all.is_empty() { "none".into() } else { all.join(", ") }
}

fn milliseconds(value: f64) -> String {
    if value >= 1_000.0 { format!("{:.2} s", value / 1_000.0) } else { format!("{value:.1} ms") }
}
