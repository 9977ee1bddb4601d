//! Source routing, tried: what draining gains if the publisher says the whole path,
//! so that no hop has to match a pattern.
//!
//!     cargo bench --bench source_routing            with RabbitMQ's own settings
//!     cargo bench --bench source_routing -- 512     with this prefetch of dead-lettering
//!
//! In the tried layout each level queue dead-letters to a direct exchange of its own,
//! whose alternate is the topic exchange that the level has now. The publisher puts
//! every step into `BCC`: "11", "11>05", "05>d". The design notes say why it is not
//! part of delayline.

#[path = "common/bare.rs"]
mod bare;
#[path = "common/prefetch.rs"]
mod prefetch;

use std::{
    fmt::Write,
    thread,
    time::{Duration, Instant},
};

use bare::Bare;
use delayline::{
    Settings, admin,
    amqp::{Consumer, Next, Session},
    codec::{AppKey, Delay, RoutingKey},
    node::{NodeOptions, PrivateNode},
    topology::{Argument, Binding, Endpoint, Exchange, ExchangeKind, Object, Queue, Topology, Unit},
};
use prefetch::Prefetch;

const BODY: usize = 256;
const MESSAGES: u64 = 15_000;
const ROUNDS: usize = 3;

fn main() {
    // `cargo test` passes this.
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    let prefetch = Prefetch::asked();
    let node = PrivateNode::start(NodeOptions { rabbit: prefetch.settings(), ..NodeOptions::default() })
        .expect("a private node");
    let settings = node.settings().build().unwrap();
    let mut session = Session::open(&settings.broker).unwrap();
    for set in ["plain", "paths"] {
        install(&settings, &mut session, set);
    }
    println!(
        "RabbitMQ {}, {prefetch}: {MESSAGES} messages of {BODY} bytes that fall due together, the best of {ROUNDS} \
         rounds each:",
        session.server_version().unwrap_or_default()
    );
    for units in [128, 0b1010_0000, 0b1100_0001, 0b1111_1100] {
        let delay = Delay::from_seconds(units).unwrap();
        let (mut plain, mut paths) = (0.0_f64, 0.0_f64);
        for _ in 0..ROUNDS {
            plain = plain.max(drain(&settings, &mut session, "plain", delay, &first(delay)));
            paths = paths.max(drain(&settings, &mut session, "paths", delay, &path(delay)));
        }
        let mut bits = String::new();
        let _ = write!(bits, "{units:08b}");
        println!(
            "  {} hops ({bits}): patterns {plain:>6.0}/s, paths {paths:>6.0}/s, {:.2} times",
            delay.hops(),
            paths / plain
        );
    }
}

/// Only where to enter.
fn first(delay: Delay) -> Vec<String> {
    delay.levels().take(1).map(|level| format!("{level:02}")).collect()
}

/// Where to enter, and every step from there.
fn path(delay: Delay) -> Vec<String> {
    let levels: Vec<_> = delay.levels().map(|level| format!("{level:02}")).collect();
    let ends = levels.iter().skip(1).map(String::as_str).chain(["d"]);
    let steps: Vec<_> = levels.iter().zip(ends).map(|(from, to)| format!("{from}>{to}")).collect();
    first(delay).into_iter().chain(steps).collect()
}

fn install(settings: &Settings, session: &mut Session, set: &str) {
    let mut wanted = settings.topology.clone();
    wanted.set = set.parse().unwrap();
    wanted.unit = Unit::from_millis(20).unwrap();
    let topology = Topology::new(wanted);
    if set == "plain" {
        admin::install(settings, &topology, false, || {}).unwrap();
    } else {
        for object in topology.objects() {
            match object {
                Object::Exchange(exchange) => session.declare_exchange(exchange).unwrap(),
                Object::Queue(queue) => declare(session, set, queue),
                Object::Binding(binding) => session.bind(binding).unwrap(),
            }
        }
        steps(session, &topology);
    }
    let app = AppKey::new("bench").unwrap();
    let sink = Queue {
        name: format!("{set}.sink"),
        level: None,
        arguments: [("x-queue-type".to_owned(), Argument::from("quorum"))].into(),
    };
    session.declare_queue(&sink).unwrap();
    bind(
        session,
        &topology.names().dispatch(),
        Endpoint::Queue(sink.name),
        &RoutingKey::binding_pattern(&app),
    );
}

/// A level queue that asks a direct exchange first. It stands before what it leads to.
fn declare(session: &mut Session, set: &str, queue: &Queue) {
    let mut queue = queue.clone();
    if let Some(level) = queue.level {
        let path = format!("{set}.path.{level:02}");
        let next = queue.arguments.insert("x-dead-letter-exchange".into(), path.as_str().into()).unwrap();
        let arguments = [("alternate-exchange".to_owned(), next)].into();
        session.declare_exchange(&Exchange { name: path, kind: ExchangeKind::Direct, arguments }).unwrap();
    }
    session.declare_queue(&queue).unwrap();
}

fn steps(session: &mut Session, topology: &Topology) {
    let (set, names) = (&topology.settings().set, topology.names());
    for from in 0..28 {
        let source = format!("{set}.path.{from:02}");
        for to in 0..from {
            bind(session, &source, Endpoint::Queue(names.level_queue(to)), &format!("{from:02}>{to:02}"));
        }
        bind(session, &source, Endpoint::Exchange(names.dispatch()), &format!("{from:02}>d"));
    }
}

fn bind(session: &mut Session, source: &str, destination: Endpoint, key: &str) {
    session.bind(&Binding { source: source.into(), destination, key: key.into() }).unwrap();
}

/// Messages per second, from the first arrival to the last.
fn drain(settings: &Settings, session: &mut Session, set: &str, delay: Delay, hidden: &[String]) -> f64 {
    let consumer: Consumer = session.consume(&format!("{set}.sink"), 1_000).unwrap();
    let key = RoutingKey::new(delay, AppKey::new("bench").unwrap()).encode();
    let publisher = Bare::open(settings);
    publisher.publish(MESSAGES, 1_000, &format!("{set}.express"), &key, hidden, BODY);
    publisher.close();
    let (mut first, mut count) = (None, 0);
    while count < MESSAGES {
        match consumer.next(Duration::from_secs(60)) {
            Next::Delivery(delivery) => {
                first.get_or_insert_with(Instant::now);
                consumer.ack(delivery).unwrap();
                count += 1;
            }
            other => panic!("{count} of {MESSAGES} arrived: {other:?}"),
        }
    }
    let seconds = first.unwrap().elapsed().as_secs_f64();
    // The broker forgets acknowledgements that it has not handed on to the queue when
    // the channel is closed, and the next round would begin with these messages.
    thread::sleep(Duration::from_secs(1));
    MESSAGES as f64 / seconds
}
