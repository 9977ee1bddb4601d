//! How an application that does not take its messages affects the other applications.

use delayline_admin::{self as admin, DoctorOptions, FindingCode};
use delayline_amqp::Session;
use delayline_core::{
    Message,
    codec::{Delay, RoutingKey},
    topology::{Argument, Binding, Endpoint, Exchange, ExchangeKind, Queue},
};
use delayline_node::{NodeOptions, PrivateNode};
use delayline_settings::Settings;

use crate::common::Counting;
use crate::common::{
    Inbox, PATIENCE, app, eventually, eventually_seen, install, installed, lateness, status, topology,
};

fn queue(session: &mut Session, name: &str, more: &[(&str, Argument)]) {
    let quorum = [("x-queue-type", "quorum".into())];
    let arguments = quorum.iter().chain(more).map(|(name, value)| ((*name).to_owned(), value.clone()));
    session.declare_queue(&Queue::new(name).with_arguments(arguments)).unwrap();
}

/// A queue that refuses all messages after the first.
fn small(session: &mut Session, name: &str) {
    queue(session, name, &[("x-max-length", 1.into()), ("x-overflow", "reject-publish".into())]);
}

fn binding(key: &str, destination: Endpoint) -> Binding {
    let key = RoutingKey::binding_pattern(&app(key));
    Binding { source: "delay.dispatch".into(), destination, key }
}

fn send(settings: &Settings, key: &str, count: usize, units: u64) {
    let router = settings.router().connect().unwrap();
    let mut pipeline = router.pipeline();
    let delay = Delay::from_seconds(units).unwrap();
    for _ in 0..count {
        let outcome = pipeline.push((), Message::after(app(key), delay, "x"));
        assert!(outcome.is_none_or(|outcome| outcome.result.is_ok()));
    }
    assert!(pipeline.all(|outcome| outcome.result.is_ok()));
}

#[test]
fn ten_thousand_refused_behind_a_landing_queue_delay_no_application() {
    let settings = installed(100);
    let topology = topology(&settings);
    let mut session = Session::open(&settings.broker).unwrap();
    small(&mut session, "full");
    let landing = topology.landing_queue(&app("greedy"), "", Some("full"));
    session.declare_queue(&landing).unwrap();
    session.bind(&binding("greedy", Endpoint::Queue(landing.name.clone()))).unwrap();
    let inbox = Inbox::open(&settings, "app");
    // These messages pass all of the lower levels, before and after the other messages fall due.
    send(&settings, "greedy", 10_000, 16);
    for units in 1..=50 {
        send(&settings, "app", 1, units);
    }
    let arrivals = inbox.collect(50, PATIENCE);
    println!("beside 10,000 refused behind a landing queue: {}", lateness(&arrivals));
    assert_eq!(arrivals.len(), 50);
    assert!(arrivals.iter().all(|arrival| arrival.late_ms() >= 0));

    // All messages are behind the dispatch exchange, and no level holds any.
    let kept = || {
        let queues = delayline_broker::ManagementApi::new(settings.management.as_ref().unwrap())
            .unwrap()
            .queues(&settings.broker.vhost)
            .unwrap();
        let of = |name: &str| {
            queues.iter().find(|queue| queue.name == name).and_then(|queue| queue.messages).unwrap_or(0)
        };
        let levels: u64 = (0..28).map(|level| of(&format!("delay.level.{level:02}"))).sum();
        (of(&landing.name) + of("full"), levels)
    };
    eventually_seen("all messages are behind the dispatch exchange", kept, |&kept| kept == (10_000, 0));
    eventually_seen(
        "the landing queue is stuck",
        || status(&settings),
        |seen| {
            let landing = seen.landings.iter().flatten().find(|it| it.queue == landing.name);
            landing.is_some_and(|it| it.stuck > 0 && it.stuck_since.is_some())
                && seen.verdict.headline.starts_with("Queue `delay.landing.greedy` is stuck")
        },
    );
}

#[test]
fn a_level_that_is_stalled_flows_again_when_doctors_advice_is_followed() {
    // By default, the broker tries again every 3 minutes.
    let node = PrivateNode::start(NodeOptions {
        rabbit: vec!["{dead_letter_worker_publisher_confirm_timeout, 2000}".into()],
        ..NodeOptions::default()
    })
    .unwrap();
    let settings = node.settings().build().unwrap();
    install(&settings);
    let mut session = Session::open(&settings.broker).unwrap();
    let inbox = Inbox::open(&settings, "app");
    let stalled = |settings: &Settings| {
        send(settings, "app", 1, 1);
        // A message that bypasses level 0 arrives, although it is due much later. A message in
        // level 0 does not arrive.
        let past = Message::after(app("app"), Delay::from_seconds(4).unwrap(), "past it");
        settings.router().connect().unwrap().publish(past).unwrap();
        assert_eq!(inbox.next(PATIENCE).unwrap().body, b"past it", "level 0 is not stalled");
    };
    let flows = || assert!(inbox.next(PATIENCE).is_some(), "level 0 is stalled");
    let unroutable = |session: &mut Session| session.counts("delay.unroutable").unwrap().unwrap().ready;
    send(&settings, "app", 1, 1);
    flows();

    // A full queue that refuses messages: after unbinding it, its messages become unroutable.
    small(&mut session, "full");
    let greedy = binding("greedy", Endpoint::Queue("full".into()));
    session.bind(&greedy).unwrap();
    send(&settings, "greedy", 100, 1);
    stalled(&settings);
    let look = || admin::doctor(&settings, &topology(&settings), &DoctorOptions::default()).unwrap();
    let report = eventually_seen("doctor finds the stuck level", look, |report| {
        report.findings.iter().any(|finding| finding.code == FindingCode::StuckDeadLetters)
    });
    assert_eq!(report.findings[0].apps, ["greedy"], "{report:#?}");
    session.unbind(&greedy).unwrap();
    flows();
    let full = session.counts("full").unwrap().unwrap().ready;
    eventually("the remaining messages are unroutable", || unroutable(&mut session) >= 100 - full);

    // The same, but the queue gets a consumer.
    session.delete_queue("full").unwrap();
    small(&mut session, "full");
    session.bind(&greedy).unwrap();
    send(&settings, "greedy", 100, 1);
    stalled(&settings);
    let mut other = Session::open(&settings.broker).unwrap();
    let consumer = other.consume("full", 100).unwrap();
    let mut consumed = 0;
    while consumed < 100 {
        match consumer.next(PATIENCE) {
            delayline_amqp::Next::Delivery(delivery) => consumer.ack(delivery).unwrap(),
            other => panic!("after {consumed}: {other:?}"),
        }
        consumed += 1;
    }
    flows();
    drop((consumer, other));

    // An exchange without a queue: after binding a queue to it, the messages are delivered.
    let void = Exchange::new("void", ExchangeKind::Topic);
    session.declare_exchange(&void).unwrap();
    session.bind(&binding("lost", Endpoint::Exchange("void".into()))).unwrap();
    send(&settings, "lost", 100, 1);
    stalled(&settings);
    queue(&mut session, "found", &[]);
    let destination = Endpoint::Queue("found".into());
    session.bind(&Binding { source: "void".into(), destination, key: "#".into() }).unwrap();
    flows();
    eventually("all messages were delivered", || session.counts("found").unwrap().unwrap().ready >= 100);
}
