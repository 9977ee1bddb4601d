//! Moving waiting messages from a set or a foreign layout to a set.

mod elsewhere;

use std::{
    collections::BTreeMap,
    process::{Child, Command, Stdio},
    sync::atomic::AtomicBool,
};

use delayline_admin::{
    self as admin, AdminError, Evidence, Layout, TransferOptions, TransferReport, TransferSource,
};
use delayline_amqp::Session;
use delayline_client::recall::{Answer, Recaller};
use delayline_core::{
    Message,
    codec::{Delay, RoutingKey},
    topology::{Binding, Endpoint, Object, QueueType, RecallSettings},
};
use delayline_settings::Settings;
use jiff::Timestamp;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::common::Counting;
use crate::{
    common::{Arrival, Inbox, PATIENCE, app, caught, eventually_seen, install, raw, topology, url, vhost},
    others::{accumulated, bound, classic_kombu, kombu, nservicebus, nservicebus_v1, publish, publish_with},
};

/// Two sets in one vhost: `delay` with this type of queue, and `later` with quorum queues.
fn sets(kind: QueueType) -> (Settings, Settings) {
    let new = vhost().set("unit_ms", "100").set("set", "later").build().unwrap();
    let mut old = new.clone();
    (old.topology.set, old.topology.queue_type) = ("delay".parse().unwrap(), kind);
    for settings in [&old, &new] {
        install(settings);
    }
    (old, new)
}

/// Two sets in one vhost: `delay` with classic queues, and `later` with quorum queues.
fn two() -> (Settings, Settings) {
    sets(QueueType::Classic)
}

fn options() -> TransferOptions {
    TransferOptions::default()
}

fn transfer(
    from: &Settings,
    source: &TransferSource,
    to: &Settings,
    options: &TransferOptions,
) -> TransferReport {
    let report = admin::transfer((from, source), to, options, &AtomicBool::new(false), |_| {}).unwrap();
    assert_eq!(report.failure, None, "{report:#?}");
    report
}

/// Publishes without the router. If `told` is set, the messages have a due time, as from the
/// router.
fn send(settings: &Settings, units: u64, ids: std::ops::Range<u32>, told: bool) -> i64 {
    let key = RoutingKey::new(Delay::from_seconds(units).unwrap(), app("app")).encode();
    let due = Timestamp::now().as_millisecond() + i64::try_from(units * 100).unwrap();
    let headers = if told { json!({ "delayline-due": due }) } else { json!({}) };
    let message = |id: u32| {
        let properties = json!({"message_id": id.to_string(), "headers": headers});
        raw::message(&settings.topology.set.to_string(), &key, id, &properties)
    };
    raw::publish(settings, ids.map(message));
    due
}

fn waiting(settings: &Settings, queues: impl Iterator<Item = String>) -> u32 {
    let mut session = Session::open(&settings.broker).unwrap();
    queues.map(|queue| session.counts(&queue).unwrap().map_or(0, |depth| depth.ready)).sum()
}

fn of_set(settings: &Settings) -> u32 {
    let topology = topology(settings);
    let levels = topology.queues().filter(|queue| queue.level.is_some());
    waiting(settings, levels.map(|queue| queue.name.clone()))
}

fn ids(arrivals: &[Arrival]) -> BTreeMap<u32, usize> {
    let mut ids = BTreeMap::new();
    for arrival in arrivals {
        *ids.entry(arrival.id.parse().unwrap()).or_insert(0) += 1;
    }
    ids
}

#[test]
fn waiting_messages_move_with_their_remaining_delay() {
    let (old, new) = two();
    // A minute is enough even on a busy machine. The other messages wait for a day.
    let due = send(&old, 600, 0..50, true);
    send(&old, 864_000, 50..60, true);
    let inbox = Inbox::open(&new, "app");
    let dry = transfer(&old, &TransferSource::Set, &new, &dry());
    assert_eq!((dry.waiting, dry.moved, of_set(&new)), (Some(60), 60, 0), "{dry:#?}");
    let report = transfer(&old, &TransferSource::Set, &new, &options());
    assert_eq!((report.moved, report.stay(), report.unfinished), (60, 0, false), "{report:#?}");
    assert_eq!(report.told, [(Evidence::DueHeader, 60)].into());
    assert_eq!((of_set(&old), of_set(&new)), (0, 60));
    let arrivals = inbox.collect(50, PATIENCE);
    assert_eq!(ids(&arrivals), (0..50).map(|id| (id, 1)).collect());
    for arrival in &arrivals {
        assert!(arrival.at.as_millisecond() >= due && arrival.late_ms() >= 0, "early: {arrival:?}");
    }
}

fn dry() -> TransferOptions {
    let mut options = options();
    options.dry_run = true;
    options
}

#[test]
fn messages_of_unknown_delay_stay_unless_they_may_be_late() {
    let (old, new) = two();
    send(&old, 864_000, 0..10, false);
    let key = |app: &str| {
        format!(
            "{}.{app}",
            RoutingKey::new(Delay::from_seconds(864_000).unwrap(), self::app("x"))
                .encode()
                .trim_end_matches(".x")
        )
    };
    let due = Timestamp::now().as_millisecond() + 86_400_000;
    let properties = json!({"headers": {"delayline-due": due}});
    let more = ["nobody", "app.~.id-1"].map(|app| raw::message("delay", &key(app), "x", &properties));
    raw::publish(&old, more);
    let _inbox = Inbox::open(&new, "app");
    let report = transfer(&old, &TransferSource::Set, &new, &options());
    assert_eq!((report.moved, report.untold, report.with_id, report.stay()), (0, 10, 1, 12), "{report:#?}");
    assert_eq!(report.unbound, [("nobody".to_owned(), 1)].into());
    assert_eq!((of_set(&old), of_set(&new)), (12, 0));
    let mut all = options();
    (all.allow_late, all.unbound, all.new_handles) = (true, true, true);
    let report = transfer(&old, &TransferSource::Set, &new, &all);
    assert_eq!((report.moved, report.stay()), (12, 0), "{report:#?}");
    assert_eq!(report.told, [(Evidence::DueHeader, 2), (Evidence::Nothing, 10)].into());
    // The highest bit of 864,000 is 2^19.
    assert_eq!(report.late_by_ms, (1 << 19) * 100);
    assert_eq!((of_set(&old), of_set(&new)), (0, 12));
}

#[test]
fn a_recalled_message_stays_and_is_never_delivered() {
    let (old, new) = sets(QueueType::Quorum);
    // Recalls are offered in both sets, so a message that is not recalled arrives.
    let inbox = Inbox::open(&new, "app");
    for settings in [&new, &old] {
        let recall = topology(settings).recall(
            &app("app"),
            Endpoint::Queue("in.app".into()),
            RecallSettings::default(),
        );
        let mut session = Session::open(&settings.broker).unwrap();
        for object in recall {
            match object {
                Object::Exchange(exchange) => session.declare_exchange(&exchange).unwrap(),
                Object::Queue(queue) => session.declare_queue(&queue).unwrap(),
                Object::Binding(binding) => session.bind(&binding).unwrap(),
            }
        }
    }
    let router = old.router().connect().unwrap();
    let message = |id: &str| {
        let message = Message::after(app("app"), Delay::from_seconds(900).unwrap(), id.to_owned());
        message.with_id(id.parse().unwrap())
    };
    let recaller = Recaller::connect(old.target()).unwrap();
    for number in 0..10 {
        router.publish(message(&format!("kept-{number}"))).unwrap();
        let gone = router.publish(message(&format!("gone-{number}"))).unwrap().handle.unwrap();
        assert_eq!(recaller.recall(&gone).unwrap(), Answer::InTime);
    }
    let mut all = options();
    all.new_handles = true;
    // The management API may show a binding a moment later.
    eventually_seen(
        "the API shows all recalls",
        || admin::pending_recalls(&old, &topology(&old), None).unwrap().pending.len(),
        |&seen| seen == 10,
    );
    let output = command(&old, &["later", "--new-handles"]).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("moved 10 of 20 messages"), "{said}");
    assert!(said.contains("10 messages stay: they were recalled"), "{said}");
    let report = transfer(&old, &TransferSource::Set, &new, &all);
    assert_eq!((report.moved, report.recalled, report.stay()), (0, 10, 10), "{report:#?}");
    let arrivals = inbox.exactly(10, |last| {
        new.router().connect().unwrap().publish(Message::after(app("app"), Delay::ZERO, last)).unwrap();
    });
    assert!(arrivals.iter().all(|it| it.body.starts_with(b"kept-")), "{arrivals:?}");
    let recalled =
        |settings| waiting(settings, [topology(settings).names().recalled(&app("app"))].into_iter());
    eventually_seen(
        "the other messages are recalled",
        || (recalled(&old), recalled(&new)),
        |&found| found == (10, 0),
    );
}

#[test]
fn the_last_level_of_a_message_shows_its_remaining_delay() {
    let (old, new) = two();
    let inbox = Inbox::open(&new, "app");
    // 51.2 s in level 9, then 25.6 s in level 8.
    let begun = Timestamp::now();
    send(&old, 512 + 256, 0..5, false);
    // After level 9, the messages are in level 8.
    let level = |number: u8| topology(&old).names().level_queue(number.try_into().unwrap());
    eventually_seen(
        "the messages are in level 8",
        || waiting(&old, [level(8)].into_iter()),
        |&there| there == 5,
    );
    let report = transfer(&old, &TransferSource::Set, &new, &options());
    assert_eq!(report.told, [(Evidence::Death, 5)].into(), "{report:#?}");
    let arrivals = inbox.collect(5, PATIENCE);
    assert_eq!(ids(&arrivals).len(), 5);
    for arrival in arrivals {
        let after = arrival.at.as_millisecond() - begun.as_millisecond();
        assert!(after >= 76_800, "early: {after} ms");
    }
}

#[test]
fn messages_of_a_layout_move_into_a_set() {
    let settings = vhost().set("unit_ms", "1000").build().unwrap();
    install(&settings);
    let mut session = Session::open(&settings.broker).unwrap();
    let nsb = nservicebus(&mut session, 1_000);
    bound(&mut session, &nsb, "Sales");
    kombu(&settings, 1_000, "tasks", &[]);
    let inboxes = ["Sales", "tasks"].map(|key| Inbox::open(&settings, key));
    let moved = |layout: Layout, untold: u64| {
        let report = transfer(&settings, &TransferSource::Layout(layout), &settings, &options());
        assert_eq!((report.moved, report.untold), (20, untold), "{report:#?}");
        assert_eq!(report.told, [(Evidence::Framework, 20)].into());
    };

    // NServiceBus sends these now with a delay of 90 s; some messages have no such headers.
    let sent = Timestamp::now();
    let headers = json!({
        "NServiceBus.TimeSent": sent.strftime("%Y-%m-%d %H:%M:%S:%6f Z").to_string(),
        "NServiceBus.Transport.RabbitMQ.DelayInSeconds": 90,
    });
    publish_with(&settings, &nsb, "Sales", 90, 0..20, |_| headers.clone());
    publish(&settings, &nsb, "Sales", 86_400, 20..25);
    moved(nsb, 5);

    let celery = Layout::celery(None);
    let asked = Timestamp::now();
    let eta = asked + jiff::SignedDuration::from_secs(90);
    let eta = json!({ "eta": eta.strftime("%Y-%m-%dT%H:%M:%S.%6f+00:00").to_string() });
    publish_with(&settings, &celery, "tasks", 90, 30..50, |_| eta.clone());
    moved(celery, 0);

    for (inbox, first, from) in [(&inboxes[0], 0, sent), (&inboxes[1], 30, asked)] {
        let arrivals = inbox.collect(20, PATIENCE);
        assert_eq!(ids(&arrivals), (first..first + 20).map(|id| (id, 1)).collect());
        for arrival in arrivals {
            let after = arrival.at.as_millisecond() - from.as_millisecond();
            assert!(after >= 90_000, "early: {after} ms");
        }
    }
}

#[test]
fn older_layouts_move_into_a_set_as_they_are() {
    let settings = vhost().set("unit_ms", "1000").build().unwrap();
    install(&settings);
    let mut session = Session::open(&settings.broker).unwrap();
    let (nsb, celery) = (nservicebus_v1(&mut session, 1_000), classic_kombu(&mut session, 1_000));
    let inboxes = ["Sales", "tasks"].map(|key| Inbox::open(&settings, key));
    let sent = Timestamp::now();
    let headers = json!({
        "NServiceBus.TimeSent": sent.strftime("%Y-%m-%d %H:%M:%S:%6f Z").to_string(),
        "NServiceBus.Transport.RabbitMQ.DelayInSeconds": 60,
    });
    publish_with(&settings, &nsb, "Sales", 60, 0..5, |_| headers.clone());
    let eta = sent + jiff::SignedDuration::from_secs(60);
    let eta = json!({ "eta": eta.strftime("%Y-%m-%dT%H:%M:%S.%6f+00:00").to_string() });
    // Tasks that were retried up to three times: a key ends at 255 bytes.
    for (retries, first) in [(0, 10), (1, 11), (2, 12), (3, 13)] {
        let to = accumulated(&celery, retries, "tasks");
        publish_with(&settings, &celery, &to, 60, first..first + 1, |_| eta.clone());
    }
    for (layout, count) in [(nsb, 5), (celery, 4)] {
        let report = transfer(&settings, &TransferSource::Layout(layout), &settings, &options());
        assert_eq!((report.moved, report.stay(), report.unbound.len()), (count, 0, 0), "{report:#?}");
    }
    for (inbox, expected) in inboxes.iter().zip([0..5, 10..14]) {
        let arrivals = inbox.collect(expected.len(), PATIENCE);
        assert_eq!(ids(&arrivals), expected.map(|id| (id, 1)).collect());
        for arrival in arrivals {
            let after = arrival.at.as_millisecond() - sent.as_millisecond();
            assert!(after >= 60_000, "early: {after} ms");
        }
    }
}

#[test]
fn a_missing_set_or_layout_is_reported() {
    let settings = vhost().build().unwrap();
    let fails = |source: &TransferSource| {
        admin::transfer((&settings, source), &settings, &options(), &AtomicBool::new(false), |_| {})
    };
    let nowhere = fails(&TransferSource::Set).unwrap_err();
    assert!(matches!(nowhere, AdminError::NoDestination { .. }), "{nowhere}");
    assert!(nowhere.to_string().contains("the destination must be a set"), "{nowhere}");
    install(&settings);
    let nobody = TransferSource::Layout(Layout::nservicebus());
    assert!(matches!(fails(&nobody), Err(AdminError::NoLayout { .. })));
}

#[test]
fn a_dry_run_reports_messages_that_it_cannot_examine() {
    let (old, new) = sets(QueueType::Quorum);
    send(&old, 864_000, 0..20, true);
    // The broker has read them, and stores them.
    eventually_seen("all messages wait", || of_set(&old), |&waiting| waiting == 20);
    let _inbox = Inbox::open(&new, "app");
    let report = transfer(&old, &TransferSource::Set, &new, &dry());
    let output = command(&old, &["later", "--dry-run"]).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{said}");
    let version = Session::open(&old.broker).unwrap().server_version().unwrap();
    if version.starts_with("3.") {
        assert_eq!((report.moved, report.unexamined), (20, 0), "{report:#?}");
        assert!(said.contains("20 of 20 messages") && !said.contains("not examined"), "{said}");
        return;
    }
    assert_eq!((report.moved, report.unexamined, report.stay()), (0, 20, 0), "{report:#?}");
    assert_eq!(report.only_counted, ["delay.level.19"]);
    assert!(said.contains("? of 20 messages from `delay`"), "{said}");
    assert_eq!(said.matches("20 messages not examined: ").count(), 1, "{said}");
    assert_eq!(said.lines().count(), 4, "{said}");
}

/// The command that moves messages from the set `delay`; `more` contains the destination.
fn command(old: &Settings, more: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_delayline"));
    command
        .args(["transfer", "delay"])
        .args(more)
        .env("DELAYLINE_URL", url(old))
        .env("DELAYLINE_MANAGEMENT_URL", old.management.as_ref().unwrap().url.as_str())
        .env("DELAYLINE_UNIT_MS", old.topology.unit.millis().to_string())
        .current_dir(std::env::temp_dir());
    command
}

/// Starts to move messages to the set `later`.
fn begun(settings: &Settings, rate: u32) -> Child {
    command(settings, &["later", "--rate", &rate.to_string()]).stdout(Stdio::null()).spawn().unwrap()
}

#[test]
fn an_interrupted_transfer_asks_to_be_run_again() {
    let (old, new) = &two();
    send(old, 900, 0..500, true);
    let _inbox = Inbox::open(new, "app");
    let mut transfer = command(old, &["later", "--rate", "20"]);
    let child = transfer.stdout(Stdio::piped()).spawn().unwrap();
    caught("some messages were moved", || of_set(new) > 20);
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let ended = child.wait_with_output().unwrap();
    let said = String::from_utf8(ended.stdout).unwrap();
    assert_eq!(ended.status.code(), Some(130), "{said}");
    assert!(said.contains("interrupted; run it again to continue"), "{said}");
    assert!(!said.contains("keep arriving"), "{said}");
}

#[test]
fn a_killed_transfer_is_run_again_and_nothing_is_lost() {
    const COUNT: u32 = 2_000;
    // Both sets have quorum queues, which count deliveries.
    let (old, new) = &sets(QueueType::Quorum);
    let due = send(old, 900, 0..COUNT, true);
    let inbox = Inbox::open(new, "app");
    // On a slow machine, some messages are due before they have been moved.
    let dispatch = topology(old).names().dispatch();
    let destination = Endpoint::Queue("in.app".into());
    let binding = Binding { source: dispatch, destination, key: RoutingKey::binding_pattern(&app("app")) };
    Session::open(&old.broker).unwrap().bind(&binding).unwrap();
    for rounds in 0..2 {
        let before = of_set(new);
        // Slowly, since a count of all queues takes a busy broker some seconds.
        let mut child = begun(old, 40);
        caught("some messages were moved", || of_set(new) > before + 40);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(of_set(new) < COUNT, "the transfer was killed too late in round {rounds}");
    }
    let report = eventually_seen(
        "all messages that the killed transfer held are back and moved",
        || transfer(old, &TransferSource::Set, new, &options()),
        |report| report.stay() == 0 && of_set(old) == 0 && report.handing_on == Some(0),
    );
    // On a slow machine, some messages have passed a level before they are moved.
    let told = report.told.keys().filter(|by| !matches!(by, Evidence::DueHeader | Evidence::Death));
    assert_eq!(told.count(), 0);
    let mut seen = BTreeMap::new();
    while seen.len() < COUNT as usize {
        let arrival = inbox.next(PATIENCE).unwrap_or_else(|| panic!("only {} came", seen.len()));
        assert!(arrival.at.as_millisecond() >= due, "early: {arrival:?}");
        *seen.entry(arrival.id).or_insert(0) += 1;
    }
    let twice = seen.values().filter(|count| **count > 1).count();
    assert!(twice <= 2 * 256, "{twice} came twice");
}
