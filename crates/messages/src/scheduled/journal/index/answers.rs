//! Lists and counts from a store.

use std::{collections::BTreeMap, collections::HashSet, ops::Range};

use jiff::Timestamp;

use delayline_core::codec::{AppKey, RoutingKey};

use crate::scheduled::journal::{
    Estimated, JournalRead, ScheduleFilter, ScheduleList, ScheduleState,
    count::Slots,
    entry::Entry,
    list::{Counts, Listing},
};

use super::store::{Chosen, MINUTE, Store};

/// A question about the messages of a journal, and what is known besides them.
pub(super) struct Question<'a> {
    pub(super) app: &'a AppKey,
    pub(super) filter: &'a ScheduleFilter,
    /// What the store is asked for.
    pub(super) chosen: Chosen<'a>,
    /// The recalled keys.
    pub(super) recalls: &'a HashSet<String>,
    pub(super) now: Timestamp,
}

impl Question<'_> {
    /// Whether only due times matter, so that messages are counted by minutes.
    fn is_plain(&self) -> bool {
        let Chosen { id, headers, place, .. } = &self.chosen;
        id.is_none() && headers.is_empty() && place.is_none()
    }

    /// Hands each chosen message to `each`.
    fn each(&self, store: &Store, mut each: impl FnMut(Entry, u64)) -> rusqlite::Result<()> {
        store.each(&self.chosen, None, |entry, copies| {
            if self.filter.id.as_ref().is_none_or(|id| entry.key.id().is_some_and(|its| its.is_of(id))) {
                each(entry, copies);
            }
        })
    }

    /// How many messages are left out because their headers cannot be read.
    pub(super) fn unreadable(&self, store: &Store) -> rusqlite::Result<u64> {
        if self.chosen.headers.is_empty() {
            return Ok(0);
        }
        store.count(&Chosen { damaged: true, headers: Vec::new(), ..self.chosen.clone() }, usize::MAX)
    }

    /// Lists a part of the messages.
    pub(super) fn list(
        &self,
        store: &Store,
        range: Range<usize>,
        journal: JournalRead,
        unchecked: Vec<String>,
    ) -> rusqlite::Result<ScheduleList> {
        let mut listing = Listing::new(range.clone());
        if !self.is_plain() {
            self.each(store, |entry, copies| {
                let state = entry.state(self.recalls, self.now);
                listing.add(entry, copies, state);
            })?;
            return Ok(listing.finish(self.app, (self.recalls, self.now), journal, unchecked));
        }
        let (mut messages, mut listed) = (Vec::new(), 0);
        store.each(&self.chosen, Some((range.start, range.len())), |entry, copies| {
            listed += copies;
            messages.push(entry.shown(entry.state(self.recalls, self.now), copies));
        })?;
        let skipped = if range.start == 0 { 0 } else { store.count(&self.chosen, range.start)? };
        let mut counts = Counts::default();
        counts.estimated = self.tally(store, false, |_, state, count| counts.add(state, count))?;
        let more = counts.all().saturating_sub(skipped + listed);
        Ok(counts.list(self.app, (messages, more), journal, unchecked))
    }

    /// Counts the messages by due time.
    pub(super) fn count(&self, store: &Store, slots: &mut Slots) -> rusqlite::Result<Estimated> {
        if self.is_plain() {
            return self.tally(store, true, |due, state, count| slots.add(due, state, count));
        }
        let mut estimated = Estimated::default();
        self.each(store, |entry, copies| {
            estimated.add(&entry, copies);
            slots.add(entry.due, entry.state(self.recalls, self.now), copies);
        })?;
        Ok(estimated)
    }

    /// Hands due times to `each`, with the number of messages in a state. Whole minutes were counted before; all
    /// together are one if their due times do not matter.
    fn tally(
        &self,
        store: &Store,
        by_minute: bool,
        mut each: impl FnMut(Timestamp, ScheduleState, u64),
    ) -> rusqlite::Result<Estimated> {
        let Chosen { from, until, .. } = self.chosen;
        let mut estimated = Estimated::default();
        let mut one_by_one = |chosen: &Chosen<'_>, each: &mut dyn FnMut(Timestamp, ScheduleState, u64)| {
            store.each(chosen, None, |entry, copies| {
                estimated.add(&entry, copies);
                each(entry.due, entry.state(self.recalls, self.now), copies);
            })
        };
        let minutes = from / MINUTE + 1..until / MINUTE;
        if minutes.is_empty() {
            one_by_one(&self.chosen, &mut each)?;
            return Ok(estimated);
        }
        let (begin, end) = (minutes.start * MINUTE, minutes.end * MINUTE);
        one_by_one(&Chosen { until: begin, ..self.chosen.clone() }, &mut each)?;
        if until < i64::MAX {
            one_by_one(&Chosen { from: end, width: 0, ..self.chosen.clone() }, &mut each)?;
        }
        let mut recalled = BTreeMap::<i64, u64>::new();
        let keys = self.recalls.iter().filter_map(|key| key.parse::<RoutingKey>().ok());
        for key in keys {
            let Some(id) = key.id() else { continue };
            let chosen = Chosen { from: begin, until: end, id: Some(id), ..Chosen::default() };
            store.each(&chosen, None, |entry, copies| {
                if entry.key == key {
                    *recalled.entry(entry.due.as_millisecond() / MINUTE).or_default() += copies;
                    each(entry.due, entry.state(self.recalls, self.now), copies);
                }
            })?;
        }
        let mut waiting = |minute: i64, messages: u64, recalled: u64| {
            let due = Timestamp::from_millisecond(minute * MINUTE).unwrap_or(Timestamp::MAX);
            each(due, ScheduleState::Waiting, messages.saturating_sub(recalled));
        };
        let whole = if by_minute {
            let recalled = |minute| recalled.get(&minute).copied().unwrap_or(0);
            store.minutes(minutes, |minute, messages| waiting(minute, messages, recalled(minute)))?
        } else {
            let (messages, whole) = store.total(minutes.clone())?;
            waiting(minutes.start, messages, recalled.values().sum());
            whole
        };
        estimated.messages += whole.messages;
        estimated.seconds = estimated.seconds.max(whole.seconds);
        Ok(estimated)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use jiff::{SignedDuration, tz::TimeZone};

    use super::*;
    use crate::scheduled::journal::{CountBy, count::Slots, index::store::Row, list::Listing};
    use delayline_core::{
        codec::Delay,
        message::{Headers, Value},
    };

    /// Numbers that look random, and are the same each time.
    struct Random(u64);

    impl Random {
        fn below(&mut self, most: u64) -> u64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) % most
        }
    }

    /// Messages of two hours and of later days, each with its value of the header `customer`.
    fn messages(now: Timestamp) -> Vec<(Entry, String)> {
        let mut random = Random(7);
        let mut all = Vec::new();
        for place in 0..2_000 {
            let copied = all.get(random.below(all.len() as u64 + 1) as usize);
            // Copies without an id are not merged, and have no order.
            if let Some((copy, customer)) = copied.filter(|(it, _): &&(Entry, String)| it.key.id().is_some())
                && random.below(10) == 0
            {
                all.push((Entry { place, ..copy.clone() }, customer.clone()));
                continue;
            }
            let delay = Delay::from_seconds(1 + random.below(9)).unwrap();
            let key = RoutingKey::new(delay, AppKey::new("billing").unwrap());
            let id = ["", "a", "a-1", "a--00000000zz", "a--0000000zz1", "b"][random.below(6) as usize];
            let key = if id.is_empty() { key } else { key.with_id(id.parse().unwrap()).unwrap() };
            let after = |ms: u64| SignedDuration::from_millis(ms.cast_signed());
            let days = [0, 0, 0, 1, 3][random.below(5) as usize];
            let due = now - after(30_000) + after(random.below(7_200_000) + days * 86_400_000);
            let latest = (random.below(3) == 0).then(|| due + after(random.below(90_000)));
            let entry = Entry { key, due, latest, attempt: random.below(2) as u32, bytes: 5, place };
            all.push((entry, format!("C-{}", random.below(5))));
        }
        all
    }

    /// Everything that the store answers is what the journal itself answers.
    #[test]
    fn the_store_answers_as_the_journal() {
        let now: Timestamp = "2026-06-01T10:00:12.345Z".parse().unwrap();
        let (all, app) = (messages(now), AppKey::new("billing").unwrap());
        let mut store = Store::open(&app, 2).unwrap();
        let (mut rows, mut width) = (Vec::new(), 0);
        for (entry, customer) in all.iter().filter(|(entry, _)| entry.latest() > now) {
            let row =
                Row { entry: entry.clone(), damaged: false, headers: vec![None, Some(customer.clone())] };
            width = width.max(row.width());
            rows.push(row);
        }
        store.add(&mut rows).unwrap();
        let bound = all.iter().filter(|(entry, _)| entry.place % 3 == 0 && entry.key.id().is_some());
        let recalls: HashSet<String> = bound.map(|(entry, _)| entry.key.encode()).collect();
        let alone = all.iter().find(|(entry, _)| entry.key.id().is_none() && entry.due > now).unwrap();
        let minutes = |minutes: i64| Some(now + SignedDuration::from_mins(minutes));
        let any = ScheduleFilter::default;
        let header = |text: &str| any().with_headers(vec![text.parse().unwrap()]);
        for (filter, header) in [
            (any(), None),
            (any().with_due_before(minutes(90)), None),
            (any().with_due_after(minutes(7)).with_due_before(minutes(9)), None),
            (any().with_due_after(minutes(40)).with_due_before(minutes(3 * 1_440 + 50)), None),
            (
                any()
                    .with_due_after(Some(now + SignedDuration::from_millis(20)))
                    .with_due_before(Some(now + SignedDuration::from_secs(9))),
                None,
            ),
            (any().with_id(Some("a".parse().unwrap())), None),
            (any().with_id(Some("a--00000000zz".parse().unwrap())).with_due_after(minutes(20)), None),
            (header("customer=C-3"), Some("C-3")),
            (header("customer=C-9").with_due_before(minutes(60)), Some("C-9")),
            (any().with_place(Some(alone.0.place)), None),
        ] {
            let chosen = Chosen {
                from: filter.due_after.unwrap_or(now).as_millisecond(),
                until: filter.due_before.map_or(i64::MAX, |before| before.as_millisecond()),
                width,
                id: filter.id.as_ref(),
                headers: header.map(|value| (1, value)).into_iter().collect(),
                place: filter.place,
                damaged: false,
            };
            let question = Question { app: &app, filter: &filter, chosen, recalls: &recalls, now };
            let admitted = all.iter().filter(|(entry, customer)| {
                let headers: Headers = [("customer".to_owned(), Value::from(customer.as_str()))].into();
                filter.admits(entry, Some(&headers), now).unwrap()
            });
            for range in [0..10, 5..7, 0..5_000, 700..4_000, 0..0] {
                let mut listing = Listing::new(range.clone());
                admitted.clone().for_each(|(it, _)| listing.add(it.clone(), 1, it.state(&recalls, now)));
                let expected = listing.finish(&app, (&recalls, now), JournalRead::default(), Vec::new());
                let mut found =
                    question.list(&store, range.clone(), JournalRead::default(), Vec::new()).unwrap();
                // Where copies were merged, the newest place may be that of a copy that is left out.
                let key = |list: &ScheduleList| serde_json::to_value(list).unwrap();
                for (found, expected) in found.messages.iter_mut().zip(&expected.messages) {
                    if found.copies > 1 {
                        found.place = expected.place;
                    }
                }
                let wrong =
                    found.messages.iter().zip(&expected.messages).find(|(found, expected)| found != expected);
                assert!(key(&found) == key(&expected), "{filter:?} {range:?} {wrong:?}");
            }
            for by in [CountBy::Minute, CountBy::Hour, CountBy::Day] {
                let slots = || Slots::new(by, TimeZone::UTC);
                let (mut expected, mut estimated) = (slots(), Estimated::default());
                for (entry, _) in admitted.clone() {
                    estimated.add(entry, 1);
                    expected.add(entry.due, entry.state(&recalls, now), 1);
                }
                let mut found = slots();
                let counted = question.count(&store, &mut found).unwrap();
                let json = |slots: Slots, estimated| {
                    let count = slots.finish(&app, estimated, JournalRead::default(), Vec::new());
                    serde_json::to_value(count).unwrap()
                };
                // Whole minutes have the worst accuracy of their messages.
                assert_eq!(counted.messages, estimated.messages);
                assert!(counted.seconds >= estimated.seconds && counted.seconds <= 90);
                assert!(json(found, estimated) == json(expected, estimated), "{filter:?} {by:?}");
            }
        }
        let waiting = |store: &Store, now| store.waiting(now, width).unwrap();
        let ahead = |now| all.iter().filter(|(entry, _)| entry.latest() >= now).count() as u64;
        let later = minutes(45).unwrap();
        assert_eq!((waiting(&store, now), waiting(&store, later)), (ahead(now), ahead(later)));
        while store.remove_due(later, 100).unwrap() > 0 {}
        assert_eq!(waiting(&store, later), ahead(later));
        let mut left = BTreeMap::new();
        let everything = Chosen { until: i64::MAX, ..Chosen::default() };
        store
            .each(&everything, None, |entry, copies| {
                left.insert(entry.place, copies);
            })
            .unwrap();
        assert_eq!(left.values().sum::<u64>(), ahead(later));
    }
}
