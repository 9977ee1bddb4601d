//! The command line.

use std::{
    fs, iter,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    thread,
    time::{Duration, Instant},
};

use clap::Parser;

use super::{
    Fallible,
    broker::Broker,
    conditions::{Conditions, load},
    knee,
    layouts::{self, Description},
    machine::quietest,
    measure::measure,
    reference::Reference,
    report,
    results::{Cell, Run},
    scale::Scale,
    series, table, targets,
    workload::Workload,
};

/// What is measured a second time with a larger prefetch of the dead-letter workers.
const TUNED: [&str; 3] = ["nservicebus", "delayline", "straight"];

#[derive(Debug, Parser)]
#[command(
    name = "scripts/compare",
    override_usage = "scripts/compare [OPTIONS]",
    about = "Ways to delay messages with RabbitMQ, measured in one run",
    after_help = "\
Examples:
  scripts/compare                              every broker at hand; about 25 minutes for each
  scripts/compare --no-series --prefetch 0     only the comparison itself; about 15 minutes
  scripts/compare --quick                      roughly where things stand; about eight minutes for each
  scripts/compare --versions 4.3               only this broker
  scripts/compare --layouts delayline,celery --workloads equal
  scripts/compare --check target/compare/4.3.6.json
  scripts/compare --report docs/benchmarks/*.json

Results go to target/compare/<version>.json; --out names another directory. Exit codes:
0 done, 1 a target is not met (--check), 2 wrong usage, 3 something could not be measured."
)]
pub struct Args {
    /// About eight minutes for each broker
    #[arg(long)]
    quick: bool,
    #[arg(long, hide = true)]
    tiny: bool,
    /// Only these layouts
    #[arg(long, value_delimiter = ',', value_name = "IDS")]
    layouts: Vec<String>,
    /// Only these workloads: equal, mixed, real-life, burst
    #[arg(long, value_delimiter = ',', value_name = "IDS")]
    workloads: Vec<String>,
    /// The unit of mixed delays and of the burst, in ms, 1 to 1000; smaller ones save time
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=1_000))]
    mixed_unit: Option<u64>,
    /// The larger prefetch of dead-letter workers to measure as well; 0 for none
    #[arg(long, default_value_t = 512, value_name = "N")]
    prefetch: u32,
    /// Neither hops nor waiting messages nor the knee
    #[arg(long)]
    no_series: bool,
    /// A plugin to enable on the broker
    #[arg(long, value_name = "NAME")]
    plugin: Vec<String>,
    /// The file of results
    #[arg(long, value_name = "FILE", default_value = "target/compare/results.json")]
    json: PathBuf,
    /// Instead of measuring: what files of results show
    #[arg(long, num_args = 1.., value_name = "FILE", conflicts_with = "report")]
    check: Vec<PathBuf>,
    /// Instead of measuring: writes docs/benchmarks.md and its charts from files of results
    #[arg(long, num_args = 1.., value_name = "FILE")]
    report: Vec<PathBuf>,
    /// Where --report writes to
    #[arg(long, value_name = "DIRECTORY", default_value = "docs")]
    docs: PathBuf,
    // What cargo passes to benches.
    #[arg(long, hide = true)]
    bench: bool,
    #[arg(long, hide = true)]
    test: bool,
}

/// The caller's mistake.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Usage(String);

pub fn main() -> ExitCode {
    let args = Args::parse();
    if args.test {
        return ExitCode::SUCCESS;
    }
    // Cargo runs it where its package is; paths are meant from the top.
    std::env::set_current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
        .expect("the top of the repository");
    match args.run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(if error.is::<Usage>() { 2 } else { 3 })
        }
    }
}

impl Args {
    fn run(&self) -> Fallible<ExitCode> {
        if !self.report.is_empty() {
            for file in report::write(&read(&self.report)?, &self.docs)? {
                println!("wrote {}", file.display());
            }
            return Ok(ExitCode::SUCCESS);
        }
        if !self.check.is_empty() {
            let targets = targets::targets(&read(&self.check)?);
            println!("{}", targets::print(&targets));
            let missed = targets.iter().filter(|target| target.met == Some(false)).count();
            let of = targets.iter().filter(|target| target.met.is_some()).count();
            println!("\n{} of {of} met", of - missed);
            return Ok(ExitCode::from(u8::from(missed > 0 || of == 0)));
        }
        let known: Vec<_> = layouts::all().into_iter().map(|(description, _)| description.id).collect();
        refuse_unknown("layout", &self.layouts, &known)?;
        let workloads: Vec<_> =
            Workload::all(&self.scale()).iter().map(|workload| workload.id.into()).collect();
        refuse_unknown("workload", &self.workloads, &workloads)?;
        let mut runs = Vec::new();
        let is_tuned = |id: &String| TUNED.contains(&id.as_str());
        let again = self.prefetch > 0 && (self.layouts.is_empty() || self.layouts.iter().any(is_tuned));
        for prefetch in iter::once(None).chain(again.then_some(Some(self.prefetch))) {
            runs.push(self.measure(prefetch)?);
            save(&self.json, &runs)?;
        }
        println!("\n{}\n\nresults in {}", targets::print(&targets::targets(&runs)), self.json.display());
        let failed = runs
            .iter()
            .any(|run| !run.failures.is_empty() || run.cells.iter().any(|cell| cell.failure.is_some()));
        Ok(ExitCode::from(if failed { 3 } else { 0 }))
    }

    fn scale(&self) -> Scale {
        let mut scale = match (self.quick, self.tiny) {
            (true, _) => Scale::quick(),
            (_, true) => Scale::tiny(),
            _ => Scale::full(),
        };
        if let Some(unit) = self.mixed_unit {
            scale.mixed_unit = unit;
            scale.name += &format!(", mixed delays in units of {unit} ms");
        }
        scale
    }

    /// Everything on one broker with one configuration.
    fn measure(&self, prefetch: Option<u32>) -> Fallible<Run> {
        let (scale, started) = (self.scale(), Instant::now());
        let mut conditions = Conditions::new(&scale);
        let mut broker = Broker::start(prefetch, &self.plugin)?;
        warm_up(&broker)?;
        broker.rest(scale.rest);
        conditions.rabbitmq.clone_from(&broker.version);
        conditions.prefetch = prefetch;
        conditions.idle_cpu = broker.idle;
        conditions.foreign_cpu = broker.foreign;
        conditions.kombu = kombu_version();
        let wanted = |description: &Description| {
            let id = description.id.as_str();
            (self.layouts.is_empty() || self.layouts.iter().any(|layout| layout == id))
                && (prefetch.is_none() || TUNED.contains(&id))
                && (id != "plugin" || broker.has_delay_plugin)
        };
        let mut layouts: Vec<_> = layouts::all();
        layouts.retain(|(description, _)| wanted(description));
        let mut run = Run {
            conditions,
            layouts: layouts.iter().map(|(description, _)| description.clone()).collect(),
            cells: Vec::new(),
            hops: Vec::new(),
            waiting: Vec::new(),
            knees: Vec::new(),
            failures: Vec::new(),
        };
        println!("\n== RabbitMQ {} ({})", run.name(), scale.name);
        let mut workloads = Workload::all(&scale);
        workloads.retain(|workload| {
            self.workloads.is_empty() || self.workloads.iter().any(|id| id == workload.id)
        });
        let mut reference = Reference::new(&broker, &Workload::all(&scale)[0])?;
        for workload in &workloads {
            for (description, make) in &layouts {
                say(started, &format!("{}: {}", workload.title, description.title));
                let (mut cell, stolen) = quietest(
                    scale.attempts,
                    || measure(&broker, &description.id, make().as_mut(), workload, &scale, &mut reference),
                    Cell::count,
                );
                cell.stolen = stolen;
                if let Some(failure) = &cell.failure {
                    eprintln!("   {}: {failure}", description.title);
                }
                run.cells.push(cell);
            }
            println!("\n{}\n{}", workload.title, table::cells(&run, workload.id));
        }
        drop(reference);
        if !self.no_series && self.layouts.is_empty() {
            series(&broker, &scale, &mut run, started);
        }
        run.conditions.load_after = load();
        // What was published and not waited for is still on its way.
        thread::sleep(scale.rest * 2);
        broker.rest(scale.rest);
        run.conditions.foreign_cpu = run.conditions.foreign_cpu.max(broker.foreign);
        run.conditions.seconds = started.elapsed().as_secs_f64();
        Ok(run)
    }
}

/// One thing at a time. A failure ends one of the series, and is noted.
fn series(broker: &Broker, scale: &Scale, run: &mut Run, started: Instant) {
    say(started, "number of hops");
    let hops = series::hops(broker, scale);
    run.hops = run.noting("number of hops", hops).unwrap_or_default();
    println!("\nnumber of hops\n{}", table::hops(run));
    if run.conditions.prefetch.is_none() {
        say(started, "waiting messages");
        let waiting = series::waiting(broker, scale);
        run.waiting = run.noting("waiting messages", waiting).unwrap_or_default();
        println!("\nwaiting messages\n{}", table::waiting(run));
    }
    if scale.knee > Duration::ZERO {
        for (id, mut layout) in series::layouts() {
            say(started, &format!("knee of {id}"));
            let knee = knee::search(broker, id, layout.as_mut(), scale);
            let knee = run.noting(&format!("knee of {id}"), knee);
            run.knees.extend(knee);
        }
        println!("\nknee\n{}", table::knees(run));
    }
}

/// Has the broker do a little of everything, so that the first layout does not pay for
/// what is loaded once.
fn warm_up(broker: &Broker) -> Fallible<()> {
    let scale = Scale::tiny();
    let mut reference = Reference::new(broker, &Workload::all(&scale)[0])?;
    for workload in Workload::all(&scale).iter().filter(|workload| workload.id == "equal") {
        for (description, make) in layouts::all() {
            if ["straight", "message-ttl", "delayline"].contains(&description.id.as_str()) {
                measure(broker, &description.id, make().as_mut(), workload, &scale, &mut reference);
            }
        }
    }
    Ok(())
}

/// Progress, for who waits; it is no result.
fn say(started: Instant, what: &str) {
    eprintln!("   {:4.0} s  {what}", started.elapsed().as_secs_f64());
}

fn refuse_unknown(what: &str, given: &[String], known: &[String]) -> Fallible<()> {
    match given.iter().find(|id| !known.contains(id)) {
        Some(id) => Err(Usage(format!("there is no {what} `{id}`; there are {}", known.join(", "))).into()),
        None => Ok(()),
    }
}

/// The runs in some files, each once.
fn read(files: &[PathBuf]) -> Fallible<Vec<Run>> {
    let mut runs: Vec<Run> = Vec::new();
    for file in files {
        let text = fs::read_to_string(file).map_err(|error| Usage(format!("{}: {error}", file.display())))?;
        let found: Vec<Run> = serde_json::from_str(&text)
            .map_err(|error| Usage(format!("{} holds no results: {error}", file.display())))?;
        runs.extend(found);
    }
    Ok(runs)
}

fn save(file: &Path, runs: &[Run]) -> Fallible<()> {
    if let Some(directory) = file.parent() {
        fs::create_dir_all(directory)?;
    }
    Ok(fs::write(file, serde_json::to_string_pretty(runs)? + "\n")?)
}

/// Which kombu declares Celery's layout.
fn kombu_version() -> Option<String> {
    let python = std::env::var("TEST_PYTHON").ok()?;
    let output = Command::new(python).args(["-c", "import kombu; print(kombu.__version__)"]).output().ok()?;
    let version = String::from_utf8(output.stdout).ok()?;
    (output.status.success()).then(|| version.trim().to_owned())
}
