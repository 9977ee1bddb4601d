//! The example programs from the documentation of the library.

use std::process::Command;

use delayline_amqp::Session;
use delayline_core::{
    Message,
    codec::Delay,
    topology::{Endpoint, Object, Queue, RecallSettings},
};
use delayline_settings::Settings;

use crate::{
    common::{Inbox, PATIENCE, app, installed, run_in_time, topology, url},
    for_teams::{Receiver, example},
};

fn program(name: &str, settings: &Settings) -> Command {
    let mut program = Command::new(example(name));
    program.env("AMQP_URL", url(settings));
    program
}

/// The output of a program.
fn output(name: &str, settings: &Settings) -> String {
    let output = run_in_time(program(name, settings));
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn both_examples_of_publishing_deliver() {
    let settings = installed(10);
    let inbox = Inbox::open(&settings, "billing");
    let bodies = |count: usize| {
        let next = || String::from_utf8(inbox.next(PATIENCE).expect("a message").body.clone()).unwrap();
        let mut bodies: Vec<_> = (0..count).map(|_| next()).collect();
        bodies.sort();
        bodies
    };
    assert!(output("publish", &settings).starts_with("due at "));
    assert_eq!(bodies(1), ["invoice 17"]);
    assert!(output("publish_tokio", &settings).contains(" and "));
    assert_eq!(bodies(2), ["invoice 17", "invoice 18"]);
}

#[test]
fn the_example_of_a_worker_works_and_ends_on_request() {
    let settings = installed(10);
    let mut session = Session::open(&settings.broker).unwrap();
    session.declare_queue(&topology(&settings).app_queue(&app("billing"), "billing-in", None)).unwrap();
    session.bind(&topology(&settings).app_binding(&app("billing"), "billing-in")).unwrap();
    let messages = (0..16).map(|number| Message::after(app("billing"), Delay::ZERO, number.to_string()));
    assert!(settings.router().connect().unwrap().publish_all(messages).iter().all(Result::is_ok));
    let mut worker = Receiver::start(program("work", &settings), 0);
    let mut done: Vec<u32> =
        (0..16).map(|_| worker.next().strip_prefix("done: ").expect("a message").parse().unwrap()).collect();
    done.sort_unstable();
    assert_eq!(done, (0..16).collect::<Vec<_>>());
    worker.stop();
    assert_eq!(worker.next(), "stopped");
}

#[test]
fn the_example_of_recalling_is_in_time() {
    let settings = installed(1_000);
    let mut session = Session::open(&settings.broker).unwrap();
    session.declare_queue(&Queue::new("billing-in")).unwrap();
    let to = Endpoint::Queue("billing-in".into());
    for object in topology(&settings).recall(&app("billing"), to, RecallSettings::default()) {
        match object {
            Object::Exchange(exchange) => session.declare_exchange(&exchange).unwrap(),
            Object::Queue(queue) => session.declare_queue(&queue).unwrap(),
            Object::Binding(binding) => session.bind(&binding).unwrap(),
        }
    }
    assert_eq!(output("recall", &settings), "InTime\n");
}
