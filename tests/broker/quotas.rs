//! Limits on messages: who enforces them, and the errors.

use delayline_amqp::Session;
use delayline_client::router::Cause;
use delayline_core::{Message, codec::Delay, message::InvalidMessage};
use delayline_node::{NodeOptions, PrivateNode};
use delayline_settings::{Layers, Settings};
use serde_json::json;

use crate::common::Counting;
use crate::common::{app, eventually, http, install, installed, shared_node};

fn message(delay: &str, size: usize) -> Message {
    Message::after(app("billing"), delay.parse::<Delay>().unwrap(), vec![b'x'; size])
}

fn waiting(settings: &Settings) -> u32 {
    let mut session = Session::open(&settings.broker).unwrap();
    (0..28).map(|level| session.counts(&format!("delay.level.{level:02}")).unwrap().unwrap().ready).sum()
}

#[test]
fn the_router_refuses_messages_over_its_quota_and_sends_nothing() {
    let mut settings = installed(1_000);
    settings.router.quota.max_message_size = Some(100);
    settings.router.quota.max_delay = "1d billing=2d".parse().unwrap();
    let router = settings.router().connect().unwrap();
    let error = router.publish(message("172801s", 1)).unwrap_err();
    assert!(matches!(error.cause(), Cause::Invalid(InvalidMessage::OverDelay { .. })), "{error}");
    assert!(!error.maybe_delivered() && error.to_string().contains("`billing`"), "{error}");
    let error = router.publish(message("1d", 101)).unwrap_err();
    assert!(
        matches!(error.cause(), Cause::Invalid(InvalidMessage::OverSize { size: 101, limit: 100 })),
        "{error}"
    );
    assert_eq!(error.into_message().body.len(), 101);
    // In a pipeline, only the message over the limit fails.
    let mut pipeline = router.pipeline();
    let mut outcomes = Vec::new();
    for (tag, delay) in ["1d", "3d", "2d"].into_iter().enumerate() {
        outcomes.extend(pipeline.push(tag, message(delay, 100)));
    }
    outcomes.extend(pipeline);
    let mut confirmed: Vec<_> =
        outcomes.iter().filter(|outcome| outcome.result.is_ok()).map(|outcome| outcome.tag).collect();
    confirmed.sort_unstable();
    assert_eq!(confirmed, [0, 2]);
    eventually("only those two messages wait", || waiting(&settings) == 2);
}

/// The settings of a user with the permissions of the application `billing`.
fn tenant(node: &PrivateNode, vhost: &str, pattern: &str) -> Layers {
    let (path, name) = (vhost.replace('/', "%2F"), format!("quota-{}", vhost.trim_matches('/')));
    http(node, "PUT", &format!("users/{name}"), &json!({"password": "p", "tags": ""}));
    let permission = json!({"configure": "^$", "write": "^delay$", "read": "^$"});
    http(node, "PUT", &format!("permissions/{path}/{name}"), &permission);
    let topic = json!({"exchange": "delay", "write": pattern, "read": "^$"});
    http(node, "PUT", &format!("topic-permissions/{path}/{name}"), &topic);
    let url = format!("{}/{path}", node.url());
    node.settings().set("url", url).set("username", name).set("password", "p")
}

/// The documented pattern for delays up to 3 days.
fn documented_pattern() -> &'static str {
    let document = include_str!("../../docs/explanation/guarantees.md");
    let (_, rest) = document.split_once("billing delay '").expect("the command is in the document");
    rest.split_once('\'').unwrap().0
}

#[test]
fn a_topic_permission_bounds_the_delay_for_any_client() {
    let settings = installed(1_000);
    let tenant = tenant(&shared_node(), &settings.broker.vhost, documented_pattern()).build().unwrap();
    let router = tenant.router().connect().unwrap();
    let longest = (1 << 18) - 1;
    router.publish(message(&format!("{longest}s"), 1)).unwrap();
    let error = router.publish(message(&format!("{}s", longest + 1), 1)).unwrap_err();
    assert!(matches!(error.cause(), Cause::Rejected { code: 403, .. }), "{error}");
    router.publish(message("1h", 1)).unwrap();
    eventually("the refused message is nowhere", || waiting(&settings) == 2);
}

#[test]
fn the_brokers_limit_on_size_refuses_one_message_alone() {
    let node = PrivateNode::start(NodeOptions {
        config: "max_message_size = 1000\n".into(),
        ..NodeOptions::default()
    })
    .unwrap();
    let settings = node.settings().build().unwrap();
    install(&settings);
    let router = settings.router().connect().unwrap();
    let mut pipeline = router.pipeline();
    let mut outcomes = Vec::new();
    for size in [1_000, 1_001, 5, 2_000_000, 6] {
        outcomes.extend(pipeline.push(size, message("1h", size)));
    }
    outcomes.extend(pipeline);
    for outcome in &outcomes {
        match (&outcome.result, outcome.tag > 1_000) {
            (Ok(_), false) => {}
            (Err(error), true) => {
                assert!(matches!(error.cause(), Cause::Rejected { code: 406, .. }), "{error}");
                assert!(error.to_string().contains("larger than configured max size 1000"), "{error}");
            }
            (result, _) => panic!("{} bytes: {result:?}", outcome.tag),
        }
    }
    assert_eq!(outcomes.len(), 5);
    eventually("the other messages wait", || waiting(&settings) >= 3);
}
