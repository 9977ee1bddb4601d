//! The settings of a topology.

use std::{
    fmt,
    num::{NonZeroU8, NonZeroU32},
    str::FromStr,
    time::Duration,
};

use crate::codec::{Hop, Level};

use super::SetName;

/// The queue type of the levels and of the unroutable queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "serde", serde(rename_all = "lowercase"))]
pub enum QueueType {
    /// Replicated, with at-least-once dead-lettering: the broker confirms each hop to itself
    /// before it deletes the message. Needs RabbitMQ 3.10.
    #[default]
    Quorum,
    /// For brokers without quorum queues. Classic queues dead-letter at most
    /// once: a message can be lost between two levels, for example when the node
    /// stops at that moment.
    Classic,
}

impl QueueType {
    /// The value of `x-queue-type`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Quorum => "quorum",
            Self::Classic => "classic",
        }
    }
}

impl fmt::Display for QueueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for QueueType {
    type Err = QueueTypeError;

    fn from_str(text: &str) -> Result<Self, QueueTypeError> {
        match text {
            "quorum" => Ok(Self::Quorum),
            "classic" => Ok(Self::Classic),
            _ => Err(QueueTypeError { text: text.into() }),
        }
    }
}

/// Why a text is not a [`QueueType`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a queue type; use `quorum` or `classic`")]
pub struct QueueTypeError {
    text: String,
}

/// The `x-delivery-limit` of queues that keep messages. Reading a message without taking it counts
/// as a delivery. From RabbitMQ 4.0, a quorum queue without a limit of its own drops a message
/// after 20 deliveries. That version accepts -1 for "none", but older ones refuse it. So this is a
/// number that is never reached.
pub const UNREACHABLE_DELIVERY_LIMIT: i64 = i32::MAX as i64;

/// How long one unit of delay lasts: 1 ms to 1 s.
///
/// A second, except in tests that pass through many levels quickly. The upper limit comes from the
/// broker: it accepts a message TTL of at most 10 years, and level 27 holds a message for 2^27
/// units, which is 4.3 years.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unit(u16);

/// Why something is not a [`Unit`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a unit of time of {milliseconds} ms is not possible; use 1 to 1000 ms (1000 for whole seconds)")]
#[non_exhaustive]
pub struct UnitError {
    /// The requested unit.
    pub milliseconds: u64,
}

impl Unit {
    /// One second, as the wire contract defines.
    pub const SECOND: Self = Self(1_000);

    /// A unit of this many milliseconds.
    ///
    /// # Errors
    /// [`UnitError`] outside 1 to 1,000.
    pub fn from_millis(milliseconds: u64) -> Result<Self, UnitError> {
        match u16::try_from(milliseconds) {
            Ok(value @ 1..=1_000) => Ok(Self(value)),
            _ => Err(UnitError { milliseconds }),
        }
    }

    /// Its length in milliseconds.
    #[must_use]
    pub const fn millis(self) -> u16 {
        self.0
    }

    /// Its length.
    #[must_use]
    pub const fn duration(self) -> Duration {
        Duration::from_millis(self.0 as u64)
    }

    /// How long a message waits in the queue of a level.
    #[must_use]
    pub const fn wait(self, level: Level) -> Duration {
        self.wait_in(Hop::Level(level))
    }

    /// How long a message waits in the queue of a level or of a shortcut.
    #[must_use]
    pub const fn wait_in(self, hop: Hop) -> Duration {
        Duration::from_millis(self.0 as u64 * hop.units() as u64)
    }
}

impl Default for Unit {
    fn default() -> Self {
        Self::SECOND
    }
}

/// What distinguishes one set from another.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct TopologySettings {
    /// The set's name; its objects' names begin with it.
    pub set: SetName,
    /// The type of its queues.
    pub queue_type: QueueType,
    /// How many nodes hold a copy of each quorum queue; the broker's own default
    /// (usually 3, or all if there are fewer) if `None`. No effect on classic queues.
    pub replicas: Option<NonZeroU8>,
    /// The unit of time.
    pub unit: Unit,
    /// The most messages that the unroutable queue keeps; no limit if `None`. When it is full, the
    /// broker drops the oldest for each new one: refusing new ones would block the levels they come
    /// from.
    pub unroutable_max_length: Option<NonZeroU32>,
    /// Whether the set has shortcuts; as it was installed if `None`, and none in a new set.
    pub shortcuts: Option<bool>,
}

impl TopologySettings {
    /// The settings of a set of this name, with defaults for everything else.
    #[must_use]
    pub fn named(set: SetName) -> Self {
        Self { set, ..Self::default() }
    }

    /// Sets the type of its queues.
    #[must_use]
    pub fn with_queue_type(mut self, kind: QueueType) -> Self {
        self.queue_type = kind;
        self
    }

    /// Sets how many nodes hold a copy of each quorum queue.
    #[must_use]
    pub fn with_replicas(mut self, nodes: NonZeroU8) -> Self {
        self.replicas = Some(nodes);
        self
    }

    /// Sets the unit of time.
    #[must_use]
    pub fn with_unit(mut self, unit: Unit) -> Self {
        self.unit = unit;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_wait_stays_under_the_brokers_ten_years() {
        assert_eq!(Unit::SECOND.wait(Level::TOP).as_millis(), 134_217_728_000);
        assert!(Unit::SECOND.wait(Level::TOP) < Duration::from_millis(315_360_000_000));
        assert_eq!(Unit::from_millis(1).unwrap().wait(Level::LOWEST), Duration::from_millis(1));
    }

    #[test]
    fn a_unit_is_a_second_at_most() {
        for milliseconds in [0, 1_001, u64::MAX] {
            assert_eq!(Unit::from_millis(milliseconds), Err(UnitError { milliseconds }));
        }
    }
}
