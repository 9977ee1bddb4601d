//! Publishing with the client library alone.

use std::time::Duration;

use amiquip::{
    AmqpProperties, AmqpValue, Auth, Channel, Confirm, Connection, ConnectionOptions, ConnectionTuning,
    FieldTable, Publish,
};
use crossbeam_channel::Receiver;
use delayline_settings::Settings;

/// A connection with a channel in confirm mode.
pub(crate) struct Bare {
    connection: Connection,
    channel: Channel,
    confirms: Receiver<Confirm>,
}

impl Bare {
    pub(crate) fn open(settings: &Settings) -> Self {
        let address = (settings.broker.host.as_str(), settings.broker.port);
        let stream = std::net::TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        let stream = mio::net::TcpStream::from_stream(stream).unwrap();
        // As guest, and in the vhost `/`.
        let options = ConnectionOptions::<Auth>::default();
        let mut connection =
            Connection::insecure_open_stream(stream, options, ConnectionTuning::default()).unwrap();
        let channel = connection.open_channel(None).unwrap();
        let confirms = channel.listen_for_publisher_confirms().unwrap();
        channel.enable_publisher_confirms().unwrap();
        Self { connection, channel, confirms }
    }

    /// Publishes the same message `count` times, with up to `window` unconfirmed. It
    /// encodes nothing twice, keeps no message, and knows only how many confirms are
    /// missing: as little as a publisher can do that does not lose count.
    pub(crate) fn publish(&self, count: u64, window: u64, exchange: &str, key: &str, body: usize) {
        let mut headers = FieldTable::new();
        headers.insert("delayline-due".into(), AmqpValue::LongLongInt(1_800_000_000_000));
        let properties = AmqpProperties::default().with_delivery_mode(2).with_headers(headers);
        // Tags count on over all calls.
        let (mut sent, mut confirmed) = (0, 0);
        while confirmed < count {
            if sent < count && sent - confirmed < window {
                let body = vec![b'x'; body];
                let publish = Publish {
                    body: &body,
                    routing_key: key.to_owned(),
                    mandatory: true,
                    immediate: false,
                    properties: properties.clone(),
                };
                self.channel.basic_publish(exchange, publish).unwrap();
                sent += 1;
                continue;
            }
            match self.confirms.recv_timeout(Duration::from_secs(60)).expect("a confirm") {
                // An answer to many names the last of them; the broker answers in
                // order for quorum queues of one node. For one call per connection.
                Confirm::Ack(ack) if ack.multiple => confirmed = confirmed.max(ack.delivery_tag),
                Confirm::Ack(_) => confirmed += 1,
                Confirm::Nack(nack) => panic!("message {} was refused", nack.delivery_tag),
            }
        }
    }

    pub(crate) fn close(self) {
        self.connection.close().unwrap();
    }
}
