//! The messages of a queue, as far as they are known.

use delayline_amqp::QueueDepth;

/// The messages of a queue, by the broker's count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ready {
    /// There is no such queue.
    Missing,
    /// The queue does not answer, or may not be counted.
    Unknown,
    /// So many are ready.
    Known(u64),
}

impl Ready {
    pub(super) fn of(depth: Option<QueueDepth>) -> Self {
        depth.map_or(Self::Missing, |depth| {
            depth.ready.map_or(Self::Unknown, |ready| Self::Known(ready.into()))
        })
    }

    /// How many are ready, if there is such a queue and it is known.
    pub(super) fn known(self) -> Option<u64> {
        match self {
            Self::Known(ready) => Some(ready),
            Self::Missing | Self::Unknown => None,
        }
    }

    /// The same for a sum: a missing queue has none.
    pub(super) fn or_none(self) -> Option<u64> {
        if self == Self::Missing { Some(0) } else { self.known() }
    }
}
