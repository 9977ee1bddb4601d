//! Parked messages: looking at them, replaying them, discarding them.

use std::sync::atomic::AtomicBool;

use jiff::Timestamp;
use serde::Serialize;

use crate::holding::{Decision, Group, Holding, Outgoing, Progress, Sample, Sifted, arrived, count, past};
use delayline::{
    amqp::{Delivery, v1::Foreign},
    codec::{AppKey, Delay, RoutingKey},
    message::{Value, headers},
    topology::{Queue, Topology},
};
use delayline_settings::Settings;

use crate::AdminError;

/// The most groups that are kept apart: applications may make up reasons of their own.
const GROUPS: usize = 500;

/// The reason for a message that the service could not read, and that the broker moved here
/// as it was.
const UNREADABLE: &str = "unreadable";

/// Which messages are selected; all conditions that are set must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ParkedSelection {
    /// Those of this application.
    pub app: Option<AppKey>,
    /// Those parked for this reason, or whose last failure was this.
    pub reason: Option<String>,
    /// Those with this message id.
    pub message_id: Option<String>,
    /// Those that were parked before this time; a message that does not say when does not
    /// match.
    pub before: Option<Timestamp>,
}

/// Whose message it is, and why it was parked.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct ParkedCause {
    /// The application; `None` if the routing key is no app key.
    pub app: Option<String>,
    /// Why it was parked: `attempts`, `age`, `expired`, `gave-up`, `unreadable`.
    pub reason: String,
    /// Why it failed last, as far as that is known.
    pub failure: Option<String>,
}

/// The parked messages, in groups.
#[derive(Debug, Clone, Serialize)]
pub struct ParkedReport {
    /// Messages in the queue.
    pub waiting: u64,
    /// How many of them were examined; the first ones, if not all.
    pub examined: u64,
    /// The groups, by app, reason and last failure.
    pub groups: Vec<ParkedGroup>,
    /// Messages that found no group because there are too many.
    pub other: Option<Group>,
    /// How many the broker should have delivered but did not.
    pub withheld: u64,
    /// What ended the run early.
    pub failure: Option<String>,
}

/// The messages of one app with one reason.
#[derive(Debug, Clone, Serialize)]
pub struct ParkedGroup {
    /// Whose they are, and why they were parked.
    #[serde(flatten)]
    pub cause: ParkedCause,
    /// How many, and since when.
    #[serde(flatten)]
    pub group: Group,
}

/// One message, and why it was parked.
#[derive(Debug, Clone, Serialize)]
pub struct ParkedMessage {
    /// Whose it is, and why it was parked.
    #[serde(flatten)]
    pub cause: ParkedCause,
    /// The message.
    #[serde(flatten)]
    pub sample: Sample,
}

impl ParkedSelection {
    /// Whether it selects every message.
    #[must_use]
    pub fn is_everything(&self) -> bool {
        *self == Self::default()
    }

    fn fits(&self, delivery: &Delivery) -> bool {
        let cause = ParkedCause::of(delivery);
        let age = self.before.is_none_or(|before| arrived(delivery).is_some_and(|time| time < before));
        age && self.fits_cause(&cause, delivery.properties.message_id.as_ref())
    }

    fn fits_foreign(&self, message: &Foreign) -> bool {
        self.before.is_none()
            && self.fits_cause(&ParkedCause::of_foreign(message), message.message_id.as_ref())
    }

    fn fits_cause(&self, cause: &ParkedCause, message_id: Option<&String>) -> bool {
        let app = self.app.as_ref().is_none_or(|app| cause.app.as_deref() == Some(app.as_str()));
        let reason = self.reason.as_ref().is_none_or(|reason| {
            *reason == cause.reason || cause.failure.as_ref().is_some_and(|failure| failure == reason)
        });
        let id = self.message_id.is_none() || self.message_id.as_ref() == message_id;
        app && reason && id
    }
}

impl ParkedCause {
    fn of(delivery: &Delivery) -> Self {
        let text = |name: &str| match delivery.headers.get(name) {
            Some(Value::Text(text)) => Some(text.clone()),
            _ => None,
        };
        Self {
            app: app(&delivery.routing_key).map(|app| app.to_string()),
            reason: text(headers::REASON).unwrap_or_else(|| UNREADABLE.into()),
            failure: text(headers::FAILURE),
        }
    }

    fn of_foreign(message: &Foreign) -> Self {
        let app = app(&message.routing_key).map(|app| app.to_string());
        Self { app, reason: UNREADABLE.into(), failure: None }
    }
}

/// Messages are parked under their app key; those that the broker moved may have a delayed
/// key.
fn app(key: &str) -> Option<AppKey> {
    key.parse::<RoutingKey>().map(|key| key.app).ok().or_else(|| AppKey::new(key).ok())
}

fn queue(topology: &Topology) -> &Queue {
    let name = topology.names().parked();
    topology.queues().find(|queue| queue.name == name).expect("every topology has it")
}

/// Counts what is parked, by app and reason, and changes nothing. Looks at `limit`
/// messages at most.
///
/// # Errors
/// If the broker cannot be asked, or looking is not safe.
pub fn parked(
    settings: &Settings,
    topology: &Topology,
    limit: u64,
    progress: impl FnMut(Progress),
) -> Result<ParkedReport, AdminError> {
    let kept = (settings, queue(topology));
    let (sifted, census) = count(kept, (limit, GROUPS), ParkedCause::of, ParkedCause::of_foreign, progress)?;
    let groups = census
        .groups()
        .iter()
        .map(|(cause, group)| ParkedGroup { cause: cause.clone(), group: group.clone() })
        .collect();
    Ok(ParkedReport {
        waiting: sifted.waiting,
        examined: sifted.examined,
        groups,
        other: census.other().cloned(),
        withheld: sifted.withheld,
        failure: sifted.failure,
    })
}

/// Hands `count` selected messages to `each`, with `body_bytes` of their bodies,
/// and changes nothing.
///
/// # Errors
/// If the broker cannot be asked, or looking is not safe.
pub fn parked_messages(
    settings: &Settings,
    topology: &Topology,
    selection: &ParkedSelection,
    (count, body_bytes): (usize, usize),
    mut each: impl FnMut(ParkedMessage),
) -> Result<Sifted, AdminError> {
    // No more are taken out of the queue and sent to us than necessary.
    let limit = if selection.is_everything() { count as u64 } else { u64::MAX };
    let mut passed = past(settings, queue(topology), limit, || {
        let stop = AtomicBool::new(count == 0);
        let mut found = Vec::new();
        let sifted = Holding::new(settings, queue(topology)).at_most(limit).until(&stop).sift(
            |delivery| {
                if found.len() < count && selection.fits(delivery) {
                    found.push(ParkedMessage {
                        cause: ParkedCause::of(delivery),
                        sample: Sample::new(delivery, body_bytes),
                    });
                    stop.store(found.len() == count, std::sync::atomic::Ordering::Relaxed);
                }
                Decision::Keep
            },
            |_| {},
        )?;
        Ok((sifted, found))
    })?;
    passed.aside.keep(&mut passed.sifted);
    let foreign = passed.aside.messages().filter(|message| selection.fits_foreign(message));
    let foreign = foreign.map(|message| ParkedMessage {
        cause: ParkedCause::of_foreign(message),
        sample: Sample::of_foreign(message, body_bytes),
    });
    foreign.chain(passed.value).take(count).for_each(&mut each);
    Ok(passed.sifted)
}

/// Sends selected messages to their applications at once, with the full number of attempts
/// before them again. Each is removed only after the broker has confirmed its copy.
///
/// # Errors
/// If the broker cannot be asked, or looking is not safe.
pub fn replay_parked(
    settings: &Settings,
    topology: &Topology,
    selection: &ParkedSelection,
    stop: &AtomicBool,
    mut progress: impl FnMut(Progress),
) -> Result<Sifted, AdminError> {
    let entry = topology.names().entry();
    let now = Timestamp::now().as_millisecond();
    let decide = |delivery: &Delivery| match app(&delivery.routing_key) {
        Some(app) if selection.fits(delivery) => {
            let key = RoutingKey::new(Delay::ZERO, app).encode();
            let mut outgoing = Outgoing::of(delivery, entry.as_str(), key);
            for name in [
                headers::ATTEMPT,
                headers::FIRST_FAILED,
                headers::LAST_FAILED,
                headers::FAILURE,
                headers::REASON,
                headers::DUE,
            ] {
                outgoing.headers.remove(name);
            }
            // Whoever replays an expired message wants it delivered all the same.
            if outgoing.headers.get(headers::EXPIRES).and_then(Value::as_i64).is_some_and(|time| time <= now)
            {
                outgoing.headers.remove(headers::EXPIRES);
            }
            Decision::Send(outgoing.into())
        }
        _ => Decision::Keep,
    };
    let mut passed = past(settings, queue(topology), u64::MAX, || {
        Ok((Holding::new(settings, queue(topology)).until(stop).sift(decide, &mut progress)?, ()))
    })?;
    passed.aside.refuse(&mut passed.sifted, |message| selection.fits_foreign(message));
    Ok(passed.sifted)
}

/// Discards selected messages, for good.
///
/// # Errors
/// If the broker cannot be asked, or looking is not safe.
pub fn discard_parked(
    settings: &Settings,
    topology: &Topology,
    selection: &ParkedSelection,
    stop: &AtomicBool,
    mut progress: impl FnMut(Progress),
) -> Result<Sifted, AdminError> {
    let decide = |delivery: &Delivery| match selection.fits(delivery) {
        true => Decision::Discard,
        false => Decision::Keep,
    };
    let mut passed = past(settings, queue(topology), u64::MAX, || {
        Ok((Holding::new(settings, queue(topology)).until(stop).sift(decide, &mut progress)?, ()))
    })?;
    passed.aside.discard(&mut passed.sifted, |message| selection.fits_foreign(message));
    Ok(passed.sifted)
}
