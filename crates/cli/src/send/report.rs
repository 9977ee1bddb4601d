//! What came of sending, and saying it.

use std::time::Duration;

use indicatif::ProgressBar;
use jiff::Timestamp;
use serde::Serialize;

use delayline_client::router::{Cause, Outcome, Receipt};
use delayline_settings::Settings;

use crate::{
    Failure, Output,
    output::{aside, counted, grouped},
    replace::Left,
    text, time,
};

use super::{instead::NOTHING, problem::Problems};

#[derive(Debug, Default, Serialize)]
pub(super) struct Report {
    pub(super) confirmed: u64,
    /// How many of the failed messages nobody could have sent: the broker is not at fault.
    pub(super) unsendable: u64,
    pub(super) seconds: f64,
    pub(super) per_second: f64,
    /// How many lines were not sent, and the first of them.
    #[serde(flatten)]
    pub(super) problems: Problems,
    /// The receipt of a single message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) message: Option<Sent>,
    /// What came of recalling what it replaces.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) replaced: Option<&'static str>,
    /// What may be delivered all the same.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) left: Vec<Left>,
    #[serde(skip)]
    pub(super) interrupted: bool,
    /// The bytes of the bodies that are not confirmed yet.
    #[serde(skip)]
    pub(super) unsettled: usize,
}

#[derive(Debug, Serialize)]
pub(super) struct Sent {
    pub(super) due: Timestamp,
    pub(super) seconds: u32,
    pub(super) hops: u32,
    /// What it can be recalled with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) handle: Option<String>,
    /// How long that is by the clock, whatever the length of a second in this set.
    #[serde(skip)]
    pub(super) wait: Duration,
}

impl Report {
    /// Names bad lines of an input that may never end as soon as they are known.
    pub(super) fn say_problems(&mut self, at_once: bool, bar: &ProgressBar) {
        if at_once {
            bar.suspend(|| self.problems.say_new());
        }
    }

    pub(super) fn extend(
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
    pub(super) fn new(receipt: &Receipt, settings: &Settings) -> Self {
        let (due, delay) = (receipt.due, receipt.delay);
        let wait = delay.duration(settings.topology.unit.duration());
        let handle = receipt.handle.as_ref().map(ToString::to_string);
        Self { due, seconds: delay.seconds(), hops: delay.hops(), handle, wait }
    }
}

/// Beside the handles, which are for another command.
pub(super) fn show_handle(report: &Report, output: &mut Output) -> Result<(), Failure> {
    report.problems.say();
    match &report.message {
        Some(sent) => sent.handle.iter().try_for_each(|handle| output.line(handle))?,
        None => aside(summary(report)),
    }
    report.left.iter().for_each(|left| aside(left.text()));
    Ok(())
}

pub(super) fn show(report: &Report, output: &mut Output) -> Result<(), Failure> {
    if output.json {
        return Ok(output.json(report)?);
    }
    report.problems.say();
    if let Some(sent) = &report.message {
        let hops = counted(sent.hops.into(), "hop");
        output.line(format!(
            "confirmed; due {} (in {}, {hops})",
            time::date(sent.due),
            time::span(sent.wait)
        ))?;
        if let Some(handle) = &sent.handle {
            output.line(format!("handle {handle}"))?;
        }
        match report.replaced {
            None => {}
            Some("recalled") => output.line("what it replaces is recalled")?,
            Some(NOTHING) => output.line("nothing that waits with this id is in the journal")?,
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
