//! Terraform, in its JSON syntax (`*.tf.json`), for the provider `cyrilgdn/rabbitmq`.

use serde_json::{Map, Value as Json, json};

use delayline_broker::TopicPermission;
use delayline_core::topology::{Binding, Endpoint};

use super::{Export, definitions::destination_type};

impl Export {
    /// The resources. Users must exist.
    ///
    /// - The provider deletes and makes again a queue or exchange with any other setting, and
    ///   with a level's queue its messages: `prevent_destroy` refuses that.
    /// - Its `arguments` of queues are texts only, so `arguments_json` it is: the broker takes
    ///   no text for a TTL.
    /// - Bindings refer to the objects they connect, so that these are made first.
    #[must_use]
    pub fn terraform(&self) -> Json {
        let vhost = template(&self.vhost);
        let mut resources = Resources::default();
        for it in &self.exchanges {
            let arguments: Map<_, _> = it
                .arguments
                .iter()
                .map(|(name, value)| (name.clone(), template(&value.to_string()).into()))
                .collect();
            let resource = json!({
                "name": template(&it.name), "vhost": vhost,
                "settings": { "type": it.kind, "durable": true, "auto_delete": false, "arguments": arguments },
                "lifecycle": { "prevent_destroy": true },
            });
            resources.add("rabbitmq_exchange", id(&it.name), resource);
        }
        for it in &self.queues {
            let arguments = json!(it.arguments).to_string();
            let resource = json!({
                "name": template(&it.name), "vhost": vhost,
                "settings": { "durable": true, "auto_delete": false, "arguments_json": template(&arguments) },
                "lifecycle": { "prevent_destroy": true },
            });
            resources.add("rabbitmq_queue", id(&it.name), resource);
        }
        for it in &self.bindings {
            let resource = json!({
                "source": self.reference(&Endpoint::Exchange(it.source.clone())), "vhost": vhost,
                "destination": self.reference(&it.destination), "destination_type": destination_type(it),
                "routing_key": template(&it.key),
            });
            resources.add("rabbitmq_binding", binding_id(it), resource);
        }
        for it in &self.permissions {
            // One resource for each user: it owns all topic permissions of the user in the
            // vhost. They restrict what the permission allows, so they come first.
            let of_user = self.topics.iter().filter(|topic| topic.user == it.user);
            let topic = |topic: &TopicPermission| {
                json!({
                    "exchange": self.reference(&Endpoint::Exchange(topic.exchange.clone())),
                    "write": template(&topic.write), "read": template(&topic.read),
                })
            };
            let topics: Vec<_> = of_user.map(topic).collect();
            let (id, user) = (id(&it.user), template(&it.user));
            let mut resource = json!({
                "user": user, "vhost": vhost,
                "permissions": {
                    "configure": template(&it.configure), "write": template(&it.write), "read": template(&it.read),
                },
            });
            if !topics.is_empty() {
                resource["depends_on"] = json!([format!("rabbitmq_topic_permissions.{id}")]);
                let resource = json!({ "user": user, "vhost": vhost, "permissions": topics });
                resources.add("rabbitmq_topic_permissions", id.clone(), resource);
            }
            resources.add("rabbitmq_permissions", id, resource);
        }
        json!({
            "terraform": { "required_providers": { "rabbitmq": { "source": "cyrilgdn/rabbitmq" } } },
            "resource": resources.0,
        })
    }

    /// The name of an exchange or queue, by way of its resource if that is exported too.
    fn reference(&self, end: &Endpoint) -> String {
        let (kind, ours) = match end {
            Endpoint::Queue(name) => ("rabbitmq_queue", self.queues.iter().any(|queue| queue.name == *name)),
            Endpoint::Exchange(name) => {
                ("rabbitmq_exchange", self.exchanges.iter().any(|exchange| exchange.name == *name))
            }
        };
        match ours {
            true => format!("${{{kind}.{}.name}}", id(end.name())),
            false => template(end.name()),
        }
    }
}

/// Resources by type and name.
#[derive(Default)]
struct Resources(Map<String, Json>);

impl Resources {
    fn add(&mut self, kind: &str, id: String, resource: Json) {
        let of_kind = self.0.entry(kind).or_insert_with(|| json!({}));
        of_kind[id.as_str()] = resource;
    }
}

/// Text that Terraform reads as it is.
fn template(text: &str) -> String {
    text.replace("${", "$${").replace("%{", "%%{")
}

/// A name of letters, digits, dashes, and underscores for dots. A name that cannot be kept gets a
/// checksum, so that different names stay different.
fn id(name: &str) -> String {
    const LONGEST: usize = 180;
    let keeps = |c: char| c.is_ascii_alphanumeric();
    let word = |word: &str| {
        word.starts_with(keeps) && word.ends_with(keeps) && word.chars().all(|c| c == '-' || keeps(c))
    };
    let letter = name.starts_with(|c: char| c.is_ascii_alphabetic());
    if letter && name.len() <= LONGEST && name.split('.').all(word) {
        return name.replace('.', "_");
    }
    let kept: String = name.chars().take(LONGEST).map(|c| if keeps(c) { c } else { '-' }).collect();
    format!("x-{}-{:016x}", kept.trim_matches('-'), checksum(name))
}

/// FNV-1a, which is the same on every platform and in every version; a standard hasher need not be.
fn checksum(text: &str) -> u64 {
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

/// A binding has no name; its place in the list would change with the list.
fn binding_id(binding: &Binding) -> String {
    let ends = format!("{}__{}", id(&binding.source), id(binding.destination.name()));
    format!("{ends}__{:016x}", checksum(&format!("{}\n{}", destination_type(binding), binding.key)))
}

#[cfg(test)]
mod tests {
    use super::{
        super::tests::{all, spec, topology},
        *,
    };

    #[test]
    fn a_level_is_protected_and_its_numbers_are_numbers() {
        let queue = &all().terraform()["resource"]["rabbitmq_queue"]["delay_level_27"];
        assert_eq!(queue["lifecycle"]["prevent_destroy"], true);
        assert_eq!(queue["settings"]["durable"], true);
        let arguments: Json =
            serde_json::from_str(queue["settings"]["arguments_json"].as_str().unwrap()).unwrap();
        assert_eq!(arguments["x-message-ttl"], 134_217_728_000_u64);
    }

    #[test]
    fn every_binding_exists_once_and_refers_to_its_objects() {
        let terraform = all().terraform();
        let bindings = terraform["resource"]["rabbitmq_binding"].as_object().unwrap();
        assert_eq!(bindings.len(), 598 + 1);
        for binding in bindings.values() {
            for end in ["source", "destination"] {
                let text = binding[end].as_str().unwrap();
                let path = text.strip_prefix("${").unwrap().strip_suffix(".name}").unwrap();
                let (kind, id) = path.split_once('.').unwrap();
                assert!(terraform["resource"][kind].get(id).is_some(), "{text}");
            }
        }
        // Without the set, its exchanges exist already.
        let alone = Export::new("orders").with_app(&topology(), &spec()).terraform();
        let binding = alone["resource"]["rabbitmq_binding"].as_object().unwrap().values().next().unwrap();
        assert_eq!(binding["source"], "delay.dispatch");
    }

    #[test]
    fn nothing_is_taken_for_a_template() {
        assert_eq!(template("${var.x} %{if} $5"), "$${var.x} %%{if} $5");
        let export = Export::new("${path.root}").with_app(&topology(), &spec());
        assert!(export.terraform().to_string().contains("$${path.root}"));
    }

    #[test]
    fn different_names_stay_different() {
        assert_eq!(id("delay.level.27"), "delay_level_27");
        assert_eq!(id("svc-billing"), "svc-billing");
        let odd = ["a_b", "a.b", "a-b", "A.b", "-a", "a-", "a..b", "käse", "7", "a b", "a", &"a".repeat(250)];
        let names: std::collections::BTreeSet<_> = odd.iter().map(|odd| id(odd)).collect();
        assert_eq!(names.len(), odd.len());
        for name in names {
            assert!(
                name.len() <= 200 && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c)),
                "{name}"
            );
            assert!(name.starts_with(|c: char| c.is_ascii_alphabetic()), "{name}");
        }
    }
}
