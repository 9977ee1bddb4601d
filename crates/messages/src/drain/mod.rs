//! Reading queues whose messages wait for an operator's decision.
//!
//! The *unroutable* queue of a set is an example: it keeps unroutable messages, malformed ones
//! included. A single operation serves every such queue. [`Drain::run`] takes out the messages
//! one by one, without acknowledging them, and asks what to do with each:
//! [keep](Decision::Keep) it, [discard](Decision::Discard) it, or [send](Decision::Send) it on.
//! Listing and showing are drains that keep everything.
//!
//! The caller decides about each message in `decide`: why it is here ([`Census`] counts by any
//! key), whether it is selected, and where it goes. So the same code serves all these queues.
//!
//! # Guarantees
//!
//! - A message is acknowledged only after its successor is confirmed. After any
//!   interruption, an unconfirmed message is still in the queue. A message that was
//!   confirmed and not yet acknowledged is sent again by the next run.
//! - It ends. It examines only the messages that were there at the start, so a
//!   message that comes back is not sent again.
//! - Kept messages go back in their original order, as far as the broker keeps it:
//!   quorum queues put returned messages in front of the others.
//! - Its memory does not depend on the length of the queue. It holds the messages in
//!   flight, one page of messages, which is bounded by bytes ([`Drain::in_pages`]), and
//!   some hundred bytes for each bundle of up to 32 kept messages.
//!
//! # Messages that AMQP 0-9-1 cannot carry
//!
//! A message that was published over AMQP 1.0 can have values that 0-9-1 has no form for. The
//! broker closes the connection over it, and a drain ends there. [`admin`](crate) then holds
//! such messages over AMQP 1.0 and reads past them.
//!
//! # Delivery limits
//!
//! Reading a queue without removing anything means taking messages and giving them back. A
//! quorum queue counts that: from RabbitMQ 4.0 it *drops* a message that was given back more
//! than 20 times, unless the queue has another limit. A queue that keeps messages therefore has
//! an `x-delivery-limit` that is never reached ([`topology::UNREACHABLE_DELIVERY_LIMIT`]). A
//! drain does not touch a queue with a lower limit, since reading must not lose messages.
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

use delayline_amqp::{AmqpError, Session};
use delayline_broker::ManagementError;
use delayline_core::shell::command;
use delayline_core::{
    codec::AppKey,
    topology::{Endpoint, Queue, if_missing},
};
use delayline_settings::Settings;

pub use aside::past;
pub use census::count;
pub use census::{Census, Group, arrived, recorded};
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
    /// The queue or exchange of the set does not exist.
    #[error("the {what} does not exist; {}", if_missing())]
    Missing {
        /// The missing object.
        what: Endpoint,
    },
    /// The application has no queue of recalled messages.
    #[error(
        "messages of `{app}` cannot be recalled: it was registered without recall. To allow that, register it \
         again with --recall (docs/how-to/recall.md)"
    )]
    NotOffered {
        /// The application.
        app: AppKey,
    },
    /// Reading its messages would use up their deliveries.
    #[error(
        "queue `{queue}` was not read: it drops messages that were delivered {limit} times, and reading \
         counts as a delivery. Give it a policy with `delivery-limit` -1 (RabbitMQ 4.0 and newer), or move \
         its messages and install the set again"
    )]
    DeliveryLimit {
        /// Its name.
        queue: String,
        /// How often it delivers a message.
        limit: i64,
    },
    /// It is unknown whether reading is safe.
    #[error(
        "queue `{queue}` was not read: it may drop messages that were read too often, and its delivery \
         limit is unknown ({reason}). Give the URL of the management API (--management-url)"
    )]
    UnknownLimit {
        /// Its name.
        queue: String,
        /// The reason.
        reason: String,
    },
    /// It cannot be counted or read.
    #[error(
        "queue `{queue}` does not answer, so it is unknown whether it has messages ({reason}). Try again. If \
         that does not help, `{}` shows whether the queue has a leader",
        command(&["doctor"])
    )]
    Unanswered {
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
