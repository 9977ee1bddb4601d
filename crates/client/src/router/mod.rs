//! Publishing delayed messages, with a confirm for each.
//!
//! A [`Router`] is a handle to a thread that owns the connection. Its clones share both.
//! [`Router::publish`] returns once the broker has confirmed the message. [`Router::send`] returns
//! at once, with a future of the confirm. [`Router::publish_all`] and [`Router::pipeline`] keep
//! many messages in flight. All are at-least-once: when the connection is lost, everything without
//! a confirm is published again on a new one. So a message whose confirm was lost arrives twice.
//!
//! # Outcomes of a message
//!
//! | what happens | outcome |
//! |---|---|
//! | the broker confirms it | [`Receipt`] |
//! | the broker refuses to store it (nack) before it is due | published again every 100 ms: a level refuses only while it has no leader; [`Cause::Nacked`] when an eighth of the publish timeout is left, so that the last answer is known |
//! | the same, when it is due | [`Cause::Nacked`], at once: the application's queue refuses while it is full |
//! | no queue takes it, so the broker returns it | [`Cause::Returned`], at once |
//! | the broker closes the channel or the connection over it (no permission, too large, no such set, a crash of the broker) | [`Cause::Rejected`], for this message alone; see [below](#one-message-and-the-others) |
//! | the broker is in alarm and blocks the connection | it waits; [`Cause::Blocked`] at the deadline |
//! | the connection is lost (restart, missed heartbeats) | published again after reconnecting; [`Cause::NotConnected`] at the deadline |
//! | no answer | [`Cause::Unconfirmed`] at the deadline |
//! | it would corrupt the wire, or exceeds the [quota](delayline_core::message::Quota) | [`Cause::Invalid`]; nothing is sent |
//! | the router is closed first | [`Cause::Closed`] |
//!
//! # One message and the others
//!
//! The broker does not report which message made it close a channel or a connection. All messages
//! that were in flight are then published once more, one at a time. If the channel ends again, the
//! message that was in flight alone is rejected with the broker's reason. The others go on. If the
//! broker crashes (541), a message is rejected only after it was in flight twice. If the connection
//! just ends, that must happen several times in a row with the message alone, each time within 5 s:
//! a lost network is no message's fault. So a message that ends connections costs the others at
//! most one more copy.
//!
//! Every error returns the message. [`maybe_delivered`](PublishError::maybe_delivered) shows
//! whether it may still arrive. A message with an id keeps its routing key, which is its
//! [handle](Handle), on every publish. It may arrive late by the time that this takes. No call
//! takes longer than the [publish timeout](RouterBuilder::publish_timeout).
//!
//! # Testing without a broker
//!
//! Let your code take an `impl `[`Publish`]. In tests, pass it a [`Recorder`](testing::Recorder) or
//! your own stand-in: [`Receipt::new`] and [`PublishError::new`] make its answers.

mod builder;
mod channel;
mod confirmation;
mod error;
mod in_flight;
mod pipeline;
mod recovery;
mod stats;
mod suspicion;
pub mod testing;
mod worker;

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    thread::{self, ThreadId},
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded, unbounded};
use jiff::Timestamp;

use delayline_core::{
    codec::Delay,
    message::{Handle, Message, admit},
};

use crate::target::Target;

pub use builder::RouterBuilder;
pub use confirmation::Confirmation;
pub use delayline_core::histogram::Counted;
pub use error::{Cause, PublishError};
pub use pipeline::{Outcome, Pipeline};
pub use stats::{Counts, Stats};

use channel::Connector;
use confirmation::Slot;
use in_flight::InFlight;
use worker::{Request, Worker};

/// How long a dropped router may take to finish messages in flight.
const DROP_TIMEOUT: Duration = Duration::from_secs(5);

/// How long the router's thread may take to end after its deadline.
const GRACE: Duration = Duration::from_millis(100);

/// Proof that the broker has the message: it is stored, and replicated if the level queues are.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Receipt {
    /// When the message is due.
    pub due: Timestamp,
    /// The delay in the routing key of the confirmed publish.
    pub delay: Delay,
    /// The number of times it was published. It is more than 1 if a connection was lost meanwhile.
    /// The message may then arrive equally often.
    pub publishes: u32,
    /// The handle for recalling the message, if it was published with an id.
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

/// An interface for scheduling messages: a [`Router`], or a stand-in in tests.
pub trait Publish: Send + Sync {
    /// Takes a message and returns at once; see [`Router::send`].
    fn send(&self, message: Message) -> Confirmation;

    /// Publishes a message and returns once it is confirmed.
    ///
    /// # Errors
    /// The message is not confirmed. The error has the reason and the message.
    fn publish(&self, message: Message) -> Result<Receipt, PublishError> {
        self.send(message).wait()
    }

    /// Publishes many messages; see [`Router::publish_all`].
    fn publish_all(&self, messages: impl IntoIterator<Item = Message>) -> Vec<Result<Receipt, PublishError>>
    where
        Self: Sized + Clone + 'static,
    {
        self.pipeline().all(messages)
    }

    /// A pipeline, for many messages.
    fn pipeline<T>(&self) -> Pipeline<T>
    where
        Self: Sized + Clone + 'static,
    {
        Pipeline::new(self.clone(), RouterBuilder::WINDOW)
    }
}

/// Why a router was not closed cleanly.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CloseError {
    /// Messages were not confirmed in time. Their publishers got [`Cause::Closed`].
    #[error("{count} messages were not confirmed before the router was closed")]
    Unconfirmed {
        /// The number of messages.
        count: usize,
    },
    /// The connection did not end in time: the broker is in alarm, or silent. A thread remains with
    /// it, and the broker may or may not have its messages.
    #[error("the connection to the broker did not end in time")]
    Stuck,
}

/// The state of a router's connection.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Status {
    /// It is connected, and the broker accepts messages.
    Connected,
    /// It is connected, but the broker is in alarm and accepts no messages.
    Blocked {
        /// The broker's reason.
        reason: String,
    },
    /// There is no connection. The router tries again, with pauses of up to 5 s.
    NotConnected {
        /// The reason for the end of the last connection, or for the failure of the last attempt.
        reason: String,
    },
    /// The router was closed.
    Closed,
}

/// A connection to a broker that publishes into one delay set.
///
/// It is a handle: its clones share one connection, also between threads and tasks. When the last
/// clone is dropped, the router finishes messages in flight within 5 s, and ends. See the
/// [module](self) for its guarantees.
#[derive(Clone)]
pub struct Router(Arc<Inner>);

struct Inner {
    requests: Sender<Request>,
    status: Arc<Mutex<Status>>,
    settings: RouterBuilder,
    /// The router's thread, and its result: the number of messages that were not confirmed.
    worker: ThreadId,
    ended: Receiver<usize>,
}

impl Router {
    /// Settings for a router for a set.
    pub fn builder(target: impl Into<Target>) -> RouterBuilder {
        RouterBuilder::new(target)
    }

    fn start<C: Connector>(connector: C, channel: Option<C::Channel>, settings: RouterBuilder) -> Self {
        // No limit here: each publisher limits its messages in flight.
        let (requests, receiver) = unbounded();
        let status = Arc::new(Mutex::new(match channel {
            Some(_) => Status::Connected,
            None => Status::NotConnected { reason: "no attempt was made yet".into() },
        }));
        let worker = Worker::new(connector, channel, receiver, Arc::clone(&status), settings.clone());
        let (done, ended) = bounded(1);
        let thread = thread::Builder::new()
            .name("delayline-router".into())
            .spawn(move || {
                // The channel has room for it, so this never blocks.
                let _ = done.send(worker.run());
            })
            .expect("a thread can be started");
        Self(Arc::new(Inner { requests, status, settings, worker: thread.thread().id(), ended }))
    }

    /// Takes a message, and returns at once with a [future](Confirmation) of the confirm.
    ///
    /// It has no runtime of its own and needs none. The future works in any runtime. Code without a
    /// runtime can [wait](Confirmation::wait) for it, or set a [callback](Confirmation::on_answer).
    ///
    /// It never waits for room, so a program that calls it in a loop keeps every message in memory
    /// until its answer. [`publish_all`](Self::publish_all) and a [`pipeline`](Self::pipeline)
    /// limit their number.
    ///
    /// ```no_run
    /// use delayline::{Message, Router, router::PublishError};
    ///
    /// async fn remind(router: &Router, message: Message) -> Result<(), PublishError> {
    ///     let receipt = router.send(message).await?;
    ///     println!("due at {}", receipt.due);
    ///     Ok(())
    /// }
    /// ```
    pub fn send(&self, message: Message) -> Confirmation {
        // The order matters: time that passes between the two makes a message later, never earlier.
        let now = Timestamp::now();
        let taken = Instant::now();
        let RouterBuilder { target, quota, publish_timeout, .. } = &self.0.settings;
        let schedule = match admit(quota, &message, (target.unit, target.shortcuts), now, taken) {
            Ok(schedule) => schedule,
            Err(invalid) => {
                return Confirmation::ready(Err(PublishError::new(Cause::Invalid(invalid), message, false)));
            }
        };
        let slot = Arc::new(Slot::default());
        let confirmation = Confirmation(Arc::clone(&slot));
        let in_flight = InFlight::new(message, schedule, now, taken + *publish_timeout, slot);
        // If the router was closed, the message is dropped, which gives its publisher an answer.
        let _ = self.0.requests.send(Request::Publish(Box::new(in_flight)));
        confirmation
    }

    /// Publishes one message and returns once the broker has confirmed it. It blocks the thread: in
    /// a task, use [`send`](Self::send).
    ///
    /// ```no_run
    /// use delayline::{Message, Router, Target};
    ///
    /// let router = Router::builder(Target::from_url("amqp://localhost")?).connect()?;
    /// let receipt = router.publish(Message::after("billing".parse()?, "90s".parse()?, "invoice 17"))?;
    /// println!("due at {}", receipt.due);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The message is not confirmed. The error has the reason and the message; see the
    /// [module](self).
    pub fn publish(&self, message: Message) -> Result<Receipt, PublishError> {
        self.send(message).wait()
    }

    /// Publishes many messages, up to a window of them at the same time, and returns once each has
    /// its answer. The answers are in the order of the messages.
    pub fn publish_all(
        &self,
        messages: impl IntoIterator<Item = Message>,
    ) -> Vec<Result<Receipt, PublishError>> {
        Publish::publish_all(self, messages)
    }

    /// A pipeline, for many messages: it keeps up to a window of them in flight.
    pub fn pipeline<T>(&self) -> Pipeline<T> {
        Pipeline::new(self.clone(), self.0.settings.window)
    }

    /// The state of the connection at this moment.
    #[must_use]
    pub fn status(&self) -> Status {
        self.0.status.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Finishes messages in flight and closes the connection, within `timeout`. Messages that are
    /// not confirmed by then are given up: their publishers get [`Cause::Closed`], as does every
    /// later user of a clone of this router.
    ///
    /// # Errors
    /// Messages were not confirmed in time, or the connection did not end.
    pub fn close(&self, timeout: Duration) -> Result<(), CloseError> {
        self.0.close(timeout)
    }
}

impl Inner {
    fn close(&self, timeout: Duration) -> Result<(), CloseError> {
        // Caps the time at what a clock can count.
        let timeout = timeout.min(Duration::from_secs(86_400));
        // The connection may already be closed.
        let _ = self.requests.send(Request::Close(Instant::now() + timeout));
        let closed = || *self.status.lock().unwrap_or_else(PoisonError::into_inner) == Status::Closed;
        match self.ended.recv_timeout(timeout + GRACE) {
            Ok(0) => Ok(()),
            Ok(count) => Err(CloseError::Unconfirmed { count }),
            // An earlier call got the answer.
            Err(RecvTimeoutError::Disconnected) if closed() => Ok(()),
            Err(_) => Err(CloseError::Stuck),
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // A callback may hold the last handle. The router's thread does not wait for itself.
        if thread::current().id() != self.worker {
            // The result is lost here; `close` returns it.
            let _ = self.close(DROP_TIMEOUT);
        }
    }
}

impl Publish for Router {
    fn send(&self, message: Message) -> Confirmation {
        Self::send(self, message)
    }

    fn pipeline<T>(&self) -> Pipeline<T> {
        Self::pipeline(self)
    }
}

impl fmt::Debug for Router {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Router").field("status", &self.status()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
