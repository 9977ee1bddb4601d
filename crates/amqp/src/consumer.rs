//! Receiving messages.

use std::{fmt, time::Duration};

use amiquip::{Channel, ConsumerMessage, ConsumerOptions};
use crossbeam_channel::{Receiver, Select};

use delayline_core::message::{Headers, Properties};

use crate::{
    arrivals::Arrivals,
    connection::{CLOSE_TIMEOUT, abandon_after},
    convert::from_properties,
    error::{AmqpError, explain},
};

/// How long the broker may take for the last acknowledgements.
const SETTLE: Duration = Duration::from_millis(300);

/// A message that arrived. The broker keeps it until it is acknowledged.
#[derive(Debug)]
#[non_exhaustive]
pub struct Delivery {
    /// The exchange that routed it last.
    pub exchange: String,
    /// Its routing key.
    pub routing_key: String,
    /// Whether it was delivered before.
    pub redelivered: bool,
    /// The payload.
    pub body: Vec<u8>,
    /// Standard properties.
    pub properties: Properties,
    /// Headers.
    pub headers: Headers,
    /// Whether properties or headers contain a value that this type cannot represent, such as text
    /// that is not UTF-8 or a duplicate header. Then `properties` and `headers` are empty, and
    /// sending the message again would lose them.
    pub damaged: bool,
    /// Needed to acknowledge the message. The body has been moved out.
    pub(super) inner: amiquip::Delivery,
    /// The lane it arrived on.
    lane: usize,
    /// The length of the body that it came with.
    length: usize,
}

/// What a [`Consumer`] delivers next.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "nearly every value is a delivery")]
pub enum Next {
    /// A message.
    Delivery(Delivery),
    /// No message arrived in time.
    Timeout,
    /// The queue was deleted, the channel closed, or the connection lost.
    Ended(Option<AmqpError>),
}

/// A consumer of one queue. If it is dropped, the broker delivers unacknowledged messages again
/// once the connection is closed.
pub struct Consumer {
    lanes: Vec<Lane>,
    arrivals: Arrivals,
}

/// A channel that consumes. The broker writes deliveries channel by channel. So a message that
/// takes seconds to write delays only later messages on the same channel.
struct Lane {
    channel: Channel,
    messages: Receiver<ConsumerMessage>,
}

/// The result of starting to consume on a channel. It includes the channel, because the error can
/// be read from it.
pub(super) enum Started {
    Running(Consumer),
    Failed(AmqpError, Channel),
}

impl Consumer {
    pub(super) fn start(
        channel: Channel,
        queue: &str,
        prefetch: u16,
        options: ConsumerOptions,
        arrivals: Arrivals,
    ) -> Started {
        // Messages that an earlier consumer left unread are delivered again, with other tags.
        arrivals.forget(channel.channel_id());
        let started = channel.qos(0, prefetch, false).and_then(|()| {
            let consumer = channel.basic_consume(queue, options)?;
            let messages = consumer.receiver().clone();
            // The consumer borrows the channel, and dropping it would cancel it. The channel is
            // closed with the connection, which also ends the consumer.
            std::mem::forget(consumer);
            Ok(messages)
        });
        match started {
            Ok(messages) => {
                let lanes = vec![Lane { channel, messages }];
                Started::Running(Self { lanes, arrivals })
            }
            Err(error) => Started::Failed(explain(error), channel),
        }
    }

    /// Adds another consumer of the same queue and connection as a further lane.
    pub(super) fn join(&mut self, mut other: Self) {
        self.lanes.append(&mut other.lanes);
    }

    /// Waits for the next message, for `limit` at most.
    pub fn next(&self, limit: Duration) -> Next {
        if self.lanes.is_empty() {
            return Next::Ended(None);
        }
        let mut select = Select::new();
        self.watch(&mut select);
        // In random order, so that no lane keeps others waiting.
        let ready =
            if limit.is_zero() { select.try_select().ok() } else { select.select_timeout(limit).ok() };
        let Some(ready) = ready else { return Next::Timeout };
        let number = ready.index();
        let lane = &self.lanes[number];
        match ready.recv(&lane.messages) {
            Ok(ConsumerMessage::Delivery(inner)) => {
                let damaged = self.arrivals.take_damage(lane.channel.channel_id(), inner.delivery_tag());
                Next::Delivery(Delivery::new(inner, damaged, number))
            }
            Ok(
                ConsumerMessage::ServerClosedChannel(error) | ConsumerMessage::ServerClosedConnection(error),
            ) => Next::Ended(Some(explain(error))),
            Ok(ConsumerMessage::ServerCancelled) => Next::Ended(Some(cancelled())),
            Ok(_) => Next::Ended(None),
            Err(_) => Next::Ended(Some(AmqpError::Lost { reason: "the connection ended".into() })),
        }
    }

    /// Acknowledges a message: the broker deletes it.
    ///
    /// # Errors
    /// The channel or the connection is gone; the broker delivers the message again.
    pub fn ack(&self, delivery: Delivery) -> Result<(), AmqpError> {
        self.answer(delivery, amiquip::Delivery::ack)
    }

    /// Acknowledges a message and all earlier ones on the same channel.
    ///
    /// # Errors
    /// The channel or the connection is gone.
    pub fn ack_up_to(&self, delivery: Delivery) -> Result<(), AmqpError> {
        self.answer(delivery, amiquip::Delivery::ack_multiple)
    }

    /// Rejects a message: the broker dead-letters it unchanged. If its queue has no dead-letter
    /// exchange, the broker drops it.
    ///
    /// # Errors
    /// The channel or the connection is gone; the broker delivers the message again.
    pub fn reject(&self, delivery: Delivery) -> Result<(), AmqpError> {
        self.answer(delivery, |delivery, channel| delivery.reject(channel, false))
    }

    /// Answers for a message on the channel that it arrived on.
    fn answer(
        &self,
        delivery: Delivery,
        answer: impl FnOnce(amiquip::Delivery, &Channel) -> amiquip::Result<()>,
    ) -> Result<(), AmqpError> {
        match self.lanes.get(delivery.lane) {
            Some(lane) => {
                self.arrivals.settle(delivery.length);
                answer(delivery.inner, &lane.channel).map_err(explain)
            }
            None => Ok(()),
        }
    }

    /// The length of the largest body, if the connection ended because deliveries took more than
    /// [`Session::hold_at_most`](crate::Session::hold_at_most) allows.
    pub fn overflow(&self) -> Option<usize> {
        self.arrivals.overflow()
    }

    /// Lets a `select` wake up when [`next`](Self::next) may have a result.
    pub fn watch<'a>(&'a self, select: &mut Select<'a>) {
        for lane in &self.lanes {
            select.recv(&lane.messages);
        }
    }

    /// Requeues unacknowledged messages once the broker has seen every acknowledgement. Returns
    /// false if that took too long.
    pub fn finish(mut self, limit: Duration) -> bool {
        let lanes = std::mem::take(&mut self.lanes);
        settle();
        let close = move || lanes.into_iter().all(|lane| lane.channel.close().is_ok());
        abandon_after(limit, close).unwrap_or(false)
    }
}

/// Waits until the broker has probably seen the last acknowledgements. It passes large numbers of
/// them to a quorum queue in parts, and drops the rest when the channel is closed.
pub fn settle() {
    std::thread::sleep(SETTLE);
}

/// Why a consumer ended that the broker cancelled.
pub(crate) fn cancelled() -> AmqpError {
    AmqpError::Channel { code: 404, text: "the queue was deleted, or its leader moved".into() }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        let lanes = std::mem::take(&mut self.lanes);
        if !lanes.is_empty() {
            // Closing a channel may hang while the broker is in alarm.
            abandon_after(CLOSE_TIMEOUT, move || drop(lanes));
        }
    }
}

impl Delivery {
    pub(super) fn new(mut inner: amiquip::Delivery, damaged: bool, lane: usize) -> Self {
        let (properties, headers) = from_properties(&inner.properties);
        // They are needed only once.
        inner.properties = amiquip::AmqpProperties::default();
        Self {
            exchange: std::mem::take(&mut inner.exchange),
            routing_key: std::mem::take(&mut inner.routing_key),
            redelivered: inner.redelivered,
            length: inner.body.len(),
            body: std::mem::take(&mut inner.body),
            properties,
            headers,
            damaged,
            inner,
            lane,
        }
    }

    /// Its message id for a log; `-` if it has none.
    pub fn id(&self) -> std::str::EscapeDebug<'_> {
        self.properties.message_id.as_deref().unwrap_or("-").escape_debug()
    }

    /// Its body, properties and headers, for its successor. Only the properties also stay here.
    pub fn take_contents(&mut self) -> (Vec<u8>, Properties, Headers) {
        let (body, headers) = (std::mem::take(&mut self.body), std::mem::take(&mut self.headers));
        (body, self.properties.clone(), headers)
    }
}

impl fmt::Debug for Consumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer").finish_non_exhaustive()
    }
}
