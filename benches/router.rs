//! What the router costs beside the client library it is built on: the same
//! messages, to the same exchange, on a node of its own.
//!
//!     cargo bench --bench router
//!
//! The bare loop encodes nothing twice, keeps no message, and knows only how many
//! confirms are missing: as little as a publisher can do that does not lose count.

use std::time::{Duration, Instant};

use amiquip::{
    AmqpProperties, AmqpValue, Auth, Channel, Confirm, Connection, ConnectionOptions, ConnectionTuning,
    FieldTable, Publish,
};
use crossbeam_channel::Receiver;
use delayline::{
    Message, Router, Settings, admin,
    codec::{AppKey, Delay, RoutingKey},
    node::{NodeOptions, PrivateNode},
    settings::Entry,
    topology::Topology,
};

const BODY: usize = 256;
const MESSAGES: u64 = 30_000;
const ROUNDS: usize = 3;
const WINDOW: u64 = 1_000;

/// So long that nothing falls due while this runs.
const SECONDS: u64 = 1 << 20;

fn main() {
    // `cargo test` passes this.
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    let node = PrivateNode::start(NodeOptions::default()).expect("a private node");
    let settings = node.settings().build().unwrap();
    admin::install(&settings, &Topology::new(settings.topology.clone()), false, || {}).unwrap();
    println!("{MESSAGES} messages of {BODY} bytes, {WINDOW} in flight, the best of {ROUNDS} rounds each:");
    for (name, entry) in [("topic", Entry::Topic), ("express", Entry::Express)] {
        // In turns, so that both see the same broker and the same neighbours.
        let (mut alone, mut routed) = (0.0_f64, 0.0_f64);
        for _ in 0..ROUNDS {
            alone = alone.max(bare(&settings, entry));
            routed = routed.max(router(&settings, entry));
        }
        println!(
            "  {name:8} entry: bare loop {alone:>7.0}/s, router {routed:>7.0}/s, {:.2} of it",
            routed / alone
        );
    }
}

fn router(settings: &Settings, entry: Entry) -> f64 {
    let mut settings = settings.clone();
    settings.router.entry = entry;
    settings.router.window = usize::try_from(WINDOW).unwrap();
    let (app, delay) = (AppKey::new("bench").unwrap(), Delay::from_seconds(SECONDS).unwrap());
    let router = Router::connect(&settings).unwrap();
    let started = Instant::now();
    let mut pipeline = router.pipeline();
    for _ in 0..MESSAGES {
        if let Some(outcome) = pipeline.push((), Message::after(app.clone(), delay, vec![b'x'; BODY])) {
            outcome.result.unwrap();
        }
    }
    assert!(pipeline.all(|outcome| outcome.result.is_ok()));
    MESSAGES as f64 / started.elapsed().as_secs_f64()
}

fn bare(settings: &Settings, entry: Entry) -> f64 {
    let stream = mio::net::TcpStream::from_stream({
        let address = (settings.broker.host.as_str(), settings.broker.port);
        let stream = std::net::TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream
    })
    .unwrap();
    let options = ConnectionOptions::<Auth>::default().auth(Auth::default());
    let mut connection =
        Connection::insecure_open_stream(stream, options, ConnectionTuning::default()).unwrap();
    let channel = connection.open_channel(None).unwrap();
    let confirms = channel.listen_for_publisher_confirms().unwrap();
    channel.enable_publisher_confirms().unwrap();
    let delay = Delay::from_seconds(SECONDS).unwrap();
    let key = RoutingKey::new(delay, AppKey::new("bench").unwrap()).encode();
    let mut headers = FieldTable::new();
    headers.insert("delayline-due".into(), AmqpValue::LongLongInt(1_800_000_000_000));
    let exchange = match entry {
        Entry::Topic => "delay",
        Entry::Express => {
            let level = AmqpValue::LongString("20".into());
            headers.insert("BCC".into(), AmqpValue::FieldArray(vec![level]));
            "delay.express"
        }
    };
    let properties = AmqpProperties::default().with_delivery_mode(2).with_headers(headers);
    let started = Instant::now();
    run(&channel, &confirms, exchange, &key, &properties);
    let rate = MESSAGES as f64 / started.elapsed().as_secs_f64();
    connection.close().unwrap();
    rate
}

fn run(
    channel: &Channel,
    confirms: &Receiver<Confirm>,
    exchange: &str,
    key: &str,
    properties: &AmqpProperties,
) {
    let (mut sent, mut confirmed) = (0, 0);
    while confirmed < MESSAGES {
        if sent < MESSAGES && sent - confirmed < WINDOW {
            let body = vec![b'x'; BODY];
            let publish = Publish {
                body: &body,
                routing_key: key.to_owned(),
                mandatory: true,
                immediate: false,
                properties: properties.clone(),
            };
            channel.basic_publish(exchange, publish).unwrap();
            sent += 1;
            continue;
        }
        match confirms.recv_timeout(Duration::from_secs(60)).expect("a confirm") {
            // Tags count from 1, and an answer to many names the last of them; the
            // broker answers in order on a channel to quorum queues of one node.
            Confirm::Ack(ack) if ack.multiple => confirmed = confirmed.max(ack.delivery_tag),
            Confirm::Ack(_) => confirmed += 1,
            Confirm::Nack(nack) => panic!("message {} was refused", nack.delivery_tag),
        }
    }
}
