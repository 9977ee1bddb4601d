//! Brokers that do not answer.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use delayline_amqp::{AmqpError, Event, ProbeAnswer, Publisher, Session};
use delayline_client::router::{Cause, Stats};
use delayline_core::{
    Message,
    codec::Delay,
    message::{Headers, Properties},
    topology::{Binding, Endpoint, Exchange, ExchangeKind, Queue},
};
use delayline_node::PrivateNode;

use crate::common::Counting;
use crate::{
    common::{PATIENCE, app, disturbed_node, eventually, vhost, vhost_on},
    proxy::{Valve, proxy},
};

/// A session with a short request timeout. Its long heartbeat would keep the connection open.
fn impatient(node: &PrivateNode) -> Session {
    let settings = node.settings().set("request_timeout", "10s").set("heartbeat", "600");
    Session::open(&settings.build().unwrap().broker).unwrap()
}

fn is_silent(error: &AmqpError) -> bool {
    error.is_connection() && error.to_string().contains("did not answer within 10 s")
}

#[test]
fn a_broker_that_falls_silent_is_given_up() {
    let node = &disturbed_node();
    let (mut counting, mut consuming) = (impatient(node), impatient(node));
    assert_eq!(counting.counts("nothing").unwrap(), None);
    let queue = consuming.declare_own_queue().unwrap();
    node.pause();
    let error = counting.counts("nothing").unwrap_err();
    assert!(is_silent(&error) && error.to_string().contains("overloaded or stopped"), "{error}");
    // This session must open another channel first.
    let error = consuming.consume(&queue, 1).unwrap_err();
    assert!(is_silent(&error), "{error}");
    // The session stays closed.
    assert!(matches!(counting.counts("nothing"), Err(AmqpError::Lost { .. })));
    node.resume();
    eventually("another session works", || {
        let settings = node.settings().build().unwrap();
        Session::open(&settings.broker).is_ok_and(|mut session| session.counts("nothing").is_ok())
    });
}

#[test]
fn a_broker_in_alarm_is_named() {
    let node = &disturbed_node();
    let alarm = |call: &str| node.tell(&["eval", &format!("rabbit_alarm:{call}.")]).unwrap();
    alarm("set_alarm({{resource_limit, memory, node()}, []})");
    let mut session = impatient(node);
    // The broker blocks a publisher only after its first message.
    let error = (0..3).find_map(|_| session.probe_publish("", "nothing").err()).expect("no answer");
    assert!(is_silent(&error) && error.to_string().contains("low on memory"), "{error}");
    alarm("clear_alarm({resource_limit, memory, node()})");
    eventually("the broker takes messages again", || {
        impatient(node).probe_publish("", "nothing").is_ok_and(|verdict| verdict == ProbeAnswer::Allowed)
    });
}

/// After a refusal, the router needs another channel, but the broker reads nothing until its alarm
/// ends.
#[test]
fn a_refusal_during_an_alarm_leaves_the_router_at_work() {
    let node = disturbed_node();
    let settings = vhost_on(&node).set("publish_timeout", "10m").set("confirm_timeout", "10m");
    let settings = settings.build().unwrap();
    let mut session = Session::open(&settings.broker).unwrap();
    session.declare_exchange(&Exchange::new("delay", ExchangeKind::Topic)).unwrap();
    session.declare_queue(&Queue::new("all")).unwrap();
    let destination = Endpoint::Queue("all".into());
    session.bind(&Binding { source: "delay".into(), destination, key: "#".into() }).unwrap();
    drop(session);
    let eval = |call: &str| node.tell(&["eval", call]).unwrap();
    let stats = Arc::new(Stats::default());
    let router = settings.router().counting(Arc::clone(&stats)).connect().unwrap();
    let message = || Message::after(app("app"), Delay::from_seconds(1).unwrap(), "x");
    router.publish(message()).unwrap();
    let mut pipeline = router.pipeline();
    // The broker reads the message, and refuses it only later.
    eval("[sys:suspend(C) || C <- rabbit_channel:list()].");
    let properties = Properties { user_id: Some("nobody".into()), ..Properties::default() };
    assert!(pipeline.push("refused", message().with_properties(properties)).is_none());
    eventually("the broker has read the message", || {
        // The channel of the closed session may still be listed.
        eval("lists:max([0 | [N || C <- rabbit_channel:list(), {_, N} <- [process_info(C, message_queue_len)]]]).")
            .trim()
            != "0"
    });
    eval("rabbit_alarm:set_alarm({{resource_limit, memory, node()}, []}).");
    assert!(pipeline.push("innocent", message()).is_none());
    eventually("the broker has stopped reading", || {
        node.tell(&["list_connections", "state"]).unwrap().lines().any(|line| line.trim() == "blocked")
    });
    eval("[sys:resume(C) || C <- rabbit_channel:list()].");
    eventually("the router has another connection", || stats.counts().reconnects >= 1);
    eval("rabbit_alarm:clear_alarm({resource_limit, memory, node()}).");
    for outcome in pipeline {
        match (outcome.tag, outcome.result) {
            ("refused", Err(error)) => {
                assert!(matches!(error.cause(), Cause::Rejected { code: 406, .. }), "{error}");
            }
            ("innocent", Ok(_)) => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_channel_that_the_broker_does_not_open_is_given_up() {
    let settings = vhost().build().unwrap();
    let valve = Arc::new(Valve::default());
    let mut broker = settings.broker.clone().with_heartbeat(600);
    broker.port = proxy(broker.port, &valve);
    let mut publisher = Publisher::open(&broker).unwrap();
    publisher.publish("nowhere", "key".into(), Properties::default(), Headers::new(), b"x");
    assert!(matches!(publisher.next_within(PATIENCE), Some(Event::Ended)));
    assert_eq!(publisher.end(PATIENCE).code(), Some(404));
    valve.hold_from_broker.store(true, Ordering::SeqCst);
    let (done, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || done.send(publisher.reopen()));
    let error = ended.recv_timeout(PATIENCE).expect("it never returned").unwrap_err();
    assert!(matches!(error, AmqpError::Silent { .. }), "{error}");
    assert!(error.to_string().contains("opened no other channel"), "{error}");
}

#[test]
fn an_unanswered_login_is_not_a_wrong_password() {
    let settings = vhost().build().unwrap();
    let late = |seconds| {
        let valve = Arc::new(Valve::default());
        // Answers are held from the password on.
        valve.hold_answers_after.store(9, Ordering::SeqCst);
        let mut slow = settings.broker.clone();
        slow.port = proxy(slow.port, &valve);
        slow.connect_timeout = Duration::from_secs(seconds);
        let error = Session::open(&slow).unwrap_err();
        // If the machine is too busy to send the password in time, the test tries again.
        (valve.written.load(Ordering::SeqCst) >= 9).then_some(error)
    };
    let error = [2, 10, 60].into_iter().find_map(late).expect("the password is sent");
    assert!(error.is_connection() && error.to_string().contains("has not answered the login"), "{error}");
    let mut wrong = settings.broker.clone();
    wrong.credentials = delayline_amqp::broker::Credentials::plain("guest", "wrong");
    wrong.connect_timeout = Duration::from_secs(60);
    let error = Session::open(&wrong).unwrap_err();
    assert!(
        !error.is_connection() && error.to_string().contains("or its password was not accepted"),
        "{error}"
    );
}

#[test]
fn every_heartbeat_that_can_be_set_works() {
    let settings = vhost().build().unwrap();
    for seconds in [1, 32_767, 32_768, u16::MAX] {
        Session::open(&settings.broker.clone().with_heartbeat(seconds)).unwrap();
    }
}
