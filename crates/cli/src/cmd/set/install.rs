//! `delayline install`

use owo_colors::OwoColorize;

use delayline_admin::{self as admin, Applied, InstallReport};
use delayline_broker::earlier_remedy;
use delayline_core::topology::Topology;
use delayline_settings::Settings;

use delayline_term::{
    Code, Failure, Output, findings, output::counted, output::counted_if_known, output::dry_run,
    output::grouped, output::unchanged,
};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  delayline install --url amqp://admin@broker.example --password-file pw
  delayline install --dry-run
  delayline install --set reminders --replicas 5
  delayline install --queue-type classic
  delayline install --shortcuts                 with fewer hops, and 44 queues more
  delayline install --shortcuts false           without them again

Without --shortcuts, a set keeps the shortcuts that it has, or has not: an installation from a
machine whose settings do not name them must not switch them off. Messages may wait while
shortcuts are switched. A message that is published at that moment may arrive twice. Queues of
shortcuts that were switched off stay until they are empty; a later installation removes them.

Installing again changes nothing and is safe from several machines at once. If an object of
the same name exists with other arguments, or the broker does not support a set (too old, or
a feature flag is off), the command reports it, changes nothing and exits with 1.")]
pub(crate) struct Args {
    /// Only show what would be done
    #[arg(long)]
    dry_run: bool,
}

pub(crate) fn run(args: &Args, settings: &Settings, output: &mut Output) -> Result<Code, Failure> {
    let topology = Topology::new(settings.topology.clone());
    let bar = output.progress(Some(topology.objects().len() as u64), "declaring");
    let report = admin::install(settings, &topology, args.dry_run, || bar.inc(1));
    bar.finish_and_clear();
    let report = report?;
    output.report(&report, |report, output| show(report, settings, output))?;
    Ok(match report.outcome {
        Applied::Installed | Applied::Unchanged | Applied::DryRun => Code::Done,
        Applied::Conflict | Applied::Unsuitable | Applied::EarlierVersion => Code::Problem,
    })
}

/// What changes when shortcuts are switched on or off.
pub(super) fn switched(report: &InstallReport) -> Vec<String> {
    let verb = if report.outcome == Applied::DryRun { "would remove" } else { "removed" };
    let mut lines = Vec::new();
    if let Some(replaced) = report.replaced_bindings.filter(|replaced| *replaced > 0) {
        lines.push(format!("{verb} {}", counted(replaced as u64, "old binding")));
    }
    lines.extend(report.removed.iter().map(|queue| format!("{verb} queue `{queue}`")));
    if !report.kept.is_empty() {
        let messages: Option<u64> = report.kept.iter().map(|kept| kept.messages).sum();
        let queues = counted(report.kept.len() as u64, "queue");
        let messages = counted_if_known(messages, "message");
        lines.push(format!("kept {queues} of shortcuts with {messages}; install again to remove them"));
    }
    lines
}

fn show(report: &InstallReport, settings: &Settings, output: &mut Output) -> Result<(), Failure> {
    let set = &settings.topology.set;
    let place = format!("set `{set}` in vhost `{}` of {}", settings.broker.vhost, settings.broker);
    if report.outcome == Applied::Unsuitable {
        output.line(format!(
            "{} {place}: nothing was changed, because this broker does not support a set in its current \
             state",
            "unsuitable".red().bold()
        ))?;
        for problem in &report.unsuitable {
            output.line(format!("  {problem}"))?;
        }
        return Ok(());
    }
    if let Some(earlier) = &report.earlier {
        output.line(format!("{} {place}: nothing was changed", "earlier version".red().bold()))?;
        output.line(format!("  {earlier}"))?;
        output.line(format!("  to do: {}", earlier_remedy(set)))?;
        return Ok(());
    }
    if report.outcome == Applied::Conflict {
        output.line(format!(
            "{} {place}: nothing was changed, because other objects conflict",
            "conflict".red().bold()
        ))?;
        for conflict in &report.conflicts {
            output.line(format!("  {conflict}"))?;
        }
        if report.conflicts.iter().any(|conflict| !conflict.is_of_replicas()) {
            output.line("Choose another name with --set, or remove these objects if they are not in use.")?;
        }
        return Ok(());
    }
    let is_dry_run = report.outcome == Applied::DryRun;
    let (head, verb) = match report.outcome {
        Applied::DryRun => (dry_run(), "would create"),
        Applied::Unchanged => (unchanged(), "created"),
        _ => ("installed".green().bold().to_string(), "created"),
    };
    output.line(format!("{head} {place}"))?;
    let created = report.created.len();
    if is_dry_run || created < 8 {
        for name in &report.created {
            output.line(format!("  {verb} {name}"))?;
        }
    } else {
        output.line(format!(
            "  {verb} {}",
            counted(created as u64, "exchange and queue")
                .replace("exchange and queues", "exchanges and queues")
        ))?;
    }
    if report.standing > 0 {
        output.line(format!(
            "  {} already there",
            counted(report.standing as u64, "exchange and queue")
                .replace("exchange and queues", "exchanges and queues")
        ))?;
    }
    let bindings = counted(report.bindings as u64, "binding");
    output.line(match report.created_bindings {
        Some(0) => format!("  {bindings} already there"),
        Some(made) if made == report.bindings => format!("  {verb} {bindings}"),
        Some(made) => format!("  {verb} {} of {bindings}", grouped(made as u64)),
        None => format!("  {bindings}"),
    })?;
    for line in switched(report) {
        output.line(format!("  {line}"))?;
    }
    findings::unchecked(&report.unchecked, output)?;
    findings::warnings(&report.warnings, output)?;
    if !is_dry_run {
        output.line(format!(
            "Publish to the exchange `{set}` with a key such as `{}` prints.",
            settings.command(&["key", "encode", "90s", "--app", "billing"])
        ))?;
    }
    Ok(())
}
