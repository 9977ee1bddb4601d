//! A vhost for a test.

use std::sync::atomic::{AtomicU32, Ordering};

use delayline_node::PrivateNode;
use delayline_settings::Layers;
use serde_json::json;

/// The settings of [`patient`], by name.
const PATIENT: [(&str, &str); 2] = [("connect_timeout", "1m"), ("confirm_timeout", "2m")];

/// The same as variables for a command.
pub fn patient_variables() -> [(String, &'static str); 2] {
    PATIENT.map(|(name, value)| (format!("DELAYLINE_{}", name.to_uppercase()), value))
}

/// A new vhost of a node, as layers of settings. It exists as long as the node: deleting queues
/// that dead-letter messages can end dead-lettering on the whole node, and other tests still run
/// there.
pub fn vhost_on(node: &PrivateNode) -> Layers {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let name = format!("test-{}", NUMBER.fetch_add(1, Ordering::Relaxed));
    super::http(node, "PUT", &format!("vhosts/{name}"), &json!({}));
    patient(node.settings().set("url", format!("{}/{name}", node.url())))
}

/// Settings with which a broker that is only slow is not taken for one that is gone: then messages would
/// be sent twice.
pub fn patient(layers: Layers) -> Layers {
    PATIENT.iter().fold(layers, |layers, (name, value)| layers.set(name, *value))
}
