//! Publishing messages over AMQP 1.0 that AMQP 0-9-1 cannot carry.

use std::process::Command;

use delayline_settings::Settings;

/// The kinds of messages that make every broker with built-in AMQP 1.0 close AMQP 0-9-1
/// connections.
pub const DEADLY: [&str; 12] = [
    "char",
    "uuid",
    "longtype",
    "ulong",
    "array",
    "described",
    "numberkey",
    "longkey",
    "annotation",
    "deaths",
    "type",
    "priority",
];

/// Publishes messages of these kinds, which `foreign.js` defines, and returns once the broker has
/// accepted all of them. The body and the id of each message are its kind.
pub fn publish<'a>(settings: &Settings, exchange: &str, key: &str, kinds: impl IntoIterator<Item = &'a str>) {
    let packages = std::env::var("TEST_NODE_PATH")
        .expect("TEST_NODE_PATH is the directory of rhea; scripts/test sets it");
    let address = format!("/exchanges/{exchange}/{key}");
    let status = Command::new("node")
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/common/foreign.js"))
        .args([&settings.broker.port.to_string(), &settings.broker.vhost, &address])
        .args(kinds)
        .env("TEST_NODE_PATH", packages)
        .status()
        .unwrap();
    assert!(status.success(), "publishing over AMQP 1.0 failed");
}
