//! Publishing successors, and letting go of a message only once its successor is
//! confirmed.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use crossbeam_channel::Select;
use log::{debug, error, warn};

use crate::{
    Message, Router,
    amqp::{Consumer, Delivery},
    router::{Cause, Outcome, Pipeline},
};

/// How long a message waits that the broker would not store just now.
const PAUSE: Duration = Duration::from_secs(1);

/// What to do with a message that can never be published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unsendable {
    /// Reject it: the broker dead-letters it from the queue, as it is.
    Reject,
    /// Keep it unacknowledged; its queue may have nowhere to dead-letter to.
    Hold,
}

/// Messages whose successors are on their way.
pub(super) struct Forwarder<'r> {
    pipeline: Pipeline<'r, Delivery>,
    /// Successors to publish again, and when.
    held: VecDeque<(Instant, Message, Delivery)>,
    unsendable: Unsendable,
    /// Messages that nothing can be done about; the broker gets them back when
    /// the connection is closed.
    stuck: Vec<Delivery>,
    acknowledged: u64,
}

impl<'r> Forwarder<'r> {
    pub(super) fn new(router: &'r Router, unsendable: Unsendable) -> Self {
        Self {
            pipeline: router.pipeline(),
            held: VecDeque::new(),
            unsendable,
            stuck: Vec::new(),
            acknowledged: 0,
        }
    }

    /// How many messages were let go of.
    pub(super) fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// Lets go of a message: it is processed, or its successor is confirmed.
    ///
    /// # Errors
    /// As for [`send`](Self::send).
    pub(super) fn acknowledge(&mut self, consumer: &Consumer, delivery: Delivery) -> Result<(), String> {
        self.acknowledged += 1;
        consumer.ack(delivery).map_err(|error| error.to_string())
    }

    /// Lets a `select` wake up when there may be something to settle.
    pub(super) fn watch<'s>(&'s self, select: &mut Select<'s>) {
        self.pipeline.watch(select);
    }

    /// Publishes the successor of a message.
    ///
    /// # Errors
    /// Why it makes no sense to go on; what is not acknowledged stays the
    /// broker's.
    pub(super) fn send(
        &mut self,
        consumer: &Consumer,
        delivery: Delivery,
        successor: Message,
    ) -> Result<(), String> {
        match self.pipeline.push(delivery, successor) {
            Some(outcome) => self.settle_one(consumer, outcome),
            None => Ok(()),
        }
    }

    /// Gives a message up that cannot be understood.
    pub(super) fn refuse(&mut self, consumer: &Consumer, delivery: Delivery) -> Result<(), String> {
        match self.unsendable {
            Unsendable::Reject => consumer.reject(delivery).map_err(|error| error.to_string()),
            Unsendable::Hold => {
                self.stuck.push(delivery);
                Ok(())
            }
        }
    }

    /// Acknowledges what is confirmed, and publishes again what is to be.
    ///
    /// # Errors
    /// As for [`send`](Self::send).
    pub(super) fn settle(&mut self, consumer: &Consumer) -> Result<(), String> {
        while let Some(outcome) = self.pipeline.try_next() {
            self.settle_one(consumer, outcome)?;
        }
        while self.held.front().is_some_and(|(when, ..)| *when <= Instant::now()) {
            if let Some((_, successor, delivery)) = self.held.pop_front() {
                self.send(consumer, delivery, successor)?;
            }
        }
        Ok(())
    }

    fn settle_one(&mut self, consumer: &Consumer, outcome: Outcome<Delivery>) -> Result<(), String> {
        let delivery = outcome.tag;
        let error = match outcome.result {
            Ok(_) => return self.acknowledge(consumer, delivery),
            Err(error) => error,
        };
        let id = delivery.properties.message_id.as_deref().unwrap_or("-").escape_debug();
        match error.cause() {
            Cause::Returned { .. } | Cause::Rejected { code: 403 | 404, .. } => Err(error.to_string()),
            Cause::Invalid(_) | Cause::Rejected { .. } => {
                error!("message id={id} cannot be published: {error}");
                self.refuse(consumer, delivery)
            }
            cause => {
                debug!("message id={id} waits: {cause}");
                self.held.push_back((Instant::now() + PAUSE, error.into_message(), delivery));
                Ok(())
            }
        }
    }

    /// Waits until every successor that was published is confirmed and its
    /// message acknowledged, for `limit` at most. Whether all are.
    pub(super) fn finish(mut self, consumer: &Consumer, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        while self.pipeline.in_flight() > 0 {
            let mut select = Select::new();
            self.pipeline.watch(&mut select);
            if select.ready_deadline(deadline).is_err() {
                break;
            }
            while let Some(outcome) = self.pipeline.try_next() {
                if let Err(reason) = self.settle_one(consumer, outcome) {
                    warn!("{reason}");
                    return false;
                }
            }
        }
        self.pipeline.in_flight() == 0 && self.held.is_empty()
    }
}
