//! A set and applications in the words of other tools: pure.
//!
//! Everything comes from the values that `install` and `app add` read, in their order, so that
//! the text changes only if the topology does. No format contains a password.

mod definitions;
mod kubernetes;
mod rabbitmqctl;
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

/// A name for a tool that knows only letters, digits and dashes, with something else for each
/// dot. A name that cannot be kept gets a checksum, so that different names stay different.
fn tool_name(name: &str, dot: &str, keeps: fn(char) -> bool) -> String {
    /// So that what is put around a name keeps it below what tools allow.
    const LONGEST: usize = 180;
    let word = |word: &str| {
        word.starts_with(keeps) && word.ends_with(keeps) && word.chars().all(|c| c == '-' || keeps(c))
    };
    let letter = name.starts_with(|c: char| c.is_ascii_alphabetic());
    if letter && name.len() <= LONGEST && name.split('.').all(word) {
        return name.replace('.', dot);
    }
    let kept: String = name.chars().take(LONGEST).map(|c| if keeps(c) { c } else { '-' }).collect();
    format!("x-{}-{:016x}", kept.trim_matches('-'), checksum(name))
}

/// FNV-1a, which is the same everywhere and for ever; a standard hasher need not be.
fn checksum(text: &str) -> u64 {
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
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
        let texts = [
            all.definitions().to_string(),
            all.rabbitmqctl().join("\n"),
            all.terraform().to_string(),
            all.kubernetes("rabbitmq").to_string(),
        ];
        for text in texts {
            assert!(text.contains("it's") || text.contains(r"it'\''s"), "{text}");
            assert!(!text.contains("hunter2"), "{text}");
        }
    }

    #[test]
    fn the_same_topology_is_the_same_text() {
        for format in [Export::definitions, Export::terraform] {
            assert_eq!(format(&all()).to_string(), format(&all()).to_string());
        }
    }

    #[test]
    fn different_names_stay_different() {
        let lower = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        let name = |name: &str| tool_name(name, "_", lower);
        assert_eq!(name("delay.level.27"), "delay_level_27");
        assert_eq!(name("svc-billing"), "svc-billing");
        let odd = ["a_b", "a.b", "a-b", "A.b", "-a", "a-", "a..b", "käse", "7", "a b", "a", &"a".repeat(250)];
        let names: std::collections::BTreeSet<_> = odd.iter().map(|odd| name(odd)).collect();
        assert_eq!(names.len(), odd.len());
        for name in names {
            assert!(name.len() <= 200 && name.chars().all(|c| lower(c) || "-_".contains(c)), "{name}");
            assert!(name.starts_with(|c: char| c.is_ascii_lowercase()), "{name}");
        }
    }
}
