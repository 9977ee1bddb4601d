//! Messages that a set keeps until an operator decides about them: listing them, sending them on,
//! discarding them.
//!
//! Each kind has its own queue. The differences between kinds are here and in the file of the kind: the
//! queue, why a message is in it, and where a message goes from there.

mod bound;
mod change;
mod discard;
mod gateway;
mod guarded;
mod look;
mod parked;
mod reason;
mod recalled;
mod transfer;

use jiff::Timestamp;
use serde::Serialize;

use crate::{
    drain, drain::DrainError, drain::Outgoing, drain::recorded, error::AdminError, error::connect,
    error::refuse_without_set,
};
use delayline_amqp::{Delivery, v1::Foreign};
use delayline_core::{
    codec::{AppKey, MessageId, RoutingKey},
    message::{Headers, Value, headers},
    topology::{Queue, RecallSettings, Topology},
};
use delayline_settings::{Layout, Settings};

pub use bound::Bound;

pub use change::{ReplayRefusal, ReplayReport};
pub use discard::{DiscardReport, DiscardedFrom, discard_app};
pub use look::{KeptGroup, KeptMessage, KeptReport};
pub use reason::{Diagnosis, Reason, diagnose};
pub use transfer::{
    Evidence, TransferLevel, TransferOptions, TransferProgress, TransferReport, TransferSource, transfer,
};

/// Why messages are kept.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Kept {
    /// No queue was bound for them, or they are malformed.
    Unroutable,
    /// They have used up their attempts or their time.
    Parked,
    /// They were recalled; those of this application.
    Recalled(AppKey),
    /// No queue was bound for them in a layout that has a guard.
    Guarded(Layout),
}

impl Kept {
    /// The kinds that every set has.
    pub const ALL: [Self; 2] = [Self::Unroutable, Self::Parked];

    /// Its name, for people and scripts.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Unroutable | Self::Guarded(_) => "unroutable",
            Self::Parked => "parked",
            Self::Recalled(_) => "recalled",
        }
    }

    /// The queue that keeps them.
    ///
    /// # Panics
    /// Never: every topology has it.
    #[must_use]
    pub fn queue(&self, topology: &Topology) -> Queue {
        let name = match self {
            Self::Unroutable => topology.names().unroutable(),
            Self::Parked => topology.names().parked(),
            Self::Recalled(app) => return topology.recalled_queue(app, RecallSettings::default()),
            Self::Guarded(layout) => return guarded::queue(topology, layout),
        };
        topology.queues().find(|queue| queue.name == name).cloned().expect("every topology has it")
    }

    /// Refuses a queue that would drop messages because they were read.
    ///
    /// # Errors If it would, if that is unknown, or if the queue does not exist.
    pub fn check(&self, settings: &Settings, topology: &Topology) -> Result<(), AdminError> {
        let mut session = connect(&settings.broker)?;
        let checked = drain::check(settings, &mut session, &self.queue(topology));
        checked.map_err(|error| self.told(settings, topology, error))
    }

    /// Adds to the error how the missing queue is made.
    fn told(&self, settings: &Settings, topology: &Topology, error: DrainError) -> AdminError {
        match (self, error) {
            (Self::Recalled(app), DrainError::Missing { .. }) => {
                let of_app = DrainError::NotOffered { app: app.clone() };
                let refused = connect(&settings.broker)
                    .and_then(|mut session| refuse_without_set(&mut session, topology));
                refused.err().unwrap_or_else(|| of_app.into())
            }
            (Self::Guarded(layout), DrainError::Missing { .. }) => {
                AdminError::NoGuard { layout: layout.to_string() }
            }
            (_, error) => error.into(),
        }
    }

    /// The app of a message, and why it is here.
    fn cause(&self, topology: &Topology, seen: &Seen<'_>) -> KeptCause {
        match self {
            Self::Unroutable => match gateway::of(topology, seen) {
                Some(aside) => gateway::cause(topology.names(), &aside, seen),
                None => diagnose(topology.names(), seen.exchange, seen.routing_key).into(),
            },
            Self::Parked => parked::cause(topology.names(), seen),
            Self::Recalled(app) => recalled::cause(app, seen.routing_key),
            Self::Guarded(layout) => guarded::diagnose(layout, seen.exchange, seen.routing_key).into(),
        }
    }

    /// The routing key with which a message was published, if it has another one here.
    fn own_key(&self, topology: &Topology, seen: &Seen<'_>) -> Option<String> {
        let aside = (*self == Self::Unroutable).then(|| gateway::of(topology, seen)).flatten()?;
        (aside.routing_key != seen.routing_key).then_some(aside.routing_key)
    }

    /// Whether a queue is bound for a message.
    fn is_bound(
        &self,
        topology: &Topology,
        bound: &Bound,
        cause: &KeptCause,
        seen: &Seen<'_>,
    ) -> Option<bool> {
        match cause.gateway.is_some().then(|| gateway::of(topology, seen)).flatten() {
            Some(aside) => gateway::is_bound(bound, &aside, seen),
            None => cause.app.as_ref().map(|app| bound.has(app)),
        }
    }

    /// Where a message goes from here.
    fn way_on(&self, topology: &Topology, bound: Option<&Bound>, delivery: &Delivery) -> WayOn {
        match self {
            Self::Unroutable => match gateway::of(topology, &delivery.into()) {
                Some(aside) => gateway::way_on(topology.names(), bound, &aside, delivery),
                None => reason::way_on(topology.names(), bound, delivery),
            },
            Self::Parked => parked::way_on(topology.names(), delivery),
            Self::Recalled(app) => recalled::way_on(topology.names(), app, delivery),
            Self::Guarded(layout) => guarded::way_on(layout, bound, delivery),
        }
    }
}

/// Where a message goes from a queue that keeps it.
enum WayOn {
    /// To this exchange.
    To(Box<Outgoing>),
    /// Nowhere yet, because no queue is bound for this app.
    Unbound(String),
    /// Nowhere, because no exchange would route its key.
    Nowhere,
}

/// A replayed message must not expire.
fn unexpired(mut outgoing: Outgoing) -> Outgoing {
    let now = Timestamp::now().as_millisecond();
    if outgoing.headers.get(headers::EXPIRES).and_then(Value::as_i64).is_some_and(|time| time <= now) {
        outgoing.headers.remove(headers::EXPIRES);
    }
    outgoing
}

/// The app of a message, and why it is kept.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct KeptCause {
    /// The app it is for; `None` if its key does not name one.
    pub app: Option<String>,
    /// Why it is here: a [`Reason`] if it is unroutable; `attempts`, `age`, `expired`,
    /// `gave-up`, `rejected` or `unreadable` if it is parked; `recalled` if it was recalled, or `stray` if it
    /// came to the queue of recalled messages in another way.
    pub reason: String,
    /// The fault of its key, or why it failed last, if known.
    pub detail: Option<String>,
    /// The gateway that it came through, if it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gateway: Option<String>,
}

impl KeptCause {
    /// Of a message that came through no gateway.
    fn new(app: Option<String>, reason: impl Into<String>, detail: Option<String>) -> Self {
        Self { app, reason: reason.into(), detail, gateway: None }
    }
}

/// Which messages are selected; all conditions that are set must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selection {
    /// Those of this application.
    pub app: Option<AppKey>,
    /// Those that are here for this reason; of parked ones, also those that failed last for it.
    pub reason: Option<String>,
    /// Those with this message id.
    pub message_id: Option<String>,
    /// Those that were published with this id behind their app key.
    pub id: Option<MessageId>,
    /// Those that came before this time. A message without a time that the broker or delayline recorded does
    /// not match.
    pub before: Option<Timestamp>,
}

impl Selection {
    /// Whether it selects every message.
    #[must_use]
    pub fn is_everything(&self) -> bool {
        *self == Self::default()
    }

    /// Whether only the age of a message is missing to tell if it is selected.
    fn is_undated(&self, cause: &KeptCause, seen: &Seen<'_>) -> bool {
        let but_for_age = || Self { before: None, ..self.clone() };
        self.before.is_some() && seen.arrived.is_none() && but_for_age().fits(cause, seen)
    }

    fn fits(&self, cause: &KeptCause, seen: &Seen<'_>) -> bool {
        let app = self.app.as_ref().is_none_or(|app| cause.app.as_deref() == Some(app.as_str()));
        let reason = self
            .reason
            .as_ref()
            .is_none_or(|reason| *reason == cause.reason || cause.detail.as_ref() == Some(reason));
        let id = self.message_id.is_none() || self.message_id.as_deref() == seen.message_id;
        let own_id = self
            .id
            .as_ref()
            .is_none_or(|id| seen.routing_key.parse::<RoutingKey>().is_ok_and(|key| key.id() == Some(id)));
        let age = self.before.is_none_or(|before| seen.arrived.is_some_and(|time| time < before));
        app && reason && id && own_id && age
    }
}

/// The parts of a message that show why it is here.
struct Seen<'a> {
    exchange: &'a str,
    routing_key: &'a str,
    /// `None` if they cannot be read here.
    headers: Option<&'a Headers>,
    message_id: Option<&'a str>,
    /// When it came, if the broker or delayline recorded that.
    arrived: Option<Timestamp>,
}

impl<'a> From<&'a Delivery> for Seen<'a> {
    fn from(delivery: &'a Delivery) -> Self {
        Self {
            exchange: &delivery.exchange,
            routing_key: &delivery.routing_key,
            headers: Some(&delivery.headers),
            message_id: delivery.properties.message_id.as_deref(),
            arrived: recorded(delivery),
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
