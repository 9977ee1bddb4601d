//! What was found.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::capacity::{self, Figures};

use super::Late;

/// A broker's measured capacity.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The version of delayline that measured.
    pub delayline: String,
    /// When it ended.
    pub at: Timestamp,
    /// What was measured.
    pub broker: Broker,
    /// With what.
    pub conditions: Conditions,
    /// How fast messages go in, by way.
    pub publish: Vec<Published>,
    /// How fast messages that fall due together come out, by number of queues.
    pub drain: Vec<Drained>,
    /// How late messages are at a steady rate.
    pub steady: Option<Sustained>,
    /// The highest steady rate at which they are in time.
    pub knee: Option<Knee>,
    /// What waiting messages cost; `None` without the management API.
    pub stock: Option<Stock>,
    /// What could not be measured, and why.
    pub unseen: Vec<String>,
}

/// A broker.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Broker {
    /// Its version.
    pub version: Option<String>,
    /// How many nodes its cluster has.
    pub nodes: Option<usize>,
    /// Processors of one node.
    pub processors: Option<u64>,
    /// The memory at which a node stops taking messages, in bytes; the lowest of
    /// all nodes.
    pub memory_limit: Option<u64>,
    /// Free disk space above the limit at which a node stops taking messages, in
    /// bytes; the least of all nodes.
    pub disk_free: Option<u64>,
}

/// What it was measured with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conditions {
    /// Bytes of a body.
    pub size: usize,
    /// How long a unit of delay lasted, in ms.
    pub unit_ms: u16,
    /// The type of the queues.
    pub queue_type: String,
    /// Their replicas; the broker's default if `None`.
    pub replicas: Option<u8>,
    /// How many messages were in flight at most.
    pub window: usize,
    /// Processors of the machine that measured.
    pub client_processors: usize,
}

/// A way in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Way {
    /// Straight into a queue, past the set: what this client and this broker can do
    /// at most.
    Queue,
    /// The set's entry.
    Entry,
}

/// How fast messages went in.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Published {
    /// By which way.
    pub way: Way,
    /// How many.
    pub messages: u64,
    /// How many per second.
    pub per_second: f64,
}

/// How fast messages came out that fell due together.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Drained {
    /// How many level queues they had passed; 0 is a queue without a set.
    pub hops: u32,
    /// How many messages.
    pub messages: u64,
    /// How many per second.
    pub per_second: f64,
    /// How late they were: all but the first had to wait for others.
    pub late_ms: Late,
}

/// A steady load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sustained {
    /// Messages per second that were asked for.
    pub rate: u32,
    /// Messages per second that the broker took.
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
    /// Whether the broker took as many as were asked for, and lost none.
    #[must_use]
    pub fn kept_up(&self) -> bool {
        self.lost == 0 && self.per_second >= 0.97 * f64::from(self.rate)
    }
}

/// The highest steady rate at which messages are in time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Knee {
    /// 99 in 100 messages are to be no later than this, in ms.
    pub limit_ms: f64,
    /// Messages per second that were; 0 if not even the first rate was.
    pub rate: u32,
    /// What was tried, in this order.
    pub tried: Vec<Sustained>,
}

impl Knee {
    /// The rate it is at. If messages were late at every rate that was tried, the lowest
    /// of these: it is lower still.
    fn found(&self) -> Option<capacity::Knee> {
        let at = |tried: &&Sustained| self.rate == 0 || tried.rate == self.rate;
        let tried = self.tried.iter().rev().find(at)?;
        Some(capacity::Knee { rate: tried.rate.into(), hops: tried.hops })
    }
}

/// What waiting messages cost.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Stock {
    /// How many waited.
    pub messages: u64,
    /// The queue's memory for each, in bytes: it stays for as long as they wait.
    pub memory_each: f64,
    /// The growth of the memory of all nodes for each, in bytes; `None` if the API
    /// did not know their memory before. Most of it is the write-ahead log, which
    /// holds the messages of the last while in memory too, so it does not grow with
    /// what waits.
    pub fresh_each: Option<f64>,
}

impl Report {
    /// Messages per second that went in by a way; `None` if that was not measured.
    #[must_use]
    pub fn published(&self, way: Way) -> Option<f64> {
        self.publish.iter().find(|published| published.way == way).map(|published| published.per_second)
    }

    /// Messages per second that came out after so many queues.
    #[must_use]
    pub fn drained(&self, hops: u32) -> Option<f64> {
        self.drain.iter().find(|drained| drained.hops == hops).map(|drained| drained.per_second)
    }

    /// What the broker is called in tables.
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
