//! Sending kept messages on, and discarding them.

use std::{collections::BTreeMap, sync::atomic::AtomicBool};

use serde::Serialize;

use crate::{
    drain::Decision, drain::Drain, drain::DrainError, drain::Drained, drain::Progress, drain::past,
    error::AdminError, error::connect, error::doing,
};
use delayline_amqp::{Delivery, v1::Foreign};
use delayline_core::{
    codec::AppKey,
    topology::{Endpoint, Names, Topology},
};
use delayline_settings::Settings;

use super::{Kept, Seen, Selection, WayOn};

/// The result of a replay.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct ReplayReport {
    /// What happened to the messages.
    #[serde(flatten)]
    pub drained: Drained,
    /// Selected messages that stay because no queue is bound for them yet, by app.
    pub unbound: BTreeMap<String, u64>,
    /// Selected messages that stay because no exchange would route their key.
    pub hopeless: u64,
}

/// Why nothing was sent on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayRefusal {
    /// The messages would come back.
    #[error("the messages of `{app}` were not replayed: no queue is bound for it. Bind its queue first")]
    NobodyBound {
        /// The app.
        app: AppKey,
    },
    /// Only the management API knows bindings.
    #[error(
        "the messages were not replayed: which queues are bound is unknown ({reason}). Give the URL of the \
         management API (--management-url), or skip the check (--unbound)"
    )]
    Unknown {
        /// The reason.
        reason: String,
    },
}

impl Kept {
    /// Sends selected messages on, each removed only after the broker has confirmed its copy:
    ///
    /// - an unroutable message goes to dispatch with the routing key it came with, once a queue is
    ///   bound for it. If it came through a gateway, it goes to the exchange of the gateway's
    ///   consumers, with its own routing key.
    /// - a parked message goes to its application at once, with the full number of attempts.
    /// - a recalled message goes to its application at once, with its id.
    ///
    /// Messages that no exchange would route stay, and so do messages without a bound queue.
    /// `check` asks the management API for the bindings. Without that check, unroutable messages
    /// without a bound queue come back to the end of the queue, once.
    ///
    /// # Errors
    /// If the broker cannot be asked, or reading is not safe.
    pub fn replay(
        &self,
        settings: &Settings,
        topology: &Topology,
        selection: &Selection,
        check: bool,
        stop: &AtomicBool,
        mut progress: impl FnMut(Progress),
    ) -> Result<Result<ReplayReport, ReplayRefusal>, AdminError> {
        let bound = match self {
            Self::Unroutable | Self::Guarded(_) if check => match self.bound(settings, topology)? {
                Ok(bound) => Some(bound),
                Err(reason) => {
                    // Without the broker's own count, the number of messages is unknown.
                    connect(&settings.broker)?;
                    return Ok(Err(ReplayRefusal::Unknown { reason }));
                }
            },
            Self::Unroutable | Self::Parked | Self::Recalled(_) | Self::Guarded(_) => None,
        };
        // Through a gateway, each message has its own routing key.
        let as_a_whole = |app: &&AppKey| Names::gateway_of_app(app.as_str()).is_none();
        if let (Some(bound), Some(app)) = (&bound, selection.app.as_ref().filter(as_a_whole))
            && !bound.has(app.as_str())
        {
            let queue = self.queue(topology).name;
            let depth = connect(&settings.broker)?.queue_depth(&queue);
            if depth.map_err(doing(format!("examining `{queue}`")))?.is_none() {
                let missing = DrainError::Missing { what: Endpoint::Queue(queue) };
                return Err(self.told(settings, topology, missing));
            }
            return Ok(Err(ReplayRefusal::NobodyBound { app: app.clone() }));
        }
        let queue = &self.queue(topology);
        let mut passed = past(settings, queue, u64::MAX, || {
            let (mut unbound, mut hopeless, mut undated) = (BTreeMap::new(), 0, 0);
            let decide = |delivery: &Delivery| {
                if !self.selects(topology, selection, delivery.into()) {
                    undated += u64::from(self.is_undated(topology, selection, delivery.into()));
                    return Decision::Keep;
                }
                match self.way_on(topology, bound.as_ref(), delivery) {
                    WayOn::To(outgoing) => return Decision::Send(outgoing),
                    WayOn::Unbound(app) => *unbound.entry(app).or_insert(0) += 1,
                    WayOn::Nowhere => hopeless += 1,
                }
                Decision::Keep
            };
            let drained = Drain::new(settings, queue).until(stop).run(decide, &mut progress)?;
            Ok((Drained { undated, ..drained }, (unbound, hopeless)))
        })
        .map_err(|error| self.told(settings, topology, error))?;
        let fits = |message: &Foreign| self.selects(topology, selection, message.into());
        passed.aside.refuse(&mut passed.drained, fits);
        passed.drained.undated += self.undated(topology, selection, passed.aside.messages());
        let (unbound, hopeless) = passed.value;
        Ok(Ok(ReplayReport { drained: passed.drained, unbound, hopeless }))
    }

    /// Discards selected messages, for good.
    ///
    /// # Errors
    /// If the broker cannot be asked, or reading is not safe.
    pub fn discard(
        &self,
        settings: &Settings,
        topology: &Topology,
        selection: &Selection,
        stop: &AtomicBool,
        mut progress: impl FnMut(Progress),
    ) -> Result<Drained, AdminError> {
        let queue = &self.queue(topology);
        let mut passed = past(settings, queue, u64::MAX, || {
            let mut undated = 0;
            let decide = |delivery: &Delivery| match self.selects(topology, selection, delivery.into()) {
                true => Decision::Discard,
                false => {
                    undated += u64::from(self.is_undated(topology, selection, delivery.into()));
                    Decision::Keep
                }
            };
            let drained = Drain::new(settings, queue).until(stop).run(decide, &mut progress)?;
            Ok((Drained { undated, ..drained }, ()))
        })
        .map_err(|error| self.told(settings, topology, error))?;
        let fits = |message: &Foreign| self.selects(topology, selection, message.into());
        passed.aside.discard(&mut passed.drained, fits);
        passed.drained.undated += self.undated(topology, selection, passed.aside.messages());
        Ok(passed.drained)
    }

    /// Counts the messages that [`discard`](Self::discard) would discard, and changes nothing. Returns the
    /// number of selected messages, and the examined ones.
    ///
    /// # Errors If the broker cannot be asked, or reading is not safe.
    pub fn count_selected(
        &self,
        settings: &Settings,
        topology: &Topology,
        selection: &Selection,
        stop: &AtomicBool,
        mut progress: impl FnMut(Progress),
    ) -> Result<(u64, Drained), AdminError> {
        let queue = &self.queue(topology);
        let mut passed = past(settings, queue, u64::MAX, || {
            let (mut selected, mut undated) = (0, 0);
            let decide = |delivery: &Delivery| {
                selected += u64::from(self.selects(topology, selection, delivery.into()));
                undated += u64::from(self.is_undated(topology, selection, delivery.into()));
                Decision::Keep
            };
            let drained = Drain::new(settings, queue).until(stop).run(decide, &mut progress)?;
            Ok((Drained { undated, ..drained }, selected))
        })
        .map_err(|error| self.told(settings, topology, error))?;
        passed.aside.keep(&mut passed.drained);
        passed.drained.undated += self.undated(topology, selection, passed.aside.messages());
        let fitting = passed.aside.messages().filter(|message| {
            let message: &Foreign = message;
            self.selects(topology, selection, message.into())
        });
        Ok((passed.value + fitting.count() as u64, passed.drained))
    }

    fn is_undated(&self, topology: &Topology, selection: &Selection, seen: Seen<'_>) -> bool {
        selection.is_undated(&self.cause(topology, &seen), &seen)
    }

    /// How many of the messages that AMQP 0-9-1 cannot carry have no recorded time.
    fn undated<'a>(
        &self,
        topology: &Topology,
        selection: &Selection,
        messages: impl Iterator<Item = &'a Foreign>,
    ) -> u64 {
        messages.filter(|message| self.is_undated(topology, selection, (*message).into())).count() as u64
    }

    fn selects(&self, topology: &Topology, selection: &Selection, seen: Seen<'_>) -> bool {
        selection.fits(&self.cause(topology, &seen), &seen)
    }
}
