//! A vhost for a test.

use std::sync::atomic::{AtomicU32, Ordering};

use delayline_node::PrivateNode;
use delayline_settings::Layers;
use serde_json::json;

/// A new vhost of a node, as layers of settings. It exists as long as the node: deleting queues
/// that dead-letter messages can end dead-lettering on the whole node, and other tests still run
/// there.
pub fn vhost_on(node: &PrivateNode) -> Layers {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let name = format!("test-{}", NUMBER.fetch_add(1, Ordering::Relaxed));
    super::http(node, "PUT", &format!("vhosts/{name}"), &json!({}));
    node.settings().set("url", format!("{}/{name}", node.url()))
}
