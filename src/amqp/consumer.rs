//! Receiving messages.

use std::{fmt, time::Duration};

use amiquip::{Channel, ConsumerMessage, ConsumerOptions};
use crossbeam_channel::{Receiver, RecvTimeoutError, Select};

use crate::message::{Headers, Properties};

use super::{AmqpError, convert::from_properties, inspect::Damage};

/// How long the broker gets for the last acknowledgements.
const SETTLE: Duration = Duration::from_millis(300);

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
    /// Headers.
    pub headers: Headers,
    /// Whether properties or headers hold something that cannot be represented
    /// here, such as text that is not UTF-8 or a header that is there twice. Then
    /// `properties` and `headers` are empty, and sending the message on would lose
    /// them.
    pub damaged: bool,
    /// What acknowledges it; the body has moved out.
    pub(super) inner: amiquip::Delivery,
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
    damage: Damage,
}

/// How starting a consumer ended; the channel comes back for the reason.
pub(super) enum Started {
    Running(Consumer),
    Failed(AmqpError, Channel),
}

impl Consumer {
    pub(super) fn start(
        channel: Channel,
        queue: &str,
        prefetch: u16,
        exclusive: bool,
        damage: Damage,
    ) -> Started {
        // What an earlier consumer left unread is handed out again, under other tags.
        damage.forget(channel.channel_id());
        let started = channel.qos(0, prefetch, false).and_then(|()| {
            let options = ConsumerOptions { exclusive, ..ConsumerOptions::default() };
            let consumer = channel.basic_consume(queue, options)?;
            let messages = consumer.receiver().clone();
            // It borrows the channel, and its drop would cancel it; the channel
            // is closed with the connection, which ends it as well.
            std::mem::forget(consumer);
            Ok(messages)
        });
        match started {
            Ok(messages) => Started::Running(Self { channel: Some(channel), messages, damage }),
            Err(error) => Started::Failed(error.into(), channel),
        }
    }

    /// Waits for the next message, for `limit` at most.
    pub fn next(&self, limit: Duration) -> Next {
        match self.messages.recv_timeout(limit) {
            Ok(ConsumerMessage::Delivery(inner)) => {
                let channel = self.channel.as_ref().map_or(0, Channel::channel_id);
                let damaged = self.damage.take(channel, inner.delivery_tag());
                Next::Delivery(Delivery::new(inner, damaged))
            }
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

    /// Turns a message down: the broker dead-letters it as it is, or drops it if
    /// its queue has no dead-letter exchange.
    ///
    /// # Errors
    /// The channel or the connection is gone; the broker hands the message out
    /// again.
    pub fn reject(&self, delivery: Delivery) -> Result<(), AmqpError> {
        match &self.channel {
            Some(channel) => Ok(delivery.inner.reject(channel, false)?),
            None => Ok(()),
        }
    }

    /// Lets a `select` wake up when there may be something for
    /// [`next`](Self::next).
    pub(crate) fn watch<'a>(&'a self, select: &mut Select<'a>) {
        select.recv(&self.messages);
    }

    /// Gives back what was not acknowledged, once the broker has seen every
    /// acknowledgement. False if that took too long.
    pub(crate) fn finish(mut self, limit: Duration) -> bool {
        let Some(channel) = self.channel.take() else { return false };
        self::settle();
        super::connection::within(limit, move || channel.close().is_ok()).unwrap_or(false)
    }
}

/// Waits until the broker has most likely seen the last acknowledgements. It hands
/// many of them on to a quorum queue bit by bit, and forgets the rest when the channel
/// is closed.
pub(crate) fn settle() {
    std::thread::sleep(SETTLE);
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
    pub(super) fn new(mut inner: amiquip::Delivery, damaged: bool) -> Self {
        let (properties, headers) = from_properties(&inner.properties);
        // They are not needed a second time.
        inner.properties = amiquip::AmqpProperties::default();
        Self {
            exchange: std::mem::take(&mut inner.exchange),
            routing_key: std::mem::take(&mut inner.routing_key),
            redelivered: inner.redelivered,
            body: std::mem::take(&mut inner.body),
            properties,
            headers,
            damaged,
            inner,
        }
    }
}

impl fmt::Debug for Consumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer").finish_non_exhaustive()
    }
}
