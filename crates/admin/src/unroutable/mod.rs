//! Unroutable messages, which nobody was bound for or which are malformed: looking at them,
//! sending them on once somebody is bound, discarding them.

mod bound;
mod reason;

use std::{collections::BTreeMap, sync::atomic::AtomicBool};

use serde::Serialize;

use crate::holding::{Decision, Group, Holding, Outgoing, Progress, Sample, Sifted, count, past};
use delayline::{
    amqp::{Delivery, Session, v1::Foreign},
    codec::AppKey,
    topology::{Queue, Topology},
};
use delayline_settings::Settings;

use crate::{AdminError, doing, observe};

use bound::Bound;

pub use reason::{Diagnosis, Reason, diagnose};

/// The most groups that are kept apart: publishers can write anything into a key.
const GROUPS: usize = 500;

/// Which messages are selected; all conditions that are set must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selection {
    /// Those for this application.
    pub app: Option<AppKey>,
    /// Those with this reason.
    pub reason: Option<Reason>,
    /// Those with this message id.
    pub message_id: Option<String>,
}

impl Selection {
    /// Whether it selects every message.
    #[must_use]
    pub fn is_everything(&self) -> bool {
        *self == Self::default()
    }

    fn fits(&self, diagnosis: &Diagnosis, message_id: Option<&String>) -> bool {
        let app = self.app.as_ref().is_none_or(|app| diagnosis.app.as_deref() == Some(app.as_str()));
        let reason = self.reason.is_none_or(|reason| diagnosis.reason == reason);
        let id = self.message_id.is_none() || self.message_id.as_ref() == message_id;
        app && reason && id
    }
}

/// The unroutable messages, in groups.
#[derive(Debug, Clone, Serialize)]
pub struct UnroutableReport {
    /// Messages in the queue.
    pub waiting: u64,
    /// How many of them were examined; the first ones, if not all.
    pub examined: u64,
    /// The groups, by app key and reason.
    pub groups: Vec<UnroutableGroup>,
    /// Messages that found no group because there are too many.
    pub other: Option<Group>,
    /// What could not be seen.
    pub unseen: Vec<String>,
    /// How many the broker should have delivered but did not.
    pub withheld: u64,
    /// What ended the run early.
    pub failure: Option<String>,
}

/// The messages for one app with one reason.
#[derive(Debug, Clone, Serialize)]
pub struct UnroutableGroup {
    /// Which app they are for, and why they are here.
    #[serde(flatten)]
    pub diagnosis: Diagnosis,
    /// Whether somebody is bound for the app now; `None` if that cannot be known.
    pub bound: Option<bool>,
    /// How many, and since when.
    #[serde(flatten)]
    pub group: Group,
}

/// One message, and why it is here.
#[derive(Debug, Clone, Serialize)]
pub struct UnroutableMessage {
    /// Which app it is for, and why it is here.
    #[serde(flatten)]
    pub diagnosis: Diagnosis,
    /// The message.
    #[serde(flatten)]
    pub sample: Sample,
}

/// The result of a replay.
#[derive(Debug, Clone, Serialize)]
pub struct ReplayReport {
    /// What happened to the messages.
    #[serde(flatten)]
    pub sifted: Sifted,
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
         skip the check (--unchecked)"
    )]
    Unknown {
        /// The reason.
        reason: String,
    },
}

/// Why a message that AMQP 0-9-1 cannot carry is here.
fn diagnose_foreign(topology: &Topology, message: &Foreign) -> Diagnosis {
    diagnose(topology.names(), &message.exchange, &message.routing_key)
}

fn queue(topology: &Topology) -> &Queue {
    let name = topology.names().unroutable();
    topology.queues().find(|queue| queue.name == name).expect("every topology has it")
}

/// Who is bound, or why that cannot be known.
fn bound(settings: &Settings, topology: &Topology) -> Result<Result<Bound, String>, AdminError> {
    let observed = observe(settings.management.as_ref(), &settings.broker.vhost)?;
    Ok(observed.map(|observed| Bound::new(topology, &observed)))
}

/// Counts what is unroutable, by app key and reason, and changes nothing. Looks
/// at `limit` messages at most.
///
/// # Errors
/// If the broker cannot be asked, or looking would not be safe.
pub fn unroutable(
    settings: &Settings,
    topology: &Topology,
    limit: u64,
    progress: impl FnMut(Progress),
) -> Result<UnroutableReport, AdminError> {
    let bound = bound(settings, topology)?;
    let of = |delivery: &Delivery| diagnose(topology.names(), &delivery.exchange, &delivery.routing_key);
    let of_foreign = |message: &Foreign| diagnose_foreign(topology, message);
    let (sifted, census) = count((settings, queue(topology)), (limit, GROUPS), of, of_foreign, progress)?;
    let groups = census.groups().iter().map(|(diagnosis, group)| UnroutableGroup {
        bound: match (&bound, &diagnosis.app) {
            (Ok(bound), Some(app)) => Some(bound.has(app)),
            _ => None,
        },
        diagnosis: diagnosis.clone(),
        group: group.clone(),
    });
    let unseen = bound.as_ref().err().map(|reason| format!("who is bound now: {reason}"));
    Ok(UnroutableReport {
        waiting: sifted.waiting,
        examined: sifted.examined,
        groups: groups.collect(),
        other: census.other().cloned(),
        unseen: unseen.into_iter().collect(),
        withheld: sifted.withheld,
        failure: sifted.failure,
    })
}

/// Collects single messages, `count` at most, with `most` bytes of each body, and changes
/// nothing. Reads no further than it must.
///
/// # Errors
/// If the broker cannot be asked, or looking would not be safe.
pub fn unroutable_messages(
    settings: &Settings,
    topology: &Topology,
    selection: &Selection,
    (count, most): (usize, usize),
    mut show: impl FnMut(UnroutableMessage),
) -> Result<Sifted, AdminError> {
    // No more are taken out of the queue and sent to us than necessary.
    let limit = if selection.is_everything() { count as u64 } else { u64::MAX };
    let mut passed = past(settings, queue(topology), limit, || {
        let enough = AtomicBool::new(count == 0);
        let mut found = Vec::new();
        let sifted = Holding::new(settings, queue(topology)).at_most(limit).until(&enough).sift(
            |delivery| {
                let diagnosis = diagnose(topology.names(), &delivery.exchange, &delivery.routing_key);
                let fits = selection.fits(&diagnosis, delivery.properties.message_id.as_ref());
                if found.len() < count && fits {
                    found.push(UnroutableMessage { diagnosis, sample: Sample::new(delivery, most) });
                    enough.store(found.len() == count, std::sync::atomic::Ordering::Relaxed);
                }
                Decision::Keep
            },
            |_| {},
        )?;
        Ok((sifted, found))
    })?;
    passed.aside.keep(&mut passed.sifted);
    let foreign = passed.aside.messages().map(|message| (diagnose_foreign(topology, message), message));
    let foreign =
        foreign.filter(|(diagnosis, message)| selection.fits(diagnosis, message.message_id.as_ref()));
    let foreign = foreign.map(|(diagnosis, message)| UnroutableMessage {
        diagnosis,
        sample: Sample::of_foreign(message, most),
    });
    foreign.chain(passed.value).take(count).for_each(&mut show);
    Ok(passed.sifted)
}

/// Sends selected messages back on their way: to dispatch, with the routing key they came
/// with, once somebody is bound for them. Messages that no exchange would route stay, and so
/// do those that nobody is bound for yet.
///
/// `check` asks the management API who is bound; without that check, messages that nobody is
/// bound for come back to the end of the queue, once.
///
/// # Errors
/// If the broker cannot be asked, or looking would not be safe.
pub fn replay(
    settings: &Settings,
    topology: &Topology,
    selection: &Selection,
    check: bool,
    stop: &AtomicBool,
    mut progress: impl FnMut(Progress),
) -> Result<Result<ReplayReport, ReplayRefusal>, AdminError> {
    let bound = match check {
        false => None,
        true => match bound(settings, topology)? {
            Ok(bound) => Some(bound),
            Err(reason) => {
                // Without the broker's own count, this is all we know.
                Session::open(&settings.broker).map_err(doing("connecting"))?;
                return Ok(Err(ReplayRefusal::Unknown { reason }));
            }
        },
    };
    let stands = |app: &str| bound.as_ref().is_none_or(|bound| bound.has(app));
    if let Some(app) = &selection.app
        && !stands(app.as_str())
    {
        return Ok(Err(ReplayRefusal::NobodyBound { app: app.clone() }));
    }
    let names = topology.names();
    let mut passed = past(settings, queue(topology), u64::MAX, || {
        let (mut unbound, mut hopeless) = (BTreeMap::new(), 0);
        let sifted = Holding::new(settings, queue(topology)).until(stop).sift(
            |delivery| {
                let diagnosis = diagnose(names, &delivery.exchange, &delivery.routing_key);
                if !selection.fits(&diagnosis, delivery.properties.message_id.as_ref()) {
                    return Decision::Keep;
                }
                let (Some(exchange), Some(app)) =
                    (diagnosis.way_on(names, &delivery.exchange), &diagnosis.app)
                else {
                    hopeless += 1;
                    return Decision::Keep;
                };
                if diagnosis.reason == Reason::NobodyBound && !stands(app) {
                    *unbound.entry(app.clone()).or_insert(0) += 1;
                    return Decision::Keep;
                }
                Decision::Send(Outgoing::of(delivery, exchange, delivery.routing_key.as_str()).into())
            },
            &mut progress,
        )?;
        Ok((sifted, (unbound, hopeless)))
    })?;
    passed.aside.refuse(&mut passed.sifted, |message| {
        selection.fits(&diagnose_foreign(topology, message), message.message_id.as_ref())
    });
    let (unbound, hopeless) = passed.value;
    Ok(Ok(ReplayReport { sifted: passed.sifted, unbound, hopeless }))
}

/// Discards selected messages, for good.
///
/// # Errors
/// If the broker cannot be asked, or looking would not be safe.
pub fn purge(
    settings: &Settings,
    topology: &Topology,
    selection: &Selection,
    stop: &AtomicBool,
    mut progress: impl FnMut(Progress),
) -> Result<Sifted, AdminError> {
    let mut passed = past(settings, queue(topology), u64::MAX, || {
        let sifted = Holding::new(settings, queue(topology)).until(stop).sift(
            |delivery| {
                let diagnosis = diagnose(topology.names(), &delivery.exchange, &delivery.routing_key);
                match selection.fits(&diagnosis, delivery.properties.message_id.as_ref()) {
                    true => Decision::Discard,
                    false => Decision::Keep,
                }
            },
            &mut progress,
        )?;
        Ok((sifted, ()))
    })?;
    passed.aside.discard(&mut passed.sifted, |message| {
        selection.fits(&diagnose_foreign(topology, message), message.message_id.as_ref())
    });
    Ok(passed.sifted)
}
