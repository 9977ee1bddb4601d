//! The cost of pending recalls for a broker.
//!
//!     cargo bench -p delayline-bench --bench recalls                          10,000 and 50,000; some minutes
//!     cargo bench -p delayline-bench --bench recalls -- 10000 50000 100000    these numbers
//!     RABBITMQ_ROOT=… cargo bench -p delayline-bench --bench recalls          for another version
//!
//! Messages have no delay here, so that the routing is all there is to measure.

mod common;

use std::{
    process::Stdio,
    thread,
    time::{Duration, Instant},
};

use common::Lab;
use delayline_admin::{self as admin, AppQueue, AppSpec, Delivery};
use delayline_amqp::Session;
use delayline_bench::bare::{Address, Bare};
use delayline_core::{
    codec::{AppKey, Delay, MessageId, RoutingKey},
    topology::{Binding, Names, RecallSettings},
};
use delayline_node::{PrivateNode, usage::peak_bytes};
use delayline_settings::Settings;

const APP: &str = "billing";

/// Messages for one figure of the routing, and connections that bind.
const MESSAGES: u32 = 20_000;
const CONNECTIONS: usize = 4;

const MB: u64 = 1 << 20;

/// A command that reads bindings, and its arguments.
const READERS: [(&str, &[&str]); 4] = [
    ("sweep", &["scheduled", "sweep", "--dry-run"]),
    ("doctor", &["doctor"]),
    ("verify", &["verify"]),
    ("status", &["status"]),
];

fn main() {
    let Some(mut lab) = Lab::start() else { return };
    let mut numbers: Vec<usize> = std::env::args().filter_map(|argument| argument.parse().ok()).collect();
    if numbers.is_empty() {
        numbers = vec![10_000, 50_000];
    }
    let spec = AppSpec::new(app(), Delivery::Direct(AppQueue::new(APP)));
    let spec = AppSpec { recall: Some(RecallSettings::default()), ..spec };
    admin::add_app(&lab.settings, &lab.topology, &spec, false, false).expect("the application is added");
    println!(
        "{:>9} {:>9} {:>9} {:>9} {:>11} {:>11}   reading the bindings: time, our memory, more of the broker's",
        "pending", "bound, /s", "memory", "start-up", "with an id", "without"
    );
    let (mut empty, mut there) = (0, 0);
    for number in [0].into_iter().chain(numbers) {
        let rate = bind(&lab.settings, there..number);
        there = number;
        let [plain, recallable] = [false, true].map(|with_id| routing(&lab, with_id));
        let started = restart(&mut lab);
        thread::sleep(Duration::from_secs(5));
        let memory = resting_memory(&lab.node);
        if number == 0 {
            empty = memory;
        }
        let more = (memory.cast_signed() - empty.cast_signed()) / MB.cast_signed();
        let readers = READERS.map(|(name, arguments)| format!("{name} {}", reading(&lab, arguments)));
        println!(
            "{number:>9} {:>9} {more:>+6} MB {started:>7.1} s {recallable:>8.0} us {plain:>8.0} us   {}",
            rate.map_or_else(|| "-".into(), |rate| format!("{rate:.0}")),
            readers.join(", ")
        );
    }
}

fn app() -> AppKey {
    AppKey::new(APP).expect("an app key")
}

fn key(delay: Delay, id: &str) -> RoutingKey {
    RoutingKey::new(delay, app()).with_id(MessageId::new(id).expect("an id")).expect("a key")
}

/// Runs the command as people do: how long it took, the most memory that it had, and by how much
/// the broker's grew.
fn reading(lab: &Lab, arguments: &[&str]) -> String {
    let before = resting_memory(&lab.node);
    let mut command = lab.delayline(arguments);
    let began = Instant::now();
    let mut child = command.stdout(Stdio::null()).spawn().expect("the command can be run");
    let (mut ours, mut its) = (0, before);
    let status = loop {
        ours = ours.max(peak_bytes(child.id()).unwrap_or(0));
        its = its.max(lab.node.resident_memory().expect("it runs"));
        match child.try_wait().expect("it ends") {
            Some(status) => break status,
            None => thread::sleep(Duration::from_millis(2)),
        }
    };
    assert!(status.code().is_some_and(|code| code < 2), "{arguments:?}: {status}");
    let seconds = began.elapsed().as_secs_f64();
    format!("{seconds:.1} s {} MB {:+} MB", ours / MB, (its - before) / MB)
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
fn routing(lab: &Lab, with_id: bool) -> f64 {
    let key = match with_id {
        true => key(Delay::ZERO, "x"),
        false => RoutingKey::new(Delay::ZERO, app()),
    };
    let to = Address::new("delay", key.encode());
    let publish = |count| {
        let mut bare = Bare::open(&lab.settings, 500).unwrap();
        (0..count).for_each(|_| bare.publish(&to, &[b'x'; 256]).unwrap());
        bare.close().unwrap();
    };
    publish(1_000);
    let before = lab.node.cpu_seconds().expect("it runs");
    publish(MESSAGES);
    let used = lab.node.cpu_seconds().expect("it runs") - before;
    Session::open(&lab.settings.broker).expect("a session").purge_queue(APP).expect("it is emptied");
    used * 1e6 / f64::from(MESSAGES)
}

/// Stops the node in order and starts it; how many seconds until the set takes messages again.
fn restart(lab: &mut Lab) -> f64 {
    lab.node.stop().expect("it stops");
    let began = Instant::now();
    lab.node.restart().expect("it starts");
    while Session::open(&lab.settings.broker).and_then(|mut session| session.queue_depth(APP)).is_err() {
        thread::sleep(Duration::from_millis(50));
    }
    began.elapsed().as_secs_f64()
}

/// The memory of the node without its garbage.
fn resting_memory(node: &PrivateNode) -> u64 {
    let collect = "[erlang:garbage_collect(P) || P <- erlang:processes()], ok.";
    node.ctl(&["eval", collect]).expect("rabbitmqctl");
    thread::sleep(Duration::from_secs(2));
    node.resident_memory().expect("it runs")
}
