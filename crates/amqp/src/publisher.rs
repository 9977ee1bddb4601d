//! Publishing with confirms.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};

use amiquip::{Channel, Confirm, Connection, ConnectionBlockedNotification as Note, Publish, Return};
use crossbeam_channel::{Receiver, Sender, after, select, unbounded};

use crate::broker::Broker;
use delayline_core::message::{Headers, Properties, Published};

use super::{
    AmqpError,
    connection::{Opened, close, open_within},
    convert::{from_properties, properties},
    line::Line,
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

/// Whether the broker reads nothing more from a connection, as far as it has said.
#[derive(Clone)]
struct Alarm {
    notes: Receiver<Note>,
    reason: Arc<Mutex<Option<String>>>,
}

impl Alarm {
    fn note(&self, note: &Note) {
        *self.reason.lock().unwrap_or_else(PoisonError::into_inner) = match note {
            Note::Blocked(reason) => Some(reason.clone()),
            Note::Unblocked => None,
        };
    }

    /// Why the broker is in alarm, if it is.
    fn reason(&self) -> Option<String> {
        self.notes.try_iter().for_each(|note| self.note(&note));
        self.reason.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Why the broker is in alarm; waits until it is, until `limit`, or until `done` is
    /// disconnected. `Err` at the limit.
    fn wait(&self, done: &Receiver<()>, limit: Duration) -> Option<Result<String, ()>> {
        let late = after(limit);
        loop {
            if let Some(reason) = self.reason() {
                return Some(Ok(reason));
            }
            select! {
                recv(done) -> _ => return None,
                recv(late) -> _ => return Some(Err(())),
                recv(self.notes) -> note => match note {
                    Ok(note) => self.note(&note),
                    // The connection is gone, so the work will end.
                    Err(_) => return None,
                },
            }
        }
    }
}

/// A connection with one channel in confirm mode. Tags count from 1 on each
/// channel.
pub struct Publisher {
    connection: Option<Connection>,
    channel: Option<Channel>,
    line: Line,
    /// How long opening another channel may take.
    limit: Duration,
    alarm: Alarm,
    events: Receiver<Event>,
}

impl Publisher {
    /// Connects, and opens the channel.
    ///
    /// # Errors
    /// Unreachable, TLS, or refused.
    pub fn open(broker: &Broker) -> Result<Self, AmqpError> {
        let limit = broker.connect_timeout;
        open_within(broker, "router", None, move |Opened { mut connection, line }| {
            let notes = connection.listen_for_connection_blocked()?;
            let alarm = Alarm { notes, reason: Arc::default() };
            let (channel, events) = channel(&mut connection, &alarm)?;
            let (connection, channel) = (Some(connection), Some(channel));
            Ok(Self { connection, channel, line, limit, alarm, events })
        })
    }

    /// Opens another channel after the broker closed the last one. A broker in alarm answers
    /// only when the alarm ends, so the connection is given up. It is also given up if the answer
    /// takes longer than the connect timeout.
    ///
    /// # Errors
    /// The connection is gone, or was given up.
    pub fn reopen(&mut self) -> Result<(), AmqpError> {
        let gone = || AmqpError::Lost { reason: "the connection is closed".into() };
        let connection = self.connection.as_mut().ok_or_else(gone)?;
        let in_alarm =
            |reason: String| AmqpError::Lost { reason: format!("the broker is in alarm ({reason})") };
        if let Some(reason) = self.alarm.reason() {
            return Err(in_alarm(reason));
        }
        let watch = |done: &Receiver<()>| self.alarm.wait(done, self.limit);
        let (opened, cut) = self.line.unless(watch, || channel(connection, &self.alarm));
        match cut {
            None => {
                let (channel, events) = opened?;
                (self.channel, self.events) = (Some(channel), events);
                Ok(())
            }
            Some(Ok(reason)) => Err(in_alarm(reason)),
            Some(Err(())) => {
                let reason = "it opened no other channel after a refusal".into();
                Err(AmqpError::Silent { limit: self.limit, reason })
            }
        }
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
fn channel(connection: &mut Connection, alarm: &Alarm) -> Result<(Channel, Receiver<Event>), AmqpError> {
    let channel = connection.open_channel(None)?;
    let confirms = channel.listen_for_publisher_confirms()?;
    let returns = channel.listen_for_returns()?;
    channel.enable_publisher_confirms()?;
    let (sender, events) = unbounded();
    let alarm = alarm.clone();
    thread::Builder::new()
        .name("delayline-confirms".into())
        .spawn(move || forward(&confirms, &returns, &alarm, &sender))
        .map_err(|error| AmqpError::Lost { reason: format!("cannot start a thread: {error}") })?;
    Ok((channel, events))
}

/// Merges the three streams of the client library into one, which ends with
/// [`Event::Ended`].
fn forward(confirms: &Receiver<Confirm>, returns: &Receiver<Return>, alarm: &Alarm, events: &Sender<Event>) {
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
            recv(alarm.notes) -> note => match note {
                Ok(note) => {
                    alarm.note(&note);
                    match note {
                        Note::Blocked(reason) => Event::Blocked(reason),
                        Note::Unblocked => Event::Unblocked,
                    }
                }
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
