//! Taking messages from a queue and publishing their successors: each is acknowledged only
//! once its successor is confirmed, through all failures of connections and brokers.

mod apart;
mod consume;
mod forward;
mod poison;

use std::time::Duration;

pub(crate) use consume::{Consuming, Failed};
pub(crate) use forward::{Forwarder, Unsendable};

/// Where successors that had to wait for a moment are counted.
pub(crate) trait Published: Send + Sync {
    /// One is published now, so much later than its moment.
    fn published(&self, late: Duration);
}

/// Where messages that could not be sent on are counted.
pub(crate) trait SetAside: Send + Sync {
    /// The broker refused the successor of a message of this application.
    fn refused(&self, app: &str);

    /// A message with this routing key never arrived here, because the broker closes the
    /// connection over it.
    fn unreadable(&self, routing_key: &str);
}
