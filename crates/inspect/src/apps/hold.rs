//! How an application is paused.

use delayline_broker::QueueInfo;
use delayline_core::topology::Topology;
use jiff::Timestamp;

/// How an application is paused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// Its messages wait until it is resumed.
    UntilResumed,
    /// Its messages are offered to the target all the time, and wait only while that refuses them.
    UntilAccepted,
}

impl Hold {
    /// How the application with this queue of waiting messages is paused.
    pub fn of(queue: &QueueInfo) -> Self {
        match queue.arguments.contains_key("x-message-ttl") {
            true => Self::UntilAccepted,
            false => Self::UntilResumed,
        }
    }
}

/// Since when the application with this queue of waiting messages has been paused until it is resumed.
pub(crate) fn paused_since(queue: &QueueInfo) -> Option<Timestamp> {
    Timestamp::from_millisecond(queue.arguments.get(Topology::PAUSED_SINCE)?.as_i64()?).ok()
}
