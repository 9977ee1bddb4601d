//! The exposed metrics.

use super::*;
use crate::picture::{SetView, sample};
use delayline_admin::{Finding, FindingCode};

fn seen() -> Picture {
    let mut picture = sample::nothing();
    picture.broker.reachable = true;
    picture.verified = SetView { ok: Some(true), bindings_compared: true, ..SetView::default() };
    picture.checkup = Some(Checkup { at: Some(picture.at), ..Checkup::default() });
    picture
}

/// The names of the metrics about the set that have a value.
fn told(picture: Picture) -> Vec<String> {
    let text = Exposition { picture, inside: Inside::default() }.text();
    let values = text.lines().filter(|line| !line.starts_with('#'));
    let names = values.filter_map(|line| line.split(['{', ' ']).next().map(str::to_owned));
    let mut names: Vec<_> = names
        .filter(|name| {
            ["delayline_set_verified", "delayline_set_problems", "delayline_findings"]
                .contains(&name.as_str())
        })
        .collect();
    names.dedup();
    names
}

#[test]
fn what_is_not_known_now_is_left_out() {
    let all = ["delayline_set_verified", "delayline_set_problems", "delayline_findings"];
    assert_eq!(told(seen()), all);
    let mut away = seen();
    away.broker.reachable = false;
    assert_eq!(told(away), [""; 0]);
    let mut half = seen();
    half.verified.bindings_compared = false;
    assert_eq!(told(half.clone()), ["delayline_findings"]);
    // A difference counts even if other parts are unknown.
    half.verified.ok = Some(false);
    assert_eq!(told(half.clone()), all);
    half.verified.awaited = true;
    assert_eq!(told(half), ["delayline_findings"]);
}

#[test]
fn layouts_have_a_label_and_what_is_not_known_now_is_left_out() {
    let told = |picture: &Picture| {
        let text = Exposition { picture: picture.clone(), inside: Inside::default() }.text();
        let ours = text.lines().filter(|line| line.starts_with("delayline_layout_"));
        ours.map(str::to_owned).collect::<Vec<_>>()
    };
    let mut picture = seen();
    let mut view = sample::layout();
    (view.levels[0].ready, view.levels[27].stuck, view.unroutable) = (None, Some(40), Some(7));
    picture.layouts = vec![view.clone()];
    let lines = told(&picture);
    for line in [
        "delayline_layout_level_ready_messages{layout=\"nservicebus\",level=\"26\"} 0.0",
        "delayline_layout_level_stuck_messages{layout=\"nservicebus\",level=\"00\"} 40.0",
        "delayline_layout_seen{layout=\"nservicebus\"} 1.0",
        "delayline_layout_guarded{layout=\"nservicebus\"} 1.0",
        "delayline_layout_unroutable_messages{layout=\"nservicebus\"} 7.0",
        "delayline_layout_counted_timestamp_seconds{layout=\"nservicebus\"} 0.0",
    ] {
        assert!(lines.iter().any(|told| told == line), "{line} in {lines:#?}");
    }
    assert_eq!(lines.iter().filter(|line| line.contains("ready_messages")).count(), 27);
    view.problem = Some("no answer".into());
    picture.layouts = vec![view];
    let lines = told(&picture);
    assert_eq!(lines.len(), 2, "when it was counted last, and that it is not seen: {lines:#?}");
    assert!(lines.contains(&"delayline_layout_seen{layout=\"nservicebus\"} 0.0".into()), "{lines:#?}");
    picture.broker.reachable = false;
    assert_eq!(told(&picture).len(), 1, "when it was counted last");
    picture.broker.reachable = true;
    picture.layouts = vec![crate::picture::LayoutView::unseen("celery".parse().unwrap(), "/")];
    assert!(told(&picture).is_empty(), "it was not counted");
    picture.layouts.clear();
    assert!(told(&picture).is_empty());
}

#[test]
fn what_was_found_is_told_by_code_and_application() {
    let (loops, differs) = (FindingCode::TargetLoop, FindingCode::SetDiffers);
    let finding = |code, apps: &[&str]| Finding::new(code, "exchange `delay`", "", "").about(apps);
    let mut picture = seen();
    let found = picture.checkup.as_mut().unwrap();
    found.findings = vec![finding(loops, &["x", "y"]), finding(loops, &["y"]), finding(differs, &[])];
    let text = Exposition { picture, inside: Inside::default() }.text();
    let told: Vec<_> = text.lines().filter(|line| line.starts_with("delayline_found{")).collect();
    assert_eq!(
        told,
        [
            "delayline_found{code=\"set-differs\",app=\"\"} 1.0",
            "delayline_found{code=\"target-loop\",app=\"x\"} 1.0",
            "delayline_found{code=\"target-loop\",app=\"y\"} 1.0",
        ]
    );
}

#[test]
fn the_age_of_what_is_kept_is_the_pictures() {
    let mut picture = seen();
    picture.at = Timestamp::from_second(100).unwrap();
    (picture.unroutable, picture.unroutable_oldest) = (Some(3), Timestamp::from_second(40).ok());
    (picture.parked, picture.parked_oldest) = (Some(0), None);
    let text = Exposition { picture, inside: Inside::default() }.text();
    assert!(text.contains("\ndelayline_unroutable_oldest_age_seconds 60.0\n"), "{text}");
    assert!(text.contains("\ndelayline_parked_oldest_age_seconds 0.0\n"), "{text}");
}
