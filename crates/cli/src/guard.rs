//! `delayline guard`

use std::time::Duration;

use owo_colors::OwoColorize;

use delayline_admin::{self as admin, Applied, GuardOptions, GuardReport, Layout, Unguarded, UnstickReport};
use delayline_core::topology::Topology;
use delayline_settings::Settings;

use crate::{
    Code, Failure, Output, args,
    output::{counted, printable},
};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  delayline guard nservicebus --dry-run
  delayline guard nservicebus
  delayline guard celery --targets
  delayline guard celery:eu                     kombu was told to use the prefix `eu`
  delayline guard nservicebus --undo
  delayline unroutable list --layout nservicebus

NServiceBus and Celery have delays of their own. Once 32 messages that have nowhere to go are
due in a level of them, that level stalls for everybody. This command keeps such messages in
a queue instead: a policy gives the exchanges an alternate exchange. Nothing is declared
again, and no program notices. Then the levels are made to try again, so that what is stuck
is released within seconds.

A policy that applies to their exchanges already stays as it is: the new one repeats what
it says and has a higher priority. If it gives an alternate exchange of its own, or two
have the same priority, the command says so, changes nothing and exits with 1. Run it
again after such a policy has changed. --undo takes away what the command has set, and
everything is as before; but if the queue still holds messages, it is left there and the
command exits with 1. The command needs the management API and a user with the tag
`policymaker`.")]
pub(super) struct Args {
    /// Whose delays: nservicebus, celery, or celery:PREFIX
    #[arg(value_name = "LAYOUT")]
    layout: Layout,
    /// Also guard the exchanges of applications that messages are delivered through
    #[arg(long)]
    targets: bool,
    /// Only show what would be done
    #[arg(long)]
    dry_run: bool,
    /// Take the guard away
    #[arg(long, conflicts_with = "targets")]
    undo: bool,
    /// How many seconds to wait to see whether the levels flow
    #[arg(long, value_name = "SECONDS", default_value_t = 15, value_parser = args::whole::<u64>(0..=3_600))]
    wait: u64,
}

pub(super) fn run(args: &Args, settings: &Settings, output: &mut Output) -> Result<Code, Failure> {
    let topology = Topology::new(settings.topology.clone());
    if args.undo {
        let undo = || admin::unguard(settings, &topology, &args.layout, args.dry_run);
        return show_undone(&output.spinning("taking the guard away", undo)?, output);
    }
    let mut options = GuardOptions::default();
    (options.targets, options.dry_run) = (args.targets, args.dry_run);
    options.wait = Duration::from_secs(args.wait);
    let guard = || admin::guard(settings, &topology, &args.layout, &options);
    let report = output.spinning("guarding", guard)?;
    output.report(&report, show)?;
    Ok(code(&report))
}

fn code(report: &GuardReport) -> Code {
    let stuck = |released: &UnstickReport| {
        released.touched.iter().any(|queue| queue.left.is_some_and(|left| left > 0))
            || !released.occupied.is_empty()
    };
    match report.outcome {
        Applied::Conflict => Code::Problem,
        _ if report.not_released.is_some() || report.released.as_ref().is_some_and(stuck) => Code::Problem,
        _ => Code::Done,
    }
}

fn show(report: &GuardReport, output: &mut Output) -> Result<(), Failure> {
    let layout = printable(&report.layout.to_string());
    if report.outcome == Applied::Conflict {
        output.line(format!("{} {layout}: nothing was changed", "in the way".red().bold()))?;
        for conflict in &report.conflicts {
            output.line(format!("  {}", printable(conflict)))?;
        }
        return Ok(());
    }
    let head = match report.outcome {
        Applied::Unchanged => "unchanged".green().bold().to_string(),
        Applied::DryRun => "dry run".yellow().bold().to_string(),
        _ => "guarded".green().bold().to_string(),
    };
    let queue = printable(&report.queue);
    output.line(format!("{head} {layout}: what nobody is bound for is kept in queue `{queue}`"))?;
    for policy in &report.policies {
        let verb = match (policy.stood, report.outcome) {
            (true, _) => "stands",
            (false, Applied::DryRun) => "would set",
            (false, _) => "set",
        };
        let merged = policy
            .merged_with
            .as_ref()
            .map_or_else(String::new, |other| format!(", with all that policy `{}` says", printable(other)));
        let exchanges = counted(policy.exchanges.len() as u64, "exchange");
        output.line(format!("  {verb} policy `{}` for {exchanges}{merged}", printable(&policy.name)))?;
    }
    for name in &report.obsolete {
        let verb = if report.outcome == Applied::DryRun { "would delete" } else { "deleted" };
        output.line(format!("  {verb} policy `{}`, which is not needed any more", printable(name)))?;
    }
    for name in &report.missing {
        output.line(format!("  {}: exchange `{}` is missing", "incomplete".yellow(), printable(name)))?;
    }
    if !report.uncovered.is_empty() {
        let names: Vec<_> = report.uncovered.iter().map(|name| format!("`{}`", printable(name))).collect();
        output.line(format!(
            "  {}: messages are delivered through {}, and what these lead nowhere stalls the levels all the \
             same; --targets guards them too",
            "not guarded".yellow(),
            names.join(", ")
        ))?;
    }
    released(report, output)
}

fn released(report: &GuardReport, output: &mut Output) -> Result<(), Failure> {
    if let Some(reason) = &report.not_released {
        output.line(format!(
            "  {}: {}. The broker tries again by itself within three minutes",
            "not released yet".yellow(),
            printable(reason)
        ))?;
    }
    let Some(released) = &report.released else { return Ok(()) };
    for queue in released.touched.iter().filter(|queue| queue.dead_letters > 0 || queue.left > Some(0)) {
        let before = counted(queue.dead_letters, "dead letter");
        let line = match queue.left {
            Some(0) => format!("{}: {before} before, none now", "released".green()),
            Some(left) => format!("{}: {before} before, {left} still there", "still stuck".red()),
            None => format!("made to try again: {before} before"),
        };
        output.line(format!("  {}  {line}", printable(&queue.queue)))?;
    }
    for queue in &released.occupied {
        output.line(format!(
            "  {}  {}: a policy and an operator policy apply to it; it tries again within three minutes",
            printable(&queue.queue),
            "not touched".yellow()
        ))?;
    }
    Ok(())
}

fn show_undone(report: &Unguarded, output: &mut Output) -> Result<Code, Failure> {
    let code = if report.kept.is_some() { Code::Problem } else { Code::Done };
    if output.json {
        output.json(report)?;
        return Ok(code);
    }
    let layout = printable(&report.layout.to_string());
    if report.policies.is_empty() && report.removed.is_empty() && report.kept.is_none() {
        output.line(format!("{} {layout}: there is no guard", "unchanged".green().bold()))?;
        return Ok(code);
    }
    let (head, verb) = match report.dry_run {
        true => ("dry run".yellow().bold().to_string(), "would delete"),
        false => ("undone".green().bold().to_string(), "deleted"),
    };
    output.line(format!("{head} {layout}"))?;
    for policy in &report.policies {
        output.line(format!("  {verb} policy `{}`", printable(policy)))?;
    }
    for what in &report.removed {
        output.line(format!("  {verb} {}", printable(what)))?;
    }
    if let Some(kept) = &report.kept {
        let queue = printable(&kept.queue);
        output.line(format!(
            "  queue `{queue}` stays: it keeps {}. `delayline unroutable replay --layout {layout} --all` sends them \
             on, `discard` discards them; then undo again",
            counted(kept.messages, "message")
        ))?;
    }
    Ok(code)
}
