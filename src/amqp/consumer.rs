//! Receiving messages.

use std::{fmt, time::Duration};

use amiquip::{Channel, ConsumerMessage, ConsumerOptions};
use crossbeam_channel::{Receiver, RecvTimeoutError};

use crate::message::{Headers, Properties};

use super::{AmqpError, convert::from_properties};

/// A message that arrived. It stays the broker's until it is acknowledged.
#[derive(Debug)]
pub struct Delivery {
    /// The exchange it came through last.
    pub exchange: String,
    /// Its routing key.
    pub routing_key: String,
    /// Whether it was handed out before.
    pub redelivered: bool,
    /// The payload.
    pub body: Vec<u8>,
    /// Standard properties.
    pub properties: Properties,
    /// Headers. The client library drops a header whose text is not UTF-8, and
    /// every one after it.
    pub headers: Headers,
    /// What acknowledges it; the body has moved out.
    inner: amiquip::Delivery,
}

/// What a [`Consumer`] has to say.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "nearly every value is a delivery")]
pub enum Next {
    /// A message.
    Delivery(Delivery),
    /// Nothing came in time.
    Timeout,
    /// The queue was deleted, the channel closed, or the connection lost.
    Ended(Option<AmqpError>),
}

/// A consumer of one queue. Dropping it leaves what was not acknowledged to the
/// broker, which hands it out again once the connection is closed.
pub struct Consumer {
    channel: Option<Channel>,
    messages: Receiver<ConsumerMessage>,
}

/// How starting a consumer ended; the channel comes back for the reason.
pub(super) enum Started {
    Running(Consumer),
    Failed(AmqpError, Channel),
}

impl Consumer {
    pub(super) fn start(channel: Channel, queue: &str, prefetch: u16) -> Started {
        let started = channel.qos(0, prefetch, false).and_then(|()| {
            let consumer = channel.basic_consume(queue, ConsumerOptions::default())?;
            let messages = consumer.receiver().clone();
            // It borrows the channel, and its drop would cancel it; the channel
            // is closed with the connection, which ends it as well.
            std::mem::forget(consumer);
            Ok(messages)
        });
        match started {
            Ok(messages) => Started::Running(Self { channel: Some(channel), messages }),
            Err(error) => Started::Failed(error.into(), channel),
        }
    }

    /// Waits for the next message, for `limit` at most.
    pub fn next(&self, limit: Duration) -> Next {
        match self.messages.recv_timeout(limit) {
            Ok(ConsumerMessage::Delivery(inner)) => Next::Delivery(Delivery::new(inner)),
            Ok(
                ConsumerMessage::ServerClosedChannel(error) | ConsumerMessage::ServerClosedConnection(error),
            ) => Next::Ended(Some(error.into())),
            Ok(ConsumerMessage::ServerCancelled) => Next::Ended(Some(AmqpError::Channel {
                code: 404,
                text: "the queue was deleted, or its leader moved".into(),
            })),
            Ok(_) => Next::Ended(None),
            Err(RecvTimeoutError::Timeout) => Next::Timeout,
            Err(RecvTimeoutError::Disconnected) => {
                Next::Ended(Some(AmqpError::Lost { reason: "the connection ended".into() }))
            }
        }
    }

    /// Acknowledges a message: the broker forgets it.
    ///
    /// # Errors
    /// The channel or the connection is gone; the broker hands the message out
    /// again.
    pub fn ack(&self, delivery: Delivery) -> Result<(), AmqpError> {
        match &self.channel {
            Some(channel) => Ok(delivery.inner.ack(channel)?),
            None => Ok(()),
        }
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        if let Some(channel) = self.channel.take() {
            // Closing the channel may hang while the broker is in alarm.
            super::connection::within(super::connection::CLOSE_TIMEOUT, move || drop(channel));
        }
    }
}

impl Delivery {
    fn new(mut inner: amiquip::Delivery) -> Self {
        let (properties, headers) = from_properties(&inner.properties);
        Self {
            exchange: std::mem::take(&mut inner.exchange),
            routing_key: std::mem::take(&mut inner.routing_key),
            redelivered: inner.redelivered,
            body: std::mem::take(&mut inner.body),
            properties,
            headers,
            inner,
        }
    }
}

impl fmt::Debug for Consumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer").finish_non_exhaustive()
    }
}
