//! Removing objects that may hold messages.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use delayline_amqp::{Session, broker::Broker};
use delayline_broker::{ManagementApi, Policy, PolicyKind};
use delayline_core::topology::{Binding, Object};

use super::{contents, contents::SETTLE, contents::Waiting, step::declare};
use delayline_messages::{error::AdminError, error::doing, examine::describe};

/// How often the signal flag is checked.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// An entry for messages.
#[derive(Debug, Clone)]
pub(crate) enum Gate {
    /// An exchange, with its bindings.
    Exchange(Vec<Object>),
    /// A binding.
    Binding(Binding),
    /// A policy.
    Policy(Policy),
}

/// How closing ended.
#[derive(Debug)]
pub(crate) enum Closed<T> {
    /// It is closed. The following steps are completed, even if signals come.
    For(T),
    /// It was opened again, because of the counted messages.
    Refused(T),
    /// It was opened again, because a signal came.
    Interrupted,
}

/// The removed objects, and the lost messages.
#[derive(Debug, Default)]
pub(crate) struct Removed {
    /// Exchanges and queues, in this order.
    pub(crate) removed: Vec<String>,
    /// Messages that were lost with the queues.
    pub(crate) discarded: Vec<Waiting>,
}

/// A removal: *close → settle → recount → open again or complete*.
pub(crate) struct Removal<'a> {
    /// Where the broker is.
    pub(crate) broker: &'a Broker,
    /// The session that removes.
    pub(crate) session: &'a mut Session,
    /// The management API, if policies are gates.
    pub(crate) api: Option<&'a ManagementApi>,
    /// Set once a signal has come.
    pub(crate) stop: &'a AtomicBool,
}

impl Removal<'_> {
    /// Closes gates, waits until messages on their way have arrived and are counted, and counts. Opens the
    /// gates again if messages are held, if they cannot be counted, or if a signal came. `restoring` names
    /// that step if it fails.
    ///
    /// # Errors If the broker refuses or is lost; then, too, the gates were opened again.
    pub(crate) fn close<T>(
        &mut self,
        gates: &[Gate],
        settle: bool,
        restoring: &str,
        count: impl FnOnce(&mut Session) -> Result<T, AdminError>,
        is_held: impl FnOnce(&T) -> bool,
    ) -> Result<Closed<T>, AdminError> {
        if settle && self.is_stopped() {
            return Ok(Closed::Interrupted);
        }
        let counted = gates.iter().try_for_each(|gate| self.shut(gate)).and_then(|()| {
            if settle && self.settle() {
                return Ok(None);
            }
            count(self.session).map(Some)
        });
        let closed = match counted {
            Ok(Some(counted)) if !is_held(&counted) => return Ok(Closed::For(counted)),
            Ok(Some(counted)) => Ok(Closed::Refused(counted)),
            Ok(None) => Ok(Closed::Interrupted),
            Err(error) => Err(error),
        };
        // On a new session, since the other one may be lost.
        let mut session = Session::open(self.broker).map_err(doing(restoring))?;
        for gate in gates {
            self.open(gate, &mut session).map_err(|error| restored(restoring, error))?;
        }
        closed
    }

    fn shut(&mut self, gate: &Gate) -> Result<(), AdminError> {
        match gate {
            Gate::Exchange(objects) => objects.iter().try_for_each(|object| match object {
                Object::Exchange(exchange) => self.delete_exchange(&exchange.name),
                // Bindings are deleted with their exchanges.
                Object::Binding(_) | Object::Queue(_) => Ok(()),
            }),
            Gate::Binding(binding) => {
                self.session.unbind(binding).map_err(doing(format!("removing the {binding}")))
            }
            Gate::Policy(policy) => match self.api {
                Some(api) => Ok(api.delete_policy(PolicyKind::Policy, &self.broker.vhost, &policy.name)?),
                None => Ok(()),
            },
        }
    }

    fn open(&self, gate: &Gate, session: &mut Session) -> Result<(), AdminError> {
        match gate {
            Gate::Exchange(objects) => objects.iter().try_for_each(|object| declare(session, object)),
            Gate::Binding(binding) => declare(session, &Object::Binding(binding.clone())),
            Gate::Policy(policy) => match self.api {
                Some(api) => Ok(api.set_policy(PolicyKind::Policy, &self.broker.vhost, policy)?),
                None => Ok(()),
            },
        }
    }

    /// Waits until a message on its way in has reached its queue, and the API's count. Ends early, with
    /// true, once a signal has come.
    pub(crate) fn settle(&self) -> bool {
        let until = Instant::now() + SETTLE;
        while Instant::now() < until && !self.is_stopped() {
            thread::sleep(LOOK_EVERY);
        }
        self.is_stopped()
    }

    /// Whether a signal has come.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Deletes exchanges and queues, in this order.
    ///
    /// # Errors
    /// If the broker refuses or is lost; removing again continues from there.
    pub(crate) fn delete<'o>(
        &mut self,
        objects: impl IntoIterator<Item = &'o Object>,
        removed: &mut Removed,
    ) -> Result<(), AdminError> {
        for object in objects {
            match object {
                Object::Exchange(exchange) => self.delete_exchange(&exchange.name)?,
                Object::Queue(queue) => contents::delete(self.session, &queue.name, &mut removed.discarded)?,
                // Bindings are deleted with their exchanges.
                Object::Binding(_) => continue,
            }
            removed.removed.push(describe(object));
        }
        Ok(())
    }

    fn delete_exchange(&mut self, name: &str) -> Result<(), AdminError> {
        self.session.delete_exchange(name).map_err(doing(format!("removing exchange `{name}`")))
    }
}

/// Names the restoring step instead of the single step.
fn restored(restoring: &str, error: AdminError) -> AdminError {
    match error {
        AdminError::Amqp { source, .. } => doing(restoring)(source),
        error => error,
    }
}
