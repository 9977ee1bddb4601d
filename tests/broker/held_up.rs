//! Sending kept messages on while the broker is in alarm.

use std::{sync::atomic::AtomicBool, thread};

use delayline::{
    amqp::{Delivery, Session},
    topology::{Argument, Queue, UNREACHABLE_DELIVERY_LIMIT},
};
use delayline_admin::drain::{Decision, Drain, Outgoing};
use delayline_node::PrivateNode;
use delayline_settings::Settings;
use serde_json::{Value as Json, json};

use crate::common::{PATIENCE, disturbed_node, eventually, eventually_seen, http, raw, vhost_on};

const ALARM: &str = "{resource_limit, memory, node()}";

fn queue(name: &str) -> Queue {
    let arguments =
        [("x-queue-type", Argument::from("quorum")), ("x-delivery-limit", UNREACHABLE_DELIVERY_LIMIT.into())];
    let arguments = arguments.map(|(name, value)| (name.to_owned(), value));
    Queue::new(name).with_arguments(arguments)
}

fn eval(node: &PrivateNode, expression: &str) {
    node.tell(&["eval", expression]).unwrap();
}

/// The names of the connections that kept messages are sent on by, and what they are doing.
fn senders(node: &PrivateNode) -> Vec<(String, String)> {
    let all = http(node, "GET", "connections", &json!(null));
    let purpose = |one: &Json| one["client_properties"]["information"].to_string().contains("(router)");
    let text = |one: &Json, name: &str| one[name].as_str().unwrap_or_default().to_owned();
    let ours = all.as_array().into_iter().flatten().filter(|one| purpose(one));
    ours.map(|one| (text(one, "name"), text(one, "state"))).collect()
}

#[test]
fn an_alarm_is_forgotten_with_the_connection_that_was_told_of_it() {
    // An alarm is the whole node's.
    let node = disturbed_node();
    let mut settings: Settings = vhost_on(&node).build().unwrap();
    // It waits for as long as all that is done meanwhile.
    settings.router.publish_timeout = 10 * PATIENCE;
    let mut session = Session::open(&settings.broker).unwrap();
    for name in ["kept", "target"] {
        session.declare_queue(&queue(name)).unwrap();
    }
    raw::publish(&settings, (0..20).map(|n| raw::message("", "kept", n, &json!({}))));
    let mut ready = |name: &str| session.queue_depth(name).unwrap().unwrap().ready;
    eventually("all are in the queue", || ready("kept") == 20);
    eval(&node, &format!("rabbit_alarm:set_alarm({{{ALARM}, []}})."));

    let stop = AtomicBool::new(false);
    let report = thread::scope(|scope| {
        let run = scope.spawn(|| {
            let send = |delivery: &Delivery| Decision::Send(Outgoing::of(delivery, "", "target").into());
            Drain::new(&settings, &queue("kept")).until(&stop).run(send, |_| {})
        });
        let blocked = |all: &Vec<(String, String)>| all.iter().any(|(_, state)| state == "blocked");
        let (first, _) = eventually_seen("it is told of the alarm", || senders(&node), blocked).remove(0);
        let path = first.replace(' ', "%20").replace('>', "%3E");
        http(&node, "DELETE", &format!("connections/{path}"), &json!(null));
        eventually("it has connected again", || senders(&node).iter().any(|(name, _)| *name != first));
        eval(&node, &format!("rabbit_alarm:clear_alarm({ALARM})."));
        run.join().unwrap().unwrap()
    });
    assert_eq!((report.sent, report.refused, &report.failure), (20, 0, &None), "{report:?}");
    eventually("all have arrived", || ready("target") == 20);
}
