//! The sentences.

use jiff::Timestamp;

use super::*;
use crate::picture::{CanaryView, Checkup, LandingView, sample};
use delayline_admin::{Finding, FindingCode};

fn seen() -> Picture {
    let mut picture = sample::nothing();
    picture.broker.reachable = true;
    picture.broker.since = Some(picture.at);
    picture.verified.ok = Some(true);
    picture.stuck = Some(0);
    picture.waiting = Some(0);
    picture.unroutable = Some(0);
    picture
}

#[test]
fn unknown_counts_are_not_reported_as_healthy() {
    let mut picture = seen();
    picture.stuck = None;
    let said = Verdict::of(&picture);
    assert_eq!(said.headline, "No problem is known, but stuck messages cannot be counted.");
    assert_eq!(said.severity, None);
    // Arrivals prove more than a count.
    picture.canary = Some(CanaryView { running: true, arrived: 3, ..CanaryView::default() });
    assert_eq!(Verdict::of(&picture).headline, "Delays are on time.");
    // Before it was compared with its definition.
    picture.verified.ok = None;
    assert_eq!(Verdict::of(&picture).headline, "Delays are on time.");
    picture.counted = Some(picture.at);
    assert_eq!(Verdict::of(&picture).headline, "No queue of the set `delay` can be seen.");
}

#[test]
fn a_stuck_landing_queue_is_a_problem() {
    let mut picture = seen();
    let landing = |app: &str, open, stuck| LandingView {
        app: app.into(),
        queue: format!("delay.landing.{app}"),
        open,
        stuck,
        stuck_since: None,
    };
    picture.open = Some(1);
    picture.landings = Some(vec![landing("new", 7, 0)]);
    let verdict = Verdict::of(&picture);
    assert_eq!((verdict.severity, verdict.headline.as_str()), (None, "No message is known to be stuck yet."));
    assert_eq!(verdict.more[0].text, "8 messages are due, and it is not known yet whether they move.");
    picture.landings = Some(vec![landing("full", 0, 47)]);
    let verdict = Verdict::of(&picture);
    assert_eq!(verdict.headline, "Queue `delay.landing.full` is stuck: `full` does not accept 47 messages.");
    assert_eq!(verdict.severity, Some(Severity::Problem));
    picture.landings = Some(vec![landing("full", 0, 47), landing("gone", 0, 1)]);
    assert_eq!(Verdict::of(&picture).headline, "2 applications do not accept 48 messages.");
}

#[test]
fn reports_the_worst_first() {
    let mut picture = seen();
    assert_eq!(Verdict::of(&picture).headline, "No message is stuck.");
    picture.canary = Some(CanaryView { running: true, arrived: 3, ..CanaryView::default() });
    assert_eq!(Verdict::of(&picture).headline, "Delays are on time.");
    let mut blocked = seen();
    blocked.broker.alarms = Some(vec!["a@b (disk)".into()]);
    let verdict = Verdict::of(&blocked);
    assert_eq!(verdict.headline, "The broker accepts no messages: alarm on a@b (disk).");
    assert_eq!(verdict.severity, Some(Severity::Problem));
    let mut early = seen();
    early.open = Some(28);
    let verdict = Verdict::of(&early);
    assert_eq!((verdict.severity, verdict.headline.as_str()), (None, "No message is known to be stuck yet."));
    assert_eq!(verdict.more[0].text, "28 messages are due, and it is not known yet whether they move.");
    picture.unroutable = Some(12_345);
    let verdict = Verdict::of(&picture);
    assert_eq!((verdict.severity, verdict.headline.as_str()), (None, "Delays are on time."));
    assert_eq!(verdict.more[0].text, "12,345 messages are unroutable.");
    picture.unroutable_last_minute = Some(300);
    let at = picture.at;
    let level = &mut picture.levels[24];
    // Any number is fine: they move.
    level.handing_on = Some(143_997);
    let verdict = Verdict::of(&picture);
    assert_eq!(verdict.severity, Some(Severity::Advice), "for the unroutable messages: {verdict:?}");
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
fn reports_the_results_of_canaries_and_checks() {
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
fn without_a_set_layouts_come_first() {
    let mut picture = seen();
    (picture.stuck, picture.verified.ok, picture.verified.installed) = (None, Some(false), Some(false));
    assert_eq!(Verdict::of(&picture).headline, "The set `delay` is not installed.");
    picture.verified.awaited = true;
    picture.layouts = vec![sample::layout(), LayoutView::unseen("celery".parse().unwrap(), "/")];
    let verdict = Verdict::of(&picture);
    assert_eq!(verdict.headline, "No message is known to be stuck yet.");
    let none = "No set `delay` here; watching nservicebus, celery.";
    assert_eq!((verdict.severity, verdict.more[0].text.as_str()), (None, none));
    picture.layouts.pop();
    assert_eq!(Verdict::of(&picture).headline, "No message is stuck.");
    picture.layouts[0].problem = Some("no answer".into());
    assert_eq!(Verdict::of(&picture).headline, "Layout `nservicebus` cannot be seen.");
}

#[test]
fn reports_problems_of_a_layout() {
    let mut view = sample::layout();
    assert_eq!(Verdict::of_layout(&view).headline, "No message is stuck.");
    view.unroutable = Some(7);
    let verdict = Verdict::of_layout(&view);
    assert_eq!((verdict.severity, verdict.more.len()), (None, 1));
    let kept = "7 messages of layout `nservicebus` are unroutable, kept by its guard.";
    assert_eq!(verdict.more[0].text, kept);
    view.guarded = Some(3);
    let half = "Layout `nservicebus` is only partly guarded: 3 of its 29 exchanges are; run delayline guard \
                add nservicebus.";
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
    (view.levels[3].ready, view.missing) = (None, Some(1));
    assert!(Verdict::of_layout(&view).headline.contains("1 of its queues"), "{view:#?}");
    view.problem = Some("no answer".into());
    let blind = "Layout `nservicebus` cannot be seen.";
    assert_eq!(
        Verdict::of_layout(&view),
        Verdict { severity: Some(Severity::Advice), headline: blind.into(), more: vec![] }
    );
}

#[test]
fn reports_that_a_set_is_not_installed() {
    let mut picture = seen();
    picture.verified.ok = Some(false);
    picture.verified.installed = Some(false);
    picture.verified.problems = vec!["it is missing".into()];
    assert_eq!(Verdict::of(&picture).headline, "The set `delay` is not installed.");
}
