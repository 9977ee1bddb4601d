//! One connection of a canary: its slot, and its messages in both directions.

use std::{sync::Arc, time::Duration};

use delayline_amqp::{AmqpError, Consumer, Next, Session};
use delayline_client::{
    Router,
    relay::wait_for_either,
    router::{Outcome, Pipeline, Stats},
};
use delayline_core::{
    Message,
    codec::{AppKey, Delay, RoutingKey},
    message::Properties,
    topology::{Binding, Endpoint, Names, Queue, if_missing},
};
use delayline_settings::Settings;

use super::{APP, Probe, QUEUE_LIFE, SLOTS};

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
    #[error("{reason}; {}", if_missing())]
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
    /// All slots are taken.
    #[error("there are already {SLOTS} canaries on it")]
    Full,
}

/// A canary's connection to its own queue. To send, it needs a [`Router`].
pub struct CanaryConnection {
    consumer: Consumer,
    app: AppKey,
    slot: u8,
    /// Distinguishes our messages from the messages of an earlier canary in this slot.
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
    /// Takes the first free slot of the set. `run` marks the messages of one canary through all its
    /// connections.
    ///
    /// # Errors
    /// See [`CanaryError`].
    pub fn open(settings: &Settings, run: &str) -> Result<Self, CanaryError> {
        let names = Names::new(settings.topology.set.clone());
        let mut session = Session::open_for(&settings.broker, "canary")?;
        for slot in 0..SLOTS {
            match claim(&mut session, &names, slot) {
                Ok((consumer, app)) => {
                    return Ok(Self { consumer, app, slot, run: run.to_owned(), _session: session });
                }
                Err(error) if is_taken(&error) => {}
                // Messages on their way to it would take up places of the levels.
                Err(error) if is_down(&error) => {
                    let _ = session.unbind(&binding(&names, &app_of(slot), slot));
                }
                Err(error) => return Err(explain(error, &names)),
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
    pub fn send(&self, pipeline: &mut Pipeline<Sent>, sent: Sent) -> Option<Outcome<Sent>> {
        let (id, delay) = match sent {
            Sent::Probe { id, probe } => (Some(format!("{}-{id}", self.run)), probe.delay()),
            Sent::Question => (None, Delay::ZERO),
        };
        let properties = Properties { message_id: id, kind: Some("canary".into()), ..Properties::default() };
        let message = Message::after(self.app.clone(), delay, "delayline canary");
        pipeline.push(sent, message.with_properties(properties))
    }

    /// The next message of ours that arrives within `limit`; wakes up earlier for an answer
    /// to a sent message. Other messages are dropped.
    ///
    /// # Errors
    /// The connection is gone.
    pub fn next(&self, pipeline: &Pipeline<Sent>, limit: Duration) -> Result<Option<Received>, CanaryError> {
        let found = self.poll()?;
        if found.is_some() || limit.is_zero() {
            return Ok(found);
        }
        wait_for_either(&self.consumer, pipeline, limit);
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

/// The binding that delivers the messages of a canary to its queue.
fn binding(names: &Names, app: &AppKey, slot: u8) -> Binding {
    let destination = Endpoint::Queue(names.canary(slot));
    Binding { source: names.dispatch(), destination, key: RoutingKey::binding_pattern(app) }
}

fn claim(session: &mut Session, names: &Names, slot: u8) -> Result<(Consumer, AppKey), AmqpError> {
    let (app, name) = (app_of(slot), names.canary(slot));
    // Quorum queues cannot be exclusive to one consumer. This goes with our connection.
    let taken = format!("{name}.taken");
    session.declare_own_queue_as(&taken)?;
    let claimed = claim_queue(session, &name, &binding(names, &app, slot));
    if claimed.is_err() {
        let _ = session.delete_queue(&taken);
    }
    Ok((claimed?, app))
}

fn claim_queue(session: &mut Session, name: &str, binding: &Binding) -> Result<Consumer, AmqpError> {
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
    match session.bind(binding) {
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

fn explain(error: AmqpError, names: &Names) -> CanaryError {
    let reason = error.to_string();
    match error {
        AmqpError::Channel { code: ACCESS_REFUSED, .. } => CanaryError::NotAllowed {
            reason,
            queues: format!("^{}\\.canary\\.", names.entry()),
            entry: names.entry(),
            dispatch: names.dispatch(),
        },
        AmqpError::Channel { code: 404, .. } => CanaryError::NoSet { reason },
        error => error.into(),
    }
}
