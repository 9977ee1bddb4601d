//! A vhost for a test.

use std::sync::atomic::{AtomicU32, Ordering};

use delayline_node::PrivateNode;
use delayline_settings::Layers;
use serde_json::json;

use super::http;

/// The settings of [`patient`], by name.
const PATIENT: [(&str, &str); 3] =
    [("connect_timeout", "1m"), ("confirm_timeout", "2m"), ("publish_timeout", "2m")];

/// The same as variables for a command.
pub fn patient_variables() -> [(String, &'static str); PATIENT.len()] {
    PATIENT.map(|(name, value)| (format!("DELAYLINE_{}", name.to_uppercase()), value))
}

/// A new vhost of a node, as layers of settings. It exists as long as the node: deleting queues
/// that dead-letter messages can end dead-lettering on the whole node, and other tests still run
/// there.
pub fn vhost_on(node: &PrivateNode) -> Layers {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let name = format!("test-{}", NUMBER.fetch_add(1, Ordering::Relaxed));
    patient(named_vhost(node, &name))
}

/// Creates a vhost of a node. If the broker fails to answer, which a busy one sometimes does, it can have created
/// the vhost without permissions, and gives none when asked again.
pub fn named_vhost(node: &PrivateNode, name: &str) -> Layers {
    http(node, "PUT", &format!("vhosts/{name}"), &json!({}));
    permit_guest(node, name);
    node.settings().set("url", format!("{}/{name}", node.url()))
}

/// Settings that give a slow broker more time. Without them, a router could take it for lost, and send messages
/// twice.
pub fn patient(layers: Layers) -> Layers {
    PATIENT.iter().fold(layers, |layers, (name, value)| layers.set(name, *value))
}

/// Gives `guest` all permissions in a vhost.
pub fn permit_guest(node: &PrivateNode, vhost: &str) {
    let all = json!({"configure": ".*", "write": ".*", "read": ".*"});
    http(node, "PUT", &format!("permissions/{vhost}/guest"), &all);
}
