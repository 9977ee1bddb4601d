//! The bindings of a dispatch exchange.

use serde::Serialize;

use delayline_broker::{BindingInfo, Snapshot};
use delayline_core::{
    codec::RoutingKey,
    topology::{Endpoint, Topology},
};

/// A binding of the dispatch exchange.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct AppBinding {
    /// The app key; `None` if the pattern is not an exact one.
    pub app: Option<String>,
    /// The binding key, if it is not an exact one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pattern: Option<String>,
    /// Where the messages go.
    pub destination: Endpoint,
}

impl AppBinding {
    /// The bindings of a set's dispatch exchange, among those that the management API listed.
    #[must_use]
    pub fn all(topology: &Topology, bindings: Vec<BindingInfo>) -> Vec<Self> {
        let snapshot = Snapshot::new("", Vec::new(), Vec::new(), bindings);
        let bindings = snapshot.dispatch_bindings(topology).into_iter();
        bindings
            .map(|binding| {
                let app = RoutingKey::app_of_pattern(&binding.key).ok().map(|app| app.to_string());
                let pattern = if app.is_none() { Some(binding.key) } else { None };
                Self { app, pattern, destination: binding.destination }
            })
            .collect()
    }
}
