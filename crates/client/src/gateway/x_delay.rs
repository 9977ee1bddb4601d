//! The header `x-delay`, read as the plugin reads it: pure.

use delayline_core::message::{Headers, Value};

/// How long to delay a message, in milliseconds: any whole number, a number with a fraction
/// (which is cut off), or a whole number as text.
pub const X_DELAY: &str = "x-delay";

/// A delay that is neither a number nor text that holds one. The plugin closes the
/// publisher's connection over such a text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the header `x-delay` is {found}; write whole milliseconds, such as 5000")]
pub(super) struct Unreadable {
    found: String,
}

/// The delay in milliseconds. `None` if the header is missing, or if it holds a value that the
/// plugin does not accept as a delay either, such as a table.
pub(super) fn read(headers: &Headers) -> Result<Option<i64>, Unreadable> {
    let Some(value) = headers.get(X_DELAY) else { return Ok(None) };
    if let Value::Timestamp(_) = value {
        return Ok(None);
    }
    if let Some(whole) = value.as_i64() {
        return Ok(Some(whole));
    }
    let unreadable = |found: String| Unreadable { found };
    Ok(match value {
        Value::Text(text) => Some(text.parse().map_err(|_| unreadable(format!("`{}`", short(text))))?),
        Value::Bytes(bytes) => {
            let text = String::from_utf8_lossy(bytes);
            Some(text.parse().map_err(|_| unreadable(format!("`{}`", short(&text))))?)
        }
        Value::F32(number) => Some(cut(f64::from(*number)).ok_or_else(|| unreadable(number.to_string()))?),
        Value::F64(number) => Some(cut(*number).ok_or_else(|| unreadable(number.to_string()))?),
        Value::Decimal { scale, value } => {
            let divisor = 10_i64.checked_pow(u32::from(*scale));
            Some(divisor.map_or(0, |divisor| i64::from(*value) / divisor))
        }
        _ => None,
    })
}

/// Above this, 285,616 years, a number with a fraction has no exact milliseconds.
const EXACT: f64 = 9_007_199_254_740_992.0;

#[expect(clippy::cast_possible_truncation, reason = "the fraction is to be cut off, and the rest fits")]
fn cut(number: f64) -> Option<i64> {
    (number.abs() <= EXACT).then_some(number as i64)
}

/// The beginning of a text, safe to print in an error.
fn short(text: &str) -> String {
    text.chars().take(40).flat_map(char::escape_debug).collect()
}

/// The value that the plugin leaves in the header of a message that it has delayed: the negative
/// delay.
pub(super) fn done(delay: i64) -> Value {
    let negated = delay.saturating_neg();
    i32::try_from(negated).map_or(Value::I64(negated), Value::I32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(value: impl Into<Value>) -> Result<Option<i64>, Unreadable> {
        read(&Headers::from([(X_DELAY.into(), value.into())]))
    }

    #[test]
    fn accepts_the_delays_of_the_plugin() {
        for five in [
            Value::I8(5),
            Value::U8(5),
            Value::I16(5),
            Value::U16(5),
            Value::I32(5),
            Value::U32(5),
            Value::I64(5),
            Value::F32(5.9),
            Value::F64(5.9),
            Value::Decimal { scale: 1, value: 59 },
            "5".into(),
            b"5".to_vec().into(),
        ] {
            assert_eq!(of(five.clone()), Ok(Some(5)), "{five:?}");
        }
        assert_eq!(of("-5"), Ok(Some(-5)));
        assert_eq!(of(-5.9), Ok(Some(-5)));
        assert_eq!(of(i64::MAX), Ok(Some(i64::MAX)));
        assert_eq!(of(Value::Decimal { scale: 255, value: u32::MAX }), Ok(Some(0)));
        assert_eq!(read(&Headers::new()), Ok(None));
        for nothing in [true.into(), Value::Void, Value::Array(vec![]), Value::Timestamp(5)] {
            assert_eq!(of(nothing), Ok(None));
        }
    }

    #[test]
    fn an_error_shows_the_unreadable_delay() {
        for (value, found) in [
            (Value::from("5s"), "`5s`"),
            ("".into(), "``"),
            (" 5".into(), "` 5`"),
            ("99999999999999999999".into(), "`99999999999999999999`"),
            (f64::NAN.into(), "NaN"),
            (1e300.into(), &1e300_f64.to_string()),
            (b"\xff".to_vec().into(), "`\u{fffd}`"),
        ] {
            let error = of(value.clone()).unwrap_err();
            assert!(error.to_string().contains(found), "{value:?}: {error}");
        }
        let long = of("x\n".repeat(100)).unwrap_err().to_string();
        assert!(long.len() < 150 && !long.contains('\n'), "{long}");
    }

    #[test]
    fn leaves_the_header_like_the_plugin() {
        assert_eq!(done(5_000), Value::I32(-5_000));
        assert_eq!(done(1 << 40), Value::I64(-(1 << 40)));
    }
}
