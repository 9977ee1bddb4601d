//! A test for each common way to build retries by hand, with the policy that replaces it.

use std::process::Command;

use delayline_core::codec::AppKey;
use serde_json::{Value as Json, json};

use crate::common::{installed, run_in_time, url};

use super::{daemon, parked};

const UNIT: u64 = 100;

/// Runs an application in Python that fails at every attempt. Checks what all patterns share: no
/// attempt is early, no part of the message is lost, and it is parked at the end, for `reason`.
fn every_attempt_fails(policy: &str, attempts: usize, expiration: &str, reason: &str) {
    let settings = installed(UNIT);
    let policies = format!("[apps.shop]\n{policy}\n");
    let _daemon = daemon(&settings, &policies);
    let python = std::env::var("TEST_PYTHON").expect("TEST_PYTHON names a Python that has pika");
    let mut application = Command::new(python);
    application.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/broker/retry/application.py")).args([
        &url(&settings),
        "shop",
        &(attempts + 1).to_string(),
        expiration,
    ]);
    let output = run_in_time(application);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let seen: Vec<Json> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(seen.len(), attempts + 1);

    let policies = delayline_settings::parse_policies(&policies).unwrap();
    let policy = policies.get(&AppKey::new("shop").unwrap(), "rejected");
    for (attempt, pair) in (1..).zip(seen.windows(2)) {
        let [before, after] = pair else { unreachable!() };
        let waited = after["arrived"].as_u64().unwrap() - before["rejected"].as_u64().unwrap();
        let least = u64::from(policy.bounds(attempt).0.seconds()) * UNIT;
        assert!(waited >= least, "attempt {attempt} came after {waited} of {least} ms");
        for part in ["body", "properties", "headers"] {
            assert_eq!(after[part], seen[0][part], "{part}, attempt {attempt}");
        }
        let ours = &after["ours"];
        assert_eq!(ours["delayline-attempt"], json!(attempt));
        assert_eq!(ours["delayline-exchange"], "orders");
        assert_eq!(ours["delayline-routing-key"], "order.shop");
        assert!(ours["delayline-first-failed"].as_i64().unwrap() > 0);
        assert_eq!(ours["delayline-first-failed"], seen[1]["ours"]["delayline-first-failed"]);
    }

    let message = parked(&settings, 1).remove(0);
    assert_eq!((message.key.as_str(), message.body.as_slice()), ("shop", &b"\x00order\xff"[..]));
    assert_eq!(message.properties.message_id.as_deref(), Some("m-shop"));
    assert_eq!(message.properties.correlation_id.as_deref(), Some("c-1"));
    assert_eq!(message.text("customer"), "C-4");
    assert_eq!(message.text("delayline-reason"), reason);
    assert_eq!(message.text("delayline-failure"), "rejected");
    assert_eq!(message.text("delayline-exchange"), "orders");
    assert_eq!(message.text("delayline-routing-key"), "order.shop");
    assert_eq!(message.number("delayline-attempt"), i64::try_from(attempts).unwrap());
    assert!(message.number("delayline-last-failed") >= message.number("delayline-first-failed"));
}

/// Replaces one queue for each delay.
#[test]
fn a_fixed_delay() {
    every_attempt_fails("fixed = '3s'\nattempts = 3", 3, "", "attempts");
}

/// Replaces a queue for each TTL.
#[test]
fn exponential_backoff() {
    let policy = "exponential = { base = '1s', factor = 2, cap = '5s' }\nattempts = 4\njitter = 'equal'";
    every_attempt_fails(policy, 4, "", "attempts");
}

/// Replaces a TTL on each message that grows by a factor of 1.5.
#[test]
fn a_growing_delay_per_message() {
    let policy = "exponential = { base = '2s', factor = 1.5, cap = '1h' }\nattempts = 4";
    every_attempt_fails(policy, 4, "", "attempts");
}

/// Replaces three wait queues for each application.
#[test]
fn a_list_of_delays() {
    every_attempt_fails("list = ['1s', '5s', '15s']", 3, "", "attempts");
}

/// Replaces wait queues that all applications share.
#[test]
fn shared_levels_with_the_fewest_hops() {
    let policy = "fixed = '7s'\njitter = 'hop-aware'\nwindow = '2s'\nattempts = 3";
    every_attempt_fails(policy, 3, "", "attempts");
}

/// Replaces a queue whose messages circulate until a time stamp has passed: the last retry must be
/// within a time limit.
#[test]
fn a_time_limit_instead_of_a_busy_queue() {
    // Attempts at 30 s and 60 s, plus the application's own time, so the third attempt at 90 s is
    // certainly too late. The second is in time if the first is less than 29.9 s late.
    every_attempt_fails("fixed = '300s'\nattempts = 9\nmax_age = '899s'", 2, "", "age");
}

/// A message with an expiration is retried until it expires, and then parked.
#[test]
fn an_expiring_message() {
    // 44 s from the first failure. The third attempt would come at 45 s. The second is in time if
    // the first is less than 26 s late.
    every_attempt_fails("list = ['30s', '150s', '270s']\nattempts = 9", 2, "44000", "expired");
}
