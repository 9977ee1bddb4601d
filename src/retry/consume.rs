//! Consuming a queue whatever happens to the connection, until it is to stop.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crossbeam_channel::Select;
use log::{error, info, warn};

use crate::{
    Router, Settings,
    amqp::{Consumer, Delivery, Next, Session},
    message::Quota,
    router::Stats,
};

use super::{
    Tally,
    forward::{Forwarder, Unsendable},
    poison::{self, Poison},
};

/// How often it is looked whether to stop.
const TICK: Duration = Duration::from_millis(100);

/// The pause after the first and after later failures to run.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// How long stopping may take for what is in flight, and for the last
/// acknowledgements.
const FINISH: Duration = Duration::from_secs(10);

/// How many messages are taken one at a time, after a crash that nobody explained, and for
/// how long none may come, until as many are taken as before.
const ALONE: (u64, Duration) = (100, Duration::from_secs(1));

/// What to consume.
pub(super) struct Consuming<'a> {
    pub(super) settings: &'a Settings,
    /// Names the connection in the broker's list.
    pub(super) purpose: &'static str,
    pub(super) queue: &'a str,
    /// What to do if there is no such queue.
    pub(super) if_missing: &'static str,
    pub(super) prefetch: u16,
    /// How many channels share the prefetch.
    pub(super) lanes: u16,
    pub(super) unsendable: Unsendable,
    /// What its routers count into.
    pub(super) stats: Arc<Stats>,
    /// Where it is counted what was set aside.
    pub(super) tally: Option<Arc<Tally>>,
}

/// How a session ended that nothing was wrong with.
enum Ended {
    /// It was to stop; whether in time for everything in flight.
    Stopped(bool),
    /// It took messages one at a time and nothing happened.
    WentWell,
}

/// Why a session ended.
pub(super) enum Failed {
    /// Another may do better.
    Session(String),
    /// The broker crashed over something; whether there was nothing in our hands.
    Crashed { reason: String, unseen: bool },
    /// So many messages fill all places, and nothing can be done about them.
    Full(usize),
}

impl From<String> for Failed {
    fn from(reason: String) -> Self {
        Self::Session(reason)
    }
}

impl Consuming<'_> {
    /// Hands each message over until `stop` is set. Without a broker, or without the
    /// queue, it waits for them.
    ///
    /// At the end it finishes what was published; what it holds beside that goes back
    /// to the queue. Returns whether that was done in time.
    ///
    /// # Errors
    /// All places are taken by so many messages that nothing can be done about; they are
    /// back in the queue.
    pub(super) fn run(
        &self,
        stop: &AtomicBool,
        mut handle: impl FnMut(&Consumer, &mut Forwarder<'_>, Delivery) -> Result<(), Failed>,
    ) -> Result<bool, usize> {
        let mut failures = 0_u32;
        let mut poison = Poison::default();
        while !stop.load(Ordering::Relaxed) {
            let reason = match self.session(stop, &mut failures, &mut poison, &mut handle) {
                Ok(Ended::Stopped(clean)) => return Ok(clean),
                Ok(Ended::WentWell) => {
                    poison.went_well();
                    continue;
                }
                Err(Failed::Full(count)) => return Err(count),
                Err(Failed::Session(reason)) => reason,
                Err(Failed::Crashed { reason, unseen }) => {
                    if self.clear(&mut poison, unseen) {
                        failures = 0;
                        continue;
                    }
                    reason
                }
            };
            failures += 1;
            let pause = BACKOFF.0.saturating_mul(2_u32.saturating_pow(failures.min(10))).min(BACKOFF.1);
            warn!("{reason}; trying again in {pause:?}");
            let until = Instant::now() + pause;
            while !stop.load(Ordering::Relaxed) && Instant::now() < until {
                thread::sleep(TICK.min(pause));
            }
        }
        Ok(true)
    }

    /// Looks for messages over which the broker crashes, and has the broker move them. Whether
    /// it found any.
    fn clear(&self, poison: &mut Poison, unseen: bool) -> bool {
        if self.unsendable != Unsendable::Reject {
            // Rejecting could lose them.
            error!("{}", poison::unread(self.queue, &"the worker does not reject"));
            return false;
        }
        match poison.crashed(&self.settings.broker, self.queue, unseen) {
            Ok(moved) => {
                for message in &moved {
                    warn!(
                        "park {}: the broker closes every AMQP 0-9-1 connection over it",
                        message.described()
                    );
                    if let Some(tally) = &self.tally {
                        tally.set_aside(&message.routing_key);
                    }
                }
                !moved.is_empty()
            }
            Err(error) => {
                error!("{}", poison::unread(self.queue, &error));
                false
            }
        }
    }

    /// Works until it is to stop, or something is wrong. A lost connection takes
    /// the other one with it: what the broker hands out again must not be
    /// published a second time from here.
    fn session(
        &self,
        stop: &AtomicBool,
        failures: &mut u32,
        poison: &mut Poison,
        handle: &mut impl FnMut(&Consumer, &mut Forwarder<'_>, Delivery) -> Result<(), Failed>,
    ) -> Result<Ended, Failed> {
        let mut session =
            Session::open_for(&self.settings.broker, self.purpose).map_err(|error| error.to_string())?;
        poison.broker = session.server_version();
        let router = Router::connect_counted(&unlimited(self.settings), Arc::clone(&self.stats))
            .map_err(|error| error.to_string())?;
        let alone = poison.alone();
        let (prefetch, lanes) = if alone { (1, 1) } else { (self.prefetch, self.lanes) };
        let consumer =
            session.consume_in_lanes(self.queue, prefetch, lanes).map_err(|error| match error.code() {
                Some(404) => Failed::Session(format!("{error}; {}", self.if_missing)),
                // It was handed out before all had begun.
                Some(poison::CRASH) => Failed::Crashed { reason: error.to_string(), unseen: true },
                _ => Failed::Session(error.to_string()),
            })?;
        info!("taking messages from `{}`, {prefetch} at a time", self.queue);
        let mut forwarder =
            Forwarder::new(&router, self.unsendable, self.tally.as_deref(), usize::from(self.prefetch));
        let ended = work(stop, &consumer, &mut forwarder, alone, handle);
        // Where nothing gets through, a new connection alone is no progress.
        if forwarder.acknowledged() > 0 {
            *failures = 0;
        }
        let went_well = match ended {
            Ok(went_well) => went_well,
            Err(failed) => {
                let unseen = forwarder.is_empty();
                drop(forwarder);
                router.close(Duration::ZERO);
                return Err(match failed {
                    Failed::Session(reason) if has_crashed(&consumer) => Failed::Crashed { reason, unseen },
                    Failed::Crashed { reason, .. } => Failed::Crashed { reason, unseen },
                    other => other,
                });
            }
        };
        let clean = forwarder.finish(&consumer, FINISH) & consumer.finish(FINISH);
        router.close(FINISH);
        if went_well {
            return Ok(Ended::WentWell);
        }
        info!("stopped{}", if clean { "" } else { "; some messages may be retried twice" });
        Ok(Ended::Stopped(clean))
    }
}

/// Whether the connection ended because the broker crashed, when something else noticed
/// first that it is gone.
fn has_crashed(consumer: &Consumer) -> bool {
    loop {
        match consumer.next(TICK) {
            Next::Delivery(_) => {}
            Next::Timeout => return false,
            Next::Ended(cause) => return cause.is_some_and(|cause| cause.code() == Some(poison::CRASH)),
        }
    }
}

/// The same settings without a quota: what came in may be retried, and parked, and how
/// late retries are is up to the policies.
fn unlimited(settings: &Settings) -> Settings {
    let mut settings = settings.clone();
    settings.router.quota = Quota::default();
    settings
}

/// Works until it is to stop, or all went well that was to be tried alone; which of both.
fn work(
    stop: &AtomicBool,
    consumer: &Consumer,
    forwarder: &mut Forwarder<'_>,
    alone: bool,
    handle: &mut impl FnMut(&Consumer, &mut Forwarder<'_>, Delivery) -> Result<(), Failed>,
) -> Result<bool, Failed> {
    let mut quiet = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        forwarder.settle(consumer)?;
        match consumer.next(Duration::ZERO) {
            Next::Delivery(delivery) => {
                handle(consumer, forwarder, delivery)?;
                quiet = Instant::now();
            }
            Next::Timeout => {
                let mut select = Select::new();
                consumer.watch(&mut select);
                forwarder.watch(&mut select);
                let _ = select.ready_timeout(TICK);
            }
            Next::Ended(Some(cause)) if cause.code() == Some(poison::CRASH) => {
                return Err(Failed::Crashed { reason: cause.to_string(), unseen: false });
            }
            Next::Ended(cause) => {
                return Err(cause
                    .map_or_else(|| "the consumer ended".into(), |cause| cause.to_string())
                    .into());
            }
        }
        let calm = forwarder.is_empty() && quiet.elapsed() > ALONE.1;
        if alone && (forwarder.acknowledged() >= ALONE.0 || calm) {
            return Ok(true);
        }
    }
    Ok(false)
}
