//! Consuming a queue whatever happens to the connection, until it is to stop.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use crossbeam_channel::Select;
use log::{info, warn};

use crate::{
    Router, Settings,
    amqp::{Consumer, Delivery, Next, Session},
    message::Quota,
};

use super::forward::{Forwarder, Unsendable};

/// How often it is looked whether to stop.
const TICK: Duration = Duration::from_millis(100);

/// The pause after the first and after later failures to run.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// How long stopping may take for what is in flight, and for the last
/// acknowledgements.
const FINISH: Duration = Duration::from_secs(10);

/// What to consume.
pub(super) struct Consuming<'a> {
    pub(super) settings: &'a Settings,
    /// Names the connection in the broker's list.
    pub(super) purpose: &'static str,
    pub(super) queue: &'a str,
    /// What to do if there is no such queue.
    pub(super) if_missing: &'static str,
    pub(super) prefetch: u16,
    pub(super) unsendable: Unsendable,
}

impl Consuming<'_> {
    /// Hands each message over until `stop` is set. Without a broker, or without the
    /// queue, it waits for them.
    ///
    /// At the end it finishes what was published; what it holds beside that goes back
    /// to the queue. Returns whether that was done in time.
    pub(super) fn run(
        &self,
        stop: &AtomicBool,
        mut handle: impl FnMut(&Consumer, &mut Forwarder<'_>, Delivery) -> Result<(), String>,
    ) -> bool {
        let mut failures = 0_u32;
        while !stop.load(Ordering::Relaxed) {
            match self.session(stop, &mut failures, &mut handle) {
                Ok(clean) => return clean,
                Err(reason) => {
                    failures += 1;
                    let pause =
                        BACKOFF.0.saturating_mul(2_u32.saturating_pow(failures.min(10))).min(BACKOFF.1);
                    warn!("{reason}; trying again in {pause:?}");
                    let until = Instant::now() + pause;
                    while !stop.load(Ordering::Relaxed) && Instant::now() < until {
                        thread::sleep(TICK.min(pause));
                    }
                }
            }
        }
        true
    }

    /// Works until it is to stop, or something is wrong. A lost connection takes
    /// the other one with it: what the broker hands out again must not be
    /// published a second time from here.
    fn session(
        &self,
        stop: &AtomicBool,
        failures: &mut u32,
        handle: &mut impl FnMut(&Consumer, &mut Forwarder<'_>, Delivery) -> Result<(), String>,
    ) -> Result<bool, String> {
        let mut session =
            Session::open_for(&self.settings.broker, self.purpose).map_err(|error| error.to_string())?;
        let router = Router::connect(&unlimited(self.settings)).map_err(|error| error.to_string())?;
        let consumer = session.consume(self.queue, self.prefetch).map_err(|error| match error.code() {
            Some(404) => format!("{error}; {}", self.if_missing),
            _ => error.to_string(),
        })?;
        info!("taking messages from `{}`, {} at a time", self.queue, self.prefetch);
        let mut forwarder = Forwarder::new(&router, self.unsendable);
        let ended = work(stop, &consumer, &mut forwarder, handle);
        // Where nothing gets through, a new connection alone is no progress.
        if forwarder.acknowledged() > 0 {
            *failures = 0;
        }
        if ended.is_err() {
            drop(forwarder);
            router.close(Duration::ZERO);
            return ended.map(|()| false);
        }
        let clean = forwarder.finish(&consumer, FINISH) & consumer.finish(FINISH);
        router.close(FINISH);
        info!("stopped{}", if clean { "" } else { "; some messages may be retried twice" });
        Ok(clean)
    }
}

/// The same settings without a quota: what came in may be retried, and parked, and how
/// late retries are is up to the policies.
fn unlimited(settings: &Settings) -> Settings {
    let mut settings = settings.clone();
    settings.router.quota = Quota::default();
    settings
}

fn work(
    stop: &AtomicBool,
    consumer: &Consumer,
    forwarder: &mut Forwarder<'_>,
    handle: &mut impl FnMut(&Consumer, &mut Forwarder<'_>, Delivery) -> Result<(), String>,
) -> Result<(), String> {
    while !stop.load(Ordering::Relaxed) {
        forwarder.settle(consumer)?;
        match consumer.next(Duration::ZERO) {
            Next::Delivery(delivery) => handle(consumer, forwarder, delivery)?,
            Next::Timeout => {
                let mut select = Select::new();
                consumer.watch(&mut select);
                forwarder.watch(&mut select);
                let _ = select.ready_timeout(TICK);
            }
            Next::Ended(cause) => {
                return Err(cause.map_or_else(|| "the consumer ended".into(), |cause| cause.to_string()));
            }
        }
    }
    Ok(())
}
