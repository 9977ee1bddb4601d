//! Publishing with the client library alone, to compare other ways of publishing with.

use std::{collections::BTreeSet, error::Error, net::TcpStream, time::Duration};

use amiquip::{
    AmqpProperties, AmqpValue, Auth, Channel, Confirm, Connection, ConnectionOptions, ConnectionTuning,
    FieldTable, Publish,
};
use crossbeam_channel::Receiver;
use delayline_settings::Settings;

/// Any failure ends a measurement, with a reason for people.
pub type Fallible<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// How long the broker may take to confirm a message.
const PATIENCE: Duration = Duration::from_secs(60);

/// Where a message goes, and its properties.
#[derive(Debug, Clone)]
pub struct Address {
    /// The exchange; an empty name for the default exchange.
    pub exchange: String,
    /// The routing key.
    pub key: String,
    /// The properties, headers included.
    pub properties: AmqpProperties,
}

impl Address {
    /// A persistent message.
    pub fn new(exchange: impl Into<String>, key: impl Into<String>) -> Self {
        let properties = AmqpProperties::default().with_delivery_mode(2);
        Self { exchange: exchange.into(), key: key.into(), properties }
    }

    /// With this header alone.
    #[must_use]
    pub fn with_header(mut self, name: &str, value: AmqpValue) -> Self {
        let mut headers = FieldTable::new();
        headers.insert(name.into(), value);
        self.properties = self.properties.with_headers(headers);
        self
    }
}

/// A connection with a channel in confirm mode. It keeps no message, and knows only which
/// confirms are missing: as little as a publisher can do that does not lose count.
#[expect(missing_debug_implementations, reason = "a channel of the client library has none")]
pub struct Bare {
    connection: Connection,
    channel: Channel,
    confirms: Receiver<Confirm>,
    window: usize,
    sent: u64,
    missing: BTreeSet<u64>,
}

impl Bare {
    /// Connects to a private node, as `guest` and in the vhost `/`, for at most `window`
    /// messages without a confirm.
    ///
    /// # Errors
    /// The node does not answer.
    pub fn open(settings: &Settings, window: usize) -> Fallible<Self> {
        let stream = TcpStream::connect((settings.broker.host.as_str(), settings.broker.port))?;
        stream.set_nodelay(true)?;
        let stream = mio::net::TcpStream::from_stream(stream)?;
        let options = ConnectionOptions::<Auth>::default();
        let mut connection = Connection::insecure_open_stream(stream, options, ConnectionTuning::default())?;
        let channel = connection.open_channel(None)?;
        let confirms = channel.listen_for_publisher_confirms()?;
        channel.enable_publisher_confirms()?;
        Ok(Self { connection, channel, confirms, window, sent: 0, missing: BTreeSet::new() })
    }

    /// Publishes a message, once there is room for it.
    ///
    /// # Errors
    /// The broker refused a message, or is gone.
    pub fn publish(&mut self, to: &Address, body: &[u8]) -> Fallible<()> {
        self.settle(self.window - 1)?;
        let publish = Publish {
            body,
            routing_key: to.key.clone(),
            mandatory: true,
            immediate: false,
            properties: to.properties.clone(),
        };
        self.channel.basic_publish(&to.exchange, publish)?;
        self.sent += 1;
        self.missing.insert(self.sent);
        Ok(())
    }

    /// Waits until at most so many messages have no confirm.
    ///
    /// # Errors
    /// The broker refused a message, or is gone.
    pub fn settle(&mut self, at_most: usize) -> Fallible<()> {
        while self.missing.len() > at_most {
            match self.confirms.recv_timeout(PATIENCE)? {
                Confirm::Ack(ack) if ack.multiple => {
                    self.missing = self.missing.split_off(&(ack.delivery_tag + 1));
                }
                Confirm::Ack(ack) => drop(self.missing.remove(&ack.delivery_tag)),
                Confirm::Nack(nack) => {
                    return Err(format!("the broker refused message {}", nack.delivery_tag).into());
                }
            }
        }
        Ok(())
    }

    /// Waits for every confirm, and closes the connection.
    ///
    /// # Errors
    /// The broker refused a message, or is gone.
    pub fn close(mut self) -> Fallible<()> {
        self.settle(0)?;
        Ok(self.connection.close()?)
    }
}
