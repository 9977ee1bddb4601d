//! Sending a message in the place of others that wait: `send --replace` and `reschedule`.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde::Serialize;

use delayline::{
    Message,
    message::{Handle, When},
    recall::{Answer, Recaller},
    router::{Cause, Receipt},
    topology::Topology,
};
use delayline_admin as admin;
use delayline_settings::Settings;

use crate::{Code, Failure, output::aside};

/// How long closing the connection may take after the last confirm.
const CLOSE: Duration = Duration::from_secs(5);

/// A message that was sent in the place of others.
pub(super) struct Replaced {
    pub(super) receipt: Receipt,
    /// How long publishing it took.
    pub(super) took: Duration,
    /// Old ones that may be delivered all the same.
    pub(super) left: Vec<Left>,
}

/// An old message that may be delivered all the same, and why.
#[derive(Debug, Serialize)]
pub(super) struct Left {
    handle: String,
    answer: &'static str,
}

impl Replaced {
    /// What came of recalling the old ones, in a word: the first that is not certain counts.
    pub(super) fn answer(&self) -> &'static str {
        self.left.first().map_or("recalled", |left| left.answer)
    }
}

impl Left {
    /// The same in a sentence.
    pub(super) fn text(&self) -> String {
        let why = match self.answer {
            "too-late" => "was due already",
            "not-recalled" => "has the same handle as the new one, and is not recalled",
            _ => "is recalled, but nobody can say whether in time",
        };
        format!("the old one, {}, {why}: both may be delivered", self.handle)
    }
}

/// Sends a message, and recalls these once it is confirmed. Whatever goes wrong, an old one is
/// recalled only after that; and not if the new one is known to go aside, since its key was
/// recalled before. Where nobody can see that, it is said. `otherwise` is what to do if the new
/// one has the key of an old one.
pub(super) fn replace(
    old: &[Handle],
    message: Message,
    otherwise: &str,
    settings: &Settings,
) -> Result<Replaced, Failure> {
    if let Some(other) = old.iter().find(|old| old.app() != &message.app) {
        return Err(Failure::usage(format!(
            "the new message is for `{}`, and what it is to replace is for `{}`; nothing was done",
            message.app,
            other.app()
        )));
    }
    let known = match message.when {
        When::After(delay) => message.handle(message.tolerance.round(delay), Timestamp::now()),
        // The delay, and the key with it, is known only once it is published.
        _ => None,
    };
    if let Some(new) = &known {
        if old.iter().any(|old| same(old, new)) {
            return Err(Failure::usage(format!(
                "the new message has the id `{}` and the delay of one that waits, so recalling one would \
                 recall both; nothing was done. {otherwise}",
                new.id()
            )));
        }
        if was_recalled(new, settings) {
            return Err(Failure::usage(format!(
                "a message with this id and delay was recalled before, so the new one would not be delivered \
                 either; nothing was changed. {}",
                instead(new)
            )));
        }
    }
    let mut recaller = Recaller::connect(settings.broker.clone(), settings.topology.set.clone())?;
    if let Some(old) = old.first() {
        recaller.check(old.app()).map_err(|error| {
            Failure::new(
                Code::Broker,
                format!("what it is to replace cannot be recalled, and nothing was done: {error}"),
            )
        })?;
    }
    let router = settings.router().connect()?;
    let started = Instant::now();
    let published = router.publish(message);
    let took = started.elapsed();
    // The message has its outcome already.
    let _ = router.close(CLOSE);
    let receipt = published.map_err(|error| match error.cause() {
        Cause::Invalid(_) => Failure::usage(error),
        _ => Failure::new(Code::Broker, error),
    })?;
    if let Some(new) = &receipt.handle
        && !known.is_some_and(|known| same(&known, new))
        && was_recalled(new, settings)
    {
        return Err(Failure::new(
            Code::Problem,
            format!(
                "the new message is confirmed ({new}), but a message with this id and delay was recalled \
                 before, so it will not be delivered; what it was to replace stays as it is. {}",
                instead(new)
            ),
        ));
    }
    recall_all(old, &mut recaller, Replaced { receipt, took, left: Vec::new() })
}

/// Recalls the old ones, all of them, whatever comes of each.
fn recall_all(old: &[Handle], recaller: &mut Recaller, mut replaced: Replaced) -> Result<Replaced, Failure> {
    let mut failed = Vec::new();
    let mut first = None;
    for old in old {
        let answer = match replaced.receipt.handle.as_ref().is_some_and(|new| same(old, new)) {
            true => "not-recalled",
            false => match recaller.recall(old) {
                Ok(Answer::InTime) => continue,
                Ok(Answer::TooLate) => "too-late",
                Ok(_) => "uncertain",
                Err(error) => {
                    first.get_or_insert(error);
                    failed.push(old.to_string());
                    continue;
                }
            },
        };
        replaced.left.push(Left { handle: old.to_string(), answer });
    }
    let Some(error) = first else { return Ok(replaced) };
    let new = replaced.receipt.handle.map_or_else(String::new, |handle| format!(" ({handle})"));
    let text = "recalling the old ones failed: recall them once more, or both may be delivered";
    Err(Failure::new(
        Code::Broker,
        format!("the new message is confirmed{new}, but {text}. {error}\n{}", failed.join("\n")),
    ))
}

fn same(one: &Handle, other: &Handle) -> bool {
    one.routing_key() == other.routing_key()
}

/// Whether it is seen that messages with the key of a new one are recalled.
fn was_recalled(new: &Handle, settings: &Settings) -> bool {
    let topology = Topology::new(settings.topology.clone());
    admin::is_recall_bound(settings, &topology, new).unwrap_or_else(|error| {
        aside(format!(
            "whether a message with this id and delay was recalled before is not known: {error}; if it was, the \
             new one is not delivered either"
        ));
        false
    })
}

/// What to do if the key of a new message is recalled.
fn instead(new: &Handle) -> String {
    format!(
        "Use another id or delay; or, if the earlier message may be delivered, too, undo that recall: \
         delayline recall --undo {}",
        new.routing_key().encode()
    )
}
