//! How late one application's messages are while another one does its worst, on a
//! node of its own.
//!
//!     cargo bench --bench isolation           about five minutes
//!     cargo bench --bench isolation -- '10,000 at once'     only what has this in its name
//!     scripts/isolation                       on each RabbitMQ at hand
//!
//! One application gets a message every 25 ms, each delayed by 0.8 to 1.5 s over one to
//! four levels.
//! Beside it, messages of another application fall due: for nobody, for a queue that
//! is consumed, for a full queue that refuses, and for one of those behind a landing
//! queue. What counts is how late the first application's messages are, compared
//! with how late they are alone.

use std::{
    fs,
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use delayline_admin::{self as admin, management::ManagementApi};
use delayline_amqp::{Next, Session};
use delayline_core::{
    Message,
    codec::{AppKey, Delay},
    message::Value,
    topology::{Binding, Endpoint, Queue, Topology, Unit},
};
use delayline_measure::ledger::percentile;
use delayline_node::{NodeOptions, PrivateNode};
use delayline_settings::Settings;
use jiff::{SignedDuration, Timestamp};

/// How long publishing may take before the first message falls due.
const AHEAD: SignedDuration = SignedDuration::from_secs(10);

/// How often the application that is watched gets a message.
const EVERY: Duration = Duration::from_millis(25);

/// How long it is watched from when the first of the others falls due, if they do so
/// together.
const TOGETHER: Duration = Duration::from_secs(8);

/// Over how long the others fall due if they do not.
const SPREAD: Duration = Duration::from_secs(30);

/// How long the next message is waited for.
const PATIENCE: Duration = Duration::from_secs(15);

/// What the messages of the other application meet.
#[derive(Clone, Copy)]
enum Fate {
    Nobody,
    Consumed,
    Refused,
    RefusedBehindLanding,
}

struct Scenario {
    title: &'static str,
    count: u32,
    fate: Fate,
    over: Duration,
}

const fn scenario(title: &'static str, count: u32, fate: Fate, over: Duration) -> Scenario {
    Scenario { title, count, fate, over }
}

const SCENARIOS: [Scenario; 12] = [
    scenario("alone, 8 s", 0, Fate::Nobody, Duration::ZERO),
    scenario("alone, 30 s", 0, Fate::Nobody, SPREAD),
    scenario("200 at once, for nobody", 200, Fate::Nobody, Duration::ZERO),
    scenario("200 at once, consumed", 200, Fate::Consumed, Duration::ZERO),
    scenario("200 at once, refused behind a landing queue", 200, Fate::RefusedBehindLanding, Duration::ZERO),
    scenario("200 at once, refused, no landing queue", 200, Fate::Refused, Duration::ZERO),
    scenario("10,000 over 30 s, for nobody", 10_000, Fate::Nobody, SPREAD),
    scenario("10,000 over 30 s, consumed", 10_000, Fate::Consumed, SPREAD),
    scenario("10,000 over 30 s, refused behind landing", 10_000, Fate::RefusedBehindLanding, SPREAD),
    scenario("10,000 at once, for nobody", 10_000, Fate::Nobody, Duration::ZERO),
    scenario("10,000 at once, consumed", 10_000, Fate::Consumed, Duration::ZERO),
    scenario("10,000 at once, refused behind landing", 10_000, Fate::RefusedBehindLanding, Duration::ZERO),
];

fn main() {
    // `cargo test` passes this.
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    let node = PrivateNode::start(NodeOptions::default()).expect("a private node");
    let mut settings = node.settings().build().unwrap();
    settings.topology.unit = Unit::from_millis(100).unwrap();
    conditions(&settings);
    println!(
        "\nMessages of one application, one every 25 ms, while those of another one fall due; late by, in ms:"
    );
    println!("  {:46} {:>6} {:>6} {:>6} {:>12}", "the other one's", "p50", "p99", "max", "arrived");
    // `cargo bench` passes flags of its own.
    let wanted = std::env::args().skip(1).find(|argument| !argument.starts_with('-')).unwrap_or_default();
    for scenario in SCENARIOS.iter().filter(|scenario| scenario.title.contains(&wanted)) {
        let topology = Topology::new(settings.topology.clone());
        admin::install(&settings, &topology, false, || {}).unwrap();
        run(&settings, &topology, scenario);
        let mut session = Session::open(&settings.broker).unwrap();
        for queue in ["watched", "other", &topology.names().landing(&app("other"))] {
            session.delete_queue(queue).unwrap();
        }
        admin::uninstall(&settings, &topology, true).unwrap().unwrap();
    }
}

fn conditions(settings: &Settings) {
    let cores = thread::available_parallelism().map_or(0, usize::from);
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let api = ManagementApi::new(settings.management.as_ref().unwrap()).unwrap();
    println!("RabbitMQ {} on one private node, over loopback", api.overview().unwrap().rabbitmq_version);
    println!("{cores} cores shared by broker and client; load before: {}", load.trim());
}

fn app(key: &str) -> AppKey {
    AppKey::new(key).unwrap()
}

/// Declares a quorum queue, with a limit that refuses if that is wanted.
fn queue(session: &mut Session, name: &str, refuses: bool) {
    let mut arguments: Vec<(String, delayline_core::topology::Argument)> =
        vec![("x-queue-type".into(), "quorum".into())];
    if refuses {
        arguments.extend([("x-max-length".into(), 1.into()), ("x-overflow".into(), "reject-publish".into())]);
    }
    let queue = Queue::new(name).with_arguments(arguments);
    session.declare_queue(&queue).unwrap();
}

fn receive(session: &mut Session, topology: &Topology, key: &str, queue: &str) {
    let binding = Binding {
        source: topology.names().dispatch(),
        destination: Endpoint::Queue(queue.into()),
        key: delayline_core::codec::RoutingKey::binding_pattern(&app(key)),
    };
    session.bind(&binding).unwrap();
}

fn run(settings: &Settings, topology: &Topology, scenario: &Scenario) {
    let mut session = Session::open(&settings.broker).unwrap();
    queue(&mut session, "watched", false);
    receive(&mut session, topology, "watched", "watched");
    let refuses = matches!(scenario.fate, Fate::Refused | Fate::RefusedBehindLanding);
    queue(&mut session, "other", refuses);
    match scenario.fate {
        Fate::Nobody => {}
        Fate::Consumed | Fate::Refused => receive(&mut session, topology, "other", "other"),
        Fate::RefusedBehindLanding => {
            let landing = topology.landing_queue(&app("other"), "", Some("other"));
            session.declare_queue(&landing).unwrap();
            receive(&mut session, topology, "other", &landing.name);
        }
    }
    let window = if scenario.over.is_zero() { TOGETHER } else { scenario.over };
    let first = Timestamp::now() + AHEAD;
    publish_others(settings, scenario, first);
    let ready = Timestamp::now();
    assert!(ready < first, "publishing took longer than {AHEAD}; this machine is too slow for these figures");

    let (over, sent) = (AtomicBool::new(false), OnceLock::new());
    let late = thread::scope(|scope| {
        if matches!(scenario.fate, Fate::Consumed) {
            scope.spawn(|| consume_others(settings, &over));
        }
        let arrivals = scope.spawn(|| watch(settings, &sent));
        sent.set(publish_watched(settings, first, window)).unwrap();
        let late = arrivals.join().unwrap();
        over.store(true, Ordering::Relaxed);
        late
    });
    let sent = sent.into_inner().unwrap();
    report(scenario.title, sent, late);
}

/// Messages of the other application, that fall due from `first` on.
fn publish_others(settings: &Settings, scenario: &Scenario, first: Timestamp) {
    let router = settings.router().connect().unwrap();
    let mut pipeline = router.pipeline();
    for number in 0..scenario.count {
        let at = first + SignedDuration::try_from(scenario.over * number / scenario.count).unwrap();
        if let Some(outcome) = pipeline.push((), Message::at(app("other"), at, vec![b'x'; 256])) {
            outcome.result.unwrap();
        }
    }
    assert!(pipeline.all(|outcome| outcome.result.is_ok()));
}

/// Messages of the application that is watched, that fall due from `first` on.
fn publish_watched(settings: &Settings, first: Timestamp, window: Duration) -> u32 {
    let router = settings.router().connect().unwrap();
    let begin = first - SignedDuration::from_secs(1);
    let wait = Duration::try_from(begin.duration_since(Timestamp::now())).unwrap_or_default();
    thread::sleep(wait);
    let started = Instant::now();
    let mut sent = 0;
    let mut pipeline = router.pipeline();
    while started.elapsed() < window {
        // All ways through the lower levels: one that is stalled holds up half of them.
        let delay = Delay::from_seconds(8 + u64::from(sent % 8)).unwrap();
        if let Some(outcome) = pipeline.push((), Message::after(app("watched"), delay, vec![b'x'; 256])) {
            outcome.result.unwrap();
        }
        sent += 1;
        thread::sleep((EVERY * sent).saturating_sub(started.elapsed()));
    }
    assert!(pipeline.all(|outcome| outcome.result.is_ok()));
    sent
}

fn consume_others(settings: &Settings, over: &AtomicBool) {
    let mut session = Session::open(&settings.broker).unwrap();
    let consumer = session.consume("other", 1_000).unwrap();
    while !over.load(Ordering::Relaxed) {
        if let Next::Delivery(delivery) = consumer.next(Duration::from_millis(100)) {
            consumer.ack(delivery).unwrap();
        }
    }
}

/// How late each was, in ms; until all have come that were sent, or no more do.
fn watch(settings: &Settings, sent: &OnceLock<u32>) -> Vec<i64> {
    let mut session = Session::open(&settings.broker).unwrap();
    let consumer = session.consume("watched", 1_000).unwrap();
    let mut late = Vec::new();
    let mut last = Instant::now();
    let enough = |late: &[i64], last: Instant| {
        sent.get().is_some_and(|&sent| late.len() == sent as usize || last.elapsed() > PATIENCE)
    };
    while !enough(&late, last) {
        if let Next::Delivery(delivery) = consumer.next(Duration::from_millis(100)) {
            last = Instant::now();
            let due = delivery.headers.get("delayline-due").and_then(Value::as_i64).unwrap();
            late.push(Timestamp::now().as_millisecond() - due);
            consumer.ack(delivery).unwrap();
        }
    }
    late
}

fn report(title: &str, sent: u32, mut late: Vec<i64>) {
    late.sort_unstable();
    let at = |per_cent| percentile(&late, per_cent).map_or_else(|| "-".to_owned(), |ms| ms.to_string());
    let arrived = format!("{} of {sent}", late.len());
    println!("  {title:46} {:>6} {:>6} {:>6} {arrived:>12}", at(50.0), at(99.0), at(100.0));
}
