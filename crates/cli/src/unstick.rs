//! `delayline unstick`

use std::time::Duration;

use owo_colors::OwoColorize;
use regex::Regex;

use delayline_admin::{self as admin, Unstick, UnstickOptions, UnstickReport};
use delayline_core::{codec::Level, topology::Topology};
use delayline_settings::Settings;

use crate::{
    Code, Failure, Output, args,
    output::{counted, grouped, unchanged},
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
use it after a node came back or an application was bound. What a full queue refused is the
exception: it is offered again only three minutes after the refusal, whatever is done. It
sets a policy that has no effect on these queues and deletes it a moment later, which
makes their dead-letter workers look again. No message is changed, and no other policy: a
queue that has a policy gets an operator policy, which merges with it, and a queue that
has both is left alone. The command needs the management API and a user with the tag
`policymaker`; for a queue that has a policy, `administrator`.

Exits with 0 if nothing is stuck any more, and with 1 if something still is, or was left
alone. With --dry-run, 1 means that something is stuck.")]
pub(super) struct Args {
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
    /// How many seconds to wait to see whether it helped
    #[arg(long, value_name = "SECONDS", default_value_t = 15, value_parser = args::whole::<u64>(0..=3_600))]
    wait: u64,
}

/// Reads the number of a level.
fn level(text: &str) -> Result<Level, String> {
    let number = text.parse::<u8>().map_err(|_| "use 0 to 27".to_owned())?;
    Level::try_from(number).map_err(|error| error.to_string())
}

pub(super) fn run(args: &Args, settings: &Settings, output: &mut Output) -> Result<Code, Failure> {
    let topology = Topology::new(settings.topology.clone());
    let which = match (&args.queues, args.level.as_slice()) {
        (Some(pattern), _) => Unstick::Matching(pattern.clone()),
        (None, []) => Unstick::Set,
        (None, levels) => Unstick::Levels(levels.to_vec()),
    };
    let options = UnstickOptions {
        all: args.all || !args.level.is_empty(),
        dry_run: args.dry_run,
        wait: Duration::from_secs(args.wait),
        which,
    };
    let report = output.spinning("looking", || admin::unstick(settings, &topology, &options))?;
    output.report(&report, show)?;
    Ok(code(&report))
}

/// Whether something is still stuck.
fn code(report: &UnstickReport) -> Code {
    let stuck = |queue: &admin::TouchedQueue| match report.dry_run {
        true => queue.dead_letters > 0,
        false => queue.left.is_some_and(|left| left > 0),
    };
    match report.touched.iter().any(stuck) || !report.occupied.is_empty() {
        true => Code::Problem,
        false => Code::Done,
    }
}

fn show(report: &UnstickReport, output: &mut Output) -> Result<(), Failure> {
    for kind in &report.left_behind {
        output.line(match report.dry_run {
            true => format!("would delete the {kind} that an earlier run left behind"),
            false => format!("deleted the {kind} that an earlier run left behind"),
        })?;
    }
    for queue in &report.touched {
        let before = counted(queue.dead_letters, "dead letter");
        let line = match (report.dry_run, queue.left) {
            (true, _) => format!("would make it try again, with a {}: {before}", queue.by),
            (false, None) => format!("made to try again: {before} before"),
            (false, Some(0)) => format!("{}: {before} before, none now", "flowing".green()),
            (false, Some(left)) => {
                format!("{}: {before} before, {} still there", "still stuck".red(), grouped(left))
            }
        };
        output.line(format!("{}  {line}", queue.queue.escape_debug()))?;
    }
    for occupied in &report.occupied {
        output.line(format!(
            "{}  {}: the policy `{}` and the operator policy `{}` both apply to it and are left alone. \
             Changing either of them, for example its priority, has the same effect",
            occupied.queue.escape_debug(),
            "not touched".yellow(),
            occupied.policy.escape_debug(),
            occupied.operator_policy.escape_debug(),
        ))?;
    }
    if report.touched.is_empty() && report.occupied.is_empty() {
        output.line(format!("{} nothing is stuck, according to the broker's counts", unchanged()))?;
    } else if !report.dry_run && code(report) == Code::Problem {
        output.line(
            "Messages that are still stuck are not accepted by anybody now, or were refused less than three \
             minutes ago (also by a queue that was not up yet), or were being handed to a queue that was \
             deleted; `delayline doctor` says who refuses them, and docs/doctor.md what makes them go",
        )?;
    }
    Ok(())
}
