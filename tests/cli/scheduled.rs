//! Scheduled messages: finding them in the journal, and recalling and rescheduling them with its
//! help.

use std::{
    process::{self, Stdio},
    thread,
    time::{Duration, Instant},
};

use assert_cmd::Command;
use delayline_settings::Settings;
use jiff::Timestamp;
use predicates::{prelude::PredicateBooleanExt, str::contains};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value as Json, json};

use crate::{
    common::{self, PATIENCE, eventually, eventually_seen, http, installed, shared_node},
    json, on, stdout,
};

/// The command, with these words.
fn run(settings: &Settings, words: &[&str]) -> Command {
    let mut run = on(settings);
    run.args(words).write_stdin("");
    run
}

/// Sends a message, and returns its handle.
fn sent(settings: &Settings, more: &[&str]) -> String {
    let mut send = run(settings, &["send", "--app", "billing", "--json"]);
    json(send.args(more))["message"]["handle"].as_str().unwrap().to_owned()
}

fn registered() -> Settings {
    let settings = installed(1_000);
    run(&settings, &["app", "add", "billing", "--no-user", "--recall", "--journal", "7d"]).assert().success();
    settings
}

fn list(settings: &Settings) -> Json {
    json(&mut run(settings, &["scheduled", "list", "--app", "billing", "--json"]))
}

/// Waits until the journal shows these messages: the id, without the suffix of a rescheduled
/// message, and the state.
fn becomes(settings: &Settings, expected: &[(&str, &str)]) {
    let states = || {
        let list = list(settings);
        let messages = list["messages"].as_array().unwrap().iter();
        let text = |it: &Json| it.as_str().unwrap_or("none").to_owned();
        let of = |it: &Json| (text(&it["id"]).split("--").next().unwrap().to_owned(), text(&it["state"]));
        messages.map(of).collect::<Vec<_>>()
    };
    let same = |found: &Vec<(String, String)>| {
        found.iter().map(|(id, state)| (id.as_str(), state.as_str())).eq(expected.iter().copied())
    };
    eventually_seen("the journal shows the expected messages", states, same);
}

#[test]
fn messages_are_recalled_with_the_help_of_the_journal() {
    let settings = registered();
    for (id, delay) in [("a", "1h"), ("b", "2h"), ("c", "3h"), ("d", "4h")] {
        sent(&settings, &["--delay", delay, "--id", id, "--body", id]);
    }
    run(&settings, &["scheduled", "recall", "--app", "billing", "--id", "b"])
        .assert()
        .success()
        .stdout(contains("recalled"));
    // A message that is not in the journal is reported as unknown.
    let unknown = run(&settings, &["scheduled", "recall", "--app", "billing", "--id", "z"]).assert();
    unknown.code(1).stdout(contains("unknown").and(contains("does not contain `z`")));
    becomes(&settings, &[("a", "waiting"), ("b", "recalled"), ("c", "waiting"), ("d", "waiting")]);
    let before = list(&settings)["messages"][3]["due"].as_str().unwrap().to_owned();
    let all = ["scheduled", "recall", "--app", "billing", "--due-before", &before, "--yes"];
    run(&settings, &all).assert().success().stdout(contains("2 recalled, 0 not or not certainly"));
    becomes(&settings, &[("a", "recalled"), ("b", "recalled"), ("c", "recalled"), ("d", "waiting")]);
    run(&settings, &["scheduled", "unrecall", "--app", "billing", "--id", "a"]).assert().success();
    becomes(&settings, &[("a", "waiting"), ("b", "recalled"), ("c", "recalled"), ("d", "waiting")]);
    // The command refuses to run if it does not name any messages.
    run(&settings, &["scheduled", "recall", "--app", "billing"]).assert().code(2);
    run(&settings, &["scheduled", "recall", "--id", "a"]).assert().code(2);
}

#[test]
fn messages_are_shown_recalled_and_rescheduled_by_filters_with_a_preview() {
    let settings = registered();
    let first = json!({ "id": "a", "delay": "1h", "body": "1", "headers": { "customer": "C-4" } });
    let lines: String = [
        first.clone(),
        json!({ "id": "b", "delay": "2h", "body": "2", "headers": { "customer": "C-5" } }),
        json!({ "delay": "3h", "body": "3", "headers": { "customer": "C-4" } }),
        json!({ "id": "d", "delay": "4h", "body": "4", "headers": { "customer": "C-4" } }),
        json!({ "id": "e", "delay": "5h", "body": "5" }),
    ]
    .iter()
    .map(|line| format!("{line}\n"))
    .collect();
    let send = |lines: String| {
        let mut send = run(&settings, &["send", "--app", "billing", "--jsonl"]);
        send.write_stdin(lines).assert().success();
    };
    send(lines);
    // Another message with the same routing key and another due time.
    send(first.to_string());
    let customer = ["--app", "billing", "--header", "customer=C-4"];
    let command =
        |verb: &str, more: &[&str]| run(&settings, &[&["scheduled", verb][..], &customer, more].concat());
    let counts = || json(&mut run(&settings, &["scheduled", "count", "--by", "app", "--json"]));
    let waiting = |counts: &Json| counts["apps"][0]["waiting"] == 6;
    eventually_seen("all are in the journal", counts, waiting);
    command("count", &["--by", "app"]).assert().success().stdout(contains("billing").and(contains("4")));

    // Messages without an id are listed and shown, too.
    let shown = stdout(&mut command("show", &["--skip", "1", "--limit", "2", "--json"]));
    let bodies: Vec<Json> =
        shown.lines().map(|it| serde_json::from_str::<Json>(it).unwrap()["body"].take()).collect();
    assert_eq!(bodies, ["1", "3"], "{shown}");
    let page = json(&mut command("list", &["--skip", "2", "--limit", "1", "--json"]));
    assert_eq!((&page["messages"][0]["id"], &page["more"]), (&Json::Null, &1.into()), "{page:#}");

    for (verb, more) in [("recall", &[][..]), ("reschedule", &["--delay", "6h"])] {
        // There is no terminal to ask on.
        command(verb, more).assert().code(2).stderr(contains("--yes"));
        let preview = json(&mut command(verb, &[more, &["--dry-run", "--json"]].concat()));
        assert_eq!((&preview["messages"], &preview["without_id"]), (&3.into(), &1.into()), "{preview:#}");
        let preview = command(verb, &[more, &["--dry-run"]].concat()).assert().success();
        preview.stdout(contains("3 messages would be re").and(contains("1 message without an id")));
    }
    let all = |state: &'static str| {
        [("a", state), ("a", state), ("b", "waiting"), ("none", "waiting"), ("d", state), ("e", "waiting")]
    };
    // In the order of the journal.
    let moved = |state: &'static str| [("a", state), ("d", state), ("a", state)];
    becomes(&settings, &all("waiting"));
    let done = command("reschedule", &["--delay", "6h", "--yes"]).assert().code(1);
    done.stdout(contains("3 rescheduled, 1 not or not certainly"));
    becomes(&settings, &[&all("recalled")[..], &moved("waiting")].concat());
    command("recall", &["--yes"]).assert().code(1).stdout(contains("3 recalled, 1 not or not certainly"));
    becomes(&settings, &[&all("recalled")[..], &moved("recalled")].concat());
    // What was recalled already is not selected, and a message that has no id has no handle.
    command("recall", &["--yes"]).assert().code(1).stderr(contains("1 have no id"));
    command("unrecall", &["--yes"]).assert().success().stdout(contains("6 undone"));
    becomes(&settings, &[&all("waiting")[..], &moved("waiting")].concat());
    let none = ["scheduled", "recall", "--app", "billing", "--header", "customer=C-9", "--yes"];
    run(&settings, &none).assert().code(1).stdout(contains("does not contain such messages"));
}

#[test]
fn a_message_is_delivered_at_another_time_as_it_was() {
    let settings = registered();
    let line = r#"{"id": "a", "delay": "1h", "body": "pay!", "message_id": "7", "headers": {"n": 1}}"#;
    let mut send = run(&settings, &["send", "--app", "billing", "--jsonl", "--handles"]);
    let old = stdout(send.write_stdin(line)).lines().next().unwrap().to_owned();
    let again = json(&mut run(&settings, &["scheduled", "reschedule", &old, "--delay", "2h", "--json"]));
    assert_eq!((&again["answer"], &again["old"]), (&"recalled".into(), &old.as_str().into()), "{again}");
    becomes(&settings, &[("a", "recalled"), ("a", "waiting")]);
    let new = again["handle"].as_str().unwrap().to_owned();
    let shown = json(&mut run(&settings, &["scheduled", "show", &new, "--json"]));
    assert_eq!((&shown["body"], &shown["message_id"]), (&"pay!".into(), &"7".into()), "{shown}");
    assert_eq!((&shown["headers"]["n"], &shown["state"]), (&1.into(), &"waiting".into()), "{shown}");
    // The message was rescheduled already, and is not sent again.
    let refused = run(&settings, &["scheduled", "reschedule", &old, "--delay", "3h"]).assert();
    refused
        .code(1)
        .stdout(contains("rescheduled before").and(contains("nothing was changed")).and(contains(&new)));
    // To the same delay, and under another id.
    let again = json(&mut run(&settings, &["scheduled", "reschedule", &new, "--delay", "2h", "--json"]));
    let new = again["handle"].as_str().unwrap().to_owned();
    run(&settings, &["scheduled", "reschedule", &new, "--delay", "2h", "--new-id", "b"]).assert().success();
    becomes(&settings, &[("a", "recalled"), ("a", "recalled"), ("a", "recalled"), ("b", "waiting")]);
    // Without the journal, the command needs a body.
    let foreign = sent(&settings, &["--delay", "5h", "--id", "c", "--body", "x"]);
    let unknown = foreign.replace(".~.c@", ".~.nobody@");
    run(&settings, &["scheduled", "reschedule", &unknown, "--delay", "6h"])
        .assert()
        .code(1)
        .stdout(contains("--body"));
    run(&settings, &["scheduled", "reschedule", &foreign, "--delay", "6h", "--body", "y"]).assert().success();
    let late = foreign.split('@').next().unwrap().to_owned() + "@1000";
    run(&settings, &["scheduled", "reschedule", &late, "--delay", "1h"])
        .assert()
        .code(1)
        .stdout(contains("due already"));
}

#[test]
fn a_new_message_takes_the_place_of_another_one() {
    let settings = registered();
    let old = sent(&settings, &["--delay", "1h", "--id", "cart", "--body", "1"]);
    let second = sent(&settings, &["--delay", "61m", "--id", "cart", "--body", "2", "--replace", &old]);
    becomes(&settings, &[("cart", "recalled"), ("cart", "waiting")]);
    // A mistyped application is refused.
    let send =
        ["send", "--app", "biling", "--delay", "1h", "--id", "cart", "--body", "x", "--replace", &second];
    run(&settings, &send).assert().code(2).stderr(contains("`biling`").and(contains("nothing was done")));
    // A message that was replaced before already has a successor.
    let send =
        ["send", "--app", "billing", "--delay", "1h", "--id", "cart", "--body", "x", "--replace", &old];
    run(&settings, &send)
        .assert()
        .code(2)
        .stderr(contains("was recalled before").and(contains("nothing was sent")));
    // Without the management API, the command cannot check this. It reports that, and sends the
    // message, also with a delay that was used before.
    let blind = |management: &str, delay: &str, old: &str| {
        let send = ["send", "--app", "billing", "--delay", delay, "--id", "cart", "--body", "x", "--json"];
        let mut send = run(&settings, &[&send[..], &["--replace", old]].concat());
        let done = send.env("DELAYLINE_MANAGEMENT_URL", management).assert().success();
        let done = done.stderr(contains("it is unknown whether"));
        let said: Json = serde_json::from_slice(&done.get_output().stdout).unwrap();
        assert_eq!(said["replaced"], "recalled", "{said}");
        said["message"]["handle"].as_str().unwrap().to_owned()
    };
    let third = blind("none", "1h", &second);
    let fourth = blind("http://127.0.0.1:1", "1h", &third);
    let keys = [&old, &second, &third, &fourth].map(|it| it.split('@').next().unwrap().to_owned());
    assert_eq!(keys.iter().collect::<std::collections::BTreeSet<_>>().len(), 4, "{keys:?}");
    let pending = || json(&mut run(&settings, &["scheduled", "list", "--recalls", "--json"]));
    eventually("all except the last one are recalled", || {
        pending()["pending"].as_array().unwrap().len() == 3
    });
}

#[test]
fn the_newest_of_an_id_takes_the_place_of_all_that_wait() {
    let settings = registered();
    let newest = |delay: &str, id: &[&str]| {
        let send = ["send", "--app", "billing", "--delay", delay, "--body", "x"];
        run(&settings, &[&send[..], id, &["--replace"]].concat()).assert()
    };
    newest("1h", &["--id", "cart"]).success().stdout(contains("contains no waiting message with this id"));
    becomes(&settings, &[("cart", "waiting")]);
    sent(&settings, &["--delay", "62m", "--id", "cart", "--body", "x"]);
    sent(&settings, &["--delay", "2h", "--id", "other", "--body", "x"]);
    newest("63m", &["--id", "cart"]).success().stdout(contains("the old message is recalled"));
    let cart = [("cart", "recalled"), ("cart", "recalled"), ("cart", "waiting")];
    becomes(&settings, &[&cart[..], &[("other", "waiting")]].concat());
    newest("1h", &[]).code(2).stderr(contains("give its --id"));
    // First the delay that the message has, then one that it had before.
    let gone = ("cart", "recalled");
    newest("63m", &["--id", "cart"]).success().stdout(contains("the old message is recalled"));
    newest("1h", &["--id", "cart"]).success().stdout(contains("the old message is recalled"));
    becomes(&settings, &[gone, ("cart", "waiting"), gone, gone, gone, ("other", "waiting")]);
    run(&settings, &["scheduled", "recall", "--app", "billing", "--id", "cart"]).assert().success();
    newest("64m", &["--id", "cart"]).success().stdout(contains("contains no waiting message with this id"));
    becomes(&settings, &[gone, gone, gone, gone, gone, ("cart", "waiting"), ("other", "waiting")]);
    // Without the management API, the command cannot see recalled messages, and asks for a handle.
    let send = ["send", "--app", "billing", "--delay", "65m", "--body", "x", "--id", "cart", "--replace"];
    let mut blind = run(&settings, &send);
    let without = blind.env("DELAYLINE_MANAGEMENT_URL", "none").assert();
    without.code(2).stderr(contains("Pass a HANDLE"));
    // An API that is down may be up the next time, so this is another exit code.
    let down = blind.env("DELAYLINE_MANAGEMENT_URL", "http://127.0.0.1:1").assert();
    down.code(3).stderr(contains("Pass a HANDLE"));
}

#[test]
fn a_message_without_a_due_time_is_replaced_as_well() {
    let settings = registered();
    // A message as another client may publish it.
    let dated = sent(&settings, &["--delay", "1h", "--id", "other", "--body", "x"]);
    let key = dated.split('@').next().unwrap().replace(".~.other", ".~.cart");
    let message =
        json!({ "routing_key": key, "payload": "x", "payload_encoding": "string", "properties": {} });
    let path = format!("exchanges/{}/delay/publish", settings.broker.vhost);
    assert_eq!(http(&shared_node(), "POST", &path, &message)["routed"], true);
    eventually("the message is in the journal", || {
        let words = ["scheduled", "list", "--app", "billing", "--id", "cart", "--json"];
        json(&mut run(&settings, &words))["messages"].as_array().unwrap().len() == 1
    });
    let send =
        ["send", "--app", "billing", "--delay", "2h", "--id", "cart", "--body", "x", "--replace", "--json"];
    assert_eq!(json(&mut run(&settings, &send))["replaced"], "recalled");
    run(&settings, &["scheduled", "list", "--recalls"]).assert().success().stdout(contains(&key));
}

#[test]
fn waiting_for_a_recalled_message_loses_nothing() {
    let settings = registered();
    let handle = sent(&settings, &["--delay", "40s", "--id", "a", "--body", "x"]);
    run(&settings, &["scheduled", "recall", &handle]).assert().success();
    let kept = || {
        let list =
            json(&mut run(&settings, &["held", "list", "--kind", "recalled", "--app", "billing", "--json"]));
        list["waiting"].as_u64().unwrap()
    };
    eventually("the message is in the queue of recalled messages", || kept() == 1);
    // The handle has no due time, so the command looks at once.
    let undated = handle.split('@').next().unwrap();
    run(&settings, &["scheduled", "recall", "--wait", undated]).assert().success();
    // A policy that drops messages after a few deliveries.
    let policy = |method: &str| {
        let definition = json!({ "delivery-limit": 3 });
        let policy = json!({
            "pattern": "^delay\\.recalled\\.", "definition": definition, "apply-to": "queues", "priority": 9
        });
        http(&shared_node(), method, &format!("policies/{}/few", settings.broker.vhost), &policy);
    };
    policy("PUT");
    for _ in 0..5 {
        let mut wait = run(&settings, &["scheduled", "recall", "--wait", undated]);
        wait.assert().code(1).stdout(contains("uncertain")).stderr(contains("cannot find out where"));
    }
    policy("DELETE");
    eventually("the message is still there", || kept() == 1);
    // The answer is also uncertain if the limits of the queue cannot be read.
    let other = ["app", "add", "orders", "--no-user", "--recall", "--keep-recalled", "7d"];
    run(&settings, &other).assert().success();
    let of_other = undated.replace("billing", "orders");
    let mut wait = run(&settings, &["scheduled", "recall", "--wait", &of_other]);
    let blind = wait.env("DELAYLINE_MANAGEMENT_URL", "none").assert();
    blind.code(1).stdout(contains("uncertain")).stderr(contains("cannot find out where"));
}

#[test]
fn an_interrupted_wait_has_no_answer() {
    let settings = registered();
    let handle = sent(&settings, &["--delay", "1h", "--id", "a", "--body", "x"]);
    let key = handle.split('@').next().unwrap();
    let path = format!("vhosts/{}/connections", settings.broker.vhost);
    let is_connected = || http(&shared_node(), "GET", &path, &json!(null)).to_string().contains("(recall)");
    let end = Instant::now() + PATIENCE;
    let status = loop {
        assert!(Instant::now() < end, "the command was never seen waiting");
        eventually("the connection of an earlier command is gone", || !is_connected());
        // The handle names the present time as the due time, so the command looks for about ten
        // seconds.
        let mut child = process::Command::new(env!("CARGO_BIN_EXE_delayline"))
            .args(["scheduled", "recall", "--wait", &format!("{key}@{}", Timestamp::now().as_millisecond())])
            .env("DELAYLINE_URL", common::url(&settings))
            .env("DELAYLINE_MANAGEMENT_URL", shared_node().management_url())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        while child.try_wait().unwrap().is_none() && !is_connected() {
            thread::sleep(Duration::from_millis(50));
        }
        match child.try_wait().unwrap() {
            // The command ended before its connection was seen.
            Some(ended) => assert_eq!(ended.code(), Some(1)),
            None => {
                kill_process(Pid::from_child(&child), Signal::INT).unwrap();
                break child.wait().unwrap();
            }
        }
    };
    assert_eq!(status.code(), Some(130));
}

#[test]
fn a_message_rescheduled_there_and_back_waits_once_with_and_without_the_management_api() {
    let settings = registered();
    let (seen, off, down) =
        (shared_node().management_url(), "none".to_owned(), "http://127.0.0.1:1".to_owned());
    for (id, management, blind) in [("a", seen, 1), ("b", off, 2), ("c", down, 3)] {
        let reschedule = |handle: &str, more: &[&str]| {
            let mut run = run(&settings, &[&["scheduled", "reschedule", handle, "--json"], more].concat());
            run.env("DELAYLINE_MANAGEMENT_URL", &management).assert()
        };
        let moved = |handle: &str, delay: &str| {
            let said = reschedule(handle, &["--delay", delay]).success();
            let said: Json = serde_json::from_slice(&said.get_output().stdout).unwrap();
            assert_eq!(said["answer"], "recalled", "{said}");
            said["handle"].as_str().unwrap().to_owned()
        };
        let first = sent(&settings, &["--delay", "1h", "--id", id, "--body", id]);
        let there = moved(&first, "2h");
        // The old delay again. Its routing key is already recalled for this id.
        let back = moved(&there, "1h");
        // An old handle of a rescheduled message does not send a second message.
        for old in [&first, &there] {
            let refused = run(&settings, &["scheduled", "reschedule", old, "--delay", "3h"])
                .env("DELAYLINE_MANAGEMENT_URL", &management)
                .assert()
                .code(1);
            refused.stdout(contains("rescheduled before").and(contains(&back)));
            reschedule(old, &["--delay", "3h", "--body", id]).code(blind);
        }
    }
    let states = || {
        let list = list(&settings);
        ["waiting", "recalled"].map(|state| list[state].as_u64().unwrap())
    };
    eventually_seen("one message of each id waits", states, |found| *found == [3, 6]);
    // Each message is found by its first id.
    run(&settings, &["scheduled", "recall", "--app", "billing", "--id", "b"]).assert().success();
    eventually_seen("the message is recalled", states, |found| *found == [2, 7]);
}

#[test]
fn a_scheduled_message_arrived_at_no_time_and_a_missing_journal_names_the_page() {
    let settings = registered();
    let handle = sent(&settings, &["--delay", "1h", "--id", "a", "--body", "x"]);
    becomes(&settings, &[("a", "waiting")]);
    let shown = json(&mut run(&settings, &["scheduled", "show", &handle, "--json"]));
    assert_eq!(shown.get("arrived"), Some(&Json::Null), "{shown}");
    run(&settings, &["app", "add", "shop", "--no-user", "--landing"]).assert().success();
    let list = run(&settings, &["scheduled", "list", "--app", "shop"]).assert().code(1);
    list.stderr(contains("docs/how-to/recall.md").and(contains("`delayline app add").not()));
}

#[test]
fn the_body_of_a_schedule_is_read_from_standard_input() {
    let settings = installed(1_000);
    let add = ["schedule", "add", "piped", "--app", "nobody", "--cron", "@daily", "--body-file", "-"];
    on(&settings).args(add).write_stdin("from a pipe").assert().success();
    let shown = stdout(on(&settings).args(["schedule", "show", "piped"]));
    assert!(shown.contains("11 bytes"), "{shown}");
    on(&settings).args(["schedule", "remove", "piped", "--yes"]).assert().success();
}
