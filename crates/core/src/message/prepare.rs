//! Converts a [`Message`] to its published form, and refuses invalid messages.

use std::time::Instant;

use jiff::Timestamp;

use crate::{
    codec::{self, AppKey, Delay, DelayError, RoutingKeyError},
    topology::Unit,
};

use super::{
    Headers, MAX_SHORT, Message, Properties, Published, Quota, Schedule, Value, admit,
    carried::{MAX_NESTING, check_headers},
    forbidden::allowed,
    header::table_len,
    headers::{DUE, EXPIRES},
    resend::take_expiration,
};

/// The most bytes that properties and headers of a message may take together.
///
/// They travel in one frame, which cannot be split. RabbitMQ negotiates frames of 131,072 bytes by
/// default and closes the connection over a larger one. The remaining bytes are for values that the
/// router adds.
pub const MAX_PROPERTIES_BYTES: usize = 128 * 1024 - 1024;

/// Why a message is not sent. In that case, nothing has left the process.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidMessage {
    /// It is due later than the levels can hold it.
    #[error(transparent)]
    Delay(#[from] DelayError),
    /// A property is too long for its length field.
    #[error("the property `{property}` is {length} bytes long; AMQP carries at most 255")]
    PropertyTooLong {
        /// The name of the property.
        property: &'static str,
        /// Its length in bytes.
        length: usize,
    },
    /// A header's name is too long for its length field.
    #[error("the header name `{start}…` is {length} bytes long; AMQP carries at most 255")]
    HeaderNameTooLong {
        /// How the name begins.
        start: String,
        /// Its length in bytes.
        length: usize,
    },
    /// Properties and headers do not fit into one frame.
    #[error(
        "properties and headers take {length} bytes, more than the {MAX_PROPERTIES_BYTES} that fit into one \
         frame; put large values into the body"
    )]
    PropertiesTooLarge {
        /// Their length in bytes.
        length: usize,
    },
    /// The body is larger than the quota of this router.
    #[error("the body is {size} bytes long, more than the {limit} that `max_message_size` allows here")]
    OverSize {
        /// Its length in bytes.
        size: usize,
        /// The largest size allowed, in bytes.
        limit: usize,
    },
    /// The delay is longer than the quota of this router.
    #[error("the delay of {delay} is longer than the {limit} that `max_delay` allows here for `{app}`")]
    OverDelay {
        /// The application it is for.
        app: AppKey,
        /// The delay, including what the tolerance added.
        delay: Delay,
        /// The longest delay allowed.
        limit: Delay,
    },
    /// App key and id do not fit into one routing key.
    #[error(transparent)]
    RoutingKey(#[from] RoutingKeyError),
    /// A header holds a number over which every broker closes the connection.
    #[error(
        "the header `{name}` is or contains {value}, and a broker closes the connection over it; send it as \
         text, or leave it out"
    )]
    NotFinite {
        /// The name of the header.
        name: String,
        /// The number: `NaN`, `inf` or `-inf`.
        value: String,
    },
    /// A header is or contains a decimal. RabbitMQ crashes when it stores a decimal in a stream. If
    /// the message came from a level, all dead-lettering of the node ends.
    #[error(
        "the header `{name}` is or contains a decimal, which a stream cannot store: delays would end for \
         every application; send it as text, or as a whole number of a smaller unit"
    )]
    Decimal {
        /// The name of the header.
        name: String,
    },
    /// Tables and arrays are nested too deeply.
    #[error(
        "the header `{name}` is nested too deeply: at most {MAX_NESTING} tables and arrays, including the \
         table of all headers; put deep structures into the body"
    )]
    TooDeep {
        /// The name of the header.
        name: String,
    },
    /// The property `expiration` is not a number of milliseconds.
    #[error("the property `expiration` is `{found}`; write milliseconds as digits, such as `60000`")]
    Expiration {
        /// Its value.
        found: String,
    },
}

/// A message in its published form: for programs that publish with their own client, but with
/// headers and keys as the router writes them.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Wire {
    /// The exchange it is published to, if it is not the entry.
    pub exchange: Option<String>,
    /// The routing key, with the remaining delay.
    pub routing_key: String,
    /// Standard properties; send the message persistent as well.
    pub properties: Properties,
    /// Headers, without those that would move or lose the message.
    pub headers: Headers,
}

/// Refuses values that would corrupt the wire format. The client library writes the length of a
/// short string as one byte without a check. The broker would then read the rest of the text as the
/// next field.
pub fn check(message: &Message) -> Result<(), InvalidMessage> {
    if let Some(id) = &message.id {
        codec::check_room(&message.app, id)?;
    }
    check_parts(&message.properties, &message.headers)
}

/// Like [`check`], for everything except the body.
pub fn check_parts(properties: &Properties, headers: &Headers) -> Result<(), InvalidMessage> {
    let mut length = 0;
    for (property, text) in properties.short_strings() {
        if text.len() > MAX_SHORT {
            return Err(InvalidMessage::PropertyTooLong { property, length: text.len() });
        }
        length += 1 + text.len();
    }
    if let Some(found) = &properties.expiration
        && expiration_ms(found).is_none()
    {
        return Err(InvalidMessage::Expiration { found: found.clone() });
    }
    check_headers(headers)?;
    length += table_len(headers);
    if length > MAX_PROPERTIES_BYTES {
        return Err(InvalidMessage::PropertiesTooLarge { length });
    }
    Ok(())
}

pub(super) fn expiration_ms(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

impl Wire {
    /// The message as it is published at `now`, to a set with this unit of time.
    ///
    /// ```
    /// use delayline_core::{Message, codec::AppKey, message::Wire, topology::Unit};
    ///
    /// let message = Message::after(AppKey::new("billing")?, "90s".parse()?, "invoice 17");
    /// let wire = Wire::at(&message, Unit::SECOND, jiff::Timestamp::now())?;
    /// assert_eq!(wire.routing_key, "delay.0000.0000.0000.0000.0000.0101.1010.billing");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// AMQP cannot carry a value, or the delay is too long.
    pub fn at(message: &Message, unit: Unit, now: Timestamp) -> Result<Self, InvalidMessage> {
        // The monotonic clock measures only the time between two points: here, none.
        let taken = Instant::now();
        let schedule = admit(&Quota::default(), message, (unit, false), now, taken)?;
        Ok(Self::new(message, &schedule, now, taken))
    }

    /// The message as it is published at `sent`. `taken` is the wall-clock time at which the router
    /// received it. Its expiry counts from there.
    ///
    /// It does not check for values that AMQP cannot carry, such as a property of more than 255
    /// bytes.
    #[must_use]
    pub fn new(message: &Message, schedule: &Schedule, taken: Timestamp, sent: Instant) -> Self {
        if let Some(direct) = message.direct.as_ref().filter(|direct| direct.verbatim) {
            return Self {
                exchange: Some(direct.exchange.clone()),
                routing_key: direct.routing_key.clone(),
                properties: message.properties.clone(),
                headers: message.headers.clone(),
            };
        }
        let mut headers = allowed(&message.headers);
        if message.direct.is_none() {
            headers.insert(DUE.into(), Value::I64(schedule.due().as_millisecond()));
        }
        let mut properties = message.properties.clone();
        if let Some(expires) = take_expiration(&mut properties, taken) {
            headers.insert(EXPIRES.into(), expires);
        }
        let (exchange, routing_key) = match &message.direct {
            Some(direct) => (Some(direct.exchange.clone()), direct.routing_key.clone()),
            None => (None, codec::encode(schedule.remaining(sent), &message.app, message.id.as_ref())),
        };
        Self { exchange, routing_key, properties, headers }
    }

    /// The approximate size in bytes of its routing key, properties and headers.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        let properties = self.properties.short_strings().map(|(_, text)| 1 + text.len()).sum::<usize>();
        self.routing_key.len() + properties + table_len(&self.headers)
    }

    /// The parts that identify a returned message. The caller supplies the two others: the entry's
    /// name and the body.
    pub fn published<'a>(&'a self, entry: &'a str, body: &'a [u8]) -> Published<'a> {
        let Self { exchange, routing_key, properties, headers } = self;
        let exchange = exchange.as_deref().unwrap_or(entry);
        Published { exchange, routing_key, properties, headers, body }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::direct;

    fn message() -> Message {
        let delay = Delay::from_seconds(3).unwrap();
        Message::after(AppKey::new("billing").unwrap(), delay, "body")
    }

    fn wire(message: &Message) -> Wire {
        let (taken, sent) = (Timestamp::UNIX_EPOCH, Instant::now());
        let schedule =
            Schedule::new(message.when, message.tolerance, (Unit::SECOND, false), taken, sent).unwrap();
        Wire::new(message, &schedule, taken, sent)
    }

    #[test]
    fn strips_headers_that_would_move_the_message_and_keeps_the_rest() {
        let mut message = message().with_header("keep", 1_i32).with_header("x-deathly", "kept");
        for name in [
            "CC",
            "BCC",
            "x-death",
            "x-first-death-queue",
            "x-last-death-reason",
            "x-delivery-count",
            "x-opt-delivery-time",
            "x-opt-delivery-delay",
        ] {
            message.headers.insert(name.into(), Value::Array(vec!["x".into()]));
        }
        let wire = wire(&message);
        let names: Vec<_> = wire.headers.keys().map(String::as_str).collect();
        assert_eq!(names, ["delayline-due", "keep", "x-deathly"]);
        assert_eq!(wire.headers["keep"], Value::I32(1));
    }

    #[test]
    fn a_direct_message_keeps_its_address_and_has_no_due_time() {
        let app = AppKey::new("billing").unwrap();
        let mut message = direct::to(app, "delay.parked".into(), "body").with_header("x-death", 1_i32);
        message.properties.expiration = Some("5".into());
        let wire = wire(&message);
        assert_eq!(wire.exchange.as_deref(), Some("delay.parked"));
        assert_eq!(wire.routing_key, "billing");
        assert_eq!(wire.headers, Headers::from([(EXPIRES.into(), Value::I64(5))]));
    }

    #[test]
    fn moves_expiration_into_a_header() {
        let mut message = message();
        message.properties.expiration = Some("60000".into());
        let wire = wire(&message);
        assert_eq!(wire.properties.expiration, None);
        assert_eq!(wire.headers[EXPIRES], Value::I64(60_000));
        assert_eq!(wire.headers[DUE], Value::I64(3_000));
    }

    #[test]
    fn refuses_values_that_would_corrupt_the_wire() {
        let too_long = "x".repeat(256);
        let mut property = message();
        property.properties.message_id = Some(too_long.clone());
        assert_eq!(
            check(&property),
            Err(InvalidMessage::PropertyTooLong { property: "message_id", length: 256 })
        );
        let nested = Headers::from([(too_long.clone(), Value::Void)]);
        for headers in [
            Headers::from([(too_long, Value::Void)]),
            Headers::from([("deep".into(), Value::Array(vec![Value::Table(nested)]))]),
        ] {
            let message = Message { headers, ..message() };
            assert!(matches!(check(&message), Err(InvalidMessage::HeaderNameTooLong { length: 256, .. })));
        }
        let large = message().with_header("large", "x".repeat(MAX_PROPERTIES_BYTES));
        assert!(matches!(check(&large), Err(InvalidMessage::PropertiesTooLarge { .. })));
        for found in ["", "1s", "-1", "1.5", "99999999999999999999"] {
            let mut message = message();
            message.properties.expiration = Some(found.into());
            assert_eq!(check(&message), Err(InvalidMessage::Expiration { found: found.into() }));
        }
        assert_eq!(check(&message()), Ok(()));
    }
}
