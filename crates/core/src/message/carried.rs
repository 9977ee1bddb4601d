//! Values that brokers cannot carry. Pure.
//!
//! A broker parses every header when a message is published. It closes the whole connection over a
//! value that it cannot represent. A stream also converts each stored message to AMQP 1.0. If it
//! cannot, the broker closes the connection, too. Both lists were found by publishing random
//! messages to RabbitMQ 3.10, 4.0 and 4.3.

use super::{Headers, InvalidMessage, MAX_SHORT, Properties, Value, forbidden::is_forbidden};

/// How deeply tables and arrays may be nested, including the table of all headers. Readers process
/// them recursively, here and elsewhere, and a frame has room for thousands of levels.
pub const MAX_NESTING: usize = 64;

/// The header that lets readers of a stream skip parts of it.
const FILTER_VALUE: &str = "x-stream-filter-value";

/// The start of a message that AMQP 1.0 encoded. Brokers parse the value as encoded sections.
const SECTIONS: &str = "x-amqp-1.0-";

/// The property `type` of a message whose body consists of such sections.
const AMQP_1_0: &str = "amqp-1.0";

/// The start of an id that brokers store as a UUID.
const UUID: &str = "urn:uuid:";

/// Why a stream cannot keep a message: the name of the header or property, and a description of its
/// value.
pub(crate) type Fault<'a> = (&'a str, &'static str);

/// Refuses headers that no broker accepts.
pub(super) fn check_headers(headers: &Headers) -> Result<(), InvalidMessage> {
    headers.iter().try_for_each(|(name, value)| {
        check_name(name)?;
        check_value(name, value, 1)
    })
}

fn check_name(name: &str) -> Result<(), InvalidMessage> {
    if name.len() > MAX_SHORT {
        let start = name.chars().take(40).collect();
        return Err(InvalidMessage::HeaderNameTooLong { start, length: name.len() });
    }
    Ok(())
}

/// Checks a value at this nesting depth of a header.
fn check_value(header: &str, value: &Value, depth: usize) -> Result<(), InvalidMessage> {
    let number = match value {
        Value::F32(number) => f64::from(*number),
        Value::F64(number) => *number,
        Value::Array(_) | Value::Table(_) if depth >= MAX_NESTING => {
            return Err(InvalidMessage::TooDeep { name: header.to_owned() });
        }
        Value::Array(values) => {
            return values.iter().try_for_each(|value| check_value(header, value, depth + 1));
        }
        Value::Table(table) => {
            return table.iter().try_for_each(|(name, value)| {
                check_name(name)?;
                check_value(header, value, depth + 1)
            });
        }
        _ => return Ok(()),
    };
    match number.is_finite() {
        true => Ok(()),
        false => Err(InvalidMessage::NotFinite { name: header.to_owned(), value: number.to_string() }),
    }
}

/// Why some supported broker crashes when it stores the message in a stream; `None` if none does.
/// The crash (541) closes the publisher's connection.
pub fn crashes_streams<'a>(properties: &'a Properties, headers: &'a Headers) -> Option<Fault<'a>> {
    let text = |text: &Option<String>, is_wrong: fn(&str) -> bool| text.as_deref().is_some_and(is_wrong);
    if text(&properties.kind, |kind| kind == AMQP_1_0) {
        return Some(("type", "the type of an AMQP 1.0 message"));
    }
    let ids = [("message_id", &properties.message_id), ("correlation_id", &properties.correlation_id)];
    if let Some((name, _)) = ids.into_iter().find(|(_, id)| text(id, is_wrong_uuid)) {
        return Some((name, "not a UUID although it begins with `urn:uuid:`"));
    }
    sent(headers).find_map(|(name, value)| {
        let what = match value {
            Value::Decimal { .. } => "a decimal",
            // Such headers are converted with all their contents, and others are dropped.
            value if name.starts_with("x-") && contains_decimal(value) => "a value that contains a decimal",
            _ if name.starts_with(SECTIONS) => "read as a section of an AMQP 1.0 message",
            Value::Text(text) if name == FILTER_VALUE && text.len() <= MAX_SHORT && !text.contains('\0') => {
                return None;
            }
            _ if name == FILTER_VALUE => "not text of at most 255 bytes",
            _ => return None,
        };
        Some((name, what))
    })
}

/// The first header that is or contains a decimal.
pub(super) fn decimal(headers: &Headers) -> Option<&str> {
    sent(headers).find(|(_, value)| contains_decimal(value)).map(|(name, _)| name)
}

/// The headers that are sent, without forbidden ones.
fn sent(headers: &Headers) -> impl Iterator<Item = (&str, &Value)> {
    headers.iter().map(|(name, value)| (name.as_str(), value)).filter(|(name, _)| !is_forbidden(name))
}

fn contains_decimal(value: &Value) -> bool {
    match value {
        Value::Decimal { .. } => true,
        Value::Array(values) => values.iter().any(contains_decimal),
        Value::Table(table) => table.values().any(contains_decimal),
        _ => false,
    }
}

/// Whether an id claims to be a UUID but is not.
fn is_wrong_uuid(id: &str) -> bool {
    let Some(uuid) = id.strip_prefix(UUID) else { return false };
    let is_right = uuid.len() == 36
        && uuid.bytes().enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        });
    !is_right
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nested(depth: usize, inner: Value) -> Value {
        (0..depth).fold(inner, |inner, _| Value::Array(vec![inner]))
    }

    fn one(name: &str, value: Value) -> Headers {
        Headers::from([(name.to_owned(), value)])
    }

    #[test]
    fn a_number_that_is_not_finite_is_refused_at_any_depth() {
        for (number, text) in [
            (Value::F64(f64::NAN), "NaN"),
            (Value::F64(f64::INFINITY), "inf"),
            (Value::F64(f64::NEG_INFINITY), "-inf"),
            (Value::F32(f32::NAN), "NaN"),
            (Value::F32(f32::INFINITY), "inf"),
            (Value::F32(f32::NEG_INFINITY), "-inf"),
        ] {
            for value in [number.clone(), nested(3, number.clone()), Value::Table(one("in", number))] {
                let error = check_headers(&one("odd", value)).unwrap_err();
                assert_eq!(error, InvalidMessage::NotFinite { name: "odd".into(), value: text.into() });
                assert!(
                    error.to_string().contains("`odd`") && error.to_string().contains("as text"),
                    "{error}"
                );
            }
        }
        for number in [Value::F64(f64::MAX), Value::F64(5e-324), Value::F32(f32::MIN), Value::F64(-0.0)] {
            assert_eq!(check_headers(&one("odd", number)), Ok(()));
        }
    }

    #[test]
    fn nesting_has_a_limit() {
        let most = MAX_NESTING - 1;
        assert_eq!(check_headers(&one("deep", nested(most, Value::Void))), Ok(()));
        for inner in [Value::Array(vec![]), Value::Table(Headers::new())] {
            let error = check_headers(&one("deep", nested(most, inner)));
            assert_eq!(error, Err(InvalidMessage::TooDeep { name: "deep".into() }));
        }
    }

    #[test]
    fn finds_values_that_crash_a_stream() {
        let decimal = || Value::Decimal { scale: 1, value: 5 };
        let none = Properties::default();
        for (name, value, crashes) in [
            ("odd", decimal(), true),
            ("odd", nested(1, decimal()), false),
            ("x-odd", nested(2, decimal()), true),
            ("x-odd", Value::Table(one("in", decimal())), true),
            ("x-odd", Value::Table(Headers::new()), false),
            ("CC", decimal(), false),
            (FILTER_VALUE, 5.into(), true),
            (FILTER_VALUE, Value::Void, true),
            (FILTER_VALUE, "x".repeat(256).into(), true),
            (FILTER_VALUE, "a\0".into(), true),
            (FILTER_VALUE, "x".repeat(255).into(), false),
            ("x-amqp-1.0-properties", "x".into(), true),
            ("x-amqp-1.0-footer", 5.into(), true),
            ("x-amqp", 5.into(), false),
        ] {
            let headers = one(name, value);
            assert_eq!(crashes_streams(&none, &headers).is_some(), crashes, "{headers:?}");
        }
        let of = |set: fn(&mut Properties, String), text: &str| {
            let mut properties = Properties::default();
            set(&mut properties, text.to_owned());
            crashes_streams(&properties, &Headers::new()).is_some()
        };
        assert!(of(|properties, text| properties.kind = Some(text), "amqp-1.0"));
        assert!(!of(|properties, text| properties.kind = Some(text), "amqp-1.1"));
        for (id, crashes) in [
            ("urn:uuid:f81d4fae-7dec-11d0-a765-00A0C91E6BF6", false),
            ("urn:uuid:zzzzzzzz-7dec-11d0-a765-00a0c91e6bf6", true),
            ("urn:uuid:", true),
            ("urn", false),
        ] {
            assert_eq!(of(|properties, text| properties.message_id = Some(text), id), crashes, "{id}");
            assert_eq!(of(|properties, text| properties.correlation_id = Some(text), id), crashes, "{id}");
        }
    }
}
