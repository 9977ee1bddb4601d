//! How fast messages go in and come out, on a node of its own, against the same
//! client publishing straight into one quorum queue in the same run.
//!
//!     cargo bench --bench throughput               about two minutes
//!     cargo bench --bench throughput -- million    1,000,000 messages, for the memory
//!
//! `scripts/compare` has the other layouts that are in use for the same job.

use std::{
    fs,
    time::{Duration, Instant},
};

use delayline_admin::{self as admin, management::ManagementApi};
use delayline_amqp::{Next, Session};
use delayline_core::{
    Message,
    codec::{AppKey, Delay, RoutingKey},
    topology::{Binding, Endpoint, Exchange, ExchangeKind, Queue, Topology},
};
use delayline_node::{NodeOptions, PrivateNode};
use delayline_settings::Settings;

const BODY: usize = 256;
const MESSAGES: u32 = 20_000;
const ONE_BY_ONE: u32 = 2_000;

/// What an application publishes into: the exchange is the set's name.
struct Layout {
    name: &'static str,
    set: &'static str,
}

const LAYOUTS: [Layout; 2] = [
    Layout { name: "straight into one quorum queue", set: "direct" },
    Layout { name: "delayline", set: "delay" },
];

fn main() {
    // `cargo bench` and `cargo test` pass flags of their own.
    let million = std::env::args().any(|argument| argument == "million");
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    let node = PrivateNode::start(NodeOptions::default()).expect("a private node");
    let settings = node.settings().build().unwrap();
    conditions(&settings);
    install(&settings);
    if million {
        memory(&settings);
        return;
    }

    println!("\nPublishing {MESSAGES} messages with a delay of 1 s, {BODY} bytes, confirmed, pipelined:");
    let mut baseline = None;
    for layout in &LAYOUTS {
        let rate = publish(&with_set(&settings, layout.set), MESSAGES);
        let baseline = *baseline.get_or_insert(rate);
        println!("  {:38} {rate:>8.0}/s   {:>5.2} x the first", layout.name, rate / baseline);
        empty(&settings);
    }

    println!("\nOne at a time, each confirmed before the next, {ONE_BY_ONE} messages:");
    let mut baseline = None;
    for layout in &LAYOUTS {
        let rate = one_by_one(&with_set(&settings, layout.set));
        let baseline = *baseline.get_or_insert(rate);
        println!("  {:38} {rate:>8.0}/s   {:>5.2} x the first", layout.name, rate / baseline);
        empty(&settings);
    }

    println!("\nDraining {MESSAGES} messages that fall due together, from the first to the last arrival:");
    let mut baseline = None;
    for (title, delay) in [("1 hop, six zeros below (64 units)", 64), ("6 hops (63 units)", 63)] {
        let rate = drain(&settings, delay);
        let baseline = *baseline.get_or_insert(rate);
        println!("  {title:38} {rate:>8.0}/s   {:>5.2} x the first", rate / baseline);
        empty(&settings);
    }
}

fn conditions(settings: &Settings) {
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or(": unknown");
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let api = ManagementApi::new(settings.management.as_ref().unwrap()).unwrap();
    println!("RabbitMQ {} on one private node, over loopback", api.overview().unwrap().rabbitmq_version);
    println!(
        "{cores} cores shared by broker and client,{}",
        model.trim_start_matches(['\t', ' ', ':']).trim_start_matches(':')
    );
    println!("window of {} messages, load before: {}", settings.router.window, load.trim());
}

fn with_set(settings: &Settings, set: &str) -> Settings {
    let mut settings = settings.clone();
    settings.topology.set = set.parse().unwrap();
    if set.ends_with("tenth") {
        settings.topology.unit = delayline_core::topology::Unit::from_millis(100).unwrap();
    }
    settings
}

/// Installs all layouts side by side.
fn install(settings: &Settings) {
    let mut session = Session::open(&settings.broker).unwrap();
    for set in ["delay", "tenth"] {
        let settings = with_set(settings, set);
        admin::install(&settings, &Topology::new(settings.topology.clone()), false, || {}).unwrap();
    }
    let sink = Queue::new("sink").with_arguments(quorum());
    session.declare_queue(&sink).unwrap();
    // A fanout exchange matches no patterns: as good as straight.
    fanout(&mut session, "direct", "sink");
    for set in ["delay", "tenth"] {
        let key = RoutingKey::binding_pattern(&AppKey::new("bench").unwrap());
        bind(&mut session, &format!("{set}.dispatch"), Endpoint::Queue("sink".into()), &key);
    }
}

fn quorum() -> std::collections::BTreeMap<String, delayline_core::topology::Argument> {
    [("x-queue-type".to_owned(), "quorum".into())].into()
}

fn fanout(session: &mut Session, name: &str, queue: &str) {
    let exchange = Exchange::new(name, ExchangeKind::Fanout);
    session.declare_exchange(&exchange).unwrap();
    bind(session, name, Endpoint::Queue(queue.into()), "");
}

fn bind(session: &mut Session, source: &str, destination: Endpoint, key: &str) {
    session.bind(&Binding { source: source.into(), destination, key: key.into() }).unwrap();
}

fn message(delay: u64) -> Message {
    Message::after(AppKey::new("bench").unwrap(), Delay::from_seconds(delay).unwrap(), vec![b'x'; BODY])
}

fn publish(settings: &Settings, count: u32) -> f64 {
    let router = settings.router().connect().unwrap();
    let started = Instant::now();
    let mut pipeline = router.pipeline();
    let mut confirmed = 0;
    for _ in 0..count {
        confirmed += u32::from(pipeline.push((), message(1)).is_some_and(|outcome| outcome.result.is_ok()));
    }
    confirmed += u32::try_from(pipeline.filter(|outcome| outcome.result.is_ok()).count()).unwrap();
    assert_eq!(confirmed, count);
    f64::from(count) / started.elapsed().as_secs_f64()
}

fn one_by_one(settings: &Settings) -> f64 {
    let router = settings.router().connect().unwrap();
    let started = Instant::now();
    for _ in 0..ONE_BY_ONE {
        router.publish(message(1)).unwrap();
    }
    f64::from(ONE_BY_ONE) / started.elapsed().as_secs_f64()
}

/// Fills the first level queue of a delay, past the slow entry, and measures the
/// rate at which the messages come out at the end.
fn drain(settings: &Settings, delay: u64) -> f64 {
    let mut session = Session::open(&settings.broker).unwrap();
    let top = Delay::from_seconds(delay).unwrap().levels().next().unwrap();
    let fill = format!("fill-{delay}-tenth");
    fanout(&mut session, &fill, &format!("tenth.level.{top:02}"));
    let consumer = session.consume("sink", 1_000).unwrap();
    let router = with_set(settings, &fill).router().connect().unwrap();
    let mut pipeline = router.pipeline();
    for _ in 0..MESSAGES {
        pipeline.push((), message(delay));
    }
    assert!(pipeline.all(|outcome| outcome.result.is_ok()));
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
    f64::from(MESSAGES) / first.unwrap().elapsed().as_secs_f64()
}

/// Waits until everything has reached the sink, and empties it.
fn empty(settings: &Settings) {
    let mut session = Session::open(&settings.broker).unwrap();
    let consumer = session.consume("sink", 1_000).unwrap();
    while let Next::Delivery(delivery) = consumer.next(Duration::from_secs(3)) {
        consumer.ack(delivery).unwrap();
    }
}

/// The memory of this process while a million messages go through.
fn memory(settings: &Settings) {
    const MILLION: u32 = 1_000_000;
    let resident = || -> u64 {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap_or_default();
        line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).unwrap_or(0)
    };
    let before = resident();
    let started = Instant::now();
    let rate = publish(settings, MILLION);
    println!(
        "\n{MILLION} messages of {BODY} bytes in {:.0} s ({rate:.0}/s); most resident memory {:.1} MB, before {:.1} MB",
        started.elapsed().as_secs_f64(),
        resident() as f64 / 1024.0,
        before as f64 / 1024.0
    );
}
