//! Header values from JSON, and as JSON.

use serde_json::{Map, Value as Json};

use super::Value;

/// JSON as a header value. `Err` holds a number without an AMQP type.
impl TryFrom<Json> for Value {
    type Error = serde_json::Number;

    fn try_from(json: Json) -> Result<Self, serde_json::Number> {
        Ok(match json {
            Json::Null => Self::Void,
            Json::Bool(value) => Self::Bool(value),
            Json::Number(number) => match (number.as_i64(), number.as_f64()) {
                (Some(whole), _) => Self::I64(whole),
                // A whole number beyond i64 would lose digits as a float.
                (None, Some(float)) if !is_too_large(float) => Self::F64(float),
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

/// Whether this was a whole number beyond i64: the parser makes it a float. From 1e21 on, programs write even
/// whole floats with an exponent.
fn is_too_large(float: f64) -> bool {
    (9_223_372_036_854_775_808.0..1e21).contains(&float.abs())
}

/// A header value for people and scripts to read. Bytes become text if they are UTF-8, and
/// hexadecimal digits otherwise.
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
        for (text, is_taken) in [
            ("18446744073709551615", false),
            ("-9223372036854775809", false),
            ("100000000000000000000", false),
            ("-9223372036854775808", true),
            ("1e300", true),
        ] {
            let json: Json = serde_json::from_str(text).unwrap();
            assert_eq!(Value::try_from(json).is_ok(), is_taken, "{text}");
        }
    }

    #[test]
    fn shows_bytes_as_text_or_digits() {
        assert_eq!(Json::from(&Value::Bytes(b"ok".to_vec())), "ok");
        assert_eq!(Json::from(&Value::Bytes(vec![0xff, 0x0a])), "ff0a");
    }
}
