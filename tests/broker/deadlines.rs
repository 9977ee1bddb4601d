//! Brokers that do not answer.

use delayline::amqp::{AmqpError, ProbeAnswer, Session};
use delayline_node::{NodeOptions, PrivateNode};

use crate::common::eventually;

fn node() -> PrivateNode {
    PrivateNode::start(NodeOptions { without_management: true, ..NodeOptions::default() }).unwrap()
}

/// A session that waits for a moment only, and whose connection would live on.
fn impatient(node: &PrivateNode) -> Session {
    let settings = node.settings().set("request_timeout", "3s").set("heartbeat", "600");
    Session::open(&settings.build().unwrap().broker).unwrap()
}

fn is_silent(error: &AmqpError) -> bool {
    error.is_connection() && error.to_string().contains("did not answer within 3 s")
}

#[test]
fn a_broker_that_falls_silent_is_given_up() {
    let node = node();
    let (mut counting, mut consuming) = (impatient(&node), impatient(&node));
    assert_eq!(counting.queue_depth("nothing").unwrap(), None);
    let queue = consuming.declare_own_queue().unwrap();
    node.pause();
    let error = counting.queue_depth("nothing").unwrap_err();
    assert!(is_silent(&error) && error.to_string().contains("overloaded or stopped"), "{error}");
    // This one needs another channel first.
    let error = consuming.consume(&queue, 1).unwrap_err();
    assert!(is_silent(&error), "{error}");
    // It is given up for good.
    assert!(matches!(counting.queue_depth("nothing"), Err(AmqpError::Lost { .. })));
    node.resume();
    eventually("another session works", || {
        let settings = node.settings().build().unwrap();
        Session::open(&settings.broker).is_ok_and(|mut session| session.queue_depth("nothing").is_ok())
    });
}

#[test]
fn a_broker_in_alarm_is_named() {
    let node = node();
    let alarm = |call: &str| node.tell(&["eval", &format!("rabbit_alarm:{call}.")]).unwrap();
    alarm("set_alarm({{resource_limit, memory, node()}, []})");
    let mut session = impatient(&node);
    // The broker blocks who publishes, after the first message.
    let error = (0..3).find_map(|_| session.probe_publish("", "nothing").err()).expect("no answer");
    assert!(is_silent(&error) && error.to_string().contains("low on memory"), "{error}");
    alarm("clear_alarm({resource_limit, memory, node()})");
    eventually("it takes messages again", || {
        impatient(&node).probe_publish("", "nothing").is_ok_and(|verdict| verdict == ProbeAnswer::Allowed)
    });
}
