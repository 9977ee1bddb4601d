use delayline_amqp::Session;
use delayline_core::{
    Message,
    codec::{AppKey, Delay},
};

use crate::common::Counting;
use crate::common::{
    Inbox, PATIENCE, app, eventually, http, installed, lateness, shared_node, status, topology,
};

/// Publishes directly to an exchange without the router, as a faulty client would.
fn publish_raw(vhost: &str, routing_key: &str) {
    let body = serde_json::json!({
        "properties": {"delivery_mode": 2}, "routing_key": routing_key, "payload": "garbage", "payload_encoding": "string",
    });
    http(&shared_node(), "POST", &format!("exchanges/{vhost}/delay/publish"), &body);
}

#[test]
fn garbage_is_kept_and_counted_and_blocks_no_application() {
    let settings = installed(1);
    let inbox = Inbox::open(&settings, "app");
    let zeros = |n: usize| vec!["0000"; n].join(".");
    let ones = |n: usize| vec!["1111"; n].join(".");
    let long = format!("delay.{}.{}", zeros(7), "x".repeat(213));
    let garbage = [
        String::new(),
        "app".into(),
        "delay".into(),
        "delay.".into(),
        ".".into(),
        format!("later.{}.app", zeros(7)),
        format!("Delay.{}.app", zeros(7)),
        format!("delay.{}.app", zeros(6)),
        format!("delay.{}.app", ones(6)),
        format!("delay.{}.app", zeros(8)),
        format!("delay.{}", zeros(7)),
        format!("delay.{}", ones(7)),
        format!("delay.{}.a.app", zeros(6)),
        format!("delay.{}.0002.app", zeros(6)),
        format!("delay.{}.001.app", zeros(6)),
        format!("delay.{}.00001.app", zeros(6)),
        format!("delay.0.{}.app", zeros(6)),
        format!("delay.{}.app", vec!["0"; 28].join(".")),
        format!("delay.{}.unknown", zeros(7)),
        format!("delay.{}.0001.unknown", zeros(6)),
        format!("delay.{}.app.more", zeros(7)),
        format!("delay.{}.more.app", zeros(7)),
        format!("delay.{}.*", zeros(7)),
        format!("delay.{}.#", zeros(7)),
        format!("delay..{}.app", zeros(6)),
        long,
    ];
    let expected = 10 * garbage.len() as u64;
    let inbox = inbox.collecting(expected.div_ceil(4) as usize, PATIENCE);
    let router = settings.router().connect().unwrap();
    for (round, key) in garbage.iter().cycle().take(10 * garbage.len()).enumerate() {
        publish_raw(&settings.broker.vhost, key);
        if round % 4 == 0 {
            router.publish(Message::after(app("app"), Delay::from_seconds(3).unwrap(), "x")).unwrap();
        }
    }
    eventually("all garbage is unroutable", || status(&settings).unroutable == Some(expected));
    let good = inbox.join().unwrap();
    assert_eq!(good.len(), expected.div_ceil(4) as usize);
    println!("beside {expected} garbage messages: {}", lateness(&good));
    assert!(good.iter().all(|arrival| arrival.body == b"x"));
}

#[test]
fn an_unbound_app_delays_no_other_app() {
    // Without the alternate exchange, 32 such messages block a level for all applications.
    let settings = installed(1);
    let inbox = Inbox::open(&settings, "app").collecting(50, PATIENCE);
    let router = settings.router().connect().unwrap();
    let one = Delay::from_seconds(1).unwrap();
    for _ in 0..200 {
        router.publish(Message::after(AppKey::new("nobody").unwrap(), one, "x")).unwrap();
    }
    for _ in 0..50 {
        router.publish(Message::after(app("app"), one, "x")).unwrap();
    }
    let good = inbox.join().unwrap();
    assert_eq!(good.len(), 50);
    println!("beside 200 unroutable messages: {}", lateness(&good));
    let mut session = Session::open(&settings.broker).unwrap();
    eventually("200 are unroutable", || session.counts("delay.unroutable").unwrap().unwrap().ready == 200);
}

#[test]
fn ten_thousand_unroutable_messages_delay_no_other_message() {
    // The same 50 messages three times: alone, beside 10,000 messages for a bound application, and
    // beside 10,000 unroutable ones. The test prints the figures.
    let settings = installed(100);
    let inbox = Inbox::open(&settings, "app");
    let router = settings.router().connect().unwrap();
    let ten = Delay::from_seconds(10).unwrap();
    let publish_50 = || {
        for _ in 0..50 {
            router.publish(Message::after(app("app"), ten, "x")).unwrap();
        }
    };
    publish_50();
    let alone = inbox.collect(50, PATIENCE);
    let others = settings.router().connect().unwrap();
    let beside = |key: &str| {
        let mut pipeline = others.pipeline();
        let pushed = |outcome: delayline_client::router::Outcome<i32>| assert!(outcome.result.is_ok());
        for tag in 0..10_000 {
            pipeline.push(tag, Message::after(app(key), ten, "x")).into_iter().for_each(pushed);
        }
        pipeline.for_each(pushed);
        publish_50();
        inbox.collect(50, PATIENCE)
    };
    let somebody = Inbox::open(&settings, "somebody").collecting(10_000, PATIENCE);
    let bound = beside("somebody");
    assert_eq!(somebody.join().unwrap().len(), 10_000);
    let unbound = beside("nobody");
    println!("alone: {}", lateness(&alone));
    println!("beside 10,000 for a bound application: {}", lateness(&bound));
    println!("beside 10,000 unroutable messages: {}", lateness(&unbound));
    assert_eq!((alone.len(), bound.len(), unbound.len()), (50, 50, 50));
    let mut session = Session::open(&settings.broker).unwrap();
    eventually("10,000 are unroutable", || {
        session.counts("delay.unroutable").unwrap().unwrap().ready == 10_000
    });
}

#[test]
fn without_the_alternate_exchange_they_would_delay_every_app() {
    // Proves that the tests above guard against a real problem: the dispatch exchange has no
    // alternate exchange here. With whole seconds, no message waits in a busy router for longer
    // than its delay. If one did, it would be published to the dispatch exchange at once, and be
    // returned.
    let settings = installed(1_000);
    let mut session = Session::open(&settings.broker).unwrap();
    let topology = topology(&settings);
    session.delete_exchange("delay.dispatch").unwrap();
    let mut dispatch =
        topology.exchanges().find(|exchange| exchange.name == "delay.dispatch").unwrap().clone();
    dispatch.arguments.clear();
    session.declare_exchange(&dispatch).unwrap();
    for binding in topology.bindings().filter(|binding| binding.destination.name() == "delay.dispatch") {
        session.bind(binding).unwrap();
    }
    let inbox = Inbox::open(&settings, "app");
    let router = settings.router().connect().unwrap();
    let one = Delay::from_seconds(1).unwrap();
    router.publish(Message::after(app("app"), one, "before")).unwrap();
    assert!(inbox.next(PATIENCE).is_some());
    for _ in 0..200 {
        router.publish(Message::after(app("nobody"), one, "x")).unwrap();
    }
    router.publish(Message::after(app("app"), one, "behind them")).unwrap();
    // A message that bypasses level 0 arrives, although it is due much later. A message in level 0
    // does not arrive.
    let past = Delay::from_seconds(4).unwrap();
    router.publish(Message::after(app("app"), past, "past it")).unwrap();
    assert_eq!(inbox.next(PATIENCE).unwrap().body, b"past it", "level 0 is not stalled");
}

#[test]
fn an_app_key_is_matched_exactly() {
    let settings = installed(1);
    let orders = Inbox::open(&settings, "orders");
    let eu_orders = Inbox::open(&settings, "eu.orders");
    let router = settings.router().connect().unwrap();
    for key in ["orders", "eu.orders", "x.eu.orders", "orders.eu"] {
        router.publish(Message::after(app(key), Delay::from_seconds(1).unwrap(), key)).unwrap();
    }
    // The two unroutable messages have passed the dispatch exchange, and so have the other two.
    let mut session = Session::open(&settings.broker).unwrap();
    eventually("two are unroutable", || session.counts("delay.unroutable").unwrap().unwrap().ready == 2);
    for (inbox, key) in [(&orders, "orders"), (&eu_orders, "eu.orders")] {
        let arrivals = inbox.exactly(1, |last| {
            router.publish(Message::after(app(key), Delay::from_seconds(1).unwrap(), last)).unwrap();
        });
        assert_eq!(arrivals.iter().map(|arrival| &arrival.body[..]).collect::<Vec<_>>(), [key.as_bytes()]);
    }
}
