//! `delayline uninstall`

use delayline::{Settings, topology::Topology};
use delayline_admin as admin;

use crate::{Code, Failure, Output, output::counted};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  delayline uninstall
  delayline uninstall --set reminders --force

Refuses, with exit code 1, while messages wait, while landing queues of applications
stand, or if an object of the set stands with other arguments than it declares: give the
settings it was installed with (--queue-type, --replicas). It closes the entry, counts
again six seconds later, when the broker's counts are up to date, and opens it again if
there is anything. Uninstall a set before its vhost is deleted: docs/compatibility.md. --force removes the set's own
objects and the landing queues all the same, and only those.")]
pub(super) struct Args {
    /// Remove the queues although messages wait in them, which are lost
    #[arg(long)]
    force: bool,
}

pub(super) fn run(args: &Args, settings: &Settings, output: &mut Output) -> Result<Code, Failure> {
    let topology = Topology::new(settings.topology.clone());
    let bar = output.spinner("removing");
    let outcome = admin::uninstall(settings, &topology, args.force);
    bar.finish_and_clear();
    let report = match outcome? {
        Ok(report) => report,
        Err(refusal) => {
            if output.json {
                output.json(&serde_json::json!({ "refused": refusal }))?;
            } else {
                output.line(format!("nothing was removed: {refusal}"))?;
                if !refusal.foreign.is_empty() {
                    output
                        .line("Give the settings the set was installed with (--queue-type, --replicas).")?;
                }
                if !refusal.landing.is_empty() {
                    output
                        .line("Take these applications out with `delayline app remove`, or use --force.")?;
                }
                if !refusal.unseen.is_empty() {
                    output.line(
                        "Name the management API (--management-url), or use --force if there are none.",
                    )?;
                }
                if !refusal.waiting.is_empty() {
                    output.line("Wait until the messages are delivered, or use --force to lose them.")?;
                }
            }
            return Ok(Code::Problem);
        }
    };
    let code = if report.foreign.is_empty() { Code::Done } else { Code::Problem };
    if output.json {
        output.json(&report)?;
        return Ok(code);
    }
    for unseen in &report.unseen {
        output.line(format!("not seen: {unseen}"))?;
    }
    for waiting in &report.discarded {
        output.line(format!("lost with `{}`: {}", waiting.queue, counted(waiting.messages, "message")))?;
    }
    for binding in &report.unbound {
        output.line(format!("went with the dispatch exchange: {binding}"))?;
    }
    for conflict in &report.foreign {
        output.line(format!("left alone, as it is not this set's: {conflict}"))?;
    }
    let removed = report.removed.len() as u64;
    output.line(match removed {
        0 => format!("set `{}` is not installed here; nothing to remove", settings.topology.set),
        _ => format!("removed {}", counted(removed, "object")),
    })?;
    Ok(code)
}
