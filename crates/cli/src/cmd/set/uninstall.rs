//! `delayline uninstall`

use delayline_admin::{self as admin, Refusal, UninstallReport};
use delayline_core::topology::Topology;
use delayline_settings::Settings;

use delayline_term::{
    Code, Failure, Output, change, consent::Consent, ending, findings, output::counted, output::dry_run,
    output::unchanged, text::readable,
};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  delayline uninstall --dry-run
  delayline uninstall --set reminders
  delayline uninstall --yes                     without a question, for scripts

Refuses, with exit code 1, while messages wait, while landing queues or gateways exist, or if the arguments of an object differ from the settings: pass the settings of the
installation (--queue-type, --replicas). It closes the entry, and counts the messages again
12 seconds later, when the broker's counts are up to date. If there are any, it opens the
entry again. With --force, it always removes the set's own objects, landing queues and
gateways. Queues and users of applications stay; the command lists them. Ctrl-C and SIGTERM take effect after the removal is complete.

Uninstall a set before you delete its vhost: docs/reference/versions.md has the reason.")]
pub(crate) struct Args {
    /// Remove the queues even if messages wait in them; the messages are lost
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    consent: Consent,
}

pub(crate) fn run(args: &Args, settings: &Settings, output: &mut Output) -> Result<Code, Failure> {
    let topology = Topology::new(settings.topology.clone());
    let plan =
        |output: &mut Output| show(admin::plan_uninstall(settings, &topology, args.force)?, settings, output);
    if let Some(code) = args.consent.ask(output, plan)? {
        return Ok(code);
    }
    let stop = ending::on_signal()?;
    let removal = || admin::uninstall(settings, &topology, args.force, &stop);
    let outcome = output.spinning("removing", removal)?;
    show(outcome, settings, output)
}

fn show(
    outcome: Result<UninstallReport, Refusal>,
    settings: &Settings,
    output: &mut Output,
) -> Result<Code, Failure> {
    let report = match outcome {
        Ok(report) => report,
        Err(refusal) => {
            let advice = [
                (
                    !refusal.foreign.is_empty(),
                    "Give the settings the set was installed with (--queue-type, --replicas).",
                ),
                (
                    !refusal.landing.is_empty(),
                    &format!(
                        "Remove these applications with `{}`, or use --force.",
                        settings.command(&["app", "remove", "APP"])
                    ),
                ),
                (
                    !refusal.gateways.is_empty(),
                    &format!(
                        "Remove these gateways with `{}`, or use --force.",
                        settings.command(&["gateway", "remove", "NAME"])
                    ),
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
            return change::refused(&refusal, refusal.interrupted, &advice, output);
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
    for left in &report.left {
        output.line(format!("left alone: {}", readable(left)))?;
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
