//! Which applications have a binding on dispatch.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value as Json;

use crate::{AdminError, Kept, Layout, compare::Observed, management::BindingInfo, observe};
use delayline_core::{
    codec::{AppKey, Delay, RoutingKey},
    message::{Headers, Value},
    topology::{Topology, topic_matches},
};
use delayline_settings::Settings;

/// The bindings of a dispatch exchange, or of what stands in its place in another layout.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Bound {
    /// The apps with an exact binding.
    apps: BTreeSet<String>,
    /// The other binding keys: each can catch messages of any app.
    patterns: Vec<String>,
    /// Whose keys the patterns match, if not the set's own.
    layout: Option<Layout>,
    /// The other exchanges of the vhost that have bindings, with their kinds: consumers of
    /// gateways are bound to them.
    exchanges: BTreeMap<String, (String, Vec<BindingInfo>)>,
}

impl Kept {
    /// Asks the management API who is bound. The inner error is why it cannot be asked.
    pub(crate) fn bound(
        &self,
        settings: &Settings,
        topology: &Topology,
    ) -> Result<Result<Bound, String>, AdminError> {
        let observed = observe(settings.management.as_ref(), &settings.broker.vhost)?;
        Ok(observed.map(|observed| match self {
            Self::Guarded(layout) => Bound::in_layout(layout, &observed),
            Self::Unroutable | Self::Parked | Self::Recalled(_) => Bound::new(topology, &observed),
        }))
    }
}

impl Bound {
    /// Who is bound behind the levels of a layout.
    fn in_layout(layout: &Layout, observed: &Observed) -> Self {
        let delivery = layout.delivery();
        let bindings = observed.bindings.iter().filter(|binding| binding.source == delivery);
        let patterns = bindings.map(|binding| binding.routing_key.clone()).collect();
        Self { patterns, layout: Some(layout.clone()), ..Self::default() }
    }

    /// Who is bound to the dispatch exchange.
    pub(crate) fn new(topology: &Topology, observed: &Observed) -> Self {
        let mut bound = Self::default();
        for binding in observed.app_bindings(topology) {
            match RoutingKey::app_of_pattern(&binding.key) {
                Ok(app) => _ = bound.apps.insert(app.to_string()),
                Err(pattern) => bound.patterns.push(pattern.to_owned()),
            }
        }
        let others = observed.exchanges.iter().filter(|it| !topology.owns_exchange(&it.name));
        bound.exchanges = others.map(|it| (it.name.clone(), (it.kind.clone(), Vec::new()))).collect();
        for binding in &observed.bindings {
            if let Some((_, bindings)) = bound.exchanges.get_mut(&binding.source) {
                bindings.push(binding.clone());
            }
        }
        bound
    }

    /// Whether an exchange outside the set has a binding for such a message.
    pub(super) fn routes(&self, exchange: &str, routing_key: &str, headers: &Headers) -> bool {
        let Some((kind, bindings)) = self.exchanges.get(exchange) else { return false };
        bindings.iter().any(|binding| match kind.as_str() {
            "direct" => binding.routing_key == routing_key,
            "topic" => topic_matches(&binding.routing_key, routing_key),
            "headers" => headers_match(&binding.arguments, headers),
            // A fanout, or a kind of which nothing is known here.
            _ => true,
        })
    }

    /// Whether somebody receives messages that are due for an app.
    pub(crate) fn has(&self, app: &str) -> bool {
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
fn headers_match(arguments: &BTreeMap<String, Json>, headers: &Headers) -> bool {
    let how = arguments.get("x-match").and_then(Json::as_str).unwrap_or("all");
    let counts = |name: &str| name != "x-match" && (how.ends_with("-with-x") || !name.starts_with("x-"));
    let mut wanted = arguments.iter().filter(|(name, _)| counts(name));
    let has = |(name, value): (&String, &Json)| headers.get(name).is_some_and(|found| equal(value, found));
    if how.starts_with("any") { wanted.any(has) } else { wanted.all(has) }
}

/// Whether the value of a header is what a binding asks for. What cannot be compared may be.
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
    use crate::management::BindingInfo;
    use delayline_core::topology::TopologySettings;

    #[test]
    fn a_pattern_is_a_binding_too() {
        let topology = Topology::new(TopologySettings::default());
        let mut observed = Observed::standing(&topology);
        let exact = RoutingKey::binding_pattern(&AppKey::new("billing").unwrap());
        for key in [exact.as_str(), "#.orders", "other.#"] {
            observed.bindings.push(BindingInfo {
                source: topology.names().dispatch(),
                destination: "queue".into(),
                destination_type: "queue".into(),
                routing_key: key.into(),
                ..BindingInfo::default()
            });
        }
        let bound = Bound::new(&topology, &observed);
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
    fn knows_what_an_exchange_of_a_gateway_routes() {
        let topology = Topology::new(TopologySettings::default());
        let mut observed = Observed::standing(&topology);
        for (exchange, kind, key, arguments) in [
            ("to", "direct", "a.b", serde_json::json!({})),
            ("by", "topic", "a.#", serde_json::json!({})),
            ("all", "fanout", "", serde_json::json!({})),
            ("head", "headers", "", serde_json::json!({ "x-match": "all", "kind": "a", "size": 3 })),
            ("any", "headers", "", serde_json::json!({ "x-match": "any", "kind": "a", "size": 3 })),
        ] {
            observed.exchanges.push(crate::management::ExchangeInfo {
                name: exchange.into(),
                kind: kind.into(),
                ..Default::default()
            });
            observed.bindings.push(BindingInfo {
                source: exchange.into(),
                routing_key: key.into(),
                arguments: serde_json::from_value(arguments).unwrap(),
                ..BindingInfo::default()
            });
        }
        let bound = Bound::new(&topology, &observed);
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
