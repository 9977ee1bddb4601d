//! Recalled messages, which can still be sent.

use std::{
    io::{Read, Write},
    process::Stdio,
};

use delayline_amqp::{Next, Session};
use delayline_core::message::Value;
use delayline_settings::Settings;
use predicates::{prelude::PredicateBooleanExt, str::contains};
use serde_json::json;

use crate::common::Counting;
use crate::{
    common::{PATIENCE, eventually, eventually_seen, http, installed, raw, shared_node},
    json, on, stdout,
};

fn waiting(settings: &Settings, queue: &str) -> u32 {
    Session::open(&settings.broker).unwrap().counts(queue).unwrap().unwrap().ready
}

/// Sends messages with these ids, recalls them before they are due, and waits until they have
/// arrived in the queue of recalled messages. The delay is long enough for a busy machine.
fn recalled(settings: &Settings, app: &str, ids: &[&str]) {
    let handles = handles(settings, app, "64s", ids.iter().map(|id| (*id).to_owned()));
    on(settings).args(["scheduled", "recall"]).write_stdin(handles).assert().success();
    let queue = format!("delay.recalled.{app}");
    eventually("all recalled messages have arrived", || waiting(settings, &queue) as usize == ids.len());
}

#[test]
fn list_show_replay_and_discard() {
    let settings = installed(1_000);
    for app in ["billing", "mail"] {
        on(&settings).args(["app", "add", app, "--recall", "--no-user"]).assert().success();
    }
    on(&settings).args(["app", "add", "plain", "--no-user"]).assert().success();
    on(&settings)
        .args(["held", "list", "--kind", "recalled"])
        .assert()
        .success()
        .stdout(contains("nothing is recalled"));
    recalled(&settings, "mail", &["m"]);
    recalled(&settings, "billing", &["a", "b", "c"]);
    // A message that the set never delayed.
    let stray = raw::message("", "delay.recalled.billing", "stray", &json!({}));
    raw::publish(&settings, [stray]);
    eventually("the stray message is there", || waiting(&settings, "delay.recalled.billing") == 4);

    let all = json(on(&settings).args(["held", "list", "--kind", "recalled", "--json"]));
    let groups: Vec<_> =
        all["groups"].as_array().unwrap().iter().map(|it| (&it["app"], &it["count"])).collect();
    assert_eq!((&all["waiting"], groups.len()), (&json!(5), 3), "{all:#}");
    assert!(
        groups.contains(&(&json!("billing"), &json!(3))) && groups.contains(&(&json!("mail"), &json!(1)))
    );
    on(&settings)
        .args(["held", "list", "--kind", "recalled", "--app", "billing"])
        .assert()
        .success()
        .stdout(contains("4 messages recalled").and(contains("stray")).and(contains("mail").not()));
    let cut = json(on(&settings).args(["held", "list", "--kind", "recalled", "--examine", "2", "--json"]));
    assert_eq!((&cut["waiting"], &cut["examined"]), (&json!(5), &json!(2)));
    let refused =
        on(&settings).args(["held", "list", "--kind", "recalled", "--app", "plain"]).assert().code(1);
    refused.stderr(contains("register it again with --recall (docs/how-to/recall.md)"));
    let refused = on(&settings).args(["scheduled", "list", "--recalls", "--app", "plain"]).assert().code(1);
    refused.stderr(contains("register it again with --recall (docs/how-to/recall.md)"));
    // A recall cannot be undone after the due time; the error shows what to do instead.
    let due = jiff::Timestamp::now().as_millisecond() - 5_000;
    let over = format!("delay.0000.0000.0000.0000.0000.0100.0000.billing.~.b@{due}");
    let undo = on(&settings).args(["scheduled", "unrecall", &over]).assert().code(1);
    undo.stdout(contains("too late")).stderr(contains("delayline held replay --kind recalled"));
    let shown = stdout(
        on(&settings).args(["held", "show", "--kind", "recalled", "--app", "billing", "--id", "b", "--json"]),
    );
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert_eq!((&shown["body"], &shown["reason"]), (&json!("b"), &json!("recalled")), "{shown:#}");
    on(&settings)
        .args(["held", "show", "--kind", "recalled", "--app", "billing", "--id", "m"])
        .assert()
        .code(1);
    on(&settings).args(["held", "show", "--kind", "recalled"]).assert().code(2).stderr(contains("--app"));
    eventually("showing messages removes none", || waiting(&settings, "delay.recalled.billing") == 4);

    for verb in ["replay", "discard"] {
        let refused =
            on(&settings).args(["held", verb, "--kind", "recalled", "--app", "billing"]).assert().code(2);
        refused.stderr(contains("--id").and(contains("--all")));
    }
    let mut session = Session::open(&settings.broker).unwrap();
    let consumer = session.consume("billing", 10).unwrap();
    on(&settings)
        .args(["held", "replay", "--kind", "recalled", "--app", "billing", "--id", "b"])
        .assert()
        .success()
        .stdout(contains("1 message sent on, 3 kept"));
    let next = || match consumer.next(PATIENCE) {
        Next::Delivery(delivery) => delivery,
        other => panic!("{other:?}"),
    };
    // The message is sent at once, with its id and its original routing key.
    let sent = next();
    assert_eq!(sent.body, b"b");
    assert_eq!(sent.routing_key, "delay.0000.0000.0000.0000.0000.0000.0000.billing.~.b");
    let from = sent.headers["delayline-routing-key"].clone();
    assert_eq!(from, Value::from("delay.0000.0000.0000.0000.0000.0100.0000.billing.~.b"));
    // The stray message does not belong to the application, so it stays. The exit code shows that,
    // too.
    on(&settings)
        .args(["held", "replay", "--kind", "recalled", "--app", "billing", "--all"])
        .assert()
        .code(1)
        .stdout(contains("2 messages sent on, 1 kept").and(contains("1 message stays")));
    let others = [next(), next()].map(|it| it.body);
    assert!(others.contains(&b"a".to_vec()) && others.contains(&b"c".to_vec()), "{others:?}");

    let discard = |app: &str, more: &[&str]| {
        stdout(
            on(&settings).args(["held", "discard", "--yes", "--kind", "recalled", "--app", app]).args(more),
        )
    };
    assert!(discard("mail", &["--older-than", "1d"]).contains("0 messages discarded, 1 kept"));
    assert!(discard("mail", &["--id", "m"]).contains("1 message discarded, 0 kept"));
    assert!(discard("billing", &["--all"]).contains("1 message discarded, 0 kept"));
    assert_eq!(waiting(&settings, "delay.unroutable"), 0);
}

/// A delay until long after the test.
const LONG: &str = "1h";

/// Sends messages with these ids, which are also their bodies, and returns their handles.
fn handles(settings: &Settings, app: &str, delay: &str, ids: impl Iterator<Item = String>) -> String {
    let lines: String = ids.map(|id| format!("{}\n", json!({ "id": id, "body": id }))).collect();
    let arguments = ["send", "--app", app, "--delay", delay, "--jsonl", "--handles"];
    stdout(on(settings).args(arguments).write_stdin(lines))
}

/// Waits until so many recalls are listed: the management API may show a binding a moment later.
fn are_pending(settings: &Settings, count: usize) {
    let list = || json(on(settings).args(["scheduled", "list", "--recalls", "--json"]));
    eventually_seen("the recalls are listed", list, |list| {
        list["pending"].as_array().unwrap().len() == count
    });
}

#[test]
fn all_messages_are_recalled_although_the_output_is_not_read() {
    let settings = installed(1_000);
    on(&settings).args(["app", "add", "billing", "--recall", "--no-user"]).assert().success();
    // Stdout contains only handles; all other output is on stderr.
    let all = handles(&settings, "billing", LONG, (0..60).map(|id| format!("id-{id}")));
    assert_eq!(all.lines().count(), 60, "{all}");
    let mut recall = std::process::Command::new(env!("CARGO_BIN_EXE_delayline"))
        .args(["scheduled", "recall"])
        .env("DELAYLINE_URL", settings.broker.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    drop(recall.stdout.take());
    recall.stdin.take().unwrap().write_all(all.as_bytes()).unwrap();
    assert_eq!(recall.wait().unwrap().code(), Some(0));
    are_pending(&settings, 60);
}

#[test]
fn a_failed_recall_stops_no_other_recall() {
    let settings = installed(1_000);
    on(&settings).args(["app", "add", "billing", "--recall", "--no-user"]).assert().success();
    on(&settings).args(["app", "add", "plain", "--no-user"]).assert().success();
    let billing = handles(&settings, "billing", LONG, ["a", "b"].into_iter().map(str::to_owned));
    let mut lines = billing.lines();
    let plain = format!("{}\n", lines.next().unwrap())
        + "delay.0000.0000.0000.0000.0000.0101.1010.plain.~.x\n"
        + lines.next().unwrap();
    let ended = on(&settings).args(["scheduled", "recall", "--json"]).write_stdin(plain).assert().code(3);
    let text = String::from_utf8_lossy(&ended.get_output().stdout).into_owned();
    let answers: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let told: Vec<_> = answers.iter().map(|line| line["answer"].as_str().unwrap()).collect();
    assert_eq!(told, ["recalled", "failed", "recalled"], "{text}");
    assert!(answers[1]["error"].as_str().unwrap().contains("register it again with --recall"), "{text}");
    are_pending(&settings, 2);
}

#[test]
fn no_message_replaces_one_that_cannot_be_recalled() {
    let settings = installed(1_000);
    on(&settings).args(["app", "add", "plain", "--no-user"]).assert().success();
    let old = "delay.0000.0000.0000.0000.0000.0101.1010.plain.~.x";
    for words in [
        vec!["scheduled", "reschedule", old, "--delay", "2h", "--body", "new"],
        vec!["send", "--app", "plain", "--delay", "2h", "--id", "y", "--body", "new", "--replace", old],
    ] {
        on(&settings)
            .args(&words)
            .assert()
            .code(3)
            .stderr(contains("nothing was done").and(contains("register it again with --recall")));
    }
    // A sent message would wait in the levels.
    let status = json(on(&settings).args(["status", "--json"]));
    assert_eq!(status["waiting"], 0, "{status:#}");
}

#[test]
fn one_handle_is_printed_alone_and_listening_shows_what_has_an_id() {
    let settings = installed(1_000);
    on(&settings).args(["app", "add", "billing", "--recall", "--no-user"]).assert().success();
    let mut listen = std::process::Command::new(env!("CARGO_BIN_EXE_delayline"))
        .args(["listen", "--app", "billing", "--count", "2", "--json"])
        .env("DELAYLINE_URL", settings.broker.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let bound = || {
        let path = format!("exchanges/{}/delay.through.billing/bindings/source", settings.broker.vhost);
        http(&shared_node(), "GET", &path, &json!(null)).as_array().unwrap().len()
    };
    eventually("listen is bound", || bound() == 2);
    let send = |more: &[&str]| {
        stdout(on(&settings).args(["send", "--app", "billing", "--delay", "0", "--body", "x"]).args(more))
    };
    let handle = send(&["--id", "with", "--handles"]);
    assert!(handle.starts_with("delay.0000.0000.0000.0000.0000.0000.0000.billing.~.with@"), "{handle}");
    assert_eq!(handle.lines().count(), 1, "{handle}");
    send(&[]);
    let mut text = String::new();
    listen.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    assert!(listen.wait().unwrap().success());
    assert!(text.lines().count() == 2 && text.contains(".~.with"), "{text}");
}
