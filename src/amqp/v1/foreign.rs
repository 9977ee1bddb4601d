//! What a message holds that AMQP 0-9-1 may have no form for.

use std::{collections::BTreeMap, fmt};

use super::wire::{Items, Value, value};

/// How many values of one message are looked at.
const VALUES: usize = 10_000;

/// The longest text of a property in 0-9-1.
const SHORT: usize = 255;

/// Something that AMQP 0-9-1 has no form for. What the broker makes of it differs by its
/// version: it leaves the header out, or closes the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Oddity {
    /// A single character.
    Char,
    /// A UUID.
    Uuid,
    /// A content type or encoding of more than 255 bytes.
    LongType,
    /// Another text of more than 255 bytes where 0-9-1 has room for as many.
    LongText,
    /// Infinity, or what is no number.
    NotFinite,
    /// A decimal number.
    Decimal,
    /// A time, which 0-9-1 counts in whole seconds from 1970.
    Time,
    /// Bytes that are no value.
    Unreadable,
}

impl fmt::Display for Oddity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Char => "a char",
            Self::Uuid => "a UUID",
            Self::LongType | Self::LongText => "longer than 255 bytes",
            Self::NotFinite => "no finite number",
            Self::Decimal => "a decimal number",
            Self::Time => "a time",
            Self::Unreadable => "unreadable",
        })
    }
}

/// A message as AMQP 1.0 shows it.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Foreign {
    /// The exchange it came through last.
    pub(crate) exchange: String,
    /// Its routing key.
    pub(crate) routing_key: String,
    /// Whether it was handed out before.
    pub(crate) redelivered: bool,
    /// The property `message-id`, if it is text.
    pub(crate) message_id: Option<String>,
    /// Its properties, for people to read.
    pub(crate) properties: BTreeMap<&'static str, String>,
    /// Its headers (application properties, and annotations beside the broker's own).
    pub(crate) headers: BTreeMap<String, String>,
    /// The payload, or the first part of it.
    pub(crate) body: Vec<u8>,
    /// How long the payload is, as far as can be told.
    pub(crate) bytes: u64,
    /// What 0-9-1 may have no form for, and where it is; no more than one of each kind.
    pub(crate) oddities: BTreeMap<Oddity, String>,
}

/// The properties in the order of the specification.
const PROPERTIES: [&str; 13] = [
    "message-id",
    "user-id",
    "to",
    "subject",
    "reply-to",
    "correlation-id",
    "content-type",
    "content-encoding",
    "absolute-expiry-time",
    "creation-time",
    "group-id",
    "group-sequence",
    "reply-to-group-id",
];

impl Foreign {
    /// Reads a message, or the first bytes of one that has `whole` of them.
    pub(super) fn read(bytes: &[u8], whole: u64) -> Self {
        let mut message = Self::default();
        let mut rest = bytes;
        while !rest.is_empty() {
            let section = rest;
            match value(&mut rest) {
                Some((Some(0x70), Value::List(fields))) => message.head(fields),
                Some((Some(0x72), Value::Map(entries))) => message.annotations(entries),
                Some((Some(0x73), Value::List(fields))) => message.properties(fields),
                Some((Some(0x74), Value::Map(entries))) => message.application_properties(entries),
                Some((Some(0x75), Value::Binary(data))) => {
                    message.body.extend_from_slice(data);
                    message.bytes += data.len() as u64;
                }
                // A list or another single value: its bytes as they are.
                Some((Some(0x76 | 0x77), _)) => {
                    let data = &section[..section.len() - rest.len()];
                    message.body.extend_from_slice(data);
                    message.bytes += data.len() as u64;
                }
                Some(_) => {}
                None => {
                    message.cut(section, whole - (bytes.len() - section.len()) as u64);
                    break;
                }
            }
        }
        message
    }

    /// The last section goes on beyond what was kept.
    fn cut(&mut self, section: &[u8], whole: u64) {
        if let [0x00, 0x53, 0x75, 0xb0, _, _, _, _, data @ ..] = section {
            self.body.extend_from_slice(data);
            self.bytes += whole.saturating_sub(8);
        } else {
            self.odd(Oddity::Unreadable, "the message");
        }
    }

    /// Whose it is and what is odd about it, on one line of a log.
    pub(crate) fn described(&self) -> String {
        let odd: Vec<_> =
            self.oddities.iter().map(|(oddity, place)| format!("{place} is {oddity}")).collect();
        let id = self.message_id.as_deref().unwrap_or("-").escape_debug();
        format!("key={:?} id={id} ({})", self.routing_key, odd.join(", "))
    }

    /// How long the payload is, as far as can be told.
    pub(crate) fn body_len(&self) -> usize {
        usize::try_from(self.bytes).unwrap_or(usize::MAX)
    }

    fn odd(&mut self, oddity: Oddity, place: &str) {
        self.oddities.entry(oddity).or_insert_with(|| place.to_owned());
    }

    fn head(&mut self, mut fields: Items<'_>) {
        let first_acquirer = fields.nth(3);
        let deliveries = fields.next().and_then(|value| value.number());
        self.redelivered = first_acquirer == Some(Value::Bool(false)) || deliveries.unwrap_or(0) > 0;
    }

    fn annotations(&mut self, entries: Items<'_>) {
        for (name, value) in pairs(entries) {
            match name.as_str() {
                "x-exchange" => self.exchange = value.text().unwrap_or_default(),
                "x-routing-key" => self.routing_key = value.text().unwrap_or_default(),
                // The broker's own, such as the list of deaths.
                name if name.starts_with("x-opt-") => {}
                _ => self.header(name, &value),
            }
        }
    }

    fn application_properties(&mut self, entries: Items<'_>) {
        for (name, value) in pairs(entries) {
            self.header(name, &value);
        }
    }

    fn header(&mut self, name: String, value: &Value<'_>) {
        let place = format!("header `{}`", name.escape_debug());
        if name.len() > SHORT {
            self.odd(Oddity::LongText, "the name of a header");
        }
        let mut left = VALUES;
        let mut open = vec![std::iter::once(*value).collect::<Vec<_>>()];
        while let Some(values) = open.pop() {
            for value in values {
                left = left.saturating_sub(1);
                if left == 0 {
                    return;
                }
                match value {
                    Value::List(items) | Value::Map(items) => open.push(items.take(left).collect()),
                    value => {
                        if let Some(oddity) = oddity(&value) {
                            self.odd(oddity, &place);
                        }
                    }
                }
            }
        }
        self.headers.insert(name, shown(value));
    }

    fn properties(&mut self, fields: Items<'_>) {
        for (name, value) in PROPERTIES.into_iter().zip(fields) {
            let length = match value {
                Value::Null => continue,
                Value::Text(bytes) | Value::Symbol(bytes) | Value::Binary(bytes) => bytes.len(),
                _ => 0,
            };
            if length > SHORT {
                let of_type = ["content-type", "content-encoding"].contains(&name);
                let oddity = if of_type { Oddity::LongType } else { Oddity::LongText };
                self.odd(oddity, &format!("property `{name}`"));
            }
            if name == "message-id" {
                self.message_id = value.text();
            }
            self.properties.insert(name, shown(&value));
        }
    }
}

/// The entries of a map whose keys are text.
fn pairs(mut entries: Items<'_>) -> impl Iterator<Item = (String, Value<'_>)> {
    std::iter::from_fn(move || {
        let key = entries.next()?;
        let value = entries.next()?;
        Some((key.text().unwrap_or_else(|| shown(&key)), value))
    })
}

fn oddity(value: &Value<'_>) -> Option<Oddity> {
    match value {
        Value::Char(_) | Value::Array(0x73) => Some(Oddity::Char),
        Value::Uuid(_) | Value::Array(0x98) => Some(Oddity::Uuid),
        Value::Float(number) if !number.is_finite() => Some(Oddity::NotFinite),
        Value::Decimal | Value::Array(0x74 | 0x84 | 0x94) => Some(Oddity::Decimal),
        Value::Time(_) | Value::Array(0x83) => Some(Oddity::Time),
        _ => None,
    }
}

/// A value for people to read.
fn shown(value: &Value<'_>) -> String {
    let hexadecimal = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    match value {
        Value::Null => "null".into(),
        Value::Bool(value) => value.to_string(),
        Value::Unsigned(number) => number.to_string(),
        Value::Signed(number) => number.to_string(),
        Value::Float(number) => number.to_string(),
        Value::Decimal => "(a decimal number)".into(),
        Value::Char(code) => {
            char::from_u32(*code).map_or_else(|| format!("U+{code:04X}"), |char| char.to_string())
        }
        Value::Time(milliseconds) => format!("{milliseconds} ms since 1970"),
        Value::Uuid(bytes) | Value::Binary(bytes) => hexadecimal(bytes),
        Value::Text(bytes) | Value::Symbol(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::List(items) => format!("(a list of {})", items.count()),
        Value::Map(items) => format!("(a map of {})", items.count() / 2),
        Value::Array(_) => "(an array)".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::wire::Fields, *};

    fn section(code: u8, constructor: u8, body: &[u8], count: u32) -> Vec<u8> {
        let size = u32::try_from(body.len() + 4).unwrap().to_be_bytes();
        [&[0, 0x53, code, constructor][..], &size, &count.to_be_bytes(), body].concat()
    }

    fn text(text: &str) -> Vec<u8> {
        [&[0xb1][..], &u32::try_from(text.len()).unwrap().to_be_bytes(), text.as_bytes()].concat()
    }

    fn data(body: &[u8]) -> Vec<u8> {
        [&[0, 0x53, 0x75, 0xb0][..], &u32::try_from(body.len()).unwrap().to_be_bytes(), body].concat()
    }

    fn read(bytes: &[u8]) -> Foreign {
        Foreign::read(bytes, bytes.len() as u64)
    }

    #[test]
    fn knows_whose_a_message_is_and_what_it_holds() {
        let head = Fields::default().flag(true).null().null().flag(false).uint(0).describe(0x70);
        let annotations =
            [text("x-exchange"), text("delay.retry"), text("x-routing-key"), text("billing")].concat();
        let properties = Fields::default().text("4711").describe(0x73);
        let headers = [text("c"), vec![0x73, 0, 0, 0, 0x41], text("n"), vec![0x54, 5]].concat();
        let message = read(
            &[
                head,
                section(0x72, 0xd1, &annotations, 4),
                properties,
                section(0x74, 0xd1, &headers, 4),
                data(b"hi"),
            ]
            .concat(),
        );
        assert_eq!((message.exchange.as_str(), message.routing_key.as_str()), ("delay.retry", "billing"));
        assert!(message.redelivered);
        assert_eq!((message.message_id.as_deref(), message.body.as_slice()), (Some("4711"), &b"hi"[..]));
        assert_eq!(message.headers, [("c", "A"), ("n", "5")].map(|(a, b)| (a.into(), b.into())).into());
        assert_eq!(message.oddities, [(Oddity::Char, "header `c`".to_owned())].into());
    }

    #[test]
    fn finds_what_lies_deeper_and_what_is_too_long() {
        let inner = [text("u"), [&[0x98][..], &[7; 16]].concat()].concat();
        let inner = section(0, 0xd1, &inner, 2).split_off(3);
        let headers = [text("m"), inner, text(&"n".repeat(300)), vec![0x40]].concat();
        let long = "x".repeat(300);
        let properties =
            Fields::default().null().null().null().null().null().text(&long).symbol(&long).describe(0x73);
        let message = read(&[properties, section(0x74, 0xd1, &headers, 4)].concat());
        let expected = [
            (Oddity::Uuid, "header `m`"),
            (Oddity::LongType, "property `content-type`"),
            (Oddity::LongText, "property `correlation-id`"),
        ];
        assert_eq!(message.oddities, expected.map(|(oddity, place)| (oddity, place.to_owned())).into());
    }

    #[test]
    fn a_long_body_is_cut_and_its_length_known() {
        let bytes = data(&[7; 1_000]);
        let message = Foreign::read(&bytes[..508], bytes.len() as u64);
        assert_eq!((message.body.len(), message.bytes), (500, 1_000));
        assert!(message.oddities.is_empty());
        let nonsense = read(&[0x00, 0x53, 0x74, 0xd1, 9]);
        assert!(nonsense.oddities.contains_key(&Oddity::Unreadable));
    }
}
