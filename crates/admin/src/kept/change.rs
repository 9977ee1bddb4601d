//! Sending kept messages on, and discarding them.

use std::{collections::BTreeMap, sync::atomic::AtomicBool};

use serde::Serialize;

use crate::{
    AdminError, connect, doing,
    drain::{Decision, Drain, DrainError, Drained, Progress, past},
};
use delayline_amqp::{Delivery, v1::Foreign};
use delayline_core::{
    codec::AppKey,
    topology::{Endpoint, Names, Topology},
};
use delayline_settings::Settings;

use super::{Kept, Seen, Selection, WayOn};

/// The result of a replay.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct ReplayReport {
    /// What happened to the messages.
    #[serde(flatten)]
    pub drained: Drained,
    /// Selected messages that stay because nobody is bound for them yet, by app.
    pub unbound: BTreeMap<String, u64>,
    /// Selected messages that stay because no exchange would route their key.
    pub hopeless: u64,
}

/// Why nothing was sent on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayRefusal {
    /// The messages would only come back.
    #[error("nobody is bound for `{app}`, so its messages would only come back; bind its queue first")]
    NobodyBound {
        /// The app.
        app: AppKey,
    },
    /// Only the management API knows bindings.
    #[error(
        "cannot tell who is bound ({reason}); give the URL of the management API (--management-url), or \
         skip the check (--unbound)"
    )]
    Unknown {
        /// The reason.
        reason: String,
    },
}

impl Kept {
    /// Sends selected messages on, each removed only after the broker has confirmed its copy:
    ///
    /// - unroutable ones back on their way, to dispatch with the routing key they came with,
    ///   once somebody is bound for them; what came through a gateway to the exchange of its
    ///   consumers, with its own routing key;
    /// - parked ones to their applications at once, with the full number of attempts before
    ///   them again;
    /// - recalled ones to their application at once, with the id they had.
    ///
    /// Messages that no exchange would route stay, and so do those that nobody is bound for
    /// yet. `check` asks the management API who is bound; without that check, unroutable
    /// messages that nobody is bound for come back to the end of the queue, once.
    ///
    /// # Errors
    /// If the broker cannot be asked, or looking is not safe.
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
                    // Without the broker's own count, this is all we know.
                    connect(&settings.broker)?;
                    return Ok(Err(ReplayRefusal::Unknown { reason }));
                }
            },
            Self::Unroutable | Self::Parked | Self::Recalled(_) | Self::Guarded(_) => None,
        };
        // Of a gateway, each message has a routing key of its own.
        let as_a_whole = |app: &&AppKey| Names::gateway_of_app(app.as_str()).is_none();
        if let (Some(bound), Some(app)) = (&bound, selection.app.as_ref().filter(as_a_whole))
            && !bound.has(app.as_str())
        {
            let queue = self.queue(topology).name;
            let depth = connect(&settings.broker)?.queue_depth(&queue);
            if depth.map_err(doing(format!("looking at `{queue}`")))?.is_none() {
                let missing = DrainError::Missing { what: Endpoint::Queue(queue) };
                return Err(self.told(settings, topology, missing));
            }
            return Ok(Err(ReplayRefusal::NobodyBound { app: app.clone() }));
        }
        let queue = &self.queue(topology);
        let mut passed = past(settings, queue, u64::MAX, || {
            let (mut unbound, mut hopeless) = (BTreeMap::new(), 0);
            let decide = |delivery: &Delivery| {
                if !self.selects(topology, selection, delivery.into()) {
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
            Ok((drained, (unbound, hopeless)))
        })
        .map_err(|error| self.told(settings, topology, error))?;
        let fits = |message: &Foreign| self.selects(topology, selection, message.into());
        passed.aside.refuse(&mut passed.drained, fits);
        let (unbound, hopeless) = passed.value;
        Ok(Ok(ReplayReport { drained: passed.drained, unbound, hopeless }))
    }

    /// Discards selected messages, for good.
    ///
    /// # Errors
    /// If the broker cannot be asked, or looking is not safe.
    pub fn discard(
        &self,
        settings: &Settings,
        topology: &Topology,
        selection: &Selection,
        stop: &AtomicBool,
        mut progress: impl FnMut(Progress),
    ) -> Result<Drained, AdminError> {
        let queue = &self.queue(topology);
        let decide = |delivery: &Delivery| match self.selects(topology, selection, delivery.into()) {
            true => Decision::Discard,
            false => Decision::Keep,
        };
        let mut passed = past(settings, queue, u64::MAX, || {
            Ok((Drain::new(settings, queue).until(stop).run(decide, &mut progress)?, ()))
        })
        .map_err(|error| self.told(settings, topology, error))?;
        let fits = |message: &Foreign| self.selects(topology, selection, message.into());
        passed.aside.discard(&mut passed.drained, fits);
        Ok(passed.drained)
    }

    /// Counts what [`discard`](Self::discard) would discard, and changes nothing: the number of
    /// selected messages, and what was looked at.
    ///
    /// # Errors
    /// If the broker cannot be asked, or looking is not safe.
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
            let mut selected = 0;
            let decide = |delivery: &Delivery| {
                selected += u64::from(self.selects(topology, selection, delivery.into()));
                Decision::Keep
            };
            let drained = Drain::new(settings, queue).until(stop).run(decide, &mut progress)?;
            Ok((drained, selected))
        })
        .map_err(|error| self.told(settings, topology, error))?;
        passed.aside.keep(&mut passed.drained);
        let fitting = passed.aside.messages().filter(|message| {
            let message: &Foreign = message;
            self.selects(topology, selection, message.into())
        });
        Ok((passed.value + fitting.count() as u64, passed.drained))
    }

    fn selects(&self, topology: &Topology, selection: &Selection, seen: Seen<'_>) -> bool {
        selection.fits(&self.cause(topology, &seen), &seen)
    }
}
