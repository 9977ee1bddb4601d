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

use crate::{Code, Failure};

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
            "too-late" => "was due meanwhile",
            "not-recalled" => "has the same handle as the new one, and is not recalled",
            _ => "is recalled, but nobody can say whether in time",
        };
        format!("the old one, {}, {why}: both may be delivered", self.handle)
    }
}

/// Sends a message, and recalls these once it is confirmed. Nothing is lost: whatever goes
/// wrong, an old one is recalled only once the new one will be delivered.
pub(super) fn replace(old: &[Handle], message: Message, settings: &Settings) -> Result<Replaced, Failure> {
    let topology = Topology::new(settings.topology.clone());
    let was_recalled = |handle: &Handle| admin::is_recall_bound(settings, &topology, handle);
    if let When::After(delay) = message.when
        && let Some(new) = message.handle(message.tolerance.round(delay), Timestamp::now())
    {
        if old.iter().any(|old| same(old, &new)) {
            return Err(Failure::usage(format!(
                "the new message has the id `{}` and the delay of one that waits, so recalling one would \
                 recall both; nothing was done. Use another delay, or give it an id of its own and name the \
                 handle of the old one",
                new.id()
            )));
        }
        if was_recalled(&new)? == Some(true) {
            return Err(Failure::usage(format!("{}; nothing was changed", set_aside(&new))));
        }
    }
    let mut recaller = Recaller::connect(settings.broker.clone(), settings.topology.set.clone())?;
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
    // With a time instead of a delay, the key is known only now.
    if let Some(new) = &receipt.handle
        && was_recalled(new)? == Some(true)
    {
        let reason = set_aside(new);
        let stay = "what it was to replace stays as it is";
        return Err(Failure::new(
            Code::Problem,
            format!("the new message is confirmed, but {reason}; {stay}"),
        ));
    }
    let (mut left, mut failed) = (Vec::new(), None);
    for old in old {
        let answer = match receipt.handle.as_ref().is_some_and(|new| same(old, new)) {
            true => "not-recalled",
            false => match recaller.recall(old) {
                Ok(Answer::InTime) => continue,
                Ok(Answer::TooLate) => "too-late",
                Ok(_) => "uncertain",
                Err(error) => {
                    failed.get_or_insert(error);
                    "not-recalled"
                }
            },
        };
        left.push(Left { handle: old.routing_key().encode(), answer });
    }
    match failed {
        None => Ok(Replaced { receipt, took, left }),
        Some(error) => {
            let new = receipt.handle.map_or_else(String::new, |handle| format!(" (its handle is {handle})"));
            let old: Vec<_> = left.into_iter().map(|left| left.handle).collect();
            let text = "recalling the old ones failed: recall them once more, or both may be delivered";
            Err(Failure::new(
                Code::Broker,
                format!("the new message is confirmed{new}, but {text}. {error}\n{}", old.join("\n")),
            ))
        }
    }
}

fn same(one: &Handle, other: &Handle) -> bool {
    one.routing_key() == other.routing_key()
}

/// That a new message would not be delivered, and what to do.
fn set_aside(new: &Handle) -> String {
    format!(
        "a message with this id and delay was recalled before, so the new one would not be delivered either; \
         use another id or delay, or undo that recall: delayline recall --undo {}",
        new.routing_key().encode()
    )
}
