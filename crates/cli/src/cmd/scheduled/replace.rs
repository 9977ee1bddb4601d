//! Sending a message in the place of others that wait: `send --replace` and `reschedule`.

use std::time::{Duration, Instant};

use serde::Serialize;

use delayline_client::{
    recall::{Answer, Recaller, renewed},
    router::{Cause, Receipt, Router},
};
use delayline_core::{Message, codec::AppKey, message::Handle};
use delayline_settings::Settings;

use delayline_term::{Code, Failure};

/// How long closing the connection may take after the last confirm.
const CLOSE: Duration = Duration::from_secs(5);

/// A message that replaces others.
pub(crate) struct Replaced {
    pub(crate) receipt: Receipt,
    /// How long publishing it took.
    pub(crate) took: Duration,
    /// Old messages that may still be delivered.
    pub(crate) left: Vec<Left>,
}

/// An old message that may still be delivered, and why.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct Left {
    handle: String,
    #[schemars(extend("enum" = ["too-late", "uncertain"]))]
    answer: &'static str,
}

impl Replaced {
    /// The result of recalling the old messages, in a word: the first uncertain result counts.
    pub(crate) fn answer(&self) -> &'static str {
        self.left.first().map_or("recalled", |left| left.answer)
    }
}

impl Left {
    /// The same in a sentence.
    pub(crate) fn text(&self) -> String {
        let why = match self.answer {
            "too-late" => "was due already",
            _ => "is recalled, but perhaps too late",
        };
        format!("the old message, {}, {why}: both may be delivered", self.handle)
    }
}

/// Sends messages in the place of others.
pub(crate) struct Replacer {
    recaller: Recaller,
    router: Router,
}

impl Replacer {
    /// Connects, and finds out whether messages of `app` can be recalled.
    pub(crate) fn connect(settings: &Settings, app: Option<&AppKey>) -> Result<Self, Failure> {
        let recaller = Recaller::connect(settings.target())?;
        if let Some(app) = app {
            recaller.check(app).map_err(|error| {
                Failure::new(
                    Code::Broker,
                    format!("nothing was done: the message to replace cannot be recalled: {error}"),
                )
            })?;
        }
        Ok(Self { recaller, router: settings.router().connect()? })
    }

    /// Sends a message, and recalls these old messages only once it is confirmed. The new message gets a
    /// new id, so that no earlier recall catches it.
    pub(crate) fn replace(&self, old: &[Handle], mut message: Message) -> Result<Replaced, Failure> {
        message.id = message.id.as_ref().map(renewed);
        let id = message.id.clone();
        let started = Instant::now();
        let published = self.router.publish(message);
        let took = started.elapsed();
        let receipt = published.map_err(|error| match (error.cause(), id) {
            (Cause::Invalid(_), _) => Failure::usage(error),
            (_, Some(id)) if error.maybe_delivered() => {
                Failure::new(Code::Broker, format!("{error} (the new message has the id `{id}`)"))
            }
            _ => Failure::new(Code::Broker, error),
        })?;
        recall_all(old, &self.recaller, Replaced { receipt, took, left: Vec::new() })
    }

    /// Ends the connections. Each message has its outcome already.
    pub(crate) fn close(&self) {
        let _ = self.router.close(CLOSE);
    }
}

/// [Replaces](Replacer::replace) messages by one.
pub(crate) fn replace(old: &[Handle], message: Message, settings: &Settings) -> Result<Replaced, Failure> {
    if let Some(other) = old.iter().find(|old| old.app() != &message.app) {
        return Err(Failure::usage(format!(
            "nothing was done: the new message is for `{}`, and the message to replace is for `{}`",
            message.app,
            other.app()
        )));
    }
    let replacer = Replacer::connect(settings, old.first().map(Handle::app))?;
    let replaced = replacer.replace(old, message);
    replacer.close();
    replaced
}

/// Recalls all old messages, whatever the result for each.
fn recall_all(old: &[Handle], recaller: &Recaller, mut replaced: Replaced) -> Result<Replaced, Failure> {
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
    let text = "recalling the old messages failed: recall them again, or both may be delivered";
    Err(Failure::new(
        Code::Broker,
        format!("the new message is confirmed{new}, but {text}. {error}\n{}", failed.join("\n")),
    ))
}
