//! Messages over which the broker ends channels and connections.

use super::*;

#[test]
fn a_refused_message_is_found_among_innocent_ones() {
    let mut broker = Scripted::new(|_, tag, body| match body {
        b"bad" => vec![Event::Ended],
        b"slow" if tag < 3 => vec![],
        _ => ack(tag),
    });
    broker.end = |_| AmqpError::Channel { code: 403, text: "ACCESS_REFUSED".into() };
    let router = broker.router(LONG, 10);
    let mut pipeline = router.pipeline();
    let mut results = Vec::new();
    for body in ["good", "bad", "good", "bad", "good"] {
        results.extend(pipeline.push(body, message(body)));
    }
    results.extend(pipeline);
    assert_eq!(results.len(), 5);
    for outcome in results {
        match (outcome.tag, outcome.result) {
            ("good", Ok(_)) => {}
            ("bad", Err(error)) => {
                assert!(matches!(error.cause(), Cause::Rejected { code: 403, .. }), "{error}");
                assert!(!error.maybe_delivered());
            }
            other => panic!("{other:?}"),
        }
    }
    // All of it on one connection: the broker closed channels only.
    assert_eq!(broker.connections.load(Ordering::SeqCst), 1);
}

#[test]
fn a_message_that_ends_the_connection_does_not_end_the_next_ones_too() {
    let mut broker = Scripted::new(|_, tag, body| if body == b"bad" { vec![Event::Ended] } else { ack(tag) });
    broker.end = |_| AmqpError::Closed { code: 501, text: "FRAME_ERROR".into() };
    let router = broker.router(LONG, 10);
    let error = router.publish(message("bad")).unwrap_err();
    assert!(matches!(error.cause(), Cause::Rejected { code: 501, .. }), "{error}");
    router.publish(message("good")).unwrap();
    assert_eq!(broker.bodies(), ["bad", "good"]);
}

#[test]
fn a_broker_that_shuts_down_is_no_messages_fault() {
    let mut broker = Scripted::new(|number, tag, _| if number == 0 { vec![Event::Ended] } else { ack(tag) });
    broker.end = |_| AmqpError::Closed { code: 320, text: "CONNECTION_FORCED".into() };
    assert_eq!(broker.router(LONG, 10).publish(message("a")).unwrap().publishes, 2);
}

/// 200 innocent messages around a bad one, and how often each was published.
fn beside_a_bad_one(broker: &Scripted) -> (Vec<u32>, PublishError) {
    let router = broker.router(LONG, 300);
    let mut pipeline = router.pipeline();
    let mut outcomes = Vec::new();
    for number in 0..201 {
        let body = if number == 100 { "bad" } else { "good" };
        outcomes.extend(pipeline.push(body, message(body)));
    }
    outcomes.extend(pipeline);
    assert_eq!(outcomes.len(), 201);
    let (good, mut bad): (Vec<_>, Vec<_>) = outcomes.into_iter().partition(|outcome| outcome.tag == "good");
    let published = good.into_iter().map(|outcome| outcome.result.expect("it is innocent").publishes);
    (published.collect(), bad.pop().unwrap().result.unwrap_err())
}

#[test]
fn a_message_that_crashes_the_broker_is_found_after_the_first_repeat() {
    let mut broker = Scripted::new(|_, tag, body| if body == b"bad" { vec![Event::Ended] } else { ack(tag) });
    broker.end = |_| AmqpError::Closed { code: 541, text: "INTERNAL_ERROR".into() };
    let (published, error) = beside_a_bad_one(&broker);
    assert!(published.iter().all(|times| *times <= 2), "{published:?}");
    assert_eq!(error.cause(), &Cause::Rejected { code: 541, text: "INTERNAL_ERROR".into() });
    assert!(error.maybe_delivered(), "it may have been stored in one queue before the crash over another");
    assert!(error.to_string().contains("crashes over this message"), "{error}");
    assert_eq!(broker.connections.load(Ordering::SeqCst), 3);
}

#[test]
fn a_message_that_ends_connections_without_a_reason_is_found_as_well() {
    let broker = Scripted::new(|_, tag, body| if body == b"bad" { vec![Event::Ended] } else { ack(tag) });
    let (published, error) = beside_a_bad_one(&broker);
    assert!(published.iter().all(|times| *times <= 4), "{published:?}");
    assert!(matches!(error.cause(), Cause::Rejected { code: 0, text } if text.contains("alone")), "{error}");
    assert!(error.maybe_delivered());
}

#[test]
fn a_broker_that_crashes_once_blames_no_message() {
    let mut broker = Scripted::new(|number, tag, _| if number == 0 { vec![Event::Ended] } else { ack(tag) });
    broker.end = |_| AmqpError::Closed { code: 541, text: "INTERNAL_ERROR".into() };
    let receipt = broker.router(LONG, 10).publish(message("a")).unwrap();
    assert_eq!(receipt.publishes, 2);
}

#[test]
fn a_network_that_comes_and_goes_blames_no_message_and_connects_less_and_less_often() {
    let broker = Scripted::new(|number, tag, _| if number < 4 { vec![Event::Ended] } else { ack(tag) });
    assert_eq!(broker.router(LONG, 10).publish(message("a")).unwrap().publishes, 5);
    // Each connection ends at once, so pauses of 0.1, 0.2, 0.4, 0.8 s and so on are between them.
    let broker = Scripted::new(|_, _, _| vec![Event::Ended]);
    let error = broker.router(Duration::from_secs(2), 10).publish(message("a")).unwrap_err();
    // The deadline can pass just after it was sent.
    let blamed = !matches!(error.cause(), Cause::NotConnected { .. } | Cause::Unconfirmed { .. });
    assert!(!blamed, "{error}");
    let connections = broker.connections.load(Ordering::SeqCst);
    assert!(connections <= 6, "{connections}");
}

#[test]
fn nothing_is_sent_beside_a_suspect() {
    let beside = Arc::new(AtomicU32::new(0));
    let mut broker = Scripted::new({
        let beside = Arc::clone(&beside);
        move |number, tag, body| match number {
            // All ten are in flight when it ends.
            0 if body == b"9" => vec![Event::Ended],
            0 => vec![],
            // No answer for the first one: nothing may follow.
            1 => {
                beside.fetch_add(u32::from(tag > 1), Ordering::SeqCst);
                vec![]
            }
            _ => ack(tag),
        }
    });
    broker.end = |_| AmqpError::Closed { code: 541, text: "INTERNAL_ERROR".into() };
    let confirm_timeout = Duration::from_millis(500);
    let router = broker.start(builder().publish_timeout(LONG).confirm_timeout(confirm_timeout));
    let mut pipeline = router.pipeline();
    for number in 0..10 {
        assert!(pipeline.push((), message(&number.to_string())).is_none());
    }
    assert_eq!(pipeline.filter(|outcome| outcome.result.is_ok()).count(), 10);
    assert_eq!(beside.load(Ordering::SeqCst), 0);
    assert!(broker.connections.load(Ordering::SeqCst) >= 3);
}
