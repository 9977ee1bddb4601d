//! Sets that tests use one after the other.
//!
//! Installing a set takes a broker as long as a whole test, and afterwards the broker works for
//! each of its queues. So the next test reuses a set once its contents are as they were after the
//! installation.

use std::{
    cell::RefCell,
    collections::BTreeSet,
    sync::{Mutex, MutexGuard, PoisonError},
};

use delayline_amqp::Session;
use delayline_core::topology::Argument;
use delayline_node::PrivateNode;
use delayline_settings::Settings;
use serde_json::{Value as Json, json};

use super::Counting;
use super::{http, install, shared_node, topology, vhost_on, vhosts::permit_guest};

/// The parts of a vhost, by their names in its definitions.
const KINDS: [&str; 5] = ["queues", "exchanges", "bindings", "policies", "parameters"];

struct Set {
    node: String,
    unit_ms: u64,
    settings: Settings,
    /// Everything in its vhost right after it was installed.
    installed: BTreeSet<String>,
}

/// Sets that no test uses now.
static IDLE: Mutex<Vec<Set>> = Mutex::new(Vec::new());

/// The sets of the test on this thread. Other tests may use them when the test has ended.
struct Taken(Vec<Set>);

thread_local! {
    static TAKEN: RefCell<Taken> = const { RefCell::new(Taken(Vec::new())) };
}

impl Drop for Taken {
    fn drop(&mut self) {
        idle().append(&mut self.0);
    }
}

/// An installed set with units of `unit_ms` milliseconds. No other test uses it as long as this
/// thread lives. Its queues may have counted messages of other tests. For tests that read these
/// counts, or that go on after they end, there is [`new_set`].
pub fn installed(unit_ms: u64) -> Settings {
    let node = shared_node();
    let mut busy = Vec::new();
    let set = loop {
        let Some(set) = idle_one(&node, unit_ms) else {
            let settings = new_set(unit_ms);
            let installed = definitions(&node, &settings).into_iter().map(|(_, it)| it.to_string());
            break Set { node: node.name().into(), unit_ms, installed: installed.collect(), settings };
        };
        match set.is_restored(&node) {
            Some(true) => break set,
            Some(false) => busy.push(set),
            None => {}
        }
    };
    idle().append(&mut busy);
    let settings = set.settings.clone();
    TAKEN.with_borrow_mut(|taken| taken.0.push(set));
    settings
}

/// A set in a new vhost. No other test uses it later.
pub fn new_set(unit_ms: u64) -> Settings {
    let settings = vhost_on(&shared_node()).set("unit_ms", unit_ms.to_string()).build().unwrap();
    install(&settings);
    settings
}

fn idle() -> MutexGuard<'static, Vec<Set>> {
    IDLE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn idle_one(node: &PrivateNode, unit_ms: u64) -> Option<Set> {
    let mut idle = idle();
    let fits = |set: &Set| set.node == node.name() && set.unit_ms == unit_ms;
    let place = idle.iter().position(fits)?;
    Some(idle.swap_remove(place))
}

fn definitions(node: &PrivateNode, settings: &Settings) -> Vec<(&'static str, Json)> {
    let all = http(node, "GET", &format!("definitions/{}", settings.broker.vhost), &Json::Null);
    let of = |kind: &'static str| all[kind].as_array().cloned().unwrap_or_default().into_iter();
    KINDS.into_iter().flat_map(|kind| of(kind).map(move |it| (kind, it))).collect()
}

impl Set {
    /// Removes everything that a test left behind, and returns whether the set is as it was after
    /// the installation. The broker's counts matter too, and are some seconds old. Returns `None`
    /// if the set can never be restored: a part of it has changed, messages are due soon, or a
    /// removal could harm other tests.
    fn is_restored(&self, node: &PrivateNode) -> Option<bool> {
        let Self { settings, installed, .. } = self;
        let mut session = Session::open(&settings.broker).ok()?;
        let topology = topology(settings);
        for queue in topology.queues() {
            let ready = session.counts(&queue.name).ok()??.ready;
            if ready > 0 && queue.arguments.get("x-message-ttl").is_some_and(|ttl| !is_long(ttl)) {
                return None;
            } else if ready > 0 {
                session.purge_queue(&queue.name).ok()?;
            }
        }
        for (kind, added) in definitions(node, settings) {
            if installed.contains(&added.to_string()) {
                continue;
            }
            let name = added["name"].as_str().unwrap_or_default();
            match kind {
                // Deleting such a queue may end all dead-lettering on the node.
                "queues" if added["arguments"]["x-dead-letter-strategy"] == "at-least-once" => return None,
                "queues" => drop(session.delete_queue(name).ok()?),
                "exchanges" => session.delete_exchange(name).ok()?,
                // The binding most likely belongs to a queue that is removed as well.
                "bindings" => {}
                _ => return None,
            }
        }
        take_rights(node, &settings.broker.vhost);
        let now = definitions(node, settings).into_iter().map(|(_, it)| it.to_string());
        let counts = ["messages", "messages_dlx", "consumers"];
        let path = format!("queues/{}?columns={}", settings.broker.vhost, counts.join(","));
        let queues = http(node, "GET", &path, &Json::Null);
        let rests = |queue: &Json| counts.iter().all(|&count| queue[count].as_u64().unwrap_or(0) == 0);
        (now.collect::<BTreeSet<_>>() == *installed).then(|| queues.as_array().unwrap().iter().all(rests))
    }
}

/// Whether messages of a level wait so long that none of them is on its way to another queue now.
fn is_long(ttl: &Argument) -> bool {
    matches!(ttl, Argument::Number(600_000..))
}

/// Leaves only `guest` with permissions in a vhost, and deletes users that were made for it.
fn take_rights(node: &PrivateNode, vhost: &str) {
    let list = |path: &str, field: &str| -> BTreeSet<String> {
        let all = http(node, "GET", path, &Json::Null);
        let name = |it: &Json| it[field].as_str().map(str::to_owned);
        all.as_array().into_iter().flatten().filter_map(name).collect()
    };
    for kind in ["permissions", "topic-permissions"] {
        for user in list(&format!("vhosts/{vhost}/{kind}"), "user") {
            if user != "guest" || kind == "topic-permissions" {
                http(
                    node,
                    "DELETE",
                    &format!("{kind}/{vhost}/{}", delayline_core::percent::encode(&user)),
                    &Json::Null,
                );
            }
        }
    }
    permit_guest(node, vhost);
    for user in list("users", "name").into_iter().filter(|user| user.ends_with(&format!("-of-{vhost}"))) {
        http(node, "DELETE", &format!("users/{}", delayline_core::percent::encode(&user)), &Json::Null);
    }
}
