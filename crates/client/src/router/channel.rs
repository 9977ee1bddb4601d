//! The seam between the router and the AMQP side, so that its behaviour can be
//! tested against answers that a broker gives rarely.

use std::time::Duration;

use crossbeam_channel::Receiver;

use delayline_amqp::{AmqpError, Event, Publisher, broker::Broker};
use delayline_core::message::Wire;

/// A channel in confirm mode.
pub(super) trait ConfirmChannel: Send + 'static {
    /// Writes a message; an error shows as [`Event::Ended`].
    fn publish(&mut self, exchange: &str, message: Wire, body: &[u8]);
    /// What the broker says.
    fn events(&self) -> &Receiver<Event>;
    /// Why it ended.
    fn end(&mut self, limit: Duration) -> AmqpError;
    /// A new channel on the same connection.
    fn reopen(&mut self) -> Result<(), AmqpError>;
    /// Closes it.
    fn close(self, limit: Duration);
}

/// Where such channels come from.
pub(super) trait Connector: Send + 'static {
    type Channel: ConfirmChannel;
    fn connect(&self) -> Result<Self::Channel, AmqpError>;
}

impl ConfirmChannel for Publisher {
    fn publish(&mut self, exchange: &str, message: Wire, body: &[u8]) {
        let Wire { routing_key, properties, headers, .. } = message;
        Publisher::publish(self, exchange, routing_key, &properties, &headers, body);
    }

    fn events(&self) -> &Receiver<Event> {
        Publisher::events(self)
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
