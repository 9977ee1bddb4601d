//! A gateway for `x-delay`, by daemons of their own: how many messages a second one takes in,
//! how late they are at 1,000 a second, and what becomes of them when one of two daemons is
//! killed.
//!
//!     cargo bench --bench gateway                   # 20,000 messages through two daemons
//!     COUNT=100000 cargo bench --bench gateway
//!     RATE=300 cargo bench --bench gateway          # lateness at 300 a second
//!
//! Beside the lateness stands how long the same messages take without a delay, published at the
//! same rate to the exchange behind the gateway: what broker and machine take by themselves.

use std::{
    fs,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use delayline_admin::{self as admin, management::ManagementApi};
use delayline_amqp::{Consumer, Next, Session};
use delayline_core::{
    Message,
    codec::AppKey,
    message::Value,
    topology::{Binding, Endpoint, ExchangeKind, Queue, Topology},
};
use delayline_measure::ledger::percentile;
use delayline_node::{NodeOptions, PrivateNode};
use delayline_settings::Settings;
use jiff::Timestamp;

const NAME: &str = "bench.delayed";
const BODY: usize = 256;

/// How many messages one daemon finds waiting.
const BACKLOG: u32 = 30_000;

/// For how long messages are published at a steady rate, in s.
const STEADY: u32 = 30;

/// The longest delay, in ms.
const LONGEST: u32 = 20_000;

fn main() {
    // `cargo test` passes this.
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    let number = |name: &str, default: u32| -> u32 {
        std::env::var(name)
            .map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is no number")))
    };
    let (count, rate) = (number("COUNT", 20_000), number("RATE", 1_000));
    let node = PrivateNode::start(NodeOptions::default()).expect("a private node");
    let settings = node.settings().build().unwrap();
    let topology = Topology::new(settings.topology.clone());
    let cores = thread::available_parallelism().map_or(0, usize::from);
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let api = ManagementApi::new(settings.management.as_ref().unwrap()).unwrap();
    println!("RabbitMQ {} on one private node, over loopback", api.overview().unwrap().rabbitmq_version);
    println!("{cores} cores shared by broker, daemons and this program; load before: {}", load.trim());
    admin::install(&settings, &topology, false, || {}).unwrap();
    let added = admin::add_gateway(&settings, &topology, NAME, ExchangeKind::Topic, false);
    added.unwrap().unwrap();
    let mut session = Session::open(&settings.broker).unwrap();
    let arguments = [("x-queue-type".to_owned(), "quorum".into())];
    session.declare_queue(&Queue::new("out").with_arguments(arguments)).unwrap();
    let destination = Endpoint::Queue("out".into());
    session.bind(&Binding { source: NAME.into(), destination, key: "#".into() }).unwrap();
    let consumer = session.consume("out", 2_000).unwrap();
    let entry = format!("{NAME}.in");
    let start = || Daemon::start(&settings, &node.management_url());

    // No daemon runs: all wait for it. The delay is so long that nothing comes back meanwhile.
    publish(&settings, &entry, BACKLOG, None, |_| 3_600_000);
    let one = start();
    let mut depth = || session.queue_depth(&format!("delay.gateway.{NAME}")).unwrap().unwrap().ready;
    while depth() > BACKLOG - 1_000 {
        thread::sleep(Duration::from_millis(5));
    }
    let (began, first) = (Instant::now(), depth());
    while depth() > 0 {
        thread::sleep(Duration::from_millis(5));
    }
    let taken_in = f64::from(first) / began.elapsed().as_secs_f64();
    println!("one daemon takes in {taken_in:.0}/s, of {BACKLOG} messages of {BODY} bytes that waited for it");

    let steady = STEADY * rate;
    let delay = |id: u32| 1 + id.wrapping_mul(7_919) % LONGEST;
    let at_once = thread::scope(|scope| {
        scope.spawn(|| publish(&settings, NAME, steady, Some(rate), |_| 0));
        collect(&consumer, steady)
    });
    println!("{rate}/s for {STEADY} s without a delay, past the gateway: {}", at_once.text());
    let arrivals = thread::scope(|scope| {
        scope.spawn(|| publish(&settings, &entry, steady, Some(rate), delay));
        collect(&consumer, steady)
    });
    println!("{rate}/s for {STEADY} s, delays of 1 ms to {} s: {}", LONGEST / 1_000, arrivals.text());

    let two = start();
    let arrivals = thread::scope(|scope| {
        scope.spawn(move || {
            thread::sleep(Duration::from_secs(10));
            drop(two);
        });
        scope.spawn(|| publish(&settings, &entry, count, Some(2_500), delay));
        collect(&consumer, count)
    });
    println!("{count} at up to 2,500/s through two daemons, one killed after 10 s: {}", arrivals.text());
    drop(one);
}

/// Publishes, at this many a second at most. Each message says when it is due.
fn publish(
    settings: &Settings,
    exchange: &str,
    count: u32,
    rate: Option<u32>,
    delay_ms: impl Fn(u32) -> u32,
) {
    let router = settings.router().connect().unwrap();
    let mut pipeline = router.pipeline();
    let app = AppKey::new("bench").unwrap();
    let started = Instant::now();
    for id in 0..count {
        if let Some(rate) = rate {
            let at = started + Duration::from_secs(1) * id / rate;
            thread::sleep(at.saturating_duration_since(Instant::now()));
        }
        let delay = delay_ms(id);
        let mut message = Message::keyed(app.clone(), exchange.into(), "key".into(), vec![b'x'; BODY]);
        let due = Timestamp::now().as_millisecond() + i64::from(delay);
        message.headers.insert("x-delay".into(), Value::I64(delay.into()));
        message.headers.insert("truly-due".into(), Value::I64(due));
        message.properties.message_id = Some(id.to_string());
        if let Some(outcome) = pipeline.push((), message) {
            outcome.result.unwrap();
        }
    }
    assert!(pipeline.all(|outcome| outcome.result.is_ok()));
}

struct Arrivals {
    missing: u32,
    twice: u32,
    late: Vec<i64>,
}

impl Arrivals {
    fn text(&self) -> String {
        let at = |per_cent| percentile(&self.late, per_cent).unwrap_or(0);
        format!(
            "{} missing, {} twice, {} early by more than 1 ms; late by p50 {} ms, p99 {} ms, max {} ms",
            self.missing,
            self.twice,
            self.late.iter().filter(|late| **late < -1).count(),
            at(50.0),
            at(99.0),
            at(100.0)
        )
    }
}

fn collect(consumer: &Consumer, count: u32) -> Arrivals {
    let mut seen = vec![false; count as usize];
    let mut arrivals = Arrivals { missing: count, twice: 0, late: Vec::new() };
    while arrivals.missing > 0 {
        let Next::Delivery(delivery) = consumer.next(Duration::from_secs(120)) else { break };
        let now = Timestamp::now().as_millisecond();
        let id: usize = delivery.properties.message_id.as_deref().unwrap().parse().unwrap();
        let due = delivery.headers["truly-due"].as_i64().unwrap();
        consumer.ack(delivery).unwrap();
        if std::mem::replace(&mut seen[id], true) {
            arrivals.twice += 1;
            continue;
        }
        arrivals.missing -= 1;
        arrivals.late.push(now - due);
    }
    arrivals.late.sort_unstable();
    arrivals
}

struct Daemon(Child, #[expect(dead_code, reason = "deleted with it")] tempfile::TempDir);

impl Daemon {
    fn start(settings: &Settings, management: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_delayline"))
            .args(["serve", "--no-canary", "--no-web"])
            .current_dir(directory.path())
            .env("DELAYLINE_URL", format!("amqp://guest:guest@127.0.0.1:{}", settings.broker.port))
            .env("DELAYLINE_MANAGEMENT_URL", management)
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self(child, directory)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
