//! The meaning of a picture in a sentence: pure.

use delayline_core::shell::command;
use serde::Serialize;

use delayline_admin::{Severity, grouped};

use super::{Lateness, LayoutView, Level, Picture};

/// The lateness of a canary from which on it is mentioned, in ms.
const LATE_MS: f64 = 5_000.0;

/// The number of messages being passed on from which on it is mentioned.
const MANY: u64 = 1_000;

/// The sentences while nothing is stuck for certain.
const CANNOT_COUNT: &str = "No problem is known, but stuck messages cannot be counted.";
const UNCOUNTED: &str = "No problem is known, but not all messages can be counted.";
const NOT_YET: &str = "No message is known to be stuck yet.";

/// The meaning of a picture.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct Verdict {
    /// Its severity; `None` without a problem.
    pub severity: Option<Severity>,
    /// The most important sentence.
    pub headline: String,
    /// More remarks, the worst first.
    pub more: Vec<Remark>,
}

/// A sentence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct Remark {
    /// Its severity.
    pub severity: Severity,
    /// The sentence.
    pub text: String,
}

impl Verdict {
    /// The meaning of a picture.
    #[must_use]
    pub fn of(picture: &Picture) -> Self {
        let mut remarks: Vec<_> =
            [broker, alarms, set, stuck, landings, canary, unroutable, parked, findings, handing_on, open]
                .iter()
                .filter_map(|look| look(picture))
                .collect();
        // While the broker is gone, the counts of the layouts are old.
        if picture.broker.reachable {
            remarks.extend(picture.layouts.iter().flat_map(layout));
        }
        Self::from(remarks, || well(picture))
    }

    /// The meaning of the counts of a layout.
    #[must_use]
    pub fn of_layout(view: &LayoutView) -> Self {
        Self::from(layout(view), || match (view.stuck, view.open) {
            (None, _) if view.counted.is_some() => CANNOT_COUNT.into(),
            (_, Some(1..)) => NOT_YET.into(),
            _ => "No message is stuck.".into(),
        })
    }

    fn from(mut remarks: Vec<Remark>, well: impl FnOnce() -> String) -> Self {
        // A stable sort: within a severity the order stays.
        remarks.sort_by_key(|remark| remark.severity);
        if remarks.first().is_none_or(|worst| worst.severity == Severity::Info) {
            return Self { severity: None, headline: well(), more: remarks };
        }
        let worst = remarks.remove(0);
        Self { severity: Some(worst.severity), headline: worst.text, more: remarks }
    }
}

impl Picture {
    /// The sentence that no set exists, with the watched layouts.
    #[must_use]
    pub fn without_set(&self) -> String {
        let layouts: Vec<_> = self.layouts.iter().map(|view| view.layout.to_string()).collect();
        format!("No set `{}` here; watching {}", self.set, layouts.join(", "))
    }
}

fn remark(severity: Severity, text: impl Into<String>) -> Remark {
    Remark { severity, text: text.into() }
}

fn well(picture: &Picture) -> String {
    if picture.verified.awaited {
        let all = picture.layouts.iter().all(|view| view.counted.is_some());
        return if all { "No message is stuck." } else { NOT_YET }.into();
    }
    match &picture.canary {
        Some(canary) if canary.running && canary.arrived > 0 => "Delays are on time.".into(),
        _ if picture.stuck.is_none() => CANNOT_COUNT.into(),
        _ if picture.waiting.is_none() || picture.unroutable.is_none() => UNCOUNTED.into(),
        _ if all_open(picture) > Some(0) => NOT_YET.into(),
        _ => "No message is stuck.".into(),
    }
}

fn broker(picture: &Picture) -> Option<Remark> {
    let broker = &picture.broker;
    (!broker.reachable).then(|| match broker.since {
        Some(_) => remark(Severity::Problem, "The broker cannot be reached."),
        None => remark(Severity::Advice, "The broker has not been asked yet."),
    })
}

/// Publishers wait while a node is in alarm.
fn alarms(picture: &Picture) -> Option<Remark> {
    let alarms = picture.broker.alarms.as_deref().filter(|alarms| !alarms.is_empty())?;
    picture.broker.reachable.then(|| {
        let text = format!("The broker accepts no messages: alarm on {}.", alarms.join(", "));
        remark(Severity::Problem, text)
    })
}

fn set(picture: &Picture) -> Option<Remark> {
    let (set, problems) = (&picture.set, &picture.verified.problems);
    let none_seen = || picture.levels.iter().all(|level| level.ready.is_none());
    if picture.verified.ok.is_none() && picture.counted.is_some() && none_seen() {
        return Some(remark(Severity::Advice, format!("No queue of the set `{set}` can be seen.")));
    }
    if picture.verified.ok != Some(false) {
        return None;
    }
    if picture.verified.awaited {
        return Some(remark(Severity::Info, format!("{}.", picture.without_set())));
    }
    if picture.verified.installed == Some(false) {
        return Some(remark(Severity::Problem, format!("The set `{set}` is not installed.")));
    }
    Some(match problems.as_slice() {
        [] | [_] => {
            let what = problems.first().map_or("something differs", String::as_str);
            remark(
                Severity::Problem,
                format!(
                    "The set `{set}` differs from its definition: {what}. What to do: {}.",
                    command(&["verify"])
                ),
            )
        }
        all => {
            let count = all.len();
            remark(
                Severity::Problem,
                format!(
                    "The set `{set}` differs from its definition in {count} places. What to do: {}.",
                    command(&["verify"])
                ),
            )
        }
    })
}

fn stuck(picture: &Picture) -> Option<Remark> {
    stuck_levels(&picture.levels, "")
}

/// The landing queues whose applications accept nothing.
fn landings(picture: &Picture) -> Option<Remark> {
    let stuck: Vec<_> = picture.landings.iter().flatten().filter(|it| it.stuck > 0).collect();
    let count = messages(stuck.iter().map(|it| it.stuck).sum());
    let text = match stuck.as_slice() {
        [] => return None,
        [one] => format!("Queue `{}` is stuck: `{}` does not accept {count}.", one.queue, one.app),
        several => format!("{} applications do not accept {count}.", several.len()),
    };
    Some(remark(Severity::Problem, text))
}

/// The due messages of the levels and landing queues that have just come; `None` if unknown.
fn all_open(picture: &Picture) -> Option<u64> {
    Some(picture.open? + picture.landings.iter().flatten().map(|it| it.open).sum::<u64>())
}

/// The levels of the set, or `of` something else.
fn stuck_levels(levels: &[Level], of: &str) -> Option<Remark> {
    let stuck: Vec<&Level> = levels.iter().filter(|level| level.stuck_since.is_some()).collect();
    let count: u64 = stuck.iter().filter_map(|level| level.stuck).sum();
    match stuck.as_slice() {
        [] => None,
        [level] => Some(remark(
            Severity::Problem,
            format!("Level {:02}{of} is stuck: {} cannot move on.", level.level, messages(count)),
        )),
        several => Some(remark(
            Severity::Problem,
            format!("{} levels{of} are stuck: {} cannot move on.", several.len(), messages(count)),
        )),
    }
}

/// Messages that move, if there are many: nothing is wrong with them, but they are late.
fn handing_on(picture: &Picture) -> Option<Remark> {
    let moving = |level: &Level| level.handing_on.unwrap_or(0).saturating_sub(level.stuck.unwrap_or(0));
    let count: u64 = picture.levels.iter().map(moving).sum();
    (count >= MANY).then(|| {
        remark(Severity::Info, format!("{} fell due together and are being handed on.", messages(count)))
    })
}

/// Messages that have just come: whether they move is not known yet.
fn open(picture: &Picture) -> Option<Remark> {
    just_come(all_open(picture)?, "")
}

/// The same of the set, or `of` something else.
fn just_come(count: u64, of: &str) -> Option<Remark> {
    (count > 0).then(|| {
        let text =
            format!("{}{of} {} due, and it is not known yet whether they move.", messages(count), are(count));
        remark(Severity::Info, text)
    })
}

fn canary(picture: &Picture) -> Option<Remark> {
    let canary = picture.canary.as_ref().filter(|_| picture.broker.reachable)?;
    if canary.missing > 0 {
        let (count, are) = match canary.missing {
            1 => ("1 canary message".into(), "is"),
            many => (format!("{many} canary messages"), "are"),
        };
        return Some(remark(Severity::Problem, format!("{count} {are} missing.")));
    }
    if canary.overdue > 0 {
        return Some(remark(Severity::Advice, "Canary messages are overdue."));
    }
    if let Some(reason) = &canary.problem {
        return Some(remark(Severity::Advice, format!("The canary is not running: {reason}.")));
    }
    let worst = |moment: &Lateness| moment.worst_ms.unwrap_or(0.0);
    let latest = canary.lateness.iter().rev().take(6).map(worst).fold(0.0, f64::max);
    (latest >= LATE_MS).then(|| {
        remark(
            Severity::Advice,
            format!("Delays are late: by up to {:.0} s in the last minute.", latest / 1_000.0),
        )
    })
}

fn unroutable(picture: &Picture) -> Option<Remark> {
    let count = picture.unroutable.filter(|count| *count > 0)?;
    Some(match picture.unroutable_last_minute {
        Some(new @ 1..) => {
            let new = u64::try_from(new).unwrap_or(0);
            let text = format!("{} {} unroutable{}.", messages(count), are(count), lately(new, count));
            remark(Severity::Advice, text)
        }
        _ => remark(Severity::Info, format!("{} {} unroutable.", messages(count), are(count))),
    })
}

fn parked(picture: &Picture) -> Option<Remark> {
    let count = picture.parked.filter(|count| *count > 0)?;
    Some(match picture.parked_last_minute {
        Some(new @ 1..) => {
            let new = u64::try_from(new).unwrap_or(0);
            let text = format!("{} {} parked{}.", messages(count), are(count), lately(new, count));
            remark(Severity::Advice, text)
        }
        _ => remark(Severity::Info, format!("{} {} parked.", messages(count), are(count))),
    })
}

/// The remarks on a layout.
fn layout(view: &LayoutView) -> Vec<Remark> {
    let name = &view.layout;
    if view.problem.is_some() {
        return vec![remark(Severity::Advice, format!("Layout `{name}` cannot be seen."))];
    }
    if view.counted.is_none() {
        return vec![remark(Severity::Info, format!("Layout `{name}` has not been counted yet."))];
    }
    let missing = view.missing.unwrap_or(0);
    let missing = (missing > 0).then(|| {
        let text = format!("Layout `{name}` is not complete: {missing} of its queues are missing.");
        remark(Severity::Problem, text)
    });
    let of = format!(" of layout `{name}`");
    let stuck = stuck_levels(&view.levels, &of);
    let open = view.open.and_then(|count| just_come(count, &of));
    let guard = match (view.guarded, view.exchanges) {
        (Some(0), _) => {
            Some((Severity::Info, "has no guard: 32 messages without a bound queue stall it".to_owned()))
        }
        (Some(some), Some(all)) if some < all => {
            Some((Severity::Advice, format!("is only partly guarded: {some} of its {all} exchanges are")))
        }
        _ => None,
    };
    let guard = guard.map(|(severity, what)| {
        remark(
            severity,
            format!("Layout `{name}` {what}; run {}.", command(&["guard", "add", &name.to_string()])),
        )
    });
    let kept = view.unroutable.filter(|count| *count > 0).map(|count| {
        let text =
            format!("{} of layout `{name}` {} unroutable, kept by its guard.", messages(count), are(count));
        remark(Severity::Info, text)
    });
    [missing, stuck, guard, kept, open].into_iter().flatten().collect()
}

fn findings(picture: &Picture) -> Option<Remark> {
    let findings = &picture.checkup.as_ref()?.findings;
    let worst = findings.iter().min_by_key(|finding| finding.severity)?;
    let more = match findings.len() - 1 {
        0 => String::new(),
        more => format!(" ({more} more below)"),
    };
    Some(remark(worst.severity, format!("{}: {}{more}", worst.subject, worst.what)))
}

fn are(count: u64) -> &'static str {
    if count == 1 { "is" } else { "are" }
}

fn messages(count: u64) -> String {
    format!("{} message{}", grouped(count), if count == 1 { "" } else { "s" })
}

fn lately(new: u64, all: u64) -> String {
    if new >= all {
        return ", all from the last minute".into();
    }
    format!(", {} of them from the last minute", grouped(new))
}

#[cfg(test)]
mod tests;
