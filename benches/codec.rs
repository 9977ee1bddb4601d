//! What the pure core costs.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use delayline::codec::{AppKey, Delay, RoutingKey, Tolerance};

fn codec(criterion: &mut Criterion) {
    let key = RoutingKey::new(Delay::from_seconds(90).unwrap(), AppKey::new("billing").unwrap());
    let text = key.encode();
    criterion.bench_function("encode a routing key", |b| b.iter(|| black_box(&key).encode()));
    criterion.bench_function("decode a routing key", |b| b.iter(|| black_box(&text).parse::<RoutingKey>()));
    let (tolerance, delay) = (Tolerance::Relative(500), Delay::from_seconds(1_000_003).unwrap());
    criterion.bench_function("round a delay", |b| b.iter(|| black_box(tolerance).round(black_box(delay))));
}

criterion_group!(benches, codec);
criterion_main!(benches);
