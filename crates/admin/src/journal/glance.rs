//! What a journal says at a glance: its first and its last copies, and, if it is short, what
//! waits.

use std::{ops::ControlFlow, sync::atomic::AtomicBool, time::Duration};

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

use delayline_amqp::Delivery;
use delayline_core::{codec::AppKey, topology::Topology};
use delayline_settings::Settings;

use crate::AdminError;

use super::{
    entry::{Entry, ScheduleState},
    list::recalls,
    reader::{Reading, Taken, is_emptied},
};

/// A journal that has so many copies at most is read as a whole: that takes about a second.
const SHORT: u64 = 20_000;

/// What the ends of a journal say.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct JournalGlance {
    /// How many older copies were cut off; `None` if it was all that were in it, however many.
    pub cut_off: Option<u64>,
    /// When the oldest copy was published, as far as it says.
    pub oldest: Option<Timestamp>,
    /// When the last one was published, likewise. RabbitMQ 3.10 does not find it for a moment
    /// each time a file of the stream is full.
    pub newest: Option<Timestamp>,
    /// What is scheduled; `None` if the journal is too long to be read each time.
    pub schedule: Option<JournalSchedule>,
}

/// What is scheduled for an application, as far as its journal has it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct JournalSchedule {
    /// How many messages are waiting.
    pub waiting: u64,
    /// When the first of them is due.
    pub next: Option<Timestamp>,
    /// When the last of them is due.
    pub last: Option<Timestamp>,
    /// How many will go to the recalled queue instead.
    pub recalled: u64,
    /// Of how many nobody can say from here whether they were recalled in time.
    pub uncertain: u64,
}

/// What the oldest copies of a journal say.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct JournalBeginning {
    /// How many older ones were cut off; `None` if nothing was handed out.
    pub(crate) cut_off: Option<u64>,
    /// When the oldest was published, as far as it says.
    pub(crate) oldest: Option<Timestamp>,
    /// The longest delay among them.
    pub(crate) longest: Option<Duration>,
}

/// Looks at both ends of an application's journal, which has about so many copies, and at all of
/// it if that is quick, unless it is stopped before.
///
/// # Errors
/// If there is no journal, or the broker refuses or is lost.
pub(crate) fn glance_at_journal(
    settings: &Settings,
    topology: &Topology,
    (app, copies): (&AppKey, u64),
    stop: &AtomicBool,
) -> Result<JournalGlance, AdminError> {
    let reading = Reading { settings, topology, app, stop };
    let JournalBeginning { cut_off, oldest, .. } = beginning(&reading, 1)?;
    if cut_off.is_none() && is_emptied(copies) {
        let schedule = Some(JournalSchedule::default());
        return Ok(JournalGlance { schedule, ..JournalGlance::default() });
    }
    let mut newest = None;
    reading.last(|delivery| newest = published(delivery, topology, app).or(newest))?;
    let schedule = if copies <= SHORT { Some(schedule(&reading)?) } else { None };
    Ok(JournalGlance { cut_off, oldest, newest, schedule })
}

fn schedule(reading: &Reading<'_>) -> Result<JournalSchedule, AdminError> {
    let Reading { settings, topology, app, .. } = reading;
    let (recalls, _) = recalls(settings, topology, app, "which of them were recalled")?;
    let now = Timestamp::now();
    let mut schedule = JournalSchedule::default();
    reading.run(
        |delivery| {
            let Some(entry) = Entry::of(delivery, app) else { return ControlFlow::Continue(Taken::Odd) };
            if let Some(due) = entry.due {
                schedule.add(due, entry.state(&recalls, now));
            }
            ControlFlow::Continue(Taken::Yes)
        },
        |_, _| {},
    )?;
    Ok(schedule)
}

impl JournalSchedule {
    fn add(&mut self, due: Timestamp, state: ScheduleState) {
        match state {
            ScheduleState::Waiting => {
                self.waiting += 1;
                self.next = Some(self.next.map_or(due, |next| next.min(due)));
                self.last = self.last.max(Some(due));
            }
            ScheduleState::Recalled => self.recalled += 1,
            ScheduleState::Uncertain => self.uncertain += 1,
            ScheduleState::Due | ScheduleState::Undated => {}
        }
    }
}

/// Reads the oldest copies of an application's journal, so many at most.
pub(crate) fn journal_beginning(
    settings: &Settings,
    topology: &Topology,
    app: &AppKey,
    most: u64,
) -> Result<JournalBeginning, AdminError> {
    let stop = AtomicBool::new(false);
    beginning(&Reading { settings, topology, app, stop: &stop }, most)
}

fn beginning(reading: &Reading<'_>, most: u64) -> Result<JournalBeginning, AdminError> {
    let (topology, app) = (reading.topology, reading.app);
    let unit = topology.settings().unit.duration();
    let mut beginning = JournalBeginning::default();
    let cut_off = reading.beginning(most, |delivery| {
        let delay = Entry::of(delivery, app).map(|entry| entry.key.delay.duration(unit));
        beginning.longest = beginning.longest.max(delay);
        beginning.oldest = beginning.oldest.or_else(|| published(delivery, topology, app));
    })?;
    Ok(JournalBeginning { cut_off, ..beginning })
}

/// When a message was published: its delay before it is due.
fn published(delivery: &Delivery, topology: &Topology, app: &AppKey) -> Option<Timestamp> {
    let entry = Entry::of(delivery, app)?;
    let delay = entry.key.delay.duration(topology.settings().unit.duration());
    entry.due?.checked_sub(SignedDuration::try_from(delay).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_is_counted_between_the_first_and_the_last() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let mut schedule = JournalSchedule::default();
        for (due, state) in [
            (50, ScheduleState::Waiting),
            (20, ScheduleState::Waiting),
            (90, ScheduleState::Waiting),
            (10, ScheduleState::Due),
            (99, ScheduleState::Recalled),
            (5, ScheduleState::Uncertain),
        ] {
            schedule.add(at(due), state);
        }
        let expected =
            JournalSchedule { waiting: 3, next: Some(at(20)), last: Some(at(90)), recalled: 1, uncertain: 1 };
        assert_eq!(schedule, expected);
    }
}
