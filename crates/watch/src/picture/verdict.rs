//! The meaning of a picture in a sentence: pure.

use serde::Serialize;

use delayline_admin::{Severity, grouped};

use super::{CanaryView, Lateness, LayoutView, Level, Picture};

/// The lateness of a canary from which on it is mentioned, in ms.
const LATE_MS: f64 = 5_000.0;

/// The number of messages being passed on from which on it is mentioned.
const MANY: u64 = 1_000;

/// What a picture means.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Verdict {
    /// How bad it is; `None` if nothing is wrong.
    pub severity: Option<Severity>,
    /// The most important thing to say, or that all is well.
    pub headline: String,
    /// What else there is to say, the worst first.
    pub more: Vec<Remark>,
}

/// A sentence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Remark {
    /// How bad it is.
    pub severity: Severity,
    /// The sentence.
    pub text: String,
}

impl Verdict {
    /// What a picture means.
    #[must_use]
    pub fn of(picture: &Picture) -> Self {
        let mut remarks: Vec<_> = [broker, set, stuck, canary, unroutable, parked, findings, handing_on]
            .iter()
            .filter_map(|look| look(picture))
            .collect();
        // What was seen of them was seen before the broker was gone.
        if picture.broker.reachable {
            remarks.extend(picture.layouts.iter().flat_map(layout));
        }
        Self::from(remarks, || well(picture))
    }

    /// What the delays of others mean.
    #[must_use]
    pub fn of_layout(view: &LayoutView) -> Self {
        Self::from(layout(view), || "Nothing is held up.".into())
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
    /// That there is no set, and what is watched in its place.
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
        return if all { "Nothing is held up." } else { "Nothing is known to be held up yet." }.into();
    }
    match &picture.canary {
        Some(canary) if canary.running && canary.arrived > 0 => "Delays are on time.".into(),
        _ if picture.stuck.is_none() => {
            "Nothing is known to be held up; stuck messages cannot be seen.".into()
        }
        _ => "Nothing is held up.".into(),
    }
}

fn broker(picture: &Picture) -> Option<Remark> {
    let broker = &picture.broker;
    (!broker.reachable).then(|| match broker.since {
        Some(_) => remark(Severity::Problem, "The broker cannot be reached."),
        None => remark(Severity::Advice, "The broker has not been asked yet."),
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
                format!("The set `{set}` is not as it should be: {what}. What to do: delayline verify."),
            )
        }
        all => {
            let count = all.len();
            remark(
                Severity::Problem,
                format!(
                    "The set `{set}` differs in {count} places from what it should be. What to do: delayline verify."
                ),
            )
        }
    })
}

fn stuck(picture: &Picture) -> Option<Remark> {
    stuck_levels(&picture.levels, "")
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

fn canary(picture: &Picture) -> Option<Remark> {
    flown(picture.canary.as_ref().filter(|_| picture.broker.reachable)?, "")
}

/// What a canary says, of the set or `of` something else.
fn flown(canary: &CanaryView, of: &str) -> Option<Remark> {
    if canary.missing > 0 {
        let (count, are) = match canary.missing {
            1 => ("1 canary message".into(), "is"),
            many => (format!("{many} canary messages"), "are"),
        };
        return Some(remark(Severity::Problem, format!("{count}{of} {are} missing.")));
    }
    if canary.overdue > 0 {
        return Some(remark(Severity::Advice, format!("Canary messages{of} are overdue.")));
    }
    if let Some(reason) = &canary.problem {
        return Some(remark(Severity::Advice, format!("The canary{of} is not running: {reason}.")));
    }
    let worst = |moment: &Lateness| moment.worst_ms.unwrap_or(0.0);
    let latest = canary.lateness.iter().rev().take(6).map(worst).fold(0.0, f64::max);
    (latest >= LATE_MS).then(|| {
        remark(
            Severity::Advice,
            format!("Delays{of} are late: by up to {:.0} s in the last minute.", latest / 1_000.0),
        )
    })
}

fn unroutable(picture: &Picture) -> Option<Remark> {
    let count = picture.unroutable.filter(|count| *count > 0)?;
    Some(match picture.unroutable_last_minute {
        Some(new @ 1..) => {
            let new = u64::try_from(new).unwrap_or(0);
            remark(Severity::Advice, format!("{} for nobody{}.", messages(count), lately(new, count)))
        }
        _ => remark(
            Severity::Info,
            format!("{} for nobody {} kept as unroutable.", messages(count), are(count)),
        ),
    })
}

fn parked(picture: &Picture) -> Option<Remark> {
    let count = picture.parked.filter(|count| *count > 0)?;
    Some(match picture.parked_last_minute {
        Some(new @ 1..) => {
            let new = u64::try_from(new).unwrap_or(0);
            remark(Severity::Advice, format!("{} parked{}.", messages(count), lately(new, count)))
        }
        _ => remark(Severity::Info, format!("{} parked.", messages(count))),
    })
}

/// The delays of others.
fn layout(view: &LayoutView) -> Vec<Remark> {
    let name = &view.layout;
    if view.problem.is_some() {
        return vec![remark(Severity::Advice, format!("Layout `{name}` cannot be seen."))];
    }
    if view.counted.is_none() {
        return vec![remark(Severity::Info, format!("Layout `{name}` has not been looked at yet."))];
    }
    let missing = view.levels.iter().filter(|level| level.ready.is_none()).count();
    let missing = (missing > 0).then(|| {
        let text = format!("Layout `{name}` is not complete: {missing} of its queues are missing.");
        remark(Severity::Problem, text)
    });
    let of = format!(" of layout `{name}`");
    let stuck = stuck_levels(&view.levels, &of);
    let canary = view.canary.as_ref().and_then(|canary| flown(canary, &of));
    let guard = match (view.guarded, view.exchanges) {
        (Some(0), _) => {
            Some((Severity::Info, "has no guard: 32 messages that nobody is bound for stall it".to_owned()))
        }
        (Some(some), Some(all)) if some < all => {
            Some((Severity::Advice, format!("is only half guarded: {some} of its {all} exchanges are")))
        }
        _ => None,
    };
    let guard = guard.map(|(severity, what)| {
        remark(severity, format!("Layout `{name}` {what}; run delayline guard {name}."))
    });
    let kept = view.unroutable.filter(|count| *count > 0).map(|count| {
        let text =
            format!("{} for nobody {} kept by the guard of layout `{name}`.", messages(count), are(count));
        remark(Severity::Info, text)
    });
    [missing, stuck, canary, guard, kept].into_iter().flatten().collect()
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
        return " came in the last minute".into();
    }
    format!(", {} of them in the last minute", grouped(new))
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::picture::{Checkup, sample};
    use delayline_admin::{Finding, FindingCode};

    fn seen() -> Picture {
        let mut picture = sample::nothing();
        picture.broker.reachable = true;
        picture.broker.since = Some(picture.at);
        picture.verified.ok = Some(true);
        picture.stuck = Some(0);
        picture
    }

    #[test]
    fn what_cannot_be_seen_is_not_called_well() {
        let mut picture = seen();
        picture.stuck = None;
        let said = Verdict::of(&picture);
        assert_eq!(said.headline, "Nothing is known to be held up; stuck messages cannot be seen.");
        assert_eq!(said.severity, None);
        // What arrives says more than a count.
        picture.canary = Some(CanaryView { running: true, arrived: 3, ..CanaryView::default() });
        assert_eq!(Verdict::of(&picture).headline, "Delays are on time.");
        // Before it was compared with what it should be.
        picture.verified.ok = None;
        assert_eq!(Verdict::of(&picture).headline, "Delays are on time.");
        picture.counted = Some(picture.at);
        assert_eq!(Verdict::of(&picture).headline, "No queue of the set `delay` can be seen.");
    }

    #[test]
    fn says_what_is_worst_and_then_the_rest() {
        let mut picture = seen();
        assert_eq!(Verdict::of(&picture).headline, "Nothing is held up.");
        picture.canary = Some(CanaryView { running: true, arrived: 3, ..CanaryView::default() });
        assert_eq!(Verdict::of(&picture).headline, "Delays are on time.");
        picture.unroutable = Some(12_345);
        let verdict = Verdict::of(&picture);
        assert_eq!((verdict.severity, verdict.headline.as_str()), (None, "Delays are on time."));
        assert_eq!(verdict.more[0].text, "12,345 messages for nobody are kept as unroutable.");
        picture.unroutable_last_minute = Some(300);
        let at = picture.at;
        let level = &mut picture.levels[24];
        // However many there are: they move.
        level.handing_on = Some(143_997);
        let verdict = Verdict::of(&picture);
        assert_eq!(verdict.severity, Some(Severity::Advice), "of the unroutable ones: {verdict:?}");
        let last = verdict.more.last().unwrap();
        assert_eq!(last.text, "143,997 messages fell due together and are being handed on.");
        assert_eq!(last.severity, Severity::Info);
        let level = &mut picture.levels[24];
        (level.handing_on, level.stuck, level.stuck_since) = (Some(20), Some(20), Some(at));
        let verdict = Verdict::of(&picture);
        assert_eq!(verdict.headline, "Level 03 is stuck: 20 messages cannot move on.");
        assert_eq!((verdict.severity, verdict.more.len()), (Some(Severity::Problem), 1));
        picture.broker.reachable = false;
        assert_eq!(Verdict::of(&picture).headline, "The broker cannot be reached.");
    }

    #[test]
    fn says_what_canaries_and_checks_found() {
        let mut picture = seen();
        let canary = CanaryView { running: true, arrived: 9, missing: 1, ..CanaryView::default() };
        picture.canary = Some(canary.clone());
        assert_eq!(Verdict::of(&picture).headline, "1 canary message is missing.");
        picture.canary = Some(CanaryView { missing: 0, ..canary });
        let finding = |code, what: &str| Finding::new(code, "queue `q`", what, "");
        let mut small = finding(FindingCode::TargetClassic, "small");
        small.severity = Severity::Info;
        let findings = vec![small, finding(FindingCode::TargetCanRefuse, "full")];
        picture.checkup = Some(Checkup { findings, ..Checkup::default() });
        let verdict = Verdict::of(&picture);
        assert_eq!(verdict.headline, "queue `q`: full (1 more below)");
        assert_eq!(verdict.severity, Some(Severity::Advice));
    }

    #[test]
    fn where_there_is_no_set_the_delays_of_others_come_first() {
        let mut picture = seen();
        (picture.stuck, picture.verified.ok, picture.verified.installed) = (None, Some(false), Some(false));
        assert_eq!(Verdict::of(&picture).headline, "The set `delay` is not installed.");
        picture.verified.awaited = true;
        picture.layouts = vec![sample::layout(), LayoutView::unseen("celery".parse().unwrap(), "/")];
        let verdict = Verdict::of(&picture);
        assert_eq!(verdict.headline, "Nothing is known to be held up yet.");
        let none = "No set `delay` here; watching nservicebus, celery.";
        assert_eq!((verdict.severity, verdict.more[0].text.as_str()), (None, none));
        picture.layouts.pop();
        assert_eq!(Verdict::of(&picture).headline, "Nothing is held up.");
        picture.layouts[0].problem = Some("nobody answers".into());
        assert_eq!(Verdict::of(&picture).headline, "Layout `nservicebus` cannot be seen.");
    }

    #[test]
    fn says_what_is_wrong_with_the_delays_of_others() {
        let mut view = sample::layout();
        assert_eq!(Verdict::of_layout(&view).headline, "Nothing is held up.");
        view.unroutable = Some(7);
        let verdict = Verdict::of_layout(&view);
        assert_eq!((verdict.severity, verdict.more.len()), (None, 1));
        assert_eq!(
            verdict.more[0].text,
            "7 messages for nobody are kept by the guard of layout `nservicebus`."
        );
        view.canary = Some(CanaryView { running: true, missing: 2, ..CanaryView::default() });
        let missing = "2 canary messages of layout `nservicebus` are missing.";
        assert_eq!(Verdict::of_layout(&view).headline, missing);
        view.canary = None;
        view.guarded = Some(3);
        let half = "Layout `nservicebus` is only half guarded: 3 of its 29 exchanges are; run delayline guard \
                    nservicebus.";
        assert_eq!(Verdict::of_layout(&view).headline, half);
        (view.guarded, view.unroutable) = (Some(0), None);
        assert!(Verdict::of_layout(&view).more[0].text.contains("no guard"), "{view:#?}");
        (view.levels[27].stuck, view.levels[27].stuck_since) = (Some(40), Some(Timestamp::UNIX_EPOCH));
        let mut picture = seen();
        picture.layouts.push(view.clone());
        let stuck = "Level 00 of layout `nservicebus` is stuck: 40 messages cannot move on.";
        assert_eq!(Verdict::of(&picture).headline, stuck);
        picture.broker.reachable = false;
        assert_eq!(Verdict::of(&picture).headline, "The broker cannot be reached.");
        view.levels[3].ready = None;
        assert!(Verdict::of_layout(&view).headline.contains("1 of its queues"), "{view:#?}");
        view.problem = Some("nobody answers".into());
        let blind = "Layout `nservicebus` cannot be seen.";
        assert_eq!(
            Verdict::of_layout(&view),
            Verdict { severity: Some(Severity::Advice), headline: blind.into(), more: vec![] }
        );
    }

    #[test]
    fn says_that_a_set_is_not_installed() {
        let mut picture = seen();
        picture.verified.ok = Some(false);
        picture.verified.installed = Some(false);
        picture.verified.problems = vec!["it is missing".into()];
        assert_eq!(Verdict::of(&picture).headline, "The set `delay` is not installed.");
    }
}
