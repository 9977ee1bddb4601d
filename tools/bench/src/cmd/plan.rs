//! `delayline-bench plan`

use std::path::{Path, PathBuf};

use serde::Serialize;

use delayline_cli::program::{Code, Failure, Output, grouped, table, tolerance, whole};
use delayline_core::codec::{Level, Tolerance};
use delayline_settings::read_text;

use super::run::wrapped;
use crate::{
    capacity::{Distribution, Figures, Fit, Load, Outlook, SAFE_LOAD},
    measure::Report,
};

/// Tolerances whose savings are shown beside the requested one.
const TOLERANCES: [&str; 4] = ["0%", "1%", "5%", "10%"];

/// The levels that are named hold at least this share of the waiting messages.
const MOST: f64 = 0.9;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  delayline-bench plan --rate 1000 --delays uniform:1s..60s
  delayline-bench plan --rate 200 --delays exponential:5m --tolerance 5%
  delayline-bench plan --rate 2000 --delays mix:1s=40%,5s=30%,1m..1h=30% --bench bench.json
  delayline-bench plan --rate 100000 --delays uniform:1s..365d --size 1000 --json

No broker is needed. The load of each level follows from the bits of the delays. The limits
of a broker come from the file that `delayline-bench run --json` wrote for it. Without
--bench, the limits of a small reference broker are used. Exits with 1 if the broker cannot
carry the load.

Delays: fixed:30s, uniform:1s..60s, exponential:5m (the mean), or a mix of delays and
ranges whose shares add up to 100%: mix:1s=40%,5s=30%,1m..1h=30%.")]
pub(crate) struct Args {
    /// Messages per second
    #[arg(long, value_name = "N", value_parser = rate)]
    rate: f64,
    /// How long they wait: fixed:30s, uniform:1s..60s, exponential:5m, mix:1s=40%,5s=60%
    #[arg(long, value_name = "D")]
    delays: Distribution,
    /// Bytes per message
    #[arg(long, value_name = "BYTES", default_value_t = 256, value_parser = whole::<u32>(0..))]
    size: u32,
    /// How much later is acceptable to save queue hops: 5%, 30s
    #[arg(long, value_name = "T", value_parser = tolerance, default_value = "0s")]
    tolerance: Tolerance,
    /// The figures of your broker, as printed by `delayline-bench run --json`
    #[arg(long, value_name = "FILE")]
    bench: Option<PathBuf>,
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate > 0.0 && rate <= 1e9 => Ok(rate),
        _ => Err("use a number above 0, up to 1000000000".into()),
    }
}

#[derive(Serialize, schemars::JsonSchema)]
pub(crate) struct Shown<'a> {
    load: &'a Load,
    waiting: f64,
    hottest_level: Level,
    fullest_levels: Vec<Level>,
    outlook: &'a Outlook,
    figures: &'a Figures,
    tolerances: Vec<Saving>,
    /// The same load on a set with shortcuts, unless it was planned with these.
    with_shortcuts: Option<WithShortcuts>,
}

/// What shortcuts change.
#[derive(Serialize, schemars::JsonSchema)]
struct WithShortcuts {
    /// Queues that a message passes, on average.
    hops: f64,
    /// Messages per second that the broker can carry at a safe load.
    safe_rate: f64,
}

/// The effect of a tolerance.
#[derive(Serialize, schemars::JsonSchema)]
struct Saving {
    tolerance: String,
    hops: f64,
    /// Messages per second through the hottest level.
    hottest: f64,
    /// Messages per second that the broker can carry at a safe load.
    safe_rate: f64,
    mean_delay: f64,
}

pub(crate) fn run(args: &Args, shortcuts: bool, output: &mut Output) -> Result<Code, Failure> {
    let figures = match &args.bench {
        Some(file) => read(file)?,
        None => Figures::reference(),
    };
    let size = f64::from(args.size);
    let load = Load::new(args.rate, &args.delays, args.tolerance, shortcuts);
    let outlook = Outlook::new(&load, size, &figures);
    let mut wanted: Vec<Tolerance> = TOLERANCES.iter().filter_map(|text| text.parse().ok()).collect();
    if args.tolerance != Tolerance::NONE && !wanted.contains(&args.tolerance) {
        wanted.push(args.tolerance);
    }
    let tolerances = wanted
        .into_iter()
        .map(|tolerance| {
            let load = Load::new(args.rate, &args.delays, tolerance, shortcuts);
            Saving {
                tolerance: tolerance.to_string(),
                hops: load.hops,
                hottest: load.hottest().per_second,
                safe_rate: Outlook::new(&load, size, &figures).safe_rate,
                mean_delay: load.mean_delay,
            }
        })
        .collect();
    let with_shortcuts = (!shortcuts).then(|| {
        let load = Load::new(args.rate, &args.delays, args.tolerance, true);
        WithShortcuts { hops: load.hops, safe_rate: Outlook::new(&load, size, &figures).safe_rate }
    });
    let shown = Shown {
        with_shortcuts,
        waiting: load.waiting(),
        hottest_level: load.hottest().level,
        fullest_levels: load.fullest(MOST).iter().map(|level| level.level).collect(),
        load: &load,
        outlook: &outlook,
        figures: &figures,
        tolerances,
    };
    // Nothing is known about a broker that was not measured.
    let code = match (&args.bench, outlook.verdict) {
        (Some(_), Fit::TooMuch) => Code::Problem,
        _ => Code::Done,
    };
    output.report(&shown, |shown, output| show(args, shown, output))?;
    Ok(code)
}

fn read(file: &Path) -> Result<Figures, Failure> {
    let wrong = |reason: String| Failure::usage(format!("{}: {reason}", file.display()));
    let text = read_text(file).map_err(|error| wrong(error.to_string()))?;
    let report: Report = serde_json::from_str(&text)
        .map_err(|error| wrong(format!("this is not the output of `delayline-bench run --json`: {error}")))?;
    let figures = report.figures();
    if figures.drain.is_empty() || figures.publish <= 0.0 {
        return Err(wrong("it has no figures for publishing or draining".into()));
    }
    Ok(figures)
}

fn show(args: &Args, shown: &Shown<'_>, output: &mut Output) -> Result<(), Failure> {
    let Shown { load, outlook, figures, .. } = shown;
    output.line(format!(
        "{}/s, {}, {} bytes each: {:.1} queues per message, {} on average, {} messages wait at any time",
        count(load.rate),
        args.delays,
        grouped(args.size.into()),
        load.hops,
        wait(load.mean_delay),
        count(shown.waiting),
    ))?;
    if load.hops == 0.0 {
        output.line("These messages pass through no level.")?;
    } else {
        let level_limit = figures.level_limit();
        let rows = load.levels.iter().rev().filter(|level| level.share > 0.0).map(|level| {
            let mark = match level.level {
                number if number == shown.hottest_level => "hottest",
                number if shown.fullest_levels.contains(&number) => "fullest",
                _ => "",
            };
            vec![
                format!("{:02}", level.level),
                wait(level.level.units().into()),
                format!("{:.1}%", level.share * 100.0),
                format!("{}/s", count(level.per_second)),
                percent(level.per_second / level_limit),
                count(level.waiting),
                mark.into(),
            ]
        });
        output.line("")?;
        output.line(table(
            &[">level", ">waits", ">of all", ">through it", ">of its limit", ">waiting", ""],
            rows,
        ))?;
    }
    output.line(format!("\nOn {}:", figures.broker))?;
    let rows = outlook.limits.iter().map(|limit| vec![limit.what.clone(), percent(limit.used)]);
    output.line(table(&["", ">used"], rows))?;
    for line in answer(args, shown) {
        output.line(wrapped(&line))?;
    }
    if let Some(with) = shown.with_shortcuts.as_ref().filter(|with| with.hops < 0.9 * load.hops) {
        let line = format!(
            "With shortcuts (`delayline install --shortcuts`), a message passes {:.2} queues instead of {:.2}, and \
             the broker carries {}/s safely. The set then has 44 queues more.",
            with.hops,
            load.hops,
            count(with.safe_rate)
        );
        output.line(format!("\n{}", wrapped(&line)))?;
    }
    output.line("\nWhat a tolerance would change:")?;
    let rows = shown.tolerances.iter().map(|saving| {
        vec![
            saving.tolerance.clone(),
            format!("{:.2}", saving.hops),
            format!("{}/s", count(saving.hottest)),
            wait(saving.mean_delay),
            format!("{}/s", count(saving.safe_rate)),
        ]
    });
    output.line(table(&[">tolerance", ">queues", ">hottest level", ">mean delay", ">safe rate"], rows))?;
    Ok(())
}

/// The answer, in sentences.
fn answer(args: &Args, shown: &Shown<'_>) -> Vec<String> {
    let Shown { outlook, figures, .. } = shown;
    let mut lines = vec![format!(
        "{} This broker carries {}/s of such messages safely (at {:.0}% of its limit), and {}/s at most.",
        match outlook.verdict {
            Fit::Holds => "The broker can carry this load.",
            Fit::Tight => "The broker can carry this load only while nothing else uses it.",
            Fit::TooMuch => "The broker cannot carry this load.",
        },
        count(outlook.safe_rate),
        SAFE_LOAD * 100.0,
        count(outlook.full_rate),
    )];
    lines.push(format!(
        "Waiting messages take {} of memory and {} of disk on each node with a replica, and {} of memory more until \
         the write-ahead log is written out. When a killed node starts, its levels accept messages after about {}. \
         Extrapolated from one to ten million messages on one node of RabbitMQ 4.3 (docs/benchmarks); \
         `delayline-bench fill` measures yours.",
        bytes(outlook.memory),
        bytes(outlook.disk),
        bytes(outlook.memory_fresh),
        wait(outlook.restart.ceil()),
    ));
    if outlook.sets > 1 {
        lines.push(format!(
            "Level {:02} has to be spread over {} sets, each on its own broker or processor.",
            shown.hottest_level,
            grouped(outlook.sets)
        ));
    }
    if outlook.brokers > 1 {
        let brokers = grouped(outlook.brokers);
        let first = outlook.limits.iter().find(|limit| !limit.what.starts_with("level"));
        let what = first.map_or("", |limit| limit.what.as_str());
        lines.push(format!("You need {brokers} such brokers; the first limit is {what}."));
    }
    if outlook.verdict != Fit::Holds && shown.fullest_levels.len() < 28 && shown.waiting > 1e7 {
        let levels: Vec<_> = shown.fullest_levels.iter().map(|level| format!("{level:02}")).collect();
        lines.push(format!(
            "Levels {} hold {:.0}% of the waiting messages. Move these delays first: to sets of their own, \
             or to a database from which messages are scheduled when less than {} is left.",
            levels.join(", "),
            MOST * 100.0,
            wait(shown.fullest_levels.iter().copied().min().unwrap_or(Level::LOWEST).units().into()),
        ));
    }
    if args.bench.is_none() {
        lines.push(
            "These are figures of a reference broker, not yours: measure yours with `delayline-bench run --knee \
             --json > bench.json` and give the file to --bench."
                .into(),
        );
    } else {
        if figures.knee.is_none() {
            lines.push(
                "This is estimated from bursts. A steady load costs more work per message, and the real \
                 limit may be half of this: `delayline-bench run --knee` measures it."
                    .into(),
            );
        }
        if figures.memory_limit.is_none() {
            lines.push("The file does not say how much memory and disk the broker has.".into());
        }
    }
    lines
}

/// A count with three significant digits.
fn count(value: f64) -> String {
    for (size, unit) in [(1e15, "quadrillion"), (1e12, "trillion"), (1e9, "billion"), (1e6, "million")] {
        if value >= size {
            return format!("{:.3} {unit}", value / size).replace(".000", "");
        }
    }
    if value >= 100.0 {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "under a million")]
        return grouped(value.round() as u64);
    }
    if value == value.trunc() { format!("{value:.0}") } else { format!("{value:.1}") }
}

fn percent(part: f64) -> String {
    if part >= 100.0 { "over 10,000%".into() } else { format!("{:.0}%", part * 100.0) }
}

fn bytes(value: f64) -> String {
    for (size, unit) in [(1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB")] {
        if value >= size {
            return format!("{:.1} {unit}", value / size);
        }
    }
    format!("{:.0} kB", value / 1e3)
}

fn wait(seconds: f64) -> String {
    for (size, unit) in [(31_557_600.0, "y"), (86_400.0, "d"), (3_600.0, "h"), (60.0, "m")] {
        if seconds >= size {
            return format!("{:.1} {unit}", seconds / size);
        }
    }
    if seconds == seconds.trunc() { format!("{seconds:.0} s") } else { format!("{seconds:.1} s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_to_read() {
        let texts = [0.0, 0.25, 17.5, 30_500.0, 1.5e6, 1.577e12].map(count);
        assert_eq!(texts, ["0", "0.2", "17.5", "30,500", "1.500 million", "1.577 trillion"]);
        assert_eq!([512.0, 3.2e9, 1e15].map(bytes), ["1 kB", "3.2 GB", "1.0 PB"]);
        assert_eq!([1.0, 30.5, 90.0, 5e6].map(wait), ["1 s", "30.5 s", "1.5 m", "57.9 d"]);
        assert_eq!([0.025, 1.5, 111.0].map(percent), ["2%", "150%", "over 10,000%"]);
    }
}
