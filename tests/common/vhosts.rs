//! A vhost for a test, which goes when the test ends.
//!
//! A broker counts every queue again and again, those of tests that are over too: a hundred
//! sets that nobody uses take half a core.

use std::{
    cell::RefCell,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use delayline::{node::PrivateNode, settings::Layers};
use serde_json::json;

/// The vhosts of a thread: each test has one of its own, which ends with it.
#[derive(Default)]
struct Own(RefCell<Vec<String>>);

thread_local! {
    static OWN: Own = Own::default();
}

impl Drop for Own {
    fn drop(&mut self) {
        let limit = Some(Duration::from_secs(60));
        let agent: ureq::Agent = ureq::Agent::config_builder().timeout_global(limit).build().into();
        for url in self.0.take() {
            // The node may be gone as well, and then so is all that it had.
            let _ = agent.delete(url).header("authorization", super::GUEST).call();
        }
    }
}

/// A new vhost of a node, as layers of settings to add to. It goes with this thread.
pub fn vhost_on(node: &PrivateNode) -> Layers {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let name = format!("test-{}", NUMBER.fetch_add(1, Ordering::Relaxed));
    super::http(node, "PUT", &format!("vhosts/{name}"), &json!({}));
    OWN.with(|own| own.0.borrow_mut().push(format!("{}/api/vhosts/{name}", node.management_url())));
    node.settings().set("url", format!("{}/{name}", node.url()))
}
