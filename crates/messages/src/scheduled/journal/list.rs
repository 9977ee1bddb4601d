//! Listing scheduled messages.

use std::{
    collections::{BTreeMap, HashSet},
    ops::Range,
    sync::atomic::AtomicBool,
};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use delayline_amqp::Delivery;
use delayline_core::{
    codec::AppKey,
    message::{Handle, Headers, Properties},
    topology::Topology,
};
use delayline_settings::Settings;

use crate::{drain::Sample, drain::recorded, error::AdminError, scheduled::recalled_keys};

use super::{JournalRead, ScheduleFilter, ScheduleState, ScheduledMessage, entry::Entry, reader::Reading};

/// The schedule of an application, according to its journal.
#[derive(Debug, Clone, Serialize, Deserialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct ScheduleList {
    /// The application.
    pub app: String,
    /// The requested messages, by due time.
    pub messages: Vec<ScheduledMessage>,
    /// How many more there are behind them; a copy counts as one.
    pub more: u64,
    /// How many of all of them are waiting.
    pub waiting: u64,
    /// How many were recalled.
    pub recalled: u64,
    /// How many messages may have been recalled too late; this is unknown here.
    pub uncertain: u64,
    /// How many were due, and not recalled.
    pub due: u64,
    /// The messages whose exact due time is unknown.
    pub estimated: Estimated,
    /// How far the journal was read.
    pub journal: JournalRead,
    /// The checks that were not possible, and why.
    pub unchecked: Vec<String>,
}

/// Messages without an own due time. Theirs follows from when the broker stored them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct Estimated {
    /// The number of messages.
    pub messages: u64,
    /// By how many seconds at most they may be due later than they are listed.
    pub seconds: u64,
}

impl Estimated {
    pub(super) fn add(&mut self, entry: &Entry, copies: u64) {
        if let Some(latest) = entry.latest {
            self.messages += copies;
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

impl FoundMessage {
    fn new(message: ScheduledMessage, delivery: &Delivery, body_bytes: usize, unchecked: &[String]) -> Self {
        Self {
            message: ScheduledMessage { bytes: None, ..message },
            // A journal gets its copy before the message is due.
            sample: Sample { arrived: recorded(delivery), ..Sample::new(delivery, body_bytes) },
            unchecked: unchecked.to_vec(),
            body: delivery.body.clone(),
            properties: delivery.properties.clone(),
            headers: delivery.headers.clone(),
            rescheduled: None,
        }
    }
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

    fn add(&mut self, entry: Entry, copies: u64, number: u64) {
        let name = match entry.key.id() {
            Some(_) => entry.key.encode(),
            // Two messages without an id cannot be distinguished.
            None => format!("{}/{number}", entry.key.encode()),
        };
        let place = (entry.due, name);
        if let Some((last, all)) = self.kept.get_mut(&place) {
            *all += copies;
            last.place = entry.place;
            return;
        }
        let full = self.kept.len() >= self.limit;
        if full && self.kept.last_key_value().is_none_or(|(last, _)| *last <= place) {
            self.more += copies;
            return;
        }
        self.kept.insert(place, (entry, copies));
        if full && let Some((_, (_, copies))) = self.kept.pop_last() {
            self.more += copies;
        }
    }
}

/// A list in the making.
pub(super) struct Listing {
    range: Range<usize>,
    earliest: Earliest,
    counts: Counts,
    number: u64,
}

impl Listing {
    /// For this part of the messages.
    pub(super) fn new(range: Range<usize>) -> Self {
        Self { earliest: Earliest::new(range.end), range, counts: Counts::default(), number: 0 }
    }

    pub(super) fn add(&mut self, entry: Entry, copies: u64, state: ScheduleState) {
        self.number += 1;
        self.counts.add(state, copies);
        self.counts.estimated.add(&entry, copies);
        self.earliest.add(entry, copies, self.number);
    }

    /// The list of an application.
    pub(super) fn finish(
        self,
        app: &AppKey,
        (recalls, now): (&HashSet<String>, Timestamp),
        journal: JournalRead,
        unchecked: Vec<String>,
    ) -> ScheduleList {
        let kept = self.earliest.kept.values().skip(self.range.start);
        let messages = kept.map(|(it, copies)| it.shown(it.state(recalls, now), *copies)).collect();
        self.counts.list(app, (messages, self.earliest.more), journal, unchecked)
    }
}

/// Lists an application's scheduled messages by due time: the part `range` of those that the filter admits.
/// Its memory depends on the end of the range, not on the length of the journal. `progress` gets the number
/// of read entries, and their total.
///
/// # Errors If there is no journal, or the broker refuses or is lost.
pub fn list_scheduled(
    settings: &Settings,
    topology: &Topology,
    app: &AppKey,
    filter: &ScheduleFilter,
    range: Range<usize>,
    stop: &AtomicBool,
    progress: impl FnMut(u64, u64),
) -> Result<ScheduleList, AdminError> {
    let (recalls, unchecked) = recalls(settings, topology, app, "which of them were recalled")?;
    let now = Timestamp::now();
    let mut listing = Listing::new(range);
    let mut unreadable = 0;
    let journal = Reading { settings, topology, app, stop }.run(
        |entry, delivery| {
            let headers = (!delivery.damaged).then_some(&delivery.headers);
            let admitted = filter.admits(&entry, headers, now);
            unreadable += u64::from(admitted.is_none());
            if admitted == Some(true) {
                let state = entry.state(&recalls, now);
                let wanted = match filter.recalled {
                    Some(true) => !unchecked.is_empty() || recalls.contains(&delivery.routing_key),
                    Some(false) => state != ScheduleState::Recalled,
                    None => true,
                };
                if wanted {
                    listing.add(entry, 1, state);
                }
            }
        },
        progress,
    )?;
    Ok(listing.finish(app, (&recalls, now), JournalRead { unreadable, ..journal }, unchecked))
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
                let message = entry.shown(entry.state(&recalls, Timestamp::now()), copies);
                found = Some(FoundMessage::new(message, delivery, body_bytes, &unchecked));
            }
        },
        progress,
    )?;
    Ok((found, read))
}

/// Reads listed messages again, with their contents and `body_bytes` of their bodies to show. `each` gets
/// them in the order of the journal; its error ends the reading. Messages that the journal's limits have cut
/// off are left out.
///
/// # Errors That of `each`, or if the broker refuses or is lost.
pub fn read_scheduled<E: From<AdminError>>(
    (settings, topology, app): (&Settings, &Topology, &AppKey),
    list: &ScheduleList,
    body_bytes: usize,
    stop: &AtomicBool,
    mut each: impl FnMut(FoundMessage) -> Result<(), E>,
) -> Result<(), E> {
    let at: BTreeMap<_, _> = list.messages.iter().map(|message| (message.place, message)).collect();
    let places = at.keys().copied().collect();
    Reading { settings, topology, app, stop }.at(&places, |place, delivery| match at.get(&place) {
        Some(message) if message.has_key(&delivery.routing_key) => {
            each(FoundMessage::new((*message).clone(), delivery, body_bytes, &list.unchecked))
        }
        _ => Ok(()),
    })
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

/// How many messages there are of each state.
#[derive(Default)]
pub(super) struct Counts {
    waiting: u64,
    recalled: u64,
    uncertain: u64,
    due: u64,
    pub(super) estimated: Estimated,
}

impl Counts {
    pub(super) fn add(&mut self, state: ScheduleState, count: u64) {
        match state {
            ScheduleState::Waiting => self.waiting += count,
            ScheduleState::Recalled => self.recalled += count,
            ScheduleState::Uncertain => self.uncertain += count,
            ScheduleState::Due => self.due += count,
        }
    }

    pub(super) const fn all(&self) -> u64 {
        self.waiting + self.recalled + self.uncertain + self.due
    }

    /// The list with these messages and these counts.
    pub(super) fn list(
        self,
        app: &AppKey,
        (messages, more): (Vec<ScheduledMessage>, u64),
        journal: JournalRead,
        unchecked: Vec<String>,
    ) -> ScheduleList {
        let Self { waiting, recalled, uncertain, due, estimated } = self;
        let app = app.to_string();
        ScheduleList { app, messages, more, waiting, recalled, uncertain, due, estimated, journal, unchecked }
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
            earliest.add(entry(1, id, due), 1, number);
        }
        assert_eq!(ids(&earliest), [("a".to_owned(), 2), ("b".to_owned(), 1)]);
        // One `d`, two `c` and the `z`.
        assert_eq!(earliest.more, 4);
        let mut none = Earliest::new(0);
        none.add(entry(1, "a", 1), 1, 0);
        assert_eq!((none.kept.len(), none.more), (0, 1));
    }
}
