//! `delayline unstick`

use std::time::Duration;

use owo_colors::OwoColorize;
use regex::Regex;

use delayline::{Settings, codec::LEVELS, topology::Topology};
use delayline_admin::{self as admin, Unstick, UnstickOptions, UnstickReport};

use crate::{Code, Failure, Output, output::counted};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  delayline unstick --dry-run
  delayline unstick
  delayline unstick --level 3
  delayline unstick --queues '^delay\\.landing\\.billing$'
  delayline unstick --queues '^nsb\\.v2\\.delay-level-'      NServiceBus' levels
  delayline unstick --queues '^celery_delayed_'            Celery's

A queue whose dead letters found nobody to take them offers them again only every three
minutes (dead_letter_worker_publisher_confirm_timeout). This has it done at once: once a node
is back, an application is bound, a queue is consumed. A policy that means nothing to these
queues is set for a moment and deleted again, which makes their dead-letter workers look
again. No message is changed, and no policy of anybody: a queue that has a policy gets an
operator policy, which merges with it, and one that has both is left alone. It needs the
management API, and a user with the tag `policymaker`; for a queue that has a policy,
`administrator`. What a full queue has refused is offered to it again only once the three
minutes since then are over.

Exits with 0 if nothing is stuck any more, and with 1 if something still is, or was left alone.
With --dry-run, 1 says that something is stuck.")]
pub(super) struct Args {
    /// Only the queue of this level, 0 to 27, also if nothing is counted as stuck in it; can
    /// be given several times
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(..i64::from(LEVELS)))]
    level: Vec<u8>,
    /// Instead of the set's: the queues of this vhost whose names match; those that do not
    /// dead-letter at least once are left out
    #[arg(long, value_name = "REGEX", conflicts_with = "level")]
    queues: Option<Regex>,
    /// Also the queues in which nothing is counted as stuck; brokers count every five seconds
    #[arg(long)]
    all: bool,
    /// Say what would be done, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// How many seconds to look whether it helped
    #[arg(long, value_name = "SECONDS", default_value_t = 15)]
    wait: u64,
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
    let bar = output.spinner("looking");
    let report = admin::unstick(settings, &topology, &options);
    bar.finish_and_clear();
    let report = report?;
    if output.json {
        output.json(&report)?;
    } else {
        show(&report, output)?;
    }
    Ok(code(&report))
}

/// Whether something is stuck that was not helped.
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
            true => format!("would delete the {kind} that a run before this one left behind"),
            false => format!("deleted the {kind} that a run before this one left behind"),
        })?;
    }
    for queue in &report.touched {
        let before = counted(queue.dead_letters, "dead letter");
        let line = match (report.dry_run, queue.left) {
            (true, _) => format!("would make it try again, by a {}: {before}", queue.by),
            (false, None) => format!("made to try again: {before} before"),
            (false, Some(0)) => format!("{}: {before} before, none now", "hands on".green()),
            (false, Some(left)) => {
                format!("{}: {before} before, {left} still there", "still stuck".red())
            }
        };
        output.line(format!("{}  {line}", queue.queue.escape_debug()))?;
    }
    for occupied in &report.occupied {
        output.line(format!(
            "{}  {}: both the policy `{}` and the operator policy `{}` apply to it, and are left alone. Any change \
             of one of them, such as of its priority, has the same effect",
            occupied.queue.escape_debug(),
            "not touched".yellow(),
            occupied.policy.escape_debug(),
            occupied.operator_policy.escape_debug(),
        ))?;
    }
    if report.touched.is_empty() && report.occupied.is_empty() {
        output.line("nothing is stuck, as far as the broker has counted")?;
    } else if !report.dry_run && code(report) == Code::Problem {
        output.line(
            "What is still stuck has nobody who takes it now, or was refused less than three minutes ago; \
             delayline doctor says who refuses",
        )?;
    }
    Ok(())
}
