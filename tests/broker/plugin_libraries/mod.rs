//! Libraries that were written for the delayed-message plugin, used with a gateway instead. Each
//! program publishes and consumes through its library.

use std::{
    collections::BTreeSet,
    process::{Command, Stdio},
};

use delayline_admin::{self as admin, Applied};
use delayline_amqp::Session;
use delayline_core::topology::{Binding, Endpoint, Exchange, ExchangeKind, Queue};
use delayline_settings::Settings;

use crate::common::Counting;
use crate::{
    common::{daemon::Daemon, eventually, installed, not_tested::not_tested, run_in_time, topology, url},
    for_teams::Receiver,
};

const PROGRAMS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/broker/plugin_libraries");

const NAME: &str = "orders.delayed";

/// Delays below and above the shortest that waits in the levels.
const DELAYS: [&str; 3] = ["300", "1500", "2400"];

/// A vhost with a gateway, and a daemon for it.
fn gateway(kind: ExchangeKind) -> (Settings, Daemon) {
    let settings = installed(1_000);
    let added = admin::add_gateway(&settings, &topology(&settings), NAME, kind, false).unwrap().unwrap();
    assert_eq!(added.outcome, Applied::Installed, "{added:?}");
    let daemon = Daemon::start(&settings, &["--no-canary", "--no-web", "--no-retry"]);
    (settings, daemon)
}

fn python(settings: &Settings, arguments: &[&str]) -> Command {
    let python = std::env::var("TEST_PYTHON").expect("TEST_PYTHON names a Python; scripts/test sets it");
    let mut command = Command::new(python);
    command.args(arguments).current_dir(PROGRAMS);
    command.env("PYTHONDONTWRITEBYTECODE", "1").env("AMQP_URL", url(settings));
    command
}

fn node(settings: &Settings, arguments: &[&str]) -> Command {
    let packages = std::env::var("TEST_NODE_PATH").expect("scripts/test sets TEST_NODE_PATH");
    let mut command = Command::new("node");
    command.args(arguments).current_dir(PROGRAMS);
    command.env("NODE_PATH", packages).env("AMQP_URL", url(settings));
    command
}

/// Whether a command finds the library that it loads.
fn found(mut command: Command) -> bool {
    command.stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

fn done(command: Command) {
    let output = run_in_time(command);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The name of a received message. The program prints it with the due time and the time of the
/// arrival.
fn next(receiver: &Receiver) -> String {
    let line = receiver.next();
    let mut words = line.split(' ');
    let name = words.next().unwrap().to_owned();
    let [due, came] = [(); 2].map(|()| words.next().and_then(|word| word.parse::<i64>().ok()).expect(&line));
    assert!(came >= due - 1, "{name} came {} ms early", due - came);
    name
}

/// Checks that each of these messages arrives once, and that no other message arrives.
fn come_once(receiver: &Receiver, names: &[&str]) {
    let mut missing: BTreeSet<_> = names.iter().map(|name| (*name).to_owned()).collect();
    while !missing.is_empty() {
        let name = next(receiver);
        assert!(missing.remove(&name), "{name} came once too often; {missing:?} did not");
    }
}

fn bind(session: &mut Session, exchange: &str) {
    let destination = Endpoint::Queue("orders".into());
    session.bind(&Binding { source: exchange.into(), destination, key: "orders".into() }).unwrap();
}

fn taskiq(settings: &Settings) -> bool {
    found(python(settings, &["-c", "import taskiq_aio_pika"]))
}

const WORKER: [&str; 8] =
    ["-m", "taskiq", "worker", "tasks:broker", "--workers", "1", "--log-level", "CRITICAL"];

#[test]
fn tasks_of_taskiq_come_once_and_not_early() {
    let (settings, _daemon) = gateway(ExchangeKind::Direct);
    if !taskiq(&settings) {
        return not_tested("taskiq-aio-pika is not available on this machine");
    }
    let mut session = Session::open(&settings.broker).unwrap();
    session.declare_exchange(&Exchange::new("taskiq", ExchangeKind::Topic)).unwrap();
    let arguments = [("x-queue-type".to_owned(), "quorum".into())];
    session.declare_queue(&Queue::new("orders").with_arguments(arguments)).unwrap();
    bind(&mut session, "taskiq");
    bind(&mut session, NAME);
    let mut worker = Receiver::start(python(&settings, &WORKER), 0);
    done(python(&settings, &[&["tasks.py"][..], &DELAYS].concat()));
    come_once(&worker, &["now", "300", "1500", "2400", "fails", "fails-again"]);
    done(python(&settings, &["tasks.py", "100"]));
    come_once(&worker, &["100"]);
    worker.stop();
}

/// The mistake that docs/how-to/come-from/plugin.md describes.
#[test]
fn tasks_of_taskiq_come_twice_if_it_binds_its_queue_to_the_gateway() {
    let (settings, _daemon) = gateway(ExchangeKind::Direct);
    if !taskiq(&settings) {
        return not_tested("taskiq-aio-pika is not available on this machine");
    }
    let declaring = |arguments: &[&str]| {
        let mut command = python(&settings, arguments);
        command.env("DECLARE", "yes");
        command
    };
    let mut worker = Receiver::start(declaring(&WORKER), 0);
    let mut session = Session::open(&settings.broker).unwrap();
    eventually("the worker's queue exists", || session.counts("orders").unwrap().is_some());
    bind(&mut session, NAME);
    done(declaring(&["tasks.py", "1500"]));
    let first = worker.next();
    let second = worker.next();
    assert!(first.starts_with("1500 ") && second.starts_with("1500 "), "{first}, {second}");
    worker.stop();
}

#[test]
fn orders_through_rascal_come_once_and_not_early() {
    let (settings, _daemon) = gateway(ExchangeKind::Topic);
    if !found(node(&settings, &["-e", "require('rascal')"])) {
        return not_tested("Rascal is not available on this machine");
    }
    let mut receiver = Receiver::start(node(&settings, &["orders.js", "receive"]), 0);
    assert_eq!(receiver.next(), "receiving");
    done(node(&settings, &[&["orders.js"][..], &DELAYS].concat()));
    come_once(&receiver, &["now", "later", "300", "1500", "2400"]);
    done(node(&settings, &["orders.js", "100"]));
    come_once(&receiver, &["100"]);
    receiver.stop();
}
