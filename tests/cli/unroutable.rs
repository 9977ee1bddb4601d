//! Unroutable messages: show, replay, discard.

use std::{
    collections::HashMap,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use delayline_amqp::Session;
use delayline_settings::Settings;
use predicates::{prelude::PredicateBooleanExt, str::contains};
use serde_json::{Value as Json, json};

use crate::common::Counting;
use crate::{
    common::{Inbox, PATIENCE, eventually, eventually_seen, installed, raw, shared_node},
    json, on,
};

fn key(app: &str) -> String {
    format!("delay.{}.{app}", ["0000"; 7].join("."))
}

fn waiting(settings: &Settings) -> u32 {
    let mut session = Session::open(&settings.broker).unwrap();
    session.counts("delay.unroutable").unwrap().unwrap().ready
}

fn publish(settings: &Settings, messages: impl IntoIterator<Item = (String, String)>) {
    let messages = messages.into_iter().enumerate().map(|(id, (key, body))| {
        raw::message("delay", &key, body, &json!({ "message_id": id.to_string(), "headers": { "n": id } }))
    });
    raw::publish(settings, messages);
}

fn group<'a>(report: &'a Json, app: &Json, reason: &str) -> &'a Json {
    let groups = report["groups"].as_array().unwrap();
    groups.iter().find(|group| group["app"] == *app && group["reason"] == reason).expect("the group")
}

#[test]
fn unroutable_messages_are_listed_shown_replayed_and_discarded() {
    let settings = installed(100);
    on(&settings)
        .args(["held", "list", "--kind", "unroutable"])
        .assert()
        .success()
        .stdout(contains("nothing is unroutable"));
    let some = ["late", "late", "gone"].map(|app| (key(app), format!("for {app}")));
    let bad = [("delay.0000.0001".to_owned(), "bad \u{1b}[31m".to_owned())];
    publish(&settings, some.into_iter().chain(bad));
    eventually("all messages are unroutable", || waiting(&settings) == 4);

    let report = json(on(&settings).args(["held", "list", "--kind", "unroutable", "--json"]));
    assert_eq!((&report["waiting"], &report["examined"]), (&4.into(), &4.into()));
    let late = group(&report, &"late".into(), "nobody-bound");
    assert_eq!((&late["count"], &late["bound"]), (&2.into(), &false.into()));
    let malformed = group(&report, &Json::Null, "malformed");
    assert!(malformed["detail"].as_str().unwrap().contains("ends after 2 of the seven words"));
    on(&settings)
        .args(["held", "list", "--kind", "unroutable", "--examine", "1"])
        .assert()
        .success()
        .stdout(contains("only the first 1 were examined"));

    on(&settings)
        .args(["held", "show", "--kind", "unroutable", "--reason", "malformed"])
        .assert()
        .success()
        .stdout(contains("delay.0000.0001").and(contains("bad \\u{1b}[31m")).and(contains("message_id")));
    let shown = json(on(&settings).args(["held", "show", "--kind", "unroutable", "--app", "gone", "--json"]));
    assert_eq!((&shown["body"], &shown["headers"]["n"]), (&"for gone".into(), &2.into()));
    on(&settings).args(["held", "show", "--kind", "unroutable", "--message-id", "none"]).assert().code(1);

    // No queue is bound yet, so no message moves.
    on(&settings)
        .args(["held", "replay", "--kind", "unroutable", "--app", "late"])
        .assert()
        .code(1)
        .stderr(contains("no queue is bound for it"));
    let inbox = Inbox::open(&settings, "late");
    let report = json(on(&settings).args(["held", "replay", "--kind", "unroutable", "--all", "--json"]));
    assert_eq!((&report["sent"], &report["kept"], &report["hopeless"]), (&2.into(), &2.into(), &1.into()));
    assert_eq!(report["unbound"], json!({ "gone": 1 }));
    publish(&settings, [(key("late"), "the last".to_owned())]);
    let arrivals = inbox.until("the last");
    assert_eq!(arrivals.len(), 2);
    assert!(arrivals.iter().all(|arrival| arrival.body == b"for late" && arrival.routing_key == key("late")));
    assert_eq!(arrivals[0].headers["delayline-routing-key"], key("late").as_str().into());

    // With `--unbound`, the message is sent anyway. It comes back once, and does not loop.
    on(&settings)
        .args(["held", "replay", "--kind", "unroutable", "--app", "gone", "--unbound"])
        .assert()
        .success()
        .stdout(contains("1 message sent on"));
    eventually("the message is back", || waiting(&settings) == 2);

    // A message that no exchange would route stays, and the exit code reports a problem.
    on(&settings)
        .args(["held", "replay", "--kind", "unroutable", "--reason", "malformed"])
        .assert()
        .code(1)
        .stdout(contains("no exchange would route"));

    on(&settings)
        .args(["held", "discard", "--yes", "--kind", "unroutable"])
        .assert()
        .code(2)
        .stderr(contains("--all"));
    on(&settings)
        .args(["held", "discard", "--yes", "--kind", "unroutable", "--reason", "malformed"])
        .assert()
        .success()
        .stdout(contains("1 message discarded, 1 kept"));
    eventually("one message is left", || waiting(&settings) == 1);
    on(&settings).args(["held", "discard", "--yes", "--kind", "unroutable", "--all"]).assert().success();
    assert_eq!(waiting(&settings), 0);
}

#[test]
fn bindings_are_not_guessed_and_a_missing_set_is_named() {
    let settings = installed(100);
    on(&settings)
        .env("DELAYLINE_MANAGEMENT_URL", "none")
        .args(["held", "replay", "--kind", "unroutable", "--all"])
        .assert()
        .code(1)
        .stderr(contains("which queues are bound is unknown"));
    on(&settings)
        .args(["held", "list", "--kind", "unroutable", "--set", "other"])
        .assert()
        .code(1)
        .stderr(contains("delayline install"));
}

#[test]
fn a_limit_drops_the_oldest_messages_and_blocks_no_application() {
    let settings = crate::common::vhost().set("unroutable_max_length", "5").build().unwrap();
    crate::common::install(&settings);
    let on = || {
        let mut command = on(&settings);
        command.env("DELAYLINE_UNROUTABLE_MAX_LENGTH", "5");
        command
    };
    on().arg("verify").assert().success();
    publish(&settings, (0..20).map(|n| (key("nobody"), n.to_string())));
    eventually("five messages are kept", || waiting(&settings) == 5);
    // The broker may still store the others.
    let bodies = || -> Vec<Json> {
        let output = on().args(["held", "show", "--kind", "unroutable", "--json"]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().map(|line| serde_json::from_str::<Json>(line).unwrap()["body"].clone()).collect()
    };
    eventually_seen("the newest are kept", bodies, |bodies| *bodies == ["15", "16", "17", "18", "19"]);
    // The set was installed with another limit, so `verify` finds a difference.
    super::on(&settings).arg("verify").assert().code(1).stdout(contains("x-max-length"));
}

/// Starts a replay, and kills it after it has sent some of the messages. Returns whether it had not
/// sent all of them: on a busy machine, it may end before anybody looks.
fn kill_half_way(settings: &Settings, below: u32) -> bool {
    let mut child = Command::new(env!("CARGO_BIN_EXE_delayline"))
        .args(["held", "replay", "--kind", "unroutable", "--all"])
        .env("DELAYLINE_URL", format!("{}/{}", shared_node().url(), settings.broker.vhost))
        .env("DELAYLINE_MANAGEMENT_URL", shared_node().management_url())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut session = Session::open(&settings.broker).unwrap();
    while session.counts("in.app").unwrap().unwrap().ready < below && child.try_wait().unwrap().is_none() {
        thread::sleep(Duration::from_millis(2));
    }
    child.kill().unwrap();
    !child.wait().unwrap().success()
}

#[test]
fn thousands_survive_a_replay_that_is_killed_twice() {
    const MESSAGES: u32 = 3_000;
    let settings = installed(1_000);
    publish(&settings, (0..MESSAGES).map(|n| (key("app"), n.to_string())));
    eventually("all messages are unroutable", || waiting(&settings) == MESSAGES);
    // The queue is bound, and has no consumer until the end.
    drop(Inbox::open(&settings, "app"));
    let killed = [500, 1_500].map(|below| kill_half_way(&settings, below));
    assert!(killed.contains(&true), "each replay ended before it could be killed");
    // The messages that a killed run held return once the broker notices.
    eventually("the remaining messages are replayed", || {
        on(&settings).args(["held", "replay", "--kind", "unroutable", "--all"]).assert().success();
        waiting(&settings) == 0
    });
    let mut counts: HashMap<String, u32> = HashMap::new();
    // All messages have been sent on, and no command sends any now.
    let sent = Session::open(&settings.broker).unwrap().counts("in.app").unwrap().unwrap().ready;
    let mut inbox = Inbox::open(&settings, "app");
    inbox.reopen();
    for arrival in inbox.collect(sent as usize, PATIENCE) {
        *counts.entry(arrival.id).or_default() += 1;
    }
    let twice = counts.values().filter(|&&count| count > 1).count();
    println!("{MESSAGES} replayed, killed twice: {} of them came, {twice} came twice", counts.len());
    assert_eq!(counts.len(), MESSAGES as usize);
    // Duplicates are messages that were sent but not yet acknowledged at a kill. Each of the two
    // kills causes at most as many as can be in flight.
    assert!(twice <= 2 * 256, "{twice} came twice");
}
