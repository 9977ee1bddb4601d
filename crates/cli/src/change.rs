//! What commands print that make or remove things.

use std::fmt;

use delayline_admin::{AddedStep, Applied, Waiting};
use owo_colors::OwoColorize;
use serde::Serialize;

use crate::{
    Code, Failure, Output,
    output::{counted, dry_run, unchanged},
};

/// Says of an application or a gateway that it is `done`, and what each step was; or what is in
/// the way. Returns whether nothing is.
pub(super) fn made(
    what: &str,
    done: &str,
    (outcome, steps, conflicts): (Applied, &[AddedStep], &[String]),
    output: &mut Output,
) -> Result<bool, Failure> {
    if outcome == Applied::Conflict {
        output.line(format!(
            "{} {what}: nothing was changed, because something else is in the way",
            "conflict".red().bold()
        ))?;
        for conflict in conflicts {
            output.line(format!("  {conflict}"))?;
        }
        return Ok(false);
    }
    let (head, verb) = match outcome {
        Applied::DryRun => (dry_run(), "would make"),
        Applied::Unchanged => (unchanged(), "made"),
        _ => (done.green().bold().to_string(), "made"),
    };
    output.line(format!("{head} {what}"))?;
    for step in steps {
        let verb = if step.stood { "already there:" } else { verb };
        output.line(format!("  {verb} {}", step.what))?;
    }
    Ok(true)
}

/// Says why nothing was removed, and what to do.
pub(super) fn refused(
    refusal: &(impl Serialize + fmt::Display),
    advice: &[&str],
    output: &mut Output,
) -> Result<Code, Failure> {
    if output.json {
        output.json(&serde_json::json!({ "refused": refusal }))?;
    } else {
        output.line(format!("nothing was removed: {refusal}"))?;
        for line in advice {
            output.line(line)?;
        }
    }
    Ok(Code::Problem)
}

/// Says what was removed, what was lost with it, and what was left alone.
pub(super) fn removed(
    is_dry_run: bool,
    (removed, discarded, left): (&[String], &[Waiting], &[String]),
    output: &mut Output,
) -> Result<(), Failure> {
    let verb = if is_dry_run { "would remove" } else { "removed" };
    for what in removed {
        output.line(format!("{verb} {what}"))?;
    }
    lost(is_dry_run, discarded, output)?;
    for what in left {
        output.line(format!("left alone: {what}"))?;
    }
    Ok(())
}

/// Says what was lost with queues.
pub(super) fn lost(is_dry_run: bool, discarded: &[Waiting], output: &mut Output) -> Result<(), Failure> {
    let verb = if is_dry_run { "would be lost" } else { "lost" };
    for waiting in discarded {
        output.line(format!("{verb} with `{}`: {}", waiting.queue, counted(waiting.messages, "message")))?;
    }
    Ok(())
}
