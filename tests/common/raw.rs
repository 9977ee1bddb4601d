//! Publishing as another client would, without the router and its checks.

use std::{
    io::Write,
    process::{Command, Stdio},
};

use delayline_settings::Settings;
use serde_json::{Value as Json, json};

/// A message for [`publish`]; `properties` has the names of pika.
pub fn message(exchange: &str, key: &str, body: impl ToString, properties: &Json) -> Json {
    json!({ "exchange": exchange, "key": key, "body": body.to_string(), "properties": properties })
}

/// Publishes with pika, as `guest`, and returns once the broker has read everything.
pub fn publish(settings: &Settings, messages: impl IntoIterator<Item = Json>) {
    let python = std::env::var("TEST_PYTHON")
        .expect("TEST_PYTHON is the path of a Python with pika; scripts/test sets it");
    let url = format!("amqp://guest:guest@127.0.0.1:{}/{}", settings.broker.port, settings.broker.vhost);
    let mut child = Command::new(python)
        .args([concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/common/publish.py"), &url])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = std::io::BufWriter::new(child.stdin.take().unwrap());
    for message in messages {
        writeln!(input, "{message}").unwrap();
    }
    drop(input);
    assert!(child.wait().unwrap().success(), "publishing failed");
}
