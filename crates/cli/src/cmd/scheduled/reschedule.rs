//! `delayline scheduled reschedule`

use std::{collections::HashSet, sync::atomic::Ordering};

use jiff::Timestamp;
use serde::Serialize;

use delayline_admin::{self as admin, FoundMessage, ScheduleState};
use delayline_amqp::STREAM_OFFSET;
use delayline_core::{
    Message,
    codec::{AppKey, Delay, MessageId},
    message::{Handle, Headers, When, headers, is_forbidden, move_user_id},
    topology::Topology,
};
use delayline_settings::Settings;

use crate::{
    cmd::scheduled::journal::reading, cmd::scheduled::replace::Replaced, cmd::scheduled::replace::Replacer,
    cmd::scheduled::replace::replace, values,
};
use delayline_term::{
    Code, Failure, Output, ending::on_signal, output::aside, output::grouped, time, time::date,
};

use super::search::{Change, SEARCHING, Search};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  delayline scheduled reschedule HANDLE --delay 2h
  delayline scheduled reschedule HANDLE --at 2026-12-24T18:00
  delayline scheduled reschedule HANDLE --delay 2h --body 'pay!'
  delayline scheduled reschedule HANDLE --delay 30d --new-id invoice-17-2
  delayline scheduled reschedule --app billing --header customer=C-4 --delay 2h --dry-run

The message is read from the journal of its application (docs/how-to/recall.md). If it was
published without the journal, give the body. First the new message is confirmed, then the
old message is recalled, so none is lost. At worst both are delivered, and the command
reports that. The new message has the id with a fresh suffix, such as
invoice-17-1--4f0k2m9xqa, so that no earlier recall catches it; its handle is printed. Use
that handle to reschedule it again: a message that was recalled before is not sent again.
Headers that are tables or arrays are not kept in a journal.

With --app, the command shows the waiting messages that it found and asks, except with --id
alone. Messages without an id cannot be rescheduled.

The exit code is 1 unless every old message is certainly recalled.")]
#[command(group = clap::ArgGroup::new("when").required(true))]
pub(crate) struct Args {
    /// The message
    #[arg(value_name = "HANDLE", value_parser = values::handle, required_unless_present = "app",
        conflicts_with_all = SEARCHING)]
    handle: Option<Handle>,
    #[command(flatten)]
    search: Search,
    /// Deliver it after this time from now
    #[arg(long, value_name = "DELAY", value_parser = values::delay, group = "when")]
    delay: Option<Delay>,
    /// Deliver it at this time
    #[arg(long, value_name = "TIME", value_parser = time::instant, group = "when")]
    at: Option<Timestamp>,
    /// Give the new message another id, which gets a fresh suffix as well
    #[arg(long, value_name = "ID", value_parser = values::id, conflicts_with = "app")]
    new_id: Option<MessageId>,
    /// The body of the new message, without properties and headers; the journal is not read
    #[arg(long, value_name = "TEXT", conflicts_with = "app")]
    body: Option<String>,
}

const UNREADABLE: &str = "not all of its headers and properties can be read here; give its --body";

const RECALLED: &str = "the message was recalled, so there is nothing to reschedule";

#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct Rescheduled {
    /// The handle of the new message.
    handle: Option<String>,
    due: Timestamp,
    /// The old message, and the result of recalling it.
    old: String,
    #[schemars(extend("enum" = ["recalled", "too-late", "uncertain"]))]
    answer: &'static str,
}

/// A message among several that was not sent again.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct NotRescheduled {
    /// The message, which is as it was.
    old: String,
    /// The reason.
    problem: String,
}

pub(super) fn run(
    args: &Args,
    settings: &Settings,
    topology: &Topology,
    output: &mut Output,
) -> Result<Code, Failure> {
    let now = Timestamp::now();
    if args.at.is_some_and(|at| at < now) {
        return Err(Failure::usage("--at is in the past; use a later time, or recall the message"));
    }
    let when = args.delay.map(When::After).or(args.at.map(When::At));
    let when = when.ok_or_else(|| Failure::usage("there is no time; use --delay or --at"))?;
    match (&args.handle, &args.search.app) {
        (Some(old), _) => one(args, old, when, settings, output),
        (None, Some(app)) => several(args, app, when, (settings, topology), output),
        (None, None) => Err(Failure::usage("pass a HANDLE, or use --app")),
    }
}

fn one(
    args: &Args,
    old: &Handle,
    when: When,
    settings: &Settings,
    output: &mut Output,
) -> Result<Code, Failure> {
    args.search.refuse_dry_run()?;
    if old.due().is_some_and(|due| due <= Timestamp::now()) {
        output.problem("the message was due already; nothing was changed")?;
        return Ok(Code::Problem);
    }
    let (old, message) = match &args.body {
        Some(body) => {
            (old.clone(), Message::new(old.app().clone(), when, body.as_bytes()).with_id(old.id().clone()))
        }
        None => match journalled(old, when, settings, output)? {
            Ok(found) => found,
            Err(code) => return Ok(code),
        },
    };
    let message = match &args.new_id {
        Some(id) => message.with_id(id.clone()),
        None => message,
    };
    match admin::is_recall_bound(settings, &Topology::new(settings.topology.clone()), &old) {
        Ok(true) => {
            output.problem(&format!("{RECALLED}; nothing was changed"))?;
            return Ok(Code::Problem);
        }
        Ok(false) => {}
        // If it was rescheduled before, two messages would wait.
        Err(error) if args.body.is_some() => {
            let code = if settings.management.is_some() { Code::Broker } else { Code::Usage };
            return Err(Failure::new(
                code,
                format!(
                    "nothing was done: it is unknown whether the message was recalled before: {error}. \
                     Without --body, its journal shows whether it was rescheduled"
                ),
            ));
        }
        Err(error) => aside(format!("it is unknown whether the message was recalled before: {error}")),
    }
    let replaced = replace(std::slice::from_ref(&old), message, settings)?;
    shown(&old, &replaced, output)
}

/// The new message, from the journal's copy of the old message, whose due time is known now; or the
/// failed search.
fn journalled(
    old: &Handle,
    when: When,
    settings: &Settings,
    output: &mut Output,
) -> Result<Result<(Handle, Message), Code>, Failure> {
    let topology = Topology::new(settings.topology.clone());
    let (found, read) =
        reading(output, |stop, at| admin::find_scheduled(settings, &topology, old, 0, stop, at))?;
    if read.interrupted {
        return Ok(Err(Code::Interrupted));
    }
    let Some(found) = found else {
        output.problem("nothing was changed: the journal does not contain the message; give its --body")?;
        return Ok(Err(Code::Problem));
    };
    if let Some(newest) = &found.rescheduled {
        output.problem(&format!(
            "nothing was changed: the message was rescheduled before; its handle is now {newest}"
        ))?;
        return Ok(Err(Code::Problem));
    }
    let gone = match found.message.state {
        ScheduleState::Due => Some("the message was due already"),
        ScheduleState::Recalled => Some(RECALLED),
        _ if found.sample.unreadable => Some(UNREADABLE),
        ScheduleState::Uncertain => Some("it is unknown whether the message still waits"),
        _ => None,
    };
    if let Some(gone) = gone {
        output.problem(&format!("{gone}; nothing was changed"))?;
        return Ok(Err(Code::Problem));
    }
    let old = old.clone().with_due(found.message.due);
    Ok(Ok((old.clone(), again(&old, when, found, settings))))
}

/// Reschedules all messages that the filters admit, in the order of the journal.
fn several(
    args: &Args,
    app: &AppKey,
    when: When,
    (settings, topology): (&Settings, &Topology),
    output: &mut Output,
) -> Result<Code, Failure> {
    let selected = match args.search.select(Change::Reschedule, app, (settings, topology), output)? {
        Ok(selected) => selected,
        Err(code) => return Ok(code),
    };
    // A message that was rescheduled before would wait twice.
    if let Some(reason) = selected.list.unchecked.first() {
        let code = if settings.management.is_some() { Code::Broker } else { Code::Usage };
        return Err(Failure::new(code, format!("nothing was done, since this cannot be checked: {reason}")));
    }
    let stop = on_signal()?;
    let replacer = Replacer::connect(settings, Some(app))?;
    let (mut done, mut seen) = (0, 0);
    // A recall affects all messages with its handle; each of them is sent again.
    let mut recalled = HashSet::new();
    let all = selected.handles.len() as u64;
    let progress = output.progress(Some(all), "rescheduling");
    let read = admin::read_scheduled((settings, topology, app), &selected.list, 0, &stop, |found| {
        seen += 1;
        progress.set_position(seen);
        let Some(old) = found.message.recallable(Timestamp::now()) else { return Ok(()) };
        let problem = match found.message.due {
            due if due <= Timestamp::now() => Some("the message was due already"),
            _ if found.sample.unreadable => Some(UNREADABLE),
            _ if !recalled.contains(&found.sample.routing_key)
                && admin::is_recall_bound(settings, topology, &old)? =>
            {
                Some(RECALLED)
            }
            _ => None,
        };
        if let Some(problem) = problem {
            let old = old.to_string();
            match output.json {
                true => output.json(&NotRescheduled { old, problem: problem.into() })?,
                false => output.line(format!("{problem}: {old}"))?,
            }
            return Ok(());
        }
        recalled.insert(found.sample.routing_key.clone());
        let replaced = replacer.replace(std::slice::from_ref(&old), again(&old, when, found, settings))?;
        if shown(&old, &replaced, output)? == Code::Done {
            done += 1;
        }
        Ok::<_, Failure>(())
    });
    progress.finish_and_clear();
    replacer.close();
    let not = all - done + selected.left;
    let summary = format!("{} rescheduled, {} not or not certainly", grouped(done), grouped(not));
    match read {
        Err(failure) => {
            aside(summary);
            return Err(failure);
        }
        Ok(()) if output.json => {}
        Ok(()) => output.line(summary)?,
    }
    Ok(match not {
        _ if seen < all && stop.load(Ordering::Relaxed) => Code::Interrupted,
        0 => Code::Done,
        _ => Code::Problem,
    })
}

/// The same message for another time.
fn again(old: &Handle, when: When, found: FoundMessage, settings: &Settings) -> Message {
    let FoundMessage { body, mut properties, headers: copied, .. } = found;
    // Headers that the broker added to the copy, and headers that the new message gets again.
    let ours = |name: &str| name == STREAM_OFFSET || name == headers::DUE;
    let mut kept: Headers =
        copied.into_iter().filter(|(name, _)| !ours(name) && !is_forbidden(name)).collect();
    move_user_id(&mut properties, &mut kept, settings.broker.credentials.username());
    let message = Message::new(old.app().clone(), when, body).with_id(old.id().clone());
    let mut message = message.with_properties(properties);
    message.headers = kept;
    message
}

fn shown(old: &Handle, replaced: &Replaced, output: &mut Output) -> Result<Code, Failure> {
    let handle = replaced.receipt.handle.as_ref().map(ToString::to_string);
    if output.json {
        output.json(&Rescheduled {
            handle,
            due: replaced.receipt.due,
            old: old.to_string(),
            answer: replaced.answer(),
        })?;
    } else {
        output.line(format!("confirmed; due {}", date(replaced.receipt.due)))?;
        if let Some(handle) = handle {
            output.line(format!("handle {handle}"))?;
        }
        match replaced.left.first() {
            None => output.line("the old message is recalled")?,
            Some(left) => output.line(left.text())?,
        }
    }
    Ok(if replaced.left.is_empty() { Code::Done } else { Code::Problem })
}
