//! A message in its journal: pure.

use std::{collections::HashSet, fmt, time::Duration};

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use delayline_amqp::Delivery;
use delayline_client::recall::MARGIN;
use delayline_core::{
    codec::{AppKey, RoutingKey},
    message::{Handle, Value, headers},
};

use super::timeline::SKEW;

/// A message that was published for an application, according to the journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    /// The routing key it was published with.
    pub(super) key: RoutingKey,
    /// When it is due, at the earliest.
    pub(super) due: Timestamp,
    /// When it is due at the latest, if its due time follows from when the broker stored it.
    pub(super) latest: Option<Timestamp>,
    /// Which retry it is; 0 if it is none.
    pub(super) attempt: u32,
    /// The size of its body.
    pub(super) bytes: usize,
    /// Its place in the stream.
    pub(super) place: u64,
}

/// The state of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum ScheduleState {
    /// It is delivered when it is due.
    Waiting,
    /// It was recalled, and will not be delivered.
    Recalled,
    /// It is unknown here whether it was due, or whether its recall was in time.
    Uncertain,
    /// It was due, and was not recalled.
    Due,
}

impl ScheduleState {
    /// The name of the state.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Recalled => "recalled",
            Self::Uncertain => "uncertain",
            Self::Due => "due",
        }
    }
}

impl fmt::Display for ScheduleState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A message of a schedule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct ScheduledMessage {
    /// When it is due, at the earliest.
    pub due: Timestamp,
    /// When it is due at the latest; `None` if `due` is its exact due time.
    pub due_latest: Option<Timestamp>,
    /// Its state.
    pub state: ScheduleState,
    /// Its id; `None` if it has none and so cannot be recalled.
    pub id: Option<String>,
    /// The handle to recall it with; its routing key if it has no id.
    pub handle: String,
    /// Which retry it is; 0 if it is none.
    pub attempt: u32,
    /// The size of its body; left out beside its contents.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<usize>,
    /// How often it was published under this handle for this time: more than once if a confirm was lost, or
    /// if its publisher used an id twice.
    pub copies: u64,
    /// The offset of its last copy in the journal.
    pub place: u64,
}

/// A delivered copy, before its due time is known.
pub(super) struct Copy {
    entry: Entry,
    /// Its delay.
    delay: SignedDuration,
    /// Its own due time.
    claimed: Option<Timestamp>,
    /// When it was created, in seconds since the epoch.
    created: Option<i64>,
}

impl Copy {
    /// The copy at a place; `None` if it is no delayed message of the application.
    pub(super) fn of(delivery: &Delivery, place: u64, app: &AppKey, unit: Duration) -> Option<Self> {
        let key: RoutingKey = delivery.routing_key.parse().ok()?;
        if key.app != *app {
            return None;
        }
        let number = |name: &str| delivery.headers.get(name).and_then(Value::as_i64);
        let claimed = number(headers::DUE).and_then(|due| Timestamp::from_millisecond(due).ok());
        let attempt = number(headers::ATTEMPT).and_then(|attempt| u32::try_from(attempt).ok()).unwrap_or(0);
        let created = delivery.properties.timestamp.and_then(|second| i64::try_from(second).ok());
        let delay = SignedDuration::try_from(key.delay.duration(unit)).ok()?;
        let bytes = delivery.body.len();
        let entry = Entry { key, due: Timestamp::MIN, latest: None, attempt, bytes, place };
        Some(Self { entry, delay, claimed, created })
    }

    /// When it was published if its own due time is right, in seconds since the epoch.
    pub(super) fn claimed_publishing(&self) -> Option<i64> {
        Some(self.claimed?.checked_sub(self.delay).ok()?.as_second())
    }

    /// With its own due time.
    pub(super) fn at_its_own_time(self) -> Entry {
        Entry { due: self.claimed.unwrap_or(Timestamp::MAX), ..self.entry }
    }

    /// By the times between which it was published, in seconds since the epoch. They count more than its own
    /// due time, which can be that of another message.
    pub(super) fn dated(self, (from, to): (i64, i64)) -> Entry {
        let fits = |published: i64| published >= from - SKEW && published <= to + SKEW;
        if self.claimed_publishing().is_some_and(fits) {
            return self.at_its_own_time();
        }
        // It was not published before it was created.
        let from = self.created.filter(|created| (from..to).contains(created)).unwrap_or(from);
        let due = |second: i64| {
            let published = Timestamp::from_second(second).unwrap_or(Timestamp::MAX);
            published.saturating_add(self.delay).unwrap_or(Timestamp::MAX)
        };
        Entry { due: due(from), latest: Some(due(to)), ..self.entry }
    }
}

impl Entry {
    /// When it is due, at the latest.
    pub(super) fn latest(&self) -> Timestamp {
        self.latest.unwrap_or(self.due)
    }

    /// Its state at this time, by the keys that recalls are bound for.
    pub(super) fn state(&self, recalls: &HashSet<String>, now: Timestamp) -> ScheduleState {
        let recalled = self.key.id().is_some() && recalls.contains(&self.key.encode());
        let margin = SignedDuration::try_from(MARGIN).unwrap_or_default();
        match recalled {
            true if self.due.duration_since(now) < margin => ScheduleState::Uncertain,
            true => ScheduleState::Recalled,
            false if self.latest() <= now => ScheduleState::Due,
            false if self.due <= now => ScheduleState::Uncertain,
            false => ScheduleState::Waiting,
        }
    }

    /// Whether it was published in the place of this message, or of a message that was.
    pub(super) fn replaces(&self, old: &Handle) -> bool {
        self.attempt == 0 && self.key.id().is_some_and(|id| id.renews(old.id()))
    }

    /// Whether this handle can mean it.
    pub(super) fn is_meant_by(&self, handle: &Handle) -> bool {
        is_meant(self.due, self.latest, handle)
    }

    /// The handle to recall it with, if it has an id, with its due time if that is exact.
    pub(super) fn handle(&self) -> Option<Handle> {
        Handle::new(self.key.clone(), Some(self.due).filter(|_| self.latest.is_none())).ok()
    }

    pub(super) fn shown(&self, state: ScheduleState, copies: u64) -> ScheduledMessage {
        let handle = self.handle();
        ScheduledMessage {
            due: self.due,
            due_latest: self.latest,
            state,
            id: handle.as_ref().map(|handle| handle.id().to_string()),
            handle: handle.map_or_else(|| self.key.encode(), |handle| handle.to_string()),
            attempt: self.attempt,
            bytes: Some(self.bytes),
            copies,
            place: self.place,
        }
    }
}

fn is_meant(due: Timestamp, latest: Option<Timestamp>, handle: &Handle) -> bool {
    let Some(latest) = latest else { return handle.may_be_due_at(due) };
    handle.due().is_none_or(|given| given >= due && given <= latest) || handle.may_be_due_at(due)
}

impl ScheduledMessage {
    /// Whether this is its routing key.
    pub(super) fn has_key(&self, key: &str) -> bool {
        self.handle.strip_prefix(key).is_some_and(|due| due.is_empty() || due.starts_with('@'))
    }

    /// Whether this handle can mean it.
    #[must_use]
    pub fn is_meant_by(&self, handle: &Handle) -> bool {
        let Ok(its) = self.handle.parse::<Handle>() else { return false };
        its.routing_key() == handle.routing_key() && is_meant(self.due, self.due_latest, handle)
    }

    /// The handle to recall it with, if it has an id. If its exact due time is unknown but ahead, the
    /// earliest counts: a recall that is in time for that is in time.
    #[must_use]
    pub fn recallable(&self, now: Timestamp) -> Option<Handle> {
        let handle: Handle = self.handle.parse().ok()?;
        Some(if self.due > now { handle.with_due(self.due) } else { handle })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn entry(seconds: u32, id: &str, due: i64) -> Entry {
        let key = format!("delay.0000.0000.0000.0000.0000.0000.{seconds:04b}.billing.~.{id}");
        let due = Timestamp::from_second(due).unwrap();
        Entry { key: key.parse().unwrap(), due, latest: None, attempt: 0, bytes: 1, place: 0 }
    }

    #[test]
    fn a_message_that_may_have_been_delivered_is_never_recalled() {
        let at = |now| Timestamp::from_second(now).unwrap();
        let bound: HashSet<String> = [entry(9, "a", 0).key.encode()].into();
        let state = |id: &str, now| entry(9, id, 100).state(&bound, at(now));
        assert_eq!(state("a", 97), ScheduleState::Recalled);
        assert_eq!(state("a", 99), ScheduleState::Uncertain);
        assert_eq!(state("a", 200), ScheduleState::Uncertain);
        assert_eq!(state("b", 99), ScheduleState::Waiting);
        assert_eq!(state("b", 100), ScheduleState::Due);
        let between = |now| Entry { latest: Some(at(150)), ..entry(9, "b", 100) }.state(&bound, at(now));
        assert_eq!(between(99), ScheduleState::Waiting);
        assert_eq!((between(100), between(149)), (ScheduleState::Uncertain, ScheduleState::Uncertain));
        assert_eq!(between(150), ScheduleState::Due);
    }

    #[test]
    fn is_shown_with_its_handle() {
        let shown = entry(9, "a", 100).shown(ScheduleState::Waiting, 2);
        assert_eq!(shown.handle, "delay.0000.0000.0000.0000.0000.0000.1001.billing.~.a@100000");
        assert_eq!((shown.id.as_deref(), shown.copies), (Some("a"), 2));
        let plain = Entry {
            key: "delay.0000.0000.0000.0000.0000.0000.1001.billing".parse().unwrap(),
            ..entry(9, "a", 100)
        };
        let shown = plain.shown(ScheduleState::Waiting, 1);
        assert_eq!((shown.id, shown.handle), (None, plain.key.encode()));
    }

    #[test]
    fn the_brokers_time_counts_more_than_a_due_time_that_does_not_fit() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let copy = |claimed: Option<i64>, created| Copy {
            entry: entry(9, "a", 0),
            delay: SignedDuration::from_secs(9),
            claimed: claimed.map(at),
            created,
        };
        let dated = |claimed, created| {
            let entry = copy(claimed, created).dated((1_000, 1_300));
            (entry.due.as_second(), entry.latest.map(Timestamp::as_second))
        };
        assert_eq!(dated(None, None), (1_009, Some(1_309)));
        assert_eq!(dated(None, Some(1_200)), (1_209, Some(1_309)));
        assert_eq!(dated(None, Some(900)), (1_009, Some(1_309)));
        assert_eq!(dated(Some(1_100), None), (1_100, None));
        // Clocks differ.
        assert_eq!(dated(Some(1_009 - SKEW), None), (1_009 - SKEW, None));
        // It is that of another message.
        assert_eq!(dated(Some(2_000), None), (1_009, Some(1_309)));
        assert_eq!(dated(Some(100), None), (1_009, Some(1_309)));
    }

    #[test]
    fn a_recall_that_is_in_time_for_the_earliest_due_time_is_in_time() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let unsure = Entry { latest: Some(at(150)), ..entry(9, "a", 100) };
        let shown = unsure.shown(ScheduleState::Waiting, 1);
        assert!(!shown.handle.contains('@') && shown.recallable(at(100)).unwrap().due().is_none());
        let handle = shown.recallable(at(99)).unwrap();
        assert_eq!(handle.due(), Some(at(100)));
        assert!(unsure.is_meant_by(&handle) && unsure.is_meant_by(&handle.clone().with_due(at(150))));
        assert!(!unsure.is_meant_by(&handle.with_due(at(152))));
    }
}
