//! The broker returns an unroutable message without its number, so the message is recognised by its
//! contents.

use delayline_admin::drain::{Decision, Drain, Drained, Outgoing};
use delayline_amqp::{Delivery, Event, Publisher, Returned, Session};
use delayline_broker::ManagementApi;
use delayline_core::{
    message::{Headers, Properties, Value},
    topology::{Argument, Binding, Endpoint, Exchange, ExchangeKind, Queue, UNREACHABLE_DELIVERY_LIMIT},
};
use delayline_node::{NodeOptions, PrivateNode};
use delayline_settings::Settings;
use serde_json::json;

use crate::common::Counting;
use crate::common::{
    PATIENCE, all_headers, eventually, http, named_vhost, not_tested::not_tested, raw, shared_node, vhost,
};

fn queue(name: &str) -> Queue {
    let arguments =
        [("x-queue-type", Argument::from("quorum")), ("x-delivery-limit", UNREACHABLE_DELIVERY_LIMIT.into())];
    let arguments = arguments.map(|(name, value)| (name.to_owned(), value));
    Queue::new(name).with_arguments(arguments)
}

fn direct(name: &str) -> Exchange {
    Exchange::new(name, ExchangeKind::Direct)
}

/// Declares the queues `kept` and `target`, the exchange `bound`, which leads to `target` with the
/// key `key`, and the exchange `unbound`, which leads to no queue.
fn declare(settings: &Settings) -> Session {
    let mut session = Session::open(&settings.broker).unwrap();
    for name in ["kept", "target"] {
        session.declare_queue(&queue(name)).unwrap();
    }
    for name in ["bound", "unbound"] {
        session.declare_exchange(&direct(name)).unwrap();
    }
    let destination = Endpoint::Queue("target".into());
    session.bind(&Binding { source: "bound".into(), destination, key: "key".into() }).unwrap();
    session
}

/// Fills `kept` with messages that differ only in their ids.
fn fill(settings: &Settings, session: &mut Session, ids: impl IntoIterator<Item = u32>) {
    let ids: Vec<_> = ids.into_iter().collect();
    let message = |id: &u32| raw::message("", "kept", "same", &json!({ "message_id": id.to_string() }));
    raw::publish(settings, ids.iter().map(message));
    eventually("all messages are in the queue", || ready(session, "kept") == ids.len());
}

fn ready(session: &mut Session, queue: &str) -> usize {
    session.counts(queue).unwrap().unwrap().ready as usize
}

fn id(delivery: &Delivery) -> u32 {
    delivery.properties.message_id.as_ref().unwrap().parse().unwrap()
}

/// Sends all messages on without their ids. They differ only by `change`.
fn send(settings: &Settings, change: impl Fn(u32, &mut Outgoing)) -> Drained {
    Drain::new(settings, &queue("kept"))
        .run(
            |delivery| {
                let mut outgoing = Outgoing::of(delivery, "bound", "key");
                outgoing.properties = Properties::default();
                change(id(delivery), &mut outgoing);
                Decision::Send(outgoing.into())
            },
            |_| {},
        )
        .unwrap()
}

/// The ids of the messages that are left in the queue.
fn left(settings: &Settings) -> Vec<u32> {
    let mut ids = Vec::new();
    let look = |delivery: &Delivery| {
        ids.push(id(delivery));
        Decision::Keep
    };
    Drain::new(settings, &queue("kept")).run(look, |_| {}).unwrap();
    ids.sort_unstable();
    ids
}

#[test]
fn two_that_differ_in_the_exchange_alone_keep_their_fates() {
    let settings = vhost().build().unwrap();
    let mut session = declare(&settings);
    fill(&settings, &mut session, 0..20);
    let report = send(&settings, |id, outgoing| {
        if id % 4 == 3 {
            outgoing.exchange = "unbound".into();
        }
    });
    assert_eq!((report.sent, report.refused, &report.failure), (15, 5, &None), "{report:?}");
    eventually("the returned messages are back", || ready(&mut session, "kept") == 5);
    assert_eq!(left(&settings), [3, 7, 11, 15, 19]);
    assert_eq!(ready(&mut session, "target"), 15);
}

/// Messages that differ only in a header. A headers exchange routes some of them.
fn by_header(node: &PrivateNode, settings: &Settings) {
    let mut session = declare(settings);
    let vhost = &settings.broker.vhost;
    let exchange = json!({ "type": "headers", "durable": true });
    http(node, "PUT", &format!("exchanges/{vhost}/by-header"), &exchange);
    let binding = json!({ "routing_key": "", "arguments": { "x-match": "all", "kind": "wanted" } });
    http(node, "POST", &format!("bindings/{vhost}/e/by-header/q/target"), &binding);
    fill(settings, &mut session, 0..20);
    let report = send(settings, |id, outgoing| {
        outgoing.exchange = "by-header".into();
        let kind = if id % 4 == 3 { "unwanted" } else { "wanted" };
        outgoing.headers.insert("kind".into(), kind.into());
        outgoing.headers.insert("nested".into(), Value::Array(vec![Value::I8(-1), Value::F64(-0.0)]));
    });
    assert_eq!((report.sent, report.refused, &report.failure), (15, 5, &None), "{report:?}");
    eventually("the returned messages are back", || ready(&mut session, "kept") == 5);
    assert_eq!(left(settings), [3, 7, 11, 15, 19]);
}

#[test]
fn two_that_differ_in_a_header_alone_keep_their_fates() {
    by_header(&shared_node(), &vhost().build().unwrap());
}

#[test]
fn headers_that_the_broker_adds_do_no_harm() {
    let api = ManagementApi::new(vhost().build().unwrap().management.as_ref().unwrap()).unwrap();
    if api.overview().unwrap().rabbitmq_version.starts_with("3.") {
        not_tested("headers that the broker adds: this one has no message interceptors");
        return;
    }
    let config = "message_interceptors.incoming.set_header_timestamp.overwrite = true\n\
                  message_interceptors.incoming.set_header_routing_node.overwrite = true\n";
    let node = PrivateNode::start(NodeOptions { config: config.into(), ..NodeOptions::default() }).unwrap();
    let settings = node.settings().build().unwrap();
    let returned = come_back(&settings, &Properties::default(), &Headers::new());
    let names: Vec<_> = returned.headers.keys().map(String::as_str).collect();
    assert_eq!(names, ["timestamp_in_ms", "x-routed-by"], "the headers that the broker adds");
    assert!(returned.properties.timestamp.is_some());
    by_header(&node, &named_vhost(&node, "own").build().unwrap());
}

/// Publishes to an exchange that leads to no queue, and waits for the returned message.
fn come_back(settings: &Settings, properties: &Properties, headers: &Headers) -> Returned {
    let mut session = Session::open(&settings.broker).unwrap();
    session.declare_exchange(&direct("nowhere")).unwrap();
    let mut publisher = Publisher::open(&settings.broker).unwrap();
    publisher.publish("nowhere", "a.key".into(), properties.clone(), headers.clone(), b"body");
    let mut returned = None;
    loop {
        match publisher.next_within(PATIENCE).unwrap() {
            Event::Returned(message) => returned = Some(*message),
            Event::Ack { tag: 1, .. } => return returned.expect("the return comes before the ack"),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_returned_message_equals_the_sent_one() {
    let settings = vhost().build().unwrap();
    let headers = all_headers();
    let text = |text: &str| Some(text.to_owned());
    let properties = Properties {
        content_type: text("text/plain"),
        content_encoding: text("identity"),
        priority: Some(3),
        correlation_id: text("correlation"),
        reply_to: text("reply"),
        expiration: text("60000"),
        message_id: text(&"ü".repeat(127)),
        timestamp: Some(1_700_000_000),
        kind: text("kind"),
        user_id: text("guest"),
        app_id: text("app"),
    };
    for (properties, headers) in [(properties, headers), (Properties::default(), Headers::new())] {
        let returned = come_back(&settings, &properties, &headers);
        let place = (returned.exchange.as_str(), returned.routing_key.as_str());
        assert_eq!((place, returned.body.as_slice()), (("nowhere", "a.key"), &b"body"[..]));
        assert_eq!(returned.properties, properties);
        assert_eq!(returned.headers, headers);
    }
}
