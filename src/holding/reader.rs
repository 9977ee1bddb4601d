//! Taking messages out of a queue without acknowledging them.

use std::time::Duration;

use crate::amqp::{AmqpError, Consumer, Delivery, Next, Session, settle};

/// The most messages one consumer holds. A queue is read through as many
/// consumers as it takes, one after the other: what a consumer may hold is also
/// what can pile up in our memory.
const PAGE: u16 = 1_000;

/// How long the broker may hand out nothing although messages wait.
const PATIENCE: u32 = 100;

/// Reads a queue page by page. Closing it gives back what was not acknowledged,
/// page after page and so in order.
pub(super) struct Reader {
    session: Session,
    queue: String,
    /// All but the last are full of kept messages and will hear nothing more.
    pages: Vec<Consumer>,
    /// How many messages the last page may hold, and how many it holds.
    size: u16,
    held: u16,
    /// How many of those are decided: they stay.
    kept: u16,
    /// How many messages are still to be read.
    left: u64,
    quiet: u32,
    /// Whether anything was acknowledged.
    forgot: bool,
}

impl Reader {
    pub(super) fn new(session: Session, queue: String, left: u64) -> Self {
        Self { session, queue, pages: Vec::new(), size: 0, held: 0, kept: 0, left, quiet: 0, forgot: false }
    }

    /// Whether all that was to be read has been.
    pub(super) fn is_done(&self) -> bool {
        self.left == 0
    }

    /// The next message, if one comes in time.
    pub(super) fn next(&mut self, limit: Duration) -> Result<Option<Delivery>, AmqpError> {
        if self.left == 0 {
            return Ok(None);
        }
        if self.kept == self.size {
            self.turn_page()?;
        }
        let Some(page) = self.pages.last() else { return Ok(None) };
        match page.next(limit) {
            Next::Delivery(delivery) => {
                self.left -= 1;
                self.held += 1;
                self.quiet = 0;
                Ok(Some(delivery))
            }
            Next::Timeout => {
                if self.held == self.kept && !limit.is_zero() {
                    self.look_again()?;
                }
                Ok(None)
            }
            Next::Ended(cause) => {
                Err(cause.unwrap_or(AmqpError::Lost { reason: "the consumer ended".into() }))
            }
        }
    }

    fn turn_page(&mut self) -> Result<(), AmqpError> {
        self.size = u16::try_from(self.left).unwrap_or(PAGE).min(PAGE);
        (self.held, self.kept) = (0, 0);
        self.pages.push(self.session.consume(&self.queue, self.size)?);
        Ok(())
    }

    /// Nothing came: somebody else may have taken the rest.
    fn look_again(&mut self) -> Result<(), AmqpError> {
        let ready = self.session.queue_depth(&self.queue)?.map_or(0, |depth| depth.ready);
        self.quiet += 1;
        if (ready == 0 && self.quiet > 3) || self.quiet > PATIENCE {
            self.left = 0;
        }
        Ok(())
    }

    /// The message stays in the queue.
    pub(super) fn keep(&mut self) {
        self.kept += 1;
    }

    /// The queue may forget the message.
    pub(super) fn forget(&mut self, delivery: Delivery) -> Result<(), AmqpError> {
        self.held = self.held.saturating_sub(1);
        self.forgot = true;
        // Only the last page holds undecided messages.
        match self.pages.last() {
            Some(page) => page.ack(delivery),
            None => Ok(()),
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        if self.forgot {
            settle();
        }
        // The oldest first, so that its messages are in front again.
        self.pages.drain(..).for_each(drop);
    }
}
