//! What the router costs beside the client library it is built on, and what a second
//! router adds: the same messages, to the same exchange, on a node of its own.
//!
//!     cargo bench --bench router

#[path = "common/bare.rs"]
mod bare;

use std::{thread, time::Instant};

use bare::Bare;
use delayline_admin as admin;
use delayline_amqp::Session;
use delayline_client::Router;
use delayline_core::{
    Message,
    codec::{AppKey, Delay, RoutingKey},
    topology::Topology,
};
use delayline_node::{NodeOptions, PrivateNode};
use delayline_settings::Settings;

const BODY: usize = 256;
const MESSAGES: u64 = 30_000;
const ROUNDS: usize = 3;
const WINDOW: u64 = 1_000;

/// So long that nothing falls due while this runs: level 20 alone.
const SECONDS: u64 = 1 << 20;

fn main() {
    // `cargo test` passes this.
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    let node = PrivateNode::start(NodeOptions::default()).expect("a private node");
    let settings = node.settings().build().unwrap();
    admin::install(&settings, &Topology::new(settings.topology.clone()), false, || {}).unwrap();
    println!(
        "RabbitMQ {}, {MESSAGES} messages of {BODY} bytes, {WINDOW} in flight on each connection, the best of \
         {ROUNDS} rounds each:",
        Session::open(&settings.broker).unwrap().server_version().unwrap_or_default()
    );
    // In turns, so that all see the same broker and the same neighbours.
    let (mut alone, mut one, mut two) = (0.0_f64, 0.0_f64, 0.0_f64);
    for _ in 0..ROUNDS {
        alone = alone.max(bare(&settings));
        one = one.max(routers(1, &settings));
        two = two.max(routers(2, &settings));
    }
    println!(
        "  bare loop {alone:>7.0}/s, one router {one:>7.0}/s ({:.2} of it), two routers {two:>7.0}/s ({:.2} of one)",
        one / alone,
        two / one
    );
}

/// All messages through so many routers at once, each with a thread of its own.
fn routers(count: u64, settings: &Settings) -> f64 {
    let mut settings = settings.clone();
    settings.router.window = usize::try_from(WINDOW).unwrap();
    let routers: Vec<_> = (0..count).map(|_| settings.router().connect().unwrap()).collect();
    let started = Instant::now();
    thread::scope(|scope| {
        for router in &routers {
            scope.spawn(|| publish(router, MESSAGES / count));
        }
    });
    (MESSAGES / count * count) as f64 / started.elapsed().as_secs_f64()
}

fn publish(router: &Router, messages: u64) {
    let (app, delay) = (AppKey::new("bench").unwrap(), Delay::from_seconds(SECONDS).unwrap());
    let mut pipeline = router.pipeline();
    for _ in 0..messages {
        if let Some(outcome) = pipeline.push((), Message::after(app.clone(), delay, vec![b'x'; BODY])) {
            outcome.result.unwrap();
        }
    }
    assert!(pipeline.all(|outcome| outcome.result.is_ok()));
}

fn bare(settings: &Settings) -> f64 {
    let delay = Delay::from_seconds(SECONDS).unwrap();
    let key = RoutingKey::new(delay, AppKey::new("bench").unwrap()).encode();
    let publisher = Bare::open(settings);
    let started = Instant::now();
    publisher.publish(MESSAGES, WINDOW, "delay", &key, BODY);
    let rate = MESSAGES as f64 / started.elapsed().as_secs_f64();
    publisher.close();
    rate
}
