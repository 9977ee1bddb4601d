//! Reading through a queue page by page, on one channel.

use std::{fmt, mem::ManuallyDrop, time::Duration};

use amiquip::{Channel, ConsumerMessage, ConsumerOptions};
use crossbeam_channel::{Receiver, RecvTimeoutError};

use crate::{
    arrivals::Arrivals,
    connection::{CLOSE_TIMEOUT, Line, abandon_after},
    consumer::{Delivery, cancelled},
    error::{AmqpError, explain},
};

/// A channel whose messages stay unacknowledged until the caller decides about each.
pub struct Browser {
    /// `Some` until it is closed.
    channel: Option<Channel>,
    arrivals: Arrivals,
    line: Line,
    /// How long an answer may take.
    limit: Duration,
}

/// A limited number of messages from a queue, read by one consumer that receives no further ones.
pub struct Page<'b> {
    /// Not cancelled when it is dropped: the client library gives up the connection over a later
    /// delivery. The consumer ends with the channel.
    consumer: ManuallyDrop<amiquip::Consumer<'b>>,
    messages: Receiver<ConsumerMessage>,
    browser: &'b Browser,
}

/// What a [`Page`] delivers next.
#[expect(clippy::large_enum_variant, reason = "nearly every value is a delivery")]
#[derive(Debug)]
pub enum Turned {
    /// A message.
    Delivery(Delivery),
    /// No message arrived in time.
    Timeout,
    /// The queue was deleted, the channel closed, or the connection lost.
    Ended(AmqpError),
}

/// A position in the queue. All messages up to and including this one can be requeued together.
#[derive(Clone)]
pub struct Place(amiquip::Delivery);

impl Place {
    /// The position of a message.
    pub fn of(delivery: &Delivery) -> Self {
        Self(delivery.inner.clone())
    }

    /// Its number on the channel.
    pub fn tag(&self) -> u64 {
        self.0.delivery_tag()
    }
}

impl Browser {
    pub(super) fn new(channel: Channel, arrivals: Arrivals, line: Line, limit: Duration) -> Self {
        // Deliveries of an earlier channel with the same number.
        arrivals.forget(channel.channel_id());
        Self { channel: Some(channel), arrivals, line, limit }
    }

    /// Sends a request, and gives up the connection if the broker does not answer in time.
    fn ask<T>(&self, ask: impl FnOnce() -> amiquip::Result<T>) -> Result<T, AmqpError> {
        let (answer, cut) = self.line.within(self.limit, ask);
        let reason = || "it may be overloaded or stopped; see its log".into();
        answer.map_err(|error| match cut {
            true => AmqpError::Silent { limit: self.limit, reason: reason() },
            false => explain(error),
        })
    }

    fn channel(&self) -> Result<&Channel, AmqpError> {
        self.channel.as_ref().ok_or_else(|| AmqpError::Lost { reason: "the channel is closed".into() })
    }

    /// Takes this many messages from a queue, or fewer if it holds fewer now.
    ///
    /// # Errors
    /// 404 without such a queue, 403 without the permission.
    pub fn page(&self, queue: &str, size: u16) -> Result<Page<'_>, AmqpError> {
        let channel = self.channel()?;
        let consumer = self.ask(|| {
            // Applies to later consumers; earlier ones keep theirs.
            channel.qos(0, size, false)?;
            channel.basic_consume(queue, ConsumerOptions::default())
        })?;
        let messages = consumer.receiver().clone();
        Ok(Page { consumer: ManuallyDrop::new(consumer), messages, browser: self })
    }

    /// Acknowledges a message: the broker deletes it.
    ///
    /// # Errors
    /// The channel or the connection is gone.
    pub fn ack(&self, delivery: Delivery) -> Result<(), AmqpError> {
        delivery.inner.ack(self.channel()?).map_err(explain)
    }

    /// Requeues the unacknowledged messages up to a position. The message at that position must be
    /// unacknowledged, too.
    ///
    /// # Errors
    /// The channel or the connection is gone.
    pub fn give_back(&self, place: Place) -> Result<(), AmqpError> {
        place.0.nack_multiple(self.channel()?, true).map_err(explain)
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if let Some(channel) = self.channel.take() {
            // Closing the channel may hang while the broker is in alarm.
            abandon_after(CLOSE_TIMEOUT, move || drop(channel));
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
                let damaged = self.browser.arrivals.take_damage(channel, inner.delivery_tag());
                Turned::Delivery(Delivery::new(inner, damaged, 0))
            }
            Ok(
                ConsumerMessage::ServerClosedChannel(error) | ConsumerMessage::ServerClosedConnection(error),
            ) => Turned::Ended(explain(error)),
            Ok(ConsumerMessage::ServerCancelled) => Turned::Ended(cancelled()),
            // It was cancelled here and has delivered all its messages.
            Ok(ConsumerMessage::ClientCancelled) | Err(RecvTimeoutError::Timeout) => Turned::Timeout,
            Ok(_) => lost("the consumer ended"),
            Err(RecvTimeoutError::Disconnected) => lost("the connection ended"),
        }
    }

    /// How many messages have arrived and were not read yet.
    pub fn unread(&self) -> usize {
        self.messages.len()
    }

    /// Stops further deliveries, whatever is acknowledged. Delivered messages stay. Call it only
    /// after the whole page has arrived: the client library gives up the connection over a later
    /// delivery.
    ///
    /// # Errors
    /// The channel or the connection is gone.
    pub fn end(&self) -> Result<(), AmqpError> {
        self.browser.ask(|| self.consumer.cancel())
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
