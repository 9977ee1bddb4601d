//! Messages that stop a level or all levels: how they are found, and how the documented commands
//! free them.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use delayline_admin::{
    self as admin, AppQueue, AppSpec, Applied, Delivery, DoctorOptions, Finding, FindingCode, Target,
};
use delayline_amqp::{Event, Publisher, Session};
use delayline_broker::ManagementApi;
use delayline_core::{
    message::{Headers, Properties, Value},
    topology::{Binding, Endpoint, Exchange, ExchangeKind, Queue},
};
use delayline_node::{NodeOptions, PrivateNode};
use delayline_settings::Settings;
use serde_json::json;

use super::{eval, has_ended, pattern, stuck_keys};
use crate::common::Counting;
use crate::{
    common::{self, Arrival, Inbox, PATIENCE, app, eventually, eventually_seen, raw, topology},
    tenant::{key, mend},
    unstick::anew,
};

fn start() -> (PrivateNode, Settings) {
    let node = PrivateNode::start(NodeOptions::default()).unwrap();
    let settings = common::named_vhost(&node, "shared").set("unit_ms", "100").build().unwrap();
    common::install(&settings);
    (node, settings)
}

fn findings(settings: &Settings, code: FindingCode) -> Vec<Finding> {
    let report = admin::doctor(settings, &topology(settings), &DoctorOptions::default()).unwrap();
    report.findings.into_iter().filter(|finding| finding.code == code).collect()
}

/// Sends a message through each of the three lowest levels.
fn send(settings: &Settings, whose: &str) {
    let messages = [1, 2, 4].map(|units| raw::message("delay", &key(units, whose), "good", &json!({})));
    raw::publish(settings, messages);
}

/// Publishes a message with exactly these headers.
fn publish(settings: &Settings, key: &str, headers: &Headers) {
    let mut publisher = Publisher::open(&settings.broker).unwrap();
    publisher.publish("delay", key.to_owned(), Properties::default(), headers.clone(), b"special");
    assert!(matches!(publisher.next_within(PATIENCE).unwrap(), Event::Ack { .. }));
    publisher.close(PATIENCE);
}

/// Binds a stream behind two exchanges, and a stream directly.
fn bind_streams(settings: &Settings) -> [Binding; 2] {
    let mut session = Session::open(&settings.broker).unwrap();
    for stream in ["log", "archive"] {
        let kind = [("x-queue-type".to_owned(), "stream".into())];
        session.declare_queue(&Queue::new(stream).with_arguments(kind)).unwrap();
    }
    for exchange in ["events", "audit"] {
        session.declare_exchange(&Exchange::new(exchange, ExchangeKind::Topic)).unwrap();
    }
    let binding = |source: &str, destination: Endpoint, key: &str| Binding {
        source: source.into(),
        destination,
        key: key.into(),
    };
    for inner in [
        binding("events", Endpoint::Exchange("audit".into()), "#.mail"),
        binding("audit", Endpoint::Queue("archive".into()), "#"),
    ] {
        session.bind(&inner).unwrap();
    }
    let to_dispatch = [
        binding("delay.dispatch", Endpoint::Queue("log".into()), &pattern("billing")),
        binding("delay.dispatch", Endpoint::Exchange("events".into()), &pattern("mail")),
    ];
    for binding in &to_dispatch {
        session.bind(binding).unwrap();
    }
    to_dispatch
}

#[test]
fn a_stream_that_due_messages_reach_is_refused_reported_and_named_when_it_has_ended_everything() {
    let (node, settings) = start();
    let topology = topology(&settings);
    let orders = Inbox::open(&settings, "orders");
    if !is_old(&settings) {
        let billing = Inbox::open(&settings, "billing");
        let first = delivered(&settings, &billing);
        again(&settings, &first);
        assert_eq!(billing.collect(40, PATIENCE).len(), 40);
        drop(billing);
        Session::open(&settings.broker).unwrap().delete_queue("in.billing").unwrap();
    }
    let bindings = bind_streams(&settings);

    // `app add` refuses to bind a stream.
    let existing = |name: &str| AppQueue { existing: true, ..AppQueue::new(name) };
    let exchange = |name: &str| Target::Exchange { exchange: name.into(), key: None, queue: None };
    for delivery in [
        Delivery::Direct(existing("log")),
        Delivery::Landing(Target::Queue(existing("log"))),
        Delivery::Landing(exchange("audit")),
    ] {
        let spec = AppSpec::new(app("stats"), delivery.clone());
        let before = common::http(&node, "GET", "bindings/shared", &json!(null));
        let report = admin::add_app(&settings, &topology, &spec, false, false).unwrap();
        assert_eq!(report.outcome, Applied::Conflict, "{delivery:?}: {report:?}");
        assert!(report.conflicts.iter().any(|it| it.contains("a stream. One due message")), "{report:?}");
        assert_eq!(common::http(&node, "GET", "bindings/shared", &json!(null)), before);
    }
    // `doctor` finds a stream that was bound by hand at once.
    let subjects = |found: &[Finding]| -> Vec<_> {
        found.iter().map(|it| (it.subject.clone(), it.apps.join(" "))).collect()
    };
    let expected = [("queue `archive`", "mail"), ("queue `log`", "billing")]
        .map(|(queue, apps)| (queue.to_owned(), apps.to_owned()));
    assert_eq!(subjects(&findings(&settings, FindingCode::TargetStream)), expected);
    assert_eq!(subjects(&admin::verify(&settings, &topology).unwrap().findings), expected);

    // A single message ends all dead-lettering, and more messages fall due.
    let decimal = Headers::from([("amount".into(), Value::Decimal { scale: 2, value: 125 })]);
    publish(&settings, &key(1, "mail"), &decimal);
    eventually("the workers are gone", || has_ended(&node));
    let stop = AtomicBool::new(false);
    let sent = thread::scope(|scope| {
        let sending = scope.spawn(|| {
            let mut sent = 0;
            while !stop.load(Ordering::Relaxed) {
                send(&settings, "orders");
                sent += 3;
                thread::sleep(Duration::from_millis(500));
            }
            sent
        });
        let began = std::time::Instant::now();
        let look = || findings(&settings, FindingCode::DeadLetteringEnded);
        let found = eventually_seen("doctor finds it", look, |found| !found.is_empty());
        println!("found after {:?}", began.elapsed());
        stop.store(true, Ordering::Relaxed);
        assert!(found[0].what.contains("the stream `archive`, `log` cannot store"), "{found:#?}");
        assert!(found[0].advice.starts_with("first unbind `archive`, `log`"), "{found:#?}");
        sending.join().unwrap()
    });

    // The command alone does not help, because the message is still there.
    eval(&node, mend());
    eventually("the workers are gone again", || has_ended(&node));
    let mut session = Session::open(&settings.broker).unwrap();
    for binding in &bindings {
        session.unbind(binding).unwrap();
    }
    eval(&node, mend());
    assert_eq!(orders.collect(sent, PATIENCE).len(), sent);
    let kept = || session.counts("delay.unroutable").unwrap().unwrap().ready;
    // A message that a worker was handing on when it ended may come twice.
    eventually_seen("the message for the stream is kept", kept, |&kept| kept >= 1);
    assert!(!has_ended(&node));

    // A landing queue in front of a stream does not help. Its messages move once the stream is
    // replaced.
    let landing = topology.landing_queue(&app("stats"), "", Some("log"));
    session.declare_queue(&landing).unwrap();
    session.bind(&topology.app_binding(&app("stats"), &landing.name)).unwrap();
    publish(&settings, &key(1, "stats"), &decimal);
    eventually("the workers are gone again", || has_ended(&node));
    session.delete_queue("log").unwrap();
    let kind = [("x-queue-type".to_owned(), "quorum".into())];
    session.declare_queue(&Queue::new("log").with_arguments(kind)).unwrap();
    eval(&node, mend());
    eval(&node, anew());
    let arrived = || session.counts("log").unwrap().unwrap().ready;
    eventually_seen("the message arrives", arrived, |&arrived| arrived >= 1);
}

/// The number of dead letters in a queue.
fn dead_letters(settings: &Settings, queue: &str) -> u64 {
    let api = ManagementApi::new(settings.management.as_ref().unwrap()).unwrap();
    api.queue(&settings.broker.vhost, queue).unwrap().and_then(|queue| queue.messages_dlx).unwrap_or(0)
}

fn is_old(settings: &Settings) -> bool {
    Session::open(&settings.broker).unwrap().server_version().unwrap().starts_with("3.")
}

/// A message of the application `billing` that has passed two levels.
fn delivered(settings: &Settings, billing: &Inbox) -> Arrival {
    publish(settings, &key(3, "billing"), &Headers::new());
    let first = billing.next(PATIENCE).unwrap();
    assert!(first.headers.contains_key("x-death"), "{first:?}");
    first
}

/// Publishes a message again, forty times.
fn again(settings: &Settings, first: &Arrival) {
    for _ in 0..40 {
        publish(settings, &key(5, "billing"), &first.headers);
    }
}

/// On newer brokers, they arrive: the test above shows that.
#[test]
fn messages_published_again_with_their_x_death_stay_on_an_old_broker_until_it_is_mended() {
    if !is_old(&common::vhost().build().unwrap()) {
        return;
    }
    let (mut node, settings) = start();
    let (mut billing, mut orders) = (Inbox::open(&settings, "billing"), Inbox::open(&settings, "orders"));
    let first = delivered(&settings, &billing);
    again(&settings, &first);
    // Level 2 is stuck, for other applications as well.
    let stuck = |count: u64| {
        let look = || dead_letters(&settings, "delay.level.02");
        eventually_seen("the dead letters are stuck", look, |&stuck| stuck == count);
    };
    stuck(40);
    raw::publish(&settings, [raw::message("delay", &key(4, "orders"), "good", &json!({}))]);
    stuck(41);
    let look = || findings(&settings, FindingCode::StuckDeadLetters);
    let found = eventually_seen("doctor finds it", look, |found| !found.is_empty());
    assert_eq!(found[0].subject, "queue `delay.level.02`", "{found:#?}");
    assert!(found[0].advice.contains("published again with their header `x-death`"), "{found:#?}");
    let printed = eval(&node, stuck_keys());
    assert!(printed.contains(".billing\">>],[]}"), "{printed}");
    // Other remedies do not free these messages.
    let options = admin::UnstickOptions { wait: Duration::from_secs(12), ..admin::UnstickOptions::default() };
    let report = admin::unstick(&settings, &topology(&settings), &options).unwrap();
    assert_eq!(report.touched[0].left, Some(41), "{report:#?}");
    let mut session = Session::open(&settings.broker).unwrap();
    let one_more = [("x-queue-type".to_owned(), "quorum".into())];
    session.declare_queue(&Queue::new("one-more").with_arguments(one_more)).unwrap();
    let binding = Binding {
        source: "delay.dispatch".into(),
        destination: Endpoint::Queue("one-more".into()),
        key: pattern("billing"),
    };
    session.bind(&binding).unwrap();
    node.write_down_queues().unwrap();
    node.stop().unwrap();
    common::revive(&mut node);
    billing.reopen();
    orders.reopen();
    stuck(41);
    eval(&node, anew());
    stuck(41);
    // The documented commands free all of them.
    assert!(eval(&node, mend()).contains("detect_cycles"));
    assert!(eval(&node, anew()).contains("delay.level.02"));
    assert_eq!(orders.collect(1, PATIENCE).len(), 1);
    assert_eq!(billing.collect(40, PATIENCE).len(), 40);
    // From now on, such messages do no harm.
    again(&settings, &first);
    assert_eq!(billing.collect(40, PATIENCE).len(), 40);
}
