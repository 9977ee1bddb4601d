//! The changes to a message that delayline sends again. Pure.
//!
//! The only other rules are in the [list of headers](super::forbidden) that are never sent on.

use jiff::Timestamp;

use super::{
    Headers, Properties, Value,
    forbidden::allowed,
    headers::{EXCHANGE, EXPIRES, ROUTING_KEY, USER_ID},
    prepare::expiration_ms,
};

/// Removes the property `expiration`, with which a message would leave its level early. Returns the
/// value for the header [`EXPIRES`] in its place, counted from `taken`.
pub(super) fn take_expiration(properties: &mut Properties, taken: Timestamp) -> Option<Value> {
    let lifetime = properties.expiration.take().as_deref().and_then(expiration_ms)?;
    let lifetime = i64::try_from(lifetime).unwrap_or(i64::MAX);
    Some(Value::I64(taken.as_millisecond().saturating_add(lifetime)))
}

/// Moves a `user_id` that is not the sender's into a header: the broker refuses it.
pub fn move_user_id(properties: &mut Properties, headers: &mut Headers, sender: Option<&str>) {
    if properties.user_id.as_deref() != sender
        && let Some(user) = properties.user_id.take()
    {
        headers.insert(USER_ID.into(), user.into());
    }
}

/// Properties and headers of a message that is sent again. Everything that would move, hold back or
/// lose it is removed, and its origin is recorded. The rest stays.
pub fn resend(
    properties: &Properties,
    headers: &Headers,
    (exchange, routing_key): (&str, &str),
    sender: Option<&str>,
    now: Timestamp,
) -> (Properties, Headers) {
    let mut properties = properties.clone();
    let mut headers = allowed(headers);
    // The first origin counts, not a later stop.
    if !(headers.contains_key(EXCHANGE) && headers.contains_key(ROUTING_KEY)) {
        headers.insert(EXCHANGE.into(), exchange.into());
        headers.insert(ROUTING_KEY.into(), routing_key.into());
    }
    if let Some(expires) = take_expiration(&mut properties, now) {
        headers.entry(EXPIRES.into()).or_insert(expires);
    }
    move_user_id(&mut properties, &mut headers, sender);
    (properties, headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_messages_own_values_and_records_its_origin() {
        let properties = Properties {
            message_id: Some("7".into()),
            expiration: Some("500".into()),
            user_id: Some("tenant".into()),
            ..Properties::default()
        };
        let headers = Headers::from([
            ("x-death".into(), Value::Array(vec![])),
            ("CC".into(), "elsewhere".into()),
            ("x-delivery-count".into(), 3_i64.into()),
            ("x-opt-delivery-time".into(), 9_i64.into()),
            ("x-opt-delivery-delay".into(), 9_i64.into()),
            ("mine".into(), 1_i64.into()),
        ]);
        let now = Timestamp::from_millisecond(1_000).unwrap();
        let (sent, headers) = resend(&properties, &headers, ("delay", "key"), Some("operator"), now);
        assert_eq!(sent, Properties { message_id: Some("7".into()), ..Properties::default() });
        let expected = Headers::from([
            (EXCHANGE.into(), "delay".into()),
            (EXPIRES.into(), 1_500_i64.into()),
            (ROUTING_KEY.into(), "key".into()),
            (USER_ID.into(), "tenant".into()),
            ("mine".into(), 1_i64.into()),
        ]);
        assert_eq!(headers, expected);
        let (own, headers) = resend(&properties, &headers, ("delay", "key"), Some("tenant"), now);
        assert_eq!(own.user_id.as_deref(), Some("tenant"));
        assert_eq!(headers[EXPIRES], Value::I64(1_500), "the first expiry holds");
    }
}
