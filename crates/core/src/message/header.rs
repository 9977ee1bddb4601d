//! Header values: every type for which AMQP 0-9-1 has a letter.

use std::collections::BTreeMap;

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
    /// Its value, if it is a whole number that fits.
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

    /// Its size in an encoded header table, in bytes, without its type letter.
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

/// The size of a table on the wire, in bytes.
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
