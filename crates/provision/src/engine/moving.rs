//! Moving an application's messages to another queue while they flow: without a gap and without a copy.

use std::{fmt, thread};

use delayline_amqp::{AmqpError, HAND_OVER, Session};
use delayline_core::{
    codec::AppKey,
    topology::{Binding, Endpoint, Exchange, Topology},
};

use delayline_messages::{error::AdminError, error::doing};

/// A binding that takes the place of another one.
#[derive(Debug, Clone)]
pub(crate) struct Move {
    /// The exchange that messages enter, and the exchange behind it, which leads to the present queue.
    by: [Exchange; 2],
    present: Binding,
    from: Binding,
    to: Binding,
}

impl Move {
    /// The binding `to` takes the place of the binding of `from`, which has the same source and key.
    pub(crate) fn new(topology: &Topology, app: &AppKey, from: Endpoint, to: Binding) -> Self {
        let (by, present) = topology.moving(app, &from);
        Self { by, present, from: Binding { destination: from, ..to.clone() }, to }
    }

    /// Makes it.
    ///
    /// A message goes to each queue once, however many ways lead there. So an exchange that leads to the
    /// present queue is bound first, and then the queue's own binding is removed. One new binding of that
    /// exchange then moves all messages at the same moment, since its alternate exchange gets only messages
    /// that have no other way. The exchange is removed in the same manner. Between these steps, messages whose
    /// way was determined before a step have time to take it.
    ///
    /// After an interruption, messages still have exactly one way, and making it again continues.
    pub(crate) fn make(&self, session: &mut Session) -> Result<(), AdminError> {
        let [entry, back] = &self.by;
        let over = Binding { destination: Endpoint::Exchange(entry.name.clone()), ..self.to.clone() };
        let destination = self.to.destination.clone();
        let switch = Binding { source: entry.name.clone(), destination, key: String::new() };
        // There is one only if another move was interrupted.
        let earlier = Binding { destination: self.from.destination.clone(), ..switch.clone() };
        let mut moved = || -> Result<(), AmqpError> {
            session.declare_exchange(back)?;
            session.bind(&self.present)?;
            session.declare_exchange(entry)?;
            session.bind(&over)?;
            session.unbind(&self.from)?;
            thread::sleep(HAND_OVER);
            session.bind(&switch)?;
            session.unbind(&earlier)?;
            thread::sleep(HAND_OVER);
            session.bind(&self.to)?;
            session.unbind(&over)?;
            thread::sleep(HAND_OVER);
            session.delete_exchange(&entry.name)?;
            session.delete_exchange(&back.name)
        };
        moved().map_err(doing(format!("moving from {} to {}", self.from.destination, self.to.destination)))
    }
}

impl fmt::Display for Move {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "binding of {} to exchange `{}`", self.to.destination, self.to.source)
    }
}
