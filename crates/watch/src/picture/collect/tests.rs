//! The parts of a picture that need no broker.

use super::*;
use crate::picture::sample;
use delayline_admin::Finding;

#[test]
fn a_set_that_was_never_there_is_missed_only_if_nothing_else_is_watched() {
    let settings = Settings::from_url("amqp://localhost").unwrap();
    let mut collector = Collector::new(settings, Sources::default());
    let differs = Finding::new(FindingCode::SetDiffers, "set `delay`", "", "");
    let alarm = Finding::new(FindingCode::BrokerAlarm, "node `a`", "", "");
    // The report about the set: whether it is awaited, its problems, and the findings.
    let mut said = |installed: Option<bool>, layouts: Vec<LayoutView>| {
        let problems = vec!["the set is missing".to_owned()];
        let ok = installed.map(|_| false);
        collector.last.verified = SetView { ok, installed, problems, ..SetView::default() };
        let findings = vec![differs.clone(), alarm.clone()];
        collector.last.checkup = Some(Checkup { findings, ..Checkup::default() });
        collector.last.layouts = layouts;
        collector.note_absence();
        let Picture { verified, checkup, .. } = &collector.last;
        (verified.awaited, verified.problems.len(), checkup.as_ref().unwrap().findings.len())
    };
    assert_eq!(said(Some(false), vec![]), (false, 1, 2));
    assert_eq!(said(None, vec![sample::layout()]), (false, 1, 1), "not compared yet");
    assert_eq!(said(Some(false), vec![sample::layout()]), (true, 0, 1));
    assert_eq!(said(Some(true), vec![sample::layout()]), (false, 1, 2), "half of it is there");
    assert_eq!(said(Some(false), vec![sample::layout()]), (false, 1, 2), "it was removed");
}

#[test]
fn without_the_management_api_nothing_is_known_to_be_stuck() {
    let settings = Settings::from_url("amqp://localhost").unwrap();
    let mut collector = Collector::new(settings, Sources::default());
    let level = &mut collector.last.levels[0];
    (level.stuck, level.stuck_since) = (Some(20), Some(Timestamp::UNIX_EPOCH));
    collector.forget_api();
    let level = &collector.last.levels[0];
    assert_eq!((level.stuck, level.stuck_since), (None, None));
}

#[test]
fn a_question_that_failed_does_not_count_as_the_last_reading() {
    let mut settings = Settings::from_url("amqp://localhost").unwrap();
    // No program listens there.
    settings.management.as_mut().unwrap().url = "http://127.0.0.1:1".parse().unwrap();
    let mut collector = Collector::new(settings, Sources::default());
    let known = Some(Timestamp::UNIX_EPOCH);
    collector.last.read = known;
    collector.note_depths(BTreeMap::new());
    assert_eq!(collector.last.read, known);
    let [unknown] = collector.last.unchecked.as_slice() else { panic!("{:?}", collector.last.unchecked) };
    assert!(unknown.contains("cannot be reached"), "{unknown}");
}
