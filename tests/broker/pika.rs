use std::process::Command;

use delayline_core::{codec::RoutingKey, message::Value};

use crate::common::{Inbox, PATIENCE, installed, run_in_time};

/// Any client that can publish to a topic exchange can schedule messages. This one is pika, with
/// the routing key that `delayline key` prints.
#[test]
fn a_message_from_python_arrives_like_any_other() {
    let python = std::env::var("TEST_PYTHON")
        .expect("TEST_PYTHON is the path of a Python with pika; scripts/test sets it");
    let settings = installed(1_000);
    let inbox = Inbox::open(&settings, "billing");
    let printed = Command::new(env!("CARGO_BIN_EXE_delayline"))
        .args(["key", "encode", "2s", "--app", "billing"])
        .output()
        .unwrap();
    let key = String::from_utf8(printed.stdout).unwrap().trim().to_owned();
    assert_eq!(key.parse::<RoutingKey>().unwrap().delay.seconds(), 2);

    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/broker/publish.py");
    let url = format!("amqp://guest:guest@127.0.0.1:{}/{}", settings.broker.port, settings.broker.vhost);
    let sent = jiff::Timestamp::now();
    let mut publish = Command::new(python);
    publish.args([script, &url, &key]);
    let output = run_in_time(publish);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    let arrival = inbox.next(PATIENCE).expect("the message");
    assert_eq!(arrival.body, b"from Python");
    assert_eq!(arrival.headers.get("customer"), Some(&Value::Text("C-4".into())));
    assert!(arrival.at.duration_since(sent).as_millis() >= 2_000, "the message was early");
}
