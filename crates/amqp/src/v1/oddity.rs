//! Values that AMQP 0-9-1 cannot carry, following `mc_amqpl:to_091` and `convert_from` of RabbitMQ
//! 4.0 and 4.3. These functions crash over such values and end the connection.

use std::{collections::BTreeSet, fmt};

use super::wire::{Items, Value};

/// How many values of one header are examined.
const VALUES: usize = 10_000;

/// The longest text of a property in 0-9-1.
pub(super) const SHORT: usize = 255;

/// Constructors. Several of them can encode the same type.
const DESCRIBED: u8 = 0x00;
const UINT: [u8; 3] = [0x43, 0x52, 0x70];
const ULONG: [u8; 3] = [0x44, 0x53, 0x80];
const TEXT: [u8; 2] = [0xa1, 0xb1];
const SYMBOL: [u8; 2] = [0xa3, 0xb3];
const MAP: [u8; 2] = [0xc1, 0xd1];

/// The fields that the broker records for a death, in this order. A `ttl` may precede them.
const DEATH: [(&str, &[u8]); 7] = [
    ("queue", &TEXT),
    ("reason", &SYMBOL),
    ("count", &ULONG),
    ("first-time", &[0x83]),
    ("last-time", &[0x83]),
    ("exchange", &TEXT),
    ("routing-keys", &[0xe0, 0xf0]),
];

/// A value that AMQP 0-9-1 cannot carry. Depending on its version, the broker omits the header or
/// closes the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Oddity {
    /// A single character.
    Char,
    /// A UUID.
    Uuid,
    /// A content type or encoding of more than 255 bytes.
    LongType,
    /// Another text of more than 255 bytes where 0-9-1 has room for only 255.
    LongText,
    /// Infinity, or not a number.
    NotFinite,
    /// A decimal number.
    Decimal,
    /// A time, which 0-9-1 counts in whole seconds from 1970.
    Time,
    /// A number of 64 bits without a sign among the items of a list or array.
    Ulong,
    /// An array among the items of a list or array.
    Array,
    /// A value that another describes.
    Described,
    /// A map with a key that is not text, or is longer than 255 bytes.
    Key,
    /// An annotation in the broker's own namespace that the broker did not write.
    Forged,
    /// Bytes that are not a value.
    Unreadable,
}

impl Oddity {
    /// The kinds over which all versions of the broker close connections. For the others, versions
    /// differ.
    pub const CERTAIN: [Self; 8] = [
        Self::Char,
        Self::Uuid,
        Self::LongType,
        Self::Ulong,
        Self::Array,
        Self::Described,
        Self::Key,
        Self::Forged,
    ];
}

impl fmt::Display for Oddity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Char => "a char",
            Self::Uuid => "a UUID",
            Self::LongType | Self::LongText => "longer than 255 bytes",
            Self::NotFinite => "not a finite number",
            Self::Decimal => "a decimal number",
            Self::Time => "a time",
            Self::Ulong => "a list with an unsigned number of 64 bits",
            Self::Array => "a list with an array in it",
            Self::Described => "a described value",
            Self::Key => "a map with a key that is not text of at most 255 bytes",
            Self::Forged => "not as the broker writes it",
            Self::Unreadable => "unreadable",
        })
    }
}

/// The parts of a value that 0-9-1 cannot carry, however deeply nested, each kind once.
pub(super) fn oddities(value: Value<'_>) -> BTreeSet<Oddity> {
    let mut found: BTreeSet<_> = of_its_own(&value).into_iter().collect();
    let (mut left, mut open) = (VALUES, vec![value]);
    while let Some(value) = open.pop() {
        let (mut items, is_map) = match value {
            Value::List(items) | Value::Array(items) => (items, false),
            Value::Map(items) => (items, true),
            _ => continue,
        };
        let mut is_key = false;
        while left > 0 {
            left -= 1;
            is_key = is_map && !is_key;
            let constructor = items.upcoming();
            if constructor == Some(DESCRIBED) {
                found.insert(Oddity::Described);
            }
            let Some(item) = items.next() else { break };
            found.extend(match (&item, constructor) {
                (key, _) if is_key => (!is_name(key)).then_some(Oddity::Key),
                (Value::Array(_), _) if !is_map => Some(Oddity::Array),
                (Value::Unsigned(_), Some(of)) if !is_map && ULONG.contains(&of) => Some(Oddity::Ulong),
                (item, _) => of_its_own(item),
            });
            open.push(item);
        }
    }
    found
}

/// Whether the key of a map is a valid field name.
fn is_name(key: &Value<'_>) -> bool {
    matches!(key, Value::Text(bytes) | Value::Symbol(bytes) | Value::Binary(bytes) if bytes.len() <= SHORT)
}

/// Whether the broker can convert an annotation that represents a property, or ignores it.
pub(super) fn property_makes_sense(name: &str, value: &Value<'_>) -> bool {
    match name {
        "x-basic-expiration" | "x-basic-type" => is_name(value),
        "x-basic-priority" | "x-basic-delivery-mode" => {
            matches!(value, Value::Unsigned(_) | Value::Signed(_))
        }
        _ => true,
    }
}

/// Whether the broker can read its record of deaths, or ignores it.
pub(super) fn deaths_make_sense(value: &Value<'_>) -> bool {
    let Value::Array(mut deaths) = *value else { return true };
    let maps = deaths.upcoming().is_some_and(|constructor| MAP.contains(&constructor));
    !maps || deaths.all(|death| matches!(death, Value::Map(fields) if is_death(fields)))
}

/// Whether a death is recorded in the broker's form. It reads no other form.
fn is_death(mut fields: Items<'_>) -> bool {
    let mut types = Vec::new();
    // One more than possible.
    while types.len() <= DEATH.len() + 1 {
        let symbol = fields.upcoming().is_some_and(|constructor| SYMBOL.contains(&constructor));
        let Some(name) = fields.next() else { break };
        let constructor = fields.upcoming().unwrap_or(DESCRIBED);
        let Some(value) = fields.next() else { return false };
        if matches!(value, Value::Array(keys) if !keys.upcoming().is_some_and(|it| TEXT.contains(&it))) {
            return false;
        }
        types.push((name.text().filter(|_| symbol).unwrap_or_default(), constructor));
    }
    let lifetime = types.first().is_some_and(|(name, of)| name == "ttl" && UINT.contains(of));
    let types = &types[usize::from(lifetime)..];
    let fits = |((name, of), (expected, types)): (&(String, u8), &(&str, &[u8]))| {
        name == expected && types.contains(of)
    };
    types.len() == DEATH.len() && types.iter().zip(&DEATH).all(fits)
}

/// The kind of a value that 0-9-1 cannot carry.
fn of_its_own(value: &Value<'_>) -> Option<Oddity> {
    match value {
        Value::Char(_) => Some(Oddity::Char),
        Value::Uuid(_) => Some(Oddity::Uuid),
        Value::Float(number) if !number.is_finite() => Some(Oddity::NotFinite),
        Value::Decimal => Some(Oddity::Decimal),
        Value::Time(_) => Some(Oddity::Time),
        _ => None,
    }
}
