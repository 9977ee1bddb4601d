//! Exchanges, queues and bindings.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use amiquip::{ExchangeDeclareOptions, ExchangeType, QueueDeclareOptions, QueueDeleteOptions};

use crate::{convert::argument_table, error::AmqpError};
use delayline_core::topology::{Argument, Binding, Endpoint, Exchange, ExchangeKind, Queue};

use super::Session;

/// AMQP's reply code for an object that does not exist.
const NOT_FOUND: u16 = 404;

/// How often a queue that does not start is declared. A node allows five seconds for a start, which
/// a busy node sometimes exceeds.
const STARTS: u32 = 3;

/// How long a broker waits for a quorum queue to report its counts. If there is no answer by then, the
/// broker reports an empty queue.
const COUNTED: Duration = Duration::from_millis(250);

/// How long a queue may take to give a message, or to have none. The broker itself waits longer.
const GIVEN: Duration = Duration::from_secs(10);

/// How often a queue that may have been too slow is counted.
const COUNTS: u32 = 4;

/// The counts from a passive declare of a queue. Messages that are stuck in dead-lettering or
/// delivered to a consumer are not included in `ready`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueDepth {
    /// Messages that are ready; `None` if the queue was too slow to count them.
    pub ready: Option<u32>,
    /// Consumers of the queue; `None` if the queue was too slow to count them.
    pub consumers: Option<u32>,
}

impl QueueDepth {
    /// This many ready messages and consumers.
    #[must_use]
    pub const fn new(ready: u32, consumers: u32) -> Self {
        Self { ready: Some(ready), consumers: Some(consumers) }
    }

    /// Nothing is known, except that the queue exists.
    const UNKNOWN: Self = Self { ready: None, consumers: None };
}

impl Session {
    /// Whether an exchange of this name exists.
    ///
    /// # Errors
    /// Any except 404. A broker may ask for permissions (403).
    pub fn exchange_exists(&mut self, name: &str) -> Result<bool, AmqpError> {
        match self.call(|channel| channel.exchange_declare_passive(name).map(drop)) {
            Ok(()) => Ok(true),
            Err(error) if error.code() == Some(NOT_FOUND) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The counts of a queue; `None` if it does not exist.
    ///
    /// A quorum queue on a busy node can be too slow to report its counts, and the broker reports an
    /// empty queue instead. Such a queue is counted again, up to four times in total; then its counts are
    /// unknown. The broker also reports an empty queue, and at once, if the queue's process does not run:
    /// [`is_empty`](Self::is_empty) is certain.
    ///
    /// # Errors
    /// Any except 404. A broker may ask for permissions (403).
    pub fn queue_depth(&mut self, name: &str) -> Result<Option<QueueDepth>, AmqpError> {
        for _ in 0..COUNTS {
            let asked = Instant::now();
            let depth = self.depth(name)?;
            if depth != Some(QueueDepth::new(0, 0)) || asked.elapsed() < COUNTED {
                return Ok(depth);
            }
        }
        Ok(Some(QueueDepth::UNKNOWN))
    }

    /// Whether no message is ready in a queue: the queue itself answers, in turn with everything else that
    /// happens to it. A message that it gives is put back, which counts as a delivery. After a failure the
    /// session has a new connection if it lost the old one; consumers end with that.
    ///
    /// # Errors
    /// It is unknown: 404 without such a queue, 403 without the permission to read it, 405 if it allows only one
    /// consumer, any other if it does not answer, or if the client library cannot be given the message. Not
    /// for streams: brokers end the connection over the question.
    pub fn is_empty(&mut self, name: &str) -> Result<bool, AmqpError> {
        let arrivals = self.arrivals.clone();
        let limit = self.limit;
        self.limit = limit.min(GIVEN);
        let answer = self.call(|channel| {
            let Some(got) = channel.basic_get(name, false)? else { return Ok(true) };
            arrivals.take_damage(channel.channel_id(), got.delivery.delivery_tag());
            arrivals.settle(got.delivery.body.len());
            got.nack(channel, true).map(|()| false)
        });
        self.limit = limit;
        if answer.is_err() && self.connection.is_none() {
            *self = Self::open_for(&self.broker.clone(), self.purpose)?;
        }
        answer
    }

    fn depth(&mut self, name: &str) -> Result<Option<QueueDepth>, AmqpError> {
        let declared = self.call(|channel| {
            let queue = channel.queue_declare_passive(name)?;
            Ok(QueueDepth {
                ready: queue.declared_message_count(),
                consumers: queue.declared_consumer_count(),
            })
        });
        match declared {
            Ok(depth) => Ok(Some(depth)),
            Err(error) if error.code() == Some(NOT_FOUND) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Declares a durable exchange. Changes nothing if it exists with the same arguments.
    ///
    /// # Errors
    /// 406 if it exists with other arguments, 403 without the permission.
    pub fn declare_exchange(&mut self, exchange: &Exchange) -> Result<(), AmqpError> {
        let kind = match exchange.kind {
            ExchangeKind::Topic => ExchangeType::Topic,
            ExchangeKind::Direct => ExchangeType::Direct,
            ExchangeKind::Fanout => ExchangeType::Fanout,
            ExchangeKind::Headers => ExchangeType::Headers,
        };
        let options = ExchangeDeclareOptions {
            durable: true,
            arguments: argument_table(&exchange.arguments),
            ..ExchangeDeclareOptions::default()
        };
        self.call(|channel| channel.exchange_declare(kind, exchange.name.as_str(), options).map(drop))
    }

    /// Declares a durable queue. Changes nothing if it exists with the same arguments. If a quorum
    /// queue does not start, the broker closes the connection, and the queue is declared again on a
    /// new one, up to three times in total. Consumers and exclusive queues end with the old
    /// connection.
    ///
    /// # Errors
    /// 406 if it exists with other arguments, 403 without the permission; see
    /// [`AmqpError::has_not_started`].
    pub fn declare_queue(&mut self, queue: &Queue) -> Result<(), AmqpError> {
        let mut declared = self.declare_once(queue);
        for _ in 1..STARTS {
            if !declared.as_ref().is_err_and(AmqpError::has_not_started) {
                break;
            }
            *self = Self::open_for(&self.broker.clone(), self.purpose)?;
            declared = self.declare_once(queue);
        }
        declared
    }

    fn declare_once(&mut self, queue: &Queue) -> Result<(), AmqpError> {
        let options = QueueDeclareOptions {
            durable: true,
            arguments: argument_table(&queue.arguments),
            ..QueueDeclareOptions::default()
        };
        self.call(|channel| channel.queue_declare(queue.name.as_str(), options).map(drop))
    }

    /// Declares a queue that only this connection can use and that is deleted with it. Returns the
    /// name that the broker chose.
    ///
    /// # Errors
    /// 403 without the permission.
    pub fn declare_own_queue(&mut self) -> Result<String, AmqpError> {
        self.declare_own_queue_as("")
    }

    /// The same with a given name. Only one connection at a time can use it.
    ///
    /// # Errors
    /// 405 if another connection has it, 403 without the permission.
    pub fn declare_own_queue_as(&mut self, name: &str) -> Result<String, AmqpError> {
        let options =
            QueueDeclareOptions { exclusive: true, auto_delete: true, ..QueueDeclareOptions::default() };
        self.call(|channel| channel.queue_declare(name, options).map(|queue| queue.name().to_owned()))
    }

    /// Binds. Changes nothing if the binding exists.
    ///
    /// # Errors
    /// 404 if an end is missing, 403 without the permission.
    pub fn bind(&mut self, binding: &Binding) -> Result<(), AmqpError> {
        self.bind_with(binding, &BTreeMap::new())
    }

    /// Binds with arguments. Bindings with different arguments are different bindings.
    ///
    /// # Errors
    /// As for [`bind`](Self::bind).
    pub fn bind_with(
        &mut self,
        binding: &Binding,
        arguments: &BTreeMap<String, Argument>,
    ) -> Result<(), AmqpError> {
        self.change_binding(binding, arguments, true)
    }

    /// Removes a binding without arguments. No error if it does not exist.
    ///
    /// # Errors
    /// 403 without the permission.
    pub fn unbind(&mut self, binding: &Binding) -> Result<(), AmqpError> {
        self.unbind_with(binding, &BTreeMap::new())
    }

    /// Removes a binding with exactly these arguments. No error if it does not exist.
    ///
    /// # Errors
    /// As for [`unbind`](Self::unbind).
    pub fn unbind_with(
        &mut self,
        binding: &Binding,
        arguments: &BTreeMap<String, Argument>,
    ) -> Result<(), AmqpError> {
        self.change_binding(binding, arguments, false)
    }

    fn change_binding(
        &mut self,
        Binding { source, destination, key }: &Binding,
        arguments: &BTreeMap<String, Argument>,
        bind: bool,
    ) -> Result<(), AmqpError> {
        let (source, key, arguments) = (source.as_str(), key.as_str(), argument_table(arguments));
        self.call(|channel| match (destination, bind) {
            (Endpoint::Queue(name), true) => channel.queue_bind(name.as_str(), source, key, arguments),
            (Endpoint::Queue(name), false) => channel.queue_unbind(name.as_str(), source, key, arguments),
            (Endpoint::Exchange(name), true) => channel.exchange_bind(name.as_str(), source, key, arguments),
            (Endpoint::Exchange(name), false) => {
                channel.exchange_unbind(name.as_str(), source, key, arguments)
            }
        })
    }

    /// Removes the ready messages of a queue. Returns their number.
    ///
    /// # Errors
    /// 404 without such a queue, 403 without read permission.
    pub fn purge_queue(&mut self, name: &str) -> Result<u32, AmqpError> {
        self.call(|channel| channel.queue_purge(name))
    }

    /// Deletes a queue with its messages. No error if it does not exist. Returns the number of
    /// ready messages that were deleted.
    ///
    /// # Errors
    /// 403 without the permission.
    pub fn delete_queue(&mut self, name: &str) -> Result<u32, AmqpError> {
        self.call(|channel| channel.queue_delete(name, QueueDeleteOptions::default()))
    }

    /// Deletes an exchange with its bindings. No error if it does not exist.
    ///
    /// # Errors
    /// 403 without the permission.
    pub fn delete_exchange(&mut self, name: &str) -> Result<(), AmqpError> {
        self.call(|channel| channel.exchange_delete(name, false))
    }
}
