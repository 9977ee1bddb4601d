//! Queues that keep messages until somebody decides about them.
//!
//! The *unroutable* queue of a set is one: what nobody is bound for and what is
//! malformed waits there. One operation does everything with such a queue:
//! [`Drain::run`] takes the messages out one after the other, without
//! acknowledging them, and asks about each what to do: [keep](Decision::Keep) it,
//! [discard](Decision::Discard) it, or [send](Decision::Send) it on. Listing and
//! showing are drains that keep everything.
//!
//! What a message is here for ([`Census`] counts by any key), which ones are
//! selected and where they go are the caller's: `decide` sees each message and
//! answers. So the same code serves every queue of this kind.
//!
//! # What it promises
//!
//! - A message is acknowledged only after its successor is confirmed. Whatever
//!   interrupts it, a message that was not confirmed is still in the queue; one
//!   that was confirmed and not yet acknowledged is sent again by the next run.
//! - It ends. It looks at no more messages than there were at the start, so one
//!   that comes back is not sent round and round.
//! - What is kept goes back in the order in which it was, as far as the broker
//!   keeps it: quorum queues put returned messages in front of the others.
//! - It takes as much memory as what is in flight and a page of messages, which is
//!   bounded by bytes ([`Drain::in_pages`]), and some hundred bytes for each bundle of
//!   up to 32 that are kept, however long the queue is.
//!
//! # What AMQP 0-9-1 cannot carry
//!
//! The broker closes the connection over a message that was published over AMQP 1.0 with
//! values that 0-9-1 has no form for, and a drain ends there. [`admin`](crate) then holds
//! such messages over AMQP 1.0 and reads past them.
//!
//! # Delivery limits
//!
//! Reading a queue without removing anything means taking messages and giving
//! them back, and a quorum queue counts that. From RabbitMQ 4.0 it *drops* a
//! message that was given back more than 20 times, unless the queue says
//! otherwise. A queue that keeps messages therefore has an `x-delivery-limit` that
//! nobody reaches ([`topology::UNREACHABLE_DELIVERY_LIMIT`]), and a drain does not
//! touch a queue with a lower one: looking must not lose anything.
//!
//! [`topology::UNREACHABLE_DELIVERY_LIMIT`]: delayline_core::topology::UNREACHABLE_DELIVERY_LIMIT

mod aside;
mod census;
mod guard;
mod paging;
mod reader;
mod run;
mod sample;
mod sender;

use crate::management::ManagementError;
use delayline_amqp::{AmqpError, Session};
use delayline_core::{
    codec::AppKey,
    topology::{Endpoint, IF_MISSING, Queue},
};
use delayline_settings::Settings;

pub(crate) use aside::past;
pub(crate) use census::count;
pub use census::{Census, Group, arrived};
pub use run::{Decision, Drain, Drained, Outgoing, Progress};
pub use sample::Sample;

/// Refuses a queue that would drop messages because they were read.
pub(crate) fn check(settings: &Settings, session: &mut Session, queue: &Queue) -> Result<(), DrainError> {
    guard::check(settings, session, queue).map(drop)
}

/// Why a queue was not touched. Later failures are in [`Drained::failure`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DrainError {
    /// There is no such queue or exchange of the set.
    #[error("the {what} does not exist; {IF_MISSING}")]
    Missing {
        /// What is missing.
        what: Endpoint,
    },
    /// The application has no queue of recalled messages.
    #[error(
        "messages of `{app}` cannot be recalled: it was registered without that. Run `delayline app add {app} \
         --recall`"
    )]
    NotOffered {
        /// The application.
        app: AppKey,
    },
    /// Reading its messages would use up their deliveries.
    #[error(
        "the queue `{queue}` drops messages that were delivered {limit} times, and looking at them counts; \
         nothing was touched. Give it a policy with `delivery-limit` -1 (RabbitMQ 4.0 and newer), or move \
         its messages and install the set again"
    )]
    DeliveryLimit {
        /// Its name.
        queue: String,
        /// How often it delivers a message.
        limit: i64,
    },
    /// It cannot be told whether reading is safe.
    #[error(
        "cannot tell whether queue `{queue}` drops messages that were looked at too often ({reason}); \
         nothing was touched. Give the URL of the management API (--management-url)"
    )]
    UnknownLimit {
        /// Its name.
        queue: String,
        /// The reason.
        reason: String,
    },
    /// The AMQP side failed.
    #[error(transparent)]
    Amqp(#[from] AmqpError),
    /// The management API failed.
    #[error(transparent)]
    Management(#[from] ManagementError),
}
