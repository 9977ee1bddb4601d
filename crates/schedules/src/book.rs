//! What the stream of schedules says: definitions, and how far each was published. Pure.
//!
//! Each record is a fact that stays true, so reading one twice, or in another order than it was written by
//! two daemons at once, leads to the same book. Before a message is published, its handle is on record. So
//! every message that is published can be recalled, even if the daemon is killed right after that.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use delayline_core::{
    codec::{AppKey, Delay, RoutingKey},
    message::Handle,
};

use crate::definition::{
    Spec,
    name::{ScheduleName, message_id},
    serial::{app_key, seconds},
};

/// How long the record of a removed schedule is kept, in ms: longer than any older record of it.
const REMEMBERED: u64 = 30 * 86_400_000;

/// What a schedule does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// It publishes.
    Active,
    /// It publishes nothing until it is resumed.
    Paused,
    /// It is gone.
    Removed,
}

/// A schedule as it was last changed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Definition {
    /// Its name.
    pub name: ScheduleName,
    /// When it was changed, in ms since the epoch, and later than all changes before. Of two definitions,
    /// the one with the larger number is valid.
    pub rev: u64,
    /// What it does.
    pub state: State,
    /// Its occurrences are later than this.
    pub after: Timestamp,
    /// Its times and its message.
    pub spec: Spec,
}

/// A message of an occurrence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Sent(
    /// The occurrence, in ms since the epoch.
    pub(crate) i64,
    /// How late it should be, in ms.
    pub(crate) i64,
    /// The delay that it was published with.
    #[serde(with = "seconds")]
    pub(crate) Delay,
);

impl Sent {
    pub(crate) const fn due_ms(&self) -> i64 {
        self.0.saturating_add(self.1)
    }
}

/// Messages of one revision of a schedule that are about to be published.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Batch {
    pub(crate) name: ScheduleName,
    pub(crate) rev: u64,
    #[serde(with = "app_key")]
    pub(crate) app: AppKey,
    pub(crate) messages: Vec<Sent>,
}

/// How far a revision of a schedule was published.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Through {
    pub(crate) name: ScheduleName,
    pub(crate) rev: u64,
    pub(crate) through: Timestamp,
}

/// A message of the stream.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Record {
    /// A schedule was added, changed or removed.
    Definition(Box<Definition>),
    /// These messages are about to be published.
    Ahead(Vec<Batch>),
    /// They were.
    Published(Vec<Through>),
    /// The messages of these revisions that were on record until now are recalled.
    Recalled(Vec<(ScheduleName, u64)>),
    /// Who wrote this has read everything before it.
    Mark(u64),
    /// Everything valid was written again, in this many bytes.
    Copied(u64),
}

impl Record {
    /// Whether it may be in the stream of this owner. An application writes to its stream what it likes.
    fn is_of(&self, owner: Option<&AppKey>) -> bool {
        let is_own = |name: &ScheduleName, app: Option<&AppKey>| {
            name.owner().as_ref() == owner && (owner.is_none() || app.is_none_or(|app| Some(app) == owner))
        };
        match self {
            Self::Definition(it) => is_own(&it.name, Some(&it.spec.app)),
            Self::Ahead(all) => all.iter().all(|it| is_own(&it.name, Some(&it.app))),
            Self::Published(all) => all.iter().all(|it| is_own(&it.name, None)),
            Self::Recalled(all) => all.iter().all(|(name, _)| is_own(name, None)),
            Self::Mark(_) | Self::Copied(_) => true,
        }
    }

    /// How many entries it adds to a book at most.
    pub(crate) fn weight(&self) -> usize {
        match self {
            Self::Definition(_) => 1,
            Self::Ahead(all) => all.iter().map(|it| it.messages.len() + 1).sum(),
            Self::Published(_) | Self::Recalled(_) | Self::Mark(_) | Self::Copied(_) => 0,
        }
    }
}

/// A schedule, and what was published for it.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// Its definition.
    pub definition: Definition,
    /// How far this revision was published.
    pub through: Option<Timestamp>,
    /// The messages that were published, or were about to be.
    pub(crate) sent: BTreeSet<Sent>,
}

impl Entry {
    /// The instant after which its next occurrence to be published is.
    #[must_use]
    pub fn published_through(&self) -> Timestamp {
        self.through.map_or(self.definition.after, |through| through.max(self.definition.after))
    }

    /// The occurrences after an instant that were published ahead, in their order.
    #[must_use]
    pub fn ahead(&self, now: Timestamp) -> Vec<Timestamp> {
        let mut ahead: Vec<_> = self.sent_after(now).collect();
        // An occurrence that was published twice is on record with two delays.
        ahead.dedup();
        ahead
    }

    /// The first of them.
    #[must_use]
    pub fn next_ahead(&self, now: Timestamp) -> Option<Timestamp> {
        self.sent_after(now).next()
    }

    /// Those that are only on record as about to be published may never have been.
    fn sent_after(&self, now: Timestamp) -> impl Iterator<Item = Timestamp> {
        let from = Sent(now.as_millisecond() + 1, i64::MIN, Delay::ZERO);
        let through = self.published_through();
        let all = self.sent.range(from..).filter_map(|sent| Timestamp::from_millisecond(sent.0).ok());
        all.take_while(move |at| *at <= through)
    }
}

/// Messages that can be recalled and whose schedule was changed since they were published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stale {
    app: AppKey,
    sent: BTreeSet<Sent>,
}

/// Everything that the records say.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Book {
    entries: BTreeMap<ScheduleName, Entry>,
    stale: BTreeMap<(ScheduleName, u64), Stale>,
}

impl Book {
    /// A book with one active schedule. None of its messages was published.
    #[must_use]
    pub fn of(name: ScheduleName, spec: Spec, after: Timestamp) -> Self {
        let mut book = Self::default();
        book.define(&Definition { name, rev: 1, state: State::Active, after, spec });
        book
    }

    /// The schedules that were not removed.
    pub fn schedules(&self) -> impl Iterator<Item = &Entry> {
        self.entries.values().filter(|entry| entry.definition.state != State::Removed)
    }

    /// A schedule that was not removed.
    #[must_use]
    pub fn get(&self, name: &ScheduleName) -> Option<&Entry> {
        self.entries.get(name).filter(|entry| entry.definition.state != State::Removed)
    }

    /// The number of the next revision of a schedule.
    #[must_use]
    pub fn next_rev(&self, name: &ScheduleName, now: Timestamp) -> u64 {
        let last = self.entries.get(name).map_or(0, |entry| entry.definition.rev);
        now.as_millisecond().unsigned_abs().max(last.saturating_add(1))
    }

    /// Enters the body of a message of the stream of this owner, if it adds no more than `room` entries. A
    /// later version may have written unreadable records.
    pub(crate) fn read(&mut self, owner: Option<&AppKey>, body: &[u8], room: usize) -> Option<Record> {
        let record: Record = serde_json::from_slice(body).ok()?;
        let fits = record.is_of(owner) && record.weight() <= room;
        fits.then(|| {
            self.enter(&record);
            record
        })
    }

    /// How many entries it has of this owner.
    pub(crate) fn weight(&self, owner: Option<&AppKey>) -> usize {
        let is_own = |name: &ScheduleName| name.owner().as_ref() == owner;
        let entries = self.entries.iter().filter(|(name, _)| is_own(name)).map(|(_, it)| it.sent.len() + 1);
        let stale = self.stale.iter().filter(|((name, _), _)| is_own(name)).map(|(_, it)| it.sent.len() + 1);
        entries.chain(stale).sum()
    }

    /// Forgets everything of this owner.
    pub(crate) fn forget(&mut self, owner: Option<&AppKey>) {
        self.entries.retain(|name, _| name.owner().as_ref() != owner);
        self.stale.retain(|(name, _), _| name.owner().as_ref() != owner);
    }

    pub(crate) fn enter(&mut self, record: &Record) {
        match record {
            Record::Definition(definition) => self.define(definition),
            Record::Ahead(batches) => batches.iter().for_each(|batch| self.send(batch)),
            Record::Published(all) => {
                for Through { name, rev, through } in all {
                    if let Some(entry) = self.entries.get_mut(name).filter(|it| it.definition.rev == *rev) {
                        entry.through = entry.through.max(Some(*through));
                    }
                }
            }
            Record::Recalled(all) => all.iter().for_each(|revision| drop(self.stale.remove(revision))),
            Record::Mark(_) | Record::Copied(_) => {}
        }
    }

    fn define(&mut self, definition: &Definition) {
        let known = self.entries.get(&definition.name).map(|entry| entry.definition.rev);
        if known >= Some(definition.rev) {
            return;
        }
        let revision = (definition.name.clone(), definition.rev);
        // Of a definition that was written again, the messages may have been read before.
        let sent = self.stale.remove(&revision).map(|stale| stale.sent).unwrap_or_default();
        let entry = Entry { definition: definition.clone(), through: None, sent };
        if let Some(Entry { definition, sent, .. }) = self.entries.insert(definition.name.clone(), entry) {
            self.make_stale((definition.name, definition.rev), definition.spec.app, sent);
        }
    }

    fn send(&mut self, batch: &Batch) {
        let Batch { name, rev, app, messages } = batch;
        match self.entries.get_mut(name) {
            Some(entry) if entry.definition.rev == *rev => entry.sent.extend(messages),
            _ => self.make_stale((name.clone(), *rev), app.clone(), messages.iter().copied().collect()),
        }
    }

    fn make_stale(&mut self, revision: (ScheduleName, u64), app: AppKey, sent: BTreeSet<Sent>) {
        if !sent.is_empty() {
            let stale = self.stale.entry(revision);
            stale.or_insert_with(|| Stale { app, sent: BTreeSet::new() }).sent.extend(sent);
        }
    }

    /// Forgets messages that were due before an instant.
    pub(crate) fn forget_before(&mut self, then: Timestamp) {
        let then = then.as_millisecond();
        let sent = self.entries.values_mut().map(|entry| &mut entry.sent);
        let all = sent.chain(self.stale.values_mut().map(|stale| &mut stale.sent));
        all.for_each(|sent| sent.retain(|message| message.due_ms() >= then));
    }

    /// Up to this many messages that must be recalled, with their revisions and handles.
    pub(crate) fn to_recall(&self, most: usize) -> Vec<((ScheduleName, u64), Sent, Handle)> {
        let all = self.stale.iter().flat_map(|(revision, stale)| {
            stale
                .sent
                .iter()
                .filter_map(move |sent| Some((revision.clone(), *sent, handle(revision, &stale.app, *sent)?)))
        });
        all.take(most).collect()
    }

    /// How many messages of a schedule are still to be recalled.
    #[must_use]
    pub fn to_be_recalled(&self, name: &ScheduleName) -> usize {
        let of = self.stale.iter().filter(|((of, _), _)| of == name);
        of.map(|(_, stale)| stale.sent.len()).sum()
    }

    /// Notes that a message was recalled, or need not be.
    pub(crate) fn recalled(&mut self, revision: &(ScheduleName, u64), sent: &Sent) {
        if let Some(stale) = self.stale.get_mut(revision) {
            stale.sent.remove(sent);
        }
    }

    /// The revisions whose messages are all recalled.
    pub(crate) fn all_recalled(&self) -> Vec<(ScheduleName, u64)> {
        let done = self.stale.iter().filter(|(_, stale)| stale.sent.is_empty());
        done.map(|(revision, _)| revision.clone()).collect()
    }

    /// Everything valid of this owner, as records.
    pub(crate) fn copy(&self, owner: Option<&AppKey>, now: Timestamp) -> Vec<Record> {
        let mut records = Vec::new();
        let old = now.as_millisecond().unsigned_abs().saturating_sub(REMEMBERED);
        for (name, Entry { definition, through, sent }) in &self.entries {
            let is_over = definition.state == State::Removed && definition.rev < old;
            if is_over || name.owner().as_ref() != owner {
                continue;
            }
            let (rev, name) = (definition.rev, name.clone());
            records.push(Record::Definition(Box::new(definition.clone())));
            if !sent.is_empty() {
                let (app, messages) = (definition.spec.app.clone(), sent.iter().copied().collect());
                records.push(Record::Ahead(vec![Batch { name: name.clone(), rev, app, messages }]));
            }
            if let Some(through) = *through {
                records.push(Record::Published(vec![Through { name, rev, through }]));
            }
        }
        for ((name, rev), Stale { app, sent }) in &self.stale {
            if sent.is_empty() || name.owner().as_ref() != owner {
                continue;
            }
            let (name, rev, app, messages) =
                (name.clone(), *rev, app.clone(), sent.iter().copied().collect());
            records.push(Record::Ahead(vec![Batch { name, rev, app, messages }]));
        }
        records
    }
}

fn handle((name, rev): &(ScheduleName, u64), app: &AppKey, sent: Sent) -> Option<Handle> {
    let at = Timestamp::from_millisecond(sent.0).ok()?;
    let key = RoutingKey::new(sent.2, app.clone()).with_id(message_id(name, at, *rev)).ok()?;
    Handle::new(key, Timestamp::from_millisecond(sent.due_ms()).ok()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::definition::Timing;

    fn name() -> ScheduleName {
        "a".parse().unwrap()
    }

    fn defined(rev: u64, state: State) -> Record {
        let spec = Spec::new(AppKey::new("billing").unwrap(), Timing::Every { every: Timing::shortest() });
        let (name, after) = (name(), Timestamp::UNIX_EPOCH);
        Record::Definition(Box::new(Definition { name, rev, state, after, spec }))
    }

    fn ahead(rev: u64, all: &[(i64, u64)]) -> Record {
        let sent = |&(at, delay): &(i64, u64)| Sent(at, 0, Delay::from_seconds(delay).unwrap());
        let (app, messages) = (AppKey::new("billing").unwrap(), all.iter().map(sent).collect());
        Record::Ahead(vec![Batch { name: name(), rev, app, messages }])
    }

    fn published(rev: u64, ms: i64) -> Record {
        let through = Timestamp::from_millisecond(ms).unwrap();
        Record::Published(vec![Through { name: name(), rev, through }])
    }

    fn book(records: &[Record]) -> Book {
        let mut book = Book::default();
        for record in records {
            let body = serde_json::to_vec(record).unwrap();
            assert_eq!(book.read(None, &body, usize::MAX).as_ref(), Some(record));
        }
        book
    }

    fn stale(book: &Book) -> Vec<String> {
        let all = book.to_recall(100);
        all.into_iter().map(|(_, _, handle)| handle.id().to_string()).collect()
    }

    #[test]
    fn a_change_makes_what_was_published_ahead_stale() {
        let mut records = vec![defined(1, State::Active), ahead(1, &[(10_000, 9), (20_000, 19)])];
        records.push(published(1, 20_000));
        let before = book(&records);
        let entry = before.get(&name()).unwrap();
        assert_eq!(entry.published_through().as_millisecond(), 20_000);
        assert_eq!(entry.ahead(Timestamp::UNIX_EPOCH).len(), 2);
        assert!(stale(&before).is_empty());

        records.push(defined(2, State::Paused));
        let paused = book(&records);
        assert_eq!(stale(&paused), ["a-7ps-1", "a-ffk-1"]);
        assert_eq!(paused.get(&name()).unwrap().through, None);
        // A daemon that has not read of the change yet publishes more: that is stale as well.
        records.push(ahead(1, &[(30_000, 29)]));
        assert_eq!(stale(&book(&records)).len(), 3);
        records.push(Record::Recalled(vec![(name(), 1)]));
        assert!(stale(&book(&records)).is_empty());
        records.push(defined(3, State::Removed));
        assert!(book(&records).get(&name()).is_none());
    }

    #[test]
    fn records_may_come_twice_and_older_ones_late() {
        let records = [
            defined(1, State::Active),
            ahead(1, &[(10_000, 9)]),
            defined(2, State::Active),
            ahead(2, &[(10_000, 8), (20_000, 18)]),
            published(2, 20_000),
        ];
        let once = book(&records);
        assert_eq!(once, book(&[&records[..], &records[..]].concat()));
        // The older definition was copied by a daemon that had not read the newer one yet.
        let late = [&records[..], &records[..2]].concat();
        assert_eq!(book(&late).get(&name()), once.get(&name()));
    }

    #[test]
    fn a_copy_replaces_everything_before_it() {
        let now = Timestamp::now();
        let ms = now.as_millisecond();
        let records = [
            defined(1, State::Active),
            ahead(1, &[(ms + 10_000, 9)]),
            defined(2, State::Active),
            ahead(2, &[(ms + 20_000, 19)]),
            published(2, ms + 20_000),
        ];
        let original = book(&records);
        let copy = original.copy(None, now);
        assert_eq!(original, book(&copy));
        // The broker has dropped the older part, except for the messages.
        assert_eq!(original, book(&[&records[3..], &copy[..]].concat()));
        assert_eq!(book(&[defined(1, State::Removed)]).copy(None, now), [], "removed long ago");
        let recently = now.as_millisecond().unsigned_abs();
        assert_eq!(book(&[defined(recently, State::Removed)]).copy(None, now).len(), 1);
    }

    #[test]
    fn the_stream_of_an_application_says_nothing_about_others() {
        let app = AppKey::new("billing").unwrap();
        let of = |name: &str, record: Record| {
            let name: ScheduleName = name.parse().unwrap();
            match record {
                Record::Definition(mut it) => {
                    it.name = name;
                    Record::Definition(it)
                }
                Record::Ahead(mut all) => {
                    all[0].name = name;
                    Record::Ahead(all)
                }
                Record::Published(mut all) => {
                    all[0].name = name;
                    Record::Published(all)
                }
                _ => Record::Recalled(vec![(name, 1)]),
            }
        };
        let all = [
            defined(1, State::Active),
            ahead(1, &[(10_000, 9)]),
            published(1, 10_000),
            Record::Recalled(Vec::new()),
        ];
        for record in all {
            let mut book = Book::default();
            let mut enters = |owner: Option<&AppKey>, record: &Record, room| {
                book.read(owner, &serde_json::to_vec(record).unwrap(), room).is_some()
            };
            let own = of("billing/a", record.clone());
            assert!(enters(Some(&app), &own, 2) && !enters(None, &own, 2));
            assert_eq!(enters(Some(&app), &own, 0), own.weight() == 0);
            for other in ["a", "orders/a"] {
                assert!(!enters(Some(&app), &of(other, record.clone()), 2), "{other}");
            }
            // Its messages for another application.
            let orders = AppKey::new("orders").unwrap();
            let foreign = match of("billing/a", record) {
                Record::Definition(mut it) => {
                    it.spec.app = orders;
                    Record::Definition(it)
                }
                Record::Ahead(mut all) => {
                    all[0].app = orders;
                    Record::Ahead(all)
                }
                _ => continue,
            };
            assert!(!enters(Some(&app), &foreign, 2));
        }
        // No number makes it fail.
        let mut book = Book::default();
        let mut last = defined(u64::MAX, State::Active);
        if let Record::Definition(it) = &mut last {
            it.name = "billing/a".parse().unwrap();
        }
        book.enter(&last);
        book.enter(&of("billing/a", ahead(u64::MAX, &[(i64::MAX, 1), (i64::MIN, 1)])));
        assert_eq!(book.next_rev(&"billing/a".parse().unwrap(), Timestamp::now()), u64::MAX);
        assert_eq!(book.weight(Some(&app)), 3);
        book.forget_before(Timestamp::now());
        assert_eq!(book.weight(Some(&app)), 2);
        book.forget(Some(&app));
        assert_eq!(book, Book::default());
    }

    #[test]
    fn what_cannot_be_read_is_passed_over() {
        assert_eq!(Book::default().read(None, b"{\"later\": 1}", usize::MAX), None);
    }
}
