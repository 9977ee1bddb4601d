//! Nodes that tests share with others of their program.

use std::{
    cell::RefCell,
    ops::Deref,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
};

use delayline_node::{NodeOptions, PrivateNode};

/// How many tests share a node. A broker works for each of its queues once a second, also for
/// those of tests that are over: a node for all tests ends up working for 7,000 queues, in
/// 2.4 GB, and keeps half a processor busy with that.
const TESTS: usize = 60;

/// The node for the next test, and how many it was given to.
static CURRENT: Mutex<Option<(Arc<PrivateNode>, usize)>> = Mutex::new(None);

thread_local! {
    /// The node of the test that runs on this thread. Once no test has it any more, it goes.
    static MINE: RefCell<Option<Arc<PrivateNode>>> = const { RefCell::new(None) };
}

/// The node that this test shares with others, each in a vhost of its own. Whoever keeps
/// settings of it for other tests keeps the node, too.
///
/// # Panics
/// On threads that a test starts, which would get another node, unless they were told
/// [which](on_node).
pub fn shared_node() -> Arc<PrivateNode> {
    MINE.with_borrow_mut(|mine| mine.get_or_insert_with(given).clone())
}

/// Tells a thread that a test starts the node of that test.
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

/// A node that one test at a time may pause, or block with an alarm for memory.
pub struct Disturbed(MutexGuard<'static, Option<PrivateNode>>);

/// Waits for the node that may be disturbed. Each test makes a vhost of its own on it.
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
        self.0.as_ref().expect("it was started")
    }
}

impl Drop for Disturbed {
    /// The next test finds the node as it was; after a failure, it gets another node.
    fn drop(&mut self) {
        self.resume();
        let quiet = self.tell(&["eval", "rabbit_alarm:clear_alarm({resource_limit, memory, node()})."]);
        if thread::panicking() || quiet.is_err() {
            *self.0 = None;
        }
    }
}
