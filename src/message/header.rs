//! Header values: every type AMQP 0-9-1 has a letter for.

use std::collections::BTreeMap;

use serde_json::{Map, Value as Json};

/// Headers by name.
pub type Headers = BTreeMap<String, Value>;

/// The value of a header.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// `t`
    Bool(bool),
    /// `b`
    I8(i8),
    /// `B`
    U8(u8),
    /// `s`
    I16(i16),
    /// `u`
    U16(u16),
    /// `I`
    I32(i32),
    /// `i`
    U32(u32),
    /// `l`
    I64(i64),
    /// `f`
    F32(f32),
    /// `d`
    F64(f64),
    /// `D`: value / 10^scale
    Decimal {
        /// Number of decimal places.
        scale: u8,
        /// The digits.
        value: u32,
    },
    /// `S`
    Text(String),
    /// `x`
    Bytes(Vec<u8>),
    /// `A`
    Array(Vec<Value>),
    /// `T`: seconds since the epoch
    Timestamp(u64),
    /// `F`
    Table(Headers),
    /// `V`
    Void,
}

impl Value {
    /// The number it holds, if it is a whole one that fits.
    #[must_use]
    pub fn as_i64(&self) -> Option<i64> {
        match *self {
            Self::I8(number) => Some(number.into()),
            Self::U8(number) => Some(number.into()),
            Self::I16(number) => Some(number.into()),
            Self::U16(number) => Some(number.into()),
            Self::I32(number) => Some(number.into()),
            Self::U32(number) => Some(number.into()),
            Self::I64(number) => Some(number),
            Self::Timestamp(number) => i64::try_from(number).ok(),
            _ => None,
        }
    }

    /// The bytes it takes in an encoded header table, without its type letter.
    pub(super) fn encoded_len(&self) -> usize {
        match self {
            Self::Bool(_) | Self::I8(_) | Self::U8(_) => 1,
            Self::I16(_) | Self::U16(_) => 2,
            Self::I32(_) | Self::U32(_) | Self::F32(_) => 4,
            Self::I64(_) | Self::F64(_) | Self::Timestamp(_) => 8,
            Self::Decimal { .. } => 5,
            Self::Text(text) => 4 + text.len(),
            Self::Bytes(bytes) => 4 + bytes.len(),
            Self::Array(values) => 4 + values.iter().map(|value| 1 + value.encoded_len()).sum::<usize>(),
            Self::Table(table) => table_len(table),
            Self::Void => 0,
        }
    }
}

/// The bytes a table takes on the wire.
pub(super) fn table_len(table: &Headers) -> usize {
    4 + table.iter().map(|(name, value)| 2 + name.len() + value.encoded_len()).sum::<usize>()
}

macro_rules! from {
    ($($from:ty => $variant:ident),* $(,)?) => {$(
        impl From<$from> for Value {
            fn from(value: $from) -> Self {
                Self::$variant(value.into())
            }
        }
    )*};
}

from! {
    bool => Bool, i8 => I8, u8 => U8, i16 => I16, u16 => U16, i32 => I32, u32 => U32, i64 => I64,
    f32 => F32, f64 => F64, String => Text, &str => Text, Vec<u8> => Bytes, Vec<Value> => Array,
    Headers => Table,
}

/// JSON as a header value; `Err` holds a number that AMQP has no type for.
impl TryFrom<Json> for Value {
    type Error = serde_json::Number;

    fn try_from(json: Json) -> Result<Self, serde_json::Number> {
        Ok(match json {
            Json::Null => Self::Void,
            Json::Bool(value) => Self::Bool(value),
            Json::Number(number) => match (number.as_i64(), number.as_f64()) {
                (Some(whole), _) => Self::I64(whole),
                // A u64 over i64::MAX would lose digits as a float.
                (None, Some(float)) if !number.is_u64() => Self::F64(float),
                _ => return Err(number),
            },
            Json::String(text) => Self::Text(text),
            Json::Array(values) => {
                Self::Array(values.into_iter().map(Self::try_from).collect::<Result<_, _>>()?)
            }
            Json::Object(map) => {
                Self::Table(
                    map.into_iter()
                        .map(|(name, value)| Ok((name, Self::try_from(value)?)))
                        .collect::<Result<_, serde_json::Number>>()?,
                )
            }
        })
    }
}

/// A header value for people and scripts to read. Bytes become text where they
/// are UTF-8, and hexadecimal digits elsewhere.
impl From<&Value> for Json {
    fn from(value: &Value) -> Self {
        match value {
            Value::Bool(value) => (*value).into(),
            Value::I8(number) => (*number).into(),
            Value::U8(number) => (*number).into(),
            Value::I16(number) => (*number).into(),
            Value::U16(number) => (*number).into(),
            Value::I32(number) => (*number).into(),
            Value::U32(number) => (*number).into(),
            Value::I64(number) => (*number).into(),
            Value::F32(number) => (*number).into(),
            Value::F64(number) => (*number).into(),
            Value::Decimal { scale, value } => (f64::from(*value) / 10_f64.powi(i32::from(*scale))).into(),
            Value::Text(text) => text.as_str().into(),
            Value::Bytes(bytes) => match std::str::from_utf8(bytes) {
                Ok(text) => text.into(),
                Err(_) => bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>().into(),
            },
            Value::Array(values) => values.iter().map(Self::from).collect(),
            Value::Timestamp(seconds) => (*seconds).into(),
            Value::Table(table) => table
                .iter()
                .map(|(name, value)| (name.clone(), Self::from(value)))
                .collect::<Map<_, _>>()
                .into(),
            Value::Void => Self::Null,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_json_and_gives_it_back() {
        let json: Json = serde_json::from_str(
            r#"{"a": null, "b": true, "c": -7, "d": 1.5, "e": "x", "f": [1, "y", {"g": []}]}"#,
        )
        .unwrap();
        let value = Value::try_from(json.clone()).unwrap();
        assert_eq!(Json::from(&value), json);
    }

    #[test]
    fn refuses_a_number_it_would_change() {
        let json: Json = serde_json::from_str("18446744073709551615").unwrap();
        assert!(Value::try_from(json).is_err());
    }

    #[test]
    fn shows_bytes_as_text_or_digits() {
        assert_eq!(Json::from(&Value::Bytes(b"ok".to_vec())), "ok");
        assert_eq!(Json::from(&Value::Bytes(vec![0xff, 0x0a])), "ff0a");
    }
}
