//! Which applications have a binding on dispatch.

use std::collections::BTreeSet;

use crate::{AdminError, Kept, Layout, compare::Observed, observe};
use delayline::{
    codec::{AppKey, Delay, RoutingKey},
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

    fn new(topology: &Topology, observed: &Observed) -> Self {
        let mut bound = Self::default();
        for binding in observed.dispatch_bindings(topology) {
            match RoutingKey::app_of_pattern(&binding.key) {
                Ok(app) => _ = bound.apps.insert(app.to_string()),
                Err(pattern) => bound.patterns.push(pattern.to_owned()),
            }
        }
        bound
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::management::BindingInfo;
    use delayline::topology::TopologySettings;

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
}
