//! Kept messages that AMQP 0-9-1 cannot carry: they are shown, kept and discarded, and they do not
//! block the messages behind them.

use std::sync::atomic::AtomicBool;

use delayline_admin::{self as admin, Kept, Selection};
use delayline_amqp::Session;
use delayline_core::codec::{Delay, RoutingKey};
use delayline_settings::Settings;
use serde_json::json;

use crate::common::Counting;
use crate::common::{
    app, eventually, foreign, http, installed, not_tested::not_tested, raw, shared_node, topology,
};

/// A set on a broker with built-in AMQP 1.0. Returns `None` before 4.0, where it is a plugin.
pub(super) fn speaking_1_0() -> Option<Settings> {
    let broker = shared_node().settings().build().unwrap().broker;
    if Session::open(&broker).unwrap().server_version().unwrap().starts_with("3.") {
        not_tested("messages over AMQP 1.0: this broker has it only as a plugin");
        return None;
    }
    Some(installed(10))
}

fn ready(settings: &Settings, queue: &str, count: u32) {
    let mut session = Session::open(&settings.broker).unwrap();
    eventually(&format!("{count} are in {queue}"), || {
        session.counts(queue).unwrap().is_some_and(|depth| depth.ready == count)
    });
}

/// Publishes readable messages with unreadable ones among them. Returns the number of unreadable
/// ones.
fn fill(settings: &Settings, exchange: &str, key: &str) -> u32 {
    let deadly = foreign::DEADLY;
    let readable = |ids: std::ops::Range<u32>| {
        raw::publish(
            settings,
            ids.map(|id| raw::message(exchange, key, id, &json!({ "message_id": id.to_string() }))),
        );
    };
    readable(0..3);
    foreign::publish(settings, exchange, key, deadly);
    readable(3..1_500);
    foreign::publish(settings, exchange, key, ["longtype"]);
    readable(1_500..1_503);
    u32::try_from(deadly.len() + 1).unwrap()
}

#[test]
fn parked_ones_are_listed_shown_left_and_discarded() {
    let Some(settings) = speaking_1_0() else { return };
    let topology = topology(&settings);
    let foreign = fill(&settings, "delay.parked", "noisy");
    let all = 1_503 + foreign;
    ready(&settings, "delay.parked", all);

    let report = Kept::Parked.list(&settings, &topology, u64::MAX, |_| {}).unwrap();
    assert_eq!((report.failure, report.waiting, report.examined), (None, all.into(), all.into()));
    let counted: u64 = report.groups.iter().map(|group| group.group.count).sum();
    assert_eq!(counted, u64::from(all));
    assert!(report.groups.iter().all(|group| group.cause.app.as_deref() == Some("noisy")));
    ready(&settings, "delay.parked", all);

    let one = Selection { message_id: Some("longtype".into()), ..Selection::default() };
    let mut shown = Vec::new();
    let drained =
        Kept::Parked.messages(&settings, &topology, &one, (10, 100), |message| shown.push(message)).unwrap();
    assert_eq!((&drained.failure, shown.len()), (&None, 2), "{drained:?}");
    let sample = &shown[0].sample;
    assert_eq!((sample.routing_key.as_str(), sample.body.as_deref()), ("noisy", Some("longtype")));
    assert_eq!(sample.properties["content-type"], "x".repeat(300));
    assert_eq!(
        (shown[0].cause.app.as_deref(), shown[0].cause.reason.as_str()),
        (Some("noisy"), "unreadable")
    );
    ready(&settings, "delay.parked", all);

    let stop = AtomicBool::new(false);
    let drained =
        Kept::Parked.replay(&settings, &topology, &one, true, &stop, |_| {}).unwrap().unwrap().drained;
    assert_eq!((drained.failure, drained.sent, drained.refused), (None, 0, 2));
    assert!(drained.refusal.unwrap().contains("property `content-type` is longer than 255 bytes"));

    // First a readable message behind all of them, then the two unreadable ones.
    let last = Selection { message_id: Some("1502".into()), ..Selection::default() };
    let mut left = all;
    for (selection, gone) in [(last, 1), (one, 2)] {
        let drained = Kept::Parked.discard(&settings, &topology, &selection, &stop, |_| {}).unwrap();
        assert_eq!((&drained.failure, drained.discarded), (&None, u64::from(gone)), "{drained:?}");
        left -= gone;
        ready(&settings, "delay.parked", left);
    }
    let everything = Selection::default();
    let drained = Kept::Parked.discard(&settings, &topology, &everything, &stop, |_| {}).unwrap();
    assert_eq!((drained.failure, drained.discarded), (None, u64::from(all - 3)));
    ready(&settings, "delay.parked", 0);
}

#[test]
fn unroutable_ones_are_listed_shown_left_and_purged() {
    let Some(settings) = speaking_1_0() else { return };
    let topology = topology(&settings);
    let key = RoutingKey::new(Delay::ZERO, app("nobody")).encode();
    let foreign = fill(&settings, "delay", &key);
    let all = 1_503 + foreign;
    ready(&settings, "delay.unroutable", all);

    let report = Kept::Unroutable.list(&settings, &topology, u64::MAX, |_| {}).unwrap();
    assert_eq!((report.failure, report.examined, report.groups.len()), (None, all.into(), 1));
    assert_eq!(report.groups[0].group.count, u64::from(all));
    assert_eq!(report.groups[0].cause.app.as_deref(), Some("nobody"));
    ready(&settings, "delay.unroutable", all);

    let one = Selection { message_id: Some("longtype".into()), ..Selection::default() };
    let mut shown = 0;
    let drained = Kept::Unroutable.messages(&settings, &topology, &one, (1, 100), |_| shown += 1).unwrap();
    assert_eq!((&drained.failure, shown), (&None, 1), "{drained:?}");
    ready(&settings, "delay.unroutable", all);

    let stop = AtomicBool::new(false);
    let report = Kept::Unroutable.replay(&settings, &topology, &one, false, &stop, |_| {}).unwrap().unwrap();
    assert_eq!((report.drained.failure, report.drained.sent, report.drained.refused), (None, 0, 2));
    ready(&settings, "delay.unroutable", all);
    let everything = Selection::default();
    let drained = Kept::Unroutable.discard(&settings, &topology, &everything, &stop, |_| {}).unwrap();
    assert_eq!((drained.failure, drained.discarded), (None, u64::from(all)));
    ready(&settings, "delay.unroutable", 0);
}

/// The same for messages in levels, with a policy that was set a moment before.
#[test]
fn waiting_messages_are_discarded_by_app() {
    let Some(settings) = speaking_1_0() else { return };
    let key = |whose| RoutingKey::new(Delay::from_seconds(1 << 20).unwrap(), app(whose)).encode();
    let readable = |whose, count| {
        raw::publish(&settings, (0..count).map(|id| raw::message("delay", &key(whose), id, &json!({}))));
    };
    readable("noisy", 20);
    foreign::publish(&settings, "delay", &key("noisy"), foreign::DEADLY);
    readable("good", 20);
    foreign::publish(&settings, "delay", &key("good"), ["char"]);
    readable("noisy", 10);
    let theirs = 30 + u32::try_from(foreign::DEADLY.len()).unwrap();
    ready(&settings, "delay.level.20", theirs + 21);
    let limit = json!({
        "pattern": r"^delay\.level\.", "apply-to": "queues", "definition": { "delivery-limit": -1 },
    });
    http(&shared_node(), "PUT", &format!("policies/{}/sweep", settings.broker.vhost), &limit);

    let stop = AtomicBool::new(false);
    let (topology, noisy) = (topology(&settings), app("noisy"));
    let discard = |dry_run| admin::discard_app(&settings, &topology, &noisy, dry_run, &stop, |_| {}).unwrap();
    let counted = discard(true);
    assert_eq!((&counted.failure, counted.messages()), (&None, theirs.into()), "{counted:?}");
    let report = discard(false);
    assert_eq!((&report.failure, report.unfinished), (&None, false), "{report:?}");
    assert_eq!(report.messages(), u64::from(theirs), "{report:?}");
    ready(&settings, "delay.level.20", 21);
}
