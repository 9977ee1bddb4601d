//! `delayline guard`

use std::time::Duration;

use owo_colors::OwoColorize;

use delayline_admin::{self as admin, Applied, GuardOptions, GuardReport, Layout, Unguarded, UnstickReport};
use delayline_core::{codec::Delay, topology::Topology};
use delayline_settings::Settings;

use crate::values;
use delayline_term::{
    Code, Failure, Output, consent::Consent, ending, output::counted, output::counted_if_known,
    text::readable,
};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  delayline guard add nservicebus
  delayline guard remove nservicebus")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Keep undeliverable messages in a queue, so that no level stalls
    #[command(after_help = "\
Examples:
  delayline guard add nservicebus --dry-run
  delayline guard add nservicebus
  delayline guard add celery --targets
  delayline guard add celery:eu                 kombu uses the prefix `eu`
  delayline held list --layout nservicebus

NServiceBus and Celery have levels of their own. Once 32 unroutable messages are due in such
a level, it delivers nothing to any application. This command keeps unroutable messages in a
queue instead: a policy gives the exchanges an alternate exchange. Nothing is declared
again, and programs need no change. Then the levels are made to try again, so that stuck
messages are released within seconds.

A policy that already applies to the exchanges is merged into ours. If that is impossible,
the command reports it, changes nothing and exits with 1. Run it again after such a policy
has changed. The command needs the management API and a user with the tag `policymaker`.")]
    Add(Add),
    /// Remove a guard
    #[command(after_help = "\
Examples:
  delayline guard remove nservicebus --dry-run
  delayline guard remove nservicebus
  delayline guard remove celery --yes

Deletes the policies and the queue that `guard add` made. If the queue still holds messages,
it stays, and the command exits with 1. Ctrl-C and SIGTERM take effect after the removal is
complete.")]
    Remove(Remove),
}

#[derive(Debug, clap::Args)]
struct Add {
    /// Whose delays: nservicebus, nservicebus:v1, celery, or celery:PREFIX
    #[arg(value_name = "LAYOUT")]
    layout: Layout,
    /// Also guard the exchanges of applications that messages are delivered through
    #[arg(long)]
    targets: bool,
    /// Only show what would be done
    #[arg(long)]
    dry_run: bool,
    /// How long to wait for the levels to move
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = values::wait)]
    wait: Delay,
}

#[derive(Debug, clap::Args)]
struct Remove {
    /// Whose delays: nservicebus, nservicebus:v1, celery, or celery:PREFIX
    #[arg(value_name = "LAYOUT")]
    layout: Layout,
    #[command(flatten)]
    consent: Consent,
}

pub(crate) fn run(args: &Args, settings: &Settings, output: &mut Output) -> Result<Code, Failure> {
    let topology = Topology::new(settings.topology.clone());
    match &args.command {
        Command::Add(args) => {
            let mut options = GuardOptions::default();
            (options.targets, options.dry_run) = (args.targets, args.dry_run);
            options.wait = Duration::from_secs(args.wait.seconds().into());
            let guard = || admin::guard(settings, &topology, &args.layout, &options);
            let report = output.spinning("guarding", guard)?;
            output.report(&report, show)?;
            Ok(code(&report))
        }
        Command::Remove(Remove { layout, consent }) => {
            let stop = ending::on_signal()?;
            let remove = |dry_run| admin::unguard(settings, &topology, layout, dry_run, &stop);
            let plan = |output: &mut Output| show_removed(settings, &remove(true)?, output);
            if let Some(code) = consent.ask(output, plan)? {
                return Ok(code);
            }
            show_removed(settings, &output.spinning("removing", || remove(false))?, output)
        }
    }
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
    let layout = readable(&report.layout.to_string());
    if report.outcome == Applied::Conflict {
        output.line(format!("{} {layout}: nothing was changed", "in the way".red().bold()))?;
        for conflict in &report.conflicts {
            output.line(format!("  {}", readable(conflict)))?;
        }
        return Ok(());
    }
    let head = match report.outcome {
        Applied::Unchanged => "unchanged".green().bold().to_string(),
        Applied::DryRun => "dry run".yellow().bold().to_string(),
        _ => "guarded".green().bold().to_string(),
    };
    let queue = readable(&report.queue);
    output.line(format!("{head} {layout}: unroutable messages are kept in queue `{queue}`"))?;
    for policy in &report.policies {
        let verb = match (policy.stood, report.outcome) {
            (true, _) => "stands",
            (false, Applied::DryRun) => "would set",
            (false, _) => "set",
        };
        let merged = policy
            .merged_with
            .as_ref()
            .map_or_else(String::new, |other| format!(", merged with policy `{}`", readable(other)));
        let exchanges = counted(policy.exchanges.len() as u64, "exchange");
        output.line(format!("  {verb} policy `{}` for {exchanges}{merged}", readable(&policy.name)))?;
    }
    for name in &report.obsolete {
        let verb = if report.outcome == Applied::DryRun { "would delete" } else { "deleted" };
        output.line(format!("  {verb} policy `{}`, which is no longer needed", readable(name)))?;
    }
    for name in &report.missing {
        output.line(format!("  {}: exchange `{}` is missing", "incomplete".yellow(), readable(name)))?;
    }
    if !report.uncovered.is_empty() {
        let names: Vec<_> = report.uncovered.iter().map(|name| format!("`{}`", readable(name))).collect();
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
            "  {}: {}. The broker tries again within three minutes",
            "not released yet".yellow(),
            readable(reason)
        ))?;
    }
    let Some(released) = &report.released else { return Ok(()) };
    for queue in released.touched.iter().filter(|queue| queue.dead_letters > Some(0) || queue.left > Some(0))
    {
        let before = counted_if_known(queue.dead_letters, "dead letter");
        let line = match queue.left {
            Some(0) => format!("{}: {before} before, none now", "released".green()),
            Some(left) => format!("{}: {before} before, {left} still stuck", "still stuck".red()),
            None => format!("made to try again: {before} before"),
        };
        output.line(format!("  {}  {line}", readable(&queue.queue)))?;
    }
    for queue in &released.occupied {
        output.line(format!(
            "  {}  {}: a policy and an operator policy apply to it; it tries again within three minutes",
            readable(&queue.queue),
            "not touched".yellow()
        ))?;
    }
    Ok(())
}

fn show_removed(settings: &Settings, report: &Unguarded, output: &mut Output) -> Result<Code, Failure> {
    let code = if report.kept.is_some() { Code::Problem } else { Code::Done };
    if output.json {
        output.json(report)?;
        return Ok(code);
    }
    let layout = readable(&report.layout.to_string());
    if report.policies.is_empty() && report.removed.is_empty() && report.kept.is_none() {
        output.line(format!("{} {layout}: there is no guard", "unchanged".green().bold()))?;
        return Ok(code);
    }
    let (head, verb) = match report.dry_run {
        true => ("dry run".yellow().bold().to_string(), "would delete"),
        false => ("removed".green().bold().to_string(), "deleted"),
    };
    output.line(format!("{head} {layout}"))?;
    for policy in &report.policies {
        output.line(format!("  {verb} policy `{}`", readable(policy)))?;
    }
    for what in &report.removed {
        output.line(format!("  {verb} {}", readable(what)))?;
    }
    if let Some(kept) = &report.kept {
        let queue = readable(&kept.queue);
        let held = |verb| settings.command(&["held", verb, "--layout", &layout, "--all"]);
        output.line(format!(
            "  queue `{queue}` stays: it keeps {}. Send them on with `{}` or discard them with `{}`. Then remove \
             the guard again.",
            counted_if_known(kept.messages, "message"),
            held("replay"),
            held("discard")
        ))?;
    }
    Ok(code)
}
