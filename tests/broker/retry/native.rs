//! Retries by the queue itself, and then by the service.

use std::num::NonZeroU32;

use delayline_admin::{self as admin, AppQueue, AppSpec, Applied, Delivery};
use delayline_amqp::{Consumer, Next, Session};
use delayline_broker::retries_natively;
use delayline_core::{
    message::Value,
    topology::{NativeRetry, Rejected},
};
use delayline_settings::Settings;
use serde_json::{Value as Json, json};

use crate::common::{
    PATIENCE, app, eventually, http, installed, not_tested::not_tested, raw, shared_node, topology,
};

use super::daemon;

const ATTEMPTS: u32 = 2;

fn spec(key: &str) -> AppSpec {
    let retry: NativeRetry = "1s..2s".parse().unwrap();
    let retry = retry.with_attempts(NonZeroU32::new(ATTEMPTS).unwrap());
    let queue =
        AppQueue { rejected: Some(Rejected::Retried), native_retry: Some(retry), ..AppQueue::new(key) };
    AppSpec::new(app(key), Delivery::Direct(queue))
}

/// The next message of the queue, with its session and its consumer.
fn take(settings: &Settings) -> (Session, Consumer, delayline_amqp::Delivery) {
    let mut session = Session::open(&settings.broker).unwrap();
    let consumer = session.consume("billing", 1).unwrap();
    match consumer.next(PATIENCE) {
        Next::Delivery(delivery) => (session, consumer, delivery),
        other => panic!("the message does not arrive: {other:?}"),
    }
}

#[test]
fn a_consumer_that_crashes_gets_it_back_later_and_then_the_service_has_it() {
    let settings = installed(1);
    let version = Session::open(&settings.broker).unwrap().server_version().unwrap();
    let add = |spec: &AppSpec| admin::add_app(&settings, &topology(&settings), spec, false, false).unwrap();
    let report = add(&spec("billing"));
    if !retries_natively(Some(&version)) {
        assert_eq!(report.outcome, Applied::Conflict, "{report:?}");
        assert!(report.conflicts[0].contains(&format!("this is RabbitMQ {version}")), "{report:?}");
        let queues = http(&shared_node(), "GET", &format!("queues/{}", settings.broker.vhost), &Json::Null);
        assert!(queues.as_array().unwrap().iter().all(|queue| queue["name"] != "billing"), "{queues}");
        not_tested("native retry: only queues from 4.3 on delay returned messages");
        return;
    }
    assert_eq!(report.outcome, Applied::Installed, "{report:?}");
    assert_eq!(add(&spec("billing")).outcome, Applied::Unchanged);
    let daemon = daemon(&settings, "[default]\nfixed = '1s'\n");
    raw::publish(&settings, [raw::message("", "billing", "it", &json!({}))]);
    for crashed in 0..=ATTEMPTS {
        let (session, consumer, delivery) = take(&settings);
        assert_eq!(delivery.headers.get("delayline-attempt"), None, "the service has not seen it");
        let count = delivery.headers.get("x-delivery-count").and_then(Value::as_i64).unwrap_or(0);
        assert_eq!(count, i64::from(crashed), "{:?}", delivery.headers);
        drop((consumer, session));
    }
    let (_session, consumer, delivery) = take(&settings);
    assert_eq!(delivery.headers.get("delayline-attempt").and_then(Value::as_i64), Some(1));
    assert_eq!(delivery.body, b"it");
    consumer.ack(delivery).unwrap();
    eventually("the reason is logged", || daemon.log().contains("reason=delivery_limit"));
}

#[test]
fn an_existing_queue_without_native_retry_is_a_conflict_with_advice() {
    let settings = installed(1);
    let version = Session::open(&settings.broker).unwrap().server_version().unwrap();
    let plain = AppSpec::new(
        app("billing"),
        Delivery::Direct(AppQueue { rejected: Some(Rejected::Retried), ..AppQueue::new("billing") }),
    );
    let add = |spec: &AppSpec| admin::add_app(&settings, &topology(&settings), spec, false, false).unwrap();
    assert_eq!(add(&plain).outcome, Applied::Installed);
    let report = add(&spec("billing"));
    assert_eq!(report.outcome, Applied::Conflict, "{report:?}");
    let said = report.conflicts.join("\n");
    assert!(said.contains(r#""delayed-retry-min":1000"#), "{said}");
    if retries_natively(Some(&version)) {
        // The advice works.
        let policy =
            said.split("rabbitmqctl ").nth(1).expect("a command").split(" (only one").next().unwrap();
        let words = shlex(policy);
        shared_node().tell(&words.iter().map(String::as_str).collect::<Vec<_>>()).unwrap();
        let path = format!("queues/{}/billing", settings.broker.vhost);
        eventually("the policy applies", || {
            let queue = http(&shared_node(), "GET", &path, &Json::Null);
            queue["effective_policy_definition"]["delayed-retry-min"] == 1_000
        });
    }
}

/// The words of a command line as a shell splits it; some are in single quotes.
fn shlex(line: &str) -> Vec<String> {
    let output =
        std::process::Command::new("sh").args(["-c", &format!("printf '%s\\n' {line}")]).output().unwrap();
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}
