//! `delayline uninstall`

use delayline_admin as admin;
use delayline_core::topology::Topology;
use delayline_settings::Settings;

use crate::{
    Code, Failure, Output, change, findings,
    output::{counted, dry_run, unchanged},
};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  delayline uninstall --dry-run
  delayline uninstall --set reminders --force

Refuses, with exit code 1, while messages wait, while landing queues of applications
exist, or if an object of the set exists with other arguments than the settings say: give
the settings it was installed with (--queue-type, --replicas). It closes the entry, counts
the messages again six seconds later, when the broker's counts are up to date, and opens
it again if there are any. --force removes the set's own objects and the landing queues
all the same, and only those.

Uninstall a set before you delete its vhost: docs/compatibility.md says why.")]
pub(super) struct Args {
    /// Remove the queues even if messages wait in them, which are lost
    #[arg(long)]
    force: bool,
    /// Only show what would be done
    #[arg(long)]
    dry_run: bool,
}

pub(super) fn run(args: &Args, settings: &Settings, output: &mut Output) -> Result<Code, Failure> {
    let topology = Topology::new(settings.topology.clone());
    let outcome = output.spinning("removing", || match args.dry_run {
        true => admin::plan_uninstall(settings, &topology, args.force),
        false => admin::uninstall(settings, &topology, args.force),
    });
    let report = match outcome? {
        Ok(report) => report,
        Err(refusal) => {
            let advice = [
                (
                    !refusal.foreign.is_empty(),
                    "Give the settings the set was installed with (--queue-type, --replicas).",
                ),
                (
                    !refusal.landing.is_empty(),
                    "Remove these applications with `delayline app remove`, or use --force.",
                ),
                (
                    !refusal.unchecked.is_empty(),
                    "Give the URL of the management API (--management-url), or use --force if you know that \
                     there are none.",
                ),
                (
                    !refusal.waiting.is_empty(),
                    "Wait until the messages are delivered, or use --force to lose them.",
                ),
            ];
            let advice: Vec<_> =
                advice.into_iter().filter_map(|(of_use, line)| of_use.then_some(line)).collect();
            return change::refused(&refusal, &advice, output);
        }
    };
    let code = if report.foreign.is_empty() { Code::Done } else { Code::Problem };
    if output.json {
        output.json(&report)?;
        return Ok(code);
    }
    findings::unchecked(&report.unchecked, output)?;
    change::lost(report.dry_run, &report.discarded, output)?;
    for binding in &report.unbound {
        let removed = if report.dry_run { "would be removed" } else { "removed" };
        output.line(format!("{removed} with the dispatch exchange: {binding}"))?;
    }
    for conflict in &report.foreign {
        output.line(format!("left alone, because it is not part of this set: {conflict}"))?;
    }
    let removed = report.removed.len() as u64;
    output.line(match removed {
        0 => format!(
            "{} set `{}` is not installed here; nothing to remove",
            unchanged(),
            settings.topology.set
        ),
        _ if report.dry_run => format!("{} would remove {}", dry_run(), counted(removed, "object")),
        _ => format!("removed {}", counted(removed, "object")),
    })?;
    Ok(code)
}
