//! Examining one object over AMQP, without changing anything.

use std::fmt;

use serde::Serialize;

use delayline_amqp::{AmqpError, Session};
use delayline_core::topology::{Exchange, Object, Queue};

/// AMQP's reply code when the object has other arguments.
const PRECONDITION_FAILED: u16 = 406;

/// The state of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ObjectState {
    /// It does not exist.
    Missing,
    /// It exists, as it should be.
    Same,
    /// It exists, with a difference.
    Different(Conflict),
}

/// An object that has other properties or arguments. The broker names the first that differs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Conflict {
    /// The exchange or queue.
    pub object: String,
    /// The property or argument; empty if the broker's message could not be parsed.
    pub argument: String,
    /// The value it should have.
    pub wanted: String,
    /// The value it has.
    pub found: String,
    /// The broker's own words.
    pub text: String,
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { object, argument, wanted, found, text } = self;
        if argument.is_empty() {
            write!(f, "{object} has other arguments: {text}")
        } else {
            write!(f, "{object}: `{argument}` should be {wanted}, but is {found}")
        }
    }
}

/// Examines an exchange: does it exist, and if so, would declaring it change nothing?
pub(super) fn exchange(session: &mut Session, exchange: &Exchange) -> Result<ObjectState, AmqpError> {
    if !session.exchange_exists(&exchange.name)? {
        return Ok(ObjectState::Missing);
    }
    let declared = session.declare_exchange(exchange);
    state(format!("exchange `{}`", exchange.name), declared)
}

/// Examines a queue.
pub(super) fn queue(session: &mut Session, queue: &Queue) -> Result<ObjectState, AmqpError> {
    if session.queue_depth(&queue.name)?.is_none() {
        return Ok(ObjectState::Missing);
    }
    let declared = session.declare_queue(queue);
    state(format!("queue `{}`", queue.name), declared)
}

/// The finding for an object that does not exist.
pub(super) fn missing(object: &Object) -> Option<ObjectState> {
    match object {
        Object::Exchange(_) | Object::Queue(_) => Some(ObjectState::Missing),
        Object::Binding(_) => None,
    }
}

/// Examines an object; bindings cannot be examined over AMQP.
pub(super) fn object(session: &mut Session, object: &Object) -> Result<Option<ObjectState>, AmqpError> {
    match object {
        Object::Exchange(wanted) => exchange(session, wanted).map(Some),
        Object::Queue(wanted) => queue(session, wanted).map(Some),
        Object::Binding(_) => Ok(None),
    }
}

fn state(object: String, declared: Result<(), AmqpError>) -> Result<ObjectState, AmqpError> {
    match declared {
        Ok(()) => Ok(ObjectState::Same),
        Err(AmqpError::Channel { code: PRECONDITION_FAILED, text }) => {
            Ok(ObjectState::Different(Conflict::new(object, text)))
        }
        Err(error) => Err(error),
    }
}

impl Conflict {
    /// Parses the broker's message: `inequivalent arg 'A' for … : received 'W' but current is
    /// 'F'`, where both values may be `none`, `the value 'V' of type 'T'`, or, for a type of
    /// exchange that a plugin brings, `''V''`.
    fn new(object: String, text: String) -> Self {
        let parts = (|| {
            let (_, rest) = text.split_once("inequivalent arg '")?;
            let (argument, rest) = rest.split_once('\'')?;
            let (_, rest) = rest.split_once("received ")?;
            let (wanted, found) = rest.split_once(" but current is ")?;
            Some((argument.to_owned(), value(wanted), value(found)))
        })();
        let (argument, wanted, found) = parts.unwrap_or_default();
        Self { object, argument, wanted, found, text }
    }
}

fn value(words: &str) -> String {
    if words.trim() == "none" {
        return "not set".into();
    }
    // Types of exchanges come in two pairs of quotes.
    let words =
        words.strip_prefix('\'').filter(|rest| rest.len() > 1 && rest.starts_with('\'')).unwrap_or(words);
    words.split('\'').nth(1).unwrap_or(words).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(text: &str) -> (String, String, String) {
        let conflict = Conflict::new("queue `q`".into(), text.into());
        (conflict.argument, conflict.wanted, conflict.found)
    }

    #[test]
    fn takes_the_brokers_words_apart() {
        let expected = |a: &str, w: &str, f: &str| (a.to_owned(), w.to_owned(), f.to_owned());
        assert_eq!(
            parts(
                "PRECONDITION_FAILED - inequivalent arg 'x-message-ttl' for queue 'x' in vhost '/': received '2000' but current is '1000'"
            ),
            expected("x-message-ttl", "2000", "1000")
        );
        assert_eq!(
            parts(
                "PRECONDITION_FAILED - inequivalent arg 'x-message-ttl' for queue 'x' in vhost '/': received none but current is the value '1000' of type 'long'"
            ),
            expected("x-message-ttl", "not set", "1000")
        );
        assert_eq!(
            parts(
                "PRECONDITION_FAILED - inequivalent arg 'alternate-exchange' for exchange 'e' in vhost '/': received the value 'u' of type 'longstr' but current is none"
            ),
            expected("alternate-exchange", "u", "not set")
        );
    }

    #[test]
    fn types_of_exchanges_come_in_two_pairs_of_quotes() {
        let text = "PRECONDITION_FAILED - inequivalent arg 'type' for exchange 'e' in vhost '/': received 'topic' but current is ''x-delayed-message''";
        assert_eq!(parts(text).2, "x-delayed-message");
        assert_eq!(value("''"), "");
    }

    #[test]
    fn shows_words_it_does_not_know_as_they_are() {
        let conflict = Conflict::new("queue `q`".into(), "PRECONDITION_FAILED - something new".into());
        assert_eq!(
            conflict.to_string(),
            "queue `q` has other arguments: PRECONDITION_FAILED - something new"
        );
    }
}
