//! Removing expired recalls.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

use super::{GRACE, Recall, api, of_each, recalls_of, safe::postponed};
use crate::{error::AdminError, error::connect, error::doing};
use delayline_amqp::Session;
use delayline_core::{backoff::Pace, codec::RoutingKey, topology::Topology};
use delayline_settings::Settings;

/// How to remove expired recalls.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SweepOptions {
    /// How long after the due time of its message a recall stays: an hour by default. Nodes must have been
    /// up for as long.
    pub grace: Duration,
    /// The most that are removed in one run; 100,000 by default.
    pub at_most: usize,
    /// How many are removed each second, at most; 100 by default.
    pub per_second: u32,
    /// Whether to change nothing.
    pub dry_run: bool,
}

impl Default for SweepOptions {
    fn default() -> Self {
        Self { grace: GRACE, at_most: 100_000, per_second: 100, dry_run: false }
    }
}

impl SweepOptions {
    /// Sets how long a recall stays after its message was due.
    #[must_use]
    pub fn with_grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Changes nothing.
    #[must_use]
    pub fn dry_run(mut self) -> Self {
        self.dry_run = true;
        self
    }
}

/// What a sweep did for one application.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct SweptApp {
    /// How many recalls there were.
    pub recalls: usize,
    /// How many were removed, or would be.
    pub swept: usize,
    /// How many have expired and stay until the next run.
    pub left: usize,
    /// When the message of the oldest of those was due, at the latest.
    #[serde(skip)]
    pub oldest_left: Option<Timestamp>,
}

/// What a sweep did.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct SweepReport {
    /// Whether nothing was changed.
    pub dry_run: bool,
    /// How many recalls there were.
    pub recalls: usize,
    /// How many were removed, or would be.
    pub swept: usize,
    /// How many were found for the first time. The latest due time of their messages is noted: the delay,
    /// counted from now.
    pub noted: usize,
    /// How many had been undone, so that their notes were removed, or would be.
    pub undone: usize,
    /// How many have expired and stay until the next run: there were too many, or it was interrupted.
    pub left: usize,
    /// How many have a key that no message can have. Their purpose is unknown.
    pub odd: usize,
    /// Why expired recalls are not removed at the moment.
    pub postponed: Option<String>,
    /// Whether it was interrupted.
    pub interrupted: bool,
    /// The same by application.
    pub apps: BTreeMap<String, SweptApp>,
    /// Why the recalls of an application cannot be listed, by application: they stay.
    pub unchecked: BTreeMap<String, String>,
}

/// The next step for a recall.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Keep,
    Sweep,
    /// Note that its message is due at this time at the latest.
    Note(Timestamp),
    /// Remove the note of an undone recall. If it stayed, it would count for a later recall of another
    /// message with the same key, which would be removed too early.
    Forget,
    Odd,
}

/// Removes expired recalls, if that is safe now.
///
/// # Errors If there is no management API, or the broker refuses; another run continues from there.
pub fn sweep_recalls(
    settings: &Settings,
    topology: &Topology,
    options: &SweepOptions,
    stop: &AtomicBool,
) -> Result<SweepReport, AdminError> {
    let api = api(settings)?;
    let mut report = SweepReport { dry_run: options.dry_run, ..SweepReport::default() };
    let apps = super::apps(&api, settings, topology)?;
    let (found, unlisted) = of_each(apps, |app| recalls_of(&api, settings, topology, app))?;
    report.unchecked = unlisted;
    report.apps = found.keys().map(|app| (app.clone(), SweptApp::default())).collect();
    let (mut over, mut new, mut undone) = (Vec::new(), Vec::new(), Vec::new());
    let now = Timestamp::now();
    for recall in found.into_values().flatten() {
        if recall.bound {
            report.recalls += 1;
            report.of(&recall).recalls += 1;
        }
        match step(&recall, options.grace, topology, now) {
            Step::Keep => {}
            Step::Sweep => over.push(recall),
            Step::Note(at) => new.push((recall, at)),
            Step::Forget => undone.push(recall),
            Step::Odd => report.odd += 1,
        }
    }
    let mut session = connect(&settings.broker)?;
    let mut pace = Pace::new(Some(options.per_second));
    for (recall, at) in &new {
        if report.stopped(stop) {
            return Ok(report);
        }
        if !options.dry_run {
            pace.wait();
            let (binding, arguments) = recall.note(topology, *at);
            session
                .bind_with(&binding, &arguments)
                .map_err(doing(format!("noting when `{}` is due", recall.handle)))?;
        }
        report.noted += 1;
    }
    for recall in &undone {
        if report.stopped(stop) {
            return Ok(report);
        }
        if !options.dry_run {
            pace.wait();
            forget(&mut session, recall, topology)?;
        }
        report.undone += 1;
    }
    if over.is_empty() {
        return Ok(report);
    }
    report.postponed = postponed(&api, settings, topology, options.grace, stop)?;
    if report.postponed.is_some() {
        report.leave(&over);
        return Ok(report);
    }
    for (index, recall) in over.iter().enumerate() {
        if index >= options.at_most || report.stopped(stop) {
            report.leave(&over[index..]);
            break;
        }
        if !options.dry_run {
            pace.wait();
            // The note goes last: without it, the recall would be noted again.
            session
                .unbind(&recall.binding(topology))
                .map_err(doing(format!("removing the recall of `{}`", recall.handle)))?;
            forget(&mut session, recall, topology)?;
        }
        report.swept += 1;
        report.of(recall).swept += 1;
    }
    Ok(report)
}

/// Removes all notes of a recall.
fn forget(session: &mut Session, recall: &Recall, topology: &Topology) -> Result<(), AdminError> {
    for (note, arguments) in recall.notes(topology) {
        session
            .unbind_with(&note, &arguments)
            .map_err(doing(format!("removing the notes about `{}`", recall.handle)))?;
    }
    Ok(())
}

impl SweepReport {
    fn of(&mut self, recall: &Recall) -> &mut SweptApp {
        self.apps.entry(recall.app.to_string()).or_default()
    }

    /// Leaves these for the next run.
    fn leave(&mut self, over: &[Recall]) {
        self.left = over.len();
        for recall in over {
            let of_app = self.of(recall);
            of_app.left += 1;
            of_app.oldest_left = [of_app.oldest_left, recall.due()].into_iter().flatten().min();
        }
    }

    fn stopped(&mut self, stop: &AtomicBool) -> bool {
        self.interrupted |= stop.load(Ordering::Relaxed);
        self.interrupted
    }
}

fn step(recall: &Recall, grace: Duration, topology: &Topology, now: Timestamp) -> Step {
    let grace = SignedDuration::try_from(grace).unwrap_or(SignedDuration::MAX);
    if !recall.bound {
        return Step::Forget;
    }
    match (recall.due(), recall.handle.parse::<RoutingKey>()) {
        (Some(due), _) if now.duration_since(due) > grace => Step::Sweep,
        (Some(_), _) => Step::Keep,
        // The message was published before it was recalled, so it is due after its delay at the latest.
        (None, Ok(key)) => {
            let delay = key.delay.duration(topology.settings().unit.duration());
            now.checked_add(delay).map_or(Step::Odd, Step::Note)
        }
        (None, Err(_)) => Step::Odd,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use delayline_core::{codec::AppKey, topology::TopologySettings};

    const KEY: &str = "delay.0000.0000.0000.0000.0000.0000.1010.billing.~.17";

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn step_at(now: i64, handle: &str, due: Option<i64>) -> Step {
        let topology = Topology::new(TopologySettings::default());
        let app = AppKey::new("billing").unwrap();
        let notes = due.map(at).into_iter().collect();
        let recall = Recall { app, handle: handle.into(), notes, bound: true };
        step(&recall, Duration::from_secs(3_600), &topology, at(now))
    }

    #[test]
    fn a_recall_stays_for_an_hour_after_its_message_was_due() {
        assert_eq!(step_at(0, KEY, Some(1_000)), Step::Keep);
        assert_eq!(step_at(1_000 + 3_600, KEY, Some(1_000)), Step::Keep);
        assert_eq!(step_at(1_000 + 3_601, KEY, Some(1_000)), Step::Sweep);
    }

    #[test]
    fn the_message_of_a_new_recall_is_due_at_the_latest_after_its_delay() {
        assert_eq!(step_at(100, KEY, None), Step::Note(at(110)));
        assert_eq!(step_at(100, "anything", None), Step::Odd);
        assert_eq!(step_at(100 + 3_600, "anything", Some(5)), Step::Sweep);
    }
}
