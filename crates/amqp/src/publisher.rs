//! Publishing with confirms.

use std::{fmt, time::Duration};

use amiquip::{Channel, Confirm, Connection, ConnectionBlockedNotification as Note, Publish, Return};
use crossbeam_channel::{Receiver, TryRecvError, after, never, select, select_biased};

use crate::{
    broker::Broker,
    connection::{CLOSE_TIMEOUT, Line, Opened, close, open_within},
    convert::{from_properties, properties},
    error::{AmqpError, explain},
};
use delayline_core::message::{Headers, Properties, Published};

/// The broker's answers about published messages.
#[derive(Debug)]
pub enum Event {
    /// It has taken responsibility for the message with this tag, and for every earlier one if
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
    /// It could not route the message to any queue. Always arrives before the ack of the same
    /// message.
    Returned(Box<Returned>),
    /// It accepts no messages for now.
    Blocked(String),
    /// It accepts messages again.
    Unblocked,
    /// The channel or the connection is gone. [`Publisher::end`] returns the reason.
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

/// The result of waiting for an answer of the broker, or for another item.
#[derive(Debug)]
pub enum Woken<T> {
    /// An answer of the broker.
    Event(Event),
    /// Another item.
    Other(T),
    /// All senders of other items are gone.
    Closed,
    /// Nothing arrived in time.
    Timeout,
}

/// A connection with one channel in confirm mode. Tags count from 1 on each
/// channel.
pub struct Publisher {
    connection: Option<Connection>,
    channel: Option<Channel>,
    line: Line,
    /// How long opening another channel may take.
    limit: Duration,
    alarms: Receiver<Note>,
    /// Why the broker has stopped reading from this connection.
    alarm: Option<String>,
    answers: Answers,
    /// A confirm that was received but not yet passed on.
    next: Option<Confirm>,
}

/// The answers of the broker on one channel.
struct Answers {
    confirms: Receiver<Confirm>,
    returns: Receiver<Return>,
}

impl Publisher {
    /// Connects, and opens the channel.
    ///
    /// # Errors
    /// Unreachable, TLS, or refused.
    pub fn open(broker: &Broker) -> Result<Self, AmqpError> {
        let limit = broker.connect_timeout;
        open_within(broker, "router", None, move |Opened { mut connection, line }| {
            let alarms = connection.listen_for_connection_blocked().map_err(explain)?;
            let (channel, answers) = channel(&mut connection).map_err(explain)?;
            let (connection, channel) = (Some(connection), Some(channel));
            Ok(Self { connection, channel, line, limit, alarms, alarm: None, answers, next: None })
        })
    }

    /// Opens another channel after the broker closed the last one. A broker in alarm would answer
    /// only after the alarm, so the connection is given up. It is also given up if the answer takes
    /// longer than the connect timeout.
    ///
    /// # Errors
    /// The connection is gone, or was given up.
    pub fn reopen(&mut self) -> Result<(), AmqpError> {
        let gone = || AmqpError::Lost { reason: "the connection is closed".into() };
        let in_alarm =
            |reason: &str| AmqpError::Lost { reason: format!("the broker is in alarm ({reason})") };
        while let Ok(note) = self.alarms.try_recv() {
            self.note(note);
        }
        if let Some(reason) = &self.alarm {
            return Err(in_alarm(reason));
        }
        let connection = self.connection.as_mut().ok_or_else(gone)?;
        let watch = |done: &Receiver<()>| wait_for_alarm(&self.alarms, done, self.limit);
        let (opened, cut) = self.line.unless(watch, || channel(connection));
        match cut {
            None => {
                let (channel, answers) = opened.map_err(explain)?;
                (self.channel, self.answers, self.next) = (Some(channel), answers, None);
                Ok(())
            }
            Some(Ok(reason)) => Err(in_alarm(&reason)),
            Some(Err(())) => {
                let reason = "it opened no other channel after a refusal".into();
                Err(AmqpError::Silent { limit: self.limit, reason })
            }
        }
    }

    /// Waits for the next answer of the broker, or for the next item of `others`, for `limit` at
    /// most. Answers come first.
    pub fn wait<T>(&mut self, others: &Receiver<T>, limit: Duration) -> Woken<T> {
        if let Some(event) = self.next_event() {
            return Woken::Event(event);
        }
        select_biased! {
            recv(self.answers.confirms) -> confirm => Woken::Event(match confirm {
                Ok(confirm) => self.confirmed(confirm),
                Err(_) => Event::Ended,
            }),
            recv(self.alarms) -> note => Woken::Event(match note {
                Ok(note) => self.note(note),
                Err(_) => Event::Ended,
            }),
            recv(others) -> other => other.map_or(Woken::Closed, Woken::Other),
            default(limit) => Woken::Timeout,
        }
    }

    /// The next answer of the broker, if there is one already.
    pub fn next_event(&mut self) -> Option<Event> {
        let confirm = match self.next.take() {
            Some(confirm) => confirm,
            None => match self.answers.confirms.try_recv() {
                Ok(confirm) => confirm,
                Err(TryRecvError::Empty) => return self.alarms.try_recv().ok().map(|note| self.note(note)),
                Err(TryRecvError::Disconnected) => return Some(Event::Ended),
            },
        };
        Some(self.confirmed(confirm))
    }

    /// The next answer of the broker within `limit`.
    pub fn next_within(&mut self, limit: Duration) -> Option<Event> {
        match self.wait(&never::<()>(), limit) {
            Woken::Event(event) => Some(event),
            _ => None,
        }
    }

    /// The broker sends a return before the ack of its message. The client library delivers the two
    /// on separate channels, so returns are passed on first.
    fn confirmed(&mut self, confirm: Confirm) -> Event {
        if let Ok(returned) = self.answers.returns.try_recv() {
            self.next = Some(confirm);
            return Event::Returned(Box::new(returned.into()));
        }
        match confirm {
            Confirm::Ack(ack) => Event::Ack { tag: ack.delivery_tag, multiple: ack.multiple },
            Confirm::Nack(nack) => Event::Nack { tag: nack.delivery_tag, multiple: nack.multiple },
        }
    }

    fn note(&mut self, note: Note) -> Event {
        match note {
            Note::Blocked(reason) => {
                self.alarm = Some(reason.clone());
                Event::Blocked(reason)
            }
            Note::Unblocked => {
                self.alarm = None;
                Event::Unblocked
            }
        }
    }

    /// Writes a message. An error is not reported here; [`Event::Ended`] follows.
    pub fn publish(
        &mut self,
        exchange: &str,
        routing_key: String,
        message_properties: Properties,
        headers: Headers,
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
        let cause = channel.enable_publisher_confirms_nowait().err().map_or_else(lost, explain);
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
            close(connection, self.channel.take(), CLOSE_TIMEOUT);
        }
    }
}

/// Opens a channel in confirm mode.
fn channel(connection: &mut Connection) -> amiquip::Result<(Channel, Answers)> {
    let channel = connection.open_channel(None)?;
    let confirms = channel.listen_for_publisher_confirms()?;
    let returns = channel.listen_for_returns()?;
    channel.enable_publisher_confirms()?;
    Ok((channel, Answers { confirms, returns }))
}

/// Why the broker is in alarm; waits until it is, until `limit`, or until `done` is
/// disconnected. `Err` at the limit.
fn wait_for_alarm(
    alarms: &Receiver<Note>,
    done: &Receiver<()>,
    limit: Duration,
) -> Option<Result<String, ()>> {
    let late = after(limit);
    loop {
        select! {
            recv(done) -> _ => return None,
            recv(late) -> _ => return Some(Err(())),
            recv(alarms) -> note => match note {
                Ok(Note::Blocked(reason)) => return Some(Ok(reason)),
                Ok(Note::Unblocked) => {}
                // The connection is gone, so the work will end.
                Err(_) => return None,
            },
        }
    }
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
