//! Consuming a queue through all failures of the connection, until told to stop.

use std::{
    cell::OnceCell,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crossbeam_channel::Select;
use log::{Level, error, info, log, warn};

use crate::router::RouterBuilder;
use delayline_amqp::{CRASH, Consumer, Delivery, Next, Session};
use delayline_core::{backoff::Doubling, message::Quota};

use super::{
    SetAside,
    apart::Apart,
    forward::{Forwarder, Unsendable},
    poison::{self, Poison},
};

/// How often to check whether to stop.
const TICK: Duration = Duration::from_millis(100);

/// How long stopping may take for messages in flight, and for the last acknowledgements.
const FINISH: Duration = Duration::from_secs(10);

/// How many messages are taken one at a time after an unexplained crash, and how long none
/// may come, before as many are taken as before.
const ALONE: (u64, Duration) = (100, Duration::from_secs(1));

/// How many bytes the bodies of all messages that are held may have. Large ones make it take
/// fewer at a time: AMQP can limit only their number.
const HELD: usize = 256 << 20;

/// After this many messages in a row of which twice as many would have fitted, it takes more at
/// a time again.
const SMALL_AGAIN: u64 = 1_000;

/// What to consume, and how.
pub(crate) struct Consuming<'a> {
    /// Where, and what makes its routers.
    pub(crate) router: &'a RouterBuilder,
    /// The name of the connection in the broker's list.
    pub(crate) purpose: &'static str,
    pub(crate) queue: &'a str,
    /// Advice if there is no such queue.
    pub(crate) if_missing: &'static str,
    pub(crate) prefetch: u16,
    /// How many channels share the prefetch.
    pub(crate) lanes: u16,
    pub(crate) unsendable: Unsendable,
    /// Where messages that were set aside are counted.
    pub(crate) stats: Option<Arc<dyn SetAside>>,
    /// What has to be so before any message is taken.
    pub(crate) check: Option<Check<'a>>,
}

/// Looks at something over the session that will consume; an error is the reason not to.
pub(crate) type Check<'a> = &'a dyn Fn(&mut Session) -> Result<(), String>;

/// How a session ended without an error.
enum Ended {
    /// It was told to stop; whether in time for everything in flight.
    Stopped(bool),
    /// It took messages one at a time and nothing happened.
    WentWell,
    /// Another number of messages fits, now that the largest has this many bytes.
    Resized(usize),
}

/// Why a session ended.
pub(crate) enum Failed {
    /// A new session may do better.
    Session(String),
    /// The broker crashed over something; whether we held no message then.
    Crashed { reason: String, unchecked: bool },
    /// This many messages occupy all places, and nothing can be done about them.
    Full(usize),
}

impl From<String> for Failed {
    fn from(reason: String) -> Self {
        Self::Session(reason)
    }
}

impl<'a> Consuming<'a> {
    /// How many channels a service has.
    const LANES: u16 = 8;

    /// As a service consumes. Several channels share the messages that it holds: one with
    /// deeply nested headers takes the broker seconds to write, and holds up those behind it on
    /// the same channel. What cannot be sent is rejected, so that it occupies no places.
    pub(crate) fn service(
        (router, purpose): (&'a RouterBuilder, &'static str),
        (queue, if_missing): (&'a str, &'static str),
        prefetch: u16,
        stats: Option<Arc<dyn SetAside>>,
    ) -> Self {
        let (lanes, unsendable) = (Self::LANES, Unsendable::Reject);
        Self { router, purpose, queue, if_missing, prefetch, lanes, unsendable, stats, check: None }
    }
}

impl Consuming<'_> {
    /// Passes each message to the caller until `stop` is set. Without a broker, or without
    /// the queue, it waits for them.
    ///
    /// At the end it waits for confirms; other messages that it holds go back to the queue.
    /// Returns whether that was done in time.
    ///
    /// # Errors
    /// All places are occupied by messages about which nothing can be done; their number.
    /// They are back in the queue.
    pub(crate) fn run(
        &self,
        stop: &AtomicBool,
        mut handle: impl FnMut(&Consumer, &mut Forwarder<'_>, Delivery) -> Result<(), Failed>,
    ) -> Result<bool, usize> {
        let mut failures = 0_u32;
        let mut poison = Poison::default();
        let mut largest = 0;
        let mut last = None;
        while !stop.load(Ordering::Relaxed) {
            let reason =
                match self.session(stop, largest, (&mut failures, &mut last), &mut poison, &mut handle) {
                    Ok(Ended::Stopped(clean)) => return Ok(clean),
                    Ok(Ended::WentWell) => {
                        poison.went_well();
                        continue;
                    }
                    Ok(Ended::Resized(found)) => {
                        largest = found;
                        continue;
                    }
                    Err(Failed::Full(count)) => return Err(count),
                    Err(Failed::Session(reason)) => reason,
                    Err(Failed::Crashed { reason, unchecked }) => {
                        if self.clear(&mut poison, unchecked) {
                            failures = 0;
                            continue;
                        }
                        reason
                    }
                };
            failures += 1;
            let pause = Doubling::RECONNECT.spread(failures);
            log!(loudness(last.as_deref(), &reason), "{reason}; trying again in {pause:?}");
            last = Some(reason);
            let until = Instant::now() + pause;
            while !stop.load(Ordering::Relaxed) && Instant::now() < until {
                thread::sleep(TICK.min(pause));
            }
        }
        Ok(true)
    }

    /// Looks for messages over which the broker crashes, and makes the broker move them.
    /// Returns whether it found any.
    fn clear(&self, poison: &mut Poison, unchecked: bool) -> bool {
        if self.unsendable != Unsendable::Reject {
            // Rejecting could lose them.
            error!("{}", poison::unread(self.queue, &"the worker does not reject"));
            return false;
        }
        match poison.crashed(&self.router.broker, self.queue, unchecked) {
            Ok(moved) => {
                for message in &moved {
                    warn!(
                        "park {}: the broker closes every AMQP 0-9-1 connection over it",
                        message.described()
                    );
                    if let Some(stats) = &self.stats {
                        stats.unreadable(&message.routing_key);
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

    /// Works until told to stop, or until an error. If one connection is lost, the other is
    /// closed as well: what the broker delivers again must not be published a second time
    /// from here.
    fn session(
        &self,
        stop: &AtomicBool,
        largest: usize,
        (failures, last): (&mut u32, &mut Option<String>),
        poison: &mut Poison,
        handle: &mut impl FnMut(&Consumer, &mut Forwarder<'_>, Delivery) -> Result<(), Failed>,
    ) -> Result<Ended, Failed> {
        let mut session =
            Session::open_for(&self.router.broker, self.purpose).map_err(|error| error.to_string())?;
        poison.broker = session.server_version();
        if let Some(check) = self.check {
            check(&mut session)?;
        }
        // Without a quota: what came in may be retried, and parked, and how late retries are is
        // up to the policies.
        let builder = self.router.clone().quota(Quota::default());
        let router = builder.clone().connect().map_err(|error| error.to_string())?;
        let apart = OnceCell::new();
        let alone = poison.alone();
        let fits = fitting(self.prefetch, largest);
        let (prefetch, lanes) = if alone { (1, 1) } else { (fits, self.lanes) };
        let consumer =
            session.consume_in_lanes(self.queue, prefetch, lanes).map_err(|error| match error.code() {
                Some(404) => Failed::Session(format!("{error}; {}", self.if_missing)),
                // It was delivered before all channels had begun.
                Some(CRASH) => Failed::Crashed { reason: error.to_string(), unchecked: true },
                _ => Failed::Session(error.to_string()),
            })?;
        *last = None;
        info!("taking messages from `{}`, {prefetch} at a time", self.queue);
        let routers = (&router, Apart::new(builder, &apart));
        let mut forwarder =
            Forwarder::new(routers, self.unsendable, self.stats.as_deref(), usize::from(fits));
        let taking = Taking { now: prefetch, most: self.prefetch, alone };
        let ended = work(stop, &consumer, &mut forwarder, &taking, handle);
        // If nothing gets through, a new connection alone is no progress.
        if forwarder.acknowledged() > 0 {
            *failures = 0;
        }
        let ended = match ended {
            Ok(ended) => ended,
            Err(failed) => {
                let unchecked = forwarder.is_empty();
                drop(forwarder);
                // What is not confirmed was not acknowledged either.
                for router in [Some(router), apart.into_inner()].into_iter().flatten() {
                    let _ = router.close(Duration::ZERO);
                }
                return Err(match failed {
                    Failed::Session(reason) if has_crashed(&consumer) => {
                        Failed::Crashed { reason, unchecked }
                    }
                    Failed::Crashed { reason, .. } => Failed::Crashed { reason, unchecked },
                    other => other,
                });
            }
        };
        let clean = forwarder.finish(&consumer, FINISH) & consumer.finish(FINISH);
        let routers = [Some(router), apart.into_inner()].into_iter().flatten();
        let clean = routers.fold(clean, |clean, router| router.close(FINISH).is_ok() && clean);
        if let Some(ended) = ended {
            return Ok(ended);
        }
        info!("stopped{}", if clean { "" } else { "; some messages may be sent on twice" });
        Ok(Ended::Stopped(clean))
    }
}

/// How loudly to say why no session came about, or why it ended: without a right to the queue, it
/// is the same at every turn, and no news.
fn loudness(last: Option<&str>, reason: &str) -> Level {
    if last == Some(reason) { Level::Debug } else { Level::Warn }
}

/// How many messages to take at a time, if the largest has so many bytes.
fn fitting(prefetch: u16, largest: usize) -> u16 {
    u16::try_from(HELD / largest.max(1)).unwrap_or(u16::MAX).clamp(1, prefetch.max(1))
}

/// Whether the connection ended because the broker crashed, if something else noticed first
/// that it is gone.
fn has_crashed(consumer: &Consumer) -> bool {
    loop {
        match consumer.next(TICK) {
            Next::Delivery(_) => {}
            Next::Timeout => return false,
            Next::Ended(cause) => return cause.is_some_and(|cause| cause.code() == Some(CRASH)),
        }
    }
}

/// How many messages a session takes at a time.
struct Taking {
    now: u16,
    /// If none is too large.
    most: u16,
    /// One at a time, to see which message the broker crashes over.
    alone: bool,
}

impl Taking {
    /// Whether a message of this size does not fit, as often as it may come.
    fn is_too_large(&self, bytes: usize) -> bool {
        fitting(self.now, bytes) < self.now
    }

    /// Whether it may take more at a time, after so many messages of this size at most.
    fn may_grow(&self, acknowledged: u64, largest: usize) -> bool {
        !self.alone
            && acknowledged >= SMALL_AGAIN
            && fitting(self.most, largest) >= self.now.saturating_mul(2).min(self.most)
            && self.now < self.most
    }
}

/// Works until it is to stop, or for as long as it takes so many at a time.
fn work(
    stop: &AtomicBool,
    consumer: &Consumer,
    forwarder: &mut Forwarder<'_>,
    taking: &Taking,
    handle: &mut impl FnMut(&Consumer, &mut Forwarder<'_>, Delivery) -> Result<(), Failed>,
) -> Result<Option<Ended>, Failed> {
    let mut quiet = Instant::now();
    let mut largest = 0;
    while !stop.load(Ordering::Relaxed) {
        forwarder.settle(consumer)?;
        match consumer.next(Duration::ZERO) {
            Next::Delivery(delivery) => {
                largest = largest.max(delivery.body.len());
                // It comes again, with the rest.
                if taking.is_too_large(largest) {
                    return Ok(Some(Ended::Resized(largest)));
                }
                handle(consumer, forwarder, delivery)?;
                quiet = Instant::now();
            }
            Next::Timeout => {
                let mut select = Select::new();
                consumer.watch(&mut select);
                forwarder.watch(&mut select);
                let _ = select.ready_timeout(forwarder.next_due().map_or(TICK, |next| next.min(TICK)));
            }
            Next::Ended(Some(cause)) if cause.code() == Some(CRASH) => {
                return Err(Failed::Crashed { reason: cause.to_string(), unchecked: false });
            }
            Next::Ended(cause) => {
                return Err(cause
                    .map_or_else(|| "the consumer ended".into(), |cause| cause.to_string())
                    .into());
            }
        }
        if taking.may_grow(forwarder.acknowledged(), largest) {
            return Ok(Some(Ended::Resized(largest)));
        }
        let calm = forwarder.is_empty() && quiet.elapsed() > ALONE.1;
        if taking.alone && (forwarder.acknowledged() >= ALONE.0 || calm) {
            return Ok(Some(Ended::WentWell));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_are_taken_as_fit() {
        assert_eq!(fitting(4_000, 0), 4_000);
        assert_eq!(fitting(4_000, 1 << 16), 4_000);
        assert_eq!(fitting(4_000, 1 << 20), 256);
        assert_eq!(fitting(10, 1 << 20), 10);
        // However large it is, it has to be taken.
        assert_eq!(fitting(10, usize::MAX), 1);
    }

    #[test]
    fn it_takes_fewer_at_once_and_more_after_a_while() {
        let all = Taking { now: 256, most: 256, alone: false };
        assert!(!all.is_too_large(1 << 20) && all.is_too_large(2 << 20));
        assert!(!all.may_grow(1_000_000, 1));
        let few = Taking { now: 16, most: 256, alone: false };
        assert!(!few.is_too_large(16 << 20) && few.is_too_large(17 << 20));
        assert!(!few.may_grow(999, 8 << 20) && few.may_grow(1_000, 8 << 20));
        assert!(!few.may_grow(1_000, 9 << 20), "only a few more would fit");
        let one = Taking { now: 1, most: 256, alone: false };
        assert!(!one.is_too_large(usize::MAX));
        assert!(!Taking { alone: true, ..one }.may_grow(1_000, 1));
    }
    #[test]
    fn the_same_failure_again_is_no_news() {
        assert_eq!(loudness(None, "403"), Level::Warn);
        assert_eq!(loudness(Some("403"), "403"), Level::Debug);
        assert_eq!(loudness(Some("403"), "404"), Level::Warn);
    }
}
