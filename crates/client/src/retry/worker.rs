//! A consumer whose handler decides about each message; it needs no retry service.

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::AtomicBool,
};

use jiff::Timestamp;
use log::{error, info};

use crate::{
    relay::{Consuming, Failed, Forwarder, Unsendable},
    router::RouterBuilder,
};
use delayline_amqp::{Consumer, Delivery, ProbeAnswer, Session};
use delayline_core::{
    codec::{AppKey, Delay, RoutingKey},
    message::{Headers, Properties},
    topology::{IF_MISSING, Names},
};

use super::{Decision, Failure, History, SharedPolicies};

/// A handler's decision about a message.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Handled {
    /// It is processed; the broker may delete it.
    Done,
    /// It failed for this reason, and is tried again as the policy says.
    Retry(String),
    /// It failed, and is tried again after this delay, for example that of a `Retry-After`;
    /// the policy's limits still apply.
    RetryAfter(Delay, String),
    /// It failed and is parked at once.
    Park(String),
}

/// A message given to a handler.
#[derive(Debug)]
#[non_exhaustive]
pub struct Job<'a> {
    /// The payload.
    pub body: &'a [u8],
    /// Standard properties.
    pub properties: &'a Properties,
    /// Headers.
    pub headers: &'a Headers,
    /// Which retry this is; 0 the first time.
    pub attempt: u32,
    /// The exchange it was first published to.
    pub exchange: &'a str,
    /// The routing key it was first published with.
    pub routing_key: &'a str,
    /// When it failed for the first time.
    pub first_failed: Option<Timestamp>,
    /// Whether it was delivered before, so that it may have been processed.
    pub redelivered: bool,
}

/// Consumes an application's queue.
///
/// A message is acknowledged once the handler is done with it, or once its retry or its
/// parked copy is confirmed. A panic in the handler counts as a failure. A message that
/// expired on the way is parked without asking the handler.
///
/// The queue must be bound to the dispatch exchange for the app key, or retries never come
/// back.
///
/// ```no_run
/// use std::sync::atomic::AtomicBool;
/// use delayline::{
///     broker::Broker,
///     codec::AppKey,
///     retry::{Backoff, Handled, Policies, Policy, SharedPolicies, Worker},
/// };
///
/// let broker = Broker::from_url("amqp://localhost")?;
/// let backoff = Backoff::List(vec!["10s".parse()?, "1m".parse()?, "5m".parse()?]);
/// let policies = SharedPolicies::new(Policies::new(Policy::new(backoff)));
/// let stop = AtomicBool::new(false);
/// Worker::new(broker, "billing-in", AppKey::new("billing")?, policies).run(&stop, |job| {
///     if job.body.is_empty() {
///         return Handled::Park("empty".into());
///     }
///     Handled::Retry("the bank is closed".into())
/// })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Worker {
    router: RouterBuilder,
    names: Names,
    queue: String,
    app: AppKey,
    policies: SharedPolicies,
    prefetch: u16,
    unsendable: Unsendable,
}

/// All places of a worker are occupied by messages that failed and cannot be sent again,
/// because their headers cannot be read or the broker refuses them. They are back in the
/// queue, and nothing behind them would ever be processed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{count} messages in `{queue}` failed and cannot be sent again. That is as many as the worker holds, so \
     it could take nothing else. They are back in the queue: remove them, or let the worker reject them \
     (`Worker::rejecting`) if the queue has a dead-letter exchange"
)]
#[non_exhaustive]
pub struct WorkerFull {
    /// The queue.
    pub queue: String,
    /// How many there are.
    pub count: usize,
}

impl Worker {
    /// A worker on a queue, for an application. It retries through the set of a router such as
    /// this, whose quota does not count here.
    pub fn new(
        router: impl Into<RouterBuilder>,
        queue: impl Into<String>,
        app: AppKey,
        policies: SharedPolicies,
    ) -> Self {
        let router = router.into();
        let names = Names::new(router.set.clone());
        Self { router, names, queue: queue.into(), app, policies, prefetch: 10, unsendable: Unsendable::Hold }
    }

    /// Holds this many messages at a time, 1 or more; 10 by default. The handler gets one
    /// after the other. Of large ones it holds fewer: their bodies have about 256 MiB together.
    #[must_use]
    pub fn with_prefetch(mut self, prefetch: u16) -> Self {
        self.prefetch = prefetch.max(1);
        self
    }

    /// Rejects messages that failed and cannot be sent again, so that the broker dead-letters
    /// them unchanged; only for a queue with a dead-letter exchange, such as `<set>.retry`,
    /// since any other queue would lose them. Without this, such messages keep their places
    /// until none is left.
    #[must_use]
    pub fn rejecting(mut self) -> Self {
        self.unsendable = Unsendable::Reject;
        self
    }

    /// Runs until `stop` is set, which is checked between two messages, through restarts of
    /// the broker. It takes no message while the broker does not let this user retry and park:
    /// the log has the reason. Returns whether everything in flight was confirmed at the end; if not,
    /// some messages may arrive twice.
    ///
    /// # Errors
    /// All places are occupied by messages that failed and cannot be sent again.
    pub fn run(
        &self,
        stop: &AtomicBool,
        mut handler: impl FnMut(&Job<'_>) -> Handled,
    ) -> Result<bool, WorkerFull> {
        let consuming = Consuming {
            router: &self.router,
            purpose: "worker",
            queue: &self.queue,
            if_missing: "the application declares it, and binds it to the dispatch exchange",
            prefetch: self.prefetch,
            lanes: 1,
            unsendable: self.unsendable,
            stats: None,
            check: Some(&|session| self.may_retry(session)),
        };
        let ended = consuming.run(stop, |consumer, forwarder, delivery| {
            self.handle(consumer, forwarder, delivery, &mut handler)
        });
        ended.map_err(|count| WorkerFull { queue: self.queue.clone(), count })
    }

    /// Whether the broker accepts retries and parked messages from this user. If it did not,
    /// each failed message would come back to the handler for ever.
    ///
    /// From a user with the tag `impersonator` the broker accepts the questions, too: two empty
    /// messages.
    fn may_retry(&self, session: &mut Session) -> Result<(), String> {
        let retry = (self.names.entry(), RoutingKey::new(Delay::ZERO, self.app.clone()).encode());
        let park = (self.names.parked(), self.app.to_string());
        for (exchange, key) in [retry, park] {
            let refused = match session.probe_publish(&exchange, &key).map_err(|error| error.to_string())? {
                ProbeAnswer::Allowed | ProbeAnswer::Done => continue,
                ProbeAnswer::Refused(text) => format!(
                    "{text}. Give this user the right to retry: `delayline app add {} --may-retry`",
                    self.app
                ),
                ProbeAnswer::Missing => format!("it does not exist; {IF_MISSING}"),
            };
            return Err(format!(
                "no message is taken from `{}`, since a failed one could not be published to `{exchange}`: \
                 {refused}",
                self.queue
            ));
        }
        Ok(())
    }

    fn handle(
        &self,
        consumer: &Consumer,
        forwarder: &mut Forwarder<'_>,
        mut delivery: Delivery,
        handler: &mut impl FnMut(&Job<'_>) -> Handled,
    ) -> Result<(), Failed> {
        let now = Timestamp::now().as_millisecond();
        let (exchange, routing_key) = (&delivery.exchange, &delivery.routing_key);
        let history = History::read(&delivery.headers, exchange, routing_key, &self.names, now);
        let expired = history.is_expired(now);
        let handled = match expired {
            true => Handled::Park("expired".into()),
            false => call(handler, &delivery, &history),
        };
        let (reason, asked, gave_up) = match handled {
            Handled::Done => return forwarder.acknowledge(consumer, delivery),
            Handled::Retry(reason) => (reason, None, false),
            Handled::RetryAfter(delay, reason) => (reason, Some(delay), false),
            Handled::Park(reason) => (reason, None, true),
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
        let failure = Failure::new(self.app.clone(), reason, now, history);
        let policies = self.policies.current();
        let policy = policies.get(&failure.app, &failure.reason);
        let decision = match gave_up && !expired {
            true => Decision::Park(super::ParkReason::GaveUp),
            false => {
                let unit = self.router.unit;
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
        let successor =
            decision.successor(&failure, &self.names, self.router.broker.credentials.username(), parts);
        forwarder.send(consumer, delivery, successor)
    }
}

/// Calls the handler; a panic is a failure like any other.
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
