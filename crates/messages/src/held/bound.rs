//! Which applications have a binding on dispatch.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value as Json;

use crate::{error::AdminError, held::Kept};
use delayline_broker::{ExchangeInfo, Scope, Snapshot};
use delayline_core::{
    codec::{AppKey, Delay, RoutingKey},
    message::{Headers, Value},
    topology::{Topology, topic_matches},
};
use delayline_settings::{Layout, Settings};

/// The arguments of a binding.
type Arguments = BTreeMap<String, Json>;

/// The bindings of a dispatch exchange, or of its counterpart in another layout.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Bound {
    /// The apps with an exact binding.
    apps: BTreeSet<String>,
    /// The other binding keys: each can catch messages of any app.
    patterns: Vec<String>,
    /// The layout whose keys the patterns match; `None` for the set's own keys.
    layout: Option<Layout>,
    /// The other exchanges of the vhost that have bindings, with their kinds. Consumers of gateways are
    /// bound to them.
    exchanges: BTreeMap<String, (String, Vec<(String, Arguments)>)>,
}

impl Kept {
    /// Asks the management API for the bindings. The inner error is why it cannot be asked.
    pub fn bound(
        &self,
        settings: &Settings,
        topology: &Topology,
    ) -> Result<Result<Bound, String>, AdminError> {
        let scope = match self {
            Self::Guarded(layout) => Scope::Layout(topology, layout),
            Self::Unroutable | Self::Parked | Self::Recalled(_) => Scope::Set(topology, &[]),
        };
        let snapshot = Snapshot::try_fetch(settings.management.as_ref(), &settings.broker.vhost, scope)?;
        Ok(snapshot.map(|snapshot| match self {
            Self::Guarded(layout) => Bound::in_layout(layout, &snapshot),
            Self::Unroutable | Self::Parked | Self::Recalled(_) => Bound::new(topology, &snapshot),
        }))
    }
}

impl Bound {
    /// The bindings behind the levels of a layout.
    fn in_layout(layout: &Layout, snapshot: &Snapshot) -> Self {
        let delivery = layout.delivery();
        let patterns = snapshot.bindings_from(&delivery).iter().map(|binding| binding.key.clone()).collect();
        Self { patterns, layout: Some(layout.clone()), ..Self::default() }
    }

    /// The bindings of the dispatch exchange.
    pub fn new(topology: &Topology, snapshot: &Snapshot) -> Self {
        let mut bound = Self::default();
        for binding in snapshot.app_bindings(topology) {
            match RoutingKey::app_of_pattern(&binding.key) {
                Ok(app) => _ = bound.apps.insert(app.to_string()),
                Err(pattern) => bound.patterns.push(pattern.to_owned()),
            }
        }
        let others = snapshot.exchanges.values().filter(|it| !topology.owns_exchange(&it.name));
        let with_bindings = |it: &ExchangeInfo| {
            let bindings = snapshot.bindings_with_arguments(&it.name);
            let bindings =
                bindings.map(|(binding, with)| (binding.key.clone(), with.cloned().unwrap_or_default()));
            (it.name.clone(), (it.kind.clone(), bindings.collect()))
        };
        bound.exchanges = others.map(with_bindings).collect();
        bound
    }

    /// Whether an exchange outside the set has a binding for such a message.
    pub fn routes(&self, exchange: &str, routing_key: &str, headers: &Headers) -> bool {
        let Some((kind, bindings)) = self.exchanges.get(exchange) else { return false };
        bindings.iter().any(|(key, arguments)| match kind.as_str() {
            "direct" => key == routing_key,
            "topic" => topic_matches(key, routing_key),
            "headers" => headers_match(arguments, headers),
            // A fanout exchange, or a kind with unknown rules.
            _ => true,
        })
    }

    /// Whether a queue or exchange is bound for an app.
    pub fn has(&self, app: &str) -> bool {
        if let Some(layout) = &self.layout {
            return self.patterns.iter().any(|pattern| layout.delivers(pattern, app));
        }
        if self.apps.contains(app) {
            return true;
        }
        let Ok(app) = AppKey::new(app) else { return false };
        let key = RoutingKey::new(Delay::ZERO, app).encode();
        self.patterns.iter().any(|pattern| topic_matches(pattern, &key))
    }
}

/// Whether a headers exchange takes a message for a binding with these arguments.
fn headers_match(arguments: &Arguments, headers: &Headers) -> bool {
    let how = arguments.get("x-match").and_then(Json::as_str).unwrap_or("all");
    let counts = |name: &str| name != "x-match" && (how.ends_with("-with-x") || !name.starts_with("x-"));
    let mut wanted = arguments.iter().filter(|(name, _)| counts(name));
    let has = |(name, value): (&String, &Json)| headers.get(name).is_some_and(|found| equal(value, found));
    if how.starts_with("any") { wanted.any(has) } else { wanted.all(has) }
}

/// Whether the value of a header equals the value of a binding. If they cannot be compared, this is true.
fn equal(wanted: &Json, found: &Value) -> bool {
    match (wanted, found) {
        (Json::Number(wanted), found) => match found.as_i64() {
            Some(found) => wanted.as_i64() == Some(found),
            None => matches!(found, Value::F32(_) | Value::F64(_) | Value::Decimal { .. }),
        },
        (Json::String(wanted), Value::Text(found)) => wanted == found,
        (Json::Bool(wanted), Value::Bool(found)) => wanted == found,
        (Json::String(_) | Json::Bool(_), Value::Text(_) | Value::Bool(_)) => false,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use delayline_broker::BindingInfo;
    use delayline_core::topology::TopologySettings;

    #[test]
    fn a_pattern_is_a_binding_too() {
        let topology = Topology::new(TopologySettings::default());
        let mut snapshot = Snapshot::default().with(topology.objects());
        let exact = RoutingKey::binding_pattern(&AppKey::new("billing").unwrap());
        for key in [exact.as_str(), "#.orders", "other.#"] {
            let binding = BindingInfo {
                source: topology.names().dispatch(),
                destination: "queue".into(),
                destination_type: "queue".into(),
                routing_key: key.into(),
                ..BindingInfo::default()
            };
            snapshot.enter([], [], [binding]);
        }
        let bound = Bound::new(&topology, &snapshot);
        for (app, expected) in [
            ("billing", true),
            ("eu.billing", false),
            ("orders", true),
            ("eu.orders", true),
            ("other", false),
        ] {
            assert_eq!(bound.has(app), expected, "{app}");
        }
    }
    #[test]
    fn follows_the_bindings_of_a_gateways_exchange() {
        let topology = Topology::new(TopologySettings::default());
        let mut snapshot = Snapshot::default().with(topology.objects());
        for (exchange, kind, key, arguments) in [
            ("to", "direct", "a.b", serde_json::json!({})),
            ("by", "topic", "a.#", serde_json::json!({})),
            ("all", "fanout", "", serde_json::json!({})),
            ("head", "headers", "", serde_json::json!({ "x-match": "all", "kind": "a", "size": 3 })),
            ("any", "headers", "", serde_json::json!({ "x-match": "any", "kind": "a", "size": 3 })),
        ] {
            let info = ExchangeInfo { name: exchange.into(), kind: kind.into(), ..ExchangeInfo::default() };
            let binding = BindingInfo {
                source: exchange.into(),
                routing_key: key.into(),
                arguments: serde_json::from_value(arguments).unwrap(),
                ..BindingInfo::default()
            };
            snapshot.enter([info], [], [binding]);
        }
        let bound = Bound::new(&topology, &snapshot);
        let with = |kind: &str, size: i64| -> Headers {
            [("kind".into(), kind.into()), ("size".into(), size.into())].into()
        };
        for (exchange, key, headers, expected) in [
            ("to", "a.b", with("", 0), true),
            ("to", "a", with("", 0), false),
            ("by", "a.c", with("", 0), true),
            ("by", "b", with("", 0), false),
            ("all", "b", with("", 0), true),
            ("head", "b", with("a", 3), true),
            ("head", "b", with("a", 4), false),
            ("any", "b", with("a", 4), true),
            ("any", "b", with("b", 4), false),
            ("gone", "a.b", with("a", 3), false),
        ] {
            assert_eq!(bound.routes(exchange, key, &headers), expected, "{exchange} {key} {headers:?}");
        }
    }
}
