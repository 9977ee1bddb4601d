//! One connection of a canary: its slot, and its messages in both directions.

use std::{sync::Arc, time::Duration};

use crossbeam_channel::Select;

use delayline_amqp::{AmqpError, Consumer, Next, Session};
use delayline_client::{
    Router,
    router::{Outcome, Pipeline, Stats},
};
use delayline_core::{
    codec::{AppKey, Delay},
    message::Properties,
    topology::{IF_MISSING, Names, Queue},
};
use delayline_settings::{Layout, Settings};

use super::{APP, Probe, QUEUE_LIFE, SLOTS, way::Way};

/// AMQP's reply codes: for a missing permission, for an exclusive queue of another connection, and
/// for a queue with other arguments.
const ACCESS_REFUSED: u16 = 403;
const RESOURCE_LOCKED: u16 = 405;
const PRECONDITION_FAILED: u16 = 406;

/// How many replicas the queue has, if there are as many nodes.
const REPLICAS: i64 = 9;

/// Why a canary cannot run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CanaryError {
    /// The broker cannot be reached, or has another problem.
    #[error(transparent)]
    Broker(#[from] AmqpError),
    /// The set is not installed.
    #[error("{reason}; {IF_MISSING}")]
    NoSet {
        /// The broker's words.
        reason: String,
    },
    /// The user lacks the rights that a canary needs.
    #[error(
        "{reason}; a canary needs `configure`, `write` and `read` on `{queues}`, `write` on `{entry}` and \
         `read` on `{dispatch}`"
    )]
    NotAllowed {
        /// The broker's words.
        reason: String,
        /// A pattern for its queues.
        queues: String,
        /// The entry exchange.
        entry: String,
        /// The dispatch exchange.
        dispatch: String,
    },
    /// The user lacks the rights that a canary of a layout needs.
    #[error(
        "{reason}; a canary of the layout `{layout}` needs `configure`, `write` and `read` on its queue, `write` on \
         the exchanges of the levels and `read` on the one behind them"
    )]
    NotAllowedIn {
        /// The broker's words.
        reason: String,
        /// The layout.
        layout: Layout,
    },
    /// The layout cannot be looked at.
    #[error("{0}")]
    Layout(String),
    /// The layout has no guard.
    #[error(
        "the layout `{layout}` has no guard, and a canary's messages could stall its levels for everybody if its \
         queue was lost: run `delayline guard {layout}` first"
    )]
    Unguarded {
        /// The layout.
        layout: Layout,
    },
    /// All slots are taken.
    #[error("there are already {SLOTS} canaries on it")]
    Full,
}

/// A canary's connection to its own queue. To send, it needs a [`Router`].
pub struct CanaryConnection {
    way: Way,
    consumer: Consumer,
    app: AppKey,
    slot: u8,
    /// Tells our messages from those of an earlier canary in this slot.
    run: String,
    // Dropped last: it closes the connection.
    _session: Session,
}

/// A message that was sent.
#[derive(Debug, Clone, Copy)]
pub enum Sent {
    /// A probe.
    Probe {
        /// Its number.
        id: u64,
        /// Its route.
        probe: Probe,
    },
    /// A message without a delay: its confirm shows that the queue takes messages.
    Question,
}

/// A message that came back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received {
    /// Its number.
    pub id: u64,
    /// Whether it was delivered to us before and our acknowledgement was lost: that does not
    /// count as arriving twice.
    pub redelivered: bool,
}

impl std::fmt::Debug for CanaryConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CanaryConnection")
            .field("slot", &self.slot)
            .field("run", &self.run)
            .finish_non_exhaustive()
    }
}

impl CanaryConnection {
    /// Takes the first free slot of the set, or of a layout of others. `run` marks the messages of
    /// one canary through all its connections.
    ///
    /// # Errors
    /// See [`CanaryError`].
    pub fn open(settings: &Settings, layout: Option<&Layout>, run: &str) -> Result<Self, CanaryError> {
        let way = match layout {
            None => Way::Set(Names::new(settings.topology.set.clone())),
            Some(layout) => Way::Layout(layout.clone()),
        };
        way.check(settings)?;
        let mut session = Session::open_for(&settings.broker, "canary")?;
        for slot in 0..SLOTS {
            match claim(&mut session, &way, slot) {
                Ok((consumer, app)) => {
                    return Ok(Self { way, consumer, app, slot, run: run.to_owned(), _session: session });
                }
                Err(error) if is_taken(&error) => {}
                // Messages on their way to it would take up places of the levels.
                Err(error) if is_down(&error) => {
                    let _ = session.unbind(&way.binding(&app_of(slot), slot));
                }
                Err(error) => return Err(explain(error, &way)),
            }
        }
        Err(CanaryError::Full)
    }

    /// A router that counts in `stats`.
    ///
    /// # Errors
    /// See [`CanaryError`].
    pub fn router(settings: &Settings, stats: Arc<Stats>) -> Result<Router, CanaryError> {
        Ok(settings.router().counting(stats).connect()?)
    }

    /// The slot it has.
    #[must_use]
    pub fn slot(&self) -> u8 {
        self.slot
    }

    /// Sends a message; returns an outcome if there is one.
    pub fn send(&self, pipeline: &mut Pipeline<'_, Sent>, sent: Sent) -> Option<Outcome<Sent>> {
        let (id, delay) = match sent {
            Sent::Probe { id, probe } => (Some(format!("{}-{id}", self.run)), probe.delay()),
            Sent::Question => (None, Delay::ZERO),
        };
        let properties = Properties { message_id: id, kind: Some("canary".into()), ..Properties::default() };
        pipeline.push(sent, self.way.message(&self.app, delay).with_properties(properties))
    }

    /// The next message of ours that arrives within `limit`; wakes up earlier for an answer
    /// to one that was sent. Other messages are dropped.
    ///
    /// # Errors
    /// The connection is gone.
    pub fn next(
        &self,
        pipeline: &Pipeline<'_, Sent>,
        limit: Duration,
    ) -> Result<Option<Received>, CanaryError> {
        let found = self.poll()?;
        if found.is_some() || limit.is_zero() {
            return Ok(found);
        }
        let mut select = Select::new();
        self.consumer.watch(&mut select);
        pipeline.watch(&mut select);
        let _ = select.ready_timeout(limit);
        self.poll()
    }

    fn poll(&self) -> Result<Option<Received>, CanaryError> {
        loop {
            match self.consumer.next(Duration::ZERO) {
                Next::Delivery(delivery) => {
                    let id =
                        delivery.properties.message_id.as_deref().and_then(|id| {
                            id.strip_prefix(self.run.as_str())?.strip_prefix('-')?.parse().ok()
                        });
                    let redelivered = delivery.redelivered;
                    self.consumer.ack(delivery)?;
                    if let Some(id) = id {
                        return Ok(Some(Received { id, redelivered }));
                    }
                }
                Next::Timeout => return Ok(None),
                Next::Ended(cause) => {
                    let ended = || AmqpError::Lost { reason: "the consumer ended".into() };
                    return Err(cause.unwrap_or_else(ended).into());
                }
            }
        }
    }
}

fn app_of(slot: u8) -> AppKey {
    AppKey::new(format!("{APP}.{slot}")).expect("words and a dot")
}

fn claim(session: &mut Session, way: &Way, slot: u8) -> Result<(Consumer, AppKey), AmqpError> {
    let (app, name) = (app_of(slot), way.queue(slot));
    // Quorum queues cannot be exclusive to one consumer. This goes with our connection.
    let taken = format!("{name}.taken");
    session.declare_own_queue_as(&taken)?;
    let claimed = claim_queue(session, way, (&app, &name), slot);
    if claimed.is_err() {
        let _ = session.delete_queue(&taken);
    }
    Ok((claimed?, app))
}

fn claim_queue(
    session: &mut Session,
    way: &Way,
    (app, name): (&AppKey, &str),
    slot: u8,
) -> Result<Consumer, AmqpError> {
    let life = i64::try_from(QUEUE_LIFE.as_millis()).unwrap_or(i64::MAX);
    // A classic queue does not answer while its node is down, and messages for it would stop a
    // level.
    session.declare_queue(&Queue::new(name).with_arguments([
        ("x-queue-type".to_owned(), "quorum".into()),
        ("x-quorum-initial-group-size".to_owned(), REPLICAS.into()),
        ("x-expires".to_owned(), life.into()),
        ("x-max-length".to_owned(), 10_000.into()),
    ]))?;
    // The consumer comes before the binding: it shows that the queue answers.
    let consumer = session.consume(name, 256)?;
    match session.bind(&way.binding(app, slot)) {
        Ok(()) => Ok(consumer),
        Err(error) => {
            // The queue is of no use to us, nor to others. If it cannot be deleted, it expires
            // after a while.
            drop(consumer);
            let _ = session.delete_queue(name);
            Err(error)
        }
    }
}

/// Whether another canary has the slot, or an earlier version of this program had it, whose queue
/// has other arguments.
fn is_taken(error: &AmqpError) -> bool {
    matches!(error, AmqpError::Channel { code: RESOURCE_LOCKED | PRECONDITION_FAILED, .. })
}

/// Whether the queue does not answer, because nodes are down; another slot serves as well.
fn is_down(error: &AmqpError) -> bool {
    matches!(error, AmqpError::Channel { code: 404, text } if text.contains("down or inaccessible"))
}

fn explain(error: AmqpError, way: &Way) -> CanaryError {
    let reason = error.to_string();
    match (error, way) {
        (AmqpError::Channel { code: ACCESS_REFUSED, .. }, Way::Set(names)) => CanaryError::NotAllowed {
            reason,
            queues: format!("^{}\\.canary\\.", names.entry()),
            entry: names.entry(),
            dispatch: names.dispatch(),
        },
        (AmqpError::Channel { code: ACCESS_REFUSED, .. }, Way::Layout(layout)) => {
            CanaryError::NotAllowedIn { reason, layout: layout.clone() }
        }
        (AmqpError::Channel { code: 404, .. }, Way::Set(_)) => CanaryError::NoSet { reason },
        (error, _) => error.into(),
    }
}
