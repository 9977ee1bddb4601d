//! Messages that go directly to an exchange instead of through the levels. Services need them. The
//! library for applications does not offer them.

use crate::codec::{AppKey, Delay};

use super::{Message, When};

/// An exchange and a routing key, for a message that is not delayed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Direct {
    /// The exchange.
    pub exchange: String,
    /// The routing key.
    pub routing_key: String,
    /// Whether properties and headers are sent unchanged, including those that would move the
    /// message: it leaves delayline here.
    pub verbatim: bool,
}

/// A message that goes to an exchange, with its app key as the routing key.
pub fn to(app: AppKey, exchange: String, body: impl Into<Vec<u8>>) -> Message {
    let routing_key = app.to_string();
    keyed(app, exchange, routing_key, body)
}

/// A message that goes to an exchange, with a routing key that does not change while the message
/// waits in the router.
pub fn keyed(app: AppKey, exchange: String, routing_key: String, body: impl Into<Vec<u8>>) -> Message {
    let direct = Some(Direct { exchange, routing_key, verbatim: false });
    Message { direct, ..Message::after(app, Delay::ZERO, body) }
}

/// Like [`keyed`], with all properties and headers sent unchanged.
pub fn verbatim(app: AppKey, exchange: String, routing_key: String, body: impl Into<Vec<u8>>) -> Message {
    let direct = Some(Direct { exchange, routing_key, verbatim: true });
    Message { direct, ..Message::after(app, Delay::ZERO, body) }
}

/// The target of a message that bypasses the levels.
#[must_use]
pub fn of(message: &Message) -> Option<&Direct> {
    message.direct.as_ref()
}

/// Whether the next queue that a message enters is an application's own. Such a queue can be full
/// for an unlimited time.
#[must_use]
pub fn goes_straight_to_an_application(message: &Message) -> bool {
    match &message.direct {
        Some(direct) => direct.verbatim,
        None => message.when == When::After(Delay::ZERO),
    }
}
