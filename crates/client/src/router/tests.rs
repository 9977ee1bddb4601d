//! Tests of the router with a scripted broker, for answers that a real broker rarely gives.

mod answers;
mod culprits;
mod scripted;
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use super::*;
use delayline_amqp::{AmqpError, Event};
use delayline_core::{
    codec::AppKey,
    message::{InvalidMessage, direct},
    topology::Unit,
};
use scripted::{Scripted, builder};

const SHORT: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(20);

fn message(body: &str) -> Message {
    Message::after(AppKey::new("app").unwrap(), Delay::from_seconds(5).unwrap(), body)
}

fn ack(tag: u64) -> Vec<Event> {
    vec![Event::Ack { tag, multiple: false }]
}

#[test]
fn confirms() {
    let broker = Scripted::new(|_, tag, _| ack(tag));
    let receipt = broker.router(LONG, 10).publish(message("a")).unwrap();
    assert_eq!((receipt.delay.seconds(), receipt.publishes), (5, 1));
}

#[test]
fn every_answer_settles_its_own_messages_once() {
    // The order that trips the client library's own helper: nack(2), ack(3, multiple).
    let broker = Scripted::new(|_, tag, _| match tag {
        3 => vec![
            Event::Nack { tag: 2, multiple: false },
            Event::Ack { tag: 3, multiple: true },
            Event::Ack { tag: 3, multiple: true },
            Event::Ack { tag: 99, multiple: false },
        ],
        4 => ack(tag),
        _ => vec![],
    });
    let router = broker.router(LONG, 10);
    let mut pipeline = router.pipeline();
    let mut outcomes = Vec::new();
    for tag in 1..=3 {
        outcomes.extend(pipeline.push(tag, message("a")));
    }
    outcomes.extend(pipeline);
    let mut results: Vec<_> = outcomes
        .into_iter()
        .map(|outcome| (outcome.tag, outcome.result.map_err(|e| e.cause().clone())))
        .collect();
    results.sort_by_key(|(tag, _)| *tag);
    let publishes: Vec<_> = results.iter().map(|(_, result)| result.as_ref().unwrap().publishes).collect();
    assert_eq!(publishes, [1, 2, 1], "only the nacked one is published again");
}

#[test]
fn a_nack_of_a_delayed_message_is_tried_again_while_an_answer_can_come_in_time() {
    let broker = Scripted::new(|_, tag, _| match tag {
        1 | 2 => vec![Event::Nack { tag, multiple: false }],
        _ => ack(tag),
    });
    assert_eq!(broker.router(LONG, 10).publish(message("a")).unwrap().publishes, 3);

    let broker = Scripted::new(|_, tag, _| vec![Event::Nack { tag, multiple: false }]);
    let error = broker.router(SHORT, 10).publish(message("mine")).unwrap_err();
    assert!(broker.bodies().len() > 1);
    assert_eq!(error.cause(), &Cause::Nacked);
    assert!(!error.maybe_delivered(), "the broker refused every copy");
    assert_eq!(error.into_message(), message("mine"));
    // The answer to a copy in the last eighth of the time could come too late.
    let copies = broker.bodies().len();
    broker.router(Duration::from_millis(110), 10).publish(message("mine")).unwrap_err();
    assert!(broker.bodies().len() <= copies + 1);
}

#[test]
fn closing_waits_for_nacked_messages() {
    let broker = Scripted::new(|_, tag, _| match tag {
        1 => vec![Event::Nack { tag, multiple: false }],
        _ => ack(tag),
    });
    let router = broker.router(LONG, 10);
    let mut pipeline = router.pipeline();
    pipeline.push((), message("a"));
    drop(pipeline);
    router.close(LONG).unwrap();
    assert_eq!(broker.bodies(), ["a", "a"]);
}

#[test]
fn a_return_finds_its_message_among_others() {
    let mut broker = Scripted::new(|_, tag, _| ack(tag));
    broker.returned = |_, body| body == b"b";
    let router = broker.router(LONG, 10);
    let mut pipeline = router.pipeline();
    let mut results = Vec::new();
    for (tag, body, header) in [(1, "a", 1.0), (2, "b", 2.0), (3, "b", 3.0), (4, "c", 4.0)] {
        results.extend(pipeline.push(tag, message(body).with_header("x", header)));
    }
    results.extend(pipeline);
    assert_eq!(results.len(), 4);
    for outcome in results {
        match outcome.result {
            Ok(_) => assert!(matches!(outcome.tag, 1 | 4), "{}", outcome.tag),
            Err(error) => {
                assert!(matches!(outcome.tag, 2 | 3), "{}", outcome.tag);
                assert!(matches!(error.cause(), Cause::Returned { code: 312, .. }), "{error}");
                assert!(!error.maybe_delivered());
            }
        }
    }
}

#[test]
fn a_return_finds_its_message_among_others_that_differ_in_the_exchange_alone() {
    let mut broker = Scripted::new(|_, tag, _| ack(tag));
    broker.returned = |exchange, _| exchange == "unbound";
    let router = broker.router(LONG, 10);
    let mut pipeline = router.pipeline();
    let mut outcomes = Vec::new();
    for exchange in ["bound", "unbound", "bound"] {
        let message = direct::to(AppKey::new("app").unwrap(), exchange.into(), "same");
        // The broker may be faster than this thread.
        outcomes.extend(pipeline.push(exchange, message));
    }
    outcomes.extend(pipeline);
    assert_eq!(outcomes.len(), 3);
    for outcome in outcomes {
        assert_eq!(outcome.result.is_err(), outcome.tag == "unbound", "{}", outcome.tag);
    }
}

#[test]
fn messages_of_a_lost_connection_are_published_again_and_counted() {
    let broker = Scripted::new(|number, tag, _| match (number, tag) {
        (0, 1) => vec![],
        (0, _) => vec![Event::Ended],
        _ => ack(tag),
    });
    let router = broker.router(LONG, 10);
    let mut pipeline = router.pipeline();
    let mut outcomes = Vec::new();
    for (tag, body) in [(1, "a"), (2, "b")] {
        outcomes.extend(pipeline.push(tag, message(body)));
    }
    outcomes.extend(pipeline);
    let receipts: Vec<_> = outcomes.into_iter().map(|outcome| outcome.result.unwrap().publishes).collect();
    assert_eq!(receipts, [2, 2]);
    assert_eq!(broker.bodies(), ["a", "b", "a", "b"]);
}

/// A message with an id, and units so short that a wait changes the delay.
fn recallable() -> (Message, RouterBuilder) {
    let target = Target::from_url("amqp://unused").unwrap().with_unit(Unit::from_millis(1).unwrap());
    (message("a").with_id("id".parse().unwrap()), Router::builder(target))
}

#[test]
fn the_key_of_a_message_with_an_id_stays_the_same_on_the_next_connection() {
    let broker = Scripted::new(|number, tag, _| if number == 0 { vec![Event::Ended] } else { ack(tag) });
    let (with_id, how) = recallable();
    let receipt = broker.start(how.clone()).publish(with_id).unwrap();
    let keys = std::mem::take(&mut *broker.keys.lock().unwrap());
    assert_eq!((receipt.publishes, keys.len()), (2, 2));
    assert_eq!(keys[0], keys[1]);
    let handle = receipt.handle.unwrap();
    assert_eq!((handle.routing_key().encode(), handle.due()), (keys[0].clone(), Some(receipt.due)));
    assert_eq!(handle.routing_key().delay, receipt.delay);
    // Without an id, the remaining delay counts.
    broker.connections.store(0, Ordering::SeqCst);
    let minutes = Delay::from_seconds(1_000).unwrap();
    let receipt =
        broker.start(how).publish(Message::after(AppKey::new("app").unwrap(), minutes, "a")).unwrap();
    let keys = broker.keys.lock().unwrap();
    assert!(receipt.handle.is_none() && keys[0] != keys[1], "{keys:?}");
}

#[test]
fn a_message_with_an_id_that_may_be_delivered_keeps_its_handle_when_it_is_published_again() {
    let broker = Scripted::new(|number, tag, _| if number == 0 { vec![] } else { ack(tag) });
    let (with_id, how) = recallable();
    let error = broker.start(how.clone().publish_timeout(SHORT)).publish(with_id).unwrap_err();
    let handle = error.handle().expect("it was sent").clone();
    let receipt = broker.start(how.clone()).publish(error.into_message()).unwrap();
    assert_eq!(receipt.handle, Some(handle));
    // A message that was never sent has no handle yet.
    let mut broker = broker;
    broker.refuse = |_| true;
    let error = broker.start(how.publish_timeout(SHORT)).publish(recallable().0).unwrap_err();
    assert!(error.handle().is_none() && !error.maybe_delivered());
}

#[test]
fn keeps_trying_until_the_deadline_without_a_connection() {
    let mut broker = Scripted::new(|_, tag, _| ack(tag));
    broker.refuse = |number| number < 3;
    let router = broker.router(LONG, 10);
    assert_eq!(router.publish(message("a")).unwrap().publishes, 1);

    broker.refuse = |_| true;
    let started = Instant::now();
    let error = broker.router(SHORT, 10).publish(message("a")).unwrap_err();
    assert!(matches!(error.cause(), Cause::NotConnected { reason } if reason.contains("down")), "{error}");
    assert!(!error.maybe_delivered() && started.elapsed() >= SHORT);
}

#[test]
fn a_message_that_is_not_confirmed_in_time_is_published_again_elsewhere() {
    // The first connection answers for one message and never for the other.
    let broker = Scripted::new(|connection, tag, body| match (connection, body) {
        (0, b"unlucky") => vec![],
        _ => ack(tag),
    });
    let router = broker.start(builder().confirm_timeout(Duration::from_millis(200)));
    assert_eq!(router.publish(message("lucky")).unwrap().publishes, 1);
    assert_eq!(router.publish(message("unlucky")).unwrap().publishes, 2);
    assert_eq!(broker.bodies(), ["lucky", "unlucky", "unlucky"]);
}

#[test]
fn a_blocked_broker_gets_nothing_until_it_unblocks() {
    let broker = Scripted::new(|_, tag, _| match tag {
        1 => vec![Event::Ack { tag, multiple: false }, Event::Blocked("low on memory".into())],
        _ => ack(tag),
    });
    let router = broker.router(SHORT, 10);
    router.publish(message("a")).unwrap();
    let error = router.publish(message("b")).unwrap_err();
    assert_eq!(error.cause(), &Cause::Blocked { reason: "low on memory".into() });
    assert!(!error.maybe_delivered());
    assert_eq!(broker.bodies(), ["a"]);
}

#[test]
fn an_invalid_message_is_never_sent() {
    let broker = Scripted::new(|_, tag, _| ack(tag));
    let router = broker.router(LONG, 2);
    let invalid = || {
        let mut message = message("a");
        message.properties.message_id = Some("x".repeat(256));
        message
    };
    let error = router.publish(invalid()).unwrap_err();
    assert!(matches!(error.cause(), Cause::Invalid(InvalidMessage::PropertyTooLong { .. })));
    // In a full pipeline its outcome comes beside the others'.
    let mut pipeline = router.pipeline();
    let mut tags = Vec::new();
    for tag in 0..20 {
        let message = if tag % 3 == 0 { invalid() } else { message("b") };
        tags.extend(pipeline.push(tag, message).map(|outcome| (outcome.tag, outcome.result.is_ok())));
    }
    tags.extend(pipeline.map(|outcome| (outcome.tag, outcome.result.is_ok())));
    tags.sort_unstable();
    assert_eq!(tags, (0..20).map(|tag| (tag, tag % 3 != 0)).collect::<Vec<_>>());
}

#[test]
fn the_window_limits_messages_in_flight() {
    let most = Arc::new(AtomicU32::new(0));
    let broker = {
        let most = Arc::clone(&most);
        let mut unconfirmed = 0;
        Scripted::new(move |_, tag, _| {
            unconfirmed += 1;
            most.fetch_max(unconfirmed, Ordering::SeqCst);
            if unconfirmed < 4 {
                return vec![];
            }
            unconfirmed = 0;
            vec![Event::Ack { tag, multiple: true }]
        })
    };
    let router = broker.router(LONG, 4);
    let mut pipeline = router.pipeline();
    let mut confirmed = 0;
    for tag in 0..400 {
        confirmed += pipeline.push(tag, message("a")).iter().count();
        assert!(pipeline.in_flight() <= 4);
    }
    confirmed += pipeline.count();
    assert_eq!(confirmed, 400);
    assert_eq!(most.load(Ordering::SeqCst), 4);
}

#[test]
fn many_threads_share_a_router() {
    let router = Scripted::new(|_, tag, _| ack(tag)).router(LONG, 8);
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let router = router.clone();
            thread::spawn(move || (0..50).all(|_| router.publish(message("a")).is_ok()))
        })
        .collect();
    assert!(threads.into_iter().all(|thread| thread.join().unwrap()));
}

#[test]
fn closing_finishes_messages_in_flight_or_reports_an_error() {
    let broker = Scripted::new(|_, tag, _| ack(tag));
    let router = broker.router(LONG, 10);
    let mut pipeline = router.pipeline();
    pipeline.push((), message("a"));
    drop(pipeline);
    router.close(LONG).unwrap();
    assert_eq!(broker.bodies(), ["a"]);

    let router = Scripted::new(|_, _, _| vec![]).router(LONG, 10);
    let mut pipeline = router.pipeline();
    pipeline.push((), message("a"));
    drop(pipeline);
    let started = Instant::now();
    assert!(router.close(SHORT).is_err());
    assert!(started.elapsed() < LONG);
}

#[test]
fn an_answer_after_a_lost_connection_leaves_a_doubt() {
    let broker = Scripted::new(|number, tag, _| match number {
        0 => vec![Event::Ended],
        _ => vec![Event::Nack { tag, multiple: false }],
    });
    let error = broker.router(Duration::from_secs(1), 10).publish(message("a")).unwrap_err();
    assert_eq!(error.cause(), &Cause::Nacked);
    assert!(error.maybe_delivered(), "the first connection may have stored it");
}

#[test]
fn abandoned_messages_do_not_keep_others_out() {
    let mut broker = Scripted::new(|_, tag, _| ack(tag));
    broker.refuse = |_| true;
    let router = broker.router(SHORT, 4);
    let mut pipeline = router.pipeline();
    let mut outcomes = 0;
    for tag in 0..12 {
        outcomes += pipeline.push(tag, message("a")).iter().count();
    }
    outcomes += pipeline.inspect(|outcome| assert!(outcome.result.is_err())).count();
    assert_eq!(outcomes, 12);
}

#[test]
fn closing_counts_abandoned_messages() {
    let broker = Scripted::new(|_, _, _| vec![]);
    let router = broker.router(LONG, 10); // With SHORT, a slow test gives it up before it closes.
    let mut pipeline = router.pipeline();
    pipeline.push((), message("a"));
    drop(pipeline);
    assert_eq!(router.close(SHORT), Err(CloseError::Unconfirmed { count: 1 }));

    let mut broker = Scripted::new(|_, tag, _| ack(tag));
    broker.refuse = |_| true;
    let started = Instant::now();
    broker.router(LONG, 10).close(LONG).expect("there was nothing to confirm");
    assert!(started.elapsed() < LONG, "nothing in flight, nothing to wait for");
}

#[test]
fn a_message_that_waits_in_the_router_is_not_late_for_it() {
    let broker = Scripted::new(|number, tag, _| if number == 0 { vec![Event::Ended] } else { ack(tag) });
    let target = Target::from_url("amqp://unused").unwrap().with_unit(Unit::from_millis(10).unwrap());
    let router = broker.start(Router::builder(target).publish_timeout(LONG));
    let receipt = router
        .publish(Message::after(AppKey::new("app").unwrap(), Delay::from_seconds(1_000).unwrap(), ""))
        .unwrap();
    // Reconnecting took at least 100 ms, which are 10 units.
    assert_eq!(receipt.publishes, 2);
    assert!(receipt.delay.seconds() <= 990, "{receipt:?}");
}
