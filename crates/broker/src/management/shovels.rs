//! Dynamic shovels, which move messages from a queue or exchange to another.

use std::collections::BTreeMap;

use delayline_core::{percent::decode, topology::Endpoint};
use serde::Deserialize;
use serde_json::Value as Json;

use super::{ManagementApi, ManagementError, client::segment, model::lenient};

/// A shovel: an item of `GET /api/parameters/shovel/VHOST`, without the passwords in its addresses.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "Parameter")]
pub struct Shovel {
    /// Its name.
    pub name: String,
    /// Where it takes messages.
    pub source: ShovelEnd,
    /// Where it publishes them.
    pub destination: ShovelEnd,
}

/// An end of a shovel.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ShovelEnd {
    /// The queue or exchange; `None` if each message has its own.
    pub place: Option<Endpoint>,
    /// The key that it binds or publishes with.
    pub key: String,
    /// The brokers that it connects to, in this order.
    pub addresses: Vec<Address>,
}

/// A broker as a shovel addresses it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Address {
    /// The host; `None` for the broker that runs the shovel.
    pub host: Option<String>,
    /// The vhost; `None` for that of the shovel.
    pub vhost: Option<String>,
}

/// The item as the API reports it.
#[derive(Deserialize)]
#[serde(default)]
#[derive(Default)]
struct Parameter {
    #[serde(deserialize_with = "lenient")]
    name: String,
    #[serde(deserialize_with = "lenient")]
    value: BTreeMap<String, Json>,
}

impl From<Parameter> for Shovel {
    fn from(Parameter { name, value }: Parameter) -> Self {
        Self { name, source: ShovelEnd::read(&value, "src"), destination: ShovelEnd::read(&value, "dest") }
    }
}

impl ShovelEnd {
    fn read(value: &BTreeMap<String, Json>, end: &str) -> Self {
        let text = |field: &str| value.get(&format!("{end}-{field}")).and_then(Json::as_str);
        let key = text("exchange-key").unwrap_or_default().to_owned();
        let (place, key) = match (text("queue"), text("exchange"), text("address")) {
            (Some(queue), ..) => (Some(Endpoint::Queue(queue.into())), String::new()),
            // The default exchange, which leads to the queue that the key names.
            (_, Some(""), _) if !key.is_empty() => (Some(Endpoint::Queue(key)), String::new()),
            (_, Some(exchange), _) => (Some(Endpoint::Exchange(exchange.into())), key),
            (.., Some(address)) => of_address(address),
            _ => (None, key),
        };
        let addresses = match value.get(&format!("{end}-uri")) {
            Some(Json::String(one)) => vec![Address::read(one)],
            Some(Json::Array(several)) => {
                several.iter().filter_map(Json::as_str).map(Address::read).collect()
            }
            _ => Vec::new(),
        };
        Self { place, key, addresses }
    }
}

/// The queue, or the exchange and key, of an address of AMQP 1.0: `/queues/NAME`, `/exchanges/NAME/KEY`, or
/// as up to 3.13 `/queue/NAME`, `/amq/queue/NAME`, `/exchange/NAME/KEY`, `NAME`.
fn of_address(address: &str) -> (Option<Endpoint>, String) {
    let address = address.strip_prefix("/amq").unwrap_or(address);
    let name = |text: &str| decode(text).unwrap_or_else(|| text.to_owned());
    let parts: Vec<_> = address.splitn(4, '/').collect();
    match parts[..] {
        ["", "queues" | "queue", queue] => (Some(Endpoint::Queue(name(queue))), String::new()),
        ["", "exchanges" | "exchange", exchange] => (Some(Endpoint::Exchange(name(exchange))), String::new()),
        ["", "exchanges" | "exchange", exchange, key] => {
            (Some(Endpoint::Exchange(name(exchange))), name(key))
        }
        [queue] if !queue.is_empty() => (Some(Endpoint::Queue(queue.into())), String::new()),
        _ => (None, String::new()),
    }
}

impl Address {
    /// Reads `amqp://USER:PASSWORD@HOST:PORT/VHOST?OPTIONS`, in which everything is optional.
    fn read(uri: &str) -> Self {
        let rest = uri.split_once("://").map_or(uri, |(_, rest)| rest);
        let rest = rest.split(['?', '#']).next().unwrap_or_default();
        let (authority, path) = rest.split_once('/').map_or((rest, None), |(host, path)| (host, Some(path)));
        let host = authority.rsplit('@').next().unwrap_or_default();
        let host = match host.strip_prefix('[').and_then(|host| host.split_once(']')) {
            Some((six, _)) => six,
            None => host.split(':').next().unwrap_or_default(),
        };
        let filled = |text: &str| (!text.is_empty()).then(|| decode(text).unwrap_or_else(|| text.to_owned()));
        Self { host: filled(host).map(|host| host.to_lowercase()), vhost: path.and_then(filled) }
    }
}

impl ManagementApi {
    /// The dynamic shovels of a vhost; none without their plugin. Needs the tag `policymaker`.
    ///
    /// # Errors
    /// See [`ManagementError`].
    pub fn shovels(&self, vhost: &str) -> Result<Vec<Shovel>, ManagementError> {
        Ok(self.find(&format!("parameters/shovel/{}", segment(vhost)))?.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_address_shows_the_host_and_the_vhost_and_no_password() {
        let read = |uri: &str| {
            let Address { host, vhost } = Address::read(uri);
            [host, vhost].map(Option::unwrap_or_default)
        };
        for (uri, host, vhost) in [
            ("amqp://", "", ""),
            ("amqp:///prod", "", "prod"),
            ("amqp:///%2F", "", "/"),
            ("amqp://u:secret@Other.Example:5672/a%20b?heartbeat=5", "other.example", "a b"),
            ("amqps://[::1]:5671", "::1", ""),
            ("amqp://u:p@h?x=/y", "h", ""),
            ("amqp://h/", "h", ""),
            ("", "", ""),
        ] {
            assert_eq!(read(uri), [host, vhost], "{uri}");
        }
        let shovel: Shovel = serde_json::from_value(json!({
            "name": "s", "value": {"src-uri": ["amqp://u:secret@h", "amqp://"], "src-queue": "q"},
        }))
        .unwrap();
        assert_eq!(shovel.source.addresses.len(), 2);
        assert!(!format!("{shovel:?}").contains("secret"));
    }

    #[test]
    fn the_ends_of_all_protocols_are_read() {
        let end = |fields: Json| {
            let end = ShovelEnd::read(&serde_json::from_value(fields).unwrap(), "src");
            (end.place.map(|place| place.to_string()), end.key)
        };
        let found = |place: &str, key: &str| (Some(place.to_owned()), key.to_owned());
        assert_eq!(end(json!({"src-queue": "q"})), found("queue `q`", ""));
        assert_eq!(end(json!({"src-exchange": "x", "src-exchange-key": "k"})), found("exchange `x`", "k"));
        assert_eq!(end(json!({"src-exchange": "", "src-exchange-key": "q"})), found("queue `q`", ""));
        assert_eq!(end(json!({"src-address": "/queues/a%20b"})), found("queue `a b`", ""));
        assert_eq!(end(json!({"src-address": "/amq/queue/q"})), found("queue `q`", ""));
        assert_eq!(end(json!({"src-address": "q"})), found("queue `q`", ""));
        assert_eq!(end(json!({"src-address": "/exchange/x/a.b"})), found("exchange `x`", "a.b"));
        assert_eq!(end(json!({"src-address": "/topic/k"})), (None, String::new()));
        assert_eq!(end(json!({"dest-queue": "q", "src-queue": 5})), (None, String::new()));
    }
}
