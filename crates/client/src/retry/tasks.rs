//! Calling the handler of a worker in several threads.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crossbeam_channel::{Receiver, Select, Sender, unbounded};
use jiff::Timestamp;
use log::info;

use crate::relay::{Failed, Forwarder, Handle};
use delayline_amqp::{Consumer, Delivery};

use super::{Handled, History, Job, Worker};

/// A message for a thread that calls the handler.
pub(super) struct Task {
    delivery: Delivery,
    history: History,
    done: Sender<Done>,
}

/// A message, and the handler's decision.
pub(super) struct Done {
    pub(super) delivery: Delivery,
    pub(super) history: History,
    pub(super) handled: Handled,
}

impl Task {
    pub(super) fn process(self, handler: &impl Fn(&Job<'_>) -> Handled) {
        let Self { delivery, history, done } = self;
        let job = Job {
            body: &delivery.body,
            properties: &delivery.properties,
            headers: &delivery.headers,
            attempt: history.attempt,
            exchange: &history.exchange,
            routing_key: &history.routing_key,
            first_failed: history.first_failed.and_then(|first| Timestamp::from_millisecond(first).ok()),
            redelivered: delivery.redelivered,
        };
        // A panic is a failure like any other.
        let handled = catch_unwind(AssertUnwindSafe(|| handler(&job)));
        let handled = handled.unwrap_or_else(|_| Handled::Retry("panic".into()));
        // The worker waits for it.
        let _ = done.send(Done { delivery, history, handled });
    }
}

/// The messages that a worker's handlers hold.
pub(super) struct Tasks<'w> {
    worker: &'w Worker,
    tasks: Sender<Task>,
    busy: usize,
    done: Sender<Done>,
    results: Receiver<Done>,
}

impl<'w> Tasks<'w> {
    pub(super) fn new(worker: &'w Worker, tasks: Sender<Task>) -> Self {
        let (done, results) = unbounded();
        Self { worker, tasks, busy: 0, done, results }
    }
}

impl Handle for Tasks<'_> {
    fn handle(
        &mut self,
        consumer: &Consumer,
        forwarder: &mut Forwarder,
        delivery: Delivery,
    ) -> Result<(), Failed> {
        let now = Timestamp::now().as_millisecond();
        let (exchange, routing_key) = (&delivery.exchange, &delivery.routing_key);
        let history = History::read(&delivery.headers, exchange, routing_key, &self.worker.names, now);
        if history.is_expired(now) {
            let handled = Handled::Park("expired".into());
            return self.worker.settle(consumer, forwarder, Done { delivery, history, handled });
        }
        self.busy += 1;
        let task = Task { delivery, history, done: self.done.clone() };
        self.tasks.send(task).map_err(|_| Failed::Session("no thread is left to call the handler".into()))
    }

    fn settle(&mut self, consumer: &Consumer, forwarder: &mut Forwarder) -> Result<(), Failed> {
        while let Ok(done) = self.results.try_recv() {
            self.busy -= 1;
            self.worker.settle(consumer, forwarder, done)?;
        }
        Ok(())
    }

    fn busy(&self) -> usize {
        self.busy
    }

    fn has_room(&self) -> bool {
        self.busy < usize::from(self.worker.concurrency)
    }

    fn watch<'s>(&'s self, select: &mut Select<'s>) {
        select.recv(&self.results);
    }

    fn abandon(&mut self) {
        if self.busy > 0 {
            info!("waiting for {} handlers; their messages will be delivered again", self.busy);
        }
        // `settle` may have failed over the last result.
        self.results.iter().take(self.busy).for_each(drop);
        self.busy = 0;
    }
}
