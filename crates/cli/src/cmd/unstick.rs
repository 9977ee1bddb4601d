//! `delayline unstick`

use std::time::Duration;

use owo_colors::OwoColorize;
use regex::Regex;

use delayline_admin::{self as admin, Unstick, UnstickOptions, UnstickReport};
use delayline_broker::NO_STATISTICS;
use delayline_core::{
    codec::{Delay, Level},
    topology::Topology,
};
use delayline_settings::Settings;

use crate::values;
use delayline_term::{
    Code, Failure, Output, output::counted, output::counted_if_known, output::grouped, output::unchanged,
    text::readable,
};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  delayline unstick --dry-run
  delayline unstick
  delayline unstick --level 3
  delayline unstick --queues '^delay\\.landing\\.billing$'
  delayline unstick --queues '^nsb\\.v2\\.delay-level-'      NServiceBus' levels
  delayline unstick --queues '^celery_delayed_'            Celery's

A queue whose dead letters were not accepted offers them again only every three minutes
(dead_letter_worker_publisher_confirm_timeout). This command makes it try again at once:
use it after a node came back or an application was bound. Exception: messages that a full
queue refused are always offered again three minutes after the refusal. The command sets a
policy that has no effect on these queues, and deletes it a moment later: that makes their
dead-letter workers try again. No message and no other policy is changed. A queue with a
policy gets an operator policy, which merges with it; a queue with both is left alone. The
command needs the management API and a user with the tag `policymaker`; for a queue with a
policy, `administrator`.

Exits with 0 if no message is stuck afterwards. Exits with 1 if any is, or if a queue was
left alone, or if the broker does not count the dead letters of a queue. With --dry-run, 1 means that messages are stuck.")]
pub(crate) struct Args {
    /// Only the queue of this level, 0 to 27, even if no message in it counts as stuck; can
    /// be given several times
    #[arg(long, value_name = "N", value_parser = level)]
    level: Vec<Level>,
    /// Instead of the set: the queues of this vhost whose names match; those without
    /// at-least-once dead-lettering are left out
    #[arg(long, value_name = "REGEX", conflicts_with = "level")]
    queues: Option<Regex>,
    /// Also the queues in which no message counts as stuck; brokers count every five seconds
    #[arg(long)]
    all: bool,
    /// Only show what would be done
    #[arg(long)]
    dry_run: bool,
    /// How long to wait for the stuck messages to move
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = values::wait)]
    wait: Delay,
}

/// Reads the number of a level.
fn level(text: &str) -> Result<Level, String> {
    let number = text.parse::<u8>().map_err(|_| "use 0 to 27".to_owned())?;
    Level::try_from(number).map_err(|error| error.to_string())
}

pub(crate) fn run(args: &Args, settings: &Settings, output: &mut Output) -> Result<Code, Failure> {
    let topology = Topology::new(settings.topology.clone());
    let which = match (&args.queues, args.level.as_slice()) {
        (Some(pattern), _) => Unstick::Matching(pattern.as_str().into()),
        (None, []) => Unstick::Set,
        (None, levels) => Unstick::Levels(levels.to_vec()),
    };
    let options = UnstickOptions {
        all: args.all || !args.level.is_empty(),
        dry_run: args.dry_run,
        wait: Duration::from_secs(args.wait.seconds().into()),
        which,
    };
    let report = output.spinning("looking", || admin::unstick(settings, &topology, &options))?;
    output.report(&report, |report, output| show(settings, report, output))?;
    Ok(code(&report))
}

/// Whether something is still stuck.
fn code(report: &UnstickReport) -> Code {
    let stuck = |queue: &admin::TouchedQueue| match report.dry_run {
        true => queue.dead_letters > Some(0),
        false => queue.left.is_some_and(|left| left > 0),
    };
    match report.touched.iter().any(stuck) || !report.occupied.is_empty() || !report.uncounted.is_empty() {
        true => Code::Problem,
        false => Code::Done,
    }
}

fn show(settings: &Settings, report: &UnstickReport, output: &mut Output) -> Result<(), Failure> {
    for kind in &report.left_behind {
        output.line(match report.dry_run {
            true => format!("would delete the {kind} that an earlier run left behind"),
            false => format!("deleted the {kind} that an earlier run left behind"),
        })?;
    }
    for queue in &report.touched {
        let before = counted_if_known(queue.dead_letters, "dead letter");
        let line = match (report.dry_run, queue.left) {
            (true, _) => format!("would make it try again, with a {}: {before}", queue.by),
            (false, None) => format!("made to try again: {before} before"),
            (false, Some(0)) => format!("{}: {before} before, none now", "flowing".green()),
            (false, Some(left)) => {
                format!("{}: {before} before, {} still stuck", "still stuck".red(), grouped(left))
            }
        };
        output.line(format!("{}  {line}", readable(&queue.queue)))?;
    }
    for occupied in &report.occupied {
        output.line(format!(
            "{}  {}: the policy `{}` and the operator policy `{}` both apply to it and are left alone. \
             Changing either of them, for example its priority, has the same effect",
            readable(&occupied.queue),
            "not touched".yellow(),
            readable(&occupied.policy),
            readable(&occupied.operator_policy),
        ))?;
    }
    if let Some(first) = report.uncounted.first() {
        output.line(format!(
            "{} whether messages are stuck in {}, such as `{}`: {NO_STATISTICS}. `{}` makes all queues try again",
            "not known".yellow(),
            counted(report.uncounted.len() as u64, "queue"),
            readable(first),
            settings.command(&["unstick", "--all"])
        ))?;
        return Ok(());
    }
    if report.touched.is_empty() && report.occupied.is_empty() {
        output.line(format!("{} no message is stuck, according to the broker's counts", unchanged()))?;
    } else if !report.dry_run && code(report) == Code::Problem {
        output.line(format!(
            "No queue accepts the messages that are still stuck, or a queue refused them less than three \
             minutes ago, or was deleted while it got them. `{}` shows the cause, and docs/runbook/stuck.md \
             the remedy.",
            settings.command(&["doctor"])
        ))?;
    }
    Ok(())
}
