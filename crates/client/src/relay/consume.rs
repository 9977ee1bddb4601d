//! Consuming a queue until stopped, through all failures of the connection.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use log::{Level, error, info, log, warn};

use crate::router::RouterBuilder;
use delayline_amqp::{CRASH, Consumer, Next, Session};
use delayline_core::{backoff::Doubling, backoff::wait, message::Quota};

use super::{
    RefusalCounter,
    apart::Apart,
    forward::{Forwarder, Unsendable},
    poison::{self, Poison},
    work::{Ended, Failed, HELD, Handle, TICK, Taking, fitting, work},
};

/// How long stopping may take for messages in flight and the last acknowledgements.
const FINISH: Duration = Duration::from_secs(10);

/// What to consume, and how.
pub(crate) struct Consuming<'a> {
    /// The broker and set, and the settings for its routers.
    pub(crate) router: &'a RouterBuilder,
    /// The name of the connection in the broker's list.
    pub(crate) purpose: &'static str,
    pub(crate) queue: &'a str,
    /// Advice if there is no such queue.
    pub(crate) if_missing: String,
    pub(crate) prefetch: u16,
    /// How many channels share the prefetch.
    pub(crate) lanes: u16,
    pub(crate) unsendable: Unsendable,
    /// The counters for messages that were set aside.
    pub(crate) stats: Option<Arc<dyn RefusalCounter>>,
    /// The conditions for taking messages.
    pub(crate) check: Option<Check<'a>>,
}

/// Checks a condition over the session that will consume. An error is the reason not to.
pub(crate) type Check<'a> = &'a dyn Fn(&mut Session) -> Result<(), String>;

impl<'a> Consuming<'a> {
    /// How many channels a service has.
    const LANES: u16 = 8;

    /// The settings for a service. Several channels share the messages that it holds: a message
    /// with deeply nested headers takes the broker seconds to write, and delays later ones on the
    /// same channel. Messages that cannot be sent are rejected, so that they occupy no places.
    pub(crate) fn service(
        (router, purpose): (&'a RouterBuilder, &'static str),
        (queue, if_missing): (&'a str, String),
        prefetch: u16,
        stats: Option<Arc<dyn RefusalCounter>>,
    ) -> Self {
        let (lanes, unsendable) = (Self::LANES, Unsendable::Reject);
        Self { router, purpose, queue, if_missing, prefetch, lanes, unsendable, stats, check: None }
    }
}

impl Consuming<'_> {
    /// Passes each message to the caller until `stop` is set. Without a broker, or without the
    /// queue, it waits.
    ///
    /// At the end it waits for confirms. Other messages that it holds return to the queue. Returns
    /// whether that was done in time.
    ///
    /// # Errors
    /// All places are occupied by messages that can be neither sent nor rejected; returns their
    /// number. They have returned to the queue.
    pub(crate) fn run(&self, stop: &AtomicBool, mut handle: impl Handle) -> Result<bool, usize> {
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
            wait(stop, pause);
        }
        Ok(true)
    }

    /// Searches for messages over which the broker crashes, and makes the broker move them. Returns
    /// whether it found any.
    fn clear(&self, poison: &mut Poison, unchecked: bool) -> bool {
        if self.unsendable != Unsendable::Reject {
            // Rejecting could lose them.
            error!("{}", poison::unread(self.queue, &"the worker does not reject"));
            return false;
        }
        match poison.crashed(&self.router.target.broker, self.queue, unchecked) {
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

    /// Works until stopped, or until an error. If one connection is lost, the other is closed as
    /// well: the broker delivers unacknowledged messages again, and this session must not publish
    /// them a second time.
    fn session(
        &self,
        stop: &AtomicBool,
        largest: usize,
        (failures, last): (&mut u32, &mut Option<String>),
        poison: &mut Poison,
        handle: &mut impl Handle,
    ) -> Result<Ended, Failed> {
        let mut session =
            Session::open_for(&self.router.target.broker, self.purpose).map_err(|error| error.to_string())?;
        poison.broker = session.server_version();
        session.hold_at_most(HELD);
        if let Some(check) = self.check {
            check(&mut session)?;
        }
        // Incoming messages may be retried and parked. Policies limit the delays of retries.
        let builder = self.router.clone().quota(Quota::forwarding());
        let router = builder.clone().connect().map_err(|error| error.to_string())?;
        let alone = poison.alone();
        let fits = fitting(self.prefetch, largest);
        let (prefetch, lanes) = if alone { (1, 1) } else { (fits, self.lanes) };
        let consumer =
            session.consume_in_lanes(self.queue, prefetch, lanes).map_err(|error| match error.code() {
                Some(404) => Failed::Session(format!("{error}; {}", self.if_missing)),
                // It was delivered before all channels had started.
                Some(CRASH) => Failed::Crashed { reason: error.to_string(), unchecked: true },
                _ => Failed::Session(error.to_string()),
            })?;
        *last = None;
        info!("taking messages from `{}`, {prefetch} at a time", self.queue);
        let routers = (router, Apart::new(builder));
        let mut forwarder = Forwarder::new(routers, self.unsendable, self.stats.clone(), usize::from(fits));
        let taking = Taking { now: prefetch, most: self.prefetch, alone };
        let ended = work(stop, &consumer, &mut forwarder, &taking, handle);
        // If no message gets through, a new connection alone is no progress.
        if forwarder.acknowledged() > 0 {
            *failures = 0;
        }
        let ended = match ended {
            Ok(ended) => ended,
            Err(failed) => {
                let unchecked = forwarder.is_empty() && handle.busy() == 0;
                handle.abandon();
                // Messages without a confirm were not acknowledged either.
                forwarder.close(Duration::ZERO);
                if let Some(largest) = consumer.overflow() {
                    warn!(
                        "messages of `{}` with more than {} MiB arrived at once; taking fewer at a time",
                        self.queue,
                        HELD >> 20
                    );
                    return Ok(Ended::Resized(largest));
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
        let clean = forwarder.close(FINISH) && clean;
        if !matches!(ended, Ended::Stopped(_)) {
            return Ok(ended);
        }
        info!("stopped{}", if clean { "" } else { "; some messages may be sent twice" });
        Ok(Ended::Stopped(clean))
    }
}

/// The log level for a failed session. If the user lacks permission for the queue, every attempt
/// fails in the same way, and only the first is a warning.
fn loudness(last: Option<&str>, reason: &str) -> Level {
    if last == Some(reason) { Level::Debug } else { Level::Warn }
}

/// Whether the connection ended because the broker crashed, even if another part detected the end
/// first.
fn has_crashed(consumer: &Consumer) -> bool {
    loop {
        match consumer.next(TICK) {
            Next::Delivery(_) => {}
            Next::Timeout => return false,
            Next::Ended(cause) => return cause.is_some_and(|cause| cause.code() == Some(CRASH)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_failure_is_logged_quietly() {
        assert_eq!(loudness(None, "403"), Level::Warn);
        assert_eq!(loudness(Some("403"), "403"), Level::Debug);
        assert_eq!(loudness(Some("403"), "404"), Level::Warn);
    }
}
