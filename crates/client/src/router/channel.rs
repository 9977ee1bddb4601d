//! The interface between the router and the AMQP side. It allows tests against answers that a
//! broker rarely gives.

use std::time::Duration;

use crossbeam_channel::Receiver;

use delayline_amqp::{AmqpError, Event, Publisher, Woken, broker::Broker};
use delayline_core::message::Wire;

/// A channel in confirm mode.
pub(super) trait ConfirmChannel: Send + 'static {
    /// Writes a message. An error shows as [`Event::Ended`].
    fn publish(&mut self, exchange: &str, message: Wire, body: &[u8]);
    /// Waits for an answer of the broker, or for a request of a publisher.
    fn wait<T>(&mut self, requests: &Receiver<T>, limit: Duration) -> Woken<T>;
    /// An answer of the broker, if one has arrived.
    fn next_event(&mut self) -> Option<Event>;
    /// Why it ended.
    fn end(&mut self, limit: Duration) -> AmqpError;
    /// A new channel on the same connection.
    fn reopen(&mut self) -> Result<(), AmqpError>;
    /// Closes it.
    fn close(self, limit: Duration);
}

/// The source of such channels.
pub(super) trait Connector: Send + Sync + 'static {
    type Channel: ConfirmChannel;
    fn connect(&self) -> Result<Self::Channel, AmqpError>;
}

impl ConfirmChannel for Publisher {
    fn publish(&mut self, exchange: &str, message: Wire, body: &[u8]) {
        let Wire { routing_key, properties, headers, .. } = message;
        Publisher::publish(self, exchange, routing_key, properties, headers, body);
    }

    fn wait<T>(&mut self, requests: &Receiver<T>, limit: Duration) -> Woken<T> {
        Publisher::wait(self, requests, limit)
    }

    fn next_event(&mut self) -> Option<Event> {
        Publisher::next_event(self)
    }

    fn end(&mut self, limit: Duration) -> AmqpError {
        Publisher::end(self, limit)
    }

    fn reopen(&mut self) -> Result<(), AmqpError> {
        Publisher::reopen(self)
    }

    fn close(self, limit: Duration) {
        Publisher::close(self, limit);
    }
}

impl Connector for Broker {
    type Channel = Publisher;

    fn connect(&self) -> Result<Publisher, AmqpError> {
        Publisher::open(self)
    }
}
