//! What is scheduled: found in the journal, recalled and rescheduled by what it has.

use assert_cmd::Command;
use delayline_settings::Settings;
use predicates::{prelude::PredicateBooleanExt, str::contains};
use serde_json::Value as Json;

use crate::{
    common::{eventually_seen, http, installed, shared_node},
    json, on, stdout,
};

/// The command, with these words.
fn run(settings: &Settings, words: &[&str]) -> Command {
    let mut run = on(settings);
    run.args(words).write_stdin("");
    run
}

/// Sends a journalled message; returns its handle.
fn sent(settings: &Settings, more: &[&str]) -> String {
    let mut send = run(settings, &["send", "--app", "billing", "--journal", "--json"]);
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

/// Id and state of what is scheduled, once the management API says so.
fn becomes(settings: &Settings, expected: &[(&str, &str)]) {
    let states = || {
        let list = list(settings);
        let messages = list["messages"].as_array().unwrap().iter();
        let of =
            |it: &Json| (it["id"].as_str().unwrap().to_owned(), it["state"].as_str().unwrap().to_owned());
        messages.map(of).collect::<Vec<_>>()
    };
    let same = |found: &Vec<(String, String)>| {
        found.iter().map(|(id, state)| (id.as_str(), state.as_str())).eq(expected.iter().copied())
    };
    eventually_seen("the schedule is this", states, same);
}

#[test]
fn messages_are_recalled_by_what_the_journal_has() {
    let settings = registered();
    for (id, delay) in [("a", "1h"), ("b", "2h"), ("c", "3h"), ("d", "4h")] {
        sent(&settings, &["--delay", delay, "--id", id, "--body", id]);
    }
    run(&settings, &["recall", "--app", "billing", "--id", "b"])
        .assert()
        .success()
        .stdout(contains("recalled"));
    // What it does not have is not called anything else.
    let unknown = run(&settings, &["recall", "--app", "billing", "--id", "z"]).assert();
    unknown.code(1).stdout(contains("unknown").and(contains("does not have `z`")));
    becomes(&settings, &[("a", "waiting"), ("b", "recalled"), ("c", "waiting"), ("d", "waiting")]);
    let before = list(&settings)["messages"][3]["due"].as_str().unwrap().to_owned();
    let all = ["recall", "--app", "billing", "--all", "--due-before", &before];
    run(&settings, &all).assert().success().stdout(contains("2 recalled, 0 not or not certainly"));
    becomes(&settings, &[("a", "recalled"), ("b", "recalled"), ("c", "recalled"), ("d", "waiting")]);
    run(&settings, &["recall", "--app", "billing", "--id", "a", "--undo"]).assert().success();
    becomes(&settings, &[("a", "waiting"), ("b", "recalled"), ("c", "recalled"), ("d", "waiting")]);
    // What says nothing of which messages is wrong.
    run(&settings, &["recall", "--app", "billing"]).assert().code(2);
    run(&settings, &["recall", "--id", "a"]).assert().code(2);
}

#[test]
fn a_message_is_delivered_at_another_time_as_it_was() {
    let settings = registered();
    let line = r#"{"id": "a", "delay": "1h", "body": "pay!", "message_id": "7", "headers": {"n": 1}, "journal": true}"#;
    let mut send = run(&settings, &["send", "--app", "billing", "--jsonl", "--handles"]);
    let old = stdout(send.write_stdin(line)).lines().next().unwrap().to_owned();
    let again = json(&mut run(&settings, &["reschedule", &old, "--delay", "2h", "--json"]));
    assert_eq!((&again["answer"], &again["old"]), (&"recalled".into(), &old.as_str().into()), "{again}");
    becomes(&settings, &[("a", "recalled"), ("a", "waiting")]);
    let new = again["handle"].as_str().unwrap().to_owned();
    let shown = json(&mut run(&settings, &["scheduled", "show", &new, "--json"]));
    assert_eq!((&shown["body"], &shown["message_id"]), (&"pay!".into(), &"7".into()), "{shown}");
    assert_eq!((&shown["headers"]["n"], &shown["state"]), (&1.into(), &"waiting".into()), "{shown}");
    // It was recalled already, and is not sent once more.
    let refused = run(&settings, &["reschedule", &old, "--delay", "3h"]).assert();
    refused.code(1).stdout(contains("was recalled").and(contains("nothing was changed")));
    // One delay is one handle.
    let refused = run(&settings, &["reschedule", &new, "--delay", "2h"]).assert();
    refused.code(2).stderr(contains("give it an id of its own"));
    run(&settings, &["reschedule", &new, "--delay", "2h", "--new-id", "b"]).assert().success();
    becomes(&settings, &[("a", "recalled"), ("a", "recalled"), ("b", "waiting")]);
    // Without the journal it takes a body.
    let foreign = sent(&settings, &["--delay", "5h", "--id", "c", "--body", "x"]);
    let unknown = foreign.replace(".~.c@", ".~.nobody@");
    run(&settings, &["reschedule", &unknown, "--delay", "6h"]).assert().code(1).stdout(contains("--body"));
    run(&settings, &["reschedule", &foreign, "--delay", "6h", "--body", "y"]).assert().success();
    let late = foreign.split('@').next().unwrap().to_owned() + "@1000";
    run(&settings, &["reschedule", &late, "--delay", "1h"]).assert().code(1).stdout(contains("due already"));
}

#[test]
fn a_new_message_takes_the_place_of_another_one() {
    let settings = registered();
    let old = sent(&settings, &["--delay", "1h", "--id", "cart", "--body", "1"]);
    let mut send =
        run(&settings, &["send", "--app", "billing", "--delay", "61m", "--id", "cart", "--journal"]);
    send.args(["--body", "2", "--replace", &old])
        .assert()
        .success()
        .stdout(contains("the old one is recalled"));
    becomes(&settings, &[("cart", "recalled"), ("cart", "waiting")]);
}

#[test]
fn the_newest_of_an_id_takes_the_place_of_all_that_wait() {
    let settings = registered();
    let newest = |delay: &str, id: &[&str]| {
        let send = ["send", "--app", "billing", "--delay", delay, "--body", "x"];
        run(&settings, &[&send[..], id, &["--replace"]].concat()).assert()
    };
    newest("1h", &["--id", "cart"]).success().stdout(contains("nothing waited with this id"));
    becomes(&settings, &[("cart", "waiting")]);
    sent(&settings, &["--delay", "62m", "--id", "cart", "--body", "x"]);
    sent(&settings, &["--delay", "2h", "--id", "other", "--body", "x"]);
    newest("63m", &["--id", "cart"]).success().stdout(contains("the old one is recalled"));
    let cart = [("cart", "recalled"), ("cart", "recalled"), ("cart", "waiting")];
    becomes(&settings, &[&cart[..], &[("other", "waiting")]].concat());
    // The delay that it has, or had before.
    newest("63m", &["--id", "cart"]).code(2).stderr(contains("give it an id of its own"));
    newest("1h", &["--id", "cart"]).code(2).stderr(contains("would not be delivered"));
    newest("1h", &[]).code(2).stderr(contains("give its --id"));
    // Also if it is not the first that waits.
    let waits = ("cart", "waiting");
    let first = sent(&settings, &["--delay", "30m", "--id", "cart", "--body", "x"]);
    newest("63m", &["--id", "cart"]).code(2).stderr(contains("give it an id of its own"));
    becomes(&settings, &[&[waits], &cart[..], &[("other", "waiting")]].concat());
    // What was recalled before is in the way, too, if nothing waits.
    run(&settings, &["recall", &first]).assert().success();
    run(&settings, &["recall", "--app", "billing", "--id", "cart"]).assert().success();
    let gone = ("cart", "recalled");
    becomes(&settings, &[gone, gone, gone, gone, ("other", "waiting")]);
    newest("63m", &["--id", "cart"]).code(2).stderr(contains("would not be delivered"));
    newest("64m", &["--id", "cart"]).success().stdout(contains("nothing waited with this id"));
    becomes(&settings, &[gone, gone, gone, gone, waits, ("other", "waiting")]);
    // Who cannot see what was recalled is told to name a handle.
    let send = ["send", "--app", "billing", "--delay", "65m", "--body", "x", "--id", "cart", "--replace"];
    let mut blind = run(&settings, &send);
    let blind = blind.env("DELAYLINE_MANAGEMENT_URL", "none").assert();
    blind.code(2).stderr(contains("name a HANDLE"));
}

#[test]
fn waiting_for_what_went_aside_loses_nothing() {
    let settings = registered();
    // Nobody says when it is due, so that it is looked for at once.
    let handle = sent(&settings, &["--delay", "1h", "--id", "a", "--body", "x"]);
    let undated = handle.split('@').next().unwrap();
    run(&settings, &["recall", "--wait", undated]).assert().code(1).stdout(contains("uncertain"));
    // A policy of somebody's that drops what was looked at a few times.
    let policy = serde_json::json!({
        "pattern": "^delay\\.recalled\\.", "definition": { "delivery-limit": 3 }, "apply-to": "queues", "priority": 9
    });
    let node = shared_node();
    http(&node, "PUT", &format!("policies/{}/few", settings.broker.vhost), &policy);
    let mut wait = run(&settings, &["recall", "--wait", undated]);
    wait.assert().code(1).stdout(contains("uncertain")).stderr(contains("is not looked at"));
}

#[test]
fn what_was_recalled_before_is_in_nobodys_way_unseen() {
    let settings = registered();
    let first = sent(&settings, &["--delay", "1h", "--id", "a", "--body", "a"]);
    let moved = json(&mut run(&settings, &["reschedule", &first, "--delay", "2h", "--json"]));
    let moved = moved["handle"].as_str().unwrap();
    becomes(&settings, &[("a", "recalled"), ("a", "waiting")]);
    // Back to the first delay, whose key is recalled.
    let back = run(&settings, &["reschedule", moved, "--delay", "1h"]).assert();
    back.code(2).stderr(contains("would not be delivered").and(contains("--undo")));
    let again = ["send", "--app", "billing", "--id", "a", "--delay", "1h", "--replace", moved, "--body", "b"];
    run(&settings, &again).assert().code(2).stderr(contains("would not be delivered"));
    // What is recalled already has no other time.
    let gone = run(&settings, &["reschedule", &first, "--delay", "3h", "--body", "a"]).assert();
    gone.code(1).stdout(contains("was recalled"));
    // Two wait with the id, and only one of them is to be delivered.
    let which = run(&settings, &["recall", "--app", "billing", "--id", "a", "--undo"]).assert();
    which.code(1).stdout(contains("several messages")).stderr(contains("billing.~.a"));
    becomes(&settings, &[("a", "recalled"), ("a", "waiting")]);
    // Who cannot see what is recalled says so.
    let mut blind = run(&settings, &["reschedule", moved, "--delay", "4h"]);
    let blind = blind.env("DELAYLINE_MANAGEMENT_URL", "none").assert();
    blind.success().stderr(contains("was recalled before is not known"));
}
