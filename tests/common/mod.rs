//! Shared code of the tests that need a broker. Every test starts or shares a node that this
//! process started.

// Each test binary uses only a part of this.
#![allow(dead_code, unreachable_pub, unused_imports)]

pub mod counting;
pub mod daemon;
pub mod foreign;
pub mod keeping;
pub mod management;
pub(crate) mod not_tested;
pub mod raw;
pub mod schemas;
mod sets;
pub mod shared;
pub mod vhosts;

use std::{
    process::{Command, Output},
    sync::atomic::AtomicBool,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use delayline_admin::{self as admin, Applied};
use delayline_amqp::{Consumer, Event, Next, Publisher, Session, broker::Broker};
use delayline_core::{
    codec::{AppKey, RoutingKey},
    ledger::percentile,
    message::{Headers, Properties, Value},
    percent,
    topology::{Binding, Endpoint, Names, Queue, Topology},
};
use delayline_node::PrivateNode;
use delayline_settings::{Layers, Settings};
use delayline_watch::picture::{Collector, Picture, Sources};
use jiff::Timestamp;
use serde_json::{Value as Json, json};

pub use counting::{Counting, Counts, restart_queue, stop_queue, suspended};
pub use sets::{installed, new_set};
pub use shared::{disturbed_node, mortal_node, revive, shared_node};
pub use vhosts::{named_vhost, vhost_on};

/// A new vhost on the shared node, as layers of settings to add to.
pub fn vhost() -> Layers {
    vhost_on(&shared_node())
}

pub fn topology(settings: &Settings) -> Topology {
    Topology::new(settings.topology.clone())
}

pub fn install(settings: &Settings) {
    let report = admin::install(&patient(settings), &topology(settings), false, || {}).unwrap();
    assert_eq!(report.outcome, Applied::Installed, "{report:?}");
}

/// The same settings with the usual heartbeat. Some tests set a short one, to notice a dead broker
/// within two seconds. It would cut off a busy broker, too.
fn patient(settings: &Settings) -> Settings {
    let mut patient = settings.clone();
    patient.broker.heartbeat = Broker::HEARTBEAT;
    patient
}

/// The picture that `delayline status` shows.
pub fn status(settings: &Settings) -> Picture {
    Collector::new(settings.clone(), Sources { apps: true, ..Sources::default() }).look().clone()
}

/// `guest:guest`
const GUEST: &str = "Basic Z3Vlc3Q6Z3Vlc3Q=";

/// A request to the management API of a node, as `guest`. If the broker fails to answer, which a busy one
/// sometimes does, a request that can be repeated is repeated.
pub fn http(node: &PrivateNode, method: &str, path: &str, body: &Json) -> Json {
    let agent: ureq::Agent = ureq::Agent::config_builder().allow_non_standard_methods(true).build().into();
    let ask = || {
        let request = ureq::http::Request::builder()
            .method(method)
            .uri(format!("{}/api/{path}", node.management_url()))
            .header("authorization", GUEST)
            .header("content-type", "application/json")
            .body(body.to_string())
            .unwrap();
        agent.run(request)
    };
    // RabbitMQ closes the connection of a request that takes a minute.
    let failed = |answer: &Result<_, ureq::Error>| match answer {
        Err(ureq::Error::StatusCode(status)) => *status >= 500,
        Err(ureq::Error::Io(error)) => error.kind() == std::io::ErrorKind::UnexpectedEof,
        _ => false,
    };
    let answer = eventually_seen(path, ask, |answer| method == "POST" || !failed(answer));
    let mut response = answer.unwrap_or_else(|error| panic!("{method} {path}: {error}"));
    let text = response.body_mut().read_to_string().unwrap();
    serde_json::from_str(&text).unwrap_or(Json::Null)
}

/// Creates a user of the shared node, whose password is the user's name, with permissions in a
/// vhost: configure, write and read.
pub fn permit(vhost: &str, user: &str, [configure, write, read]: [&str; 3]) {
    let node = &shared_node();
    http(node, "PUT", &format!("users/{user}"), &json!({ "password": user, "tags": "" }));
    let permissions = json!({ "configure": configure, "write": write, "read": read });
    http(node, "PUT", &format!("permissions/{vhost}/{user}"), &permissions);
}

/// The same settings for such a user.
pub fn as_user(settings: &Settings, user: &str) -> Settings {
    let broker = &settings.broker;
    let url = format!("amqp://{user}:{user}@{}:{}/{}", broker.host, broker.port, broker.vhost);
    let mut theirs = settings.clone();
    theirs.broker = Settings::from_url(&url).unwrap().broker.with_connect_timeout(broker.connect_timeout);
    theirs
}

/// The URL of the vhost for `guest`, for other processes.
pub fn url(settings: &Settings) -> String {
    let broker = &settings.broker;
    format!("amqp://guest:guest@127.0.0.1:{}/{}", broker.port, percent::encode(&broker.vhost))
}

pub fn app(key: &str) -> AppKey {
    AppKey::new(key).unwrap()
}

/// Creates and binds a queue for an application. The queue is named after the app key, and refuses
/// every message.
pub fn refusing(settings: &Settings, key: &str) {
    let mut session = Session::open(&settings.broker).unwrap();
    let arguments = [
        ("x-queue-type".to_owned(), "quorum".into()),
        ("x-max-length".to_owned(), 1.into()),
        ("x-overflow".to_owned(), "reject-publish".into()),
    ];
    session.declare_queue(&Queue::new(key).with_arguments(arguments)).unwrap();
    let (source, destination) = (topology(settings).names().dispatch(), Endpoint::Queue(key.into()));
    session.bind(&Binding { source, destination, key: RoutingKey::binding_pattern(&app(key)) }).unwrap();
    fill(settings, key);
}

/// Fills a queue until it refuses messages.
///
/// A quorum queue exceeds its limit until it has told the publisher that it is full. The excess
/// depends on the load of the broker. After the first refusal, it refuses the next publisher at
/// once.
pub fn fill(settings: &Settings, queue: &str) {
    let mut publisher = Publisher::open(&settings.broker).unwrap();
    for number in 0.. {
        assert!(number < 10_000, "`{queue}` refuses nothing");
        publisher.publish("", queue.to_owned(), Properties::default(), Headers::default(), b"fills");
        match publisher.next_within(PATIENCE).unwrap() {
            Event::Ack { .. } => {}
            Event::Nack { .. } => break,
            other => panic!("{other:?}"),
        }
    }
    publisher.close(PATIENCE);
}

/// A header of each type, including lists and tables of them all.
pub fn all_headers() -> Headers {
    let values = [
        Value::Bool(true),
        Value::I8(-8),
        Value::U8(200),
        Value::I16(-16_000),
        Value::U16(60_000),
        Value::I32(-1),
        Value::U32(4_000_000_000),
        Value::I64(i64::MIN),
        Value::F32(1.5),
        Value::F64(-2.25),
        Value::F64(-0.0),
        Value::Decimal { scale: 2, value: 1_234 },
        Value::Text("käse\u{0}😀".into()),
        Value::Bytes(vec![0, 0xff, 7]),
        Value::Timestamp(1_700_000_000),
        Value::Void,
    ];
    let mut headers: Headers =
        values.iter().enumerate().map(|(index, value)| (format!("h{index:02}"), value.clone())).collect();
    headers.insert("array".into(), Value::Array(values.to_vec()));
    headers.insert("table".into(), Value::Table(headers.clone()));
    headers
}

/// A durable application queue, bound to the dispatch exchange.
pub struct Inbox {
    settings: Settings,
    queue: String,
    consumer: Consumer,
    // The session is dropped last, because that closes the connection.
    _session: Session,
}

/// A message that an inbox received.
#[derive(Debug, Clone)]
pub struct Arrival {
    pub id: String,
    pub at: Timestamp,
    pub routing_key: String,
    pub body: Vec<u8>,
    pub properties: Properties,
    pub headers: Headers,
}

impl Arrival {
    /// The lateness in milliseconds; negative if the message was early.
    pub fn late_ms(&self) -> i64 {
        let due = self.headers.get("delayline-due").and_then(Value::as_i64).expect("a due time");
        self.at.as_millisecond() - due
    }
}

impl Inbox {
    pub fn open(settings: &Settings, key: &str) -> Self {
        let settings = patient(settings);
        let mut session = Session::open(&settings.broker).unwrap();
        let queue = format!("in.{key}");
        session
            .declare_queue(
                &Queue::new(queue.clone()).with_arguments([("x-queue-type".to_owned(), "quorum".into())]),
            )
            .unwrap();
        session
            .bind(&Binding {
                source: Names::new(settings.topology.set.clone()).dispatch(),
                destination: Endpoint::Queue(queue.clone()),
                key: RoutingKey::binding_pattern(&app(key)),
            })
            .unwrap();
        let consumer = session.consume(&queue, 1_000).unwrap();
        Self { settings, queue, consumer, _session: session }
    }

    /// Consumes again after the connection was lost.
    pub fn reopen(&mut self) {
        let mut session = Session::open(&self.settings.broker).unwrap();
        self.consumer = session.consume(&self.queue, 1_000).unwrap();
        self._session = session;
    }

    /// The next message, if one arrives in time.
    pub fn next(&self, patience: Duration) -> Option<Arrival> {
        match self.consumer.next(patience) {
            Next::Delivery(delivery) => {
                let arrival = Arrival {
                    id: delivery.properties.message_id.clone().unwrap_or_default(),
                    at: Timestamp::now(),
                    routing_key: delivery.routing_key.clone(),
                    body: delivery.body.clone(),
                    properties: delivery.properties.clone(),
                    headers: delivery.headers.clone(),
                };
                self.consumer.ack(delivery).unwrap();
                Some(arrival)
            }
            Next::Timeout => None,
            Next::Ended(cause) => panic!("the consumer ended: {cause:?}"),
        }
    }

    /// Collects on a separate thread, so that each arrival is timed when it happens and not when
    /// the test reads it.
    pub fn collecting(self, count: usize, patience: Duration) -> JoinHandle<Vec<Arrival>> {
        thread::spawn(move || self.collect(count, patience))
    }

    /// Collects `count` messages, sends a last one, and returns everything that arrived before it.
    /// If a message came twice, the copy is usually among them. One message can overtake another on
    /// its way, so the last one is sent after all others have arrived.
    pub fn exactly(&self, count: usize, send_the_last: impl FnOnce(&'static str)) -> Vec<Arrival> {
        let mut arrivals = self.collect(count, PATIENCE);
        send_the_last("the last");
        arrivals.extend(self.until("the last"));
        arrivals
    }

    /// Messages before the first one with this body. The test put that message directly into the
    /// inbox's queue behind all others, so nothing arrives after it. The result does not contain
    /// it.
    pub fn until(&self, marker: &str) -> Vec<Arrival> {
        let mut arrivals = Vec::new();
        loop {
            let arrival = self.next(PATIENCE).unwrap_or_else(|| panic!("no `{marker}` after {arrivals:?}"));
            if arrival.body == marker.as_bytes() {
                return arrivals;
            }
            arrivals.push(arrival);
        }
    }

    /// Messages until there are `count`, or until none has arrived for `patience`.
    pub fn collect(&self, count: usize, patience: Duration) -> Vec<Arrival> {
        let mut arrivals = Vec::new();
        while arrivals.len() < count {
            match self.next(patience) {
                Some(arrival) => arrivals.push(arrival),
                None => break,
            }
        }
        arrivals
    }
}

/// Median, 99th percentile and maximum of the lateness.
pub fn lateness(arrivals: &[Arrival]) -> String {
    let mut late: Vec<_> = arrivals.iter().map(Arrival::late_ms).collect();
    late.sort_unstable();
    let at = |per_cent| percentile(&late, per_cent).unwrap_or(0);
    format!("{} messages late by p50 {} ms, p99 {} ms, max {} ms", late.len(), at(50.0), at(99.0), at(100.0))
}

/// The output and the exit code of a program. A program that never ends is killed, such as one
/// whose library has lost a confirm.
///
/// # Panics
/// If it does not end in time.
pub fn run_in_time(command: Command) -> Output {
    let output = assert_cmd::Command::from_std(command).timeout(PATIENCE).output().unwrap();
    assert!(output.status.code().is_some(), "it did not end within {PATIENCE:?}: {output:?}");
    output
}

/// The signal flag for a removal that no signal interrupts.
pub static NO_SIGNAL: AtomicBool = AtomicBool::new(false);

/// How long the tests wait for a required event: far longer than it takes on any machine, because a
/// slow machine does not make the code wrong.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// Waits until a condition is true.
pub fn eventually(what: &str, check: impl FnMut() -> bool) {
    eventually_seen(what, check, |&so| so);
}

/// The same for what may pass within a moment: it looks again at once.
pub fn caught(what: &str, mut check: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !check() {
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Looks until the result is right. If it never is, the panic shows the last result.
pub fn eventually_seen<T: std::fmt::Debug>(
    what: &str,
    mut look: impl FnMut() -> T,
    right: impl Fn(&T) -> bool,
) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let looked = Instant::now();
        let seen = look();
        if right(&seen) {
            return seen;
        }
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}; at last: {seen:?}");
        // If a look is expensive, the next one comes later: the broker and other tests need the
        // time.
        thread::sleep((looked.elapsed() * 6).clamp(Duration::from_millis(250), Duration::from_secs(5)));
    }
}
