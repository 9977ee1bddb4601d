//! Who is bound to a dispatch exchange.

use serde::Serialize;

use crate::{compare::Observed, management::BindingInfo};
use delayline_core::{
    codec::RoutingKey,
    topology::{Endpoint, Topology},
};

/// A binding of the dispatch exchange.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
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
    /// Those of a set's dispatch exchange, among bindings that the management API listed.
    #[must_use]
    pub fn all(topology: &Topology, bindings: Vec<BindingInfo>) -> Vec<Self> {
        let observed = Observed { bindings, ..Observed::default() };
        let bindings = observed.dispatch_bindings(topology).into_iter();
        bindings
            .map(|binding| {
                let app = RoutingKey::app_of_pattern(&binding.key).ok().map(|app| app.to_string());
                let pattern = if app.is_none() { Some(binding.key) } else { None };
                Self { app, pattern, destination: binding.destination }
            })
            .collect()
    }
}
