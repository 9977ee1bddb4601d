//! `delayline reschedule`

use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;

use delayline::{
    Message, Router,
    codec::{Delay, MessageId},
    message::{Handle, Headers, When, headers, is_forbidden, move_user_id},
    recall::{Answer, Recaller, ReplaceError, Replaced},
    router::Cause,
    topology::Topology,
};
use delayline_admin::{self as admin, FoundMessage, ScheduleState};
use delayline_settings::Settings;

use crate::{
    Code, Failure, Output, args,
    ending::on_signal,
    output::{aside, at},
    time::{self, date},
};

/// How long closing the connection may take after the last confirm.
const CLOSE: Duration = Duration::from_secs(5);

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  delayline reschedule HANDLE --delay 2h
  delayline reschedule HANDLE --at 2026-12-24T18:00
  delayline reschedule HANDLE --delay 2h --body 'pay!'
  delayline reschedule HANDLE --delay 30d --new-id invoice-17b

The message is taken from the journal of its application (docs/recall.md); of one that was
published without it, give the body. First the new message is confirmed, then the old one is
recalled, so nothing is lost whatever happens; at worst, both are delivered, which is said.
The new message keeps the id, and gets a handle of its own, since its delay is another. If
the delay is the same, it needs another id. Headers that are tables or arrays are not kept in
a journal.

The exit code is 1 unless the old message is certainly recalled.")]
#[command(group = clap::ArgGroup::new("when").required(true))]
pub(super) struct Args {
    /// The message
    #[arg(value_name = "HANDLE", value_parser = args::handle)]
    handle: Handle,
    /// Deliver it after this time from now
    #[arg(long, value_name = "DELAY", value_parser = args::delay, group = "when")]
    delay: Option<Delay>,
    /// Deliver it at this time
    #[arg(long, value_name = "TIME", value_parser = time::instant, group = "when")]
    at: Option<Timestamp>,
    /// Give the new message another id
    #[arg(long, value_name = "ID", value_parser = args::id)]
    new_id: Option<MessageId>,
    /// The body of the new message, without properties and headers; the journal is not read
    #[arg(long, value_name = "TEXT")]
    body: Option<String>,
}

const RECALLED: &str = "the message was recalled, so there is nothing to reschedule";

#[derive(Debug, Serialize)]
struct Rescheduled {
    /// What the new message can be recalled with.
    handle: Option<String>,
    due: Timestamp,
    /// The message that was there before, and what came of recalling it.
    old: String,
    answer: &'static str,
}

pub(super) fn run(args: &Args, settings: &Settings, output: &mut Output) -> Result<Code, Failure> {
    let old = &args.handle;
    let now = Timestamp::now();
    if args.at.is_some_and(|at| at < now) {
        return Err(Failure::usage("--at is in the past; use a later time, or recall the message"));
    }
    if old.due().is_some_and(|due| due <= now) {
        output.problem("the message was due already; nothing was changed")?;
        return Ok(Code::Problem);
    }
    let when = args.delay.map(When::After).or(args.at.map(When::At));
    let when = when.ok_or_else(|| Failure::usage("there is no time; use --delay or --at"))?;
    let (old, message) = match &args.body {
        Some(body) => {
            (old.clone(), Message::new(old.app().clone(), when, body.as_bytes()).with_id(old.id().clone()))
        }
        None => match journalled(args, when, settings, output)? {
            Ok(found) => found,
            Err(code) => return Ok(code),
        },
    };
    let message = match &args.new_id {
        Some(id) => message.with_id(id.clone()),
        None => message,
    };
    match admin::is_recall_bound(settings, &Topology::new(settings.topology.clone()), &old)? {
        Some(true) => {
            output.problem(&format!("{RECALLED}; nothing was changed"))?;
            return Ok(Code::Problem);
        }
        Some(false) => {}
        None => {
            aside("whether the message was recalled before is not known: there is no management API to ask")
        }
    }
    let mut recaller = Recaller::connect(settings.broker.clone(), settings.topology.set.clone())?;
    let router = settings.router().connect()?;
    let replaced = replace(&mut recaller, &router, &old, message, settings);
    // The message has its outcome already.
    let _ = router.close(CLOSE);
    shown(&old, &replaced?, output)
}

/// The new message, from the copy that the journal has of the old one, whose due time is known
/// now; or what the search ended with.
fn journalled(
    args: &Args,
    when: When,
    settings: &Settings,
    output: &mut Output,
) -> Result<Result<(Handle, Message), Code>, Failure> {
    let topology = Topology::new(settings.topology.clone());
    let stop = on_signal()?;
    let (found, read) = output.following("reading the journal", |bar| {
        admin::find_scheduled(settings, &topology, &args.handle, 0, &stop, |read, all| at(bar, read, all))
    })?;
    if read.interrupted {
        return Ok(Err(Code::Interrupted));
    }
    let Some(found) = found else {
        output.problem("the journal does not have it, and nothing was changed; give its --body")?;
        return Ok(Err(Code::Problem));
    };
    let gone = match found.message.state {
        ScheduleState::Due => Some("the message was due already"),
        ScheduleState::Recalled => Some(RECALLED),
        _ if found.sample.unreadable => {
            Some("not all of its headers and properties can be read here; give its --body")
        }
        ScheduleState::Uncertain => Some("the message was recalled, perhaps too late"),
        _ => None,
    };
    if let Some(gone) = gone {
        output.problem(&format!("{gone}; nothing was changed"))?;
        return Ok(Err(Code::Problem));
    }
    let old = match found.message.due {
        Some(due) => args.handle.clone().with_due(due),
        None => args.handle.clone(),
    };
    Ok(Ok((old.clone(), again(&old, when, found, settings))))
}

/// The same message for another time.
fn again(old: &Handle, when: When, found: FoundMessage, settings: &Settings) -> Message {
    let FoundMessage { body, mut properties, headers: copied, .. } = found;
    // What the broker added to the copy, and what the new message gets anew.
    let ours = |name: &str| name == "x-stream-offset" || name == headers::DUE || name == headers::JOURNAL;
    let mut kept: Headers =
        copied.into_iter().filter(|(name, _)| !ours(name) && !is_forbidden(name)).collect();
    move_user_id(&mut properties, &mut kept, settings.broker.credentials.username());
    let message = Message::new(old.app().clone(), when, body).with_id(old.id().clone()).journalled();
    let mut message = message.with_properties(properties);
    message.headers = kept;
    message
}

/// Sends a message in the place of another one, as `send --replace` does.
pub(super) fn replace(
    recaller: &mut Recaller,
    router: &Router,
    old: &Handle,
    message: Message,
    settings: &Settings,
) -> Result<Replaced, Failure> {
    let topology = Topology::new(settings.topology.clone());
    if let When::After(delay) = message.when
        && let Some(new) = message.handle(message.tolerance.round(delay), Timestamp::now())
        && new.routing_key() != old.routing_key()
        && admin::is_recall_bound(settings, &topology, &new)? == Some(true)
    {
        return Err(Failure::usage(format!("{}; nothing was changed", set_aside(&new))));
    }
    let replaced = recaller.replace(router, old, message).map_err(|error| match &error {
        ReplaceError::SameHandle { receipt: None, .. } => Failure::usage(error),
        ReplaceError::Publish(cause) if matches!(cause.cause(), Cause::Invalid(_)) => Failure::usage(error),
        _ => Failure::new(Code::Broker, error),
    })?;
    // With a time instead of a delay, the key is known only now.
    match &replaced.receipt.handle {
        Some(new) if admin::is_recall_bound(settings, &topology, new)? == Some(true) => {
            Err(Failure::new(Code::Problem, format!("the new message is confirmed, but {}", set_aside(new))))
        }
        _ => Ok(replaced),
    }
}

/// That a new message would not be delivered, and what to do.
fn set_aside(new: &Handle) -> String {
    format!(
        "a message with this id and delay was recalled before, so the new one would not be delivered either; \
         use another id or delay, or undo that recall: delayline recall --undo {}",
        new.routing_key().encode()
    )
}

/// What came of recalling the old one, in a word.
pub(super) fn word(answer: Answer) -> &'static str {
    match answer {
        Answer::InTime => "recalled",
        Answer::TooLate => "too-late",
        _ => "uncertain",
    }
}

fn shown(old: &Handle, replaced: &Replaced, output: &mut Output) -> Result<Code, Failure> {
    let certain = replaced.recalled == Answer::InTime;
    let handle = replaced.receipt.handle.as_ref().map(ToString::to_string);
    if output.json {
        output.json(&Rescheduled {
            handle,
            due: replaced.receipt.due,
            old: old.to_string(),
            answer: word(replaced.recalled),
        })?;
    } else {
        output.line(format!("confirmed; due {}", date(replaced.receipt.due)))?;
        if let Some(handle) = handle {
            output.line(format!("handle {handle}"))?;
        }
        output.line(match replaced.recalled {
            Answer::InTime => "the old one is recalled",
            Answer::TooLate => "the old one was due meanwhile: both are delivered",
            _ => "the old one is recalled, but nobody can say whether in time: both may be delivered",
        })?;
    }
    Ok(if certain { Code::Done } else { Code::Problem })
}
