//! The parts of a message that AMQP 0-9-1 may be unable to carry.

use std::collections::BTreeMap;

use super::{
    oddity::{Oddity, SHORT, deaths_make_sense, oddities, property_makes_sense},
    wire::{Items, Value, value},
};

/// A message as received over AMQP 1.0.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Foreign {
    /// The exchange that routed it last.
    pub exchange: String,
    /// Its routing key.
    pub routing_key: String,
    /// Whether it was delivered before.
    pub redelivered: bool,
    /// The property `message-id`, if it is text.
    pub message_id: Option<String>,
    /// Its properties, in readable form.
    pub properties: BTreeMap<&'static str, String>,
    /// Its headers (application properties, and annotations other than the broker's own).
    pub headers: BTreeMap<String, String>,
    /// The payload, or the first part of it.
    pub body: Vec<u8>,
    /// The length of the payload, as far as it can be known.
    pub bytes: u64,
    /// Values that 0-9-1 may be unable to carry, with their places, at most one of each kind.
    pub oddities: BTreeMap<Oddity, String>,
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
    /// Reads a message of `whole` bytes, or its first bytes.
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

    /// The last section continues after the bytes that were kept.
    fn cut(&mut self, section: &[u8], whole: u64) {
        if let [0x00, 0x53, 0x75, 0xb0, _, _, _, _, data @ ..] = section {
            self.body.extend_from_slice(data);
            self.bytes += whole.saturating_sub(8);
        } else {
            self.odd(Oddity::Unreadable, "the message");
        }
    }

    /// The message's application and oddities, on one line for a log.
    pub fn described(&self) -> String {
        let odd: Vec<_> =
            self.oddities.iter().map(|(oddity, place)| format!("{place} is {oddity}")).collect();
        let id = self.message_id.as_deref().unwrap_or("-").escape_debug();
        format!("key={:?} id={id} ({})", self.routing_key, odd.join(", "))
    }

    /// The length of the payload, as far as it is known.
    pub fn body_len(&self) -> usize {
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
                "x-opt-rabbitmq-received-time" if matches!(value, Value::Time(_)) => {}
                "x-opt-deaths" if deaths_make_sense(&value) => {}
                "x-opt-deaths" => self.odd(Oddity::Forged, "annotation `x-opt-deaths`"),
                // The broker's own annotations, and others that brokers interpret.
                name if name.starts_with("x-opt-") => self.look(&annotation(name), &value),
                _ => {
                    if !property_makes_sense(&name, &value) {
                        self.odd(Oddity::Forged, &annotation(&name));
                    }
                    self.header(name, &value);
                }
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
        self.look(&place, value);
        self.headers.insert(name, shown(value));
    }

    /// Searches for values that 0-9-1 cannot carry, however deeply nested.
    fn look(&mut self, place: &str, value: &Value<'_>) {
        for oddity in oddities(*value) {
            self.odd(oddity, place);
        }
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

fn annotation(name: &str) -> String {
    format!("annotation `{}`", name.escape_debug())
}

/// A value in readable form.
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
    fn finds_the_application_and_the_contents_of_a_message() {
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
    fn finds_nested_and_too_long_values() {
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

    /// A list or map in place, with this many items.
    fn within(constructor: u8, items: &[&[u8]], count: u32) -> Vec<u8> {
        section(0, constructor, &items.concat(), count).split_off(3)
    }

    fn array(of: u8, items: &[u8], count: u32) -> Vec<u8> {
        within(0xf0, &[&[of], items], count)
    }

    fn odd(section_code: u8, name: &str, value: &[u8]) -> Vec<Oddity> {
        let message = read(&section(section_code, 0xd1, &[&text(name), value].concat(), 2));
        message.oddities.into_keys().collect()
    }

    #[test]
    fn finds_values_without_a_form_in_lists_and_as_a_key() {
        let (ulong, short) = ([0x53, 5], text("x"));
        let described = [&[0x00][..], &text("x:y"), &short].concat();
        for (value, expected) in [
            (ulong.to_vec(), vec![]),
            (within(0xd0, &[&ulong], 1), vec![Oddity::Ulong]),
            (within(0xd0, &[&[0x52, 5]], 1), vec![]),
            (array(0x80, &[0; 8], 1), vec![Oddity::Ulong]),
            (within(0xd1, &[&short, &ulong], 2), vec![]),
            (array(0xb1, &short[1..], 1), vec![]),
            (within(0xd0, &[&array(0xb1, &short[1..], 1)], 1), vec![Oddity::Array]),
            (within(0xd1, &[&short, &array(0xb1, &short[1..], 1)], 2), vec![]),
            (within(0xd0, &[&described], 1), vec![Oddity::Described]),
            (within(0xd1, &[&[0x54, 7], &short], 2), vec![Oddity::Key]),
            (within(0xd1, &[&text(&"x".repeat(300)), &short], 2), vec![Oddity::Key]),
            (array(0x73, &[0, 0, 0, 0x41], 1), vec![Oddity::Char]),
            // Endless, as each item takes no bytes.
            (array(0x40, &[], u32::MAX), vec![]),
        ] {
            assert_eq!(odd(0x74, "h", &value), expected, "{value:x?}");
            assert_eq!(odd(0x72, "x-opt-h", &value), expected, "{value:x?}");
        }
    }

    #[test]
    fn finds_annotations_that_the_broker_did_not_write() {
        let symbol = |text: &str| [&[0xa3, u8::try_from(text.len()).unwrap()][..], text.as_bytes()].concat();
        let time = [&[0x83][..], &[0; 8]].concat();
        let keys = array(0xb1, &text("x")[1..], 1);
        let death = |count: &[u8], more: &[&[u8]]| {
            let known: [(&str, &[u8]); 7] = [
                ("queue", &text("q")),
                ("reason", &symbol("expired")),
                ("count", count),
                ("first-time", &time),
                ("last-time", &time),
                ("exchange", &text("x")),
                ("routing-keys", &keys),
            ];
            let fields: Vec<_> =
                known.iter().flat_map(|(name, value)| [symbol(name), value.to_vec()]).collect();
            let fields: Vec<_> = more.iter().copied().chain(fields.iter().map(Vec::as_slice)).collect();
            let death = within(0xd1, &fields, u32::try_from(fields.len()).unwrap());
            array(0xd1, &death[1..], 1)
        };
        let fine = death(&[0x53, 1], &[]);
        for (name, value, forged) in [
            ("x-opt-deaths", &fine, false),
            ("x-opt-deaths", &death(&[0x53, 1], &[&symbol("ttl"), &[0x52, 5]]), false),
            ("x-opt-deaths", &death(&[0x52, 1], &[]), true),
            ("x-opt-deaths", &death(&[0x53, 1], &[&symbol("more"), &[0x52, 5]]), true),
            ("x-opt-deaths", &array(0xd1, &within(0xd1, &[], 0)[1..], 1), true),
            ("x-opt-deaths", &array(0x53, &[1, 2], 2), false),
            ("x-opt-deaths", &text("x"), false),
            ("x-basic-type", &text("x"), false),
            ("x-basic-type", &text(&"x".repeat(300)), true),
            ("x-basic-expiration", &vec![0x52, 5], true),
            ("x-basic-priority", &vec![0x50, 5], false),
            ("x-basic-priority", &text("5"), true),
            ("x-basic-delivery-mode", &text("2"), true),
        ] {
            let expected = if forged { vec![Oddity::Forged] } else { vec![] };
            assert_eq!(odd(0x72, name, value), expected, "{name} {value:x?}");
        }
        // It has a meaning only as an annotation.
        assert_eq!(odd(0x74, "x-basic-type", &text(&"x".repeat(300))), []);
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
