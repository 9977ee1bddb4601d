//! Shortcuts: a queue that stands for several levels of a word.

mod cost;

use std::{
    collections::{BTreeMap, BTreeSet},
    process::{Command, Stdio},
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread,
    time::Duration,
};

use delayline_admin::{self as admin, Applied, TransferOptions, TransferSource, Unstick, UnstickOptions};
use delayline_amqp::Session;
use delayline_broker::{ManagementApi, Scope, Snapshot};
use delayline_client::Router;
use delayline_core::{
    Message,
    codec::{Delay, Hop, RoutingKey},
    message::{Properties, Value},
    topology::Binding,
};
use delayline_settings::Settings;
use jiff::Timestamp;
use serde_json::json;

use crate::{
    common::{
        Arrival, Inbox, NO_SIGNAL, PATIENCE, app, caught, eventually, eventually_seen, install, raw, status,
        topology, url, vhost,
    },
    unstick::{node, stuck},
};

/// The most that a broker's clock can make a message early: it cuts off a part of a millisecond in each queue.
const CUT_OFF_MS: i64 = 4;

fn new(unit: &str, shortcuts: &str) -> Settings {
    let settings = vhost().set("unit_ms", unit).set("shortcuts", shortcuts).build().unwrap();
    install(&settings);
    settings
}

fn with(settings: &Settings, shortcuts: Option<bool>) -> Settings {
    let mut settings = settings.clone();
    settings.topology.shortcuts = shortcuts;
    settings
}

/// Publishes exactly these delays, each message with its number as its id.
fn send(settings: &Settings, delays: impl IntoIterator<Item = u64>) {
    let unit = i64::from(settings.topology.unit.millis());
    let message = |(id, units): (usize, u64)| {
        let key = RoutingKey::new(Delay::from_seconds(units).unwrap(), app("app")).encode();
        let due = Timestamp::now().as_millisecond() + i64::try_from(units).unwrap() * unit;
        let properties = json!({"message_id": id.to_string(), "headers": {"delayline-due": due}});
        raw::message(&settings.topology.set.to_string(), &key, id, &properties)
    };
    raw::publish(settings, delays.into_iter().enumerate().map(message));
}

/// The queues of the set that a message has passed.
fn passed(arrival: &Arrival) -> BTreeSet<String> {
    let Some(Value::Array(deaths)) = arrival.headers.get("x-death") else { return BTreeSet::new() };
    let queue = |death: &Value| match death {
        Value::Table(death) => match death.get("queue") {
            Some(Value::Text(queue)) => Some(queue.clone()),
            _ => None,
        },
        _ => None,
    };
    deaths.iter().filter_map(queue).collect()
}

fn verified(settings: &Settings) {
    let report = admin::verify(settings, &topology(settings)).unwrap();
    assert_eq!(report.differences, [], "{:#?}", report.findings);
}

fn snapshot(settings: &Settings) -> Snapshot {
    let api = ManagementApi::new(settings.management.as_ref().unwrap()).unwrap();
    Snapshot::fetch(&api, &settings.broker.vhost, Scope::Set(&topology(settings), &[])).unwrap()
}

/// How many bindings lead to shortcuts.
fn bound(settings: &Settings) -> usize {
    let (snapshot, topology) = (snapshot(settings), topology(settings));
    let is_shortcut = |binding: &&Binding| {
        matches!(topology.names().hop_of(binding.destination.name()), Some(Hop::Shortcut(_)))
    };
    snapshot.bindings().iter().filter(is_shortcut).count()
}

#[test]
fn every_delay_arrives_once_and_passes_one_queue_for_each_word() {
    let settings = new("1", "true");
    let inbox = Inbox::open(&settings, "app");
    let delays: Vec<u64> = (1..=300)
        .chain([1_000, 4_095, 4_096, 9_999, 12_345, 0x5555, 0xaaaa, 43_690, 61_166, 65_535])
        .collect();
    send(&settings, delays.iter().copied());
    let arrivals = inbox.exactly(delays.len(), |last| {
        let key = RoutingKey::new(Delay::ZERO, app("app")).encode();
        raw::publish(&settings, [raw::message("delay.dispatch", &key, last, &json!({}))]);
    });
    let ids: BTreeSet<usize> = arrivals.iter().map(|arrival| arrival.id.parse().unwrap()).collect();
    assert_eq!((ids.len(), arrivals.len()), (delays.len(), delays.len()));
    let names = topology(&settings).names().clone();
    for arrival in &arrivals {
        assert!(arrival.late_ms() >= -CUT_OFF_MS, "early: {arrival:?}");
        let delay = arrival.routing_key.parse::<RoutingKey>().unwrap().delay;
        let expected = Hop::of(delay, true).map(|hop| names.hop(hop)).collect();
        assert_eq!(passed(arrival), expected, "{}", arrival.routing_key);
    }
    verified(&settings);
    verified(&with(&settings, None));
}

#[test]
fn shortcuts_stay_until_they_are_switched_off_and_go_once_they_are_empty() {
    let on = new("1000", "true");
    let open = with(&on, None);
    let report = admin::install(&open, &topology(&open), false, || {}).unwrap();
    assert_eq!(report.outcome, Applied::Unchanged, "{report:?}");
    // Level 3 and 1 of word 1, and level 0: a day.
    send(&on, [0xf000, 0xf000, 0xe000]);
    eventually("they wait", || status(&on).levels.iter().any(|it| it.level == 15 && it.ready == Some(3)));
    assert_eq!(status(&open).waiting, Some(3));
    let off = with(&on, Some(false));
    let dry = admin::install(&off, &topology(&off), true, || {}).unwrap();
    assert_eq!((dry.outcome, dry.replaced_bindings, dry.removed.len()), (Applied::DryRun, Some(242), 41));
    assert_eq!(bound(&on), 242);
    // The bindings that shortcuts replace were made again by hand.
    let mut session = Session::open(&on.broker).unwrap();
    topology(&off).bindings().for_each(|binding| session.bind(binding).unwrap());
    let found = admin::verify(&open, &topology(&open)).unwrap();
    let [finding] = &found.findings[..] else { panic!("{found:#?}") };
    assert!(finding.advice.contains("delayline install") && found.differences.len() == 242, "{finding:?}");
    let report = admin::install(&open, &topology(&open), false, || {}).unwrap();
    assert_eq!((report.outcome, report.replaced_bindings), (Applied::Installed, Some(242)));
    verified(&open);
    let report = admin::install(&off, &topology(&off), false, || {}).unwrap();
    assert_eq!((report.outcome, report.removed.len()), (Applied::Installed, 41), "{report:?}");
    let kept: Vec<_> = report.kept.iter().map(|kept| (kept.queue.as_str(), kept.messages)).collect();
    assert_eq!(kept, [("delay.level.15.1111", Some(2)), ("delay.level.15.1110", Some(1))]);
    for settings in [&off, &open] {
        verified(settings);
        assert_eq!(status(settings).waiting, Some(3));
    }
    let uninstall = admin::uninstall(&off, &topology(&off), false, &NO_SIGNAL).unwrap();
    assert_eq!(uninstall.unwrap_err().waiting.len(), 2);
    // An application's messages are discarded there, too.
    let stop = AtomicBool::new(false);
    let discarded = admin::discard_app(&off, &topology(&off), &app("app"), false, &stop, |_| {}).unwrap();
    assert_eq!(discarded.messages(), 3, "{discarded:?}");
    eventually("the empty queues are removed", || {
        let report = admin::install(&open, &topology(&open), false, || {}).unwrap();
        report.outcome == Applied::Unchanged && report.kept.is_empty()
    });
    assert_eq!(snapshot(&on).queues.len(), 31);
    verified(&open);
    // And on again, for a removal of everything.
    install(&on);
    verified(&open);
    let removed = admin::uninstall(&open, &topology(&open), false, &NO_SIGNAL).unwrap().unwrap();
    assert_eq!(removed.removed.len(), 32 + 31 + 44);
    assert!(snapshot(&on).queues.is_empty());
}

#[test]
fn nothing_is_lost_or_early_while_shortcuts_are_switched_and_the_command_is_killed() {
    switched(1, Duration::from_millis(10));
}

#[test]
#[ignore = "takes minutes: scripts/test --test system in_a_long_run -- --ignored --nocapture"]
fn nothing_is_lost_or_early_in_a_long_run() {
    switched(100_000, Duration::from_millis(3));
}

/// Switches shortcuts on and off twice, and until so many messages were sent, with this pause after each.
fn switched(least: u32, pause: Duration) {
    let settings = new("10", "false");
    let inbox = Inbox::open(&settings, "app");
    let (stop, sent, confirmed) = (AtomicBool::new(false), AtomicU32::new(0), Mutex::new(BTreeSet::new()));
    let router = Router::builder(settings.target()).connect().unwrap();
    let publish = || {
        while !stop.load(Ordering::Relaxed) {
            let id = sent.fetch_add(1, Ordering::Relaxed);
            let delay = Delay::from_seconds(u64::from(id) * 37 % 300 + 1).unwrap();
            let message = Message::after(app("app"), delay, "x")
                .with_properties(Properties { message_id: Some(id.to_string()), ..Properties::default() });
            router.publish(message).unwrap();
            confirmed.lock().unwrap().insert(id);
            // At full speed, messages would take most of the time of the broker.
            thread::sleep(pause);
        }
    };
    let arrivals = Mutex::new(Vec::new());
    thread::scope(|scope| {
        let publishers: Vec<_> = (0..2).map(|_| scope.spawn(publish)).collect();
        let collector = scope.spawn(|| {
            let inbox = inbox;
            loop {
                let arrival = inbox.next(PATIENCE).expect("the end");
                if arrival.body == b"the end" {
                    break;
                }
                arrivals.lock().unwrap().push(arrival);
            }
        });
        let mut rounds = 0;
        while rounds < 2 || sent.load(Ordering::Relaxed) < least {
            [true, false].into_iter().for_each(|on| switch_with_a_kill(&settings, on));
            rounds += 1;
        }
        stop.store(true, Ordering::Relaxed);
        publishers.into_iter().for_each(|publisher| publisher.join().unwrap());
        // The counts of messages on their way are some seconds old, and each confirmed one must come.
        let missing = || {
            let come: BTreeSet<u32> =
                arrivals.lock().unwrap().iter().map(|it: &Arrival| it.id.parse().unwrap()).collect();
            confirmed.lock().unwrap().difference(&come).count()
        };
        eventually_seen("all have come", missing, |missing| *missing == 0);
        eventually("all have left", || {
            status(&settings).waiting == Some(0) && status(&settings).handing_on == Some(0)
        });
        let key = RoutingKey::new(Delay::ZERO, app("app")).encode();
        raw::publish(&settings, [raw::message("delay.dispatch", &key, "the end", &json!({}))]);
        collector.join().unwrap();
    });
    let arrivals = arrivals.into_inner().unwrap();
    let mut counts: BTreeMap<u32, u32> = BTreeMap::new();
    for arrival in &arrivals {
        assert!(arrival.late_ms() >= -CUT_OFF_MS, "early: {arrival:?}");
        *counts.entry(arrival.id.parse().unwrap()).or_default() += 1;
    }
    let confirmed = confirmed.into_inner().unwrap();
    let lost: Vec<_> = confirmed.iter().filter(|id| !counts.contains_key(id)).collect();
    let twice = counts.values().filter(|count| **count > 1).count();
    eprintln!("{} messages while shortcuts were switched, {twice} came twice", confirmed.len());
    assert!(lost.is_empty(), "lost: {lost:?}");
    assert_eq!(status(&settings).unroutable, Some(0));
}

/// Switches shortcuts with a command that is killed once it has changed something, and with a second one.
fn switch_with_a_kill(settings: &Settings, on: bool) {
    let command = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_delayline"));
        command
            .args(["install", "--shortcuts", if on { "true" } else { "false" }])
            .env("DELAYLINE_URL", url(settings))
            .env("DELAYLINE_MANAGEMENT_URL", settings.management.as_ref().unwrap().url.as_str())
            .env("DELAYLINE_UNIT_MS", settings.topology.unit.millis().to_string())
            .current_dir(std::env::temp_dir())
            .stdout(Stdio::null());
        command
    };
    let before = bound(settings);
    let mut first = command().spawn().unwrap();
    caught("some bindings were changed", || bound(settings) != before);
    first.kill().unwrap();
    first.wait().unwrap();
    eprintln!("killed with {} of 242 bindings of shortcuts", bound(settings));
    assert!(command().status().unwrap().success());
    let wanted = with(settings, Some(on));
    assert_eq!(bound(settings), if on { 242 } else { 0 });
    verified(&wanted);
}

#[test]
fn messages_in_shortcuts_are_transferred_with_what_is_left_of_their_delay() {
    let old = new("100", "true");
    let mut later = with(&old, None);
    later.topology.set = "later".parse().unwrap();
    install(&later);
    send(&old, std::iter::repeat_n(600, 20).chain([0xf000; 5]));
    eventually("all messages wait", || status(&old).waiting == Some(25));
    let inbox = Inbox::open(&later, "app");
    let options = TransferOptions::default();
    let stop = AtomicBool::new(false);
    let source = TransferSource::Set;
    let report = admin::transfer((&old, &source), &later, &options, &stop, |_| {}).unwrap();
    assert_eq!((report.moved, report.stay(), report.failure.as_deref()), (25, 0, None), "{report:#?}");
    let arrivals = inbox.collect(20, PATIENCE);
    assert_eq!(arrivals.iter().map(|it| &it.id).collect::<BTreeSet<_>>().len(), 20);
    assert!(arrivals.iter().all(|arrival| arrival.late_ms() >= 0), "{arrivals:?}");
}

#[test]
fn stuck_shortcuts_are_made_to_try_again() {
    let settings =
        crate::common::vhost_on(node()).set("unit_ms", "10").set("shortcuts", "true").build().unwrap();
    install(&settings);
    let mut session = Session::open(&settings.broker).unwrap();
    session.delete_exchange("delay.dispatch").unwrap();
    send(&settings, [3; 10]);
    stuck(&settings, "delay.level.01.0011", 10);
    install(&settings);
    let inbox = Inbox::open(&settings, "app");
    let options = UnstickOptions {
        which: Unstick::Levels(vec![1.try_into().unwrap()]),
        wait: PATIENCE,
        ..UnstickOptions::default()
    };
    let report = admin::unstick(&settings, &topology(&settings), &options).unwrap();
    let touched: Vec<_> = report.touched.iter().map(|it| (it.queue.as_str(), it.left)).collect();
    assert_eq!(touched, [("delay.level.01.0011", Some(0))], "{report:#?}");
    assert_eq!(inbox.collect(10, PATIENCE).len(), 10);
}
