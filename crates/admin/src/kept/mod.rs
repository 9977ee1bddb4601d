//! Messages that a set keeps until somebody decides what to do with them: looking at them,
//! sending them on, discarding them.
//!
//! Each kind has a queue of its own. All that differs between kinds is here, and in the file
//! of the kind: the queue, why a message is in it, and where a message goes from there.

mod bound;
mod change;
mod look;
mod parked;
mod reason;

use jiff::Timestamp;
use serde::Serialize;

use crate::holding::{Outgoing, arrived};
use delayline::{
    amqp::{Delivery, v1::Foreign},
    codec::AppKey,
    message::Headers,
    topology::{Queue, Topology},
};

use bound::Bound;

pub use change::{ReplayRefusal, ReplayReport};
pub use look::{KeptGroup, KeptMessage, KeptReport};
pub use reason::{Diagnosis, Reason, diagnose};

/// Why messages are kept.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Kept {
    /// Nobody was bound for them, or they are malformed.
    Unroutable,
    /// They have used up their attempts or their time.
    Parked,
}

impl Kept {
    /// All kinds.
    pub const ALL: [Self; 2] = [Self::Unroutable, Self::Parked];

    /// Its name, for people and scripts.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Unroutable => "unroutable",
            Self::Parked => "parked",
        }
    }

    /// The queue that keeps them.
    ///
    /// # Panics
    /// Never: every topology has it.
    #[must_use]
    pub fn queue<'a>(&self, topology: &'a Topology) -> &'a Queue {
        let name = match self {
            Self::Unroutable => topology.names().unroutable(),
            Self::Parked => topology.names().parked(),
        };
        topology.queues().find(|queue| queue.name == name).expect("every topology has it")
    }

    /// Whose a message is, and why it is here.
    fn cause(&self, topology: &Topology, seen: &Seen<'_>) -> KeptCause {
        match self {
            Self::Unroutable => diagnose(topology.names(), seen.exchange, seen.routing_key).into(),
            Self::Parked => parked::cause(seen),
        }
    }

    /// Where a message goes from here.
    fn way_on(&self, topology: &Topology, bound: Option<&Bound>, delivery: &Delivery) -> WayOn {
        match self {
            Self::Unroutable => reason::way_on(topology.names(), bound, delivery),
            Self::Parked => parked::way_on(topology.names(), delivery),
        }
    }
}

/// Where a message goes from a queue that keeps it.
enum WayOn {
    /// There.
    To(Box<Outgoing>),
    /// Nowhere yet, because nobody is bound for this app.
    Unbound(String),
    /// Nowhere, because no exchange would route its key.
    Nowhere,
}

/// Whose a message is, and why it is kept.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[non_exhaustive]
pub struct KeptCause {
    /// The app it is for; `None` if its key does not say.
    pub app: Option<String>,
    /// Why it is here: a [`Reason`] if it is unroutable; `attempts`, `age`, `expired`,
    /// `gave-up` or `unreadable` if it is parked.
    pub reason: String,
    /// What is wrong with its key, or why it failed last, as far as that is known.
    pub detail: Option<String>,
}

/// Which messages are selected; all conditions that are set must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selection {
    /// Those of this application.
    pub app: Option<AppKey>,
    /// Those that are here for this reason; of parked ones, also those that failed last for
    /// it.
    pub reason: Option<String>,
    /// Those with this message id.
    pub message_id: Option<String>,
    /// Those that came before this time; a message that does not say when does not match.
    pub before: Option<Timestamp>,
}

impl Selection {
    /// Whether it selects every message.
    #[must_use]
    pub fn is_everything(&self) -> bool {
        *self == Self::default()
    }

    fn fits(&self, cause: &KeptCause, seen: &Seen<'_>) -> bool {
        let app = self.app.as_ref().is_none_or(|app| cause.app.as_deref() == Some(app.as_str()));
        let reason = self
            .reason
            .as_ref()
            .is_none_or(|reason| *reason == cause.reason || cause.detail.as_ref() == Some(reason));
        let id = self.message_id.is_none() || self.message_id.as_deref() == seen.message_id;
        let age = self.before.is_none_or(|before| seen.arrived.is_some_and(|time| time < before));
        app && reason && id && age
    }
}

/// The parts of a message that tell why it is here.
struct Seen<'a> {
    exchange: &'a str,
    routing_key: &'a str,
    /// `None` if they cannot be read here.
    headers: Option<&'a Headers>,
    message_id: Option<&'a str>,
    arrived: Option<Timestamp>,
}

impl<'a> From<&'a Delivery> for Seen<'a> {
    fn from(delivery: &'a Delivery) -> Self {
        Self {
            exchange: &delivery.exchange,
            routing_key: &delivery.routing_key,
            headers: Some(&delivery.headers),
            message_id: delivery.properties.message_id.as_deref(),
            arrived: arrived(delivery),
        }
    }
}

impl<'a> From<&'a Foreign> for Seen<'a> {
    fn from(message: &'a Foreign) -> Self {
        Self {
            exchange: &message.exchange,
            routing_key: &message.routing_key,
            headers: None,
            message_id: message.message_id.as_deref(),
            arrived: None,
        }
    }
}
