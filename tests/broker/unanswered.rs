//! Queues that do not answer. A broker reports such a queue as empty, which must not be taken for a fact.

use std::{
    io::{BufRead, BufReader},
    process::{Command, Stdio},
    sync::atomic::AtomicBool,
    thread,
    time::Duration,
};

use delayline_admin::{
    self as admin, AppQueue, AppSpec, Applied, Delivery, DoctorOptions, FindingCode, RemoveOptions, Target,
    TransferOptions, TransferSource,
};
use delayline_amqp::Session;
use delayline_client::recall::Recaller;
use delayline_core::{Message, codec::Delay, topology::RecallSettings};
use delayline_schedules::{self as schedules, Change, Spec, Timing};
use delayline_settings::Settings;
use predicates::{prelude::PredicateBooleanExt, str::contains};
use serde_json::json;

use crate::{
    common::{
        Counting, NO_SIGNAL, app, caught, eventually, eventually_seen, http, install, mortal_node,
        named_vhost, new_set, raw, restart_queue, shared_node, status, stop_queue, suspended, topology, url,
    },
    json, on,
};

/// Longer than anything counts a queue again, and shorter than a request may take.
const A_WHILE: Duration = Duration::from_millis(2_300);

/// Sends messages for `billing` that are due after so many seconds.
fn send(settings: &Settings, seconds: u64, count: u64) {
    let key = delayline_core::codec::RoutingKey::new(Delay::from_seconds(seconds).unwrap(), app("billing"));
    raw::publish(settings, (0..count).map(|n| raw::message("delay", &key.encode(), n, &json!({}))));
}

fn add(settings: &Settings, delivery: Delivery, recall: Option<RecallSettings>) {
    let spec = AppSpec { recall, ..AppSpec::new(app("billing"), delivery) };
    let report = admin::add_app(settings, &topology(settings), &spec, false, false).unwrap();
    assert_eq!(report.outcome, Applied::Installed, "{report:?}");
}

fn ready(settings: &Settings, queue: &str, count: u32) {
    let mut session = Session::open(&settings.broker).unwrap();
    eventually_seen(queue, || session.counts(queue).unwrap(), |it| it.is_some_and(|it| it.ready == count));
}

#[test]
fn listen_keeps_its_queue_if_it_cannot_be_counted() {
    let settings = new_set(1_000);
    let mut session = Session::open(&settings.broker).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_delayline"))
        .args(["listen", "--app", "billing", "--queue", "heard", "--count", "1"])
        .env("DELAYLINE_URL", url(&settings))
        .env("DELAYLINE_MANAGEMENT_URL", shared_node().management_url())
        .env("DELAYLINE_UNIT_MS", "1000")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut consumers = || session.counts("heard").unwrap().map(|it| it.consumers);
    eventually("it listens", || consumers() == Some(1));
    let vhost = &settings.broker.vhost;
    eventually("its queue is bound", || {
        let path = format!("queues/{vhost}/heard/bindings");
        http(&shared_node(), "GET", &path, &json!(null)).as_array().is_some_and(|all| all.len() > 1)
    });
    // Not through the set: it unbinds the queue once it has shown one.
    raw::publish(&settings, (0..20).map(|n| raw::message("", "heard", n, &json!({}))));
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    lines.next().unwrap().unwrap();
    // It counts the queue half a second after it has stopped to consume.
    caught("it has stopped to consume", || consumers() != Some(1));
    let node = shared_node();
    let silent = suspended(&node, vhost, &["heard"]);
    thread::sleep(A_WHILE);
    drop(silent);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    ready(&settings, "heard", 19);
}

#[test]
fn an_application_is_not_removed_if_its_queue_cannot_be_counted() {
    let node = mortal_node();
    let settings = named_vhost(&node, "kept").set("unit_ms", "1000").build().unwrap();
    install(&settings);
    add(&settings, Delivery::Direct(AppQueue::new("billing")), None);
    send(&settings, 0, 7);
    ready(&settings, "billing", 7);
    // After a start the broker has no statistics.
    node.tell(&["stop_app"]).unwrap();
    node.tell(&["start_app"]).unwrap();
    eventually("the queue has a leader", || {
        Session::open(&settings.broker)
            .is_ok_and(|mut it| it.counts("billing").is_ok_and(|it| it.is_some_and(|it| it.ready == 7)))
    });
    let silent = suspended(&node, "kept", &["billing"]);
    let outcome = thread::scope(|scope| {
        let removing = scope.spawn(|| {
            admin::remove_app(
                &settings,
                &topology(&settings),
                &app("billing"),
                &RemoveOptions::default(),
                &NO_SIGNAL,
            )
        });
        thread::sleep(Duration::from_secs(16));
        drop(silent);
        removing.join().unwrap().unwrap()
    });
    let refusal = outcome.unwrap_err();
    assert_eq!(refusal.waiting[0].queue, "billing", "{refusal:?}");
    ready(&settings, "billing", 7);

    // It stays suspended meanwhile.
    let silent = suspended(&node, "kept", &["billing"]);
    on(&settings)
        .args(["app", "remove", "billing", "--no-user", "--yes"])
        .assert()
        .code(1)
        .stdout(contains("`billing`"));
    drop(silent);
    ready(&settings, "billing", 7);
}

#[test]
fn what_cannot_be_counted_is_shown_as_unknown() {
    let settings = new_set(1_000);
    send(&settings, 4_096, 4);
    ready(&settings, "delay.level.12", 4);
    let node = shared_node();
    let silent = suspended(&node, &settings.broker.vhost, &["delay.unroutable", "delay.level.12"]);
    let seen = json(on(&settings).args(["status", "--json"]));
    assert!(seen["unroutable"].is_null() && seen["waiting"].is_null(), "{seen}");
    let level = seen["levels"].as_array().unwrap().iter().find(|it| it["level"] == 12).unwrap();
    assert!(level["ready"].is_null(), "{seen}");
    on(&settings).arg("status").assert().stdout(contains("No message is stuck").not());
    on(&settings)
        .args(["held", "list", "--kind", "unroutable"])
        .assert()
        .failure()
        .stdout(contains("nothing is unroutable").not())
        .stderr(contains("does not answer"));
    on(&settings)
        .args(["app", "discard", "billing", "--dry-run"])
        .assert()
        .failure()
        .stdout(contains("0 messages").not())
        // The queue, or the management API: 4.0 waits for such queues before a policy is set.
        .stderr(contains("does not answer").or(contains("the management API at")));
    let doctor = admin::doctor(&settings, &topology(&settings), &DoctorOptions::default()).unwrap();
    let unknown = |it: &String| it.contains("unroutable messages");
    assert!(doctor.unchecked.iter().any(unknown), "{doctor:#?}");
    drop(silent);
    let well =
        |seen: &delayline_watch::picture::Picture| (seen.unroutable, seen.waiting) == (Some(0), Some(4));
    eventually_seen("all is counted", || status(&settings), well);
}

#[test]
fn a_level_whose_process_is_stopped_has_no_leader() {
    let settings = new_set(1_000);
    let vhost = &settings.broker.vhost;
    send(&settings, 4_096, 4);
    let node = shared_node();
    eventually("the broker has counted them", || {
        let queue = http(&node, "GET", &format!("queues/{vhost}/delay.level.12"), &json!(null));
        queue["messages_ready"] == 4
    });
    stop_queue(&node, vhost, "delay.level.12");
    // A queue without statistics may be new.
    let report = eventually_seen(
        "all queues have statistics",
        || admin::verify(&settings, &topology(&settings)).unwrap(),
        |report| !report.unchecked_for_now,
    );
    restart_queue(&node, vhost, "delay.level.12");
    let found = report.findings.iter().find(|it| it.code == FindingCode::NoLeader);
    assert_eq!(found.map(|it| it.subject.as_str()), Some("queue `delay.level.12`"), "{report:#?}");
    // A queue whose statistics are late has a leader.
    ready(&settings, "delay.level.12", 4);
    Session::open(&settings.broker).unwrap().purge_queue("delay.level.12").unwrap();
    let report = admin::verify(&settings, &topology(&settings)).unwrap();
    assert!(report.findings.is_empty(), "{report:#?}");
}

#[test]
fn a_transfer_names_the_levels_that_did_not_answer() {
    let old = new_set(1_000);
    let mut new = old.clone();
    new.topology.set = "later".parse().unwrap();
    install(&new);
    send(&old, 4_096, 4);
    send(&old, 16_384, 2);
    for (level, count) in [("delay.level.12", 4), ("delay.level.14", 2)] {
        ready(&old, level, count);
    }
    let transfer = |dry_run| {
        let mut options = TransferOptions::default();
        (options.dry_run, options.unbound, options.allow_late) = (dry_run, true, true);
        let stop = AtomicBool::new(false);
        admin::transfer((&old, &TransferSource::Set), &new, &options, &stop, |_| {}).unwrap()
    };
    let node = shared_node();
    let silent = suspended(&node, &old.broker.vhost, &["delay.level.12"]);
    let report = transfer(true);
    drop(silent);
    assert_eq!(report.waiting, None, "{report:#?}");
    assert_eq!(report.uncounted, ["delay.level.12"], "{report:#?}");
    // A transfer sets a policy, and 4.3 waits for queues that are suspended before it answers.
    stop_queue(&node, &old.broker.vhost, "delay.level.12");
    let report = transfer(false);
    restart_queue(&node, &old.broker.vhost, "delay.level.12");
    assert_eq!((report.moved, report.unfinished), (2, false), "{report:#?}");
    assert_eq!(report.uncounted, ["delay.level.12"], "{report:#?}");
    ready(&old, "delay.level.12", 4);
    let report = transfer(false);
    assert_eq!((report.moved, report.unfinished, &report.uncounted[..]), (4, false, &[][..]), "{report:#?}");
}

#[test]
fn it_is_unknown_how_many_daemons_publish_schedules() {
    let settings = new_set(1_000);
    add(
        &settings,
        Delivery::Landing(Target::Queue(AppQueue::new("billing"))),
        Some(RecallSettings::default()),
    );
    let spec = Spec::new(app("billing"), Timing::Every { every: Delay::from_seconds(3_600).unwrap() });
    let name = "report".parse().unwrap();
    schedules::change(&settings, &topology(&settings), &name, Change::Set(&spec), false).unwrap();
    let listed = || schedules::list(&settings, &topology(&settings), None).unwrap().daemons;
    eventually_seen("they are counted", listed, |it| *it == Some(0));
    let node = shared_node();
    let silent = suspended(&node, &settings.broker.vhost, &["delay.schedules.turn"]);
    assert_eq!(listed(), None);
    on(&settings).args(["schedule", "list"]).assert().stderr(contains("no daemon").not());
    drop(silent);
    eventually_seen("they are counted again", listed, |it| *it == Some(0));
}

#[test]
fn a_message_whose_queue_does_not_answer_is_not_reported_as_not_recalled() {
    let settings = new_set(1_000);
    add(&settings, Delivery::Direct(AppQueue::new("billing")), Some(RecallSettings::default()));
    let router = settings.router().connect().unwrap();
    let message = Message::after(app("billing"), Delay::from_seconds(20).unwrap(), "x");
    let handle = router.publish(message.with_id("one".parse().unwrap())).unwrap().handle.unwrap();
    let recaller = Recaller::connect(settings.target()).unwrap();
    recaller.recall(&handle).unwrap();
    ready(&settings, "delay.recalled.billing", 1);
    assert!(recaller.is_recalled(&handle).unwrap());
    let node = shared_node();
    let silent = suspended(&node, &settings.broker.vhost, &["delay.recalled.billing"]);
    recaller.is_recalled(&handle).unwrap_err();
    drop(silent);
    eventually("it is found again", || recaller.is_recalled(&handle).is_ok_and(|found| found));
}
