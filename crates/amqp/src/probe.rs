//! Asking the broker what we may do, without doing it.
//!
//! The broker checks permissions before it looks at the rest of a request. So
//! each question is a request that is wrong in a way that comes after that check:
//! refused with 403, we may not; refused over what is wrong, we may.

use amiquip::{AmqpProperties, AmqpValue, ConsumerOptions, FieldTable, Publish, QueueDeclareOptions};

use delayline_core::topology::{Argument, Binding, Endpoint, Queue};

use super::{AmqpError, Session};

const ACCESS_REFUSED: u16 = 403;
const NOT_FOUND: u16 = 404;
const PRECONDITION_FAILED: u16 = 406;

/// No user has this name; the broker takes the property `user_id` only from the
/// user it names. It looks at it after it has looked at the routing key, which is
/// not so of an invalid `expiration` from 4.0 on.
const NOBODY: &str = "delayline-probe-nobody";

/// The arguments that say how long a queue holds a message, and how many nodes hold a quorum
/// queue; and the last argument that the broker compares.
const TTL: &str = "x-message-ttl";
const REPLICAS: &str = "x-quorum-initial-group-size";
const LAST: &str = "x-queue-leader-locator";

/// The broker's answer to a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProbeAnswer {
    /// Allowed.
    Allowed,
    /// Not allowed; the broker's words.
    Refused(String),
    /// The queue or exchange does not exist. (Only users with the permission are told so.)
    Missing,
    /// The broker did what was meant to fail: a publish by a user with the tag
    /// `impersonator`, from which it accepts any `user_id`.
    Done,
}

impl Session {
    /// Whether we may publish to an exchange with a routing key.
    ///
    /// # Errors
    /// If the connection is lost, or the broker refuses for a reason that says
    /// nothing about permissions.
    pub fn probe_publish(&mut self, exchange: &str, key: &str) -> Result<ProbeAnswer, AmqpError> {
        let properties = AmqpProperties::default().with_user_id(NOBODY.into());
        verdict(self.call(|channel| {
            channel.basic_publish(exchange, Publish::with_properties(b"", key, properties))?;
            // A publish has no answer of its own; this call has one, and comes after it.
            channel.enable_publisher_confirms()
        }))
    }

    /// Whether we may read a queue: consume, get and purge.
    ///
    /// # Errors
    /// As [`probe_publish`](Self::probe_publish).
    pub fn probe_read(&mut self, queue: &str) -> Result<ProbeAnswer, AmqpError> {
        let mut arguments = FieldTable::new();
        arguments.insert("x-priority".into(), AmqpValue::LongString("not a number".into()));
        let options = ConsumerOptions { arguments, ..ConsumerOptions::default() };
        verdict(self.call(|channel| channel.basic_consume(queue, options).map(drop)))
    }

    /// Whether we may bind and unbind: by removing a binding with an argument that no
    /// binding has.
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
        // Success is the right answer here: there was nothing to remove.
        Ok(if answer == ProbeAnswer::Done { ProbeAnswer::Allowed } else { answer })
    }

    /// Whether we may declare and delete a queue or an exchange of this name (the
    /// permission does not tell them apart), by declaring a queue with a TTL that
    /// cannot be.
    ///
    /// # Errors
    /// As [`probe_publish`](Self::probe_publish).
    pub fn probe_configure(&mut self, name: &str) -> Result<ProbeAnswer, AmqpError> {
        let mut arguments = FieldTable::new();
        arguments.insert("x-message-ttl".into(), AmqpValue::LongLongInt(-1));
        let options = QueueDeclareOptions { durable: true, arguments, ..QueueDeclareOptions::default() };
        verdict(self.call(|channel| channel.queue_declare(name, options).map(drop)))
    }

    /// Compares how long a queue holds messages with how long it should, by declaring it with an
    /// argument that cannot be, so that nothing is changed or made. `Ok` also if there is no such
    /// queue.
    ///
    /// # Errors
    /// [`AmqpError::Unit`] if it holds them for another time; 403 without the permission to
    /// configure it.
    pub fn probe_unit(&mut self, queue: &Queue) -> Result<(), AmqpError> {
        let mut queue = queue.clone();
        queue.arguments.insert(LAST.into(), NOBODY.into());
        let mut answer = self.declare_queue(&queue);
        // Of several differences the broker names one, and this one before the time.
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

/// The number that an argument has, in the broker's words about one that differs.
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
