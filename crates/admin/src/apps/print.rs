//! A registration as text, for those who apply it with other tools.

use serde_json::{Value as Json, json};

use delayline::{
    shell::quoted,
    topology::{Endpoint, Topology},
};

use crate::apps::{
    AppSpec,
    steps::{Step, steps},
};

/// A definitions fragment for `rabbitmqctl import_definitions` or `POST /api/definitions`:
/// queues, binding, permissions. It contains no password, so the user must exist.
#[must_use]
pub fn definitions(topology: &Topology, spec: &AppSpec, vhost: &str) -> Json {
    let mut queues = Vec::new();
    let mut bindings = Vec::new();
    let mut permissions = Vec::new();
    let mut topics = Vec::new();
    for step in steps(topology, spec) {
        match step {
            Step::Queue(queue) => queues.push(json!({
                "name": queue.name, "vhost": vhost, "durable": true, "auto_delete": false,
                "type": topology.settings().queue_type.as_str(), "arguments": queue.arguments,
            })),
            Step::Binding(binding) => bindings.push(json!({
                "source": binding.source, "vhost": vhost, "destination": binding.destination.name(),
                "destination_type": match binding.destination {
                    Endpoint::Queue(_) => "queue",
                    Endpoint::Exchange(_) => "exchange",
                },
                "routing_key": binding.key, "arguments": {},
            })),
            Step::Permission(it) => permissions.push(json!({
                "user": it.user, "vhost": vhost, "configure": it.configure, "write": it.write, "read": it.read,
            })),
            Step::Topic(it) => topics.push(json!({
                "user": it.user, "vhost": vhost, "exchange": it.exchange, "write": it.write, "read": it.read,
            })),
            Step::Stands(_) | Step::User(..) => {}
        }
    }
    json!({ "queues": queues, "bindings": bindings, "topic_permissions": topics, "permissions": permissions })
}

/// The commands for a shell on the broker's machine. `rabbitmqctl` cannot declare queues or
/// bindings, so they are imported as definitions. The password of a new user comes from the
/// file named by the variable `APP_PASSWORD_FILE`.
#[must_use]
pub fn rabbitmqctl(topology: &Topology, spec: &AppSpec, vhost: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut objects = definitions(topology, spec, vhost);
    if let Json::Object(parts) = &mut objects {
        parts.retain(|name, _| name == "queues" || name == "bindings");
        if parts.values().any(|part| part.as_array().is_some_and(|part| !part.is_empty())) {
            lines.push("rabbitmqctl import_definitions <<'END_OF_DEFINITIONS'".into());
            lines.push(objects.to_string());
            lines.push("END_OF_DEFINITIONS".into());
        }
    }
    for step in steps(topology, spec) {
        let words = match &step {
            Step::User(name, _) => {
                let name = quoted(name);
                lines.push(format!(
                    "rabbitmqctl -q list_users | cut -f 1 | grep -qxF -e {name} || rabbitmqctl add_user {name} \
                     <\"${{APP_PASSWORD_FILE:?names the file with the password of the new user}}\""
                ));
                continue;
            }
            Step::Topic(it) => {
                vec!["set_topic_permissions", "-p", vhost, &it.user, &it.exchange, &it.write, &it.read]
            }
            Step::Permission(it) => {
                vec!["set_permissions", "-p", vhost, &it.user, &it.configure, &it.write, &it.read]
            }
            Step::Stands(_) | Step::Queue(_) | Step::Binding(_) => continue,
        };
        let words: Vec<_> = words.into_iter().map(quoted).collect();
        lines.push(format!("rabbitmqctl {}", words.join(" ")));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AppQueue, AppUser, Delivery, Target};
    use delayline::{broker::Secret, codec::AppKey, topology::TopologySettings};

    fn spec() -> AppSpec {
        AppSpec {
            app: AppKey::new("billing").unwrap(),
            delivery: Delivery::Landing(Target::Queue(AppQueue::new("billing"))),
            user: Some(AppUser {
                name: "it's".into(),
                password: Some(Secret::new("hunter2")),
                ..AppUser::default()
            }),
        }
    }

    #[test]
    fn commands_are_quoted_and_hold_no_password() {
        let topology = Topology::new(TopologySettings::default());
        let text = rabbitmqctl(&topology, &spec(), "/").join("\n");
        assert!(!text.contains("hunter2"), "{text}");
        assert!(text.contains(r"rabbitmqctl add_user 'it'\''s' <"), "{text}");
        assert!(
            text.contains(
                r"set_topic_permissions -p / 'it'\''s' delay '^delay(\.[01]{4}){7}\.billing\z' '^$'"
            )
        );
        let permissions = text.lines().last().unwrap();
        assert!(permissions.starts_with("rabbitmqctl set_permissions"), "{permissions}");
    }

    #[test]
    fn a_fragment_has_everything_but_the_user() {
        let topology = Topology::new(TopologySettings::default());
        let fragment = definitions(&topology, &spec(), "orders");
        let count = |part: &str| fragment[part].as_array().unwrap().len();
        assert_eq!(
            [count("queues"), count("bindings"), count("permissions"), count("topic_permissions")],
            [2, 1, 1, 2]
        );
        assert_eq!(fragment["queues"][1]["arguments"]["x-message-ttl"], 0);
        assert!(!fragment.to_string().contains("hunter2") && fragment.get("users").is_none());
    }
}
