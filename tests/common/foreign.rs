//! Publishing over AMQP 1.0, with what AMQP 0-9-1 cannot carry.

use std::process::Command;

use delayline_settings::Settings;

/// What every broker that speaks AMQP 1.0 by itself closes AMQP 0-9-1 connections over.
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

/// Publishes messages of these kinds, as `foreign.js` has them, and returns once the broker
/// has accepted them all. Their bodies and ids are their kinds.
pub fn publish<'a>(settings: &Settings, exchange: &str, key: &str, kinds: impl IntoIterator<Item = &'a str>) {
    let packages =
        std::env::var("TEST_NODE_PATH").expect("TEST_NODE_PATH names rhea's place; scripts/test sets it");
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
