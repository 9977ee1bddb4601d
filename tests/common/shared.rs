//! Nodes that several tests of a program share.

use std::{
    cell::RefCell,
    fs,
    ops::Deref,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use delayline_node::{NodeOptions, PrivateNode};

use super::eventually;

/// How many tests share a node. A broker works for each of its queues once a second, also for queues of
/// tests that have ended, and goes through the bindings of all vhosts to list those of one. A set costs
/// 0.3% of a processor. A single node for all tests would end with 7,000 queues and 2.4 GB, and would keep
/// half a processor busy.
const TESTS: usize = 30;

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

/// How many threads each processor may have to run, over the last minute, when another test begins.
const LOAD: f64 = 6.0;

/// How long a test waits for that.
const HELD: Duration = Duration::from_secs(60);

/// Holds a test back while the machine is overloaded. Many tests run at once, because most of them wait for a
/// broker. On a slow machine, all would get too little at the same time, and brokers would give up on their
/// own queues.
fn wait_for_room() {
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let load = || fs::read_to_string("/proc/loadavg").ok()?.split(' ').next()?.parse::<f64>().ok();
    let full = || load().is_some_and(|load| load > LOAD * processors as f64);
    let until = Instant::now() + HELD;
    while full() && Instant::now() < until {
        thread::sleep(Duration::from_secs(1));
    }
}

fn given() -> Arc<PrivateNode> {
    assert!(thread::current().name().is_some(), "this is not the test's own thread");
    wait_for_room();
    let mut current = CURRENT.lock().unwrap_or_else(PoisonError::into_inner);
    let (node, tests) = match current.take() {
        Some((node, tests)) if tests < TESTS => (node, tests),
        _ => (Arc::new(PrivateNode::start(NodeOptions::default()).expect("a private node")), 0),
    };
    *current = Some((node.clone(), tests + 1));
    node
}

/// How soon a node that is killed tries a hand-over between two queues again: as a setting of the
/// broker. By default, what a kill interrupts can wait for several turns of three minutes.
pub const SOON: &str = "{dead_letter_worker_publisher_confirm_timeout, 10000}";

/// A node for a test that kills it while messages are on their way.
pub fn mortal_node() -> PrivateNode {
    PrivateNode::start(NodeOptions { rabbit: vec![SOON.into()], ..NodeOptions::default() })
        .expect("a private node")
}

/// Starts a killed or stopped node again, and waits until its quorum queues take commands: for a
/// moment after the broker answers, a queue may have no leader.
pub fn revive(node: &mut PrivateNode) {
    const ALL_LED: &str = "[] =:= [Q || Q <- rabbit_amqqueue:list(), amqqueue:get_type(Q) =:= rabbit_quorum_queue, \
         element(1, catch ra:members(amqqueue:get_pid(Q), 2000)) =/= ok].";
    node.restart().unwrap();
    eventually("every quorum queue has a leader", || node.tell(&["eval", ALL_LED]).unwrap().trim() == "true");
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
