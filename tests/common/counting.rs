//! Counting queues, and keeping them from being counted.

use std::thread;

use delayline_amqp::{AmqpError, Session};
use delayline_node::PrivateNode;

use super::eventually_seen;

/// What a queue holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    pub ready: u32,
    pub consumers: u32,
}

/// Counting again until a queue is fast enough to count its messages.
pub trait Counting {
    fn counts(&mut self, queue: &str) -> Result<Option<Counts>, AmqpError>;
}

impl Counting for Session {
    fn counts(&mut self, queue: &str) -> Result<Option<Counts>, AmqpError> {
        let known = |depth: delayline_amqp::QueueDepth| {
            Some(Counts { ready: depth.ready?, consumers: depth.consumers? })
        };
        let counted = eventually_seen(
            "a queue counts its messages",
            || self.queue_depth(queue).map(|depth| depth.map(known)),
            |counted| !matches!(counted, Ok(Some(None))),
        );
        counted.map(Option::flatten)
    }
}

/// The processes of queues that answer nothing until this is dropped.
pub struct Suspended<'n> {
    node: &'n PrivateNode,
    vhost: String,
    queues: Vec<String>,
}

/// Suspends the process of each of these quorum queues.
pub fn suspended<'n>(node: &'n PrivateNode, vhost: &str, queues: &[&str]) -> Suspended<'n> {
    let queues = queues.iter().map(|&queue| queue.to_owned()).collect();
    let suspended = Suspended { node, vhost: vhost.into(), queues };
    suspended.each("sys:suspend");
    suspended
}

impl Suspended<'_> {
    fn each(&self, call: &str) {
        for queue in &self.queues {
            let code = format!("ok = {call}(whereis({})).", process(&self.vhost, queue));
            self.node.tell(&["eval", &code]).unwrap();
        }
    }
}

impl Drop for Suspended<'_> {
    fn drop(&mut self) {
        match thread::panicking() {
            // The node may be gone.
            true => drop(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.each("sys:resume")))),
            false => self.each("sys:resume"),
        }
    }
}

/// Stops the process of a quorum queue.
pub fn stop_queue(node: &PrivateNode, vhost: &str, queue: &str) {
    let code = format!("ok = ra:stop_server(quorum_queues, {{{}, node()}}).", process(vhost, queue));
    node.tell(&["eval", &code]).unwrap();
}

/// Starts it again.
pub fn restart_queue(node: &PrivateNode, vhost: &str, queue: &str) {
    let code = format!("ok = ra:restart_server(quorum_queues, {{{}, node()}}).", process(vhost, queue));
    node.tell(&["eval", &code]).unwrap();
}

/// The name of a queue's process.
fn process(vhost: &str, queue: &str) -> String {
    let vhost = if vhost == "/" { "%2F" } else { vhost };
    format!("'{vhost}_{queue}'")
}
