//! Looking through a queue page by page, all on one channel.

use std::{fmt, time::Duration};

use amiquip::{Channel, ConsumerMessage, ConsumerOptions};
use crossbeam_channel::{Receiver, RecvTimeoutError};

use super::{
    AmqpError, Delivery,
    connection::{CLOSE_TIMEOUT, within},
    inspect::Damage,
};

/// A channel whose messages stay unacknowledged until it is said what becomes of each.
pub struct Browser {
    /// Taken out only to close it.
    channel: Option<Channel>,
    damage: Damage,
}

/// So many messages of a queue, as one consumer that is handed no more.
pub struct Page<'b> {
    consumer: amiquip::Consumer<'b>,
    messages: Receiver<ConsumerMessage>,
    browser: &'b Browser,
}

/// What a [`Page`] has to say.
#[expect(clippy::large_enum_variant, reason = "nearly every value is a delivery")]
#[derive(Debug)]
pub enum Turned {
    /// A message.
    Delivery(Delivery),
    /// Nothing came in time.
    Timeout,
    /// The queue was deleted, the channel closed, or the connection lost.
    Ended(AmqpError),
}

/// A place in the queue: all before it, and itself, can be given back at once.
#[derive(Clone)]
pub struct Place(amiquip::Delivery);

impl Place {
    /// Where a message was.
    pub fn of(delivery: &Delivery) -> Self {
        Self(delivery.inner.clone())
    }

    /// Its number on the channel.
    pub fn tag(&self) -> u64 {
        self.0.delivery_tag()
    }
}

impl Browser {
    pub(super) fn new(channel: Channel, damage: Damage) -> Self {
        // Of an earlier channel with the same number.
        damage.forget(channel.channel_id());
        Self { channel: Some(channel), damage }
    }

    fn channel(&self) -> Result<&Channel, AmqpError> {
        self.channel.as_ref().ok_or_else(|| AmqpError::Lost { reason: "the channel is closed".into() })
    }

    /// Takes so many messages of a queue, or fewer if it holds no more now.
    ///
    /// # Errors
    /// 404 without such a queue, 403 without the permission.
    pub fn page(&self, queue: &str, size: u16) -> Result<Page<'_>, AmqpError> {
        let channel = self.channel()?;
        // For consumers from now on; those before keep theirs.
        channel.qos(0, size, false)?;
        let consumer = channel.basic_consume(queue, ConsumerOptions::default())?;
        let messages = consumer.receiver().clone();
        Ok(Page { consumer, messages, browser: self })
    }

    /// Acknowledges a message: the broker forgets it.
    ///
    /// # Errors
    /// The channel or the connection is gone.
    pub fn ack(&self, delivery: Delivery) -> Result<(), AmqpError> {
        Ok(delivery.inner.ack(self.channel()?)?)
    }

    /// Gives back what is not acknowledged up to a place, which must itself not be.
    ///
    /// # Errors
    /// The channel or the connection is gone.
    pub fn give_back(&self, place: Place) -> Result<(), AmqpError> {
        Ok(place.0.nack_multiple(self.channel()?, true)?)
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if let Some(channel) = self.channel.take() {
            // Closing the channel may hang while the broker is in alarm.
            within(CLOSE_TIMEOUT, move || drop(channel));
        }
    }
}

impl Page<'_> {
    /// Waits for the next message, for `limit` at most.
    pub fn next(&self, limit: Duration) -> Turned {
        let lost = |reason: &str| Turned::Ended(AmqpError::Lost { reason: reason.into() });
        match self.messages.recv_timeout(limit) {
            Ok(ConsumerMessage::Delivery(inner)) => {
                let channel = self.browser.channel.as_ref().map_or(0, Channel::channel_id);
                let damaged = self.browser.damage.take(channel, inner.delivery_tag());
                Turned::Delivery(Delivery::new(inner, damaged, 0))
            }
            Ok(
                ConsumerMessage::ServerClosedChannel(error) | ConsumerMessage::ServerClosedConnection(error),
            ) => Turned::Ended(error.into()),
            Ok(ConsumerMessage::ServerCancelled) => Turned::Ended(AmqpError::Channel {
                code: 404,
                text: "the queue was deleted, or its leader moved".into(),
            }),
            // It was cancelled here, and has said all.
            Ok(ConsumerMessage::ClientCancelled) | Err(RecvTimeoutError::Timeout) => Turned::Timeout,
            Ok(_) => lost("the consumer ended"),
            Err(RecvTimeoutError::Disconnected) => lost("the connection ended"),
        }
    }

    /// How many messages are here that were not asked for yet.
    pub fn unread(&self) -> usize {
        self.messages.len()
    }

    /// Has no more handed out here, whatever is acknowledged; what was stays. Only once
    /// all that the page may hold has come: the client library gives the connection up
    /// over what comes later.
    ///
    /// # Errors
    /// The channel or the connection is gone.
    pub fn end(&self) -> Result<(), AmqpError> {
        Ok(self.consumer.cancel()?)
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Place").field(&self.tag()).finish()
    }
}

impl fmt::Debug for Page<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Page").finish_non_exhaustive()
    }
}

impl fmt::Debug for Browser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Browser").finish_non_exhaustive()
    }
}
