//! One message on its way through the router.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use crossbeam_channel::Sender;
use jiff::Timestamp;

use delayline_amqp::Returned;
use delayline_core::{
    codec::Delay,
    message::{Handle, Message, Schedule, Wire},
};

use super::{Cause, Receipt, suspicion::Suspicion};

/// The broker's answer, or what replaces it.
pub(super) type Reply = Result<Receipt, Cause>;

/// The part of a message that publisher and worker share. The publisher keeps its share, so
/// it gets the message back even while the worker is stuck.
#[derive(Debug)]
pub(super) struct Ticket {
    message: Message,
    schedule: Schedule,
    taken: Timestamp,
    pub(super) deadline: Instant,
    sent: AtomicBool,
    /// When it was first written, if it has an id: that fixes its key, which is its handle.
    first: OnceLock<Instant>,
    in_doubt: AtomicBool,
    suspected: AtomicBool,
    nacked: AtomicBool,
}

impl Ticket {
    pub(super) fn new(message: Message, schedule: Schedule, taken: Timestamp, deadline: Instant) -> Self {
        Self {
            message,
            schedule,
            taken,
            deadline,
            sent: AtomicBool::new(false),
            first: OnceLock::new(),
            in_doubt: AtomicBool::new(false),
            suspected: AtomicBool::new(false),
            nacked: AtomicBool::new(false),
        }
    }

    /// Whether it has been written to a connection at least once.
    pub(super) fn was_sent(&self) -> bool {
        self.sent.load(Ordering::Acquire)
    }

    /// Whether it was sent on a connection that was lost before the answer, so that the
    /// broker may have it whatever it answers now.
    pub(super) fn is_in_doubt(&self) -> bool {
        self.in_doubt.load(Ordering::Acquire)
    }

    /// Whether the broker refused it or one beside it, by closing the channel. Unless it
    /// turns out to be this one, the broker may have it.
    pub(super) fn is_suspected(&self) -> bool {
        self.suspected.load(Ordering::Acquire)
    }

    /// Whether the last answer was a refusal, and it was not sent again since.
    pub(super) fn is_nacked(&self) -> bool {
        self.nacked.load(Ordering::Acquire)
    }

    pub(super) fn is_late(&self, now: Instant) -> bool {
        now >= self.deadline
    }

    /// The message without a copy, if the worker has let go of it. One that may be delivered
    /// keeps its handle.
    pub(super) fn into_message(this: Arc<Self>, maybe_delivered: bool) -> Message {
        let first = this.first.get().filter(|_| maybe_delivered);
        let handle = first.and_then(|&first| this.handle(first));
        let mut message =
            Arc::try_unwrap(this).map_or_else(|shared| shared.message.clone(), |ticket| ticket.message);
        handle.into_iter().for_each(|handle| message.fix(handle));
        message
    }

    /// The time for which the key of a message that is written now is made.
    fn written(&self, now: Instant) -> Instant {
        match self.message.id {
            Some(_) => *self.first.get_or_init(|| now),
            None => now,
        }
    }

    fn handle(&self, written: Instant) -> Option<Handle> {
        self.message.handle(self.schedule.remaining(written), self.schedule.due())
    }
}

/// A ticket held by the worker.
#[derive(Debug)]
pub(super) struct Job {
    id: u64,
    ticket: Arc<Ticket>,
    reply: Sender<(u64, Reply)>,
    publishes: u32,
    pub(super) suspicion: Suspicion,
}

impl Job {
    pub(super) fn new(id: u64, ticket: Arc<Ticket>, reply: Sender<(u64, Reply)>) -> Self {
        Self { id, ticket, reply, publishes: 0, suspicion: Suspicion::default() }
    }

    pub(super) fn is_late(&self, now: Instant) -> bool {
        self.ticket.is_late(now)
    }

    pub(super) fn body(&self) -> &[u8] {
        &self.ticket.message.body
    }

    /// The message as it is written at `now`.
    pub(super) fn wire(&self, now: Instant) -> Wire {
        let written = self.ticket.written(now);
        Wire::new(&self.ticket.message, &self.ticket.schedule, self.ticket.taken, written)
    }

    /// How often it was written.
    pub(super) fn publishes(&self) -> u32 {
        self.publishes
    }

    /// Records that it is about to be written.
    pub(super) fn mark_sent(&mut self) {
        self.publishes += 1;
        self.ticket.nacked.store(false, Ordering::Release);
        self.ticket.sent.store(true, Ordering::Release);
    }

    /// Records that the broker refused it or a message sent together with it.
    pub(super) fn mark_suspected(&self) {
        self.ticket.suspected.store(true, Ordering::Release);
    }

    /// Whether it is sent alone.
    pub(super) fn is_suspect(&self) -> bool {
        self.suspicion.is_suspect
    }

    /// Records that the broker refused it for now.
    pub(super) fn mark_nacked(&self) {
        self.ticket.nacked.store(true, Ordering::Release);
    }

    /// Whether it was meant to be delayed, even if it is due by now.
    pub(super) fn is_delayed(&self) -> bool {
        self.ticket.schedule.delay() != Delay::ZERO
    }

    /// Records that the connection was lost before the answer.
    pub(super) fn mark_in_doubt(&self) {
        self.ticket.in_doubt.store(true, Ordering::Release);
    }

    /// Tells the publisher that the broker has it.
    pub(super) fn confirm(self, sent: Instant) {
        let written = self.ticket.written(sent);
        let receipt = Receipt {
            due: self.ticket.schedule.due(),
            delay: self.ticket.schedule.remaining(written),
            publishes: self.publishes,
            handle: self.ticket.handle(written),
        };
        self.settle(Ok(receipt));
    }

    /// Tells the publisher that the broker does not have it.
    pub(super) fn fail(self, cause: Cause) {
        self.settle(Err(cause));
    }

    fn settle(self, answer: Reply) {
        let Self { id, ticket, reply, .. } = self;
        // Before the answer, so that the publisher can take the message out
        // without a copy.
        drop(ticket);
        // A publisher that gave up at its deadline is no longer there.
        let _ = reply.send((id, answer));
    }
}

/// A message that was written to the channel, and when.
#[derive(Debug)]
pub(super) struct Unconfirmed {
    pub(super) job: Job,
    pub(super) at: Instant,
}

impl Unconfirmed {
    /// In how many properties and headers it differs from one that was returned; `None` if it
    /// cannot be the same. `entry` is the exchange that messages go to by default.
    pub(super) fn differences(&self, entry: &str, returned: &Returned) -> Option<usize> {
        let returned = returned.published();
        // What would be written of it is not worked out in vain.
        (self.job.body() == returned.body)
            .then(|| self.job.wire(self.at))
            .and_then(|wire| wire.published(entry, self.job.body()).differences(returned))
    }

    /// Whether it has waited too long, not counting the time before `since`: for `limit`, and
    /// twice as long for each further time it was published.
    pub(super) fn is_overdue(&self, now: Instant, since: Instant, limit: Duration) -> bool {
        let patience = limit.saturating_mul(1 << self.job.publishes().saturating_sub(1).min(16));
        now.saturating_duration_since(self.at.max(since)) >= patience
    }
}
