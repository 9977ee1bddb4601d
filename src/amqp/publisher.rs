//! Publishing with confirms.

use std::{fmt, thread, time::Duration};

use amiquip::{Channel, Confirm, Connection, ConnectionBlockedNotification, Publish, Return};
use crossbeam_channel::{Receiver, Sender, select, unbounded};

use crate::{
    broker::Broker,
    message::{Headers, Properties, Published},
};

use super::{
    AmqpError,
    connection::{Opened, close, open_within},
    convert::{from_properties, properties},
};

/// The broker's answers about published messages.
#[derive(Debug)]
pub enum Event {
    /// It has taken responsibility for the message with this tag, and for all earlier ones if
    /// `multiple`.
    Ack {
        /// The number of the message on its channel, from 1.
        tag: u64,
        /// Whether all earlier messages are included.
        multiple: bool,
    },
    /// It has refused the message.
    Nack {
        /// The number of the message on its channel, from 1.
        tag: u64,
        /// Whether all earlier messages are included.
        multiple: bool,
    },
    /// It could not route the message to any queue. Always comes before the ack of the same
    /// message.
    Returned(Box<Returned>),
    /// It accepts no messages for now.
    Blocked(String),
    /// It accepts messages again.
    Unblocked,
    /// The channel or the connection is gone; [`Publisher::end`] tells why.
    Ended,
}

/// A message that was returned.
#[derive(Debug)]
#[non_exhaustive]
pub struct Returned {
    /// The reply code: 312 if it was routed to no queue.
    pub code: u16,
    /// The reason in words.
    pub text: String,
    /// The exchange it was published to.
    pub exchange: String,
    /// Its routing key.
    pub routing_key: String,
    /// The payload.
    pub body: Vec<u8>,
    /// Standard properties.
    pub properties: Properties,
    /// Headers.
    pub headers: Headers,
}

impl Returned {
    /// The parts by which it is recognised.
    pub fn published(&self) -> Published<'_> {
        let Self { exchange, routing_key, properties, headers, body, .. } = self;
        Published { exchange, routing_key, properties, headers, body }
    }
}

/// A connection with one channel in confirm mode. Tags count from 1 on each
/// channel.
pub struct Publisher {
    connection: Option<Connection>,
    channel: Option<Channel>,
    blocked: Receiver<ConnectionBlockedNotification>,
    events: Receiver<Event>,
}

impl Publisher {
    /// Connects, and opens the channel.
    ///
    /// # Errors
    /// Unreachable, TLS, or refused.
    pub fn open(broker: &Broker) -> Result<Self, AmqpError> {
        open_within(broker, "router", None, |Opened { mut connection, .. }| {
            let blocked = connection.listen_for_connection_blocked()?;
            let (channel, events) = channel(&mut connection, &blocked)?;
            Ok(Self { connection: Some(connection), channel: Some(channel), blocked, events })
        })
    }

    /// Opens another channel after the broker closed the last one.
    pub fn reopen(&mut self) -> Result<(), AmqpError> {
        let gone = || AmqpError::Lost { reason: "the connection is closed".into() };
        let connection = self.connection.as_mut().ok_or_else(gone)?;
        let (channel, events) = channel(connection, &self.blocked)?;
        self.channel = Some(channel);
        self.events = events;
        Ok(())
    }

    /// The broker's answers.
    #[must_use]
    pub fn events(&self) -> &Receiver<Event> {
        &self.events
    }

    /// Writes a message. An error is not reported here; [`Event::Ended`] follows.
    pub fn publish(
        &mut self,
        exchange: &str,
        routing_key: String,
        message_properties: &Properties,
        headers: &Headers,
        body: &[u8],
    ) {
        let Some(channel) = &self.channel else { return };
        let publish = Publish {
            body,
            routing_key,
            mandatory: true,
            immediate: false,
            properties: properties(message_properties, headers),
        };
        let _ = channel.basic_publish(exchange, publish);
    }

    /// Why the channel ended. After a refusal the connection is still open, and
    /// [`reopen`](Self::reopen) can be called.
    pub fn end(&mut self, limit: Duration) -> AmqpError {
        let lost = || AmqpError::Lost { reason: "the connection is closed".into() };
        let Some(channel) = self.channel.take() else {
            return lost();
        };
        // Any call on an ended channel fails with the reason, if it has one.
        let cause = channel.enable_publisher_confirms_nowait().err().map_or_else(lost, AmqpError::from);
        match (&cause, self.connection.take()) {
            (AmqpError::Lost { .. }, Some(connection)) => close(connection, channel, limit).unwrap_or(cause),
            (_, connection) => {
                self.connection = connection;
                cause
            }
        }
    }

    /// Closes within a time limit.
    pub fn close(mut self, limit: Duration) {
        if let Some(connection) = self.connection.take() {
            close(connection, self.channel.take(), limit);
        }
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            close(connection, self.channel.take(), super::connection::CLOSE_TIMEOUT);
        }
    }
}

/// Opens a channel in confirm mode, with a single stream of everything that it reports.
fn channel(
    connection: &mut Connection,
    blocked: &Receiver<ConnectionBlockedNotification>,
) -> Result<(Channel, Receiver<Event>), AmqpError> {
    let channel = connection.open_channel(None)?;
    let confirms = channel.listen_for_publisher_confirms()?;
    let returns = channel.listen_for_returns()?;
    channel.enable_publisher_confirms()?;
    let (sender, events) = unbounded();
    let blocked = blocked.clone();
    thread::Builder::new()
        .name("delayline-confirms".into())
        .spawn(move || forward(&confirms, &returns, &blocked, &sender))
        .map_err(|error| AmqpError::Lost { reason: format!("cannot start a thread: {error}") })?;
    Ok((channel, events))
}

/// Merges the three streams of the client library into one, which ends with
/// [`Event::Ended`].
fn forward(
    confirms: &Receiver<Confirm>,
    returns: &Receiver<Return>,
    blocked: &Receiver<ConnectionBlockedNotification>,
    events: &Sender<Event>,
) {
    loop {
        let event = select! {
            recv(confirms) -> confirm => match confirm {
                Ok(confirm) => {
                    // The broker sends a return before the ack of its message,
                    // and the client library keeps that order, on two channels.
                    for returned in returns.try_iter() {
                        let _ = events.send(Event::Returned(Box::new(returned.into())));
                    }
                    match confirm {
                        Confirm::Ack(ack) => Event::Ack { tag: ack.delivery_tag, multiple: ack.multiple },
                        Confirm::Nack(nack) => Event::Nack { tag: nack.delivery_tag, multiple: nack.multiple },
                    }
                }
                Err(_) => break,
            },
            recv(blocked) -> note => match note {
                Ok(ConnectionBlockedNotification::Blocked(reason)) => Event::Blocked(reason),
                Ok(ConnectionBlockedNotification::Unblocked) => Event::Unblocked,
                Err(_) => break,
            },
        };
        if events.send(event).is_err() {
            return;
        }
    }
    let _ = events.send(Event::Ended);
}

impl From<Return> for Returned {
    fn from(returned: Return) -> Self {
        let (properties, headers) = from_properties(&returned.properties);
        Self {
            code: returned.reply_code,
            text: returned.reply_text,
            exchange: returned.exchange,
            routing_key: returned.routing_key,
            body: returned.content,
            properties,
            headers,
        }
    }
}

impl fmt::Debug for Publisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Publisher").field("open", &self.connection.is_some()).finish_non_exhaustive()
    }
}
