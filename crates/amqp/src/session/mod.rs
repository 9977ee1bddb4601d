//! Declaring, binding, counting, consuming and deleting: one call at a time.

mod browse;
mod objects;
mod probe;

use std::{fmt, time::Duration};

use amiquip::{AmqpValue, Channel, Connection, ConnectionBlockedNotification, ConsumerOptions, FieldTable};
use crossbeam_channel::Receiver;

use crate::{
    arrivals::Arrivals,
    broker::Broker,
    connection::{CLOSE_TIMEOUT, Line, Opened, close, open_within},
    consumer::{Consumer, Started},
    error::{AmqpError, explain},
};

pub use browse::{Browser, Page, Place, Turned};
pub use objects::QueueDepth;
pub use probe::ProbeAnswer;

/// How long passing a message from one queue to the next takes at most, unless the broker is
/// overloaded or the next queue refuses.
///
/// How long to wait between unbinding a queue and deleting it. If a queue is deleted while a
/// message is being passed to it, that message gets stuck in its source queue for three minutes. If
/// another queue has taken it too, it stays stuck for good. 32 such messages block a level for
/// every application.
///
/// Measured under load: of 15 queues deleted right after they were unbound, 3 messages got stuck on
/// RabbitMQ 3.10.8 and 2 on 4.0.5. Of 30 deleted half a second later, none did, on these and on
/// 4.3.6.
pub const HAND_OVER: Duration = Duration::from_millis(500);

/// The header with a message's position in a stream, and the argument for where reading begins.
pub const STREAM_OFFSET: &str = "x-stream-offset";

/// Where reading a stream begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamStart {
    /// With the oldest message of the stream.
    First,
    /// With the part that was written last. It has one message or more.
    Last,
    /// With the first part that was written at this time or later, in seconds since the epoch. If there is
    /// none, with the next message that is published.
    At(i64),
    /// With the message at this place, or the next one if it was cut off.
    Place(u64),
}

/// A connection for administration.
///
/// The broker closes the channel over every refusal, and the session opens another one for the next
/// call. A call without an answer within [`request_timeout`](Broker::request_timeout) ends the
/// connection and the session.
pub struct Session {
    broker: Broker,
    purpose: &'static str,
    connection: Option<Connection>,
    channel: Option<Channel>,
    line: Line,
    limit: Duration,
    /// Reports when the broker accepts nothing from this connection.
    blocked: Receiver<ConnectionBlockedNotification>,
    server_version: Option<String>,
    cluster_name: Option<String>,
    arrivals: Arrivals,
}

impl Session {
    /// Connects.
    ///
    /// # Errors
    /// Unreachable, TLS, or refused.
    pub fn open(broker: &Broker) -> Result<Self, AmqpError> {
        Self::open_for(broker, "administration")
    }

    /// Connects under a name that the broker shows in its list of connections.
    pub fn open_for(broker: &Broker, purpose: &'static str) -> Result<Self, AmqpError> {
        let arrivals = Arrivals::default();
        let limit = broker.request_timeout;
        let us = broker.clone();
        open_within(broker, purpose, Some(arrivals.clone()), move |Opened { mut connection, line }| {
            let blocked = connection.listen_for_connection_blocked().map_err(explain)?;
            let [server_version, cluster_name] = ["version", "cluster_name"].map(|property| match connection
                .server_properties()
                .get(property)
            {
                Some(AmqpValue::LongString(text)) => Some(text.clone()),
                _ => None,
            });
            let (connection, arrivals) = (Some(connection), arrivals.clone());
            Ok(Self {
                broker: us.clone(),
                purpose,
                connection,
                channel: None,
                line,
                limit,
                blocked,
                server_version,
                cluster_name,
                arrivals,
            })
        })
    }

    /// The line of its connection. It reports when the connection is lost.
    pub fn line(&self) -> Line {
        self.line.clone()
    }

    /// The version the broker introduces itself with, such as `3.10.8`.
    #[must_use]
    pub fn server_version(&self) -> Option<String> {
        self.server_version.clone()
    }

    /// The broker's name for its cluster.
    pub fn cluster_name(&self) -> Option<&str> {
        self.cluster_name.as_deref()
    }

    fn call<T>(&mut self, work: impl FnOnce(&Channel) -> amiquip::Result<T>) -> Result<T, AmqpError> {
        let channel = match self.channel.take() {
            Some(channel) => channel,
            None => self.new_channel()?,
        };
        let (result, cut) = self.line.within(self.limit, || work(&channel));
        match result {
            Ok(value) => {
                self.channel = Some(channel);
                Ok(value)
            }
            Err(error) => Err(self.explain(explain(error), Some(channel), cut)),
        }
    }

    fn new_channel(&mut self) -> Result<Channel, AmqpError> {
        let gone = || AmqpError::Lost { reason: "the connection is closed".into() };
        let connection = self.connection.as_mut().ok_or_else(gone)?;
        let (result, cut) = self.line.within(self.limit, || connection.open_channel(None));
        result.map_err(|error| self.explain(explain(error), None, cut))
    }

    /// A channel that ended with the connection does not hold the reason. The connection does,
    /// unless it was cut because no answer arrived.
    fn explain(&mut self, error: AmqpError, channel: Option<Channel>, cut: bool) -> AmqpError {
        match (&error, self.connection.take()) {
            (AmqpError::Lost { .. }, Some(connection)) => {
                let cause = close(connection, channel, CLOSE_TIMEOUT);
                if cut { self.silent() } else { cause.unwrap_or(error) }
            }
            (_, connection) => {
                self.connection = connection;
                error
            }
        }
    }

    /// Why no answer arrived, as far as the broker has reported.
    fn silent(&self) -> AmqpError {
        let reason = match self.blocked.try_iter().last() {
            Some(ConnectionBlockedNotification::Blocked(reason)) => format!(
                "it is in alarm ({reason}) and reads nothing from connections that publish; free the \
                 resource it is short of and try again"
            ),
            _ => "it may be overloaded or stopped; see its log, or give it longer with `request_timeout`"
                .into(),
        };
        AmqpError::Silent { limit: self.limit, reason }
    }

    /// Consumes from a queue on a separate channel, with at most `prefetch` unacknowledged
    /// messages.
    ///
    /// # Errors
    /// 404 without such a queue, 403 without the permission.
    pub fn consume(&mut self, queue: &str, prefetch: u16) -> Result<Consumer, AmqpError> {
        let channel = self.new_channel()?;
        self.consume_on(channel, queue, prefetch, ConsumerOptions::default())
    }

    /// Like [`consume`](Self::consume), on several channels that share the prefetch. A message that
    /// takes the broker seconds to write delays only later messages on the same channel.
    ///
    /// # Errors
    /// As for [`consume`](Self::consume).
    pub fn consume_in_lanes(
        &mut self,
        queue: &str,
        prefetch: u16,
        lanes: u16,
    ) -> Result<Consumer, AmqpError> {
        let lanes = lanes.clamp(1, prefetch.max(1));
        // All channels are opened first. The client library panics if it opens a channel after the
        // broker has closed the connection, which the first message may cause.
        let channels = (0..lanes).map(|_| self.new_channel()).collect::<Result<Vec<_>, _>>()?;
        let mut joined: Option<Consumer> = None;
        for (lane, channel) in (0..lanes).zip(channels) {
            let share = prefetch / lanes + u16::from(lane < prefetch % lanes);
            let consumer = self.consume_on(channel, queue, share, ConsumerOptions::default())?;
            match &mut joined {
                Some(joined) => joined.join(consumer),
                none => *none = Some(consumer),
            }
        }
        joined.ok_or_else(|| AmqpError::Lost { reason: "it has no channel".into() })
    }

    /// Ends the connection if unacknowledged deliveries have more than `most` bytes of bodies from now on, unless a
    /// single body is larger: AMQP limits only their number, and the broker may send all at once. See
    /// [`Consumer::overflow`].
    pub fn hold_at_most(&self, most: usize) {
        self.arrivals.limit(most);
    }

    /// Reads a stream, from its first message or from the part that was written last. Each message
    /// has its position in the header [`STREAM_OFFSET`]. It must be acknowledged before others
    /// follow, and stays in the stream.
    ///
    /// # Errors
    /// 404 without such a queue, 403 without the permission, 540 if it is not a stream.
    pub fn read_stream(
        &mut self,
        queue: &str,
        from: StreamStart,
        prefetch: u16,
    ) -> Result<Consumer, AmqpError> {
        let from = match from {
            StreamStart::First => AmqpValue::LongString("first".into()),
            StreamStart::Last => AmqpValue::LongString("last".into()),
            StreamStart::At(second) => AmqpValue::Timestamp(u64::try_from(second).unwrap_or(0)),
            StreamStart::Place(place) => AmqpValue::LongLongInt(i64::try_from(place).unwrap_or(i64::MAX)),
        };
        let mut arguments = FieldTable::new();
        arguments.insert(STREAM_OFFSET.into(), from);
        let options = ConsumerOptions { arguments, ..ConsumerOptions::default() };
        let channel = self.new_channel()?;
        self.consume_on(channel, queue, prefetch, options)
    }

    /// A separate channel to read through queues.
    ///
    /// # Errors
    /// The connection is gone, or has no free channels.
    pub fn browse(&mut self) -> Result<Browser, AmqpError> {
        Ok(Browser::new(self.new_channel()?, self.arrivals.clone(), self.line.clone(), self.limit))
    }

    fn consume_on(
        &mut self,
        channel: Channel,
        queue: &str,
        prefetch: u16,
        options: ConsumerOptions,
    ) -> Result<Consumer, AmqpError> {
        let (started, cut) = self
            .line
            .within(self.limit, || Consumer::start(channel, queue, prefetch, options, self.arrivals.clone()));
        match started {
            Started::Running(consumer) => Ok(consumer),
            Started::Failed(error, channel) => Err(self.explain(error, Some(channel), cut)),
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            close(connection, self.channel.take(), CLOSE_TIMEOUT);
        }
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("open", &self.connection.is_some()).finish_non_exhaustive()
    }
}
