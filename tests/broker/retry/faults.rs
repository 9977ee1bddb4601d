//! No message is lost, even if the daemon or the broker is killed.

use std::{
    collections::HashMap,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use delayline_amqp::{Next, Session};
use delayline_client::router::Outcome;
use delayline_core::{
    Message,
    codec::{Delay, RoutingKey},
    message::{Headers, Properties, Value},
    topology::{Binding, Endpoint, Queue},
};
use delayline_settings::Settings;

use crate::common::{PATIENCE, app, install, installed, mortal_node, revive};

use super::{daemon, parked};

/// Puts messages for an application into the retry queue. Their ids are numbers.
pub(crate) fn dead_letters(settings: &Settings, key: &str, ids: Range<u32>) {
    let mut session = Session::open(&settings.broker).unwrap();
    // The router publishes to an exchange in place of an entry exchange. It leads all
    // messages to the retry exchange, and the service decodes the app key.
    let entry =
        delayline_core::topology::Exchange::new("fill", delayline_core::topology::ExchangeKind::Fanout);
    session.declare_exchange(&entry).unwrap();
    let destination = Endpoint::Exchange("delay.retry".into());
    session.bind(&Binding { source: "fill".into(), destination, key: String::new() }).unwrap();
    let mut settings = settings.clone();
    settings.topology.set = "fill".parse().unwrap();
    publish(&settings, key, ids);
}

fn publish(settings: &Settings, key: &str, ids: Range<u32>) {
    let router = settings.router().publish_timeout(PATIENCE).confirm_timeout(PATIENCE).connect().unwrap();
    let mut pipeline = router.pipeline();
    let confirmed = |outcome: Outcome<()>| outcome.result.unwrap();
    for id in ids {
        let properties = Properties { message_id: Some(id.to_string()), ..Properties::default() };
        let message = Message::after(app(key), Delay::ZERO, "dead body").with_properties(properties);
        pipeline.push((), message).map(confirmed);
    }
    pipeline.for_each(|outcome| drop(confirmed(outcome)));
}

/// The queue of an application that must not lose messages: it dead-letters at least once.
fn queue(settings: &Settings, key: &str) -> String {
    let mut session = Session::open(&settings.broker).unwrap();
    let name = format!("{key}-in");
    let arguments = [
        ("x-queue-type", "quorum"),
        ("x-dead-letter-exchange", "delay.retry"),
        ("x-dead-letter-routing-key", key),
        ("x-dead-letter-strategy", "at-least-once"),
        ("x-overflow", "reject-publish"),
    ];
    let arguments = arguments.map(|(name, value)| (name.to_owned(), value.into()));
    session.declare_queue(&Queue::new(name.clone()).with_arguments(arguments)).unwrap();
    session
        .bind(&Binding {
            source: "delay.dispatch".into(),
            destination: Endpoint::Queue(name.clone()),
            key: RoutingKey::binding_pattern(&app(key)),
        })
        .unwrap();
    name
}

/// An application in Rust that rejects every message.
struct Failing {
    stop: Arc<AtomicBool>,
    handed: Arc<AtomicU64>,
    thread: Option<JoinHandle<Vec<Headers>>>,
}

impl Failing {
    fn start(settings: &Settings, queue: String) -> Self {
        let (stop, handed) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (settings, stopped, counter) = (settings.clone(), Arc::clone(&stop), Arc::clone(&handed));
        let thread = thread::spawn(move || {
            let mut seen = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                let Ok(mut session) = Session::open(&settings.broker) else {
                    thread::sleep(Duration::from_millis(200));
                    continue;
                };
                let Ok(consumer) = session.consume(&queue, 200) else { continue };
                while !stopped.load(Ordering::Relaxed) {
                    match consumer.next(Duration::from_millis(100)) {
                        Next::Delivery(delivery) => {
                            counter.fetch_add(1, Ordering::Relaxed);
                            if seen.len() < 100 {
                                seen.push(delivery.headers.clone());
                            }
                            if consumer.reject(delivery).is_err() {
                                break;
                            }
                        }
                        Next::Timeout => {}
                        Next::Ended(_) => break,
                    }
                }
            }
            seen
        });
        Self { stop, handed, thread: Some(thread) }
    }

    fn handed(&self) -> u64 {
        self.handed.load(Ordering::Relaxed)
    }

    fn stop(&mut self) -> Vec<Headers> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Failing {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// The ids of the parked messages, and how often each arrived. Waits until `count` messages have
/// arrived, or none arrives any more.
fn parked_ids(settings: &Settings, count: u32) -> HashMap<String, u32> {
    let mut session = Session::open(&settings.broker).unwrap();
    let consumer = session.consume("delay.parked", 1_000).unwrap();
    let mut ids: HashMap<String, u32> = HashMap::new();
    loop {
        let complete = ids.len() == count as usize;
        match consumer.next(if complete { Duration::from_secs(3) } else { PATIENCE }) {
            Next::Delivery(delivery) => {
                *ids.entry(delivery.properties.message_id.clone().unwrap()).or_default() += 1;
                consumer.ack(delivery).unwrap();
            }
            Next::Timeout => return ids,
            Next::Ended(cause) => panic!("{cause:?}"),
        }
    }
}

const COUNT: u32 = 3_000;
const POLICY: &str = "[default]\nfixed = '1s'\nattempts = 1\n";

#[test]
fn a_killed_daemon_loses_nothing() {
    let settings = installed(10);
    let mut application = Failing::start(&settings, queue(&settings, "app"));
    let mut daemon = daemon(&settings, POLICY);
    publish(&settings, "app", 0..COUNT);
    // The daemon is killed at random steps. Between two kills, it has received, published and not
    // yet acknowledged hundreds of messages.
    for round in 1..=6 {
        let until = application.handed() + 400;
        let deadline = Instant::now() + Duration::from_secs(20);
        while application.handed() < until && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(7 * round));
        }
        daemon.kill();
        daemon.again();
    }
    let ids = parked_ids(&settings, COUNT);
    let twice = ids.values().filter(|times| **times > 1).count();
    println!("daemon killed 6 times: {COUNT} messages, {} parked, {twice} of them twice or more", ids.len());
    application.stop();
    assert_eq!(ids.len(), COUNT as usize);
}

#[test]
fn a_killed_broker_loses_nothing() {
    let mut node = mortal_node();
    let settings = node.settings().set("unit_ms", "10").build().unwrap();
    install(&settings);
    let mut application = Failing::start(&settings, queue(&settings, "app"));
    let _daemon = daemon(&settings, POLICY);
    publish(&settings, "app", 0..COUNT);
    while application.handed() < 2_000 {
        thread::sleep(Duration::from_millis(10));
    }
    node.write_down_queues().unwrap();
    node.kill();
    revive(&mut node);
    let ids = parked_ids(&settings, COUNT);
    let twice = ids.values().filter(|times| **times > 1).count();
    println!("broker killed: {COUNT} messages, {} parked, {twice} of them twice or more", ids.len());
    application.stop();
    assert_eq!(ids.len(), COUNT as usize);
}

#[test]
fn twenty_retries_through_the_same_levels_arrive() {
    let settings = installed(10);
    let mut application = Failing::start(&settings, queue(&settings, "app"));
    let _daemon = daemon(&settings, "[default]\nfixed = '7s'\nattempts = 20\n");
    publish(&settings, "app", 0..1);
    let message = parked(&settings, 1).remove(0);
    assert_eq!(message.number("delayline-attempt"), 20);
    let seen = application.stop();
    let attempts: Vec<_> =
        seen.iter().map(|headers| headers.get("delayline-attempt").and_then(Value::as_i64)).collect();
    let expected: Vec<_> = [None].into_iter().chain((1..=20).map(Some)).collect();
    assert_eq!(attempts, expected);
}
