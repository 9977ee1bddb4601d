//! What commands print that make or remove things.

use std::fmt;

use delayline_admin::{AddedStep, Applied, Waiting};
use owo_colors::OwoColorize;
use serde::Serialize;

use crate::{
    code::Code, ending, failure::Failure, output::Output, output::aside, output::counted_if_known,
    output::dry_run, output::unchanged, text::readable,
};

/// Prints that an application or a gateway is `done`, and each step; or the conflicts. Returns whether
/// there are none.
pub fn made(
    what: &str,
    done: &str,
    (outcome, steps, conflicts): (Applied, &[AddedStep], &[String]),
    output: &mut Output,
) -> Result<bool, Failure> {
    if outcome == Applied::Conflict {
        output.line(format!(
            "{} {what}: nothing was changed, because other objects conflict",
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

/// Why nothing was removed.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub struct Refused<'a, T> {
    /// The reasons.
    refused: &'a T,
}

/// Prints why a command ended before it was done, and how to continue. Returns whether it did end early.
pub fn ended_early(failure: Option<&str>, interrupted: bool, output: &mut Output) -> Result<bool, Failure> {
    match failure {
        Some(failure) => {
            aside(format!("{} {}; run it again to continue", "ended early:".red().bold(), readable(failure)))
        }
        None if interrupted => output.line("interrupted; run it again to continue")?,
        None => return Ok(false),
    }
    Ok(true)
}

/// Prints why nothing was removed, and what to do.
pub fn refused(
    refusal: &(impl Serialize + fmt::Display),
    interrupted: bool,
    advice: &[&str],
    output: &mut Output,
) -> Result<Code, Failure> {
    if output.json {
        output.json(&Refused { refused: refusal })?;
    } else {
        output.line(format!("nothing was removed: {refusal}"))?;
        for line in advice {
            output.line(line)?;
        }
        ended_early(None, interrupted, output)?;
    }
    Ok(if ending::happened() { Code::Interrupted } else { Code::Problem })
}

/// Prints the removed objects, the lost messages, and the objects that were left alone.
pub fn removed(
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

/// Prints how many messages were lost with queues.
pub fn lost(is_dry_run: bool, discarded: &[Waiting], output: &mut Output) -> Result<(), Failure> {
    let verb = if is_dry_run { "would be lost" } else { "lost" };
    for waiting in discarded {
        output.line(format!(
            "{verb} with `{}`: {}",
            waiting.queue,
            counted_if_known(waiting.messages, "message")
        ))?;
    }
    Ok(())
}
