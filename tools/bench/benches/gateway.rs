//! A gateway for `x-delay`, by daemons of their own: how many messages a second one takes in,
//! their lateness at 1,000 a second, and losses when a second daemon is killed.
//!
//!     cargo bench -p delayline-bench --bench gateway                   # 20,000 messages through two daemons
//!     COUNT=100000 cargo bench -p delayline-bench --bench gateway
//!     RATE=300 cargo bench -p delayline-bench --bench gateway          # lateness at 300 a second
//!
//! Beside the lateness stands how long the same messages take without a delay, published at the
//! same rate to the exchange behind the gateway: the share of broker and machine.

mod common;

use std::{
    thread,
    time::{Duration, Instant},
};

use common::{BODY, Lab, number, publish};
use delayline_admin as admin;
use delayline_amqp::{Consumer, Next, Session};
use delayline_core::{
    Message,
    codec::AppKey,
    ledger::{Answer, Ledger},
    message::{Value, direct},
    topology::{Binding, Endpoint, ExchangeKind, Queue},
};
use jiff::Timestamp;

const NAME: &str = "bench.delayed";

/// How many messages one daemon finds waiting.
const BACKLOG: u32 = 30_000;

/// For how long messages are published at a steady rate, in s.
const STEADY: u32 = 30;

/// The longest delay, in ms.
const LONGEST: u32 = 20_000;

fn main() {
    let Some(lab) = Lab::start() else { return };
    let (count, rate) = (number("COUNT", 20_000), number("RATE", 1_000));
    let settings = &lab.settings;
    let added = admin::add_gateway(settings, &lab.topology, NAME, ExchangeKind::Topic, false);
    added.unwrap().unwrap();
    let mut session = Session::open(&settings.broker).unwrap();
    let quorum = [("x-queue-type".to_owned(), "quorum".into())];
    session.declare_queue(&Queue::new("out").with_arguments(quorum)).unwrap();
    let destination = Endpoint::Queue("out".into());
    session.bind(&Binding { source: NAME.into(), destination, key: "#".into() }).unwrap();
    let consumer = session.consume("out", 2_000).unwrap();
    let entry = format!("{NAME}.in");
    let serve = || lab.serve(&["--no-canary", "--no-web"], "warn", tempfile::tempfile().unwrap());

    // No daemon runs: all wait for it. After an hour they would be due.
    publish(settings, BACKLOG, None, |id| message(&entry, id, 3_600_000));
    let one = serve();
    let mut depth = || session.queue_depth(&format!("delay.gateway.{NAME}")).unwrap().unwrap().ready.unwrap();
    while depth() > BACKLOG - 1_000 {
        thread::sleep(Duration::from_millis(5));
    }
    let (began, first) = (Instant::now(), depth());
    while depth() > 0 {
        thread::sleep(Duration::from_millis(5));
    }
    let taken_in = f64::from(first) / began.elapsed().as_secs_f64();
    println!("one daemon takes in {taken_in:.0}/s, of {BACKLOG} messages of {BODY} bytes that waited for it");

    let steady = STEADY * rate;
    let delay = |id: u32| 1 + id.wrapping_mul(7_919) % LONGEST;
    let direct = through(&consumer, steady, || {
        publish(settings, steady, Some(rate), |id| message(NAME, id, 0));
    });
    println!("{rate}/s for {STEADY} s without a delay, past the gateway: {direct}");
    let delayed = through(&consumer, steady, || {
        publish(settings, steady, Some(rate), |id| message(&entry, id, delay(id)));
    });
    println!("{rate}/s for {STEADY} s, delays of 1 ms to {} s: {delayed}", LONGEST / 1_000);

    let two = serve();
    let killed = through(&consumer, count, || {
        thread::scope(|scope| {
            scope.spawn(move || {
                thread::sleep(Duration::from_secs(10));
                drop(two);
            });
            publish(settings, count, Some(2_500), |id| message(&entry, id, delay(id)));
        });
    });
    println!("{count} at up to 2,500/s through two daemons, one killed after 10 s: {killed}");
    drop(one);
}

/// A message with its due time in a header.
fn message(exchange: &str, id: u32, delay: u32) -> Message {
    let key = AppKey::new("bench").unwrap();
    let mut message = direct::keyed(key, exchange.into(), "key".into(), vec![b'x'; BODY]);
    let due = Timestamp::now().as_millisecond() + i64::from(delay);
    message.headers.insert("x-delay".into(), Value::I64(delay.into()));
    message.headers.insert("truly-due".into(), Value::I64(due));
    message.properties.message_id = Some(id.to_string());
    message
}

/// Collects `count` messages while they are published, and describes the arrivals.
fn through(consumer: &Consumer, count: u32, publish: impl FnOnce() + Send) -> String {
    let mut ledger = Ledger::default();
    (0..count).for_each(|id| ledger.answer(id.into(), Answer::Confirmed));
    thread::scope(|scope| {
        scope.spawn(publish);
        while ledger.missing() > 0 {
            let Next::Delivery(delivery) = consumer.next(Duration::from_secs(120)) else { break };
            let now = Timestamp::now().as_millisecond();
            let id = delivery.properties.message_id.as_deref().unwrap().parse().unwrap();
            ledger.promise(id, delivery.headers["truly-due"].as_i64().unwrap(), 1);
            ledger.arrive(id, now);
            consumer.ack(delivery).unwrap();
        }
    });
    let sums = ledger.summary();
    let [p50, p99, most] = [50.0, 99.0, 100.0].map(|per_cent| sums.percentile(per_cent).unwrap_or(0));
    format!(
        "{} missing, {} twice, {} early by more than 1 ms; late by p50 {p50} ms, p99 {p99} ms, max {most} ms",
        sums.missing, sums.duplicated, sums.early
    )
}
