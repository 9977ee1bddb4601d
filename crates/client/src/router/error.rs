//! Why a message was not confirmed.

use delayline_core::shell::command;
use std::{fmt, time::Duration};

use delayline_amqp::CRASH;
use delayline_core::{
    message::{Handle, InvalidMessage, Message, direct, fixed},
    topology::if_missing,
};

/// A message that was not confirmed, and why.
pub struct PublishError(Box<Inner>);

struct Inner {
    cause: Cause,
    message: Message,
    maybe_delivered: bool,
}

/// Why a message was not confirmed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Cause {
    /// The message cannot be sent, and was not sent.
    #[error(transparent)]
    Invalid(#[from] InvalidMessage),
    /// The broker refused to store it. The queue has no leader at the moment, or, if the message is
    /// due, the application's queue is full and refuses. Trying again later is safe.
    #[error("the broker refused to store the message; try again later")]
    Nacked,
    /// It was routed to no queue, and the set's alternate exchange did not catch it.
    #[error(
        "the message was routed to no queue ({code}: {text}); the set is damaged, run `{}`", command(&["verify"])
    )]
    Returned {
        /// The AMQP reply code.
        code: u16,
        /// The broker's own words.
        text: String,
    },
    /// The broker closed the channel or the connection over this message.
    #[error("the broker rejected the message with {code}: {text}{}", hint(*code))]
    Rejected {
        /// The AMQP reply code: 403 no permission, 404 no such exchange, 406
        /// too large or another user's id, 541 the broker crashed over it; 0 if the connection
        /// just ended.
        code: u16,
        /// The broker's own words.
        text: String,
    },
    /// The deadline passed while the broker was in alarm.
    #[error("the broker accepts no messages at the moment: {reason}")]
    Blocked {
        /// The broker's reason.
        reason: String,
    },
    /// The deadline passed without a connection.
    #[error("there is no connection to the broker: {reason}")]
    NotConnected {
        /// The result of the last attempt, as far as known.
        reason: String,
    },
    /// The deadline passed without an answer.
    #[error("the broker did not confirm within {waited:?}")]
    Unconfirmed {
        /// The publish timeout.
        waited: Duration,
    },
    /// The router was closed before the broker confirmed.
    #[error("the router was closed before the broker confirmed")]
    Closed,
}

fn hint(code: u16) -> String {
    match code {
        404 => format!("; {}", if_missing()),
        CRASH => {
            "; the broker crashes over this message each time: see its log, and simplify the headers and \
                  properties (a stream bound to the exchange takes no decimals, for example)"
                .into()
        }
        _ => String::new(),
    }
}

impl Cause {
    /// Whether the broker may have accepted the message without confirming it.
    pub(super) fn leaves_doubt(&self) -> bool {
        matches!(
            self,
            Self::Blocked { .. } | Self::NotConnected { .. } | Self::Unconfirmed { .. } | Self::Closed
        )
    }
}

impl PublishError {
    /// A message that was not confirmed, and whether it may still arrive.
    #[must_use]
    pub fn new(cause: Cause, message: Message, maybe_delivered: bool) -> Self {
        Self(Box::new(Inner { cause, message, maybe_delivered }))
    }

    /// Why it was not confirmed.
    #[must_use]
    pub fn cause(&self) -> &Cause {
        &self.0.cause
    }

    /// Whether the message may still arrive: it was sent, and no answer arrived. Publishing it
    /// again can then deliver it twice.
    #[must_use]
    pub fn maybe_delivered(&self) -> bool {
        self.0.maybe_delivered
    }

    /// The handle for recalling the message, if it has an id and may be delivered. Publishing it
    /// again does not change the handle.
    #[must_use]
    pub fn handle(&self) -> Option<&Handle> {
        fixed(&self.0.message)
    }

    /// The message.
    #[must_use]
    pub fn message(&self) -> &Message {
        &self.0.message
    }

    /// Returns the message.
    #[must_use]
    pub fn into_message(self) -> Message {
        self.0.message
    }
}

impl fmt::Debug for PublishError {
    /// Omits the message: bodies do not belong in a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PublishError")
            .field("cause", &self.0.cause)
            .field("app", &self.0.message.app)
            .field("maybe_delivered", &self.0.maybe_delivered)
            .finish_non_exhaustive()
    }
}

impl fmt::Display for PublishError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.0.cause, direct::of(&self.0.message)) {
            (Cause::Returned { code, text }, Some(direct)) => write!(
                f,
                "exchange `{}` routes it to no queue ({code}: {text}): no queue is bound for its routing key",
                direct.exchange
            )?,
            (cause, _) => cause.fmt(f)?,
        }
        if self.0.maybe_delivered {
            f.write_str(" (it may still arrive)")?;
        }
        Ok(())
    }
}

impl std::error::Error for PublishError {}

#[cfg(test)]
mod tests {
    use super::*;
    use delayline_core::codec::{AppKey, Delay};

    #[test]
    fn only_messages_that_the_set_did_not_route_are_its_fault() {
        let app = AppKey::new("shop").unwrap();
        let returned = |message| {
            let cause = Cause::Returned { code: 312, text: "NO_ROUTE".into() };
            PublishError::new(cause, message, false).to_string()
        };
        let into_the_set = returned(Message::after(app.clone(), Delay::ZERO, "x"));
        assert!(into_the_set.contains("run `delayline verify`"), "{into_the_set}");
        let elsewhere = returned(direct::keyed(app, "orders".into(), "lonely".into(), "x"));
        assert!(elsewhere.contains("exchange `orders` routes it to no queue (312: NO_ROUTE)"), "{elsewhere}");
        assert!(!elsewhere.contains("verify"), "{elsewhere}");
    }
}
