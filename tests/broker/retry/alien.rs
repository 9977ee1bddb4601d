//! Unusual messages are retried or parked, and never lost.

use std::{collections::HashSet, process::Command};

use delayline_amqp::Session;
use delayline_core::message::Value;

use crate::common::{Inbox, PATIENCE, eventually, installed, url};

use super::{by_id, daemon, parked};
use crate::common::Counting;

#[test]
fn alien_messages_are_retried_or_parked() {
    let settings = installed(10);
    let inbox = Inbox::open(&settings, "aliens");
    let daemon = daemon(&settings, "[default]\nfixed = '1s'\nattempts = 1\n");
    let python = std::env::var("TEST_PYTHON").expect("TEST_PYTHON names a Python that has pika");
    let run = |what: &str| {
        Command::new(&python)
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/broker/retry/alien.py"))
            .args([&url(&settings), what])
            .status()
            .unwrap()
    };
    assert!(run("publish").success());

    let retried: HashSet<_> = inbox
        .collect(6, PATIENCE)
        .into_iter()
        .map(|message| {
            match message.id.as_str() {
                "many" => assert_eq!(message.headers["h0999"], Value::from("v999")),
                "large" => assert!(message.body == vec![0xab; 10_000_000]),
                "user" => assert_eq!(message.properties.user_id.as_deref(), Some("guest")),
                _ => {}
            }
            message.id
        })
        .collect();
    let expected = ["many", "large", "x-death", "attempt", "user", "plain"].map(str::to_owned);
    assert_eq!(retried, HashSet::from(expected), "{}", daemon.log());

    let mut session = Session::open(&settings.broker).unwrap();
    eventually("thirteen messages are parked", || {
        session.counts("delay.parked").unwrap().is_some_and(|depth| depth.ready == 13)
    });
    // Messages that cannot be read here are parked unchanged; Python can read them.
    assert!(run("check").success());
    let (damaged, readable): (Vec<_>, Vec<_>) =
        parked(&settings, 13).into_iter().partition(|message| message.damaged);
    assert_eq!(damaged.len(), 8, "{damaged:?}");
    let parked = by_id(readable);
    assert_eq!(parked["expires"].0.text("delayline-reason"), "expired");
    assert_eq!(parked["empty-key"].0.key, "");
    assert_eq!(parked["wild-key"].0.key, "a.*.#");
    assert_eq!(parked["long-key"].0.key.len(), 255);
    assert_eq!(parked["huge-headers"].0.headers["h"], Value::from("x".repeat(130_500)));
    let log = daemon.log();
    assert!(!log.contains("panicked") && !log.contains("trying again"), "{log}");
}
