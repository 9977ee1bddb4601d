//! `delayline retry`

use serde::Serialize;

use delayline_core::{
    codec::{AppKey, Delay},
    retry::{Policies, Policy, Step},
};
use delayline_settings::Settings;

use crate::{
    Code, Failure, Output, args,
    output::{counted, grouped},
    policies,
    table::table,
};

/// How many attempts of a long schedule are listed.
const SHOWN: usize = 30;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  delayline retry show billing
  delayline retry show billing --reason expired --policies policies.toml")]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Show when an application's failed messages are tried again
    #[command(after_help = "\
Examples:
  delayline retry show billing
  delayline retry show billing --reason expired
  delayline retry show billing --policies policies.toml --json | jq .worst_case_seconds

No broker is needed. The times assume that every attempt fails at once; the application's
processing time is added to each.")]
    Show {
        /// The application
        #[arg(value_name = "APP", value_parser = args::app)]
        app: AppKey,
        /// The reason of the failure
        #[arg(long, default_value = "rejected")]
        reason: String,
        #[command(flatten)]
        policies: policies::Source,
    },
}

#[derive(Serialize)]
struct Report<'a> {
    app: &'a str,
    reason: &'a str,
    /// Whether the application has a policy of its own.
    own_policy: bool,
    attempts: Vec<Row>,
    /// From the first failure to the last retry, at the latest.
    worst_case_seconds: u64,
    /// The most queues that a message passes through in all.
    worst_case_hops: u32,
    max_age_seconds: Option<u32>,
    /// Reasons with a policy of their own.
    other_reasons: Vec<&'a str>,
}

#[derive(Serialize)]
struct Row {
    attempt: u32,
    shortest_seconds: u32,
    longest_seconds: u32,
    earliest_after_seconds: u64,
    latest_after_seconds: u64,
    hops: u32,
}

impl From<Step> for Row {
    fn from(step: Step) -> Self {
        Self {
            attempt: step.attempt,
            shortest_seconds: step.shortest.seconds(),
            longest_seconds: step.longest.seconds(),
            earliest_after_seconds: step.after.0,
            latest_after_seconds: step.after.1,
            hops: step.hops(),
        }
    }
}

pub(super) fn run(args: &Args, settings: &Settings, output: &mut Output) -> Result<Code, Failure> {
    let Command::Show { app, reason, policies } = &args.command;
    let policies = policies.load()?;
    let policy = policies.get(app, reason);
    let report = Report::new(&policies, policy, app, reason);
    output.report(&report, |report, output| show(report, policy, settings, output))?;
    Ok(Code::Done)
}

impl<'a> Report<'a> {
    fn new(policies: &'a Policies, policy: &Policy, app: &'a AppKey, reason: &'a str) -> Self {
        let attempts: Vec<_> = policy.schedule().map(Row::from).collect();
        let latest = attempts.last().map_or(0, |row| row.latest_after_seconds);
        Self {
            app: app.as_str(),
            reason,
            own_policy: policies.names(app),
            worst_case_seconds: policy.max_age.map_or(latest, |age| latest.min(age.seconds().into())),
            worst_case_hops: attempts.iter().map(|row| row.hops).sum(),
            attempts,
            max_age_seconds: policy.max_age.map(Delay::seconds),
            other_reasons: policies
                .reasons(app)
                .map(|(name, _)| name)
                .filter(|name| *name != reason)
                .collect(),
        }
    }
}

fn show(
    report: &Report<'_>,
    policy: &Policy,
    settings: &Settings,
    output: &mut Output,
) -> Result<(), Failure> {
    let whose = if report.own_policy { "its own policy" } else { "the default policy" };
    output.line(format!("`{}`, messages that failed because of `{}`: {whose}", report.app, report.reason))?;
    if report.attempts.is_empty() {
        output.line("no retries; parked at once")?;
    } else {
        let rows = report.attempts.iter().take(SHOWN).map(|row| {
            vec![
                grouped(row.attempt.into()),
                range(row.shortest_seconds.into(), row.longest_seconds.into()),
                range(row.earliest_after_seconds, row.latest_after_seconds),
                grouped(row.hops.into()),
            ]
        });
        output.line(table(&[">attempt", ">delay", ">after the first failure", ">hops at most"], rows))?;
        if let Some(more) = report.attempts.len().checked_sub(SHOWN).filter(|more| *more > 0) {
            output.line(format!("… and {} more", grouped(more as u64)))?;
        }
        output.line(format!(
            "worst case  {} ({} s), {}, then parked",
            text(report.worst_case_seconds),
            grouped(report.worst_case_seconds),
            counted(report.worst_case_hops.into(), "hop")
        ))?;
        let left_out = policy.attempts as usize - report.attempts.len();
        if left_out > 0 {
            output.line(format!(
                "{} would come after the maximum age of {} and never {}",
                counted(left_out as u64, "attempt"),
                policy.max_age.unwrap_or_default(),
                if left_out == 1 { "happens" } else { "happen" }
            ))?;
        }
    }
    if !report.other_reasons.is_empty() {
        output.line(format!("other policies for: {} (--reason)", report.other_reasons.join(", ")))?;
    }
    let unit = settings.topology.unit.millis();
    if unit != 1_000 {
        output.line(format!("a second of this set lasts {unit} ms"))?;
    }
    Ok(())
}

fn range(from: u64, to: u64) -> String {
    if from == to { text(from) } else { format!("{} to {}", text(from), text(to)) }
}

fn text(seconds: u64) -> String {
    // Sums of many attempts go beyond a single delay.
    Delay::from_seconds(seconds)
        .map_or_else(|_| format!("{:.1} y", years(seconds)), |delay| delay.to_string())
}

#[expect(clippy::cast_precision_loss, reason = "a number to look at")]
fn years(seconds: u64) -> f64 {
    seconds as f64 / 31_557_600.0
}
