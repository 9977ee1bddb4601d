//! A vhost as it is after an installation, for tests without a broker.

use std::collections::BTreeMap;

use crate::management::{BindingInfo, ExchangeInfo, QueueInfo};

use crate::compare::Observed;
use delayline_core::topology::{Argument, Binding, Endpoint, Topology};

impl Observed {
    /// What a broker would say about a topology that is installed.
    pub(crate) fn standing(topology: &Topology) -> Self {
        let json = |arguments: &BTreeMap<String, Argument>| {
            arguments
                .iter()
                .map(|(name, value)| (name.clone(), serde_json::to_value(value).unwrap()))
                .collect()
        };
        Self {
            exchanges: topology
                .exchanges()
                .map(|exchange| ExchangeInfo {
                    name: exchange.name.clone(),
                    kind: exchange.kind.as_str().into(),
                    durable: true,
                    arguments: json(&exchange.arguments),
                    ..ExchangeInfo::default()
                })
                .collect(),
            queues: topology
                .queues()
                .map(|queue| QueueInfo {
                    name: queue.name.clone(),
                    durable: true,
                    arguments: json(&queue.arguments),
                    ..QueueInfo::default()
                })
                .collect(),
            bindings: topology.bindings().map(info).collect(),
            nodes: Some(3),
            ..Self::default()
        }
    }
}

/// A binding as the management API tells it.
pub(super) fn info(binding: &Binding) -> BindingInfo {
    let kind = match binding.destination {
        Endpoint::Queue(_) => "queue",
        Endpoint::Exchange(_) => "exchange",
    };
    BindingInfo {
        source: binding.source.clone(),
        destination: binding.destination.name().into(),
        destination_type: kind.into(),
        routing_key: binding.key.clone(),
        ..BindingInfo::default()
    }
}
