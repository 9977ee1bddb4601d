//! Recalls on the broker: `scheduled list --recalls` and `scheduled sweep`.

use owo_colors::OwoColorize;

use delayline_admin::{self as admin, PendingRecall, PendingRecalls, SweepOptions, SweepReport};
use delayline_core::topology::Topology;
use delayline_settings::Settings;

use delayline_term::{
    Code, Failure, Output, ending::on_signal, findings, output::counted, output::dry_run, output::grouped,
    output::unchanged, table::table, time::date,
};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  delayline scheduled sweep --dry-run
  delayline scheduled sweep

Removes the recalls of messages that were due more than an hour ago, if that is safe now.
`delayline serve` sweeps regularly; without a daemon, run this command once a day.")]
pub(super) struct Args {
    /// Only show what would be removed
    #[arg(long)]
    dry_run: bool,
}

pub(super) fn run(
    args: &Args,
    settings: &Settings,
    topology: &Topology,
    output: &mut Output,
) -> Result<Code, Failure> {
    let mut options = SweepOptions::default();
    options.dry_run = args.dry_run;
    let stop = on_signal()?;
    let sweep = || admin::sweep_recalls(settings, topology, &options, &stop);
    swept(&output.spinning("sweeping", sweep)?, output)
}

pub(super) fn list(report: &PendingRecalls, output: &mut Output) -> Result<Code, Failure> {
    output.report(report, |report, output| {
        let pending = &report.pending;
        if pending.is_empty() {
            output.line("no recall is pending")?;
        } else {
            let due = |it: &PendingRecall| it.due.map_or_else(|| "unknown".into(), date);
            let rows = pending.iter().map(|it| vec![it.app.clone(), due(it), it.handle.clone()]);
            output.line(table(&["app key", "due at the latest", "handle"], rows))?;
            output.line(format!("{} pending", counted(pending.len() as u64, "recall")))?;
        }
        findings::unchecked(&report.unchecked, output)
    })?;
    Ok(if report.unchecked.is_empty() { Code::Done } else { Code::Problem })
}

fn swept(report: &SweepReport, output: &mut Output) -> Result<Code, Failure> {
    let code = match report.interrupted {
        true => Code::Interrupted,
        false if !report.unchecked.is_empty() => Code::Problem,
        false => Code::Done,
    };
    if output.json {
        output.json(report)?;
        return Ok(code);
    }
    let verb = if report.dry_run { "would be removed" } else { "removed" };
    let number = |number: usize| grouped(number as u64);
    let head = match (report.dry_run, report.swept + report.noted + report.undone) {
        (true, _) => format!("{} ", dry_run()),
        (false, 0) => format!("{} ", unchanged()),
        (false, _) => String::new(),
    };
    output.line(format!(
        "{head}{}: {} {verb}, {} still needed",
        counted(report.recalls as u64, "recall"),
        number(report.swept),
        number(report.recalls - report.swept - report.left)
    ))?;
    if report.noted > 0 {
        let verb = if report.dry_run { "would be noted" } else { "was noted" };
        output.line(format!("for {} it {verb} when they can go", number(report.noted)))?;
    }
    if report.undone > 0 {
        let verb = if report.dry_run { "would be removed" } else { "were removed" };
        output.line(format!("the notes of {} {verb}", counted(report.undone as u64, "undone recall")))?;
    }
    if report.left > 0 {
        output.line(format!("{} more have expired; the next run removes them", number(report.left)))?;
    }
    if let Some(reason) = &report.postponed {
        output.line(format!("{} {reason}", "postponed:".yellow().bold()))?;
    }
    if report.odd > 0 {
        output.line(format!("{} have a key that no message can have", number(report.odd)))?;
    }
    findings::unchecked(&report.unchecked.values().cloned().collect::<Vec<_>>(), output)?;
    Ok(code)
}
