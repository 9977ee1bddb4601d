//! What `parked` and `unroutable` share: following a run, showing a message, and the end of a
//! run.

use indicatif::ProgressBar;
use jiff::{Timestamp, Unit};
use owo_colors::OwoColorize;

use delayline::message::headers;
use delayline_admin::holding::{Progress, Sample, Sifted};

use crate::{
    Code, Failure, Output,
    output::{aside, counted},
    time::date,
};

pub(super) fn follow(bar: &ProgressBar, at: Progress) {
    bar.set_length(at.total);
    bar.set_position(at.settled);
}

/// The exit code of a command that changes something.
pub(super) fn code(sifted: &Sifted) -> Code {
    match sifted {
        Sifted { failure: Some(_), .. } => Code::Broker,
        Sifted { interrupted: true, .. } => Code::Interrupted,
        Sifted { refused: 1.., .. } | Sifted { withheld: 1.., .. } => Code::Problem,
        _ => Code::Done,
    }
}

pub(super) fn age(now: Timestamp, then: Timestamp) -> String {
    let seconds = now.duration_since(then).as_secs().max(0);
    let span = jiff::SignedDuration::from_secs(seconds);
    let unit = if seconds >= 86_400 {
        Unit::Hour
    } else if seconds >= 3_600 {
        Unit::Minute
    } else {
        Unit::Second
    };
    let rounded = span.round(unit).unwrap_or(span);
    format!("{rounded:#}")
}

/// Prints a message in detail.
pub(super) fn sample(sample: &Sample, output: &mut Output) -> Result<(), Failure> {
    output.line(format!("  exchange     {}", escaped(&sample.exchange)))?;
    output.line(format!("  routing key  {}", escaped(&sample.routing_key)))?;
    if sample.unreadable {
        output.line("  unreadable   its headers and properties; it can be discarded but not sent on")?;
    }
    if let Some(arrived) = sample.arrived {
        output.line(format!("  since        {}", date(arrived)))?;
    }
    for (name, value) in &sample.properties {
        output.line(format!("  {name:<12} {value}"))?;
    }
    for (name, value) in &sample.headers {
        output.line(format!("  header       {} = {value}{}", escaped(name), moment(name, value)))?;
    }
    let (kind, body) = match (&sample.body, &sample.body_base64) {
        (Some(text), _) => ("", escaped(text)),
        (None, Some(base64)) => (" in Base64", base64.clone()),
        (None, None) => ("", String::new()),
    };
    let cut = if sample.truncated { ", cut" } else { "" };
    output.line(format!("  body         ({} bytes{kind}{cut}) {body}", sample.bytes))?;
    Ok(())
}

/// The date that one of our time headers stands for.
fn moment(name: &str, value: &serde_json::Value) -> String {
    let times = [headers::DUE, headers::EXPIRES, headers::FIRST_FAILED, headers::LAST_FAILED];
    let time = value.as_i64().filter(|_| times.contains(&name));
    time.and_then(|time| Timestamp::from_millisecond(time).ok())
        .map_or_else(String::new, |time| format!(" ({})", date(time)))
}

/// One line, without anything that could control the terminal.
pub(super) fn escaped(text: &str) -> String {
    text.chars().flat_map(char::escape_debug).collect()
}

/// Prints the result of a command that only discards, or only sends on.
pub(super) fn changed(sifted: &Sifted, what: &str, gone: u64, output: &mut Output) -> Result<Code, Failure> {
    if output.json {
        output.json(sifted)?;
    } else {
        output.line(format!("{} {what}, {} kept", counted(gone, "message"), sifted.waiting - gone))?;
        ending(sifted, output)?;
    }
    Ok(code(sifted))
}

/// The exit code of a command that shows single messages.
pub(super) fn shown(found: bool, sifted: &Sifted, output: &mut Output) -> Result<Code, Failure> {
    if !found && !output.json {
        output.line("no such message")?;
    }
    if sifted.withheld > 0 && !output.json {
        output.line(format!("{} were not looked at: {WITHHELD}", counted(sifted.withheld, "message")))?;
    }
    match &sifted.failure {
        Some(failure) => Err(Failure::new(Code::Broker, failure)),
        None if !found || sifted.withheld > 0 => Ok(Code::Problem),
        None => Ok(Code::Done),
    }
}

/// Why not all messages were looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cut {
    /// By choice.
    Limit,
    /// The broker did not hand them out.
    Withheld,
    /// An error, which is reported beside it.
    Failure,
}

impl Cut {
    pub(super) fn new(withheld: u64, failure: Option<&String>) -> Self {
        match (failure, withheld) {
            (Some(_), _) => Self::Failure,
            (None, 1..) => Self::Withheld,
            (None, 0) => Self::Limit,
        }
    }

    /// The exit code of a list.
    pub(super) fn code(self) -> Code {
        match self {
            Self::Limit => Code::Done,
            Self::Withheld => Code::Problem,
            Self::Failure => Code::Broker,
        }
    }
}

/// How many there are, and how many of those were examined.
pub(super) fn total(waiting: u64, examined: u64, cut: Cut, what: &str) -> String {
    let looked = match (waiting.saturating_sub(examined), cut) {
        (0, _) => String::new(),
        (_, Cut::Limit) => format!(", of which the first {examined} were looked at (--limit)"),
        (_, Cut::Withheld) => format!(", of which {examined} were looked at: {WITHHELD}"),
        (_, Cut::Failure) => format!(", of which {examined} were looked at before it ended early"),
    };
    format!("{} {what}{looked}", counted(waiting, "message"))
}

const WITHHELD: &str = "the broker handed out no more for 10 s: another consumer has them or took them, or \
                        the broker is slow";

/// Prints what went wrong, if anything did.
pub(super) fn ending(sifted: &Sifted, output: &mut Output) -> Result<(), Failure> {
    if let Some(reason) = &sifted.refusal {
        output.line(format!(
            "{} {} kept and not sent on, the first because {reason}",
            "!".yellow(),
            counted(sifted.refused, "message")
        ))?;
    }
    if sifted.withheld > 0 {
        output.line(format!(
            "{} {} not looked at: {WITHHELD}",
            "!".yellow(),
            counted(sifted.withheld, "message")
        ))?;
    }
    if sifted.in_doubt > 0 {
        output.line(format!(
            "{} sent but not confirmed: still in the queue, may arrive twice",
            counted(sifted.in_doubt, "message")
        ))?;
    }
    if let Some(failure) = &sifted.failure {
        aside(format!("{} {failure}; run it again to continue", "ended early:".red().bold()));
    } else if sifted.interrupted {
        output.line("interrupted; run it again to continue")?;
    }
    Ok(())
}
