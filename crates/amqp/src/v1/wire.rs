//! The encoding of AMQP 1.0: writing, and reading incoming bytes.

use crate::convert::big_endian;

/// How deeply descriptors may be nested.
const DEPTH: u32 = 4;

/// A list being written: the fields of a frame's performative.
#[derive(Debug, Default)]
pub(super) struct Fields {
    count: u32,
    bytes: Vec<u8>,
}

impl Fields {
    fn add(mut self, constructor: u8, bytes: &[u8]) -> Self {
        self.count += 1;
        self.bytes.push(constructor);
        self.bytes.extend_from_slice(bytes);
        self
    }

    pub(super) fn null(self) -> Self {
        self.add(0x40, &[])
    }

    pub(super) fn flag(self, flag: bool) -> Self {
        self.add(if flag { 0x41 } else { 0x42 }, &[])
    }

    pub(super) fn ubyte(self, number: u8) -> Self {
        self.add(0x50, &[number])
    }

    pub(super) fn ushort(self, number: u16) -> Self {
        self.add(0x60, &number.to_be_bytes())
    }

    pub(super) fn uint(self, number: u32) -> Self {
        self.add(0x70, &number.to_be_bytes())
    }

    fn variable(self, constructor: u8, bytes: &[u8]) -> Self {
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_be_bytes();
        self.add(constructor, &[&length, bytes].concat())
    }

    pub(super) fn bytes(self, bytes: &[u8]) -> Self {
        self.variable(0xb0, bytes)
    }

    pub(super) fn text(self, text: &str) -> Self {
        self.variable(0xb1, text.as_bytes())
    }

    pub(super) fn symbol(self, text: &str) -> Self {
        self.variable(0xb3, text.as_bytes())
    }

    pub(super) fn nested(self, code: u8, fields: Fields) -> Self {
        let encoded = fields.describe(code);
        self.add(encoded[0], &encoded[1..])
    }

    /// The list with its descriptor, as a performative or a field begins.
    pub(super) fn describe(self, code: u8) -> Vec<u8> {
        let size = u32::try_from(self.bytes.len() + 4).unwrap_or(u32::MAX).to_be_bytes();
        let head = [0x00, 0x53, code, 0xd0];
        [&head[..], &size, &self.count.to_be_bytes(), &self.bytes].concat()
    }
}

/// A value that was read.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Value<'a> {
    Null,
    Bool(bool),
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Decimal,
    Char(u32),
    Time(i64),
    Uuid(&'a [u8]),
    Binary(&'a [u8]),
    Text(&'a [u8]),
    Symbol(&'a [u8]),
    List(Items<'a>),
    Map(Items<'a>),
    /// Many of one type.
    Array(Items<'a>),
}

impl Value<'_> {
    /// Text and symbols; bytes that are not UTF-8 are replaced by marks.
    pub(super) fn text(&self) -> Option<String> {
        match self {
            Self::Text(bytes) | Self::Symbol(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
            _ => None,
        }
    }

    pub(super) fn number(&self) -> Option<u64> {
        match self {
            Self::Unsigned(number) => Some(*number),
            _ => None,
        }
    }
}

/// The contents of a list, map or array, not read yet. For a map, keys and values alternate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Items<'a> {
    rest: &'a [u8],
    left: u32,
    /// The one constructor of an array's items.
    of: Option<u8>,
}

impl Items<'_> {
    const NONE: Items<'static> = Items { rest: &[], left: 0, of: None };

    /// The constructor of the next item, or of all items for an array; 0 for a described
    /// value.
    pub(super) fn upcoming(&self) -> Option<u8> {
        self.of.or_else(|| self.rest.first().copied().filter(|_| self.left > 0))
    }
}

impl<'a> Iterator for Items<'a> {
    type Item = Value<'a>;

    fn next(&mut self) -> Option<Value<'a>> {
        self.left = self.left.checked_sub(1)?;
        match self.of {
            Some(constructor) => plain(constructor, &mut self.rest),
            None => value(&mut self.rest).map(|(_, value)| value),
        }
    }
}

/// Reads one value, and its descriptor if it has one. Does not descend into lists and maps. `None`
/// if the bytes end too early or are malformed.
pub(super) fn value<'a>(rest: &mut &'a [u8]) -> Option<(Option<u64>, Value<'a>)> {
    let mut descriptor = None;
    for _ in 0..DEPTH {
        match take(rest, 1)?[0] {
            0x00 => {
                let constructor = take(rest, 1)?[0];
                descriptor = descriptor.or(plain(constructor, rest)?.number());
            }
            constructor => return Some((descriptor, plain(constructor, rest)?)),
        }
    }
    None
}

/// Reads the value that a constructor announces. The upper four bits of the constructor give the
/// length.
fn plain<'a>(constructor: u8, rest: &mut &'a [u8]) -> Option<Value<'a>> {
    let fixed = |rest: &mut &'a [u8]| take(rest, 1 << (constructor >> 4) >> 5);
    Some(match constructor {
        0x40 => Value::Null,
        0x41 => Value::Bool(true),
        0x42 => Value::Bool(false),
        0x43 | 0x44 => Value::Unsigned(0),
        0x45 => Value::List(Items::NONE),
        0x50 | 0x52 | 0x53 | 0x60 | 0x70 | 0x80 => Value::Unsigned(big_endian(fixed(rest)?)),
        0x51 | 0x54 | 0x55 | 0x61 | 0x71 | 0x81 => Value::Signed(signed(fixed(rest)?)),
        0x56 => Value::Bool(fixed(rest)? != [0]),
        0x72 => Value::Float(f32::from_be_bytes(fixed(rest)?.try_into().ok()?).into()),
        0x82 => Value::Float(f64::from_be_bytes(fixed(rest)?.try_into().ok()?)),
        0x73 => Value::Char(u32::try_from(big_endian(fixed(rest)?)).ok()?),
        0x83 => Value::Time(signed(fixed(rest)?)),
        0x74 | 0x84 | 0x94 => fixed(rest).map(|_| Value::Decimal)?,
        0x98 => Value::Uuid(fixed(rest)?),
        0xa0 | 0xb0 => Value::Binary(sized(constructor, rest)?),
        0xa1 | 0xb1 => Value::Text(sized(constructor, rest)?),
        0xa3 | 0xb3 => Value::Symbol(sized(constructor, rest)?),
        0xc0 | 0xd0 => Value::List(items(constructor, rest)?),
        0xc1 | 0xd1 => Value::Map(items(constructor, rest)?),
        0xe0 | 0xf0 => Value::Array(array(constructor, rest)?),
        _ => return None,
    })
}

/// A length or a number, in one byte or in four.
fn count(constructor: u8, rest: &mut &[u8]) -> Option<u32> {
    let wide = constructor >> 4 & 1 == 1;
    u32::try_from(big_endian(take(rest, if wide { 4 } else { 1 })?)).ok()
}

fn sized<'a>(constructor: u8, rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = count(constructor, rest)?;
    take(rest, usize::try_from(length).ok()?)
}

fn items<'a>(constructor: u8, rest: &mut &'a [u8]) -> Option<Items<'a>> {
    let mut inner = sized(constructor, rest)?;
    let left = count(constructor, &mut inner)?;
    Some(Items { rest: inner, left, of: None })
}

/// An array, whose items share one constructor. Their descriptor is not read.
fn array<'a>(constructor: u8, rest: &mut &'a [u8]) -> Option<Items<'a>> {
    let mut items = items(constructor, rest)?;
    items.of = Some(take(&mut items.rest, 1)?[0]);
    Some(items)
}

fn take<'a>(rest: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (head, tail) = rest.split_at_checked(length)?;
    *rest = tail;
    Some(head)
}

/// The signed number in 1, 2, 4 or 8 bytes.
fn signed(bytes: &[u8]) -> i64 {
    let shift = 64 - 8 * u32::try_from(bytes.len()).unwrap_or(8);
    big_endian(bytes).cast_signed() << shift >> shift
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Option<(Option<u64>, Value<'_>)> {
        let mut rest = bytes;
        value(&mut rest).filter(|_| rest.is_empty())
    }

    #[test]
    fn reads_every_type() {
        for (bytes, expected) in [
            (&[0x40][..], Value::Null),
            (&[0x56, 1], Value::Bool(true)),
            (&[0x44], Value::Unsigned(0)),
            (&[0x53, 200], Value::Unsigned(200)),
            (&[0x60, 1, 2], Value::Unsigned(0x102)),
            (&[0x54, 0xff], Value::Signed(-1)),
            (&[0x71, 0xff, 0xff, 0xff, 0xfe], Value::Signed(-2)),
            (&[0x72, 0x3f, 0x80, 0, 0], Value::Float(1.0)),
            (&[0x73, 0, 0, 0, 0x41], Value::Char(0x41)),
            (&[0x74, 0, 0, 0, 0], Value::Decimal),
            (&[0x83, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff], Value::Time(-1)),
            (&[0xa1, 2, b'h', b'i'], Value::Text(b"hi")),
            (&[0xb0, 0, 0, 0, 1, 7], Value::Binary(&[7])),
        ] {
            assert_eq!(read(bytes), Some((None, expected)), "{bytes:x?}");
        }
        let Some((_, Value::Array(items))) = read(&[0xe0, 4, 2, 0x50, 1, 2]) else { panic!() };
        assert_eq!(items.collect::<Vec<_>>(), [Value::Unsigned(1), Value::Unsigned(2)]);
        let uuid = [&[0x98][..], &[7; 16]].concat();
        assert_eq!(read(&uuid), Some((None, Value::Uuid(&[7; 16]))));
        let decimal = [&[0x94][..], &[0; 16]].concat();
        assert_eq!(read(&decimal), Some((None, Value::Decimal)));
    }

    #[test]
    fn reads_its_own_output() {
        let inner = Fields::default().symbol("key").null().flag(true);
        let bytes = Fields::default()
            .text("queue")
            .uint(70_000)
            .ushort(9)
            .ubyte(3)
            .bytes(&[1, 2])
            .nested(0x28, inner)
            .describe(0x12);
        let Some((Some(0x12), Value::List(items))) = read(&bytes) else { panic!("{bytes:x?}") };
        let values: Vec<_> = items.collect();
        assert_eq!(values[..2], [Value::Text(b"queue"), Value::Unsigned(70_000)]);
        assert_eq!(values[2..5], [Value::Unsigned(9), Value::Unsigned(3), Value::Binary(&[1, 2])]);
        let Value::List(inner) = values[5] else { panic!("{values:?}") };
        assert_eq!(inner.collect::<Vec<_>>(), [Value::Symbol(b"key"), Value::Null, Value::Bool(true)]);
    }

    #[test]
    fn malformed_bytes_are_no_value() {
        let endless = [0x00, 0x53, 1].repeat(50);
        for bytes in [
            &[][..],
            &[0x00],
            &[0x99],
            &[0xa1, 5, b'x'],
            &[0xb0, 0xff, 0xff, 0xff, 0xff, 1],
            &[0xc0, 0],
            &[0xe0, 1, 1],
            &endless,
        ] {
            assert_eq!(read(bytes), None, "{bytes:x?}");
        }
        // It announces more items than it has.
        let Some((_, Value::List(items))) = read(&[0xc0, 2, 200, 0x40]) else { panic!() };
        assert_eq!(items.count(), 1);
    }
}
