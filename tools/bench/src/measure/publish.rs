//! Publishing marked messages.

use std::{
    sync::atomic::AtomicBool,
    time::{Duration, Instant},
};

use delayline_client::Router;
use delayline_core::{
    Message,
    codec::{self, AppKey, Delay},
    message::direct,
    topology::Unit,
};

use super::{BenchError, check, mark};

/// Makes the messages of one run, numbered on from one measurement to the next. Times count
/// from `epoch`.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) epoch: Instant,
    /// The number of the next message.
    pub(crate) next: u64,
    app: AppKey,
    pub(crate) unit: Unit,
    size: usize,
}

impl Source {
    pub(crate) fn new(app: AppKey, unit: Unit, size: usize) -> Self {
        Self { epoch: Instant::now(), next: 0, app, unit, size }
    }

    /// The application that it is for.
    pub(crate) fn app(&self) -> &AppKey {
        &self.app
    }

    /// A message that is delayed.
    pub(crate) fn delayed(&mut self, delay: Delay) -> Message {
        let body = self.body(delay.duration(self.unit.duration()));
        Message::after(self.app.clone(), delay, body)
    }

    /// A message that passes through exactly the levels of this delay. The router would
    /// subtract what it has waited there, and 32 s pass through one level where 31 s pass
    /// through five.
    pub(crate) fn fixed(&mut self, delay: Delay, entry: String) -> Message {
        let body = self.body(delay.duration(self.unit.duration()));
        direct::keyed(self.app.clone(), entry, codec::encode(delay, &self.app, None), body)
    }

    /// A message that goes straight into a queue.
    pub(crate) fn straight(&mut self, queue: &AppKey) -> Message {
        let body = self.body(Duration::ZERO);
        // The default exchange takes the key as the name of a queue.
        direct::to(queue.clone(), String::new(), body)
    }

    fn body(&mut self, wait: Duration) -> Vec<u8> {
        let number = self.next;
        self.next += 1;
        mark::body(number, self.epoch.elapsed() + wait, self.size)
    }
}

/// Publishes up to `count` messages as fast as they are confirmed, for `limit` at most.
/// Returns how many, and how long it took.
pub(crate) fn publish(
    router: &Router,
    (count, limit): (u64, Duration),
    mut make: impl FnMut() -> Message,
    stop: &AtomicBool,
    mut progress: impl FnMut(u64),
) -> Result<(u64, Duration), BenchError> {
    let started = Instant::now();
    let mut pipeline = router.pipeline();
    let mut sent = 0;
    while sent < count && started.elapsed() < limit {
        check(stop)?;
        let before = sent;
        while sent < count && sent < before + 100 {
            if let Some(outcome) = pipeline.push((), make()) {
                outcome.result?;
            }
            sent += 1;
        }
        progress(sent - before);
    }
    for outcome in pipeline {
        outcome.result?;
    }
    Ok((sent, started.elapsed()))
}

/// How many per second.
pub(crate) fn rate(count: u64, took: Duration) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a rate to look at")]
    let count = count as f64;
    count / took.as_secs_f64().max(1e-9)
}
