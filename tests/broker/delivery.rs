use std::{
    collections::{HashMap, HashSet},
    thread,
};

use delayline_client::Router;
use delayline_core::{
    Message,
    codec::{Delay, Tolerance},
    message::{Properties, When},
};
use delayline_settings::Settings;
use jiff::{Timestamp, ToSpan};

use crate::common::{Arrival, Inbox, PATIENCE, app, installed, lateness};

fn message(id: usize, delay: u64) -> Message {
    let properties = Properties { message_id: Some(id.to_string()), ..Properties::default() };
    Message::after(app("app"), Delay::from_seconds(delay).unwrap(), "x".repeat(256))
        .with_properties(properties)
}

/// A router that waits for the broker as long as the test. If it sent a message again, the message
/// would arrive twice.
fn patient_router(settings: &Settings) -> Router {
    settings.router().confirm_timeout(PATIENCE).publish_timeout(PATIENCE).connect().unwrap()
}

/// Publishes through a pipeline, and returns the due time of each message.
fn publish(router: &Router, messages: impl Iterator<Item = (usize, u64)>) -> HashMap<String, Timestamp> {
    let mut due = HashMap::new();
    let mut pipeline = router.pipeline();
    let mut note = |outcome: delayline_client::router::Outcome<usize>| {
        due.insert(outcome.tag.to_string(), outcome.result.unwrap().due);
    };
    for (id, delay) in messages {
        pipeline.push(id, message(id, delay)).into_iter().for_each(&mut note);
    }
    pipeline.for_each(&mut note);
    due
}

/// Checks that every confirmed message arrived exactly once, and that none was early.
fn check(arrivals: &[Arrival], due: &HashMap<String, Timestamp>) {
    let ids: HashSet<_> = arrivals.iter().map(|arrival| &arrival.id).collect();
    assert_eq!((arrivals.len(), ids.len()), (due.len(), due.len()), "each message arrives once");
    for arrival in arrivals {
        let due = due[&arrival.id];
        assert_eq!(arrival.headers["delayline-due"].as_i64(), Some(due.as_millisecond()));
        assert!(arrival.late_ms() >= 0, "message {} came {} ms early", arrival.id, -arrival.late_ms());
    }
}

#[test]
fn ten_thousand_random_delays_arrive_once_and_none_early() {
    let settings = installed(1);
    let inbox = Inbox::open(&settings, "app");
    let router = patient_router(&settings);
    let mut random = fastrand::Rng::with_seed(1);
    // Units of 1 ms, up to 8.2 s: levels 0 to 12.
    let delays = (0..10_000).map(|id| (id, random.u64(0..8_192)));
    let collecting = thread::spawn(move || (inbox.collect(10_000, PATIENCE), inbox));
    let due = publish(&router, delays);
    let (mut arrivals, inbox) = collecting.join().unwrap();
    // A last message through every level, behind all others, to show that no message comes twice.
    let last = Delay::from_seconds(8_191).unwrap();
    router.publish(Message::after(app("app"), last, "the last")).unwrap();
    arrivals.extend(inbox.until("the last"));
    check(&arrivals, &due);
    println!("10,000 random delays of 0 to 8,191 ms: {}", lateness(&arrivals));
}

#[test]
fn two_hundred_real_delays_arrive_once_and_none_early() {
    let settings = installed(1_000);
    let inbox = Inbox::open(&settings, "app").collecting(200, PATIENCE);
    let router = patient_router(&settings);
    let mut random = fastrand::Rng::with_seed(2);
    let due = publish(&router, (0..200).map(|id| (id, random.u64(0..=20))));
    let arrivals = inbox.join().unwrap();
    check(&arrivals, &due);
    println!("200 real delays of 0 to 20 s: {}", lateness(&arrivals));
}

#[test]
fn every_level_hands_on_to_the_right_one() {
    // Delays of a single bit, and one unit more or less, as long as a test can wait with a unit of
    // 1 ms.
    let settings = installed(1);
    let inbox = Inbox::open(&settings, "app");
    let router = patient_router(&settings);
    let delays: Vec<u64> =
        (0..13).flat_map(|level| [(1 << level) - 1, 1 << level, (1 << level) + 1]).collect();
    let due = publish(&router, delays.iter().copied().enumerate());
    check(&inbox.collect(delays.len(), PATIENCE), &due);
}

#[test]
fn the_longest_delay_waits_at_the_top() {
    let settings = installed(1_000);
    let router = patient_router(&settings);
    let receipt = router.publish(Message::after(app("app"), Delay::MAX, "x")).unwrap();
    assert_eq!((receipt.delay, receipt.delay.hops()), (Delay::MAX, 28));
    let status = crate::common::status(&settings);
    assert_eq!(status.levels[0].ready, Some(1));
}

#[test]
fn an_instant_is_not_missed_by_more_than_its_rounding() {
    let settings = installed(1_000);
    let inbox = Inbox::open(&settings, "app");
    let router = patient_router(&settings);
    let at = Timestamp::now() + 1_500.milliseconds();
    router.publish(Message::at(app("app"), at, "x")).unwrap();
    router.publish(Message::at(app("app"), Timestamp::now() - 1.hour(), "past")).unwrap();
    // On a slow machine, the first message may be due when the second is sent.
    let arrivals = inbox.collect(2, PATIENCE);
    let due = arrivals.iter().find(|arrival| arrival.body == b"x").expect("the message with an instant");
    assert!(arrivals.len() == 2 && due.at >= at, "{} is before {at}", due.at);
}

#[test]
fn a_tolerance_saves_hops() {
    // Units that are long compared to the time that a message may wait in a busy router: the
    // receipt shows the rest of the delay.
    let settings = installed(200);
    let inbox = Inbox::open(&settings, "app");
    let router = patient_router(&settings);
    let tolerance: Tolerance = "60%".parse().unwrap();
    let receipt = router.publish(message(0, 10).with_tolerance(tolerance)).unwrap();
    assert_eq!((receipt.delay.seconds(), receipt.delay.hops()), (16, 1));
    assert!(inbox.collect(1, PATIENCE)[0].late_ms() >= 0);
}

#[test]
fn large_and_empty_bodies_arrive_whole() {
    let settings = installed(1);
    let inbox = Inbox::open(&settings, "app");
    let router = patient_router(&settings);
    // Together, these are more than the router keeps in flight, and more than the client library
    // buffers.
    let bodies: Vec<Vec<u8>> =
        (0..30).map(|n: u8| vec![n; 1 << 20]).chain([vec![], vec![0xff; 12 << 20]]).collect();
    let mut pipeline = router.pipeline();
    for (tag, body) in bodies.iter().enumerate() {
        let properties = Properties { message_id: Some(tag.to_string()), ..Properties::default() };
        let message = Message::new(app("app"), When::After(Delay::from_seconds(3).unwrap()), body.clone());
        let outcome = pipeline.push(tag, message.with_properties(properties));
        assert!(outcome.is_none_or(|outcome| outcome.result.is_ok()));
    }
    assert!(pipeline.all(|outcome| outcome.result.is_ok()));
    let arrivals = inbox.collect(bodies.len(), PATIENCE);
    assert_eq!(arrivals.len(), bodies.len());
    for arrival in arrivals {
        let index: usize = arrival.id.parse().unwrap();
        assert!(arrival.body == bodies[index], "body {index} changed");
    }
}
