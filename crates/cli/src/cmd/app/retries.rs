//! When the failed messages of an application are tried again.

use std::path::Path;

use serde::Serialize;

use delayline_core::{
    codec::{AppKey, Delay},
    retry::{Policies, Step},
};
use delayline_settings::Settings;

use delayline_term::{
    Failure, Output, output::counted, output::grouped, table::table, text::readable, text::span,
};

/// How many attempts of a long schedule are listed.
const SHOWN: usize = 30;

#[derive(Serialize, schemars::JsonSchema)]
pub(crate) struct Retries<'a> {
    reason: &'a str,
    /// Whether the application has a policy of its own.
    own_policy: bool,
    attempts: Vec<Row>,
    /// From the first failure to the last retry, at the latest.
    worst_case_seconds: u64,
    /// The most queues that a message passes through in all.
    worst_case_hops: u32,
    max_age_seconds: Option<u32>,
    /// Attempts that would come after the maximum age.
    left_out: u64,
    /// Reasons with a policy of their own.
    other_reasons: Vec<&'a str>,
}

#[derive(Serialize, schemars::JsonSchema)]
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

impl<'a> Retries<'a> {
    pub(crate) fn new(policies: &'a Policies, app: &AppKey, reason: &'a str) -> Self {
        let policy = policies.get(app, reason);
        let attempts: Vec<_> = policy.schedule().map(Row::from).collect();
        let latest = attempts.last().map_or(0, |row| row.latest_after_seconds);
        Self {
            reason,
            own_policy: policies.names(app),
            worst_case_seconds: policy.max_age.map_or(latest, |age| latest.min(age.seconds().into())),
            worst_case_hops: attempts.iter().map(|row| row.hops).sum(),
            left_out: (policy.attempts as usize).saturating_sub(attempts.len()) as u64,
            attempts,
            max_age_seconds: policy.max_age.map(Delay::seconds),
            other_reasons: policies
                .reasons(app)
                .map(|(name, _)| name)
                .filter(|name| *name != reason)
                .collect(),
        }
    }

    /// Those of an application whose queue parks rejected messages itself.
    pub(crate) fn none(reason: &'a str) -> Self {
        Self {
            reason,
            own_policy: true,
            attempts: Vec::new(),
            worst_case_seconds: 0,
            worst_case_hops: 0,
            max_age_seconds: None,
            left_out: 0,
            other_reasons: Vec::new(),
        }
    }
}

/// Prints them in a line, and with `--details` each. `file` is where the policies are from.
pub(crate) fn show(
    retries: &Retries<'_>,
    file: Option<&Path>,
    settings: &Settings,
    output: &mut Output,
) -> Result<(), Failure> {
    let policy = if retries.own_policy { "its own policy" } else { "the default policy" };
    let whose = match file {
        Some(file) => format!("{policy} in {}", readable(&file.to_string_lossy())),
        None => "the built-in policy, since no policies file is named with --policies".into(),
    };
    let reason = readable(retries.reason);
    let what = match retries.attempts.len() as u64 {
        0 => "none: parked at once".to_owned(),
        count => format!(
            "{} within {}, {} at most, then parked",
            grouped(count),
            seconds(retries.worst_case_seconds),
            counted(retries.worst_case_hops.into(), "hop")
        ),
    };
    output.line(format!("  retries      {what} (`{reason}`: {whose})"))?;
    if retries.left_out > 0 {
        let age = retries.max_age_seconds.map_or_else(String::new, |age| seconds(age.into()));
        output.line(format!(
            "               {} would come after the maximum age of {age} and never happen",
            counted(retries.left_out, "more attempt")
        ))?;
    }
    if !retries.other_reasons.is_empty() {
        let others = retries.other_reasons.iter().map(|it| readable(it)).collect::<Vec<_>>().join(", ");
        output.line(format!("               other policies for: {others} (--reason)"))?;
    }
    let unit = settings.topology.unit.millis();
    if unit != 1_000 {
        output.line(format!("               a second of this set lasts {unit} ms"))?;
    }
    if !output.details || retries.attempts.is_empty() {
        return Ok(());
    }
    let rows = retries.attempts.iter().take(SHOWN).map(|row| {
        vec![
            grouped(row.attempt.into()),
            range(row.shortest_seconds.into(), row.longest_seconds.into()),
            range(row.earliest_after_seconds, row.latest_after_seconds),
            grouped(row.hops.into()),
        ]
    });
    output.line(table(&[">attempt", ">delay", ">after the first failure", ">hops at most"], rows))?;
    if let Some(more) = retries.attempts.len().checked_sub(SHOWN).filter(|more| *more > 0) {
        output.line(format!("… and {} more", grouped(more as u64)))?;
    }
    Ok(())
}

fn range(from: u64, to: u64) -> String {
    if from == to { seconds(from) } else { format!("{} to {}", seconds(from), seconds(to)) }
}

/// As delays are written; sums of many attempts go beyond a single delay.
fn seconds(seconds: u64) -> String {
    Delay::from_seconds(seconds).map_or_else(|_| span(seconds * 1_000), |delay| delay.to_string())
}
