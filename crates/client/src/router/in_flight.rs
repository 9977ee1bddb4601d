//! One message on its way through the router.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::Timestamp;

use delayline_amqp::{CRASH, Returned};
use delayline_core::{
    codec::Delay,
    message::{Handle, Message, Schedule, Wire, fix},
};

use super::{
    Cause, PublishError, Receipt,
    confirmation::Slot,
    suspicion::{NO_CODE, Suspicion},
};

/// A message without an answer. If it is dropped, its publisher gets [`Cause::Closed`].
pub(super) struct InFlight {
    /// Until it is answered.
    message: Option<Message>,
    schedule: Schedule,
    taken: Timestamp,
    deadline: Instant,
    slot: Arc<Slot>,
    /// When it was first written, and last.
    written: Option<(Instant, Instant)>,
    /// The number of times it was written.
    publishes: u32,
    /// Whether it was written to a connection that was lost before the answer. Then the broker may
    /// have it, whatever the broker answers now.
    in_doubt: bool,
    /// Whether the broker closed the channel over it or another message in flight. Unless it proves
    /// to be the cause, the broker may have it.
    suspected: bool,
    /// Whether the last answer was a refusal, and it was not written again since.
    pub(super) nacked: bool,
    pub(super) suspicion: Suspicion,
}

impl InFlight {
    pub(super) fn new(
        message: Message,
        schedule: Schedule,
        taken: Timestamp,
        deadline: Instant,
        slot: Arc<Slot>,
    ) -> Self {
        Self {
            message: Some(message),
            schedule,
            taken,
            deadline,
            slot,
            written: None,
            publishes: 0,
            in_doubt: false,
            suspected: false,
            nacked: false,
            suspicion: Suspicion::default(),
        }
    }

    fn message(&self) -> &Message {
        self.message.as_ref().expect("it has no answer")
    }

    pub(super) fn body(&self) -> &[u8] {
        &self.message().body
    }

    pub(super) fn is_late(&self, now: Instant) -> bool {
        now >= self.deadline
    }

    /// Whether it was published with a delay, even if it is due by now.
    pub(super) fn is_delayed(&self) -> bool {
        self.schedule.delay() != Delay::ZERO
    }

    /// Records that it is written at `now`, and returns its form on the wire.
    pub(super) fn write(&mut self, now: Instant) -> Wire {
        self.publishes += 1;
        self.nacked = false;
        self.written = Some((self.written.map_or(now, |(first, _)| first), now));
        self.wire()
    }

    /// The form on the wire in which it was last written.
    fn wire(&self) -> Wire {
        Wire::new(self.message(), &self.schedule, self.taken, self.moment())
    }

    /// The time for which its key is made. The key of a message with an id is its handle, and does
    /// not change.
    fn moment(&self) -> Instant {
        let (first, last) = self.written.expect("it was written");
        if self.message().id.is_some() { first } else { last }
    }

    fn handle(&self) -> Option<Handle> {
        self.written?;
        self.message().handle(self.schedule.remaining(self.moment()), self.schedule.due())
    }

    /// How long ago it was last written.
    pub(super) fn age(&self, now: Instant) -> Duration {
        self.written.map_or(Duration::ZERO, |(_, last)| now.saturating_duration_since(last))
    }

    /// Whether it has waited too long, not counting the time before `since`: for `limit`, doubled
    /// for each further time it was written.
    pub(super) fn is_overdue(&self, now: Instant, since: Instant, limit: Duration) -> bool {
        let patience = limit.saturating_mul(1 << self.publishes.saturating_sub(1).min(16));
        self.age(now).min(now.saturating_duration_since(since)) >= patience
    }

    /// The number of properties and headers in which it differs from a returned message. `None` if
    /// it cannot be the same. `entry` is the exchange that messages go to by default.
    pub(super) fn differences(&self, entry: &str, returned: &Returned) -> Option<usize> {
        let returned = returned.published();
        // Encode only if the bodies match.
        (self.body() == returned.body)
            .then(|| self.wire())
            .and_then(|wire| wire.published(entry, self.body()).differences(returned))
    }

    /// Records that its channel ended before the answer: because the broker refused it or another
    /// message in flight, or for another reason.
    pub(super) fn mark_unanswered(&mut self, refused: bool) {
        match refused {
            true => self.suspected = true,
            false => self.in_doubt = true,
        }
    }

    /// Reports to the publisher that the broker has it.
    pub(super) fn confirm(mut self: Box<Self>) {
        let receipt = Receipt {
            due: self.schedule.due(),
            delay: self.schedule.remaining(self.moment()),
            publishes: self.publishes,
            handle: self.handle(),
        };
        self.message = None;
        self.slot.answer(Ok(receipt));
    }

    /// Reports to the publisher that it is not confirmed.
    pub(super) fn fail(mut self: Box<Self>, cause: Cause) {
        self.refuse(cause);
    }

    /// Reports to the publisher that the deadline has passed. `waiting` is the reason if messages
    /// cannot be sent at the moment.
    pub(super) fn fail_late(self: Box<Self>, waiting: Option<Cause>, timeout: Duration) {
        let nacked = self.nacked.then_some(Cause::Nacked);
        let cause = waiting.or(nacked).unwrap_or(Cause::Unconfirmed { waited: timeout });
        self.fail(cause);
    }

    fn refuse(&mut self, cause: Cause) {
        // A broker that crashes over a message may have stored it before.
        let refused = matches!(cause, Cause::Rejected { code, .. } if ![CRASH, NO_CODE].contains(&code));
        let maybe_delivered =
            self.in_doubt || (self.suspected && !refused) || (cause.leaves_doubt() && self.written.is_some());
        let handle = if maybe_delivered { self.handle() } else { None };
        let Some(mut message) = self.message.take() else { return };
        if let Some(handle) = handle {
            fix(&mut message, handle);
        }
        self.slot.answer(Err(PublishError::new(cause, message, maybe_delivered)));
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if self.message.is_some() {
            self.refuse(Cause::Closed);
        }
    }
}
