//! Listing schedules.

use jiff::Timestamp;
use serde::Serialize;

use delayline_amqp::Session;
use delayline_core::{codec::AppKey, topology::Topology};
use delayline_settings::Settings;

use crate::{
    book::{Book, Entry, State},
    definition::{Spec, Times, name::ScheduleName},
    error::ScheduleError,
    place::{is_recallable, session},
    store::{read, read_of},
};

/// How many daemons publish schedules, or wait for their turn.
pub(crate) fn daemons(session: &mut Session, topology: &Topology) -> Option<u32> {
    session.queue_depth(&topology.names().schedules_turn()).ok().flatten().and_then(|depth| depth.consumers)
}

/// All schedules of a set.
#[derive(Debug, Clone, PartialEq, Serialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct AllSchedules {
    /// The set.
    pub set: String,
    /// How many daemons publish schedules, or wait for their turn; `None` if that is unknown.
    pub daemons: Option<u32>,
    /// The schedules, by name.
    pub schedules: Vec<ScheduleSummary>,
}

/// A schedule, and how far it is.
#[derive(Debug, Clone, PartialEq, Serialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct ScheduleSummary {
    /// Its name.
    pub schedule: ScheduleName,
    /// Its application.
    pub app: String,
    /// Its times, in words.
    pub times: String,
    /// What it does.
    pub state: State,
    /// Its next occurrence; in the past if it was not published in time. `None` if it is paused or has ended.
    pub next: Option<Timestamp>,
    /// How many of its messages wait.
    pub ahead: usize,
    /// Whether its times cannot be computed here, and why.
    pub fault: Option<String>,
}

/// A schedule with everything that is known of it.
#[derive(Debug, Clone, PartialEq, Serialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct ScheduleDetails {
    /// A summary.
    #[serde(flatten)]
    pub summary: ScheduleSummary,
    /// Its times and its message.
    pub spec: Spec,
    /// Its next occurrences, in its own zone and in UTC.
    pub occurrences: Vec<Occurrence>,
    /// Whether messages of its application can be recalled.
    pub recall: bool,
    /// How many daemons publish schedules, or wait for their turn; `None` if that is unknown.
    pub daemons: Option<u32>,
}

/// An occurrence.
#[derive(Debug, Clone, PartialEq, Serialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct Occurrence {
    /// In the schedule's own zone.
    pub local: String,
    /// In UTC.
    pub utc: Timestamp,
}

impl ScheduleSummary {
    fn of(entry: &Entry, times: &Result<Times, String>, now: Timestamp) -> Self {
        let definition = &entry.definition;
        let upcoming = || times.as_ref().ok()?.next(entry.published_through());
        let next = entry.next_ahead(now).or_else(upcoming);
        Self {
            schedule: definition.name.clone(),
            app: definition.spec.app.to_string(),
            times: definition.spec.timing.to_string(),
            state: definition.state,
            next: next.filter(|_| definition.state == State::Active),
            ahead: entry.ahead(now).len(),
            fault: times.as_ref().err().cloned(),
        }
    }
}

/// The summaries of the schedules in a book.
#[must_use]
pub fn summaries(book: &Book, settings: &Settings, now: Timestamp) -> Vec<ScheduleSummary> {
    let of = |entry| ScheduleSummary::of(entry, &times_of(entry, settings), now);
    book.schedules().map(of).collect()
}

fn times_of(entry: &Entry, settings: &Settings) -> Result<Times, String> {
    Times::checked(&entry.definition.spec, settings.topology.unit).map_err(|error| error.to_string())
}

/// Lists all schedules, or those that an application manages itself.
///
/// # Errors
/// The broker refuses or is lost.
pub fn list(
    settings: &Settings,
    topology: &Topology,
    owner: Option<&AppKey>,
) -> Result<AllSchedules, ScheduleError> {
    let book = match owner {
        Some(_) => read_of(settings, topology, [owner])?,
        None => read(settings, topology)?,
    };
    let daemons = match &book {
        Some(_) => daemons(&mut session(settings)?, topology),
        None => None,
    };
    let schedules = summaries(&book.unwrap_or_default(), settings, Timestamp::now());
    Ok(AllSchedules { set: topology.settings().set.to_string(), daemons, schedules })
}

/// Shows a schedule, with its next `number` occurrences.
///
/// # Errors
/// It is unknown, or the broker refuses or is lost.
pub fn show(
    settings: &Settings,
    topology: &Topology,
    name: &ScheduleName,
    number: usize,
) -> Result<ScheduleDetails, ScheduleError> {
    let book = read_of(settings, topology, [name.owner().as_ref()])?.unwrap_or_default();
    let entry = known(&book, name, settings)?;
    let now = Timestamp::now();
    let times = times_of(entry, settings);
    let mut occurrences = Vec::new();
    if let (Ok(times), State::Active) = (&times, entry.definition.state) {
        let mut at = now;
        while occurrences.len() < number
            && let Some(next) = times.next(at)
        {
            let local = next.to_zoned(times.zone().clone()).strftime("%Y-%m-%d %H:%M:%S %:z").to_string();
            occurrences.push(Occurrence { local, utc: next });
            at = next;
        }
    }
    let mut session = session(settings)?;
    let spec = entry.definition.spec.clone();
    Ok(ScheduleDetails {
        summary: ScheduleSummary::of(entry, &times, now),
        recall: is_recallable(settings, topology, &spec.app, &mut session)?,
        daemons: daemons(&mut session, topology),
        spec,
        occurrences,
    })
}

pub(crate) fn unknown(name: &ScheduleName, settings: &Settings) -> ScheduleError {
    ScheduleError::Unknown { name: name.clone(), list: settings.command(&["schedule", "list"]) }
}

pub(crate) fn known<'a>(
    book: &'a Book,
    name: &ScheduleName,
    settings: &Settings,
) -> Result<&'a Entry, ScheduleError> {
    book.get(name).ok_or_else(|| unknown(name, settings))
}
