//! What commands on kept messages print.

use jiff::Timestamp;
use owo_colors::OwoColorize;
use serde::Serialize;

use delayline_admin::{
    Kept, KeptMessage, KeptReport, ReplayReport,
    drain::{Drained, Sample},
};
use delayline_core::message::headers;
use delayline_settings::Settings;

use delayline_term::{
    Code, Failure, Output, change, findings, output::aside, output::counted, output::dry_run,
    output::grouped, output::unchanged, table::table, text::ago, text::readable, time::date,
};

use super::Kind;

/// The name of a kind of held messages, and the columns of its list.
#[derive(Debug, Clone, Copy)]
pub(super) struct Words {
    what: &'static str,
    reason: &'static str,
    detail: &'static str,
}

impl Kind {
    pub(super) fn words(self) -> Words {
        let unroutable = Words { what: "unroutable", reason: "reason", detail: "problem" };
        match self {
            Self::Unroutable => unroutable,
            Self::Parked => Words { what: "parked", reason: "parked because of", detail: "last failure" },
            Self::Recalled => Words { what: "recalled", ..unroutable },
        }
    }
}

/// A value with the kind of its messages.
#[derive(Serialize, schemars::JsonSchema)]
pub(crate) struct OfKind<'a, T> {
    #[schemars(extend("enum" = ["unroutable", "parked", "recalled"]))]
    kind: &'static str,
    #[serde(flatten)]
    value: &'a T,
}

/// The exit code of a command that changes something.
fn code(drained: &Drained) -> Code {
    match drained {
        Drained { failure: Some(_), .. } => Code::Broker,
        Drained { interrupted: true, .. } => Code::Interrupted,
        Drained { refused: 1.., .. } | Drained { withheld: 1.., .. } => Code::Problem,
        _ => Code::Done,
    }
}

/// Prints a message in detail.
pub(crate) fn sample(sample: &Sample, output: &mut Output) -> Result<(), Failure> {
    output.line(format!("  exchange     {}", readable(&sample.exchange)))?;
    output.line(format!("  routing key  {}", readable(&sample.routing_key)))?;
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
        output.line(format!("  header       {} = {value}{}", readable(name), moment(name, value)))?;
    }
    let (kind, body) = match (&sample.body, &sample.body_base64) {
        (Some(text), _) => ("", readable(text)),
        (None, Some(base64)) => (" in Base64", base64.clone()),
        (None, None) => ("", String::new()),
    };
    let cut = if sample.truncated { ", cut" } else { "" };
    output.line(format!("  body         ({} bytes{kind}{cut}) {body}", sample.bytes))?;
    Ok(())
}

/// The date in a time header of ours.
fn moment(name: &str, value: &serde_json::Value) -> String {
    let times = [headers::DUE, headers::EXPIRES, headers::FIRST_FAILED, headers::LAST_FAILED];
    let time = value.as_i64().filter(|_| times.contains(&name));
    time.and_then(|time| Timestamp::from_millisecond(time).ok())
        .map_or_else(String::new, |time| format!(" ({})", date(time)))
}

pub(super) fn list(words: Words, report: &KeptReport, output: &mut Output) -> Result<Code, Failure> {
    let cut = Cut::new(report.withheld, report.failure.as_ref());
    if output.json {
        output.json(&OfKind { kind: words.what, value: report })?;
        return Ok(cut.code());
    }
    let now = Timestamp::now();
    let age = |time: Option<Timestamp>| time.map_or_else(|| "?".into(), |time| ago(now, time));
    let optional = |text: &Option<String>| text.as_deref().map_or_else(|| "-".into(), readable);
    let Words { what, reason, detail } = words;
    let mut header = vec!["app key", reason, ">messages", ">unreadable", ">oldest", ">newest", detail];
    let bound_matters = report.groups.iter().any(|it| it.bound.is_some());
    if bound_matters {
        header.push("bound now");
    }
    let rows = report.groups.iter().map(|it| {
        let mut row = vec![
            optional(&it.cause.app),
            readable(&it.cause.reason),
            grouped(it.group.count),
            grouped(it.group.unreadable),
            age(it.group.oldest),
            age(it.group.newest),
            optional(&it.cause.detail),
        ];
        if bound_matters {
            row.push(it.bound.map_or("", |bound| if bound { "yes" } else { "no" }).into());
        }
        row
    });
    if report.waiting == 0 {
        output.line(format!("nothing is {what}"))?;
    } else {
        output.line(table(&header, rows))?;
        if let Some(other) = &report.other {
            output.line(format!("and {} of other kinds", counted(other.count, "message")))?;
        }
        output.line(total(report.waiting, report.examined, cut, what))?;
    }
    findings::unchecked(&report.unchecked, output)?;
    if let Some(failure) = &report.failure {
        aside(format!("{} {failure}", "ended early:".red().bold()));
    }
    Ok(cut.code())
}

pub(crate) fn show(
    kept: &Kept,
    messages: &[KeptMessage],
    drained: &Drained,
    output: &mut Output,
) -> Result<Code, Failure> {
    for message in messages {
        if output.json {
            output.json(&OfKind { kind: kept.as_str(), value: message })?;
            continue;
        }
        let (reason, detail) = (&message.cause.reason, message.cause.detail.as_deref());
        let head = match kept {
            Kept::Parked => {
                let failure = detail.unwrap_or("not noted");
                format!("parked because of `{reason}`, last failure `{failure}`")
            }
            _ => format!("{reason} {}", detail.unwrap_or_default()),
        };
        output.line(format!("{} {}", "●".yellow(), readable(head.trim()).bold()))?;
        if let Some(gateway) = &message.cause.gateway {
            output.line(format!("  gateway      {}", readable(gateway)))?;
        }
        if let Some(key) = &message.own_key {
            output.line(format!("  its own key  {}", readable(key)))?;
        }
        sample(&message.sample, output)?;
    }
    shown(!messages.is_empty(), drained, output)
}

pub(crate) fn replayed(
    kept: &Kept,
    report: &ReplayReport,
    settings: &Settings,
    output: &mut Output,
) -> Result<Code, Failure> {
    let code = match code(&report.drained) {
        Code::Done if report.hopeless > 0 || !report.unbound.is_empty() => Code::Problem,
        code => code,
    };
    if output.json {
        output.json(report)?;
        return Ok(code);
    }
    changed("sent on", report.drained.sent, &report.drained, output)?;
    for (app, count) in &report.unbound {
        output.line(format!(
            "{} {} for `{}` {}: no queue is bound for it",
            "!".yellow(),
            counted(*count, "message"),
            readable(app),
            stay(*count)
        ))?;
    }
    if report.hopeless > 0 {
        output.line(format!(
            "{} {}: no exchange would route it (`{}`)",
            counted(report.hopeless, "message"),
            stay(report.hopeless),
            settings.command(&["held", "list", "--kind", kept.as_str()])
        ))?;
    }
    ending(&report.drained, output)?;
    Ok(code)
}

/// The messages that were discarded, or would be.
#[derive(Serialize, schemars::JsonSchema)]
pub(crate) struct Discarded<'a> {
    /// Whether nothing was changed.
    dry_run: bool,
    /// How many messages were selected.
    selected: u64,
    #[serde(flatten)]
    drained: &'a Drained,
}

pub(crate) fn would_discard(selected: u64, drained: &Drained, output: &mut Output) -> Result<Code, Failure> {
    if output.json {
        output.json(&Discarded { dry_run: true, selected, drained })?;
    } else {
        let stay = grouped(drained.waiting.saturating_sub(selected));
        output.line(format!(
            "{} {} would be discarded, {stay} kept",
            dry_run(),
            counted(selected, "message")
        ))?;
        ending(drained, output)?;
    }
    Ok(code(drained))
}

pub(crate) fn discarded(drained: &Drained, output: &mut Output) -> Result<Code, Failure> {
    if output.json {
        output.json(&Discarded { dry_run: false, selected: drained.discarded, drained })?;
    } else {
        changed("discarded", drained.discarded, drained, output)?;
        ending(drained, output)?;
    }
    Ok(code(drained))
}

fn changed(what: &str, gone: u64, drained: &Drained, output: &mut Output) -> Result<(), Failure> {
    let head =
        if gone == 0 && code(drained) == Code::Done { format!("{} ", unchanged()) } else { String::new() };
    let stay = grouped(drained.waiting - gone);
    output.line(format!("{head}{} {what}, {stay} kept", counted(gone, "message")))?;
    Ok(())
}

/// The exit code of a command that shows single messages.
fn shown(found: bool, drained: &Drained, output: &mut Output) -> Result<Code, Failure> {
    if !found && !output.json {
        output.line("no such message")?;
    }
    if drained.withheld > 0 && !output.json {
        output.line(format!("{} were not examined: {WITHHELD}", counted(drained.withheld, "message")))?;
    }
    match &drained.failure {
        Some(failure) => Err(Failure::new(Code::Broker, failure)),
        None if !found || drained.withheld > 0 => Ok(Code::Problem),
        None => Ok(Code::Done),
    }
}

/// Why not all messages were examined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cut {
    /// By choice.
    Limit,
    /// The broker did not deliver them.
    Withheld,
    /// An error, which is reported beside it.
    Failure,
}

impl Cut {
    fn new(withheld: u64, failure: Option<&String>) -> Self {
        match (failure, withheld) {
            (Some(_), _) => Self::Failure,
            (None, 1..) => Self::Withheld,
            (None, 0) => Self::Limit,
        }
    }

    /// The exit code of a list.
    fn code(self) -> Code {
        match self {
            Self::Limit => Code::Done,
            Self::Withheld => Code::Problem,
            Self::Failure => Code::Broker,
        }
    }
}

/// The number of messages, and how many of them were examined.
fn total(waiting: u64, examined: u64, cut: Cut, what: &str) -> String {
    let (left, examined) = (waiting.saturating_sub(examined), grouped(examined));
    let looked = match (left, cut) {
        (0, _) => String::new(),
        (_, Cut::Limit) => format!("; only the first {examined} were examined (--examine)"),
        (_, Cut::Withheld) => format!("; only {examined} were examined: {WITHHELD}"),
        (_, Cut::Failure) => format!("; only {examined} were examined before a failure"),
    };
    format!("{} {what}{looked}", counted(waiting, "message"))
}

const WITHHELD: &str = "the broker delivered no further message for 10 s: another consumer holds or took \
                        them, or the broker is slow";

/// Prints what went wrong, if anything did.
fn ending(drained: &Drained, output: &mut Output) -> Result<(), Failure> {
    if let Some(reason) = &drained.refusal {
        output.line(format!(
            "{} {} kept and not sent on, the first because {reason}",
            "!".yellow(),
            counted(drained.refused, "message")
        ))?;
    }
    if drained.undated > 0 {
        output.line(format!(
            "{} {} kept, since neither the broker nor delayline recorded when they came: --older-than does not \
             select them. Name them another way",
            "!".yellow(),
            counted(drained.undated, "message")
        ))?;
    }
    if drained.withheld > 0 {
        output.line(format!(
            "{} {} not examined: {WITHHELD}",
            "!".yellow(),
            counted(drained.withheld, "message")
        ))?;
    }
    if drained.in_doubt > 0 {
        output.line(format!(
            "{} sent but not confirmed: still in the queue, may arrive twice",
            counted(drained.in_doubt, "message")
        ))?;
    }
    change::ended_early(drained.failure.as_deref(), drained.interrupted, output)?;
    Ok(())
}

fn stay(count: u64) -> &'static str {
    if count == 1 { "stays" } else { "stay" }
}

#[cfg(test)]
mod tests {
    use delayline_term::output::Shape;

    use super::*;

    #[test]
    fn a_list_that_ended_early_is_a_failure() {
        for shape in [Shape::Table, Shape::Json] {
            let code = |failure: Option<&str>| {
                let mut report = KeptReport::new((5, 2), Vec::new());
                report.failure = failure.map(str::to_owned);
                list(Kind::Unroutable.words(), &report, &mut Output::new(shape, false, &["held", "list"]))
                    .unwrap()
            };
            assert_eq!(code(None), Code::Done);
            assert_eq!(code(Some("the connection was lost")), Code::Broker);
        }
    }
}
