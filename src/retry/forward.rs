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
    router::{Cause, Outcome, Pipeline, PublishError},
};

use super::{Tally, consume::Failed};

/// How long a message waits that the broker would not store just now.
const PAUSE: Duration = Duration::from_secs(1);

/// What the broker says where a rule on routing keys (a topic permission) refuses one key,
/// and not the exchange as a whole.
const TOPIC_REFUSED: &str = "access to topic";

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
    /// How many messages the broker hands out at a time.
    prefetch: usize,
    tally: Option<&'r Tally>,
    acknowledged: u64,
}

impl<'r> Forwarder<'r> {
    pub(super) fn new(
        router: &'r Router,
        unsendable: Unsendable,
        tally: Option<&'r Tally>,
        prefetch: usize,
    ) -> Self {
        Self {
            pipeline: router.pipeline(),
            held: VecDeque::new(),
            unsendable,
            stuck: Vec::new(),
            prefetch,
            tally,
            acknowledged: 0,
        }
    }

    /// Whether no message is in our hands.
    pub(super) fn is_empty(&self) -> bool {
        self.pipeline.in_flight() == 0 && self.held.is_empty() && self.stuck.is_empty()
    }

    /// How many messages were let go of.
    pub(super) fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// Lets go of a message: it is processed, or its successor is confirmed.
    ///
    /// # Errors
    /// As for [`send`](Self::send).
    pub(super) fn acknowledge(&mut self, consumer: &Consumer, delivery: Delivery) -> Result<(), Failed> {
        self.acknowledged += 1;
        Ok(consumer.ack(delivery).map_err(|error| error.to_string())?)
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
    ) -> Result<(), Failed> {
        match self.pipeline.push(delivery, successor) {
            Some(outcome) => self.settle_one(consumer, outcome),
            None => Ok(()),
        }
    }

    /// Gives a message up that cannot be understood, or cannot be published.
    ///
    /// # Errors
    /// As for [`send`](Self::send), and if it is the last of as many as there are places.
    pub(super) fn refuse(&mut self, consumer: &Consumer, delivery: Delivery) -> Result<(), Failed> {
        match self.unsendable {
            Unsendable::Reject => {
                self.acknowledged += 1;
                Ok(consumer.reject(delivery).map_err(|error| error.to_string())?)
            }
            Unsendable::Hold => {
                self.stuck.push(delivery);
                match self.stuck.len() >= self.prefetch {
                    true => Err(Failed::Full(self.stuck.len())),
                    false => Ok(()),
                }
            }
        }
    }

    /// Acknowledges what is confirmed, and publishes again what is to be.
    ///
    /// # Errors
    /// As for [`send`](Self::send).
    pub(super) fn settle(&mut self, consumer: &Consumer) -> Result<(), Failed> {
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

    fn settle_one(&mut self, consumer: &Consumer, outcome: Outcome<Delivery>) -> Result<(), Failed> {
        let delivery = outcome.tag;
        let error = match outcome.result {
            Ok(_) => return self.acknowledge(consumer, delivery),
            Err(error) => error,
        };
        let id = delivery.properties.message_id.as_deref().unwrap_or("-").escape_debug();
        match error.cause() {
            _ if self.is_everybodys(&error) => Err(error.to_string().into()),
            Cause::Invalid(_) | Cause::Returned { .. } | Cause::Rejected { .. } => {
                self.set_aside(consumer, delivery, &error)
            }
            // It is the application's own queue that refuses what is due at once, for as long as
            // it likes; but not in the places of everybody.
            Cause::Nacked if error.message().is_due_at_once() && self.is_crowded() => {
                self.set_aside(consumer, delivery, &error)
            }
            cause => {
                debug!("message id={id} waits: {cause}");
                self.held.push_back((Instant::now() + PAUSE, error.into_message(), delivery));
                Ok(())
            }
        }
    }

    fn set_aside(
        &mut self,
        consumer: &Consumer,
        delivery: Delivery,
        error: &PublishError,
    ) -> Result<(), Failed> {
        let app = &error.message().app;
        let id = delivery.properties.message_id.as_deref().unwrap_or("-").escape_debug();
        error!("set aside app={app} id={id}: {error}");
        if let Some(tally) = self.tally {
            tally.refuse(app.as_str());
        }
        self.refuse(consumer, delivery)
    }

    /// Whether those that wait to be published again take so many places that too few are left
    /// for others. A worker's messages are all of one application.
    fn is_crowded(&self) -> bool {
        self.unsendable == Unsendable::Reject && self.held.len() >= self.prefetch / 2
    }

    /// Whether what the broker refused here it would refuse of everybody: then all wait until
    /// somebody mends it. A rule on keys refuses this message, and others go on.
    fn is_everybodys(&self, error: &PublishError) -> bool {
        let through_the_entry = error.message().direct.is_none();
        match error.cause() {
            // All that a worker has is of one application.
            Cause::Returned { .. } | Cause::Rejected { code: 403 | 404, .. }
                if self.unsendable == Unsendable::Hold =>
            {
                true
            }
            Cause::Rejected { code: 404, .. } => through_the_entry,
            Cause::Rejected { code: 403, text } => through_the_entry && !text.contains(TOPIC_REFUSED),
            _ => false,
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
                match self.settle_one(consumer, outcome) {
                    Ok(()) => {}
                    // It is given back with the rest.
                    Err(Failed::Full(_)) => return false,
                    Err(Failed::Session(reason) | Failed::Crashed { reason, .. }) => {
                        warn!("{reason}");
                        return false;
                    }
                }
            }
        }
        self.pipeline.in_flight() == 0 && self.held.is_empty()
    }
}
