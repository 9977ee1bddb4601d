//! Listing scheduled messages.

use std::{
    collections::{BTreeMap, HashSet},
    sync::atomic::AtomicBool,
};

use jiff::Timestamp;
use serde::Serialize;

use delayline_core::{
    codec::{AppKey, MessageId},
    message::{Handle, Headers, Properties},
    topology::Topology,
};
use delayline_settings::Settings;

use crate::{drain::Sample, error::AdminError, scheduled::recalled_keys};

use super::{JournalRead, ScheduleState, ScheduledMessage, entry::Entry, reader::Reading};

/// Which messages to list.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct ScheduleFilter {
    /// Those that are due at this time or later; from now on if `None`.
    pub due_after: Option<Timestamp>,
    /// Those that are due before this time.
    pub due_before: Option<Timestamp>,
    /// Those with this id, also if it was renewed.
    pub id: Option<MessageId>,
    /// Whether messages are left out that are known to be recalled.
    pub not_recalled: bool,
}

impl ScheduleFilter {
    /// Sets from when on.
    #[must_use]
    pub fn with_due_after(mut self, due_after: Option<Timestamp>) -> Self {
        self.due_after = due_after;
        self
    }

    /// Sets until when.
    #[must_use]
    pub fn with_due_before(mut self, due_before: Option<Timestamp>) -> Self {
        self.due_before = due_before;
        self
    }

    /// Sets the id.
    #[must_use]
    pub fn with_id(mut self, id: Option<MessageId>) -> Self {
        self.id = id;
        self
    }

    /// Leaves out those that are known to be recalled.
    #[must_use]
    pub fn not_recalled(mut self) -> Self {
        self.not_recalled = true;
        self
    }

    /// Whether the filter admits a message at this time.
    pub(super) fn admits(&self, entry: &Entry, now: Timestamp) -> bool {
        if self.id.as_ref().is_some_and(|id| !entry.key.id().is_some_and(|its| its.is_of(id))) {
            return false;
        }
        entry.latest() >= self.due_after.unwrap_or(now)
            && self.due_before.is_none_or(|before| entry.due < before)
    }
}

/// The schedule of an application, according to its journal.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct ScheduleList {
    /// The application.
    pub app: String,
    /// The first messages, by due time.
    pub messages: Vec<ScheduledMessage>,
    /// How many more there are; a copy counts as one.
    pub more: u64,
    /// How many of all of them are waiting.
    pub waiting: u64,
    /// How many were recalled.
    pub recalled: u64,
    /// How many messages may have been recalled too late; this is unknown here.
    pub uncertain: u64,
    /// The messages whose exact due time is unknown.
    pub estimated: Estimated,
    /// How far the journal was read.
    pub journal: JournalRead,
    /// The checks that were not possible, and why.
    pub unchecked: Vec<String>,
}

/// Messages without an own due time. Theirs follows from when the broker stored them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct Estimated {
    /// The number of messages.
    pub messages: u64,
    /// By how many seconds at most they may be due later than they are listed.
    pub seconds: u64,
}

impl Estimated {
    pub(super) fn add(&mut self, entry: &Entry) {
        if let Some(latest) = entry.latest {
            self.messages += 1;
            let later = latest.duration_since(entry.due).as_secs();
            self.seconds = self.seconds.max(u64::try_from(later).unwrap_or(0));
        }
    }
}

/// A message of the journal with its contents.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct FoundMessage {
    /// The scheduled message.
    #[serde(flatten)]
    pub message: ScheduledMessage,
    /// Its contents; a journal does not keep headers that are tables or arrays.
    #[serde(flatten)]
    pub sample: Sample,
    /// The checks that were not possible, such as whether it was recalled.
    pub unchecked: Vec<String>,
    /// Its body.
    #[serde(skip)]
    pub body: Vec<u8>,
    /// Its properties.
    #[serde(skip)]
    pub properties: Properties,
    /// Its headers.
    #[serde(skip)]
    pub headers: Headers,
    /// The handle of the message that waits in its place, if it was rescheduled.
    #[serde(skip)]
    pub rescheduled: Option<String>,
}

/// The earliest of any number of messages.
struct Earliest {
    limit: usize,
    /// By due time.
    kept: BTreeMap<(Timestamp, String), (Entry, u64)>,
    /// How many were not kept.
    more: u64,
}

impl Earliest {
    fn new(limit: usize) -> Self {
        Self { limit, kept: BTreeMap::new(), more: 0 }
    }

    fn add(&mut self, entry: Entry, number: u64) {
        let name = match entry.key.id() {
            Some(_) => entry.key.encode(),
            // Two messages without an id cannot be distinguished.
            None => format!("{}/{number}", entry.key.encode()),
        };
        let place = (entry.due, name);
        if let Some((_, copies)) = self.kept.get_mut(&place) {
            *copies += 1;
            return;
        }
        let full = self.kept.len() >= self.limit;
        if full && self.kept.last_key_value().is_none_or(|(last, _)| *last <= place) {
            self.more += 1;
            return;
        }
        self.kept.insert(place, (entry, 1));
        if full && let Some((_, (_, copies))) = self.kept.pop_last() {
            self.more += copies;
        }
    }
}

/// Lists an application's scheduled messages by due time, `limit` at most. Its memory does not depend on
/// the length of the journal. `progress` gets the number of read entries, and their total.
///
/// # Errors If there is no journal, or the broker refuses or is lost.
pub fn list_scheduled(
    settings: &Settings,
    topology: &Topology,
    app: &AppKey,
    filter: &ScheduleFilter,
    limit: usize,
    stop: &AtomicBool,
    progress: impl FnMut(u64, u64),
) -> Result<ScheduleList, AdminError> {
    let (recalls, unchecked) = recalls(settings, topology, app, "which of them were recalled")?;
    let now = Timestamp::now();
    let mut earliest = Earliest::new(limit);
    let mut counts = Counts::default();
    let mut number = 0;
    let journal = Reading { settings, topology, app, stop }.run(
        |entry, _| {
            number += 1;
            if filter.admits(&entry, now) {
                let state = entry.state(&recalls, now);
                if !(filter.not_recalled && state == ScheduleState::Recalled) {
                    counts.add(state);
                    counts.estimated.add(&entry);
                    earliest.add(entry, number);
                }
            }
        },
        progress,
    )?;
    let messages = earliest.kept.values().map(|(it, copies)| it.shown(it.state(&recalls, now), *copies));
    Ok(ScheduleList {
        app: app.to_string(),
        messages: messages.collect(),
        more: earliest.more,
        waiting: counts.waiting,
        recalled: counts.recalled,
        uncertain: counts.uncertain,
        estimated: counts.estimated,
        journal,
        unchecked,
    })
}

/// Finds a message, with `body_bytes` of its body to show. If there are copies, it is the copy that was
/// published last.
///
/// # Errors As [`list_scheduled`].
pub fn find_scheduled(
    settings: &Settings,
    topology: &Topology,
    handle: &Handle,
    body_bytes: usize,
    stop: &AtomicBool,
    progress: impl FnMut(u64, u64),
) -> Result<(Option<FoundMessage>, JournalRead), AdminError> {
    let app = handle.app();
    let (recalls, unchecked) = recalls(settings, topology, app, "whether it was recalled")?;
    let wanted = handle.routing_key().encode();
    let mut found: Option<FoundMessage> = None;
    let read = Reading { settings, topology, app, stop }.run(
        |entry, delivery| {
            if let Some(earlier) = &mut found
                && entry.replaces(handle)
            {
                earlier.rescheduled = entry.handle().map(|handle| handle.to_string());
            }
            if delivery.routing_key == wanted && entry.is_meant_by(handle) {
                let copies = match &found {
                    Some(earlier) if earlier.message.due == entry.due => earlier.message.copies + 1,
                    _ => 1,
                };
                found = Some(FoundMessage {
                    message: ScheduledMessage {
                        bytes: None,
                        ..entry.shown(entry.state(&recalls, Timestamp::now()), copies)
                    },
                    sample: Sample::new(delivery, body_bytes),
                    unchecked: unchecked.clone(),
                    body: delivery.body.clone(),
                    properties: delivery.properties.clone(),
                    headers: delivery.headers.clone(),
                    rescheduled: None,
                });
            }
        },
        progress,
    )?;
    Ok((found, read))
}

/// How many messages of a journal are still waiting.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct PendingCopies {
    /// The number of messages.
    pub messages: u64,
    /// When the last of them is due.
    pub until: Option<Timestamp>,
}

/// How many messages of an application's journal are not due yet. A missing journal has none.
pub fn pending_copies(
    settings: &Settings,
    topology: &Topology,
    app: &AppKey,
) -> Result<PendingCopies, AdminError> {
    let mut pending = PendingCopies::default();
    let now = Timestamp::now();
    Reading { settings, topology, app, stop: &AtomicBool::new(false) }.run(
        |entry, _| {
            if entry.latest() > now {
                pending.messages += 1;
                pending.until = pending.until.max(Some(entry.latest()));
            }
        },
        |_, _| {},
    )?;
    Ok(pending)
}

/// The recalled keys, and which parts of `what` could not be checked.
pub(super) fn recalls(
    settings: &Settings,
    topology: &Topology,
    app: &AppKey,
    what: &str,
) -> Result<(HashSet<String>, Vec<String>), AdminError> {
    Ok(match recalled_keys(settings, topology, app)? {
        Ok(keys) => (keys, Vec::new()),
        Err(reason) => (HashSet::new(), vec![format!("{what}: {reason}")]),
    })
}

#[derive(Default)]
struct Counts {
    waiting: u64,
    recalled: u64,
    uncertain: u64,
    estimated: Estimated,
}

impl Counts {
    fn add(&mut self, state: ScheduleState) {
        match state {
            ScheduleState::Waiting => self.waiting += 1,
            ScheduleState::Recalled => self.recalled += 1,
            ScheduleState::Uncertain => self.uncertain += 1,
            ScheduleState::Due => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduled::journal::entry::tests::entry;

    fn ids(earliest: &Earliest) -> Vec<(String, u64)> {
        let of = |(entry, copies): &(Entry, u64)| (entry.key.id().unwrap().to_string(), *copies);
        earliest.kept.values().map(of).collect()
    }

    #[test]
    fn the_limit_is_kept_and_the_earliest_stay() {
        let mut earliest = Earliest::new(2);
        for (number, (id, due)) in
            (0..).zip([("c", 30), ("d", 40), ("a", 10), ("c", 30), ("a", 10), ("b", 20), ("z", 90)])
        {
            earliest.add(entry(1, id, due), number);
        }
        assert_eq!(ids(&earliest), [("a".to_owned(), 2), ("b".to_owned(), 1)]);
        // One `d`, two `c` and the `z`.
        assert_eq!(earliest.more, 4);
        let mut none = Earliest::new(0);
        none.add(entry(1, "a", 1), 0);
        assert_eq!((none.kept.len(), none.more), (0, 1));
    }

    #[test]
    fn a_filter_admits_messages_due_from_now_on_unless_it_has_another_time() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let admits = |filter: &ScheduleFilter, due| filter.admits(&entry(1, "a", due), at(100));
        let any = ScheduleFilter::default();
        assert!(admits(&any, 100) && !admits(&any, 99));
        let unsure = Entry { latest: Some(at(105)), ..entry(1, "a", 95) };
        assert!(any.admits(&unsure, at(100)) && !any.admits(&unsure, at(106)));
        let between = any.clone().with_due_after(Some(at(10))).with_due_before(Some(at(20)));
        assert!(admits(&between, 10) && admits(&between, 19));
        assert!(!admits(&between, 9) && !admits(&between, 20));
        let by_id = |id: &str| ScheduleFilter::default().with_id(Some(id.parse().unwrap()));
        assert!(admits(&by_id("a"), 200) && !admits(&by_id("b"), 200));
    }
}
