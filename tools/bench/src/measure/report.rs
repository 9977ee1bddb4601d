//! The results.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::capacity::{self, Figures};

use super::Late;

/// A broker's measured capacity.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Report {
    /// The version of delayline that measured.
    pub delayline: String,
    /// When it ended.
    pub at: Timestamp,
    /// The broker that was measured.
    pub broker: Broker,
    /// The conditions.
    pub conditions: Conditions,
    /// How fast messages go in, by route.
    pub publish: Vec<Published>,
    /// How fast messages that fall due together come out, by number of queues.
    pub drain: Vec<Drained>,
    /// How late messages are at a steady rate.
    pub steady: Option<Sustained>,
    /// The highest steady rate at which they are in time.
    pub knee: Option<Knee>,
    /// The cost of waiting messages; `None` without the management API.
    pub stock: Option<Stock>,
    /// The values that could not be measured, and why.
    pub unchecked: Vec<String>,
}

/// A broker.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Broker {
    /// Its version.
    pub version: Option<String>,
    /// How many nodes its cluster has.
    pub nodes: Option<usize>,
    /// Processors of one node.
    pub processors: Option<u64>,
    /// The memory at which a node stops accepting messages, in bytes; the lowest of all
    /// nodes.
    pub memory_limit: Option<u64>,
    /// Free disk space above the limit at which a node stops accepting messages, in bytes;
    /// the least of all nodes.
    pub disk_free: Option<u64>,
}

/// The conditions of the measurement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Conditions {
    /// Bytes of a body.
    pub size: usize,
    /// How long a unit of delay lasted, in ms.
    pub unit_ms: u16,
    /// The type of the queues.
    pub queue_type: String,
    /// Their replicas; the broker's default if `None`.
    pub replicas: Option<u8>,
    /// Whether the messages take shortcuts.
    #[serde(default)]
    pub shortcuts: bool,
    /// The most messages in flight.
    pub window: usize,
    /// Processors of the measuring machine.
    pub client_processors: usize,
}

/// A route in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Way {
    /// Straight into a queue, bypassing the set: the most that this client and this broker
    /// can do.
    Queue,
    /// Through the set's entry.
    Entry,
}

/// How fast messages went in.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Published {
    /// The route.
    pub way: Way,
    /// How many.
    pub messages: u64,
    /// How many per second.
    pub per_second: f64,
}

/// How fast messages that fell due together came out.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Drained {
    /// How many queues of the set they had passed through; 0 is a queue without a set.
    pub hops: u32,
    /// How many messages.
    pub messages: u64,
    /// How many per second.
    pub per_second: f64,
    /// Their lateness: all except the first had to wait for others.
    pub late_ms: Late,
}

/// A steady load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Sustained {
    /// Messages per second that were asked for.
    pub rate: u32,
    /// Messages per second that the broker accepted.
    pub per_second: f64,
    /// Their delays.
    pub delays: String,
    /// How many queues they passed, on average.
    pub hops: f64,
    /// How many were sent.
    pub messages: u64,
    /// How many never arrived.
    pub lost: u64,
    /// How many came a second time.
    pub duplicates: u64,
    /// How many came before their time.
    pub early: u64,
    /// How late they were.
    pub late_ms: Late,
}

impl Sustained {
    /// Whether the broker accepted all messages at the requested rate, and lost none.
    #[must_use]
    pub fn kept_up(&self) -> bool {
        self.lost == 0 && self.per_second >= 0.97 * f64::from(self.rate)
    }
}

/// The highest steady rate at which messages are in time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Knee {
    /// The limit for the 99th percentile of lateness, in ms.
    pub limit_ms: f64,
    /// The rate in messages per second; 0 if even the first rate was too high.
    pub rate: u32,
    /// The rates that were tried, in this order.
    pub tried: Vec<Sustained>,
}

impl Knee {
    /// The rate of the knee. If messages were late at every rate tried, the lowest of these:
    /// the knee is lower still.
    fn found(&self) -> Option<capacity::Knee> {
        let at = |tried: &&Sustained| self.rate == 0 || tried.rate == self.rate;
        let tried = self.tried.iter().rev().find(at)?;
        Some(capacity::Knee { rate: tried.rate.into(), hops: tried.hops })
    }
}

/// The cost of waiting messages.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Stock {
    /// How many waited.
    pub messages: u64,
    /// The queue's memory for each, in bytes: taken for as long as they wait.
    pub memory_each: f64,
    /// The growth of the memory of all nodes for each, in bytes; `None` if the API did not
    /// know their memory before. Most of it is the write-ahead log, which also holds recent
    /// messages in memory, so it does not grow with the number that waits.
    pub fresh_each: Option<f64>,
}

impl Report {
    /// Messages per second that went in by a route; `None` if that was not measured.
    #[must_use]
    pub fn published(&self, way: Way) -> Option<f64> {
        self.publish.iter().find(|published| published.way == way).map(|published| published.per_second)
    }

    /// Messages per second that came out after so many queues.
    #[must_use]
    pub fn drained(&self, hops: u32) -> Option<f64> {
        self.drain.iter().find(|drained| drained.hops == hops).map(|drained| drained.per_second)
    }

    /// The broker's name in tables.
    #[must_use]
    pub fn broker_name(&self) -> String {
        let version = self.broker.version.as_deref().unwrap_or("of unknown version");
        match self.broker.nodes {
            Some(1) => format!("RabbitMQ {version}, 1 node"),
            Some(nodes) => format!("RabbitMQ {version}, {nodes} nodes"),
            None => format!("RabbitMQ {version}"),
        }
    }

    /// The figures that a capacity plan needs.
    #[must_use]
    pub fn figures(&self) -> Figures {
        let reference = Figures::reference();
        #[expect(clippy::cast_precision_loss, reason = "sizes to look at")]
        let bytes = |value: Option<u64>| value.map(|value| value as f64);
        let stock = self.stock.as_ref();
        Figures {
            broker: self.broker_name(),
            publish: self.published(Way::Entry).unwrap_or(0.0),
            drain: self
                .drain
                .iter()
                .filter(|drained| drained.hops > 0)
                .map(|drained| (drained.hops, drained.per_second))
                .collect(),
            knee: self.knee.as_ref().and_then(Knee::found),
            memory_per_message: stock.map_or(reference.memory_per_message, |stock| stock.memory_each),
            disk_overhead: reference.disk_overhead,
            memory_limit: bytes(self.broker.memory_limit),
            disk_free: bytes(self.broker.disk_free),
        }
    }
}
