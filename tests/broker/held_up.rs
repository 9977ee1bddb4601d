//! Sending held messages on during an alarm of the broker.

use std::{sync::atomic::AtomicBool, thread};

use delayline_admin::{
    self as admin, FindingCode,
    drain::{Decision, Drain, Outgoing},
};
use delayline_amqp::{Delivery, Session};
use delayline_core::topology::{Argument, Queue, UNREACHABLE_DELIVERY_LIMIT};
use delayline_node::PrivateNode;
use delayline_settings::Settings;
use serde_json::{Value as Json, json};

use crate::common::Counting;
use crate::common::{
    PATIENCE, disturbed_node, eventually, eventually_seen, http, install, raw, status, topology, vhost_on,
};

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

/// The names and states of the connections to a vhost that send held messages on.
fn senders(node: &PrivateNode, vhost: &str) -> Vec<(String, String)> {
    let all = http(node, "GET", "connections", &json!(null));
    let purpose = |one: &Json| one["client_properties"]["information"].to_string().contains("(router)");
    let text = |one: &Json, name: &str| one[name].as_str().unwrap_or_default().to_owned();
    let ours = all.as_array().into_iter().flatten().filter(|one| one["vhost"] == vhost && purpose(one));
    ours.map(|one| (text(one, "name"), text(one, "state"))).collect()
}

#[test]
fn an_alarm_is_forgotten_with_the_connection_that_it_blocked() {
    // An alarm affects the whole node.
    let node = disturbed_node();
    let mut settings: Settings = vhost_on(&node).build().unwrap();
    // The run waits for as long as the rest of the test takes.
    settings.router.publish_timeout = 10 * PATIENCE;
    let mut session = Session::open(&settings.broker).unwrap();
    for name in ["kept", "target"] {
        session.declare_queue(&queue(name)).unwrap();
    }
    raw::publish(&settings, (0..20).map(|n| raw::message("", "kept", n, &json!({}))));
    let mut ready = |name: &str| session.counts(name).unwrap().unwrap().ready;
    eventually("all messages are in the queue", || ready("kept") == 20);
    eval(&node, &format!("rabbit_alarm:set_alarm({{{ALARM}, []}})."));

    let stop = AtomicBool::new(false);
    let report = thread::scope(|scope| {
        let run = scope.spawn(|| {
            let send = |delivery: &Delivery| Decision::Send(Outgoing::of(delivery, "", "target").into());
            Drain::new(&settings, &queue("kept")).until(&stop).run(send, |_| {})
        });
        let senders = || senders(&node, &settings.broker.vhost);
        let blocked = |all: &Vec<(String, String)>| all.iter().any(|(_, state)| state == "blocked");
        let (first, _) =
            eventually_seen("the connection is blocked by the alarm", senders, blocked).remove(0);
        let path = first.replace(' ', "%20").replace('>', "%3E");
        http(&node, "DELETE", &format!("connections/{path}"), &json!(null));
        eventually("the run has a new connection", || senders().iter().any(|(name, _)| *name != first));
        eval(&node, &format!("rabbit_alarm:clear_alarm({ALARM})."));
        run.join().unwrap().unwrap()
    });
    assert_eq!((report.sent, report.refused, &report.failure), (20, 0, &None), "{report:?}");
    eventually("all messages have arrived", || ready("target") == 20);
}

#[test]
fn an_alarm_is_shown() {
    let node = disturbed_node();
    let settings: Settings = vhost_on(&node).build().unwrap();
    install(&settings);
    eval(&node, &format!("rabbit_alarm:set_alarm({{{ALARM}, []}})."));
    let said = "The broker accepts no messages: alarm on ";
    let headline = || status(&settings).verdict.headline;
    eventually_seen("status shows it", headline, |headline| headline.starts_with(said));
    let options = admin::DoctorOptions::default();
    let doctor = || admin::doctor(&settings, &topology(&settings), &options).unwrap();
    eventually_seen("doctor shows it", doctor, |doctor| {
        doctor.findings.iter().any(|it| it.code == FindingCode::BrokerAlarm)
    });
    eval(&node, &format!("rabbit_alarm:clear_alarm({ALARM})."));
    eventually("the alarm has ended", || status(&settings).broker.alarms == Some(Vec::new()));
}
