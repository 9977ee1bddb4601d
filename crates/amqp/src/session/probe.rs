//! Asks the broker which permissions the user has, without side effects.
//!
//! The broker checks permissions before the rest of a request. So each probe is a request with a
//! fault that the broker finds only after that check. If the broker refuses it with 403, the
//! permission is missing. If it refuses it over the fault, the permission exists.

use amiquip::{AmqpProperties, AmqpValue, ConsumerOptions, FieldTable, Publish, QueueDeclareOptions};

use delayline_core::topology::{Argument, Binding, Endpoint, Queue};

use crate::error::AmqpError;

use super::Session;

const ACCESS_REFUSED: u16 = 403;
const NOT_FOUND: u16 = 404;
const PRECONDITION_FAILED: u16 = 406;

/// No user has this name. The broker accepts the property `user_id` only from the user it names. It
/// checks it after the routing key. From 4.0 on, it checks an invalid `expiration` before the key.
const NOBODY: &str = "delayline-probe-nobody";

/// The arguments for how long a queue holds a message and how many nodes hold a quorum queue, and
/// the argument that the broker compares last.
const TTL: &str = "x-message-ttl";
const REPLICAS: &str = "x-quorum-initial-group-size";
const LAST: &str = "x-queue-leader-locator";

/// The broker's answer to a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProbeAnswer {
    /// Allowed.
    Allowed,
    /// Not allowed, with the broker's words.
    Refused(String),
    /// The queue or exchange does not exist. (The broker reports this only to users with the
    /// permission.)
    Missing,
    /// The broker accepted the faulty request: a publish by a user with the tag `impersonator`, who
    /// may use any `user_id`.
    Done,
}

impl Session {
    /// Whether the user may publish to an exchange with a routing key.
    ///
    /// # Errors
    /// The connection is lost, or the broker refuses for a reason unrelated to permissions.
    pub fn probe_publish(&mut self, exchange: &str, key: &str) -> Result<ProbeAnswer, AmqpError> {
        let properties = AmqpProperties::default().with_user_id(NOBODY.into());
        verdict(self.call(|channel| {
            channel.basic_publish(exchange, Publish::with_properties(b"", key, properties))?;
            // A publish has no answer of its own. This call has one, and follows it.
            channel.enable_publisher_confirms()
        }))
    }

    /// Whether the user may read a queue: consume, get and purge.
    ///
    /// # Errors
    /// As [`probe_publish`](Self::probe_publish).
    pub fn probe_read(&mut self, queue: &str) -> Result<ProbeAnswer, AmqpError> {
        let mut arguments = FieldTable::new();
        arguments.insert("x-priority".into(), AmqpValue::LongString("not a number".into()));
        let options = ConsumerOptions { arguments, ..ConsumerOptions::default() };
        verdict(self.call(|channel| channel.basic_consume(queue, options).map(drop)))
    }

    /// Whether the user may bind and unbind. It removes a binding with an argument that no binding
    /// has.
    ///
    /// # Errors
    /// As [`probe_publish`](Self::probe_publish).
    pub fn probe_bind(&mut self, binding: &Binding) -> Result<ProbeAnswer, AmqpError> {
        let mut none_has = FieldTable::new();
        none_has.insert(NOBODY.into(), AmqpValue::Boolean(true));
        let (source, key) = (binding.source.as_str(), binding.key.as_str());
        let answer = verdict(self.call(|channel| match &binding.destination {
            Endpoint::Queue(name) => channel.queue_unbind(name.as_str(), source, key, none_has),
            Endpoint::Exchange(name) => channel.exchange_unbind(name.as_str(), source, key, none_has),
        }))?;
        // Success is expected here: there was no binding to remove.
        Ok(if answer == ProbeAnswer::Done { ProbeAnswer::Allowed } else { answer })
    }

    /// Whether the user may declare and delete a queue or an exchange of this name; one permission
    /// covers both. It declares a queue with an impossible TTL.
    ///
    /// # Errors
    /// As [`probe_publish`](Self::probe_publish).
    pub fn probe_configure(&mut self, name: &str) -> Result<ProbeAnswer, AmqpError> {
        let mut arguments = FieldTable::new();
        arguments.insert("x-message-ttl".into(), AmqpValue::LongLongInt(-1));
        let options = QueueDeclareOptions { durable: true, arguments, ..QueueDeclareOptions::default() };
        verdict(self.call(|channel| channel.queue_declare(name, options).map(drop)))
    }

    /// Compares how long a queue holds messages with the expected time. It declares the queue with
    /// an impossible argument, so that nothing is changed or created. Also `Ok` if the queue does
    /// not exist.
    ///
    /// # Errors
    /// [`AmqpError::Unit`] if the times differ; 403 without the permission to configure the queue.
    pub fn probe_unit(&mut self, queue: &Queue) -> Result<(), AmqpError> {
        let mut queue = queue.clone();
        queue.arguments.insert(LAST.into(), NOBODY.into());
        let mut answer = self.declare_queue(&queue);
        // If several arguments differ, the broker names only the first, and checks this one before
        // the time.
        if let Err(AmqpError::Channel { code: PRECONDITION_FAILED, text }) = &answer
            && text.contains(REPLICAS)
            && let Some(current) = current(text)
        {
            queue.arguments.insert(REPLICAS.into(), Argument::Number(current));
            answer = self.declare_queue(&queue);
        }
        match answer {
            Err(AmqpError::Channel { code: PRECONDITION_FAILED, text }) if text.contains(TTL) => {
                Err(AmqpError::Unit { text })
            }
            Ok(()) | Err(AmqpError::Channel { code: PRECONDITION_FAILED, .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// The current value of an argument, from the broker's words about a difference.
fn current(text: &str) -> Option<i64> {
    let (_, rest) = text.split_once("current is the value '")?;
    rest.split('\'').next()?.parse().ok()
}

fn verdict(answer: Result<(), AmqpError>) -> Result<ProbeAnswer, AmqpError> {
    match answer {
        Ok(()) => Ok(ProbeAnswer::Done),
        Err(AmqpError::Channel { code: ACCESS_REFUSED, text }) => Ok(ProbeAnswer::Refused(text)),
        Err(AmqpError::Channel { code: NOT_FOUND, .. }) => Ok(ProbeAnswer::Missing),
        Err(AmqpError::Channel { code: PRECONDITION_FAILED, .. }) => Ok(ProbeAnswer::Allowed),
        Err(error) => Err(error),
    }
}
