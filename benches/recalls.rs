//! What pending recalls cost a broker, and how long after the answer to a bind they hold.
//!
//!     cargo bench --bench recalls                            10,000 and 50,000; some minutes
//!     cargo bench --bench recalls -- 10000 50000 100000      these numbers
//!     cargo bench --bench recalls -- 100000 noted            each with the note of a sweep at last
//!     cargo bench --bench recalls -- margin                  only the second question
//!     RABBITMQ_ROOT=… cargo bench --bench recalls            for another version
//!
//! Messages have no delay here, so that the routing is all there is to measure.

// The bare client alone: a router would add its own.
#[path = "common/bare.rs"]
mod bare;

use std::{
    process::{Command, Stdio},
    sync::atomic::AtomicBool,
    thread,
    time::{Duration, Instant},
};

use bare::Bare;
use delayline_admin::{self as admin, AppQueue, AppSpec, Delivery, SweepOptions};
use delayline_amqp::Session;
use delayline_core::{
    codec::{AppKey, Delay, MessageId, RoutingKey},
    topology::{Binding, Names, RecallSettings, Topology},
};
use delayline_measure::ledger::percentile;
use delayline_node::{ClusterOptions, NodeOptions, PrivateCluster, PrivateNode, usage::peak_bytes};
use delayline_settings::Settings;

const APP: &str = "billing";

/// Messages for one figure of the routing, and connections that bind.
const MESSAGES: u64 = 20_000;
const CONNECTIONS: usize = 4;

/// How often the margin is tried on each node, and for how long after each answer.
const TRIALS: usize = 100;
const AFTER: Duration = Duration::from_millis(100);

/// How often a node of a cluster is stopped while another one binds, and for how long.
const STOPS: usize = 30;
const STOPPED: Duration = Duration::from_millis(1_000);

const MB: u64 = 1 << 20;

/// What reads bindings: what it is called here, and how it is run.
const READERS: [(&str, &[&str]); 4] = [
    ("sweep", &["recall", "--sweep", "--dry-run"]),
    ("doctor", &["doctor"]),
    ("verify", &["verify"]),
    ("status", &["status"]),
];

fn main() {
    // `cargo bench` and `cargo test` pass flags of their own.
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    let mut numbers: Vec<usize> = std::env::args().filter_map(|argument| argument.parse().ok()).collect();
    if numbers.is_empty() {
        numbers = vec![10_000, 50_000];
    }
    let asked = |word: &str| std::env::args().any(|argument| argument == word);
    if !asked("margin") {
        pending(&numbers, asked("noted"));
    }
    margins();
}

fn conditions(settings: &Settings) -> String {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or_default().to_owned();
    let processors = thread::available_parallelism().map_or(0, usize::from);
    let management = settings.management.as_ref().expect("a management API");
    let version = admin::management::ManagementApi::new(management).and_then(|api| api.overview());
    let version = version.map(|it| it.rabbitmq_version).unwrap_or_default();
    format!(
        "RabbitMQ {version}, {processors} processors, load {load} while it began, client on the same machine"
    )
}

fn app() -> AppKey {
    AppKey::new(APP).expect("an app key")
}

fn key(delay: Delay, id: &str) -> RoutingKey {
    RoutingKey::new(delay, app()).with_id(MessageId::new(id).expect("an id")).expect("a key")
}

/// A set with an application whose messages can be recalled.
fn ready(settings: &Settings) -> Topology {
    let topology = Topology::new(settings.topology.clone());
    admin::install(settings, &topology, false, || {}).expect("the set is installed");
    let spec = AppSpec::new(app(), Delivery::Direct(AppQueue::new(APP)));
    let spec = AppSpec { recall: Some(RecallSettings::default()), ..spec };
    admin::add_app(settings, &topology, &spec, false, false).expect("the application is added");
    topology
}

fn pending(numbers: &[usize], noted: bool) {
    let mut node = PrivateNode::start(NodeOptions::default()).expect("a private node");
    let settings = node.settings().build().expect("settings");
    println!("{}", conditions(&settings));
    let topology = ready(&settings);
    println!(
        "{:>13} {:>9} {:>9} {:>9} {:>11} {:>11}   reading the bindings: time, our memory, more of the broker's",
        "pending", "bound, /s", "memory", "start-up", "with an id", "without"
    );
    let (mut empty, mut there) = (0, 0);
    let last = noted.then(|| numbers.last().copied()).flatten();
    let steps =
        [0].iter().chain(numbers).map(|number| (*number, false)).chain(last.map(|number| (number, true)));
    for (number, noted) in steps {
        let rate = match noted {
            true => Some(note(&settings, &topology, number)),
            false => bind(&settings, there..number),
        };
        there = number;
        let (plain, recallable) = (routing(&node, &settings, false), routing(&node, &settings, true));
        let started = restart(&mut node, &settings);
        let memory = settled_memory(&node);
        if number == 0 {
            empty = memory;
        }
        let more = (memory.cast_signed() - empty.cast_signed()) / MB.cast_signed();
        let readers = READERS.map(|(name, arguments)| {
            let read = reading(&node, arguments);
            let [ours, its] = [read.ours, read.its].map(|bytes| bytes / MB);
            format!("{name} {:.1} s {ours} MB {its:+} MB", read.seconds)
        });
        println!(
            "{:>13} {:>9} {:>6} MB {:>7.1} s {recallable:>8.0} us {plain:>8.0} us   {}",
            format!("{number}{}", if noted { " noted" } else { "" }),
            rate.map_or_else(|| "-".into(), |rate| format!("{rate:.0}")),
            format!("{more:+}"),
            started.as_secs_f64(),
            readers.join(", ")
        );
    }
}

/// What reading all bindings took.
struct Read {
    seconds: f64,
    /// The most memory that the command had, in bytes.
    ours: u64,
    /// The most that the broker had meanwhile, more than before.
    its: u64,
}

/// Runs the command as people do.
fn reading(node: &PrivateNode, arguments: &[&str]) -> Read {
    collect_garbage(node);
    let before = node.resident_memory().expect("it runs");
    let began = Instant::now();
    let mut child = Command::new(env!("CARGO_BIN_EXE_delayline"))
        .args(arguments)
        .env("DELAYLINE_URL", node.url())
        .env("DELAYLINE_PASSWORD", "guest")
        .env("DELAYLINE_MANAGEMENT_URL", node.management_url())
        .current_dir(std::env::temp_dir())
        .stdout(Stdio::null())
        .spawn()
        .expect("the command can be run");
    let (mut ours, mut its) = (0, before);
    let status = loop {
        ours = ours.max(peak_bytes(child.id()).unwrap_or(0));
        its = its.max(node.resident_memory().expect("it runs"));
        match child.try_wait().expect("it ends") {
            Some(status) => break status,
            None => thread::sleep(Duration::from_millis(2)),
        }
    };
    assert!(status.code().is_some_and(|code| code < 2), "{arguments:?}: {status}");
    Read { seconds: began.elapsed().as_secs_f64(), ours, its: its - before }
}

/// Lets a sweep note when each recall can go. Returns how many a second.
fn note(settings: &Settings, topology: &Topology, count: usize) -> f64 {
    let mut options = SweepOptions::default();
    options.per_second = u32::MAX;
    let began = Instant::now();
    let report = admin::sweep_recalls(settings, topology, &options, &AtomicBool::new(false));
    assert_eq!(report.expect("they are noted").noted, count);
    count as f64 / began.elapsed().as_secs_f64()
}

/// Recalls messages with these numbers. Returns how many a second.
fn bind(settings: &Settings, numbers: std::ops::Range<usize>) -> Option<f64> {
    let count = numbers.len();
    let began = Instant::now();
    thread::scope(|scope| {
        for part in 0..CONNECTIONS {
            let numbers = numbers.clone();
            scope.spawn(move || {
                let names = Names::new(settings.topology.set.clone());
                let delay = Delay::from_seconds(10_000_000).expect("a delay");
                let mut session = Session::open(&settings.broker).expect("a session");
                for number in numbers.skip(part).step_by(CONNECTIONS) {
                    let key = key(delay, &format!("order-{number}"));
                    session.bind(&Binding::recalling(&names, &key)).expect("it is bound");
                }
            });
        }
    });
    (count > 0).then(|| count as f64 / began.elapsed().as_secs_f64())
}

/// CPU time of the broker in us for one message to the application, with an id or without.
fn routing(node: &PrivateNode, settings: &Settings, with_id: bool) -> f64 {
    let key = match with_id {
        true => key(Delay::ZERO, "x").encode(),
        false => RoutingKey::new(Delay::ZERO, app()).encode(),
    };
    let bare = Bare::open(settings);
    bare.publish(1_000, 500, "delay", &key, 256);
    bare.close();
    let bare = Bare::open(settings);
    let before = node.cpu_seconds().expect("it runs");
    bare.publish(MESSAGES, 500, "delay", &key, 256);
    let used = node.cpu_seconds().expect("it runs") - before;
    bare.close();
    Session::open(&settings.broker).expect("a session").purge_queue(APP).expect("it is emptied");
    used * 1_000_000.0 / MESSAGES as f64
}

/// Stops the node in order and starts it; how long until the set takes messages again.
fn restart(node: &mut PrivateNode, settings: &Settings) -> Duration {
    node.stop().expect("it stops");
    let began = Instant::now();
    node.restart().expect("it starts");
    while Session::open(&settings.broker).and_then(|mut session| session.queue_depth(APP)).is_err() {
        thread::sleep(Duration::from_millis(50));
    }
    began.elapsed()
}

/// The memory of a node some seconds after its start.
fn settled_memory(node: &PrivateNode) -> u64 {
    thread::sleep(Duration::from_secs(5));
    collect_garbage(node);
    node.resident_memory().expect("it runs")
}

fn collect_garbage(node: &PrivateNode) {
    let collect = "[erlang:garbage_collect(P) || P <- erlang:processes()], ok.";
    node.ctl(&["eval", collect]).expect("rabbitmqctl");
    thread::sleep(Duration::from_secs(2));
}

/// How long after the answer to a bind, which node 0 gave, a message still passes on each node.
fn margins() {
    let node = PrivateNode::start(NodeOptions::default()).expect("a private node");
    let settings = node.settings().build().expect("settings");
    println!("\nFrom the answer until a recall holds: {}", conditions(&settings));
    ready(&settings);
    margin("one node", &settings, &settings);
    drop(node);
    let options = ClusterOptions { size: 3, separable: false, node: NodeOptions::default() };
    let cluster = PrivateCluster::start(&options).expect("a private cluster");
    let settings: Vec<_> = (0..3).map(|node| cluster.settings(node).build().expect("settings")).collect();
    ready(&settings[0]);
    for (number, publisher) in settings.iter().enumerate() {
        let what =
            if number == 0 { "three nodes, same node".into() } else { format!("three nodes, node {number}") };
        margin(&what, &settings[0], publisher);
    }
    lagging(&cluster, &settings);
}

/// Publishes a message to be recalled, again and again for a while, and counts those that pass
/// all the same: how long after `since` the last of them was sent, in us; 0 if none passed.
fn passing(session: &mut Session, bare: &Bare, key: &RoutingKey, exchange: &str, since: Instant) -> i64 {
    let mut moments = Vec::new();
    let began = Instant::now();
    while began.elapsed() < AFTER {
        moments.push(since.elapsed());
        bare.publish(1, 1, exchange, &key.encode(), 16);
    }
    // Once it holds, it holds: those that passed are the first ones.
    let passed = session.purge_queue(APP).expect("they are counted") as usize;
    passed.checked_sub(1).map_or(0, |last| i64::try_from(moments[last].as_micros()).expect("a time").max(1))
}

/// The late ones, in words.
fn summary(mut late: Vec<i64>) -> String {
    late.sort_unstable();
    let at = |per_cent| percentile(&late, per_cent).unwrap_or(0) as f64 / 1_000.0;
    format!(
        "{} of {} times a message passed; the last one after {:.1} ms (p50), {:.1} ms (p99), {:.1} ms (most)",
        late.iter().filter(|late| **late > 0).count(),
        late.len(),
        at(50.0),
        at(99.0),
        at(100.0)
    )
}

fn margin(what: &str, binds: &Settings, publishes: &Settings) {
    let names = Names::new(binds.topology.set.clone());
    let mut session = Session::open(&binds.broker).expect("a session");
    session.purge_queue(APP).expect("it is emptied");
    let late = (0..TRIALS).map(|trial| {
        // Of the node's own connection: its channel routes there.
        let bare = Bare::open(publishes);
        let key = key(Delay::ZERO, &format!("trial-{trial}"));
        let binding = Binding::recalling(&names, &key);
        session.bind(&binding).expect("it is bound");
        let late = passing(&mut session, &bare, &key, &names.recall(&app()), Instant::now());
        bare.close();
        session.unbind(&binding).expect("it is unbound");
        late
    });
    println!("{what:24} {}", summary(late.collect()));
}

/// The same for a node that stood still while another one bound: from the answer, or from when
/// it went on if that was later.
fn lagging(cluster: &PrivateCluster, settings: &[Settings]) {
    const LAST: usize = 2;
    let names = Names::new(settings[0].topology.set.clone());
    let mut session = Session::open(&settings[0].broker).expect("a session");
    session.purge_queue(APP).expect("it is emptied");
    let mut answered = 0;
    let late: Vec<_> = (0..STOPS)
        .map(|trial| {
            let bare = Bare::open(&settings[LAST]);
            let key = key(Delay::ZERO, &format!("stop-{trial}"));
            let binding = Binding::recalling(&names, &key);
            let node = &cluster.nodes()[LAST];
            node.pause();
            let since = thread::scope(|scope| {
                let bound = scope.spawn(|| {
                    session.bind(&binding).expect("it is bound");
                    Instant::now()
                });
                thread::sleep(STOPPED);
                answered += usize::from(bound.is_finished());
                node.resume();
                let resumed = Instant::now();
                bound.join().expect("it is bound").max(resumed)
            });
            let late = passing(&mut session, &bare, &key, &names.recall(&app()), since);
            bare.close();
            session.unbind(&binding).expect("it is unbound");
            late
        })
        .collect();
    println!(
        "three nodes, node {LAST} stood for {} s: the bind was answered meanwhile {answered} of {STOPS} times; {}",
        STOPPED.as_secs_f64(),
        summary(late)
    );
}
