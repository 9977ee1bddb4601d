//! The size of a message's properties and headers when it arrives: pure.
//!
//! Each queue on the way adds an entry to the header `x-death`. Properties and headers travel in one frame,
//! which cannot be split. If that frame is larger than a consumer's limit, the consumer loses its connection
//! at each delivery.

use super::Wire;
use crate::codec::RoutingKey;

/// The smallest frame limit that AMQP allows, in bytes. Some clients ask for it by default, such as amqplib
/// for JavaScript before 0.10.6. RabbitMQ 4.1 and newer refuse less than 8,192.
pub const SMALLEST_FRAME_LIMIT: usize = 4_096;

/// The size of an entry of `x-death`, without the routing key that it repeats: names and types of its
/// fields, the names of a level's exchange and queue, a time and a count.
const DEATH: usize = 130;

/// The size of everything else that the broker adds: the headers `x-first-death-*` and `x-last-death-*`, and
/// the beginning of the frame.
const REST: usize = 270;

impl Wire {
    /// The number of level queues that the message passes; less in a set with shortcut queues.
    fn levels(&self) -> usize {
        let key = self.exchange.is_none().then(|| self.routing_key.parse::<RoutingKey>());
        let delay = key.and_then(Result::ok).map_or(0, |key| key.delay.seconds());
        delay.count_ones() as usize
    }

    /// The approximate size in bytes of the frame with its properties and headers, when it arrives.
    fn arriving_len(&self) -> usize {
        let deaths = self.levels() * (DEATH + self.routing_key.len());
        self.encoded_len() - self.routing_key.len() + deaths + REST
    }

    /// A warning if the properties and headers of the message will not fit the frames of every consumer.
    #[must_use]
    pub fn oversized(&self) -> Option<String> {
        let bytes = self.arriving_len();
        (bytes > SMALLEST_FRAME_LIMIT).then(|| {
            format!(
                "a message has properties and headers of about {bytes} bytes when it arrives, {} entries of \
                 `x-death` included: a consumer with the frame limit {SMALLEST_FRAME_LIMIT} (amqplib before \
                 0.10.6) loses its connection at each delivery. Send fewer headers, or raise that limit. \
                 Later messages of this size are not reported",
                self.levels()
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        codec::{AppKey, Delay},
        message::{Headers, Properties, Value},
    };

    fn wire(seconds: u64, text: usize) -> Wire {
        let (delay, app) = (Delay::from_seconds(seconds).unwrap(), AppKey::new("billing").unwrap());
        Wire {
            exchange: None,
            routing_key: RoutingKey::new(delay, app).encode(),
            properties: Properties::default(),
            headers: Headers::from([("text".to_owned(), Value::Text("x".repeat(text)))]),
        }
    }

    #[test]
    fn each_level_adds_to_the_headers() {
        assert_eq!([0, 1, 8_191].map(|seconds| wire(seconds, 0).levels()), [0, 1, 13]);
        let grown = wire(8_191, 0).arriving_len() - wire(0, 0).arriving_len();
        assert_eq!(grown / 13, DEATH + wire(0, 0).routing_key.len());
        // 13 levels and headers of 1,900 bytes were too large on a broker, 28 levels always are.
        assert!(wire(8_191, 1_900).oversized().is_some_and(|text| text.contains("13 entries")));
        assert_eq!(wire(8_191, 1_000).oversized(), None);
        assert!(wire(268_435_455, 0).oversized().is_some());
        // To another exchange, it passes no level.
        let direct = Wire { exchange: Some("x".into()), ..wire(8_191, 0) };
        assert_eq!((direct.levels(), direct.arriving_len()), (0, wire(0, 0).arriving_len()));
    }
}
