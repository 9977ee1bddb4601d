//! A message in its journal: pure.

use std::{collections::HashSet, fmt};

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

use delayline_amqp::Delivery;
use delayline_client::recall::MARGIN;
use delayline_core::{
    codec::{AppKey, RoutingKey},
    message::{Handle, headers},
};

/// A message that was published for an application, according to the journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    /// The routing key it was published with.
    pub(super) key: RoutingKey,
    /// When it is due, if its publisher set that.
    pub(super) due: Option<Timestamp>,
    /// Which retry it is; 0 if it is none.
    pub(super) attempt: u32,
    /// The size of its body.
    pub(super) bytes: usize,
}

/// The state of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum ScheduleState {
    /// It is delivered when it is due.
    Waiting,
    /// It was recalled, and will not be delivered.
    Recalled,
    /// It was recalled, but it was due by now, or so soon that it is unknown here whether the recall was in
    /// time.
    Uncertain,
    /// It was due, and was not recalled.
    Due,
    /// Its due time is unknown.
    Undated,
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
            Self::Undated => "undated",
        }
    }
}

impl fmt::Display for ScheduleState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A message of a schedule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct ScheduledMessage {
    /// When it is due, if its publisher set that.
    pub due: Option<Timestamp>,
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
}

impl Entry {
    /// The entry of a delivered copy; `None` if it is no delayed message of the application.
    pub(super) fn of(delivery: &Delivery, app: &AppKey) -> Option<Self> {
        let key: RoutingKey = delivery.routing_key.parse().ok()?;
        if key.app != *app {
            return None;
        }
        let number = |name: &str| delivery.headers.get(name).and_then(delayline_core::message::Value::as_i64);
        let due = number(headers::DUE).and_then(|due| Timestamp::from_millisecond(due).ok());
        let attempt = number(headers::ATTEMPT).and_then(|attempt| u32::try_from(attempt).ok()).unwrap_or(0);
        Some(Self { key, due, attempt, bytes: delivery.body.len() })
    }

    /// Its state at this time, by the keys that recalls are bound for.
    pub(super) fn state(&self, recalls: &HashSet<String>, now: Timestamp) -> ScheduleState {
        let recalled = self.key.id().is_some() && recalls.contains(&self.key.encode());
        let margin = SignedDuration::try_from(MARGIN).unwrap_or_default();
        match self.due {
            None if recalled => ScheduleState::Uncertain,
            None => ScheduleState::Undated,
            Some(due) if recalled && due.duration_since(now) < margin => ScheduleState::Uncertain,
            Some(_) if recalled => ScheduleState::Recalled,
            Some(due) if due <= now => ScheduleState::Due,
            Some(_) => ScheduleState::Waiting,
        }
    }

    /// Whether it was published in the place of this message, or of a message that was.
    pub(super) fn replaces(&self, old: &Handle) -> bool {
        self.attempt == 0 && self.key.id().is_some_and(|id| id.renews(old.id()))
    }

    /// The handle to recall it with, if it has an id.
    pub(super) fn handle(&self) -> Option<Handle> {
        Handle::new(self.key.clone(), self.due).ok()
    }

    pub(super) fn shown(&self, state: ScheduleState, copies: u64) -> ScheduledMessage {
        let handle = self.handle();
        ScheduledMessage {
            due: self.due,
            state,
            id: handle.as_ref().map(|handle| handle.id().to_string()),
            handle: handle.map_or_else(|| self.key.encode(), |handle| handle.to_string()),
            attempt: self.attempt,
            bytes: Some(self.bytes),
            copies,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn entry(seconds: u32, id: &str, due: Option<i64>) -> Entry {
        let key = format!("delay.0000.0000.0000.0000.0000.0000.{seconds:04b}.billing.~.{id}");
        let due = due.map(|due| Timestamp::from_second(due).unwrap());
        Entry { key: key.parse().unwrap(), due, attempt: 0, bytes: 1 }
    }

    #[test]
    fn a_message_that_may_have_been_delivered_is_never_recalled() {
        let at = |now| Timestamp::from_second(now).unwrap();
        let bound: HashSet<String> = [entry(9, "a", None).key.encode()].into();
        let state = |id: &str, due, now| entry(9, id, due).state(&bound, at(now));
        assert_eq!(state("a", Some(100), 97), ScheduleState::Recalled);
        assert_eq!(state("a", Some(100), 99), ScheduleState::Uncertain);
        assert_eq!(state("a", Some(100), 200), ScheduleState::Uncertain);
        assert_eq!(state("a", None, 0), ScheduleState::Uncertain);
        assert_eq!(state("b", Some(100), 99), ScheduleState::Waiting);
        assert_eq!(state("b", Some(100), 100), ScheduleState::Due);
        assert_eq!(state("b", None, 0), ScheduleState::Undated);
    }

    #[test]
    fn is_shown_with_its_handle() {
        let shown = entry(9, "a", Some(100)).shown(ScheduleState::Waiting, 2);
        assert_eq!(shown.handle, "delay.0000.0000.0000.0000.0000.0000.1001.billing.~.a@100000");
        assert_eq!((shown.id.as_deref(), shown.copies), (Some("a"), 2));
        let plain = Entry {
            key: "delay.0000.0000.0000.0000.0000.0000.1001.billing".parse().unwrap(),
            ..entry(9, "a", Some(100))
        };
        let shown = plain.shown(ScheduleState::Waiting, 1);
        assert_eq!((shown.id, shown.handle), (None, plain.key.encode()));
    }
}
