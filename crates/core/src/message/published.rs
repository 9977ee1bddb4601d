//! Finding the publish that a returned message belongs to: pure.
//!
//! The broker returns a message that was routed to no queue, without its delivery tag. So it is
//! identified among the messages in flight by its parts.
//!
//! Exchange, routing key and body return unchanged. Properties and headers may differ slightly: a
//! broker with message interceptors adds its own headers, or changes the `timestamp`. It does so to
//! every message, so the message with the fewest differences is the right one.

use super::{Headers, Properties, Value};

/// The parts that distinguish one publish from another.
#[derive(Debug, Clone, Copy)]
pub struct Published<'a> {
    /// The exchange it was published to.
    pub exchange: &'a str,
    /// Its routing key.
    pub routing_key: &'a str,
    /// Its standard properties.
    pub properties: &'a Properties,
    /// Its headers.
    pub headers: &'a Headers,
    /// Its payload.
    pub body: &'a [u8],
}

impl Published<'_> {
    /// The number of properties and headers that differ. `None` if they cannot be the same publish.
    pub fn differences(self, other: Published<'_>) -> Option<usize> {
        let same = self.exchange == other.exchange
            && self.routing_key == other.routing_key
            && self.body == other.body;
        same.then(|| properties(self.properties, other.properties) + headers(self.headers, other.headers))
    }
}

/// The candidate with the fewest differences, according to [`Published::differences`]. Equal
/// candidates are interchangeable, so the first is taken.
pub fn nearest<K>(candidates: impl IntoIterator<Item = (K, Option<usize>)>) -> Option<K> {
    let mut nearest = None;
    for (key, differences) in candidates {
        match (differences, &nearest) {
            (Some(0), _) => return Some(key),
            (Some(fewer), Some((_, known))) if fewer >= *known => {}
            (Some(differences), _) => nearest = Some((key, differences)),
            (None, _) => {}
        }
    }
    nearest.map(|(key, _)| key)
}

fn properties(one: &Properties, other: &Properties) -> usize {
    let Properties {
        content_type,
        content_encoding,
        priority,
        correlation_id,
        reply_to,
        expiration,
        message_id,
        timestamp,
        kind,
        user_id,
        app_id,
    } = one;
    [
        *content_type != other.content_type,
        *content_encoding != other.content_encoding,
        *priority != other.priority,
        *correlation_id != other.correlation_id,
        *reply_to != other.reply_to,
        *expiration != other.expiration,
        *message_id != other.message_id,
        *timestamp != other.timestamp,
        *kind != other.kind,
        *user_id != other.user_id,
        *app_id != other.app_id,
    ]
    .into_iter()
    .filter(|differs| *differs)
    .count()
}

fn headers(one: &Headers, other: &Headers) -> usize {
    let missing = other.keys().filter(|name| !one.contains_key(*name)).count();
    let differs = |name: &String, value: &Value| !other.get(name).is_some_and(|found| same(value, found));
    missing + one.iter().filter(|(name, value)| differs(name, value)).count()
}

/// Equality by bits: a NaN equals itself.
fn same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::F32(one), Value::F32(other)) => one.to_bits() == other.to_bits(),
        (Value::F64(one), Value::F64(other)) => one.to_bits() == other.to_bits(),
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| same(one, other))
        }
        (Value::Table(one), Value::Table(other)) => headers(one, other) == 0,
        (one, other) => one == other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(name: &str, value: impl Into<Value>) -> Headers {
        Headers::from([(name.into(), value.into())])
    }

    /// Two equal publishes, except for these parts.
    fn differences(
        (exchange, routing_key, body): (&str, &str, &[u8]),
        properties: &Properties,
        headers: &Headers,
    ) -> Option<usize> {
        let (none, own) = (Properties::default(), with("a", f64::NAN));
        let sent =
            Published { exchange: "x", routing_key: "k", properties: &none, headers: &own, body: b"body" };
        sent.differences(Published { exchange, routing_key, properties, headers, body })
    }

    #[test]
    fn every_part_counts() {
        let (none, own) = (Properties::default(), with("a", f64::NAN));
        let all = ("x", "k", &b"body"[..]);
        assert_eq!(differences(all, &none, &own), Some(0));
        for other in [("y", "k", &b"body"[..]), ("x", "l", b"body"), ("x", "k", b"other")] {
            assert_eq!(differences(other, &none, &own), None, "{other:?}");
        }
        let text = || Some("other".to_owned());
        for one in [
            Properties { content_type: text(), ..Properties::default() },
            Properties { content_encoding: text(), ..Properties::default() },
            Properties { priority: Some(1), ..Properties::default() },
            Properties { correlation_id: text(), ..Properties::default() },
            Properties { reply_to: text(), ..Properties::default() },
            Properties { expiration: text(), ..Properties::default() },
            Properties { message_id: text(), ..Properties::default() },
            Properties { timestamp: Some(1), ..Properties::default() },
            Properties { kind: text(), ..Properties::default() },
            Properties { user_id: text(), ..Properties::default() },
            Properties { app_id: text(), ..Properties::default() },
        ] {
            assert_eq!(differences(all, &one, &own), Some(1), "{one:?}");
        }
        let deep = |number: f32| with("a", vec![Value::Table(with("b", number))]);
        assert_eq!(headers(&deep(1.0), &deep(1.0)), 0);
        for (other, count) in [
            (Headers::new(), 1),
            (with("a", 1_i64), 1),
            (with("b", f64::NAN), 2),
            (deep(2.0), 1),
            (with("a", vec![Value::Void, Value::Void]), 1),
        ] {
            assert_eq!(headers(&deep(1.0), &other), count, "{other:?}");
        }
    }

    #[test]
    fn the_nearest_is_taken_and_the_first_of_equals() {
        for (found, expected) in [
            (vec![], None),
            (vec![None, None], None),
            (vec![None, Some(3), Some(1), Some(1), Some(2)], Some(2)),
            (vec![Some(1), Some(0), Some(0)], Some(1)),
        ] {
            assert_eq!(nearest(found.iter().copied().enumerate()), expected, "{found:?}");
        }
    }
}
