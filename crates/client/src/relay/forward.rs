//! Publishing successors, and acknowledging a message only once its successor is confirmed.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use crossbeam_channel::Select;
use log::{debug, error, warn};

use delayline_amqp::{CRASH, Consumer, Delivery};
use delayline_core::{Message, message::direct};

use crate::router::{Cause, Outcome, Pipeline, PublishError, Router};

use super::{DueCounter, RefusalCounter, apart::Apart, work::Failed};

/// How long to wait before publishing a message again that the broker refused to store.
const PAUSE: Duration = Duration::from_secs(1);

/// The broker's words if a topic permission refuses one key, and not the whole exchange.
const TOPIC_REFUSED: &str = "access to topic";

/// What to do with a message that can never be published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unsendable {
    /// Reject it: the broker dead-letters it from the queue, unchanged.
    Reject,
    /// Keep it unacknowledged; its queue may have nowhere to dead-letter to.
    Hold,
}

/// A successor that is not due yet.
struct Early {
    counted: Arc<dyn DueCounter>,
    successor: Message,
    delivery: Delivery,
}

/// Messages whose successors are in flight.
pub(crate) struct Forwarder {
    router: Router,
    pipeline: Pipeline<Delivery>,
    apart: Apart,
    /// Successors to publish again, with the time for each.
    held: VecDeque<(Instant, Message, Delivery)>,
    /// Successors that are not due yet, by their times and numbers.
    early: BTreeMap<(Instant, u64), Early>,
    number: u64,
    unsendable: Unsendable,
    /// Messages that can be neither sent nor rejected. The broker requeues them when the connection
    /// is closed.
    stuck: Vec<Delivery>,
    /// How many messages the broker delivers at a time.
    prefetch: usize,
    stats: Option<Arc<dyn RefusalCounter>>,
    acknowledged: u64,
}

impl Forwarder {
    pub(super) fn new(
        (router, apart): (Router, Apart),
        unsendable: Unsendable,
        stats: Option<Arc<dyn RefusalCounter>>,
        prefetch: usize,
    ) -> Self {
        Self {
            pipeline: router.pipeline(),
            router,
            apart,
            held: VecDeque::new(),
            early: BTreeMap::new(),
            number: 0,
            unsendable,
            stuck: Vec::new(),
            prefetch,
            stats,
            acknowledged: 0,
        }
    }

    /// Whether the forwarder holds no messages.
    pub(crate) fn is_empty(&self) -> bool {
        self.in_flight() == 0 && self.held.is_empty() && self.early.is_empty() && self.stuck.is_empty()
    }

    fn in_flight(&self) -> usize {
        self.pipeline.in_flight() + self.apart.in_flight()
    }

    fn try_next(&mut self) -> Option<Outcome<Delivery>> {
        self.pipeline.try_next().or_else(|| self.apart.try_next())
    }

    /// How long until a successor must be published.
    pub(crate) fn next_due(&self) -> Option<Duration> {
        let early = self.early.keys().next().map(|(due, _)| *due);
        let next = early.into_iter().chain(self.held.front().map(|(when, ..)| *when)).min()?;
        Some(next.saturating_duration_since(Instant::now()))
    }

    /// How many messages were acknowledged or rejected.
    pub(crate) fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// Acknowledges a message: it is processed, or its successor is confirmed.
    ///
    /// # Errors
    /// As for [`send`](Self::send).
    pub(crate) fn acknowledge(&mut self, consumer: &Consumer, delivery: Delivery) -> Result<(), Failed> {
        self.acknowledged += 1;
        Ok(consumer.ack(delivery).map_err(|error| error.to_string())?)
    }

    /// Lets a `select` wake up when there may be something to settle.
    pub(crate) fn watch<'s>(&'s self, select: &mut Select<'s>) {
        self.pipeline.watch(select);
        self.apart.watch(select);
    }

    /// Publishes the successor of a message.
    ///
    /// # Errors
    /// The session cannot continue. The broker keeps unacknowledged messages.
    pub(crate) fn send(
        &mut self,
        consumer: &Consumer,
        delivery: Delivery,
        successor: Message,
    ) -> Result<(), Failed> {
        let outcome = match Apart::takes(&successor) {
            // Each may cost a connection, and must not occupy the places of others.
            true if self.apart.has_crashed(&successor) && self.apart.in_flight() >= self.prefetch / 2 => {
                let text = "not tried: the broker has crashed over a message of this application".into();
                let error = PublishError::new(Cause::Rejected { code: CRASH, text }, successor, false);
                return self.set_aside(consumer, delivery, &error);
            }
            true => self.apart.push(delivery, successor),
            false => self.pipeline.push(delivery, successor),
        };
        match outcome {
            Some(outcome) => self.settle_one(consumer, outcome),
            None => Ok(()),
        }
    }

    /// Publishes the successor of a message, but not before this instant, and counts it then.
    ///
    /// # Errors
    /// As for [`send`](Self::send).
    pub(crate) fn send_at(
        &mut self,
        (due, counted): (Instant, Arc<dyn DueCounter>),
        consumer: &Consumer,
        delivery: Delivery,
        successor: Message,
    ) -> Result<(), Failed> {
        let early = Early { counted, successor, delivery };
        if due <= Instant::now() {
            return self.send_early(consumer, due, early);
        }
        self.number += 1;
        self.early.insert((due, self.number), early);
        Ok(())
    }

    fn send_early(&mut self, consumer: &Consumer, due: Instant, early: Early) -> Result<(), Failed> {
        let Early { counted, successor, delivery } = early;
        counted.published(due.elapsed());
        self.send(consumer, delivery, successor)
    }

    /// Sets aside a message that cannot be read or published.
    ///
    /// # Errors
    /// As for [`send`](Self::send), or such messages now occupy all places.
    pub(crate) fn refuse(&mut self, consumer: &Consumer, delivery: Delivery) -> Result<(), Failed> {
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

    /// Acknowledges messages with confirmed successors. Publishes again the successors whose pause
    /// has passed.
    ///
    /// # Errors
    /// As for [`send`](Self::send).
    pub(crate) fn settle(&mut self, consumer: &Consumer) -> Result<(), Failed> {
        while let Some(outcome) = self.try_next() {
            self.settle_one(consumer, outcome)?;
        }
        while self.held.front().is_some_and(|(when, ..)| *when <= Instant::now()) {
            if let Some((_, successor, delivery)) = self.held.pop_front() {
                self.send(consumer, delivery, successor)?;
            }
        }
        while let Some(next) = self.early.first_entry()
            && next.key().0 <= Instant::now()
        {
            let ((due, _), early) = next.remove_entry();
            self.send_early(consumer, due, early)?;
        }
        Ok(())
    }

    fn settle_one(&mut self, consumer: &Consumer, outcome: Outcome<Delivery>) -> Result<(), Failed> {
        let delivery = outcome.tag;
        let error = match outcome.result {
            Ok(_) => return self.acknowledge(consumer, delivery),
            Err(error) => error,
        };
        match error.cause() {
            _ if self.is_everybodys(&error) => Err(error.to_string().into()),
            Cause::Invalid(_) | Cause::Returned { .. } | Cause::Rejected { .. } => {
                self.set_aside(consumer, delivery, &error)
            }
            // A message without a delay is refused by an application's own queue, for an unlimited
            // time. It may wait, but must not occupy the places of others.
            Cause::Nacked
                if direct::goes_straight_to_an_application(error.message()) && self.is_crowded() =>
            {
                self.set_aside(consumer, delivery, &error)
            }
            cause => {
                debug!("message id={} waits: {cause}", delivery.id());
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
        if matches!(error.cause(), Cause::Rejected { code: CRASH, .. }) {
            self.apart.crashed(app);
        }
        error!("set aside app={app} id={}: {error}", delivery.id());
        if let Some(stats) = &self.stats {
            stats.refused(app.as_str());
        }
        self.refuse(consumer, delivery)
    }

    /// Whether messages that wait to be published again leave too few places for others.
    fn is_crowded(&self) -> bool {
        self.unsendable == Unsendable::Reject && self.held.len() >= self.prefetch / 2
    }

    /// Whether the broker would refuse the same from every message. Then all wait until an operator
    /// fixes it. A topic permission refuses only this message, and others go on.
    fn is_everybodys(&self, error: &PublishError) -> bool {
        let through_the_entry = direct::of(error.message()).is_none();
        match error.cause() {
            // All messages of a worker belong to one application.
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

    /// Waits until every published successor is confirmed and its message acknowledged, for
    /// `limit` at most. Returns whether all are.
    pub(crate) fn finish(&mut self, consumer: &Consumer, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        while self.in_flight() > 0 {
            let mut select = Select::new();
            self.watch(&mut select);
            if select.ready_deadline(deadline).is_err() {
                break;
            }
            while let Some(outcome) = self.try_next() {
                match self.settle_one(consumer, outcome) {
                    Ok(()) => {}
                    // It is requeued with the rest.
                    Err(Failed::Full(_)) => return false,
                    Err(Failed::Session(reason) | Failed::Crashed { reason, .. }) => {
                        warn!("{reason}");
                        return false;
                    }
                }
            }
        }
        self.in_flight() == 0 && self.held.is_empty()
    }

    /// Closes the connections, each within `limit`. Returns whether all messages were confirmed.
    pub(super) fn close(self, limit: Duration) -> bool {
        self.router.close(limit).is_ok() & self.apart.close(limit)
    }
}
