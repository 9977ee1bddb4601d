//! Taking messages during a session.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use crossbeam_channel::Select;

use delayline_amqp::{CRASH, Consumer, Delivery, Next};

use super::forward::Forwarder;

/// How often to check whether to stop.
pub(super) const TICK: Duration = Duration::from_millis(100);

/// How many messages are taken one at a time after an unexplained crash, and for how long none may
/// arrive, before the earlier number is taken again.
const ALONE: (u64, Duration) = (100, Duration::from_secs(1));

/// How many bytes all held bodies may have together. Large bodies make it take fewer messages at a
/// time: AMQP can limit only their number.
pub(super) const HELD: usize = 256 << 20;

/// After this many messages in a row, it takes more at a time again if twice the number would have
/// fitted.
const SMALL_AGAIN: u64 = 1_000;

/// Handles each message.
pub(crate) trait Handle {
    /// Takes a message.
    fn handle(
        &mut self,
        consumer: &Consumer,
        forwarder: &mut Forwarder,
        delivery: Delivery,
    ) -> Result<(), Failed>;

    /// Settles messages that other threads have finished.
    fn settle(&mut self, _: &Consumer, _: &mut Forwarder) -> Result<(), Failed> {
        Ok(())
    }

    /// How many messages other threads hold.
    fn busy(&self) -> usize {
        0
    }

    /// Whether it can take another message.
    fn has_room(&self) -> bool {
        true
    }

    /// Lets a `select` wake up when there may be something to settle.
    fn watch<'s>(&'s self, _: &mut Select<'s>) {}

    /// Waits for other threads and drops their results: the broker delivers the messages again.
    fn abandon(&mut self) {}
}

/// Handles messages one after the other, in the thread that takes them.
pub(crate) fn each<F: FnMut(&Consumer, &mut Forwarder, Delivery) -> Result<(), Failed>>(handle: F) -> F {
    handle
}

impl<F: FnMut(&Consumer, &mut Forwarder, Delivery) -> Result<(), Failed>> Handle for F {
    fn handle(
        &mut self,
        consumer: &Consumer,
        forwarder: &mut Forwarder,
        delivery: Delivery,
    ) -> Result<(), Failed> {
        self(consumer, forwarder, delivery)
    }
}

/// How a session ended without an error.
pub(super) enum Ended {
    /// It was stopped; whether everything in flight was confirmed in time.
    Stopped(bool),
    /// It took messages one at a time without a crash.
    WentWell,
    /// A different number of messages fits, since the largest now has this many bytes.
    Resized(usize),
}

/// Why a session ended.
pub(crate) enum Failed {
    /// A new session may do better.
    Session(String),
    /// The broker crashed, and whether no message was held then.
    Crashed { reason: String, unchecked: bool },
    /// This many messages occupy all places. They can be neither sent nor rejected.
    Full(usize),
}

impl From<String> for Failed {
    fn from(reason: String) -> Self {
        Self::Session(reason)
    }
}

/// How many messages a session takes at a time.
pub(super) struct Taking {
    pub(super) now: u16,
    /// The number if no message is too large.
    pub(super) most: u16,
    /// One at a time, to see which message the broker crashes over.
    pub(super) alone: bool,
}

impl Taking {
    /// Whether the session takes too many messages at a time for messages of this size.
    fn is_too_large(&self, bytes: usize) -> bool {
        fitting(self.now, bytes) < self.now
    }

    /// Whether it may take more at a time, after at most this many messages of this size.
    fn may_grow(&self, acknowledged: u64, largest: usize) -> bool {
        !self.alone
            && acknowledged >= SMALL_AGAIN
            && fitting(self.most, largest) >= self.now.saturating_mul(2).min(self.most)
            && self.now < self.most
    }
}

/// How many messages to take at a time, if the largest has this many bytes.
pub(super) fn fitting(prefetch: u16, largest: usize) -> u16 {
    u16::try_from(HELD / largest.max(1)).unwrap_or(u16::MAX).clamp(1, prefetch.max(1))
}

/// Works until it should stop, or take a different number of messages at a time.
pub(super) fn work(
    stop: &AtomicBool,
    consumer: &Consumer,
    forwarder: &mut Forwarder,
    taking: &Taking,
    handle: &mut impl Handle,
) -> Result<Ended, Failed> {
    let mut quiet = Instant::now();
    let mut largest = 0;
    // Why it takes no further messages. It first finishes the messages that it holds.
    let mut ending = None;
    loop {
        if stop.load(Ordering::Relaxed) {
            ending = Some(Ended::Stopped(true));
        }
        handle.settle(consumer, forwarder)?;
        forwarder.settle(consumer)?;
        if handle.busy() == 0
            && let Some(ended) = ending.take()
        {
            return Ok(ended);
        }
        let takes = ending.is_none() && handle.has_room();
        match if takes { consumer.next(Duration::ZERO) } else { Next::Timeout } {
            Next::Delivery(delivery) => {
                largest = largest.max(delivery.body.len());
                if taking.is_too_large(largest) {
                    // It is delivered again, with the rest.
                    ending = Some(Ended::Resized(largest));
                    continue;
                }
                handle.handle(consumer, forwarder, delivery)?;
                quiet = Instant::now();
            }
            Next::Timeout => {
                let mut select = Select::new();
                if takes {
                    consumer.watch(&mut select);
                }
                forwarder.watch(&mut select);
                handle.watch(&mut select);
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
            ending = ending.or(Some(Ended::Resized(largest)));
        }
        let calm = forwarder.is_empty() && handle.busy() == 0 && quiet.elapsed() > ALONE.1;
        if taking.alone && (forwarder.acknowledged() >= ALONE.0 || calm) {
            ending = ending.or(Some(Ended::WentWell));
        }
    }
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
        // A message of any size must be taken.
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
}
