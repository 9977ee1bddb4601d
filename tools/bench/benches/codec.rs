//! The cost of the pure core.

use std::{hint::black_box, time::Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use delayline_bench::capacity::{Distribution, Load};
use delayline_core::{
    Message,
    codec::{AppKey, Delay, RoutingKey, Tolerance},
    message::{Properties, Schedule, Wire},
    topology::Unit,
};
use jiff::Timestamp;

fn codec(criterion: &mut Criterion) {
    let key = RoutingKey::new(Delay::from_seconds(90).unwrap(), AppKey::new("billing").unwrap());
    let text = key.encode();
    criterion.bench_function("encode a routing key", |b| b.iter(|| black_box(&key).encode()));
    criterion.bench_function("decode a routing key", |b| b.iter(|| black_box(&text).parse::<RoutingKey>()));
    let (tolerance, delay) = (Tolerance::Relative(500), Delay::from_seconds(1_000_003).unwrap());
    criterion.bench_function("round a delay", |b| b.iter(|| black_box(tolerance).round(black_box(delay))));
}

/// The work of the router on each message, before it hands it to the client library.
fn prepare(criterion: &mut Criterion) {
    let (now, taken) = (Timestamp::now(), Instant::now());
    let plain = Message::after(AppKey::new("billing").unwrap(), Delay::from_seconds(90).unwrap(), "body");
    let mut rich = plain.clone().with_properties(Properties {
        message_id: Some("0190-7a".into()),
        content_type: Some("application/json".into()),
        expiration: Some("60000".into()),
        ..Properties::default()
    });
    for number in 0..20 {
        rich = rich.with_header(format!("header-{number}"), number);
    }
    // As it came from a queue, with headers that must not be sent on.
    for name in ["x-death", "x-first-death-queue", "x-delivery-count", "CC"] {
        rich = rich.with_header(name, "x");
    }
    for (name, message) in [("prepare a plain message", &plain), ("prepare a message with 24 headers", &rich)]
    {
        criterion.bench_function(name, |b| {
            b.iter(|| {
                let message = black_box(message);
                let schedule =
                    Schedule::new(message.when, message.tolerance, (Unit::SECOND, false), now, taken)
                        .unwrap();
                Wire::new(message, &schedule, now, taken)
            });
        });
    }
}

fn capacity(criterion: &mut Criterion) {
    for delays in ["uniform:1s..60s", "uniform:1s..365d"] {
        let distribution: Distribution = delays.parse().unwrap();
        criterion.bench_function(&format!("the load of {delays}"), |b| {
            b.iter(|| Load::new(1_000.0, black_box(&distribution), Tolerance::Relative(500), false));
        });
    }
}

criterion_group!(benches, codec, prepare, capacity);
criterion_main!(benches);
