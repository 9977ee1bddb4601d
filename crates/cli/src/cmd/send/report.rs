//! The results of sending, and printing them.

use std::time::Duration;

use indicatif::ProgressBar;
use jiff::Timestamp;
use serde::Serialize;

use delayline_client::router::{Cause, Outcome, Receipt};
use delayline_settings::Settings;

use crate::cmd::scheduled::replace::Left;
use delayline_term::{Failure, Output, output::aside, output::counted, output::grouped, text, time};

use super::{instead::NOTHING, problem::Problems};

#[derive(Debug, Default, Serialize, schemars::JsonSchema)]
pub(crate) struct Report {
    pub(crate) confirmed: u64,
    /// How many of the failed messages were unsendable: the broker is not at fault.
    pub(crate) unsendable: u64,
    pub(crate) seconds: f64,
    pub(crate) per_second: f64,
    /// How many lines were not sent, and the first of them.
    #[serde(flatten)]
    pub(crate) problems: Problems,
    /// The receipt of a single message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) message: Option<Sent>,
    /// The result of recalling the messages that it replaces.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["recalled", "too-late", "uncertain", "nothing"]))]
    pub(crate) replaced: Option<&'static str>,
    /// The old messages that may still be delivered.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) left: Vec<Left>,
    #[serde(skip)]
    pub(crate) interrupted: bool,
    /// The bytes of the bodies that are not confirmed yet.
    #[serde(skip)]
    pub(crate) unsettled: usize,
}

/// With `--handles`, a line for each message.
#[derive(Serialize, schemars::JsonSchema)]
pub(crate) struct Recallable {
    /// The handle, which `delayline scheduled recall` takes.
    pub(crate) handle: String,
}

#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct Sent {
    pub(crate) due: Timestamp,
    pub(crate) seconds: u32,
    pub(crate) hops: u32,
    /// The handle, with which it can be recalled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) handle: Option<String>,
    /// The delay in real time, whatever the length of a unit in this set.
    #[serde(skip)]
    pub(crate) wait: Duration,
}

impl Report {
    /// Reports bad lines of an input that may never end as soon as they are known.
    pub(crate) fn say_problems(&mut self, at_once: bool, bar: &ProgressBar) {
        if at_once {
            bar.suspend(|| self.problems.say_new());
        }
    }

    pub(crate) fn extend(
        &mut self,
        outcomes: impl IntoIterator<Item = Outcome<(u64, usize)>>,
        mut settled: impl FnMut(Option<&Receipt>),
    ) {
        for outcome in outcomes {
            let (line, size) = outcome.tag;
            self.unsettled -= size;
            settled(outcome.result.as_ref().ok());
            match outcome.result {
                Ok(_) => self.confirmed += 1,
                Err(error) => {
                    self.unsendable += u64::from(matches!(error.cause(), Cause::Invalid(_)));
                    self.problems.add(line, error.to_string());
                }
            }
        }
    }
}

impl Sent {
    pub(crate) fn new(receipt: &Receipt, settings: &Settings) -> Self {
        let (due, delay) = (receipt.due, receipt.delay);
        let wait = delay.duration(settings.topology.unit.duration());
        let handle = receipt.handle.as_ref().map(ToString::to_string);
        let hops = delay.hops_with(settings.topology.shortcuts == Some(true));
        Self { due, seconds: delay.seconds(), hops, handle, wait }
    }
}

/// Beside the handles, which are for another command.
pub(crate) fn show_handle(report: &Report, output: &mut Output) -> Result<(), Failure> {
    report.problems.say();
    match &report.message {
        Some(sent) => sent.handle.iter().try_for_each(|handle| output.line(handle))?,
        None => aside(summary(report)),
    }
    report.left.iter().for_each(|left| aside(left.text()));
    Ok(())
}

pub(crate) fn show(report: &Report, output: &mut Output) -> Result<(), Failure> {
    if output.json {
        return Ok(output.json(report)?);
    }
    report.problems.say();
    if let Some(sent) = &report.message {
        let hops = counted(sent.hops.into(), "hop");
        output.line(format!(
            "confirmed; due {} (in {}, {hops})",
            time::date(sent.due),
            text::span(u64::try_from(sent.wait.as_millis()).unwrap_or(u64::MAX))
        ))?;
        if let Some(handle) = &sent.handle {
            output.line(format!("handle {handle}"))?;
        }
        match report.replaced {
            None => {}
            Some("recalled") => output.line("the old message is recalled")?,
            Some(NOTHING) => output.line("the journal contains no waiting message with this id")?,
            Some(_) => report.left.iter().try_for_each(|left| output.line(left.text()))?,
        }
        return Ok(());
    }
    output.line(summary(report))?;
    Ok(())
}

fn summary(report: &Report) -> String {
    format!(
        "{} confirmed, {} failed, in {:.1} s ({}/s){}",
        grouped(report.confirmed),
        grouped(report.problems.count),
        report.seconds,
        text::rate(Some(report.per_second)),
        if report.interrupted { "; interrupted" } else { "" }
    )
}
