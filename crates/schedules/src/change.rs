//! Adding, changing and removing schedules.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use serde::Serialize;

use delayline_core::{codec::Delay, message::Wire, topology::Topology};
use delayline_settings::Settings;

use crate::{
    book::{Book, Definition, Entry, Record, State},
    definition::{DefinitionError, Spec, Times, name::ScheduleName},
    error::{ScheduleError, doing},
    follower::size,
    listing::{daemons, known, unknown},
    place::{is_recallable, keeps, session},
    store::{Store, read_of},
    writer::Writer,
};

/// How long a daemon may take to recall messages published ahead, before that is reported. Without a daemon,
/// it is reported at once.
const RECALLED_WITHIN: Duration = Duration::from_secs(30);

/// The part of the stream that schedules may take.
const SHARE: u64 = 4;

/// What to do with a schedule.
#[derive(Debug, Clone, Copy)]
pub enum Change<'a> {
    /// Add it, or change it to this.
    Set(&'a Spec),
    /// Publish nothing until it is resumed.
    Pause,
    /// Publish from now on.
    Resume,
    /// Remove it.
    Remove,
}

/// What became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Changed {
    /// It is new.
    Added,
    /// It is different now.
    Changed,
    /// It was like this before.
    Unchanged,
    /// It publishes nothing.
    Paused,
    /// It publishes again.
    Resumed,
    /// It is gone.
    Removed,
}

/// The result of a change, or the planned result.
#[derive(Debug, Clone, PartialEq, Serialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct ScheduleChange {
    /// Its name.
    pub schedule: ScheduleName,
    /// What became of it.
    pub outcome: Changed,
    /// Whether nothing was changed.
    pub dry_run: bool,
    /// How many of its messages had been published ahead.
    pub ahead: usize,
    /// Whether messages of its application can be recalled. If not, those that were published ahead arrive.
    pub recall: bool,
    /// Whether a daemon has recalled messages published ahead; `None` if there was nothing to recall.
    pub recalled: Option<bool>,
    /// Its next occurrence.
    pub next: Option<Timestamp>,
    /// How many daemons publish schedules, or wait for their turn; `None` if that is unknown.
    pub daemons: Option<u32>,
}

/// Changes a schedule. A daemon recalls messages published ahead, and this waits for that for some seconds.
///
/// # Errors
/// The schedule is invalid or unknown, or the broker refuses or is lost.
pub fn change(
    settings: &Settings,
    topology: &Topology,
    name: &ScheduleName,
    change: Change<'_>,
    dry_run: bool,
) -> Result<ScheduleChange, ScheduleError> {
    let changed = change_all(settings, topology, &[(name, change)], dry_run)?.pop();
    changed.ok_or_else(|| unknown(name, settings))
}

/// Changes several schedules of one owner, like [`change`]. Nothing is changed if any change is impossible.
///
/// # Errors
/// As for [`change`].
pub fn change_all(
    settings: &Settings,
    topology: &Topology,
    changes: &[(&ScheduleName, Change<'_>)],
    dry_run: bool,
) -> Result<Vec<ScheduleChange>, ScheduleError> {
    let Some(owner) = changes.first().map(|(name, _)| name.owner()) else { return Ok(Vec::new()) };
    let owner = owner.as_ref();
    for (name, change) in changes {
        if let Change::Set(spec) = change {
            spec.check()?;
            if owner.is_some_and(|app| *app != spec.app) {
                let (name, app) = ((*name).clone(), spec.app.to_string());
                return Err(ScheduleError::ForOther { name, app });
            }
        }
    }
    let is_adding = changes.iter().any(|(_, change)| matches!(change, Change::Set(_)));
    let mut store = match dry_run {
        false if is_adding => Some(Store::make(settings, topology, owner)?),
        false => Store::open(settings, topology, owner)?,
        true => None,
    };
    let read_only;
    let book = match &store {
        Some(store) => &store.book,
        None => {
            read_only = read_of(settings, topology, [owner])?.unwrap_or_default();
            &read_only
        }
    };
    let plans = changes.iter().map(|(name, change)| plan(book, name, *change, settings));
    let plans = plans.collect::<Result<Vec<_>, _>>()?;
    let grows = plans.iter().filter(|plan| matches!(plan.outcome, Changed::Added | Changed::Changed));
    let bodies = grows.map(|plan| plan.definition.spec.body.len() as u64 * 4 / 3).sum::<u64>();
    let (size, most) = (size(book, owner, Timestamp::now()) + bodies, keeps(owner) / SHARE);
    if bodies > 0 && size > most {
        return Err(ScheduleError::Full { size, most });
    }
    let mut other = if store.is_none() { Some(session(settings)?) } else { None };
    let mut recallable = BTreeMap::new();
    let mut reports = Vec::new();
    for plan in &plans {
        let session = store.as_mut().map(|store| &mut store.session).or(other.as_mut());
        let Some(session) = session else { continue };
        let app = &plan.definition.spec.app;
        let recall = match recallable.get(app.as_str()) {
            Some(known) => *known,
            None => is_recallable(settings, topology, app, session)?,
        };
        recallable.insert(app.as_str(), recall);
        let daemons = if dry_run { None } else { daemons(session, topology) };
        reports.push(ScheduleChange { dry_run, recall, daemons, ..plan.report(settings) });
    }
    if let Some(store) = &mut store {
        for plan in plans.iter().filter(|plan| plan.outcome != Changed::Unchanged) {
            store.write(&Record::Definition(Box::new(plan.definition.clone())))?;
        }
        let deadline = Instant::now() + RECALLED_WITHIN;
        for report in &mut reports {
            if report.outcome != Changed::Unchanged && report.ahead > 0 && report.recall {
                let left = match report.daemons {
                    Some(0) => Duration::ZERO,
                    _ => deadline.saturating_duration_since(Instant::now()),
                };
                report.recalled = Some(store.wait(left, |book| book.to_be_recalled(&report.schedule) == 0)?);
            }
        }
    }
    Ok(reports)
}

/// The changes that add these schedules to a set that does not exist yet.
#[must_use]
pub fn added<'a>(
    settings: &Settings,
    wanted: impl IntoIterator<Item = &'a (ScheduleName, Spec)>,
) -> Vec<ScheduleChange> {
    let book = Book::default();
    let plans =
        wanted.into_iter().filter_map(|(name, spec)| plan(&book, name, Change::Set(spec), settings).ok());
    plans.map(|plan| ScheduleChange { dry_run: true, ..plan.report(settings) }).collect()
}

impl Planned {
    fn report(&self, settings: &Settings) -> ScheduleChange {
        let Self { outcome, definition, ahead } = self;
        let times = Times::of(&definition.spec, settings.topology.unit).ok();
        let next = times.filter(|_| definition.state == State::Active);
        ScheduleChange {
            schedule: definition.name.clone(),
            outcome: *outcome,
            dry_run: false,
            ahead: *ahead,
            recall: false,
            recalled: None,
            next: next.and_then(|times| times.next(Timestamp::now())),
            daemons: None,
        }
    }
}

struct Planned {
    outcome: Changed,
    definition: Definition,
    ahead: usize,
}

fn plan(
    book: &Book,
    name: &ScheduleName,
    change: Change<'_>,
    settings: &Settings,
) -> Result<Planned, ScheduleError> {
    let now = Timestamp::now();
    let found = book.get(name);
    let ahead = found.map_or(0, |entry| entry.ahead(now).len());
    let rev = book.next_rev(name, now);
    let (name, entry) = match (found, change) {
        (None, Change::Set(spec)) => {
            let (name, spec) = (name.clone(), spec.clone());
            let definition = Definition { name, rev, state: State::Active, after: now, spec };
            return Ok(Planned { outcome: Changed::Added, definition, ahead });
        }
        (None, _) => return Err(unknown(name, settings)),
        (Some(entry), _) => (name.clone(), entry),
    };
    let Entry { definition: before, .. } = entry;
    let mut definition = Definition { name, rev, ..before.clone() };
    // Occurrences that no daemon has published yet are not forgotten over a change.
    definition.after = now.min(entry.published_through());
    let outcome = match change {
        Change::Set(spec) if *spec == before.spec => Changed::Unchanged,
        Change::Set(spec) if spec.app != before.spec.app => {
            let app = before.spec.app.to_string();
            return Err(ScheduleError::OtherApp { name: definition.name, app });
        }
        Change::Set(spec) => {
            definition.spec = spec.clone();
            Changed::Changed
        }
        Change::Pause if before.state == State::Paused => Changed::Unchanged,
        Change::Pause => {
            definition.state = State::Paused;
            Changed::Paused
        }
        Change::Resume if before.state == State::Active => Changed::Unchanged,
        Change::Resume => {
            (definition.state, definition.after) = (State::Active, now);
            Changed::Resumed
        }
        Change::Remove => {
            definition.state = State::Removed;
            definition.spec.body.clear();
            Changed::Removed
        }
    };
    Ok(Planned { outcome, definition, ahead })
}

/// Publishes the message of a schedule once, without a delay. Returns its message id. The schedule goes on as
/// before.
///
/// # Errors
/// It is unknown, or the broker refuses or is lost.
pub fn run_now(
    settings: &Settings,
    topology: &Topology,
    name: &ScheduleName,
) -> Result<String, ScheduleError> {
    let book = read_of(settings, topology, [name.owner().as_ref()])?.unwrap_or_default();
    let entry = known(&book, name, settings)?;
    let spec = &entry.definition.spec;
    // As precise as its header.
    let now = Timestamp::from_millisecond(Timestamp::now().as_millisecond()).unwrap_or(Timestamp::MAX);
    let unit = settings.topology.unit;
    let times = Times::of(spec, unit).map_err(DefinitionError::from)?;
    let message = spec.message(name, now, times.zone(), Delay::ZERO);
    let wire = Wire::at(&message, unit, now).map_err(DefinitionError::from)?;
    let id = wire.properties.message_id.clone().unwrap_or_default();
    let mut writer = Writer::open(settings, topology)?;
    writer.push(&topology.names().entry(), wire.routing_key, (wire.properties, wire.headers), &spec.body);
    writer.confirm().map_err(doing("publishing the message"))?;
    Ok(id)
}
