//! What pending recalls cost a broker, and how long after the answer to a bind they hold.
//!
//!     cargo bench --bench recalls                            10,000 and 50,000; some minutes
//!     cargo bench --bench recalls -- 10000 50000 100000      these numbers
//!     cargo bench --bench recalls -- margin                  only the second question
//!     RABBITMQ_ROOT=… cargo bench --bench recalls            for another version
//!
//! Messages have no delay here, so that the routing is all there is to measure.

// The bare client alone: a router would add its own.
#[path = "common/bare.rs"]
mod bare;

use std::{
    sync::atomic::AtomicBool,
    thread,
    time::{Duration, Instant},
};

use bare::Bare;
use delayline::{
    amqp::Session,
    codec::{AppKey, Delay, MessageId, RoutingKey},
    topology::{Binding, Names, RecallSettings, Topology},
};
use delayline_admin::{self as admin, AppQueue, AppSpec, Delivery, SweepOptions};
use delayline_measure::ledger::percentile;
use delayline_node::{ClusterOptions, NodeOptions, PrivateCluster, PrivateNode};
use delayline_settings::Settings;

const APP: &str = "billing";

/// Messages for one figure of the routing, and connections that bind.
const MESSAGES: u64 = 20_000;
const CONNECTIONS: usize = 4;

/// How often the margin is tried on each node, and for how long after each answer.
const TRIALS: usize = 100;
const AFTER: Duration = Duration::from_millis(100);

fn main() {
    // `cargo bench` and `cargo test` pass flags of their own.
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    let mut numbers: Vec<usize> = std::env::args().filter_map(|argument| argument.parse().ok()).collect();
    if numbers.is_empty() {
        numbers = vec![10_000, 50_000];
    }
    if !std::env::args().any(|argument| argument == "margin") {
        pending(&numbers);
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

fn pending(numbers: &[usize]) {
    let mut node = PrivateNode::start(NodeOptions::default()).expect("a private node");
    let settings = node.settings().build().expect("settings");
    println!("{}", conditions(&settings));
    let topology = ready(&settings);
    println!(
        "{:>8} {:>12} {:>10} {:>9} {:>16} {:>16} {:>10} {:>9}",
        "pending", "bound, /s", "memory", "start-up", "with an id", "without", "list", "doctor"
    );
    let mut empty = 0;
    let mut there = 0;
    for number in [0].iter().chain(numbers) {
        let rate = bind(&settings, there..*number);
        there = *number;
        let (plain, recallable) = (routing(&node, &settings, false), routing(&node, &settings, true));
        let started = restart(&mut node, &settings);
        let memory = settled_memory(&node);
        if *number == 0 {
            empty = memory;
        }
        let list = timed(|| {
            let options = SweepOptions::default().dry_run();
            let report = admin::sweep_recalls(&settings, &topology, &options, &AtomicBool::new(false));
            assert_eq!(report.expect("they are listed").recalls, there);
        });
        let doctor = timed(|| {
            admin::doctor(&settings, &topology, &admin::DoctorOptions::default()).expect("it looks");
        });
        let more = (memory.cast_signed() - empty.cast_signed()) / (1 << 20);
        println!(
            "{number:>8} {:>12} {:>7} MB {:>7.1} s {recallable:>10.0} us CPU {plain:>10.0} us CPU {list:>8.1} s {doctor:>7.1} s",
            rate.map_or_else(|| "-".into(), |rate| format!("{rate:.0}")),
            format!("{more:+}"),
            started.as_secs_f64(),
        );
    }
}

fn timed(work: impl FnOnce()) -> f64 {
    let began = Instant::now();
    work();
    began.elapsed().as_secs_f64()
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
    let collect = "[erlang:garbage_collect(P) || P <- erlang:processes()], ok.";
    node.ctl(&["eval", collect]).expect("rabbitmqctl");
    thread::sleep(Duration::from_secs(2));
    node.resident_memory().expect("it runs")
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
}

fn margin(what: &str, binds: &Settings, publishes: &Settings) {
    let names = Names::new(binds.topology.set.clone());
    let mut session = Session::open(&binds.broker).expect("a session");
    session.purge_queue(APP).expect("it is emptied");
    let (mut late, mut passed_in_all) = (Vec::new(), 0);
    for trial in 0..TRIALS {
        // Of the node's own connection: its channel routes there.
        let bare = Bare::open(publishes);
        let key = key(Delay::ZERO, &format!("trial-{trial}"));
        let binding = Binding::recalling(&names, &key);
        session.bind(&binding).expect("it is bound");
        let answered = Instant::now();
        let mut moments = Vec::new();
        while answered.elapsed() < AFTER {
            moments.push(answered.elapsed());
            bare.publish(1, 1, &names.recall(&app()), &key.encode(), 16);
        }
        bare.close();
        // Once it holds, it holds: those that passed are the first ones.
        let passed = session.purge_queue(APP).expect("they are counted") as usize;
        passed_in_all += usize::from(passed > 0);
        late.push(if passed == 0 {
            0
        } else {
            i64::try_from(moments[passed - 1].as_micros()).expect("a time")
        });
        session.unbind(&binding).expect("it is unbound");
    }
    late.sort_unstable();
    let at = |per_cent| percentile(&late, per_cent).unwrap_or(0) as f64 / 1_000.0;
    println!(
        "{what:24} {passed_in_all} of {TRIALS} times a message passed after the answer; the last one after {:.1} ms (p50), {:.1} ms (p99), {:.1} ms (most)",
        at(50.0),
        at(99.0),
        at(100.0)
    );
}
