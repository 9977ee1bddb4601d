//! Sending a message in the place of others that wait: `send --replace` and `reschedule`.

use std::time::{Duration, Instant};

use serde::Serialize;

use delayline_client::{
    recall::{Answer, Recaller, renewed},
    router::{Cause, Receipt},
};
use delayline_core::{Message, message::Handle};
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
            "too-late" => "was due already",
            _ => "is recalled, but nobody can say whether in time",
        };
        format!("the old one, {}, {why}: both may be delivered", self.handle)
    }
}

/// Sends a message, and recalls these once it is confirmed. Whatever goes wrong, an old one is
/// recalled only after that. The id of the new one is renewed, so that no earlier recall catches
/// it.
pub(super) fn replace(
    old: &[Handle],
    mut message: Message,
    settings: &Settings,
) -> Result<Replaced, Failure> {
    if let Some(other) = old.iter().find(|old| old.app() != &message.app) {
        return Err(Failure::usage(format!(
            "the new message is for `{}`, and what it is to replace is for `{}`; nothing was done",
            message.app,
            other.app()
        )));
    }
    message.id = message.id.as_ref().map(renewed);
    let id = message.id.clone();
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
    let receipt = published.map_err(|error| match (error.cause(), id) {
        (Cause::Invalid(_), _) => Failure::usage(error),
        (_, Some(id)) if error.maybe_delivered() => {
            Failure::new(Code::Broker, format!("{error} (the new message has the id `{id}`)"))
        }
        _ => Failure::new(Code::Broker, error),
    })?;
    recall_all(old, &mut recaller, Replaced { receipt, took, left: Vec::new() })
}

/// Recalls the old ones, all of them, whatever comes of each.
fn recall_all(old: &[Handle], recaller: &mut Recaller, mut replaced: Replaced) -> Result<Replaced, Failure> {
    let mut failed = Vec::new();
    let mut first = None;
    for old in old {
        let answer = match recaller.recall(old) {
            Ok(Answer::InTime) => continue,
            Ok(Answer::TooLate) => "too-late",
            Ok(_) => "uncertain",
            Err(error) => {
                first.get_or_insert(error);
                failed.push(old.to_string());
                continue;
            }
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
