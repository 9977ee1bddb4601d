//! Definitions, as `rabbitmqctl import_definitions` and `POST /api/definitions` take them.

use serde_json::{Value as Json, json};

use delayline_core::topology::{Binding, Endpoint, Exchange, Queue};

use super::{Export, kind};

impl Export {
    /// A definitions fragment: exchanges, queues, bindings, permissions. Users must exist.
    ///
    /// Every field is written: RabbitMQ 3.10 has no defaults for them, and 4 refuses an item
    /// without its vhost.
    #[must_use]
    pub fn definitions(&self) -> Json {
        let vhost = &self.vhost;
        let permissions = self.permissions.iter().map(|it| {
            json!({ "user": it.user, "vhost": vhost, "configure": it.configure, "write": it.write, "read": it.read })
        });
        let topics = self.topics.iter().map(|it| {
            json!({ "user": it.user, "vhost": vhost, "exchange": it.exchange, "write": it.write, "read": it.read })
        });
        let mut definitions = self.routes();
        definitions["topic_permissions"] = topics.collect();
        definitions["permissions"] = permissions.collect();
        definitions
    }

    /// Exchanges, queues and bindings only.
    pub(super) fn routes(&self) -> Json {
        let vhost = &self.vhost;
        let exchange = |it: &Exchange| {
            json!({
                "name": it.name, "vhost": vhost, "type": it.kind, "durable": true, "auto_delete": false,
                "internal": false, "arguments": it.arguments,
            })
        };
        let queue = |it: &Queue| {
            json!({
                "name": it.name, "vhost": vhost, "durable": true, "auto_delete": false, "type": kind(it),
                "arguments": it.arguments,
            })
        };
        let binding = |it: &Binding| {
            json!({
                "source": it.source, "vhost": vhost, "destination": it.destination.name(),
                "destination_type": destination_type(it), "routing_key": it.key, "arguments": {},
            })
        };
        json!({
            "exchanges": self.exchanges.iter().map(exchange).collect::<Vec<_>>(),
            "queues": self.queues.iter().map(queue).collect::<Vec<_>>(),
            "bindings": self.bindings.iter().map(binding).collect::<Vec<_>>(),
        })
    }
}

/// The broker's word for what a binding leads to.
pub(super) fn destination_type(binding: &Binding) -> &'static str {
    match binding.destination {
        Endpoint::Queue(_) => "queue",
        Endpoint::Exchange(_) => "exchange",
    }
}

#[cfg(test)]
mod tests {
    use super::super::{
        Export,
        tests::{all, spec, topology},
    };

    const PARTS: [&str; 5] = ["exchanges", "queues", "bindings", "permissions", "topic_permissions"];

    #[test]
    fn a_fragment_has_everything_but_the_user() {
        let fragment = Export::new("orders").with_app(&topology(), &spec()).definitions();
        let count = |part: &str| fragment[part].as_array().unwrap().len();
        assert_eq!(PARTS.map(count), [0, 2, 1, 1, 2]);
        assert_eq!(fragment["queues"][1]["arguments"]["x-message-ttl"], 0);
        assert!(fragment.get("users").is_none());
    }

    #[test]
    fn a_set_is_complete() {
        let fragment = all().definitions();
        let count = |part: &str| fragment[part].as_array().unwrap().len();
        assert_eq!(PARTS.map(count), [32, 31 + 2, 598 + 1, 1, 2]);
        for part in PARTS {
            assert!(
                fragment[part].as_array().unwrap().iter().all(|item| item["vhost"] == "orders"),
                "{part}"
            );
        }
    }
}
