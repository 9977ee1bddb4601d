//! A vhost for a test, which goes some time after the test has ended.
//!
//! A broker counts every queue again and again, those of tests that are over too: a hundred
//! sets that nobody uses take half a core.

use std::{
    cell::RefCell,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use delayline::settings::Layers;
use delayline_node::PrivateNode;
use serde_json::{Value as Json, json};

/// After this time, what the broker says of its queues was counted after the end of the test:
/// it counts them every 5 s.
const COUNTED: Duration = Duration::from_secs(30);

/// How many vhosts are looked at for each that is made, so that they become fewer.
const AT_A_TIME: usize = 2;

/// A vhost, by its node's management API and its name.
struct Vhost {
    api: String,
    name: String,
}

/// The vhosts of a thread: each test has one of its own, which ends with it.
#[derive(Default)]
struct Own(RefCell<Vec<Vhost>>);

thread_local! {
    static OWN: Own = Own::default();
}

/// Vhosts of tests that are over, and since when.
static OVER: Mutex<Vec<(Instant, Vhost)>> = Mutex::new(Vec::new());

impl Drop for Own {
    fn drop(&mut self) {
        let now = Instant::now();
        let mut over = OVER.lock().unwrap_or_else(PoisonError::into_inner);
        over.extend(self.0.take().into_iter().map(|vhost| (now, vhost)));
    }
}

impl Vhost {
    /// Deletes it if all its queues are empty. Otherwise it stays for as long as its node:
    /// deleting a queue that hands on messages can end dead-lettering on the whole node.
    fn delete_if_empty(&self) {
        let Self { api, name } = self;
        // The node may be gone as well, and then so is all that it had.
        let limit = Some(Duration::from_secs(60));
        let agent: ureq::Agent = ureq::Agent::config_builder().timeout_global(limit).build().into();
        let queues = agent.get(format!("{api}/queues/{name}")).header("authorization", super::GUEST).call();
        let queues = queues.ok().and_then(|mut answer| answer.body_mut().read_to_string().ok());
        let queues: Option<Vec<Json>> = queues.and_then(|text| serde_json::from_str(&text).ok());
        // What has not been counted is not taken for empty.
        if queues.is_some_and(|queues| queues.iter().all(|queue| queue["messages"] == 0)) {
            let _ = agent.delete(format!("{api}/vhosts/{name}")).header("authorization", super::GUEST).call();
        }
    }
}

/// Clears away after tests that have been over for a while.
fn clear_away() {
    let now = Instant::now();
    let mut over = OVER.lock().unwrap_or_else(PoisonError::into_inner);
    // They are in the order of their ends, all but.
    let counted = over.iter().take_while(|(since, _)| now.duration_since(*since) > COUNTED).count();
    let old: Vec<_> = over.drain(..counted.min(AT_A_TIME)).collect();
    drop(over);
    old.iter().for_each(|(_, vhost)| vhost.delete_if_empty());
}

/// A new vhost of a node, as layers of settings to add to. It is the test's that runs on this
/// thread.
pub fn vhost_on(node: &PrivateNode) -> Layers {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    clear_away();
    let name = format!("test-{}", NUMBER.fetch_add(1, Ordering::Relaxed));
    super::http(node, "PUT", &format!("vhosts/{name}"), &json!({}));
    let api = format!("{}/api", node.management_url());
    OWN.with(|own| own.0.borrow_mut().push(Vhost { api, name: name.clone() }));
    node.settings().set("url", format!("{}/{name}", node.url()))
}
