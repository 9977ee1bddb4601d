//! A consumer whose handler decides about each message; it needs no retry service.

use delayline_core::shell::command;
use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use crossbeam_channel::unbounded;
use jiff::Timestamp;
use log::{error, info};

use crate::{
    relay::{Consuming, Failed, Forwarder, Unsendable},
    router::RouterBuilder,
    target::Target,
};
use delayline_amqp::{Consumer, ProbeAnswer, Session};
use delayline_core::{
    codec::{AppKey, Delay, RoutingKey},
    message::{Headers, Properties},
    topology::{Names, if_missing},
};

use super::{
    Decision, Failure, ParkReason, SharedPolicies,
    tasks::{Done, Task, Tasks},
};

/// A handler's decision about a message.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Handled {
    /// The message is processed; the broker may delete it.
    Done,
    /// Processing failed for this reason. The message is retried by the policy.
    Retry(String),
    /// Processing failed. The message is retried after this delay, for example that of a
    /// `Retry-After`. The policy's limits still apply.
    RetryAfter(Delay, String),
    /// Processing failed, and the message is parked at once.
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
    /// The number of this retry; 0 the first time.
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
/// A message is acknowledged once the handler has finished, or once its retry or its parked copy is
/// confirmed. A panic in the handler counts as a failure. A message that expired on the way is
/// parked without calling the handler.
///
/// The queue must be bound to the dispatch exchange for the app key. Otherwise retries never
/// return.
///
/// ```no_run
/// use delayline::{Target, retry::{Backoff, Handled, Policy, Worker}};
///
/// let backoff = Backoff::List(vec!["10s".parse()?, "1m".parse()?, "5m".parse()?]);
/// let target = Target::from_url("amqp://localhost")?;
/// let worker = Worker::new(target, "billing-in", "billing".parse()?, Policy::new(backoff)).concurrency(8);
/// let stop = worker.stop_handle(); // for the thread that waits for signals
/// # drop(stop);
/// let ended = worker.run(|job| {
///     if job.body.is_empty() {
///         return Handled::Park("empty".into());
///     }
///     Handled::Retry("the bank is closed".into())
/// });
/// println!("{ended}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Worker {
    router: RouterBuilder,
    pub(super) names: Names,
    queue: String,
    app: AppKey,
    policies: SharedPolicies,
    pub(super) concurrency: u16,
    prefetch: u16,
    unsendable: Unsendable,
    stop: Arc<AtomicBool>,
}

/// How a worker ended.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[must_use]
pub enum Ended {
    /// It was stopped, and every message that it had begun is acknowledged.
    Stopped,
    /// It was stopped, but some retries were not confirmed in time. Some messages may arrive twice.
    Unconfirmed,
    /// Messages that failed and cannot be sent again occupy all places of the worker, because their
    /// headers cannot be read or the broker refuses them. They have returned to the queue. The
    /// messages behind them would never be processed.
    Full {
        /// The queue.
        queue: String,
        /// The number of such messages.
        count: usize,
    },
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stopped => f.write_str("stopped"),
            Self::Unconfirmed => f.write_str("stopped; some messages may arrive twice"),
            Self::Full { queue, count } => write!(
                f,
                "{count} messages in `{queue}` failed and cannot be sent again. They occupied all places of \
                 the worker. They have returned to the queue: remove them, or let the worker reject them \
                 (`Worker::rejecting`) if the queue has a dead-letter exchange"
            ),
        }
    }
}

/// Stops a [`Worker`], from any thread.
#[derive(Debug, Clone)]
pub struct StopHandle(Arc<AtomicBool>);

impl StopHandle {
    /// Makes the worker take no further messages. It ends when all called handlers have finished.
    pub fn stop(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Worker {
    /// A worker on a queue, for an application. It retries through this set.
    pub fn new(
        target: impl Into<Target>,
        queue: impl Into<String>,
        app: AppKey,
        policies: impl Into<SharedPolicies>,
    ) -> Self {
        let router = RouterBuilder::new(target);
        Self {
            names: Names::new(router.target.set.clone()),
            router,
            queue: queue.into(),
            app,
            policies: policies.into(),
            concurrency: 1,
            prefetch: 10,
            unsendable: Unsendable::Hold,
            stop: Arc::default(),
        }
    }

    /// Calls the handler for this many messages at the same time, each in its own thread; 1 by
    /// default. All share one connection to consume and one to publish. When a connection is lost,
    /// the worker waits for the handlers before it connects again, since the broker delivers their
    /// messages again.
    #[must_use]
    pub fn concurrency(mut self, messages: u16) -> Self {
        self.concurrency = messages.max(1);
        self
    }

    /// Holds this many messages at a time; 10 by default, and at least the number that it
    /// [processes](Self::concurrency) at the same time. Of large messages it holds fewer: all
    /// bodies together have at most 256 MiB.
    #[must_use]
    pub fn prefetch(mut self, messages: u16) -> Self {
        self.prefetch = messages.max(1);
        self
    }

    /// Rejects messages that failed and cannot be sent again, so that the broker dead-letters them
    /// unchanged. Use it only for a queue with a dead-letter exchange, such as `<set>.retry`: any
    /// other queue would lose them. Without this, such messages keep their places until none is
    /// left.
    #[must_use]
    pub fn rejecting(mut self) -> Self {
        self.unsendable = Unsendable::Reject;
        self
    }

    /// A handle that stops it. It can also be used before [`run`](Self::run).
    #[must_use]
    pub fn stop_handle(&self) -> StopHandle {
        StopHandle(Arc::clone(&self.stop))
    }

    /// Runs until it is [stopped](Self::stop_handle), through restarts of the broker. While the
    /// broker does not let this user retry and park, it takes no messages and logs the reason.
    pub fn run(&self, handler: impl Fn(&Job<'_>) -> Handled + Sync) -> Ended {
        let consuming = Consuming {
            router: &self.router,
            purpose: "worker",
            queue: &self.queue,
            if_missing: "the application declares it, and binds it to the dispatch exchange".into(),
            prefetch: self.prefetch.max(self.concurrency),
            lanes: 1,
            unsendable: self.unsendable,
            stats: None,
            check: Some(&|session| self.may_retry(session)),
        };
        let (tasks, waiting) = unbounded::<Task>();
        let ended = thread::scope(|scope| {
            for number in 0..self.concurrency {
                let (waiting, handler) = (waiting.clone(), &handler);
                thread::Builder::new()
                    .name(format!("delayline-worker-{number}"))
                    .spawn_scoped(scope, move || waiting.iter().for_each(|task| task.process(handler)))
                    .expect("a thread can be started");
            }
            // The threads end with the tasks.
            consuming.run(&self.stop, Tasks::new(self, tasks))
        });
        match ended {
            Ok(true) => Ended::Stopped,
            Ok(false) => Ended::Unconfirmed,
            Err(count) => Ended::Full { queue: self.queue.clone(), count },
        }
    }

    /// Whether the broker accepts retries and parked messages from this user. Otherwise, each
    /// failed message would return to the handler forever.
    ///
    /// From a user with the tag `impersonator`, the broker also accepts the probes: two empty
    /// messages.
    fn may_retry(&self, session: &mut Session) -> Result<(), String> {
        let retry = (self.names.entry(), RoutingKey::new(Delay::ZERO, self.app.clone()).encode());
        let park = (self.names.parked(), self.app.to_string());
        for (exchange, key) in [retry, park] {
            let refused = match session.probe_publish(&exchange, &key).map_err(|error| error.to_string())? {
                ProbeAnswer::Allowed | ProbeAnswer::Done => continue,
                ProbeAnswer::Refused(text) => format!(
                    "{text}. Give this user the right to retry: run `{}` with the flags it was registered with",
                    command(&["app", "add", self.app.as_str(), "--may-retry", "--replace-permissions"])
                ),
                ProbeAnswer::Missing => format!("it does not exist; {}", if_missing()),
            };
            return Err(format!(
                "the worker takes no message from `{}`: it could not publish a failed one to `{exchange}`: \
                 {refused}",
                self.queue
            ));
        }
        Ok(())
    }

    /// Acknowledges a message that is processed, or sends its successor.
    pub(super) fn settle(
        &self,
        consumer: &Consumer,
        forwarder: &mut Forwarder,
        done: Done,
    ) -> Result<(), Failed> {
        let Done { mut delivery, history, handled } = done;
        let (reason, asked, parked) = match handled {
            Handled::Done => return forwarder.acknowledge(consumer, delivery),
            Handled::Retry(reason) => (reason, None, None),
            Handled::RetryAfter(delay, reason) => (reason, Some(delay), None),
            Handled::Park(reason) => (reason, None, Some(ParkReason::GaveUp)),
        };
        if delivery.damaged {
            let then = match self.unsendable {
                Unsendable::Hold => "stays in",
                Unsendable::Reject => "is rejected from",
            };
            error!(
                "a failed message cannot be sent again: its headers cannot be read. It {then} `{}`",
                self.queue
            );
            return forwarder.refuse(consumer, delivery);
        }
        let now = Timestamp::now().as_millisecond();
        let expired = history.is_expired(now);
        let failure = Failure::new(self.app.clone(), reason, now, history);
        let policies = self.policies.current();
        let policy = policies.get(&failure.app, &failure.reason);
        let decision = match parked.filter(|_| !expired) {
            Some(why) => Decision::Park(why),
            None => Decision::new(policy, &failure, asked, self.router.target.unit, now, fastrand::f64()),
        };
        let (app, reason) = (&self.app, failure.reason.escape_debug());
        info!("{decision:?} app={app} reason={reason} id={}", delivery.id());
        let user = self.router.target.broker.credentials.username();
        let successor = decision.successor(&failure, &self.names, user, delivery.take_contents());
        forwarder.send(consumer, delivery, successor)
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker").field("queue", &self.queue).field("app", &self.app).finish_non_exhaustive()
    }
}
