//! Kept messages in special cases: very many, large, slow to arrive, held by another consumer, or
//! unreadable.

use std::{
    io::Write,
    process::{Command, Stdio},
    sync::atomic::AtomicBool,
};

use delayline_admin::{
    self as admin, FindingCode, Kept, Selection,
    drain::{Decision, Drain, Drained, Outgoing},
};
use delayline_amqp::{Delivery, Session};
use delayline_core::{
    Message,
    codec::{Delay, RoutingKey},
    topology::{Argument, Queue, UNREACHABLE_DELIVERY_LIMIT},
};
use delayline_settings::Settings;
use serde_json::json;

use crate::common::Counting;
use crate::common::{
    Inbox, PATIENCE, app, eventually, installed,
    keeping::{look, number},
    raw, topology, vhost,
};

const MIB: usize = 1024 * 1024;

fn kept() -> Queue {
    let arguments =
        [("x-queue-type", Argument::from("quorum")), ("x-delivery-limit", UNREACHABLE_DELIVERY_LIMIT.into())];
    let arguments = arguments.map(|(name, value)| (name.to_owned(), value));
    Queue::new("kept").with_arguments(arguments)
}

/// A vhost with a queue `kept` that holds `count` messages with these bodies.
fn holding(count: usize, body: impl Fn(usize) -> String) -> (Settings, Session) {
    let settings = vhost().build().unwrap();
    let mut session = Session::open(&settings.broker).unwrap();
    session.declare_queue(&kept()).unwrap();
    raw::publish(&settings, (0..count).map(|n| raw::message("", "kept", body(n), &json!({}))));
    eventually("all messages are in the queue", || ready(&mut session, "kept") == count);
    (settings, session)
}

fn ready(session: &mut Session, queue: &str) -> usize {
    session.counts(queue).unwrap().unwrap().ready as usize
}

#[test]
fn more_pages_than_a_connection_has_channels() {
    // Brokers allow 2,047 channels.
    const COUNT: usize = 2_500;
    let (settings, mut session) = holding(COUNT, |n| n.to_string());
    // Twice, because kept messages must return in their order.
    for _ in 0..2 {
        let (report, numbers) = look(Drain::new(&settings, &kept()).in_pages(1, u64::MAX));
        assert_eq!(report.kept, COUNT as u64, "{report:?}");
        assert_eq!(numbers, (0..COUNT).collect::<Vec<_>>());
        eventually("all messages are back", || ready(&mut session, "kept") == COUNT);
    }
}

#[test]
fn some_go_and_the_others_stay_in_order_over_many_pages() {
    const COUNT: usize = 3_000;
    let (settings, mut session) = holding(COUNT, |n| n.to_string());
    session.declare_queue(&Queue::new("target").with_arguments(kept().arguments)).unwrap();
    let mut decide = |delivery: &Delivery| match number(delivery) % 7 {
        0 => Decision::Discard,
        // This message is returned, and is kept after later messages have been decided.
        1 if number(delivery) % 700 == 1 => Decision::Send(Outgoing::of(delivery, "", "nowhere").into()),
        1 | 2 => Decision::Send(Outgoing::of(delivery, "", "target").into()),
        _ => Decision::Keep,
    };
    let report = Drain::new(&settings, &kept()).in_pages(90, u64::MAX).run(&mut decide, |_| {}).unwrap();
    assert_eq!((report.refused, report.withheld, &report.failure), (5, 0, &None), "{report:?}");
    let stay: Vec<_> = (0..COUNT).filter(|n| n % 7 > 2 || n % 700 == 1).collect();
    eventually("the remaining messages are back", || ready(&mut session, "kept") == stay.len());
    let (_, numbers) = look(Drain::new(&settings, &kept()));
    assert_eq!(numbers, stay);
    assert_eq!(ready(&mut session, "target") as u64, report.sent);
}

#[test]
fn large_bodies_are_taken_a_few_at_a_time() {
    const COUNT: usize = 24;
    let (settings, mut session) = holding(COUNT, |_| "x".repeat(MIB));
    let (mut seen, mut most) = (0, 0);
    let report = Drain::new(&settings, &kept())
        .in_pages(1_000, 4 * MIB as u64)
        .run(
            |_| {
                // The number of messages that are delivered but not decided, including this one.
                most = most.max(COUNT - ready(&mut session, "kept") - seen);
                seen += 1;
                if seen % 2 == 0 { Decision::Discard } else { Decision::Keep }
            },
            |_| {},
        )
        .unwrap();
    assert_eq!((report.kept, report.discarded, &report.failure), (12, 12, &None), "{report:?}");
    assert!((2..=4).contains(&most), "{most} bodies of 1 MiB at once");
    eventually("the remaining messages are back", || ready(&mut session, "kept") == 12);
}

#[test]
fn messages_that_another_consumer_holds_are_reported_as_withheld() {
    let (settings, session) = holding(20, |n| n.to_string());
    drop(session);
    let mut other = Session::open(&settings.broker).unwrap();
    let mut thief = None;
    let report = Drain::new(&settings, &kept())
        .in_pages(1, u64::MAX)
        .run(
            |_| {
                let taken = thief.get_or_insert_with(|| other.consume("kept", 100).unwrap());
                let first = taken.next(PATIENCE);
                assert!(matches!(first, delayline_amqp::Next::Delivery(_)), "{first:?}");
                Decision::Discard
            },
            |_| {},
        )
        .unwrap();
    let expected = Drained { waiting: 20, examined: 1, discarded: 1, withheld: 19, ..Drained::default() };
    assert_eq!(report, expected);
}

/// Publishes unreadable messages: for each entry, an exchange, a routing key and a number.
fn unreadable(settings: &Settings, messages: &[(&str, &str, usize)]) {
    let python = std::env::var("TEST_PYTHON")
        .expect("TEST_PYTHON is the path of a Python with pika; scripts/test sets it");
    let url = format!("amqp://guest:guest@127.0.0.1:{}/{}", settings.broker.port, settings.broker.vhost);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/broker/unreadable.py");
    let mut child = Command::new(python).args([script, &url]).stdin(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    for (exchange, key, count) in messages {
        writeln!(input, "{exchange} {key} {count}").unwrap();
    }
    drop(input);
    assert!(child.wait().unwrap().success(), "publishing failed");
}

#[test]
fn unreadable_messages_are_counted_shown_and_discarded_by_app() {
    let settings = installed(1_000);
    let topology = topology(&settings);
    let key = |name: &str| RoutingKey::new(Delay::ZERO, app(name)).encode();
    let (billing, mail) = (key("billing"), key("mail"));
    for _ in 0..3 {
        raw::publish(&settings, [raw::message("delay.parked", "billing", "readable", &json!({}))]);
    }
    unreadable(
        &settings,
        &[
            ("delay.parked", "billing", 20),
            ("delay.parked", "mail", 2),
            ("delay.dispatch", &billing, 10),
            ("delay.dispatch", &mail, 2),
        ],
    );
    let mut session = Session::open(&settings.broker).unwrap();
    eventually("all messages are kept", || {
        ready(&mut session, "delay.parked") == 25 && ready(&mut session, "delay.unroutable") == 12
    });

    let parked = Kept::Parked.list(&settings, &topology, 10_000, |_| {}).unwrap();
    assert_eq!((parked.waiting, parked.examined, parked.withheld), (25, 25, 0), "{parked:?}");
    let counts =
        parked.groups.iter().map(|it| (it.cause.app.as_deref(), it.group.count, it.group.unreadable));
    assert_eq!(counts.collect::<Vec<_>>(), [(Some("billing"), 23, 20), (Some("mail"), 2, 2)]);
    let unroutable = Kept::Unroutable.list(&settings, &topology, 10_000, |_| {}).unwrap();
    let counts =
        unroutable.groups.iter().map(|it| (it.cause.app.as_deref(), it.group.count, it.group.unreadable));
    assert_eq!(counts.collect::<Vec<_>>(), [(Some("billing"), 10, 10), (Some("mail"), 2, 2)]);

    let mut samples = Vec::new();
    let one = Selection { app: Some(app("mail")), ..Selection::default() };
    Kept::Unroutable.messages(&settings, &topology, &one, (1, 10), |it| samples.push(it.sample)).unwrap();
    let [sample] = &samples[..] else { panic!("{samples:?}") };
    assert!(sample.unreadable && sample.headers.is_empty(), "{sample:?}");
    assert_eq!((&sample.exchange, &sample.routing_key), (&"delay.dispatch".to_owned(), &mail));
    assert_eq!(sample.body.as_deref(), Some("body"));

    let stop = AtomicBool::new(false);
    let of = Selection { app: Some(app("billing")), ..Selection::default() };
    eventually("all parked messages are back", || ready(&mut session, "delay.parked") == 25);
    let gone = Kept::Parked.discard(&settings, &topology, &of, &stop, |_| {}).unwrap();
    assert_eq!((gone.discarded, gone.kept, gone.withheld), (23, 2, 0), "{gone:?}");
    let of = Selection { app: Some(app("billing")), ..Selection::default() };
    eventually("all unroutable messages are back", || ready(&mut session, "delay.unroutable") == 12);
    let gone = Kept::Unroutable.discard(&settings, &topology, &of, &stop, |_| {}).unwrap();
    assert_eq!((gone.discarded, gone.kept, gone.withheld), (10, 2, 0), "{gone:?}");
    eventually("the other messages stay", || {
        ready(&mut session, "delay.parked") == 2 && ready(&mut session, "delay.unroutable") == 2
    });
}

#[test]
fn a_time_that_a_quorum_queue_would_wait_for_is_never_sent_on() {
    let settings = installed(1);
    let topology = topology(&settings);
    let held = |n: usize| {
        let name = ["x-opt-delivery-time", "x-opt-delivery-delay"][n % 2];
        json!({ "headers": { name: 4_000_000_000_000_i64, "mine": "kept" } })
    };
    let key = RoutingKey::new(Delay::ZERO, app("billing")).encode();
    raw::publish(&settings, (0..4).map(|n| raw::message("delay.dispatch", &key, n, &held(n))));
    raw::publish(&settings, (0..2).map(|n| raw::message("delay.parked", "billing", n, &held(n))));
    raw::publish(&settings, [raw::message("delay.parked", "mail", "x", &json!({}))]);
    let mut session = Session::open(&settings.broker).unwrap();
    eventually("all messages are kept", || {
        ready(&mut session, "delay.parked") == 3 && ready(&mut session, "delay.unroutable") == 4
    });

    let report = admin::doctor(&settings, &topology, &admin::DoctorOptions::default()).unwrap();
    let code = FindingCode::DeliveryTimeHeader;
    let found: Vec<_> = report.findings.iter().filter(|finding| finding.code == code).collect();
    assert_eq!(found.len(), 1, "{report:#?}");
    assert_eq!(
        (found[0].subject.as_str(), &found[0].apps[..]),
        ("app key `billing`", &["billing".into()][..])
    );
    assert!(found[0].what.contains("2 in `delay.parked` and 4 in `delay.unroutable`"), "{found:#?}");

    let inbox = Inbox::open(&settings, "billing");
    let stop = AtomicBool::new(false);
    let all = Selection::default();
    eventually("all messages are back", || {
        ready(&mut session, "delay.parked") == 3 && ready(&mut session, "delay.unroutable") == 4
    });
    Kept::Unroutable.replay(&settings, &topology, &all, false, &stop, |_| {}).unwrap().unwrap();
    Kept::Parked.replay(&settings, &topology, &all, true, &stop, |_| {}).unwrap().unwrap();
    let router = settings.router().connect().unwrap();
    let mut message = Message::after(app("billing"), Delay::from_seconds(1).unwrap(), "routed");
    for name in ["x-opt-delivery-time", "x-opt-delivery-delay"] {
        message = message.with_header(name, 4_000_000_000_000_i64);
    }
    router.publish(message.with_header("mine", "kept")).unwrap();
    let arrivals = inbox.collect(7, PATIENCE);
    assert_eq!(arrivals.len(), 7);
    for arrival in arrivals {
        let held = arrival.headers.keys().any(|name| name.starts_with("x-opt-"));
        assert!(!held && arrival.headers.contains_key("mine"), "{arrival:?}");
    }
}
