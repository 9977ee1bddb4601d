//! A set and applications in the words of other tools: pure.
//!
//! Everything comes from the values that `install` and `app add` read, in their order, so that
//! the text changes only if the topology does. No format contains a password.

mod definitions;
mod terraform;

use crate::{
    apps::{AppSpec, Step, steps},
    management::{Permission, TopicPermission},
};
use delayline_core::topology::{Argument, Binding, Exchange, Queue, Topology};

/// What is to be exported: what one vhost should have.
///
/// ```
/// use delayline_core::topology::{Topology, TopologySettings};
/// use delayline_admin::Export;
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
    users: Vec<String>,
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
            users: Vec::new(),
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
                Step::Exchange(exchange) => self.exchanges.push(exchange),
                Step::Queue(queue) => self.queues.push(queue),
                Step::Binding(binding) => self.bindings.push(binding),
                Step::User(name, _) => self.users.push(name),
                Step::Topic(topic) => self.topics.push(topic),
                Step::Permission(permission) => self.permissions.push(permission),
                Step::Stands(_) => {}
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
    use crate::{AppQueue, AppUser, Delivery, Target};
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
