//! Starting, reloading, stopping.

use std::{collections::HashMap, fs};

use delayline::{
    Message,
    codec::Delay,
    message::{Properties, Value},
    topology::{Binding, Endpoint},
};
use delayline_node::{NodeOptions, PrivateNode};
use rustix::process::Signal;

use crate::common::{Inbox, PATIENCE, app, eventually, install, installed, permit};

use super::{POLICIES, daemon, daemon_of, faults::dead_letters, parked};

#[test]
fn a_broken_configuration_is_refused_and_the_old_one_stays() {
    let settings = installed(10);
    let inbox = Inbox::open(&settings, "app");
    let mut daemon = daemon(&settings, "[default]\nfixed = '1s'\nattempts = 1\n");
    dead_letters(&settings, "app", 0..1);
    assert!(inbox.next(PATIENCE).is_some());

    fs::write(daemon.directory().join(POLICIES), "[default]\nfixed = 'soon'\n").unwrap();
    daemon.signal(Signal::HUP);
    eventually("the new policies are refused", || {
        daemon.log().contains("the old policies stay") && daemon.log().contains("[default] `fixed`")
    });
    dead_letters(&settings, "app", 1..2);
    assert!(inbox.next(PATIENCE).is_some(), "{}", daemon.log());

    fs::write(daemon.directory().join(POLICIES), "[default]\nattempts = 0\n").unwrap();
    daemon.signal(Signal::HUP);
    eventually("the new policies are taken", || daemon.log().contains("reloaded"));
    dead_letters(&settings, "app", 2..3);
    let message = parked(&settings, 1).remove(0);
    assert_eq!((message.text("delayline-reason"), message.number("delayline-attempt")), ("attempts", 0));
    let log = daemon.log();
    assert!(log.contains("retry app=app attempt=1/1 delay=1s reason=published id=1"), "{log}");
    assert!(log.contains("park app=app attempt=0 why=attempts reason=published id=2"), "{log}");
    assert!(!log.contains("dead body"), "a body is in the log");
    assert_eq!(daemon.stop(), Some(0));
}

#[test]
fn sigterm_finishes_what_it_holds_and_several_share_the_work() {
    const COUNT: u32 = 5_000;
    let settings = installed(1);
    let inbox = Inbox::open(&settings, "app");
    dead_letters(&settings, "app", 0..COUNT);
    let policies = "[default]\nfixed = '1s'\nattempts = 1\n";
    let mut daemons = [daemon(&settings, policies), daemon(&settings, policies)];
    let mut seen: HashMap<String, u32> = HashMap::new();
    let mut until = |count| {
        while seen.len() < count {
            let arrival = inbox.next(PATIENCE).unwrap_or_else(|| panic!("only {} arrived", seen.len()));
            *seen.entry(arrival.id).or_default() += 1;
        }
    };
    until(1_000);
    for daemon in &mut daemons {
        assert_eq!(daemon.stop(), Some(0), "{}", daemon.log());
    }
    daemons[0].again();
    until(COUNT as usize);
    // None as a rule. But a slow broker may hand the last acknowledgements on to the
    // queue too late.
    let twice = seen.values().filter(|times| **times > 1).count();
    println!("two services stopped in order: {twice} of {COUNT} came twice");
    assert!(twice <= 2 * 256, "{twice} came twice, more than the two can hold");
    for daemon in &daemons {
        assert!(daemon.log().contains("retry app=app"), "both had a part");
    }
}

#[test]
fn it_waits_for_the_broker_and_for_the_set() {
    let mut node = PrivateNode::start(NodeOptions::default()).unwrap();
    let settings = node.settings().set("unit_ms", "10").build().unwrap();
    node.kill();
    let mut daemon = daemon(&settings, "[default]\nfixed = '1s'\nattempts = 1\n");
    eventually("it says that the broker is not there", || daemon.log().contains("cannot reach the broker"));
    node.restart().unwrap();
    eventually("it says that the set is not there", || daemon.log().contains("delayline install"));
    install(&settings);
    let inbox = Inbox::open(&settings, "app");
    dead_letters(&settings, "app", 0..1);
    assert!(inbox.next(PATIENCE).is_some());
    drop(inbox);
    node.write_down_queues().unwrap();
    node.kill();
    node.restart().unwrap();
    let inbox = Inbox::open(&settings, "app");
    dead_letters(&settings, "app", 1..2);
    let arrival = inbox.next(PATIENCE).unwrap();
    assert_eq!(arrival.headers["delayline-attempt"].as_i64(), Some(1));
    assert_eq!(daemon.stop(), Some(0));
}

#[test]
fn few_permissions_are_enough_and_another_users_id_is_kept_in_a_header() {
    let settings = installed(10);
    let inbox = Inbox::open(&settings, "app");
    permit(&settings.broker.vhost, "retrier", ["^$", r"^delay(\.parked)?$", r"^delay\.retry$"]);
    let daemon = daemon_of("retrier", &settings, "[default]\nfixed = '1s'\nattempts = 1\n");

    let mut session = delayline::amqp::Session::open(&settings.broker).unwrap();
    let destination = Endpoint::Exchange("delay.retry".into());
    // What is for `failing` has failed at once.
    let key = delayline::codec::RoutingKey::binding_pattern(&app("failing"));
    session.bind(&Binding { source: "delay.dispatch".into(), destination, key }).unwrap();
    let router = settings.router().connect().unwrap();
    let properties = Properties { user_id: Some("guest".into()), ..Properties::default() };
    let message = Message::after(app("failing"), Delay::ZERO, "x").with_properties(properties);
    router.publish(message).unwrap();
    // It fails again when it comes back, and that was its only attempt.
    let message = parked(&settings, 1).remove(0);
    assert_eq!(message.text("delayline-reason"), "attempts", "{}", daemon.log());
    assert_eq!(message.number("delayline-attempt"), 1);
    assert_eq!(message.properties.user_id, None);
    assert_eq!(message.headers["delayline-user-id"], Value::from("guest"));
    // Nobody else gets any of it: what `app` gets is its own.
    router.publish(Message::after(app("app"), Delay::from_seconds(2).unwrap(), "its own")).unwrap();
    assert_eq!(inbox.next(PATIENCE).unwrap().body, b"its own");
}
