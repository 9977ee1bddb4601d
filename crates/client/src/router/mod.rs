//! Publishing delayed messages, with a confirm for each.
//!
//! A [`Router`] is a synchronous handle to a thread that owns the connection.
//! [`Router::publish`] returns once the broker has confirmed the message;
//! [`Router::pipeline`] keeps many in flight. Both are at-least-once: when the connection is
//! lost, everything that was not confirmed is published again as soon as there is a new one,
//! so a message whose confirm was lost arrives twice.
//!
//! # What becomes of a message
//!
//! | what happens | outcome |
//! |---|---|
//! | the broker confirms it | [`Receipt`] |
//! | the broker refuses to store it (nack) while it is to be delayed | published again every 100 ms: a level never refuses, it only has no leader for a moment; [`Cause::Nacked`] at the deadline |
//! | the same, and it is due | [`Cause::Nacked`], at once: the application's queue can refuse for as long as it is full |
//! | no queue takes it, so it comes back | [`Cause::Returned`], at once |
//! | the broker closes the channel or the connection over it (no permission, too large, no such set, a crash of the broker) | [`Cause::Rejected`], for this message alone; see [below](#one-message-and-the-others) |
//! | the broker is in alarm and blocks the connection | it waits; [`Cause::Blocked`] at the deadline |
//! | the connection is lost (restart, missed heartbeats) | published again after reconnecting; [`Cause::NotConnected`] at the deadline |
//! | no answer | [`Cause::Unconfirmed`] at the deadline |
//! | it would corrupt the wire, or is over the [quota](delayline_core::message::Quota) | [`Cause::Invalid`]; nothing is sent |
//! | the router is closed first | [`Cause::Closed`] |
//!
//! # One message and the others
//!
//! The broker does not say which message made it close a channel or a connection. All that were
//! in flight are then published once more, one at a time, and the one that was in flight alone
//! the next time is rejected with the broker's reason; all others go on. If the broker crashes
//! (541), a message is rejected only after it was in flight twice. If the connection just ends,
//! that has to happen several times in a row with the message alone, each time within 5 s: a
//! lost network is no message's fault. So a message that the broker cannot stand costs the
//! others one more copy at most.
//!
//! Every error hands the message back, and says in
//! [`maybe_delivered`](PublishError::maybe_delivered) whether it may arrive all
//! the same. A message with an id keeps its routing key, which is its [handle](Handle), however
//! often it is published: it may be later by as long as that takes. No call takes longer than the
//! [publish timeout](RouterBuilder::publish_timeout).
//!
//! # Testing without a broker
//!
//! Let your code take an `impl `[`Publish`] and hand it a
//! [`Recorder`](testing::Recorder) in tests, or a stand-in of your own: [`Receipt::new`] and
//! [`PublishError::new`] make what it answers.

mod builder;
mod channel;
mod error;
mod pipeline;
mod shared;
mod stats;
mod suspicion;
pub mod testing;
mod ticket;
mod worker;

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, RecvTimeoutError, SendTimeoutError, Sender, bounded};
use jiff::Timestamp;

use delayline_amqp::{CRASH, broker::Broker};
use delayline_core::{
    codec::Delay,
    message::{Handle, Message, Quota},
    topology::Unit,
};

pub use builder::RouterBuilder;
pub use error::{Cause, PublishError};
pub use pipeline::{Outcome, Pipeline};
pub use stats::{Counts, Stats};

use channel::Connector;
use shared::{Limits, Shared};
use ticket::{Job, Reply, Ticket};
use worker::Worker;

/// How long a dropped router may take to finish what is in flight.
const DROP_TIMEOUT: Duration = Duration::from_secs(5);

/// How long after the deadline a caller stops waiting for the worker's answer.
const GRACE: Duration = Duration::from_millis(100);

/// Proof that the broker has the message: it is stored, and replicated if the level queues
/// are.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Receipt {
    /// When the message is due.
    pub due: Timestamp,
    /// The delay in the routing key of the confirmed publish.
    pub delay: Delay,
    /// How often it was published: more than once if a connection was lost meanwhile, and it
    /// may then arrive as often.
    pub publishes: u32,
    /// What the message can be recalled with, if it was published with an id.
    pub handle: Option<Handle>,
}

impl Receipt {
    /// A receipt, for stand-ins that implement [`Publish`].
    #[must_use]
    pub fn new(due: Timestamp, delay: Delay) -> Self {
        Self { due, delay, publishes: 1, handle: None }
    }

    /// The receipt of a message with an id.
    #[must_use]
    pub fn with_handle(mut self, handle: Handle) -> Self {
        self.handle = Some(handle);
        self
    }
}

/// Something that schedules messages: a [`Router`], or a stand-in in tests.
///
/// As a router it can be shared between threads.
pub trait Publish: Sync {
    /// Publishes a message and returns once it is safe.
    ///
    /// # Errors
    /// Why it is not, with the message.
    fn publish(&self, message: Message) -> Result<Receipt, PublishError>;

    /// A pipeline, for many messages. Unless something better is known, it publishes one
    /// message after the other.
    fn pipeline<T>(&self) -> Pipeline<'_, T>
    where
        Self: Sized,
    {
        Pipeline::one_by_one(self, 0)
    }
}

/// What was left when a router was closed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CloseError {
    /// Messages were not confirmed in time. Their publishers were told so, with
    /// [`Cause::Closed`].
    #[error("{count} messages were not confirmed before the router was closed")]
    Unconfirmed {
        /// How many.
        count: usize,
    },
    /// The connection did not end in time: the broker is in alarm, or silent. A thread stays
    /// behind with it, and nobody knows which of its messages the broker has.
    #[error("the connection to the broker did not end in time")]
    Stuck,
}

/// A connection to a broker that publishes into one delay set.
///
/// It can be shared between threads behind an [`Arc`]; one connection serves
/// all. See the [module](self) for what it promises.
pub struct Router {
    jobs: Option<Sender<Job>>,
    shared: Arc<Shared>,
    unit: Unit,
    quota: Quota,
    timeout: Duration,
    window: usize,
    next_id: AtomicU64,
    worker: Option<(JoinHandle<()>, Receiver<()>)>,
}

impl Router {
    /// A router for a broker, in the making.
    pub fn builder(broker: Broker) -> RouterBuilder {
        RouterBuilder::new(broker)
    }

    fn start<C: Connector>(connector: C, channel: Option<C::Channel>, builder: RouterBuilder) -> Self {
        let (jobs, receiver) = bounded(builder.window);
        let shared = Arc::new(Shared::default());
        let worker = Worker::new(connector, channel, receiver, Arc::clone(&shared), Limits::new(&builder));
        let (done, ended) = bounded(1);
        let handle = std::thread::Builder::new()
            .name("delayline-router".into())
            .spawn(move || {
                worker.run();
                drop(done);
            })
            .expect("a thread can be started");
        Self {
            jobs: Some(jobs),
            shared,
            unit: builder.unit,
            quota: builder.quota,
            timeout: builder.publish_timeout,
            window: builder.window,
            next_id: AtomicU64::new(0),
            worker: Some((handle, ended)),
        }
    }

    /// A pipeline, for many messages: it keeps up to a window of them in flight.
    pub fn pipeline<T>(&self) -> Pipeline<'_, T> {
        Pipeline::routed(self)
    }

    /// Finishes what is in flight and closes the connection, within `timeout`. Whatever is not
    /// confirmed by then is given up: its publisher gets [`Cause::Closed`].
    ///
    /// # Errors
    /// What was left.
    pub fn close(mut self, timeout: Duration) -> Result<(), CloseError> {
        self.shut_down(timeout)
    }

    fn shut_down(&mut self, timeout: Duration) -> Result<(), CloseError> {
        // No further than a clock can count.
        let timeout = timeout.min(Duration::from_secs(86_400));
        self.jobs = None;
        self.shared.close_by(Instant::now() + timeout);
        match self.worker.take() {
            // The worker can be stuck in the client library while the broker is
            // in alarm; then it stays behind.
            Some((handle, ended)) => match ended.recv_timeout(timeout + GRACE) {
                Err(RecvTimeoutError::Timeout) => Err(CloseError::Stuck),
                _ => match (handle.join(), self.shared.given_up()) {
                    (Ok(()), 0) => Ok(()),
                    (Ok(()), count) => Err(CloseError::Unconfirmed { count }),
                    (Err(_), _) => Err(CloseError::Stuck),
                },
            },
            None => Ok(()),
        }
    }

    /// Checks the message, fixes its due time and queues it. `Err` holds the outcome if it
    /// never reached the worker.
    fn submit(
        &self,
        message: Message,
        reply: &Sender<(u64, Reply)>,
    ) -> Result<(u64, Arc<Ticket>), PublishError> {
        // In this order: time that passes between the two makes a message later,
        // never earlier.
        let now = Timestamp::now();
        let taken = Instant::now();
        let schedule = match self.quota.admit(&message, self.unit, now, taken) {
            Ok(schedule) => schedule,
            Err(invalid) => return Err(PublishError::new(Cause::Invalid(invalid), message, false)),
        };
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let ticket = Arc::new(Ticket::new(message, schedule, now, taken + self.timeout));
        let job = Job::new(id, Arc::clone(&ticket), reply.clone());
        let Some(jobs) = &self.jobs else {
            return Err(self.failure(ticket, Cause::Closed));
        };
        match jobs.send_deadline(job, ticket.deadline) {
            Ok(()) => Ok((id, ticket)),
            Err(SendTimeoutError::Timeout(job)) => {
                drop(job);
                Err(self.late(ticket))
            }
            Err(SendTimeoutError::Disconnected(job)) => {
                drop(job);
                Err(self.failure(ticket, Cause::Closed))
            }
        }
    }

    /// The error for a message without an answer at its deadline.
    fn late(&self, ticket: Arc<Ticket>) -> PublishError {
        let waiting = self.shared.reason_for_waiting();
        let nacked = ticket.is_nacked().then_some(Cause::Nacked);
        let cause = waiting.or(nacked).unwrap_or(Cause::Unconfirmed { waited: self.timeout });
        self.failure(ticket, cause)
    }

    fn failure(&self, ticket: Arc<Ticket>, cause: Cause) -> PublishError {
        // A broker that crashes over a message may have stored it before.
        let refused =
            matches!(cause, Cause::Rejected { code, .. } if ![CRASH, suspicion::NO_CODE].contains(&code));
        let maybe_delivered = ticket.is_in_doubt()
            || (ticket.is_suspected() && !refused)
            || (cause.leaves_doubt() && ticket.was_sent());
        PublishError::new(cause, Ticket::into_message(ticket, maybe_delivered), maybe_delivered)
    }

    fn settle(&self, ticket: Arc<Ticket>, answer: Reply) -> Result<Receipt, PublishError> {
        answer.map_err(|cause| self.failure(ticket, cause))
    }
}

impl Publish for Router {
    fn pipeline<T>(&self) -> Pipeline<'_, T> {
        Pipeline::routed(self)
    }

    /// Publishes one message and returns once the broker has confirmed it.
    fn publish(&self, message: Message) -> Result<Receipt, PublishError> {
        let (reply, answer) = bounded(1);
        let (_, ticket) = self.submit(message, &reply)?;
        drop(reply);
        match answer.recv_deadline(ticket.deadline + GRACE) {
            Ok((_, answer)) => self.settle(ticket, answer),
            Err(RecvTimeoutError::Timeout) => Err(self.late(ticket)),
            // The worker drops a job only after its deadline, or with itself.
            Err(RecvTimeoutError::Disconnected) if Instant::now() >= ticket.deadline => {
                Err(self.late(ticket))
            }
            Err(RecvTimeoutError::Disconnected) => Err(self.failure(ticket, Cause::Closed)),
        }
    }
}

impl Router {
    /// Publishes one message and returns once the broker has confirmed it.
    ///
    /// ```no_run
    /// use delayline::{Message, Router, broker::Broker, codec::AppKey};
    ///
    /// let router = Router::builder(Broker::from_url("amqp://localhost")?).connect()?;
    /// let receipt = router.publish(Message::after(AppKey::new("billing")?, "90s".parse()?, "invoice 17"))?;
    /// println!("due at {}", receipt.due);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Why it is not confirmed, with the message; see the [module](self).
    pub fn publish(&self, message: Message) -> Result<Receipt, PublishError> {
        Publish::publish(self, message)
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        // Nobody is left to tell; whoever wants to know calls `close`.
        let _ = self.shut_down(DROP_TIMEOUT);
    }
}

impl fmt::Debug for Router {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Router").field("window", &self.window).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
