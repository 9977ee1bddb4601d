//! The daemon is killed at each step of its work on a message.

use std::sync::{Arc, atomic::Ordering};

use delayline_amqp::Session;
use delayline_core::{
    codec::Delay,
    message::{Message, Properties},
    topology::Names,
};
use delayline_settings::Settings;

use crate::common::Counting;
use crate::{
    common::{Inbox, PATIENCE, app, daemon::Daemon, eventually, installed},
    proxy::{Valve, proxy},
};

/// Much longer than everything else that the daemon writes.
const BODY: u64 = 100_000;

/// Puts a dead letter directly into the retry queue.
fn fail(settings: &Settings) {
    let mut to_retry = settings.clone();
    to_retry.topology.set = "fill".parse().unwrap();
    super::faults::dead_letters(settings, "app", 0..0);
    let router = to_retry.router().connect().unwrap();
    let properties = Properties { message_id: Some("it".into()), ..Properties::default() };
    let body = vec![b'x'; usize::try_from(BODY).unwrap()];
    let message = Message::after(app("app"), Delay::ZERO, body).with_properties(properties);
    router.publish(message).unwrap();
}

/// An idle daemon whose connections go through the valve.
fn daemon(settings: &Settings, valve: &Arc<Valve>) -> Daemon {
    let mut through = settings.clone();
    through.broker.port = proxy(settings.broker.port, valve);
    let daemon = super::daemon(&through, "[default]\nfixed = '1s'\nattempts = 3\n");
    let mut session = Session::open(&settings.broker).unwrap();
    let queue = Names::new(settings.topology.set.clone()).retry();
    // The daemon uses several channels.
    eventually("the daemon consumes", || {
        session.counts(&queue).unwrap().is_some_and(|depth| depth.consumers > 0)
    });
    daemon
}

/// Kills a daemon, and lets another one finish the work. `expected` messages must arrive from then
/// on.
fn arrive(settings: &Settings, inbox: &Inbox, mut killed: Daemon, expected: usize) {
    killed.kill();
    let other = daemon(settings, &Arc::default());
    eventually("the other daemon has published the message", || other.log().contains("id=it"));
    let router = settings.router().connect().unwrap();
    let send = |last| {
        let delay = Delay::from_seconds(31).unwrap();
        router.publish(Message::after(app("app"), delay, last)).unwrap();
    };
    let arrivals = inbox.exactly(expected, send).len();
    assert_eq!(arrivals, expected);
}

#[test]
fn after_receiving() {
    let settings = installed(100);
    let inbox = Inbox::open(&settings, "app");
    let valve = Arc::new(Valve::default());
    let killed = daemon(&settings, &valve);
    let before = valve.written.load(Ordering::SeqCst);
    valve.hold_to_broker.store(true, Ordering::SeqCst);
    fail(&settings);
    eventually("the daemon has received the message and publishes it", || {
        valve.written.load(Ordering::SeqCst) > before
    });
    arrive(&settings, &inbox, killed, 1);
}

#[test]
fn after_publishing() {
    let settings = installed(100);
    let inbox = Inbox::open(&settings, "app");
    let valve = Arc::new(Valve::default());
    let killed = daemon(&settings, &valve);
    let written = valve.written.load(Ordering::SeqCst) + BODY;
    valve.hold_answers_after.store(written, Ordering::SeqCst);
    fail(&settings);
    eventually("the daemon has published the message", || valve.hold_from_broker.load(Ordering::SeqCst));
    // The broker has the whole message, but the daemon gets no confirm, so the message is sent
    // twice.
    assert!(inbox.next(PATIENCE).is_some());
    arrive(&settings, &inbox, killed, 1);
}

#[test]
fn before_acknowledging() {
    let settings = installed(100);
    let inbox = Inbox::open(&settings, "app");
    let valve = Arc::new(Valve::default());
    let killed = daemon(&settings, &valve);
    let written = valve.written.load(Ordering::SeqCst) + BODY;
    valve.hold_after_answer_to.store(written, Ordering::SeqCst);
    fail(&settings);
    eventually("the message is confirmed", || valve.hold_to_broker.load(Ordering::SeqCst));
    arrive(&settings, &inbox, killed, 2);
}
