//! Objects for RabbitMQ's topology operator on Kubernetes (`rabbitmq.com/v1beta1`).

use serde_json::{Value as Json, json};

use super::{Export, checksum, definitions::destination_type, kind, tool_name};

impl Export {
    /// A list of objects for a cluster of this name, which `kubectl apply` takes. Users must
    /// exist.
    ///
    /// Queues are kept when their object is deleted, since the messages in them are.
    #[must_use]
    pub fn kubernetes(&self, cluster: &str) -> Json {
        let object = |kind: &str, name: String, mut spec: Json| {
            spec["vhost"] = self.vhost.as_str().into();
            spec["rabbitmqClusterReference"] = json!({ "name": cluster });
            json!({
                "apiVersion": "rabbitmq.com/v1beta1", "kind": kind, "metadata": { "name": name }, "spec": spec,
            })
        };
        let mut items = Vec::new();
        for it in &self.exchanges {
            let spec = json!({
                "name": it.name, "type": it.kind, "durable": true, "autoDelete": false, "arguments": it.arguments,
            });
            items.push(object("Exchange", id(&it.name), spec));
        }
        for it in &self.queues {
            let spec = json!({
                "name": it.name, "type": kind(it), "durable": true, "autoDelete": false,
                "arguments": it.arguments, "deletionPolicy": "retain",
            });
            items.push(object("Queue", id(&it.name), spec));
        }
        for it in &self.bindings {
            let spec = json!({
                "source": it.source, "destination": it.destination.name(),
                "destinationType": destination_type(it), "routingKey": it.key,
            });
            // A binding has no name of its own.
            let name = format!("{}-{:016x}", id(&it.source), checksum(&it.to_string()));
            items.push(object("Binding", name, spec));
        }
        for it in &self.topics {
            let spec = json!({
                "user": it.user,
                "permissions": { "exchange": it.exchange, "write": it.write, "read": it.read },
            });
            items.push(object("TopicPermission", id(&format!("{}.on.{}", it.user, it.exchange)), spec));
        }
        for it in &self.permissions {
            let spec = json!({
                "user": it.user,
                "permissions": { "configure": it.configure, "write": it.write, "read": it.read },
            });
            items.push(object("Permission", id(&it.user), spec));
        }
        json!({ "apiVersion": "v1", "kind": "List", "items": items })
    }
}

fn id(name: &str) -> String {
    tool_name(name, ".", |c| c.is_ascii_lowercase() || c.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::super::{
        Export,
        tests::{all, spec, topology},
    };

    #[test]
    fn every_object_has_a_name_that_kubernetes_takes() {
        let list = all().kubernetes("rabbitmq");
        let items = list["items"].as_array().unwrap();
        assert_eq!(items.len(), 32 + 33 + 599 + 2 + 1);
        let mut names = BTreeSet::new();
        for item in items {
            let name = item["metadata"]["name"].as_str().unwrap();
            assert!(names.insert((item["kind"].as_str().unwrap(), name)), "{name} is there twice");
            assert!(name.len() <= 253, "{name}");
            for label in name.split('.') {
                let sound = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
                assert!(label.starts_with(sound) && label.ends_with(sound), "{name}");
                assert!(label.chars().all(|c| sound(c) || c == '-'), "{name}");
            }
            assert_eq!(item["spec"]["rabbitmqClusterReference"]["name"], "rabbitmq");
            assert_eq!(item["spec"]["vhost"], "orders");
        }
    }

    #[test]
    fn a_queue_outlives_its_object() {
        let list = Export::new("/").with_app(&topology(), &spec()).kubernetes("rabbitmq");
        let landing = topology().landing_queue(&"billing".parse().unwrap(), "", Some("billing"));
        let spec = json!({
            "name": "delay.landing.billing", "type": "quorum", "durable": true, "autoDelete": false,
            "arguments": landing.arguments, "deletionPolicy": "retain", "vhost": "/",
            "rabbitmqClusterReference": { "name": "rabbitmq" },
        });
        let metadata = json!({ "name": "delay.landing.billing" });
        assert_eq!(
            list["items"][1],
            json!({ "apiVersion": "rabbitmq.com/v1beta1", "kind": "Queue", "metadata": metadata, "spec": spec })
        );
    }
}
