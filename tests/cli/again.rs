//! The output of `listen` and `show` can be sent again.

use std::io::Write;

use delayline_amqp::Session;
use delayline_core::codec::{AppKey, RoutingKey};
use delayline_core::topology::{Binding, Endpoint};
use serde_json::{Value as Json, json};

use crate::{common, json, on, stdout};

/// Takes the message that waits in a queue, and prints it.
fn heard(settings: &delayline_settings::Settings, queue: &str) -> Json {
    json(on(settings).args(["listen", "--app", "billing", "--queue", queue, "--count", "1", "--json"]))
}

/// Sends a printed message again, unchanged.
fn again(settings: &delayline_settings::Settings, printed: &Json) {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    writeln!(file, "{printed}").unwrap();
    let said = stdout(on(settings).args(["send", "--jsonl", "--delay", "0", "--file"]).arg(file.path()));
    assert!(said.contains("1 confirmed"), "{said}");
}

/// The message without the parts that differ on another path.
fn its_own(mut printed: Json) -> Json {
    let message = printed.as_object_mut().unwrap();
    for changing in ["arrived", "late_ms", "routing_key", "exchange"] {
        message.remove(changing).unwrap_or_else(|| panic!("no {changing}"));
    }
    let headers = message["headers"].as_object_mut().unwrap();
    headers.retain(|name, _| !name.starts_with("x-") && name != "delayline-due");
    printed
}

#[test]
fn a_message_that_was_heard_is_sent_again_with_all_it_has() {
    let settings = common::installed(10);
    stdout(on(&settings).args(["app", "add", "billing", "--no-user"]));
    let line = json!({
        "app": "billing", "delay": 1, "body_base64": "AP8HCg==", "content_type": "application/x", "priority": 3,
        "content_encoding": "raw", "correlation_id": "c", "reply_to": "r", "message_id": "7", "timestamp": 1_700_000_000,
        "type": "invoice", "app_id": "shop", "user_id": "guest", "headers": {"n": 1, "t": {"a": [true, null, 1.5, "x"]}},
    });
    again(&settings, &line);
    let first = heard(&settings, "billing");
    let names = ["body_base64", "content_type", "priority", "correlation_id", "timestamp", "type", "user_id"];
    assert!(names.iter().all(|name| first[name] == line[name]), "{first}");
    again(&settings, &first);
    assert_eq!(its_own(heard(&settings, "billing")), its_own(first));
}

#[test]
fn an_unroutable_message_is_sent_again_as_it_is_shown() {
    let settings = common::installed(10);
    again(
        &settings,
        &json!({"app": "billing", "delay": 0, "body": "x", "message_id": "7", "headers": {"n": 1}}),
    );
    let show = || json(on(&settings).args(["held", "show", "--kind", "unroutable", "--json"]));
    common::eventually("the message is unroutable", || {
        json(on(&settings).args(["status", "--json"]))["unroutable"] == 1
    });
    let shown = show();
    assert_eq!((&shown["app"], &shown["message_id"]), (&json!("billing"), &json!("7")), "{shown}");
    let mut session = Session::open(&settings.broker).unwrap();
    let queue = session.declare_own_queue().unwrap();
    let key = RoutingKey::binding_pattern(&AppKey::new("billing").unwrap());
    let destination = Endpoint::Queue(queue.clone());
    session.bind(&Binding { source: "delay.dispatch".into(), destination, key }).unwrap();
    again(&settings, &shown);
    let consumer = session.consume(&queue, 1).unwrap();
    let delayline_amqp::Next::Delivery(delivery) = consumer.next(common::PATIENCE) else { panic!("nothing") };
    assert_eq!((delivery.body.as_slice(), delivery.headers["n"].as_i64()), (b"x".as_slice(), Some(1)));
    assert_eq!(delivery.properties.message_id.as_deref(), Some("7"));
}
