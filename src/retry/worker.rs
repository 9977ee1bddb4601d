//! A consumer whose handler says what becomes of each message; no retry service
//! is needed for it.

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, atomic::AtomicBool},
};

use jiff::Timestamp;
use log::{error, info};

use crate::{
    Settings,
    amqp::{Consumer, Delivery},
    codec::{AppKey, Delay},
    message::{Headers, Properties},
    topology::Names,
};

use super::{
    Decision, Failure, History, SharedPolicies,
    consume::{Consuming, Failed},
    forward::{Forwarder, Unsendable},
    service::sender,
};

/// What a handler says of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Handled {
    /// It is processed; the broker may forget it.
    Done,
    /// It failed for this reason, and is tried again as the policy says.
    Retry(String),
    /// It failed, and is tried again after this delay, as from a `Retry-After`;
    /// the policy's limits hold all the same.
    RetryAfter(Delay, String),
    /// It failed and is parked at once.
    GiveUp(String),
}

/// A message in the hands of a handler.
#[derive(Debug)]
pub struct Job<'a> {
    /// The payload.
    pub body: &'a [u8],
    /// Standard properties.
    pub properties: &'a Properties,
    /// Headers.
    pub headers: &'a Headers,
    /// Which retry this is; 0 the first time.
    pub attempt: u32,
    /// The exchange it was published to at first.
    pub exchange: &'a str,
    /// The routing key it was published with at first.
    pub routing_key: &'a str,
    /// When it failed for the first time.
    pub first_failed: Option<Timestamp>,
    /// Whether it was handed out before, so that it may have been processed.
    pub redelivered: bool,
}

/// Consumes an application's queue.
///
/// A message is acknowledged once the handler is done with it, or once its retry
/// or its place among the parked ones is confirmed. A handler that panics has
/// failed. A message that expired on the way is parked without asking the handler.
///
/// The queue must be bound to the dispatch exchange for the app key, or what is
/// tried again never comes back.
///
/// ```no_run
/// use std::sync::atomic::AtomicBool;
/// use delayline::{Settings, codec::AppKey, retry::{Handled, Policies, SharedPolicies, Worker}};
///
/// let settings = Settings::from_url("amqp://localhost")?;
/// let policies = SharedPolicies::new(Policies::parse(r#"default.list = ["10s", "1m", "5m"]"#)?);
/// let stop = AtomicBool::new(false);
/// Worker::new(settings, "billing-in", AppKey::new("billing")?, policies).run(&stop, |job| {
///     if job.body.is_empty() {
///         return Handled::GiveUp("empty".into());
///     }
///     Handled::Retry("the bank is closed".into())
/// })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Worker {
    settings: Settings,
    names: Names,
    queue: String,
    app: AppKey,
    policies: SharedPolicies,
    prefetch: u16,
    unsendable: Unsendable,
}

/// All places of a worker are taken by messages that failed and cannot be sent again, because
/// their headers cannot be read or the broker refuses them. They are back in the queue, and
/// nothing behind them would ever be processed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{count} messages in `{queue}` failed and cannot be sent again, as many as the worker holds; nothing else \
     would be taken. They are back in the queue: remove them, or let the worker reject them \
     (`Worker::rejecting`) if the queue has a dead-letter exchange"
)]
pub struct WorkerFull {
    /// The queue.
    pub queue: String,
    /// How many there are.
    pub count: usize,
}

impl Worker {
    /// A worker on a queue, for an application.
    pub fn new(settings: Settings, queue: impl Into<String>, app: AppKey, policies: SharedPolicies) -> Self {
        let names = Names::new(settings.topology.set.clone());
        Self {
            settings,
            names,
            queue: queue.into(),
            app,
            policies,
            prefetch: 10,
            unsendable: Unsendable::Hold,
        }
    }

    /// Holds so many messages at a time, 1 or more; 10 if nothing is said. The
    /// handler is given one after the other.
    #[must_use]
    pub fn with_prefetch(mut self, prefetch: u16) -> Self {
        self.prefetch = prefetch.max(1);
        self
    }

    /// Rejects what failed and cannot be sent again, so that the broker dead-letters it as it
    /// is; only for a queue with a dead-letter exchange, such as `<set>.retry`, as any other
    /// would lose it. Without this such messages keep their places until none is left.
    #[must_use]
    pub fn rejecting(mut self) -> Self {
        self.unsendable = Unsendable::Reject;
        self
    }

    /// Runs until `stop` is set, which is looked at between two messages; through
    /// restarts of the broker. Returns whether everything in flight was confirmed
    /// at the end; if not, some messages may come twice.
    ///
    /// # Errors
    /// All places are taken by messages that failed and cannot be sent again.
    pub fn run(
        &self,
        stop: &AtomicBool,
        mut handler: impl FnMut(&Job<'_>) -> Handled,
    ) -> Result<bool, WorkerFull> {
        let consuming = Consuming {
            settings: &self.settings,
            purpose: "worker",
            queue: &self.queue,
            if_missing: "the application declares it, and binds it to the dispatch exchange",
            prefetch: self.prefetch,
            lanes: 1,
            unsendable: self.unsendable,
            stats: Arc::default(),
            tally: None,
        };
        let ended = consuming.run(stop, |consumer, forwarder, delivery| {
            self.handle(consumer, forwarder, delivery, &mut handler)
        });
        ended.map_err(|count| WorkerFull { queue: self.queue.clone(), count })
    }

    fn handle(
        &self,
        consumer: &Consumer,
        forwarder: &mut Forwarder<'_>,
        mut delivery: Delivery,
        handler: &mut impl FnMut(&Job<'_>) -> Handled,
    ) -> Result<(), Failed> {
        let now = Timestamp::now().as_millisecond();
        let history = History::read(&delivery.headers, &delivery.exchange, &delivery.routing_key, now);
        let expired = history.is_expired(now);
        let handled = match expired {
            true => Handled::GiveUp("expired".into()),
            false => call(handler, &delivery, &history),
        };
        let (reason, asked, gave_up) = match handled {
            Handled::Done => return forwarder.acknowledge(consumer, delivery),
            Handled::Retry(reason) => (reason, None, false),
            Handled::RetryAfter(delay, reason) => (reason, Some(delay), false),
            Handled::GiveUp(reason) => (reason, None, true),
        };
        if delivery.damaged {
            let then = match self.unsendable {
                Unsendable::Hold => "stays in",
                Unsendable::Reject => "is rejected from",
            };
            error!(
                "a message that failed cannot be sent again, because its headers cannot be read; it {then} `{}`",
                self.queue
            );
            return forwarder.refuse(consumer, delivery);
        }
        let now = Timestamp::now().as_millisecond();
        let failure = Failure { app: self.app.clone(), reason, failed: now, history };
        let policies = self.policies.current();
        let policy = policies.get(&failure.app, &failure.reason);
        let decision = match gave_up && !expired {
            true => Decision::Park(super::ParkReason::GaveUp),
            false => {
                let unit = self.settings.topology.unit;
                Decision::new(policy, &failure, asked, unit, now, fastrand::f64())
            }
        };
        let id = delivery.properties.message_id.clone().unwrap_or_else(|| "-".into());
        info!(
            "{decision:?} app={} reason={} id={}",
            self.app,
            failure.reason.escape_debug(),
            id.escape_debug()
        );
        let parts = (
            std::mem::take(&mut delivery.body),
            delivery.properties.clone(),
            std::mem::take(&mut delivery.headers),
        );
        let successor = decision.successor(&failure, &self.names, sender(&self.settings), parts);
        forwarder.send(consumer, delivery, successor)
    }
}

/// Asks the handler; a panic is a failure like any other.
fn call(handler: &mut impl FnMut(&Job<'_>) -> Handled, delivery: &Delivery, history: &History) -> Handled {
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
    catch_unwind(AssertUnwindSafe(|| handler(&job))).unwrap_or_else(|_| Handled::Retry("panic".into()))
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker").field("queue", &self.queue).field("app", &self.app).finish_non_exhaustive()
    }
}
