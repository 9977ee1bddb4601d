//! Nodes that several tests of a program share.

use std::{
    cell::RefCell,
    ops::Deref,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
};

use delayline_node::{NodeOptions, PrivateNode};

/// How many tests share a node. A broker works for each of its queues once a second, also for
/// queues of tests that have ended. A single node for all tests would end with 7,000 queues and 2.4
/// GB, and would keep half a processor busy.
const TESTS: usize = 60;

/// The node for the next test, and the number of tests that have got it.
static CURRENT: Mutex<Option<(Arc<PrivateNode>, usize)>> = Mutex::new(None);

thread_local! {
    /// The node of the test that runs on this thread. The node ends when its last test has ended.
    static MINE: RefCell<Option<Arc<PrivateNode>>> = const { RefCell::new(None) };
}

/// The node that this test shares with others; each test has a vhost of its own. The node lives as
/// long as any thread keeps it.
///
/// # Panics
/// On a thread that the test started: it would get another node. Call [`on_node`] there first.
pub fn shared_node() -> Arc<PrivateNode> {
    MINE.with_borrow_mut(|mine| mine.get_or_insert_with(given).clone())
}

/// Makes a thread that a test started use the node of that test.
pub fn on_node(node: &Arc<PrivateNode>) {
    MINE.set(Some(Arc::clone(node)));
}

fn given() -> Arc<PrivateNode> {
    assert!(thread::current().name().is_some(), "this is not the test's own thread");
    let mut current = CURRENT.lock().unwrap_or_else(PoisonError::into_inner);
    let (node, tests) = match current.take() {
        Some((node, tests)) if tests < TESTS => (node, tests),
        _ => (Arc::new(PrivateNode::start(NodeOptions::default()).expect("a private node")), 0),
    };
    *current = Some((node.clone(), tests + 1));
    node
}

/// A node that one test at a time may pause, or block with a memory alarm.
pub struct Disturbed(MutexGuard<'static, Option<PrivateNode>>);

/// Waits for the node that may be disturbed. Each test creates its own vhost on it.
pub fn disturbed_node() -> Disturbed {
    static NODE: Mutex<Option<PrivateNode>> = Mutex::new(None);
    let mut node = NODE.lock().unwrap_or_else(PoisonError::into_inner);
    if node.is_none() {
        *node = Some(PrivateNode::start(NodeOptions::default()).expect("a private node"));
    }
    Disturbed(node)
}

impl Deref for Disturbed {
    type Target = PrivateNode;

    fn deref(&self) -> &PrivateNode {
        self.0.as_ref().expect("the node was started")
    }
}

impl Drop for Disturbed {
    /// Restores the node for the next test. After a failure, the next test gets a new node.
    fn drop(&mut self) {
        self.resume();
        let quiet = self.tell(&["eval", "rabbit_alarm:clear_alarm({resource_limit, memory, node()})."]);
        if thread::panicking() || quiet.is_err() {
            *self.0 = None;
        }
    }
}
