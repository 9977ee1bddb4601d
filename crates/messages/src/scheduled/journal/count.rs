//! The number of due messages over time.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, Ordering},
};

use jiff::{RoundMode, Timestamp, ToSpan, Unit, ZonedRound, tz::TimeZone};
use serde::{Deserialize, Serialize};

use delayline_core::{codec::AppKey, topology::Topology};
use delayline_settings::Settings;

use crate::{
    error::{AdminError, JournalUnread},
    scheduled::recallable_apps,
};

use super::{
    JournalRead, ScheduleFilter, ScheduleList, ScheduleState,
    list::{Estimated, list_scheduled, recalls},
    reader::Reading,
};

/// The most slots that are counted separately, so that counting takes bounded memory. Later slots are
/// counted together.
const SLOTS: usize = 100_000;

/// The length of the counted slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum CountBy {
    /// A minute.
    Minute,
    /// An hour.
    Hour,
    /// A day, as it begins and ends in a time zone.
    Day,
}

/// The messages that are due in a slot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct ScheduleSlot {
    /// When it begins.
    pub from: Timestamp,
    /// How many messages are waiting.
    pub waiting: u64,
    /// How many were recalled.
    pub recalled: u64,
    /// How many messages may have been recalled too late; this is unknown here.
    pub uncertain: u64,
    /// How many were due, and not recalled.
    pub due: u64,
}

/// The number of due messages over time. A message that was published twice counts twice.
#[derive(Debug, Clone, Serialize, Deserialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct ScheduleCount {
    /// The application.
    pub app: String,
    /// How long a slot is.
    pub by: CountBy,
    /// The slots that are not empty, in the order of time.
    pub slots: Vec<ScheduleSlot>,
    /// How many messages are due later than the last slot.
    pub later: u64,
    /// The messages whose exact due time is unknown.
    pub estimated: Estimated,
    /// How far the journal was read.
    pub journal: JournalRead,
    /// The checks that were not possible, and why.
    pub unchecked: Vec<String>,
}

impl CountBy {
    /// Its name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "day",
        }
    }

    /// The beginning of the slot that contains a time.
    fn begin(self, time: Timestamp, zone: &TimeZone) -> Timestamp {
        let unit = match self {
            Self::Minute => Unit::Minute,
            Self::Hour => Unit::Hour,
            Self::Day => Unit::Day,
        };
        let round = ZonedRound::new().smallest(unit).mode(RoundMode::Trunc);
        time.to_zoned(zone.clone()).round(round).map_or(time, |begin| begin.timestamp())
    }

    /// The beginning of the next slot.
    fn next(self, begin: Timestamp, zone: &TimeZone) -> Timestamp {
        let span = match self {
            Self::Minute => 1.minute(),
            Self::Hour => 1.hour(),
            Self::Day => 1.day(),
        };
        begin.to_zoned(zone.clone()).checked_add(span).map_or(Timestamp::MAX, |next| next.timestamp())
    }
}

/// The slots during a count.
pub(super) struct Slots {
    by: CountBy,
    zone: TimeZone,
    most: usize,
    slots: BTreeMap<Timestamp, ScheduleSlot>,
    later: u64,
    /// The slot that was hit last, since most messages are published in the order of time.
    last: Option<(Timestamp, Timestamp)>,
}

impl Slots {
    pub(super) fn new(by: CountBy, zone: TimeZone) -> Self {
        Self::with_most(by, zone, SLOTS)
    }

    fn with_most(by: CountBy, zone: TimeZone, most: usize) -> Self {
        Self { by, zone, most, slots: BTreeMap::new(), later: 0, last: None }
    }

    pub(super) fn add(&mut self, due: Timestamp, state: ScheduleState, count: u64) {
        if count == 0 {
            return;
        }
        let from = match self.last {
            Some((from, until)) if (from..until).contains(&due) => from,
            _ => {
                let from = self.by.begin(due, &self.zone);
                self.last = Some((from, self.by.next(from, &self.zone)));
                from
            }
        };
        let empty = || ScheduleSlot { from, waiting: 0, recalled: 0, uncertain: 0, due: 0 };
        let slot = self.slots.entry(from).or_insert_with(empty);
        match state {
            ScheduleState::Waiting => slot.waiting += count,
            ScheduleState::Recalled => slot.recalled += count,
            ScheduleState::Uncertain => slot.uncertain += count,
            ScheduleState::Due => slot.due += count,
        }
        if self.slots.len() > self.most
            && let Some((_, last)) = self.slots.pop_last()
        {
            self.later += last.waiting + last.recalled + last.uncertain + last.due;
        }
    }

    /// The count of an application.
    pub(super) fn finish(
        self,
        app: &AppKey,
        estimated: Estimated,
        journal: JournalRead,
        unchecked: Vec<String>,
    ) -> ScheduleCount {
        let (app, slots) = (app.to_string(), self.slots.into_values().collect());
        ScheduleCount { app, by: self.by, slots, later: self.later, estimated, journal, unchecked }
    }
}

/// The number of scheduled messages by application.
#[derive(Debug, Clone, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct AppCounts {
    /// The applications that have a journal; of its messages only the first.
    pub apps: Vec<ScheduleList>,
    /// The journals that could not be read, and why.
    pub unchecked: Vec<String>,
}

/// Counts the scheduled messages of one application, or of each that has a journal.
///
/// # Errors As [`list_scheduled`]. Without `app`, also if there is no management API.
pub fn count_apps(
    settings: &Settings,
    topology: &Topology,
    app: Option<&AppKey>,
    filter: &ScheduleFilter,
    stop: &AtomicBool,
    mut progress: impl FnMut(u64, u64),
) -> Result<AppCounts, AdminError> {
    let apps = app.map_or_else(|| recallable_apps(settings, topology), |app| Ok(vec![app.clone()]))?;
    let mut counts = AppCounts::default();
    for each in apps {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        match list_scheduled(settings, topology, &each, filter, 0..1, stop, &mut progress) {
            Ok(list) => counts.apps.push(list),
            Err(AdminError::Journal(JournalUnread::NoJournal { .. })) if app.is_none() => {}
            Err(AdminError::Journal(unread)) if app.is_none() => counts.unchecked.push(unread.to_string()),
            Err(error) => return Err(error),
        }
    }
    Ok(counts)
}

/// Counts an application's scheduled messages by due time. `zone` is the time zone in which days begin.
///
/// # Errors If there is no journal, or the broker refuses or is lost.
pub fn count_scheduled(
    settings: &Settings,
    topology: &Topology,
    app: &AppKey,
    filter: &ScheduleFilter,
    (by, zone): (CountBy, TimeZone),
    stop: &AtomicBool,
    progress: impl FnMut(u64, u64),
) -> Result<ScheduleCount, AdminError> {
    let (recalls, unchecked) = recalls(settings, topology, app, "which of them were recalled")?;
    let now = Timestamp::now();
    let mut slots = Slots::new(by, zone);
    let mut estimated = Estimated::default();
    let mut unreadable = 0;
    let journal = Reading { settings, topology, app, stop }.run(
        |entry, delivery| {
            let headers = (!delivery.damaged).then_some(&delivery.headers);
            let admitted = filter.admits(&entry, headers, now);
            unreadable += u64::from(admitted.is_none());
            if admitted == Some(true) {
                estimated.add(&entry, 1);
                slots.add(entry.due, entry.state(&recalls, now), 1);
            }
        },
        progress,
    )?;
    Ok(slots.finish(app, estimated, JournalRead { unreadable, ..journal }, unchecked))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn days_begin_at_midnight_of_the_time_zone() {
        let berlin = TimeZone::fixed(jiff::tz::offset(2));
        let begin = |by: CountBy| by.begin(at("2026-06-01T23:30:29Z"), &berlin).to_string();
        assert_eq!(begin(CountBy::Minute), "2026-06-01T23:30:00Z");
        assert_eq!(begin(CountBy::Hour), "2026-06-01T23:00:00Z");
        assert_eq!(begin(CountBy::Day), "2026-06-01T22:00:00Z");
    }

    #[test]
    fn the_earliest_slots_are_kept_and_later_ones_are_counted_together() {
        let mut slots = Slots::with_most(CountBy::Hour, TimeZone::UTC, 2);
        for (time, state) in [
            ("2026-06-01T03:10:00Z", ScheduleState::Waiting),
            ("2026-06-01T02:10:00Z", ScheduleState::Recalled),
            ("2026-06-01T03:20:00Z", ScheduleState::Waiting),
            ("2026-06-01T01:59:59Z", ScheduleState::Waiting),
            ("2026-06-01T01:00:00Z", ScheduleState::Uncertain),
            ("2026-06-01T09:00:00Z", ScheduleState::Waiting),
        ] {
            slots.add(at(time), state, 1);
        }
        let found: Vec<_> = slots
            .slots
            .values()
            .map(|it| (it.from.to_string(), it.waiting, it.recalled, it.uncertain))
            .collect();
        assert_eq!(
            found,
            [("2026-06-01T01:00:00Z".to_owned(), 1, 0, 1), ("2026-06-01T02:00:00Z".to_owned(), 0, 1, 0)]
        );
        assert_eq!(slots.later, 3);
    }
}
