//! A gateway, from the point of view of publishers and consumers of the delayed-message plugin.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use delayline_admin::{self as admin, Applied, DoctorOptions, Kept, Selection};
use delayline_amqp::{Consumer, Delivery, Next, Session};
use delayline_client::gateway::{Gateway, GatewayStats};
use delayline_core::{
    message::{Properties, Value, direct},
    topology::{Binding, Endpoint, Exchange, ExchangeKind, Queue},
};
use delayline_settings::Settings;
use jiff::Timestamp;
use serde_json::{Value as Json, json};

use crate::common::Counting;
use crate::common::{
    NO_SIGNAL, PATIENCE, app, daemon::Daemon, eventually, eventually_seen, install, installed, mortal_node,
    raw, revive, topology,
};

const NAME: &str = "orders.delayed";

fn add(settings: &Settings, kind: ExchangeKind) -> admin::GatewayAdded {
    admin::add_gateway(settings, &topology(settings), NAME, kind, false).unwrap().unwrap()
}

fn unroutable(settings: &Settings) -> u32 {
    let mut session = Session::open(&settings.broker).unwrap();
    session.counts("delay.unroutable").unwrap().map_or(0, |depth| depth.ready)
}

/// The service on its own thread.
struct Serving {
    stop: Arc<AtomicBool>,
    stats: Arc<GatewayStats>,
    thread: Option<JoinHandle<bool>>,
}

impl Serving {
    fn start(settings: &Settings) -> Self {
        let (stop, stats) = (Arc::new(AtomicBool::new(false)), Arc::new(GatewayStats::default()));
        let gateway = Gateway::new(settings.router(), NAME).unwrap().counting(Arc::clone(&stats));
        let told = Arc::clone(&stop);
        let thread = Some(thread::spawn(move || gateway.run(&told)));
        Self { stop, stats, thread }
    }

    fn stop(mut self) -> bool {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// An application's queue, bound in the same way as with the plugin.
struct Orders {
    consumer: Consumer,
    _session: Session,
}

impl Orders {
    fn open(settings: &Settings, key: &str) -> Self {
        let mut session = Session::open(&settings.broker).unwrap();
        let arguments = [("x-queue-type".to_owned(), "quorum".into())];
        session.declare_queue(&Queue::new("orders").with_arguments(arguments)).unwrap();
        let destination = Endpoint::Queue("orders".into());
        session.bind(&Binding { source: NAME.into(), destination, key: key.into() }).unwrap();
        let consumer = session.consume("orders", 1_000).unwrap();
        Self { consumer, _session: session }
    }

    fn next(&self) -> (i64, Delivery) {
        match self.consumer.next(PATIENCE) {
            Next::Delivery(delivery) => (Timestamp::now().as_millisecond(), delivery),
            other => panic!("nothing came: {other:?}"),
        }
    }
}

fn order(delay: impl Into<Json>, id: &str) -> Json {
    let headers = json!({ "x-delay": delay.into(), "mine": "kept" });
    let properties = json!({ "message_id": id, "headers": headers, "content_type": "text/plain" });
    raw::message("orders.delayed.in", &format!("order.{id}"), id, &properties)
}

#[test]
fn messages_leave_the_gateway_unchanged_and_never_early() {
    let settings = installed(1_000);
    let added = add(&settings, ExchangeKind::Topic);
    assert_eq!(added.outcome, Applied::Installed, "{added:?}");
    assert!(added.steps.iter().all(|step| !step.stood), "{added:?}");
    let orders = Orders::open(&settings, "order.#");
    let serving = Serving::start(&settings);
    let delays = [
        ("none", Json::Null, 0),
        ("zero", 0.into(), 0),
        ("past", (-5).into(), 0),
        ("short", 300.into(), 300),
        ("second", 1_000.into(), 1_000),
        // Long enough for a daemon that takes them some seconds later.
        ("long", 12_345.into(), 12_345),
        ("text", "11300".into(), 11_300),
    ];
    let before = Timestamp::now().as_millisecond();
    raw::publish(&settings, delays.iter().map(|(id, delay, _)| order(delay.clone(), id)));
    let mut due: HashMap<_, _> = delays.iter().map(|(id, _, after)| (*id, *after)).collect();
    while !due.is_empty() {
        let (at, delivery) = orders.next();
        let id = delivery.properties.message_id.clone().unwrap();
        let after = due.remove(id.as_str()).unwrap_or_else(|| panic!("{id} came twice"));
        assert!(at - before >= after, "{id} came after {} ms instead of {after}", at - before);
        assert_eq!(
            (delivery.exchange.as_str(), delivery.routing_key.as_str()),
            (NAME, &*format!("order.{id}"))
        );
        assert_eq!(delivery.body, id.as_bytes());
        assert_eq!(delivery.properties.content_type.as_deref(), Some("text/plain"));
        assert_eq!(delivery.headers["mine"], Value::from("kept"));
        let ours: Vec<_> =
            delivery.headers.keys().filter(|name| *name != "mine" && *name != "x-delay").collect();
        assert!(ours.is_empty(), "{id} has {ours:?} as well");
        if after > 0 {
            assert_eq!(delivery.headers["x-delay"].as_i64(), Some(-after), "{id}");
        }
        orders.consumer.ack(delivery).unwrap();
    }
    assert_eq!(unroutable(&settings), 0);
    let stats = Arc::clone(&serving.stats);
    assert!(serving.stop());
    let counts = stats.counts();
    assert_eq!((counts.taken, counts.delivered, counts.set_aside), (7, 7, 0));
    assert_eq!(counts.delayed, 2, "11.3 s and 12.345 s wait in the levels");
}

#[test]
fn messages_that_cannot_be_sent_on_are_unroutable_and_others_go_on() {
    let settings = installed(10);
    add(&settings, ExchangeKind::Direct);
    let orders = Orders::open(&settings, "order.good");
    let serving = Serving::start(&settings);
    // An invalid delay, a delay beyond the range, and unbound keys with and without a delay.
    let bad = [order("soon", "text"), order(i64::MAX, "never"), order(20, "lost"), order(0, "lost-too")];
    raw::publish(&settings, bad.into_iter().chain([order(50, "good")]));
    assert_eq!(orders.next().1.body, b"good");
    eventually("all other messages are unroutable", || unroutable(&settings) == 4);
    let counts = || serving.stats.counts();
    eventually_seen("all are counted", counts, |counts| (counts.taken, counts.set_aside) == (5, 4));
    assert!(serving.stop());
}

#[test]
fn messages_that_expired_without_a_daemon_are_still_delivered() {
    let settings = installed(10);
    add(&settings, ExchangeKind::Fanout);
    let orders = Orders::open(&settings, "");
    let properties = json!({ "message_id": "1", "expiration": "1", "headers": { "x-delay": 30 } });
    raw::publish(&settings, [raw::message("orders.delayed.in", "the.key", "expired", &properties)]);
    let mut session = Session::open(&settings.broker).unwrap();
    eventually("the message has left the queue of incoming messages", || {
        session.counts("delay.gateway-due.orders.delayed").unwrap().is_some_and(|depth| depth.ready == 1)
    });
    let serving = Serving::start(&settings);
    let (_, delivery) = orders.next();
    assert_eq!((delivery.routing_key.as_str(), delivery.body.as_slice()), ("the.key", &b"expired"[..]));
    assert!(serving.stop());
}

#[test]
fn adding_again_changes_nothing_and_removing_loses_nothing() {
    let settings = installed(10);
    let topology = topology(&settings);
    let mut session = Session::open(&settings.broker).unwrap();
    let plain = |name: &str, kind| Exchange::new(name, kind);
    session.declare_exchange(&plain(NAME, ExchangeKind::Headers)).unwrap();
    let refused = add(&settings, ExchangeKind::Topic);
    assert_eq!(refused.outcome, Applied::Conflict);
    assert!(refused.conflicts[0].contains("`type` should be topic, but is headers"), "{refused:?}");
    assert!(!session.exchange_exists("orders.delayed.in").unwrap(), "an exchange was created");
    assert_eq!(add(&settings, ExchangeKind::Headers).outcome, Applied::Installed);
    let again = add(&settings, ExchangeKind::Headers);
    assert_eq!(again.outcome, Applied::Unchanged);
    assert!(again.steps.iter().all(|step| step.stood), "{again:?}");
    assert!(admin::add_gateway(&settings, &topology, "a b", ExchangeKind::Topic, false).unwrap().is_err());

    let listed = || admin::list_gateways(&settings, &topology).unwrap().gateways.remove(0);
    let found = listed();
    assert_eq!(
        (found.gateway.as_str(), found.kind.as_deref(), found.channels),
        (NAME, Some("headers"), Some(0))
    );
    assert!(found.problems.iter().any(|problem| problem.contains("run `delayline serve`")), "{found:?}");
    session.delete_exchange("orders.delayed.in").unwrap();
    let broken = listed();
    assert!(broken.problems[0].contains("exchange `orders.delayed.in`"), "{broken:?}");
    add(&settings, ExchangeKind::Headers);

    let remove =
        |force| admin::remove_gateway(&settings, &topology, NAME, (force, false), &NO_SIGNAL).unwrap();
    raw::publish(&settings, [order(5_000, "waits")]);
    let refused = remove(false).unwrap_err();
    assert_eq!(
        (refused.waiting[0].queue.as_str(), refused.waiting[0].messages),
        ("delay.gateway.orders.delayed", Some(1))
    );
    assert!(session.exchange_exists("orders.delayed.in").unwrap());
    let removed = remove(true).unwrap();
    assert_eq!(removed.discarded[0].messages, Some(1));
    assert!(session.exchange_exists(NAME).unwrap(), "consumers are bound to it");
    assert!(admin::list_gateways(&settings, &topology).unwrap().gateways.is_empty());
    let report = admin::verify(&settings, &topology).unwrap();
    assert!(report.findings.is_empty(), "{report:?}");
}

#[test]
fn unroutable_messages_are_sent_on_once_a_queue_is_bound() {
    let settings = installed(10);
    let topology = topology(&settings);
    add(&settings, ExchangeKind::Topic);
    let serving = Serving::start(&settings);
    // The second message has passed the levels.
    raw::publish(&settings, [order(0, "now"), order(12_000, "later"), order("soon", "text")]);
    eventually("all messages are unroutable", || unroutable(&settings) == 3);
    assert_eq!(serving.stats.counts().delayed, 1);
    assert!(serving.stop());

    let report = Kept::Unroutable.list(&settings, &topology, 100, |_| {}).unwrap();
    let groups = report.groups.iter().map(|it| (it.cause.reason.as_str(), it.group.count, it.bound));
    assert_eq!(groups.collect::<Vec<_>>(), [("malformed", 1, None), ("nobody-bound", 2, Some(false))]);
    assert!(report.groups.iter().all(|it| it.cause.gateway.as_deref() == Some(NAME)), "{report:?}");
    assert!(report.groups[0].cause.detail.as_ref().unwrap().contains("`x-delay` is `soon`"), "{report:?}");
    let mut keys = Vec::new();
    let key = |it: admin::KeptMessage| keys.push(it.own_key.unwrap_or(it.sample.routing_key));
    Kept::Unroutable.messages(&settings, &topology, &Selection::default(), (10, 0), key).unwrap();
    keys.sort();
    assert_eq!(keys, ["order.later", "order.now", "order.text"]);
    let doctor = || admin::doctor(&settings, &topology, &DoctorOptions::default()).unwrap().findings;
    let found = doctor();
    let nobody = found.iter().find(|it| it.code.as_str() == "nobody-bound").expect("doctor finds it");
    assert_eq!(nobody.subject, format!("gateway `{NAME}`"));
    assert!(
        nobody.advice.contains("held replay --kind unroutable --app gateway.orders.delayed"),
        "{nobody:?}"
    );
    assert!(found.iter().any(|it| it.code.as_str() == "gateway-unbound"), "{found:?}");

    let replay = || {
        let (all, stop) = (Selection::default(), AtomicBool::new(false));
        let done = Kept::Unroutable.replay(&settings, &topology, &all, true, &stop, |_| {});
        done.unwrap().unwrap()
    };
    for _ in 0..2 {
        let report = replay();
        assert_eq!((report.drained.sent, report.hopeless), (0, 1), "{report:?}");
        assert_eq!(report.unbound, [("gateway.orders.delayed".to_owned(), 2)].into());
        eventually("the messages are back", || unroutable(&settings) == 3);
    }
    let orders = Orders::open(&settings, "order.#");
    let report = replay();
    assert_eq!((report.drained.sent, report.hopeless), (2, 1), "{report:?}");
    for _ in 0..2 {
        let (_, delivery) = orders.next();
        let id = delivery.properties.message_id.clone().unwrap();
        assert_eq!((&*delivery.exchange, &*delivery.routing_key), (NAME, &*format!("order.{id}")));
        assert_eq!(delivery.body, id.as_bytes());
        assert_eq!(delivery.headers["mine"], Value::from("kept"));
        let delay = if id == "later" { -12_000 } else { 0 };
        assert_eq!(delivery.headers["x-delay"].as_i64(), Some(delay), "{id}");
        assert!(!delivery.headers.contains_key("delayline-gateway"), "{delivery:?}");
        orders.consumer.ack(delivery).unwrap();
    }
    eventually("the malformed message stays", || unroutable(&settings) == 1);
}

#[test]
fn names_that_clash_are_refused_and_bindings_past_the_delay_are_found() {
    let settings = installed(10);
    let topology = topology(&settings);
    add(&settings, ExchangeKind::Fanout);
    let refused = |name: &str| {
        let kind = ExchangeKind::Fanout;
        let added = admin::add_gateway(&settings, &topology, name, kind, false).unwrap().unwrap();
        assert_eq!(added.outcome, Applied::Conflict, "{added:?}");
        added.conflicts.join(" ")
    };
    assert!(refused("amq.fanout").contains("`amq.`"));
    assert!(refused("orders.delayed.in").contains("there is a gateway `orders.delayed`"));
    admin::add_gateway(&settings, &topology, "y.in", ExchangeKind::Fanout, false).unwrap().unwrap();
    assert!(refused("y").contains("there is a gateway `y.in`"));
    let list = || admin::list_gateways(&settings, &topology).unwrap().gateways;
    assert_eq!(list().len(), 2, "a gateway was created");

    let _orders = Orders::open(&settings, "");
    let mut session = Session::open(&settings.broker).unwrap();
    let (source, destination) = (format!("{NAME}.in"), Endpoint::Queue("orders".into()));
    session.bind(&Binding { source, destination, key: String::new() }).unwrap();
    let found = list().remove(0);
    let problem = &found.problems[0];
    assert!(problem.contains("queue `orders` is bound to exchange `orders.delayed.in`"), "{found:?}");
    assert!(problem.contains("bind it to exchange `orders.delayed`"), "{found:?}");
}

/// A daemon that only serves gateways, which it finds automatically.
fn daemon(settings: &Settings) -> Daemon {
    Daemon::start(settings, &["--no-canary", "--no-web", "--no-retry"])
}

/// Two daemons that serve the gateway.
fn two_daemons(settings: &Settings) -> [Daemon; 2] {
    let daemons = [daemon(settings), daemon(settings)];
    for daemon in &daemons {
        eventually("the daemon serves the gateway", || daemon.log().matches("taking messages").count() == 2);
    }
    daemons
}

#[test]
fn a_killed_daemon_loses_nothing_and_the_other_goes_on() {
    const COUNT: i64 = 2_000;
    let settings = installed(1_000);
    add(&settings, ExchangeKind::Topic);
    let orders = Orders::open(&settings, "#");
    let mut daemons = two_daemons(&settings);
    let before = Timestamp::now().as_millisecond();
    let messages = (0..COUNT).map(|number| order(1 + number * 3, &number.to_string()));
    let publishing = {
        let (settings, messages) = (settings.clone(), messages.collect::<Vec<_>>());
        thread::spawn(move || raw::publish(&settings, messages))
    };
    let mut seen: HashMap<i64, u32> = HashMap::new();
    let mut take = |until: usize| {
        while seen.len() < until {
            let (at, delivery) = orders.next();
            let number: i64 = String::from_utf8(delivery.body.clone()).unwrap().parse().unwrap();
            assert!(at - before > number * 3, "{number} came after {} ms", at - before);
            *seen.entry(number).or_default() += 1;
            orders.consumer.ack(delivery).unwrap();
        }
    };
    take(300);
    daemons[0].kill();
    take(COUNT as usize);
    publishing.join().unwrap();
    let twice = seen.values().filter(|times| **times > 1).count();
    println!("a killed daemon: {twice} of {COUNT} came twice");
    assert!(daemons[1].log().contains("gateway orders.delayed: started"));
    assert_eq!(unroutable(&settings), 0);
}

/// The properties of the message with this number.
fn properties(number: u32) -> Properties {
    Properties {
        message_id: Some(number.to_string()),
        correlation_id: Some(format!("order-{number}")),
        content_type: Some("text/plain".into()),
        kind: Some("order".into()),
        ..Properties::default()
    }
}

/// The delay in milliseconds: up to six seconds, or up to twenty in the long form.
fn delay(number: u32) -> i64 {
    let longest = if messages() > MESSAGES { 20_000 } else { 6_000 };
    i64::from(1 + number.wrapping_mul(7_919) % longest)
}

/// The number of messages through a gateway whose daemon and node are killed.
const MESSAGES: u32 = 3_000;

/// The number of messages; the long form is `GATEWAY_MESSAGES=100000 scripts/test --test system
/// broker::gateway::a_killed_node`.
fn messages() -> u32 {
    std::env::var("GATEWAY_MESSAGES").map_or(MESSAGES, |text| text.parse().expect("a number of messages"))
}

/// Publishes about five hundred messages a second, whatever happens to the broker. Each body is the
/// due time.
fn publish(settings: &Settings, count: u32) {
    let router = settings.router().connect().unwrap();
    let mut pipeline = router.pipeline();
    let started = Instant::now();
    for number in 0..count {
        thread::sleep(
            (started + Duration::from_millis(2) * number).saturating_duration_since(Instant::now()),
        );
        let due = Timestamp::now().as_millisecond() + delay(number);
        let (entry, key) = (format!("{NAME}.in"), format!("order.{number}"));
        let message = direct::keyed(app("shop"), entry, key, due.to_string())
            .with_header("x-delay", delay(number))
            .with_header("mine", "kept")
            .with_properties(properties(number));
        assert!(pipeline.push((), message).is_none_or(|outcome| outcome.result.is_ok()));
    }
    assert!(pipeline.all(|outcome| outcome.result.is_ok()));
}

#[test]
fn of_large_messages_a_daemon_takes_fewer_at_a_time() {
    const COUNT: u32 = 20;
    const BODY: usize = 4 << 20;
    let settings = installed(1_000);
    add(&settings, ExchangeKind::Topic);
    let orders = Orders::open(&settings, "order.#");
    let daemon = daemon(&settings);
    let router = settings.router().connect().unwrap();
    for number in 0..COUNT {
        let (entry, key) = (format!("{NAME}.in"), format!("order.{number}"));
        let message = direct::keyed(app("shop"), entry, key, vec![b'x'; BODY]);
        router.publish(message.with_header("x-delay", 1 + i64::from(number) * 100)).unwrap();
    }
    let mut seen = HashSet::new();
    while seen.len() < COUNT as usize {
        let (_, delivery) = orders.next();
        assert_eq!(delivery.body.len(), BODY);
        seen.insert(delivery.routing_key.clone());
        orders.consumer.ack(delivery).unwrap();
    }
    // Once for each of the two queues, so that the messages held from each take at most 256 MiB.
    eventually("the log shows the limit", || daemon.log().matches(", 64 at a time").count() >= 2);
    assert_eq!(unroutable(&settings), 0);
}

#[test]
fn a_killed_node_and_a_killed_daemon_lose_nothing() {
    let count = messages();
    let mut node = mortal_node();
    // Longer than any start of the node.
    let settings = node.settings().set("publish_timeout", "1h").build().unwrap();
    install(&settings);
    add(&settings, ExchangeKind::Topic);
    let mut orders = Orders::open(&settings, "order.#");
    node.write_down_queues().unwrap();
    let mut daemons = two_daemons(&settings);
    let publishing = {
        let settings = settings.clone();
        thread::spawn(move || publish(&settings, count))
    };
    let mut seen: HashMap<u32, u32> = HashMap::new();
    let mut take = |orders: &Orders, until: usize| {
        while seen.len() < until {
            let (at, delivery) = orders.next();
            let number: u32 = delivery.properties.message_id.as_deref().unwrap().parse().unwrap();
            let due: i64 = String::from_utf8(delivery.body.clone()).unwrap().parse().unwrap();
            assert!(at >= due - 1, "{number} came {} ms early", due - at);
            assert_eq!((&*delivery.exchange, &*delivery.routing_key), (NAME, &*format!("order.{number}")));
            assert_eq!(delivery.properties, properties(number));
            assert_eq!(delivery.headers["mine"], Value::from("kept"));
            assert_eq!(delivery.headers["x-delay"].as_i64(), Some(-delay(number)), "{number}");
            *seen.entry(number).or_default() += 1;
            orders.consumer.ack(delivery).unwrap();
        }
    };
    // At random moments of the first two thirds.
    let kills = [0, 1].map(|third| fastrand::u32(count * third / 3 + 1..=count * (third + 1) / 3));
    println!("the daemon is killed after {} arrivals, the node after {}", kills[0], kills[1]);
    take(&orders, kills[0] as usize);
    daemons[0].kill();
    take(&orders, kills[1] as usize);
    node.kill();
    revive(&mut node);
    orders = Orders::open(&settings, "order.#");
    take(&orders, count as usize);
    publishing.join().unwrap();
    let twice = seen.values().filter(|times| **times > 1).count();
    println!("a killed node and a killed daemon: {twice} of {count} came twice");
    assert_eq!(unroutable(&settings), 0);
}
