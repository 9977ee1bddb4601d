//! Taking messages from a queue and publishing their successors. A message is acknowledged only
//! once its successor is confirmed, through all failures of connections and brokers.

mod apart;
mod consume;
mod forward;
mod poison;
mod work;

use std::time::Duration;

use crossbeam_channel::Select;

use crate::router::Pipeline;
use delayline_amqp::Consumer;

pub(crate) use consume::Consuming;
pub(crate) use forward::{Forwarder, Unsendable};
pub(crate) use work::{Failed, Handle, each};

/// Waits until a message or a publisher confirm may have arrived, for at most `limit`.
pub fn wait_for_either<T>(consumer: &Consumer, pipeline: &Pipeline<T>, limit: Duration) {
    let mut select = Select::new();
    consumer.watch(&mut select);
    pipeline.watch(&mut select);
    let _ = select.ready_timeout(limit);
}

/// Counters for successors that had to wait for a moment.
pub(crate) trait DueCounter: Send + Sync {
    /// A successor is published now, later than planned by this much.
    fn published(&self, late: Duration);
}

/// Counters for messages that could not be sent on.
pub(crate) trait RefusalCounter: Send + Sync {
    /// The broker refused the successor of a message of this application.
    fn refused(&self, app: &str);

    /// A message with this routing key never arrived, because the broker closes the connection over
    /// it.
    fn unreadable(&self, routing_key: &str);
}
