use delayline_core::{
    Message,
    codec::Delay,
    message::{MAX_PROPERTIES_BYTES, Properties, Quota, Value},
};

use crate::common::{Inbox, PATIENCE, all_headers, app, installed};

/// This delay passes three queues, so the test also covers the hops between them.
fn message() -> Message {
    Message::after(app("app"), Delay::from_seconds(7).unwrap(), "body")
}

#[test]
fn every_header_type_and_property_survives() {
    let settings = installed(1);
    let inbox = Inbox::open(&settings, "app");
    let router = settings.router().quota(Quota::forwarding()).connect().unwrap();
    let mut headers = all_headers();
    headers.insert("x".repeat(255), Value::Bool(false));
    let properties = Properties {
        content_type: Some("text/plain".into()),
        content_encoding: Some("identity".into()),
        priority: Some(3),
        correlation_id: Some("correlation".into()),
        reply_to: Some("reply".into()),
        expiration: None,
        message_id: Some("ü".repeat(127)),
        timestamp: Some(1_700_000_000),
        kind: Some("kind".into()),
        user_id: Some("guest".into()),
        app_id: Some("app".into()),
    };
    let mut sent = message().with_properties(properties.clone());
    sent.headers = headers.clone();
    router.publish(sent).unwrap();

    let arrival = inbox.collect(1, PATIENCE).remove(0);
    assert_eq!((arrival.properties, arrival.body), (properties, b"body".to_vec()));
    for (name, value) in headers {
        assert_eq!(arrival.headers.get(&name), Some(&value), "{name}");
    }
}

#[test]
fn properties_that_would_move_the_message_are_not_sent() {
    let settings = installed(1);
    let inbox = Inbox::open(&settings, "app");
    let copy = Inbox::open(&settings, "copy");
    let router = settings.router().connect().unwrap();
    let target = Value::Array(vec!["delay.0000.0000.0000.0000.0000.0000.0000.copy".into()]);
    let mut sent = message().with_header("CC", target.clone()).with_header("BCC", target);
    // Far shorter than the delay: as a property, it would expire the message in a level.
    sent.properties.expiration = Some("1".into());
    sent.when = delayline_core::message::When::After(Delay::from_seconds(1_500).unwrap());
    let receipt = router.publish(sent).unwrap();
    let arrival = inbox.collect(1, PATIENCE).remove(0);
    assert!(arrival.late_ms() >= 0, "it came {} ms early", -arrival.late_ms());
    assert_eq!(arrival.properties.expiration, None);
    let expires = arrival.headers["delayline-expires"].as_i64().unwrap();
    assert_eq!(expires, receipt.due.as_millisecond() - 1_500 + 1);
    router.publish(Message::after(app("copy"), Delay::from_seconds(7).unwrap(), "the next")).unwrap();
    assert_eq!(copy.next(PATIENCE).unwrap().body, b"the next", "CC and BCC made a copy");
}

#[test]
fn a_message_that_arrived_can_be_sent_again_and_again() {
    // With its old `x-death`, a message would be dropped by brokers up to 3.13 the second time, as
    // a dead-letter cycle.
    let settings = installed(1);
    let inbox = Inbox::open(&settings, "app");
    let router = settings.router().connect().unwrap();
    // The delay is long enough that it has not expired when the router writes the message.
    // Otherwise, the message would bypass the levels.
    let mut next = Message::after(app("app"), Delay::from_seconds(255).unwrap(), "body");
    for round in 0..20 {
        router.publish(next.clone()).unwrap();
        let arrival = inbox.next(PATIENCE).unwrap_or_else(|| panic!("lost in round {round}"));
        assert!(arrival.headers.contains_key("x-death"), "the arrival has the broker's own header");
        next.headers = arrival.headers;
        next.properties = arrival.properties;
    }
}

#[test]
fn the_largest_headers_that_are_taken_arrive() {
    let settings = installed(1);
    let inbox = Inbox::open(&settings, "app");
    let router = settings.router().connect().unwrap();
    let fits = |length: usize| message().with_header("large", "x".repeat(length));
    // 4 bytes for the table, 6 for the name, 1 for the type, 4 for the length.
    let most = MAX_PROPERTIES_BYTES - 15;
    router.publish(fits(most)).unwrap();
    assert_eq!(inbox.collect(1, PATIENCE).len(), 1);
    assert!(router.publish(fits(most + 1)).is_err());
    router.publish(message()).unwrap();
}
