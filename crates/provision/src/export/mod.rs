//! A set and applications in the formats of other tools: pure.
//!
//! Everything comes from the values that `install` and `app add` read, in their order, so the text changes
//! only if the topology does. No format contains a password.

mod definitions;
mod terraform;

use crate::{apps::AppSpec, apps::steps, engine::Step};
use delayline_broker::{Permission, TopicPermission};
use delayline_core::topology::{Argument, Binding, Exchange, ExchangeKind, Object, Queue, Topology};

/// The exported contents of a vhost.
///
/// ```
/// use delayline_core::topology::{Topology, TopologySettings};
/// use delayline_provision::Export;
///
/// let topology = Topology::new(TopologySettings::default());
/// let definitions = Export::new("orders").with_set(&topology).definitions();
/// assert_eq!(definitions["queues"].as_array().map(Vec::len), Some(31));
/// ```
#[derive(Debug, Clone)]
pub struct Export {
    vhost: String,
    exchanges: Vec<Exchange>,
    queues: Vec<Queue>,
    bindings: Vec<Binding>,
    topics: Vec<TopicPermission>,
    permissions: Vec<Permission>,
}

impl Export {
    /// Nothing yet, for a vhost.
    #[must_use]
    pub fn new(vhost: impl Into<String>) -> Self {
        Self {
            vhost: vhost.into(),
            exchanges: Vec::new(),
            queues: Vec::new(),
            bindings: Vec::new(),
            topics: Vec::new(),
            permissions: Vec::new(),
        }
    }

    /// Adds everything that belongs to a set.
    #[must_use]
    pub fn with_set(mut self, topology: &Topology) -> Self {
        self.exchanges.extend(topology.exchanges().cloned());
        self.queues.extend(topology.queues().cloned());
        self.bindings.extend(topology.bindings().cloned());
        self
    }

    /// Adds an application of a set: its queues, its binding, its user's permissions.
    #[must_use]
    pub fn with_app(mut self, topology: &Topology, spec: &AppSpec) -> Self {
        for step in steps(topology, spec) {
            match step {
                Step::Object(Object::Exchange(exchange)) => self.exchanges.push(exchange),
                Step::Object(Object::Queue(queue)) => self.queues.push(queue),
                Step::Object(Object::Binding(binding)) | Step::Only(binding) => self.bindings.push(binding),
                Step::Topic(topic) => self.topics.push(topic),
                Step::Permission(permission) => self.permissions.push(permission),
                Step::Stands(_)
                | Step::Unbound(_)
                | Step::Moved(_)
                | Step::User { .. }
                | Step::Policy(_)
                | Step::NoPolicy(_) => {}
            }
        }
        self
    }

    /// Adds a gateway of a set: its exchanges, queues and bindings. A name that no gateway can have
    /// adds nothing.
    #[must_use]
    pub fn with_gateway(mut self, topology: &Topology, name: &str, kind: ExchangeKind) -> Self {
        for object in topology.gateway(name, kind).unwrap_or_default() {
            match object {
                Object::Exchange(exchange) => self.exchanges.push(exchange),
                Object::Queue(queue) => self.queues.push(queue),
                Object::Binding(binding) => self.bindings.push(binding),
            }
        }
        self
    }
}

/// The type of a queue, as its arguments say.
fn kind(queue: &Queue) -> &str {
    match queue.arguments.get("x-queue-type") {
        Some(Argument::Text(kind)) => kind,
        _ => "classic",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{apps::AppQueue, apps::AppUser, apps::Delivery, apps::Target};
    use delayline_amqp::broker::Secret;
    use delayline_core::{codec::AppKey, topology::TopologySettings};

    /// An application whose user needs quoting, behind a landing queue.
    pub(super) fn spec() -> AppSpec {
        AppSpec {
            app: AppKey::new("billing").unwrap(),
            delivery: Delivery::Landing(Target::Queue(AppQueue::new("billing"))),
            user: Some(AppUser {
                name: "it's".into(),
                password: Some(Secret::new("hunter2")),
                ..AppUser::default()
            }),
            recall: None,
        }
    }

    pub(super) fn topology() -> Topology {
        Topology::new(TopologySettings::default())
    }

    #[test]
    fn a_gateway_is_exported_with_all_its_objects() {
        let export = Export::new("orders").with_gateway(&topology(), "orders.delayed", ExchangeKind::Topic);
        let text = export.definitions().to_string();
        for name in ["orders.delayed", "orders.delayed.in", "delay.gateway.orders.delayed"] {
            assert!(text.contains(&format!("\"{name}\"")), "{name} is not in {text}");
        }
    }

    /// A set with that application.
    pub(super) fn all() -> Export {
        Export::new("orders").with_set(&topology()).with_app(&topology(), &spec())
    }

    #[test]
    fn no_format_holds_a_password() {
        let all = all();
        for text in [all.definitions().to_string(), all.terraform().to_string()] {
            assert!(text.contains("it's"), "{text}");
            assert!(!text.contains("hunter2"), "{text}");
        }
    }

    #[test]
    fn the_same_topology_is_the_same_text() {
        for format in [Export::definitions, Export::terraform] {
            assert_eq!(format(&all()).to_string(), format(&all()).to_string());
        }
    }
}
