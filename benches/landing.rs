//! What a landing queue costs, against the same application without one in the same
//! run, and how it recovers after what is behind it was full.
//!
//!     cargo bench --bench landing                   about two minutes
//!     cargo bench --bench landing -- quick          a tenth of the messages
//!     cargo bench --bench landing -- recovery       only how it recovers, to the end: about ten minutes

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use delayline_admin::{self as admin, AppQueue, AppSpec, Delivery, Target, Unsticker};
use delayline_amqp::{Next, Session};
use delayline_core::{
    Message,
    codec::{AppKey, Delay},
    topology::{Binding, Endpoint, Exchange, ExchangeKind, Queue, Topology},
};
use delayline_measure::ledger::percentile;
use delayline_node::{NodeOptions, PrivateNode};
use delayline_settings::{Layers, Settings};

const BODY: usize = 256;

/// The level that is filled for draining: in units of 100 ms, long enough to fill it.
const LEVEL: u8 = 6;

fn main() {
    // `cargo bench` and `cargo test` pass flags of their own.
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    if std::env::args().any(|argument| argument == "recovery") {
        const TO_THE_END: Duration = Duration::from_secs(900);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                recovery("the broker by itself, 180 s between two attempts", None, TO_THE_END, false)
            });
            scope.spawn(|| recovery("as `delayline serve` looks after it", None, TO_THE_END, true));
        });
        return;
    }
    let part = if std::env::args().any(|argument| argument == "quick") { 10 } else { 1 };
    let (singles, drained) = (500 / part, 20_000 / part);
    for (title, rabbit) in [
        ("the broker's default dead-letter prefetch of 32", vec![]),
        ("a dead-letter prefetch of 512", vec!["{dead_letter_worker_consumer_prefetch, 512}".to_owned()]),
    ] {
        let node =
            PrivateNode::start(NodeOptions { rabbit, ..NodeOptions::default() }).expect("a private node");
        let settings = installed(node.settings());
        let mut session = Session::open(&settings.broker).unwrap();
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let version = session.server_version().unwrap_or_default();
        println!("\nRabbitMQ {version} on one private node, {title}; load before: {}", load.trim());
        let (mut single, mut rate) = (Vec::new(), Vec::new());
        // Each twice, in turns, so that what else the machine does hits both.
        for app in ["direct", "landed", "direct", "landed"] {
            single.push(one_by_one(&settings, &mut session, app, singles));
            rate.push(drain(&settings, &mut session, app, drained));
        }
        for (index, app) in ["direct", "landed"].into_iter().enumerate() {
            let (p50, p99) = [single[index], single[index + 2]]
                .into_iter()
                .fold((0.0, 0.0), |sum, one| (sum.0 + one.0 / 2.0, sum.1 + one.1 / 2.0));
            let both = (rate[index] + rate[index + 2]) / 2.0;
            let baseline = (rate[0] + rate[2]) / 2.0;
            println!(
                "  {app:7} alone: {p50:>5.1} ms, p99 {p99:>5.1} ms   drained: {both:>7.0}/s, {:.2} x direct",
                both / baseline
            );
        }
    }
    let minute = Duration::from_secs(60);
    recovery("the broker's default of 180 s between two attempts", None, minute, false);
    recovery("10 s between two attempts", Some(10_000), minute, false);
}

fn installed(layers: Layers) -> Settings {
    let settings = layers.set("unit_ms", "100").build().unwrap();
    let topology = Topology::new(settings.topology.clone());
    admin::install(&settings, &topology, false, || {}).unwrap();
    add(&settings, "direct", Delivery::Direct(AppQueue::new("direct")));
    add(&settings, "landed", Delivery::Landing(Target::Queue(AppQueue::new("landed"))));
    let mut session = Session::open(&settings.broker).unwrap();
    // Past the entry, whose topic match is the slowest part of all.
    let fill = Exchange::new("fill", ExchangeKind::Fanout);
    session.declare_exchange(&fill).unwrap();
    let level = Endpoint::Queue(topology.names().level_queue(LEVEL.try_into().unwrap()));
    session.bind(&Binding { source: "fill".into(), destination: level, key: String::new() }).unwrap();
    settings
}

fn add(settings: &Settings, app: &str, delivery: Delivery) {
    let spec = AppSpec::new(AppKey::new(app).unwrap(), delivery);
    let topology = Topology::new(settings.topology.clone());
    let report = admin::add_app(settings, &topology, &spec, false, false).unwrap();
    assert!(report.conflicts.is_empty(), "{report:?}");
}

fn message(app: &str, delay: Delay) -> Message {
    Message::after(AppKey::new(app).unwrap(), delay, vec![b'x'; BODY])
}

/// From the publish to the arrival of a message without a delay, while nothing else
/// goes on: in the middle, and of the slowest per cent, in ms.
fn one_by_one(settings: &Settings, session: &mut Session, app: &str, count: usize) -> (f64, f64) {
    let router = settings.router().connect().unwrap();
    let consumer = session.consume(app, 10).unwrap();
    let mut times: Vec<f64> = (0..count)
        .map(|_| {
            let started = Instant::now();
            router.publish(message(app, Delay::ZERO)).unwrap();
            match consumer.next(Duration::from_secs(60)) {
                Next::Delivery(delivery) => {
                    let elapsed = started.elapsed();
                    consumer.ack(delivery).unwrap();
                    elapsed.as_secs_f64() * 1_000.0
                }
                other => panic!("{app}: {other:?}"),
            }
        })
        .collect();
    times.sort_by(f64::total_cmp);
    let at = |per_cent| percentile(&times, per_cent).expect("there are some");
    (at(50.0), at(99.0))
}

/// How many messages a second arrive that fall due together.
fn drain(settings: &Settings, session: &mut Session, app: &str, count: usize) -> f64 {
    let mut fill = settings.clone();
    fill.topology.set = "fill".parse().unwrap();
    let router = fill.router().connect().unwrap();
    let consumer = session.consume(app, 1_000).unwrap();
    let mut pipeline = router.pipeline();
    for _ in 0..count {
        pipeline.push((), message(app, Delay::from_seconds(1 << LEVEL).unwrap()));
    }
    assert!(pipeline.all(|outcome| outcome.result.is_ok()));
    let (mut first, mut arrived) = (None, 0);
    while arrived < count {
        match consumer.next(Duration::from_secs(120)) {
            Next::Delivery(delivery) => {
                first.get_or_insert_with(Instant::now);
                consumer.ack(delivery).unwrap();
                arrived += 1;
            }
            other => panic!("{app}: {arrived} of {count}: {other:?}"),
        }
    }
    count as f64 / first.unwrap().elapsed().as_secs_f64()
}

/// What comes out of a landing queue in a time, once the target that was full is consumed
/// again, and whether or not somebody has it try again now and then.
fn recovery(title: &str, timeout_ms: Option<u32>, time: Duration, looked_after: bool) {
    const WAITING: usize = 500;
    let rabbit = timeout_ms
        .map(|ms| format!("{{dead_letter_worker_publisher_confirm_timeout, {ms}}}"))
        .into_iter()
        .collect();
    let node = PrivateNode::start(NodeOptions { rabbit, ..NodeOptions::default() }).expect("a private node");
    let settings = installed(node.settings());
    let mut session = Session::open(&settings.broker).unwrap();
    let arguments = [
        ("x-queue-type".to_owned(), "quorum".into()),
        ("x-max-length".to_owned(), 100.into()),
        ("x-overflow".to_owned(), "reject-publish".into()),
    ];
    session.declare_queue(&Queue::new("full").with_arguments(arguments)).unwrap();
    let full = AppQueue { existing: true, ..AppQueue::new("full") };
    add(&settings, "full", Delivery::Landing(Target::Queue(full)));
    let router = settings.router().connect().unwrap();
    for _ in 0..WAITING {
        router.publish(message("full", Delay::ZERO)).unwrap();
    }
    std::thread::sleep(Duration::from_secs(5));
    let stop = Arc::new(AtomicBool::new(false));
    let unsticker = looked_after.then(|| {
        let (unsticker, stop) = (Unsticker::new(settings.clone(), Arc::default()), Arc::clone(&stop));
        std::thread::spawn(move || unsticker.run(&stop))
    });
    let consumer = session.consume("full", 1_000).unwrap();
    let (started, mut arrived) = (Instant::now(), 0);
    let mut last = Duration::ZERO;
    while started.elapsed() < time && arrived < WAITING {
        if let Next::Delivery(delivery) = consumer.next(Duration::from_secs(1)) {
            consumer.ack(delivery).unwrap();
            arrived += 1;
            last = started.elapsed();
        }
    }
    stop.store(true, Ordering::Relaxed);
    if let Some(unsticker) = unsticker {
        unsticker.join().expect("it ends in order");
    }
    println!(
        "\n{WAITING} messages for a target of 100, then it is consumed ({title}): {arrived} came within {} s, \
         the last after {:.0} s",
        time.as_secs(),
        last.as_secs_f64()
    );
}
