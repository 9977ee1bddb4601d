//! The examples do what they say.

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
};

use delayline::{Message, codec::Delay};
use delayline_settings::Settings;

use crate::common::{app, installed};

use super::{Daemon, url};

/// A running example.
struct Example(Child);

impl Drop for Example {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a consumer that fails twice and then succeeds, and checks that it does.
fn succeeds_at_the_second_retry(settings: &Settings, command: &mut Command) {
    let _daemon = Daemon::start(settings, "[default]\nfixed = '1s'\nattempts = 5\n");
    let mut example =
        Example(command.args([&url(settings), "billing"]).stdout(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(example.0.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(lines.next().as_deref(), Some("waiting for messages"));
    let router = settings.router().connect().unwrap();
    router.publish(Message::after(app("billing"), Delay::ZERO, "invoice 17")).unwrap();
    assert_eq!(lines.next().as_deref(), Some("failed: the bank is closed"));
    assert_eq!(lines.next().as_deref(), Some("failed: the bank is closed"));
    let last = lines.next().unwrap();
    assert!(last.contains("invoice 17") && last.ends_with("at attempt 2"), "{last}");
}

#[test]
fn the_node_example_is_retried() {
    let modules = std::env::var("TEST_NODE_PATH").expect("TEST_NODE_PATH names a directory that has amqplib");
    let mut command = Command::new("node");
    command.env("NODE_PATH", modules);
    command.arg(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("examples/node/consumer.js"));
    succeeds_at_the_second_retry(&installed(100), &mut command);
}

#[test]
fn the_python_example_is_retried() {
    let python = std::env::var("TEST_PYTHON").expect("TEST_PYTHON names a Python that has pika");
    let mut command = Command::new(python);
    command.arg(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("examples/python/consumer.py"));
    succeeds_at_the_second_retry(&installed(100), &mut command);
}
