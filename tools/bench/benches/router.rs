//! The cost of the router relative to its client library, and the gain of a second router: the same
//! messages, to the same exchange. And how long one message takes until it is confirmed.
//!
//!     cargo bench -p delayline-bench --bench router
//!     cargo bench -p delayline-bench --bench router -- million    memory while 1,000,000 messages go through

mod common;

use std::{
    thread,
    time::{Duration, Instant},
};

use amiquip::AmqpValue;
use common::{BODY, Lab, asked, publish};
use delayline_amqp::Session;
use delayline_bench::bare::{Address, Bare};
use delayline_core::{
    Message,
    codec::{AppKey, Delay, RoutingKey},
    ledger::percentile,
    message::direct,
    topology::Queue,
};
use delayline_node::usage::peak_bytes;
use delayline_settings::Settings;

const MESSAGES: u32 = 30_000;
const SINGLE: u32 = 2_000;
const ROUNDS: usize = 3;
const WINDOW: usize = 1_000;

/// Twelve days, through level 20 alone: nothing falls due during the run.
const SECONDS: u64 = 1 << 20;

const PLAIN: &str = "plain";

fn main() {
    let Some(Lab { node: _node, mut settings, .. }) = Lab::start() else { return };
    settings.router.window = WINDOW;
    if asked("million") {
        million(&settings);
        return;
    }
    let mut session = Session::open(&settings.broker).unwrap();
    let quorum = [("x-queue-type".to_owned(), "quorum".into())];
    session.declare_queue(&Queue::new(PLAIN).with_arguments(quorum)).unwrap();
    println!(
        "{MESSAGES} messages of {BODY} bytes, {WINDOW} in flight on each connection, the best of {ROUNDS} rounds each:"
    );
    // In turns, so that all see the same broker and the same neighbours.
    let mut best = [0.0_f64; 4];
    for _ in 0..ROUNDS {
        let rates = [bare(&settings), routers(1, &settings), routers(2, &settings), straight(&settings)];
        best = [0, 1, 2, 3].map(|way| best[way].max(rates[way]));
        session.purge_queue(PLAIN).unwrap();
    }
    let [alone, one, two, straight] = best;
    println!(
        "  bare loop {alone:>7.0}/s, one router {one:>7.0}/s ({:.2} of it), two routers {two:>7.0}/s ({:.2} of one)",
        one / alone,
        two / one
    );
    println!(
        "  one router straight into a queue {straight:>7.0}/s; through the entry {:.2} of it",
        one / straight
    );
    println!("one at a time, {SINGLE} messages, until confirmed:");
    for (way, message) in
        [("through the entry", delayed as fn(u32) -> Message), ("straight into a queue", plain)]
    {
        let (rate, p50, p99) = one_by_one(&settings, message);
        println!("  {way:22} {rate:>6.0}/s, p50 {p50:.0} us, p99 {p99:.0} us");
    }
}

fn delayed(_: u32) -> Message {
    Message::after(AppKey::new("bench").unwrap(), Delay::from_seconds(SECONDS).unwrap(), vec![b'x'; BODY])
}

/// The default exchange takes the key as the name of a queue.
fn plain(_: u32) -> Message {
    direct::to(AppKey::new(PLAIN).unwrap(), String::new(), vec![b'x'; BODY])
}

/// All messages through so many routers at once, each with a thread of its own.
fn routers(count: u32, settings: &Settings) -> f64 {
    let started = Instant::now();
    thread::scope(|scope| {
        for _ in 0..count {
            scope.spawn(|| publish(settings, MESSAGES / count, None, delayed));
        }
    });
    f64::from(MESSAGES / count * count) / started.elapsed().as_secs_f64()
}

fn straight(settings: &Settings) -> f64 {
    publish(settings, MESSAGES, None, plain)
}

fn bare(settings: &Settings) -> f64 {
    let key = RoutingKey::new(Delay::from_seconds(SECONDS).unwrap(), AppKey::new("bench").unwrap());
    let due = AmqpValue::LongLongInt(1_800_000_000_000);
    let to = Address::new("delay", key.encode()).with_header("delayline-due", due);
    let started = Instant::now();
    let mut publisher = Bare::open(settings, WINDOW).unwrap();
    for _ in 0..MESSAGES {
        publisher.publish(&to, &[b'x'; BODY]).unwrap();
    }
    publisher.settle(0).unwrap();
    let rate = f64::from(MESSAGES) / started.elapsed().as_secs_f64();
    publisher.close().unwrap();
    rate
}

/// How many a second, and how long one takes, in us: in the middle, and of the slowest per cent.
fn one_by_one(settings: &Settings, message: fn(u32) -> Message) -> (f64, f64, f64) {
    let router = settings.router().connect().unwrap();
    let mut times: Vec<_> = (0..SINGLE)
        .map(|number| {
            let began = Instant::now();
            router.publish(message(number)).unwrap();
            began.elapsed()
        })
        .collect();
    let total: Duration = times.iter().sum();
    times.sort_unstable();
    let at = |per_cent| percentile(&times, per_cent).expect("there are some").as_secs_f64() * 1e6;
    (f64::from(SINGLE) / total.as_secs_f64(), at(50.0), at(99.0))
}

/// The memory of this process while a million messages go through.
fn million(settings: &Settings) {
    const MILLION: u32 = 1_000_000;
    let most = || peak_bytes(std::process::id()).expect("it runs") as f64 / 1_048_576.0;
    let before = most();
    let rate = publish(settings, MILLION, None, delayed);
    println!(
        "{MILLION} messages at {rate:.0}/s; most resident memory {:.1} MB, before {before:.1} MB",
        most()
    );
}
