//! Examining one object over AMQP, without changing anything.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use serde::Serialize;

use delayline_amqp::{AmqpError, Session};
use delayline_broker::Snapshot;
use delayline_core::{
    codec::Shortcut,
    topology::{Exchange, Object, Queue, Topology},
};
use delayline_settings::Settings;

use crate::error::connect;

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
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
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
            write!(f, "{object}: `{argument}` should be {wanted}, but is {found}")?;
            if self.is_of_replicas() { write!(f, "; {text}") } else { Ok(()) }
        }
    }
}

/// How many consumers queues have, for brokers whose API does not report it. Queues that we may not ask
/// about are left out.
pub fn consumers(settings: &Settings, queues: impl Iterator<Item = String>) -> BTreeMap<String, u64> {
    let mut queues = queues.peekable();
    let session = queues.peek().and_then(|_| connect(&settings.broker).ok());
    let Some(mut session) = session else { return BTreeMap::new() };
    let known = queues.filter_map(|queue| {
        let depth = session.queue_depth(&queue).ok().flatten()?;
        Some((queue, depth.consumers?.into()))
    });
    known.collect()
}

/// Examines an exchange: does it exist, and if so, would declaring it change nothing?
pub fn exchange(session: &mut Session, exchange: &Exchange) -> Result<ObjectState, AmqpError> {
    if !session.exchange_exists(&exchange.name)? {
        return Ok(ObjectState::Missing);
    }
    let declared = session.declare_exchange(exchange);
    state(format!("exchange `{}`", exchange.name), declared)
}

/// Examines a queue.
pub fn queue(session: &mut Session, queue: &Queue) -> Result<ObjectState, AmqpError> {
    if session.queue_depth(&queue.name)?.is_none() {
        return Ok(ObjectState::Missing);
    }
    let declared = session.declare_queue(queue);
    state(format!("queue `{}`", queue.name), declared)
}

/// Examines an object; bindings cannot be examined over AMQP.
pub fn object(session: &mut Session, object: &Object) -> Result<Option<ObjectState>, AmqpError> {
    match object {
        Object::Exchange(wanted) => exchange(session, wanted).map(Some),
        Object::Queue(wanted) => queue(session, wanted).map(Some),
        Object::Binding(_) => Ok(None),
    }
}

/// A set as it is installed. Without a snapshot, AMQP shows which queues of shortcuts exist, and not whether
/// messages take them.
pub fn as_installed(
    topology: &Topology,
    session: &mut Session,
    snapshot: Option<&Snapshot>,
) -> Result<Topology, AmqpError> {
    if let Some(snapshot) = snapshot {
        return Ok(snapshot.as_installed(topology));
    }
    let mut found = BTreeSet::new();
    for shortcut in Shortcut::all() {
        let queue = topology.names().shortcut(shortcut);
        match session.queue_depth(&queue)? {
            Some(_) => found.insert(queue),
            // The first is declared first and deleted last.
            None if found.is_empty() => break,
            None => false,
        };
    }
    let schedules = topology.names().schedules();
    if session.queue_depth(&schedules)?.is_some() {
        found.insert(schedules);
    }
    Ok(topology.as_installed(false, |queue| found.contains(queue)))
}

/// An exchange, queue or binding, in words.
pub fn describe(object: &Object) -> String {
    match object {
        Object::Exchange(exchange) => format!("exchange `{}`", exchange.name),
        Object::Queue(queue) => format!("queue `{}`", queue.name),
        Object::Binding(binding) => binding.to_string(),
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
    /// Another number of replicas.
    pub fn of_replicas(object: String, wanted: usize, found: usize) -> Self {
        let text = "leave out the number of replicas, or add some with `rabbitmq-queues grow`".into();
        let (wanted, found) = (wanted.to_string(), found.to_string());
        Self { object, argument: "replicas".into(), wanted, found, text }
    }

    /// Whether only the number of replicas differs.
    #[must_use]
    pub fn is_of_replicas(&self) -> bool {
        self.argument == "replicas"
    }

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
    fn parses_the_brokers_message() {
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
    fn exchange_types_in_two_pairs_of_quotes_are_read() {
        let text = "PRECONDITION_FAILED - inequivalent arg 'type' for exchange 'e' in vhost '/': received 'topic' but current is ''x-delayed-message''";
        assert_eq!(parts(text).2, "x-delayed-message");
        assert_eq!(value("''"), "");
    }

    #[test]
    fn shows_an_unknown_message_unchanged() {
        let conflict = Conflict::new("queue `q`".into(), "PRECONDITION_FAILED - something new".into());
        assert_eq!(
            conflict.to_string(),
            "queue `q` has other arguments: PRECONDITION_FAILED - something new"
        );
    }
}
