//! `delayline-bench run`

use std::{
    fs::{self, File, OpenOptions},
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use delayline_cli::program::{
    Code, Failure, Output, aside, counted, delay, grouped, on_signal_or_without_reader, table, unchecked,
    whole,
};
use delayline_core::{
    codec::Delay,
    topology::{SetName, Unit},
};
use delayline_settings::Settings;

use crate::{
    capacity::Distribution,
    measure::{self, BenchError, BenchPlan, Late, Progress, Report, Sustained, Way},
};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  delayline-bench run --url amqp://admin@broker
  delayline-bench run --rate 5000 --delays mix:1s=40%,5s=30%,1m=20%,1h=10% --speed 1000
  delayline-bench run --knee --hdr lateness.hlog --json > bench.json
  delayline-bench run --knee --shortcuts
  delayline-bench plan --bench bench.json --rate 2000 --delays exponential:5m

The benchmark installs a set under a name of its own (bench-…), loads the broker for about
a minute and removes the set again, also on Ctrl-C and after a failure. It touches no
other set. It slows other users of the broker down: it publishes and drains at the highest
rate. The user needs configure, write and read permissions on names that begin with
`bench-`, and on the default exchange.

Delays of the steady load are divided by --speed, so that the run ends soon: lateness
depends on the number of messages and their queues, not on the length of a delay. Exits
with 1 if a message was lost or early, or if the broker could not keep up.")]
pub(crate) struct Args {
    /// Messages per measurement; fewer if that would take too long
    #[arg(long, value_name = "N", default_value_t = BenchPlan::default().count, value_parser = whole::<u64>(0..))]
    count: u64,
    /// Bytes per message
    #[arg(long, value_name = "BYTES", default_value_t = BenchPlan::default().size, value_parser = whole::<usize>(0..))]
    size: usize,
    /// How many queues the messages pass in each drain measurement
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,3,6", value_parser = whole::<u32>(0..))]
    hops: Vec<u32>,
    /// Messages per second of the steady load; 0 for none
    #[arg(long, value_name = "N", default_value_t = BenchPlan::default().rate, value_parser = whole::<u32>(0..))]
    rate: u32,
    /// Delays of the steady load: fixed:30s, uniform:1s..60s, exponential:5m, mix:1s=40%,5s=60%
    #[arg(long, value_name = "D", default_value = "uniform:1s..60s")]
    delays: Distribution,
    /// How long the steady load lasts, not counting its delays
    #[arg(long, value_name = "D", default_value = "10s", value_parser = delay)]
    duration: Delay,
    /// How many times faster than real time the delays pass, 1 to 1000
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = whole::<u16>(1..=1_000))]
    speed: u16,
    /// Look for the highest rate at which 99 in 100 messages are at most 50 ms late (a minute more)
    #[arg(long)]
    knee: bool,
    /// Write the distribution of lateness to this file, as an HdrHistogram log
    #[arg(long, value_name = "FILE")]
    hdr: Option<PathBuf>,
    /// Name of the throw-away set, which must not exist yet [default: a new one]
    #[arg(long, value_name = "NAME", value_parser = set_name)]
    name: Option<SetName>,
}

fn set_name(text: &str) -> Result<SetName, String> {
    text.parse().map_err(|error: delayline_core::topology::SetNameError| error.to_string())
}

impl Args {
    fn plan(&self) -> Result<BenchPlan, Failure> {
        // Rounded to whole milliseconds, the resolution of a queue's TTL.
        let unit = (1_000 + u64::from(self.speed) / 2) / u64::from(self.speed);
        let plan = BenchPlan {
            count: self.count,
            size: self.size,
            hops: self.hops.clone(),
            rate: self.rate,
            delays: self.delays.clone(),
            duration: Duration::from_secs(self.duration.seconds().into()),
            unit: Unit::from_millis(unit).map_err(Failure::usage)?,
            knee: self.knee,
            ..BenchPlan::default()
        };
        plan.checked().map_err(Failure::usage)
    }
}

/// The report, and its meaning.
#[derive(Serialize, schemars::JsonSchema)]
pub(crate) struct Shown<'a> {
    #[serde(flatten)]
    report: &'a Report,
    meaning: Vec<String>,
    advice: Vec<String>,
    problems: Vec<String>,
}

pub(crate) fn run(args: &Args, settings: &Settings, output: &mut Output) -> Result<Code, Failure> {
    let plan = args.plan()?;
    if let Some(file) = &args.hdr {
        check_writable(file)?;
    }
    let stop = on_signal_or_without_reader()?;
    let bar = output.progress(Some(0), "");
    bar.set_style(style());
    let found = measure::run(settings, &plan, args.name.clone(), &stop, &mut |progress| {
        show_progress(&bar, progress)
    });
    bar.finish_and_clear();
    let (report, histograms) = match found {
        Ok(found) => found,
        Err(BenchError::Interrupted) => {
            aside("interrupted; removing the throw-away set");
            return Ok(Code::Interrupted);
        }
        Err(error) => return Err(failure(error)),
    };
    if let Some(file) = &args.hdr {
        let written = File::create(file).and_then(|mut created| histograms.write(&mut created));
        written.map_err(|error| unwritable(file, &error))?;
    }
    let (meaning, advice, problems) = (report.meaning(), report.advice(), report.problems());
    let code = if problems.is_empty() { Code::Done } else { Code::Problem };
    output.report(&Shown { report: &report, meaning, advice, problems }, show)?;
    Ok(code)
}

/// Fails if the file cannot be written, in which case the run would be wasted. Until there is
/// something to write, the file stays as it is.
fn check_writable(file: &Path) -> Result<(), Failure> {
    let is_new = !file.exists();
    let opened = OpenOptions::new().append(true).create(true).open(file);
    let checked = opened.and_then(|_| if is_new { fs::remove_file(file) } else { Ok(()) });
    checked.map_err(|error| unwritable(file, &error))
}

fn unwritable(file: &Path, error: &io::Error) -> Failure {
    Failure::usage(format!("{}: {error}", file.display()))
}

fn failure(error: BenchError) -> Failure {
    match error {
        BenchError::Amqp(error) => error.into(),
        BenchError::Admin(error) => error.into(),
        // The benchmark ran and found messages missing.
        error @ BenchError::Stalled { .. } => Failure::new(Code::Problem, error),
        error @ (BenchError::Exists { .. } | BenchError::Plan(_)) => Failure::usage(error),
        error => Failure::new(Code::Broker, error),
    }
}

fn style() -> ProgressStyle {
    ProgressStyle::with_template("{msg:38} {wide_bar} {pos}/{len} {elapsed}")
        .unwrap_or_else(|_| ProgressStyle::default_bar())
}

fn show_progress(bar: &ProgressBar, progress: Progress) {
    match progress {
        Progress::Step { what, total } => {
            bar.set_position(0);
            bar.set_length(total);
            bar.set_message(what);
        }
        Progress::Done(count) => bar.inc(count),
    }
}

fn show(shown: &Shown<'_>, output: &mut Output) -> Result<(), Failure> {
    let report = shown.report;
    let conditions = &report.conditions;
    output.line(format!(
        "{}, {} queues, {} bytes per message, {} in flight; a second of delay lasted {} ms",
        report.broker_name(),
        conditions.queue_type,
        grouped(conditions.size as u64),
        grouped(conditions.window as u64),
        conditions.unit_ms,
    ))?;
    show_publish(report, output)?;
    show_drain(report, output)?;
    let steady: Vec<_> =
        report.steady.iter().chain(report.knee.iter().flat_map(|knee| &knee.tried)).collect();
    if let Some(first) = steady.first() {
        output.line("")?;
        output.line(format!("At a steady rate, {} ({:.1} queues on average):", first.delays, first.hops))?;
        let rows = steady.iter().map(|steady| steady_row(steady));
        output.line(table(
            &[
                ">asked for",
                ">taken",
                ">late by p50",
                ">p90",
                ">p99",
                ">p99.9",
                ">at most",
                ">lost",
                ">twice",
                ">early",
            ],
            rows,
        ))?;
    }
    if let Some(knee) = &report.knee {
        output.line(match knee.rate {
            0 => {
                format!("At every rate tried, the 99th percentile of lateness was over {} ms.", knee.limit_ms)
            }
            rate => format!(
                "{}/s is the highest rate at which 99 in 100 messages are at most {} ms late.",
                grouped(rate.into()),
                knee.limit_ms
            ),
        })?;
    }
    for (title, lines) in [("What this means", &shown.meaning), ("What would raise it", &shown.advice)] {
        if !lines.is_empty() {
            output.line(format!("\n{title}:"))?;
        }
        for line in lines {
            output.line(wrapped(line))?;
        }
    }
    unchecked(&report.unchecked, output)?;
    for problem in &shown.problems {
        aside(format!("problem: {problem}"));
    }
    Ok(())
}

fn show_publish(report: &Report, output: &mut Output) -> Result<(), Failure> {
    output.line("\nPublished, each message confirmed:")?;
    let limit = report.published(Way::Queue);
    let rows = report.publish.iter().map(|published| {
        let part = limit.map_or_else(|| "?".into(), |limit| format!("{:.2}", published.per_second / limit));
        let what = match published.way {
            Way::Entry => "through the entry",
            Way::Queue => "straight into a queue",
        };
        vec![what.into(), grouped(published.messages), per_second(published.per_second), part]
    });
    output.line(table(&["", ">messages", ">per second", ">of the limit"], rows))?;
    Ok(())
}

fn show_drain(report: &Report, output: &mut Output) -> Result<(), Failure> {
    output.line("\nDrained, from the first arrival to the last, when all fall due together:")?;
    let rows = report.drain.iter().map(|drained| {
        let (queues, late) = match drained.hops {
            0 => ("a plain queue".to_owned(), ["".into(), "".into(), "".into()]),
            hops => {
                let Late { p50, p99, max, .. } = drained.late_ms;
                (counted(hops.into(), "level"), [p50, p99, max].map(milliseconds))
            }
        };
        let mut row = vec![queues, grouped(drained.messages), per_second(drained.per_second)];
        row.extend(late);
        row
    });
    output.line(table(&["through", ">messages", ">per second", ">late by p50", ">p99", ">at most"], rows))?;
    Ok(())
}

fn steady_row(steady: &Sustained) -> Vec<String> {
    let Late { p50, p90, p99, p999, max, .. } = steady.late_ms;
    let mut row = vec![format!("{}/s", grouped(steady.rate.into())), per_second(steady.per_second)];
    row.extend([p50, p90, p99, p999, max].map(milliseconds));
    row.extend([steady.lost, steady.duplicates, steady.early].map(grouped));
    row
}

fn per_second(rate: f64) -> String {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a float saturates")]
    let rate = rate.round() as u64;
    format!("{}/s", grouped(rate))
}

fn milliseconds(value: f64) -> String {
    if value >= 1_000.0 { format!("{:.2} s", value / 1_000.0) } else { format!("{value:.1} ms") }
}

/// A sentence over several lines, with a dash before the first.
pub(super) fn wrapped(text: &str) -> String {
    textwrap::fill(text, textwrap::Options::new(100).initial_indent("  - ").subsequent_indent("    "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_sentences_are_broken_between_words() {
        let text = wrapped(&"word ".repeat(50));
        assert!(text.lines().count() == 3 && text.lines().all(|line| line.chars().count() <= 100), "{text}");
        assert!(text.starts_with("  - word") && text.lines().nth(1).unwrap().starts_with("    word"));
    }
}
