//! A message in a form for display.

use std::collections::BTreeMap;

use base64::{Engine, prelude::BASE64_STANDARD};
use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Value as Json, json};

use delayline_amqp::{Delivery, v1::Foreign};
use delayline_core::message::Properties;

use super::arrived;

/// A message and its contents; the body only up to the requested length. Its JSON has the names that
/// `delayline send --jsonl` reads.
#[derive(Debug, Clone, PartialEq, Serialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct Sample {
    /// The exchange it came through.
    pub exchange: String,
    /// Its routing key.
    pub routing_key: String,
    /// When it arrived here, as far as that can be known.
    pub arrived: Option<Timestamp>,
    /// Whether its headers and properties cannot be read here; then none are shown.
    pub unreadable: bool,
    /// Its properties that are set; in JSON beside the other fields.
    #[serde(flatten)]
    #[schemars(schema_with = "property_names")]
    pub properties: BTreeMap<&'static str, Json>,
    /// Its headers.
    pub headers: BTreeMap<String, Json>,
    /// The length of its body in bytes.
    pub bytes: usize,
    /// The beginning of the body, if it is text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// The beginning of the body in Base64, if it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body_base64: Option<String>,
    /// Whether the body goes on.
    pub truncated: bool,
}

/// The schema of the properties that may be set.
fn property_names(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    const TEXTS: [&str; 10] = [
        "content_type",
        "content_encoding",
        "correlation_id",
        "reply_to",
        "expiration",
        "message_id",
        "type",
        "user_id",
        "app_id",
        "cluster_id",
    ];
    const NUMBERS: [&str; 3] = ["priority", "timestamp", "delivery_mode"];
    let of = |names: &[&'static str], kind: &str| {
        let description = "The property of that name, if it is set.";
        names
            .iter()
            .map(|&name| (name, json!({ "description": description, "type": kind })))
            .collect::<Vec<_>>()
    };
    let all: BTreeMap<_, _> = of(&TEXTS, "string").into_iter().chain(of(&NUMBERS, "integer")).collect();
    schemars::json_schema!({ "type": "object", "properties": all })
}

impl Sample {
    /// Copies a message, with `most` bytes of its body.
    #[must_use]
    pub fn new(delivery: &Delivery, most: usize) -> Self {
        let (body, body_base64) = beginning(&delivery.body, most);
        Self {
            exchange: delivery.exchange.clone(),
            routing_key: delivery.routing_key.clone(),
            arrived: arrived(delivery),
            unreadable: delivery.damaged,
            properties: properties(&delivery.properties),
            headers: delivery.headers.iter().map(|(name, value)| (name.clone(), value.into())).collect(),
            bytes: delivery.body.len(),
            body,
            body_base64,
            truncated: delivery.body.len() > most,
        }
    }

    /// The same for a message that AMQP 0-9-1 cannot carry; properties and headers in
    /// readable form.
    pub(crate) fn of_foreign(message: &Foreign, most: usize) -> Self {
        let (body, body_base64) = beginning(&message.body, most);
        let bytes = message.body_len();
        let text = |(name, value): (&String, &String)| (name.clone(), Json::from(value.as_str()));
        Self {
            exchange: message.exchange.clone(),
            routing_key: message.routing_key.clone(),
            arrived: None,
            unreadable: true,
            properties: message
                .properties
                .iter()
                .map(|(name, value)| (*name, value.as_str().into()))
                .collect(),
            headers: message.headers.iter().map(text).collect(),
            bytes,
            body,
            body_base64,
            truncated: bytes > message.body.len().min(most),
        }
    }
}

/// The first bytes, as text if they are text. A character that is cut in two is left out.
fn beginning(body: &[u8], most: usize) -> (Option<String>, Option<String>) {
    let start = &body[..body.len().min(most)];
    let text = match std::str::from_utf8(start) {
        Ok(text) => Some(text),
        Err(error) if error.error_len().is_none() && start.len() < body.len() => {
            std::str::from_utf8(&start[..error.valid_up_to()]).ok()
        }
        Err(_) => None,
    };
    match text {
        Some(text) => (Some(text.to_owned()), None),
        None => (None, Some(BASE64_STANDARD.encode(start))),
    }
}

fn properties(properties: &Properties) -> BTreeMap<&'static str, Json> {
    let texts = properties.short_strings().map(|(name, text)| (name, Json::from(text)));
    let priority = properties.priority.map(|priority| ("priority", Json::from(priority)));
    let timestamp = properties.timestamp.map(|timestamp| ("timestamp", Json::from(timestamp)));
    texts.chain(priority).chain(timestamp).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_text_or_base64_and_cut_at_a_letter() {
        let text = |body: &[u8], most| beginning(body, most).0;
        assert_eq!(text(b"hello", 10).as_deref(), Some("hello"));
        assert_eq!(text(b"hello", 2).as_deref(), Some("he"));
        assert_eq!(text("aä".as_bytes(), 2).as_deref(), Some("a"));
        assert_eq!(text(b"", 2).as_deref(), Some(""));
        assert_eq!(beginning(b"a\xff", 10), (None, Some("Yf8=".into())));
        // The input ended within a character; it was not cut here.
        assert_eq!(text(b"a\xc3", 10), None);
    }
}
