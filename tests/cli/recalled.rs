//! What was recalled, and can still be sent.

use delayline::{
    amqp::{Next, Session},
    message::Value,
};
use delayline_settings::Settings;
use predicates::{prelude::PredicateBooleanExt, str::contains};
use serde_json::json;

use crate::{
    common::{PATIENCE, eventually, installed, raw},
    json, on, stdout,
};

fn waiting(settings: &Settings, queue: &str) -> u32 {
    Session::open(&settings.broker).unwrap().queue_depth(queue).unwrap().unwrap().ready
}

/// Sends messages with these ids in good time, recalls them, and waits until they are due.
fn recalled(settings: &Settings, app: &str, ids: &[&str]) {
    let handles: String = ids
        .iter()
        .map(|id| {
            let mut send = on(settings);
            send.args(["send", "--app", app, "--delay", "6s", "--id", id, "--body", id, "--json"]);
            format!("{}\n", json(&mut send)["message"]["handle"].as_str().unwrap())
        })
        .collect();
    on(settings).arg("recall").write_stdin(handles).assert().success();
    let queue = format!("delay.recalled.{app}");
    eventually("all have come", || waiting(settings, &queue) as usize == ids.len());
}

#[test]
fn list_show_replay_and_discard() {
    let settings = installed(1_000);
    for app in ["billing", "mail"] {
        on(&settings).args(["app", "add", app, "--recall", "--no-user"]).assert().success();
    }
    on(&settings).args(["app", "add", "plain", "--no-user"]).assert().success();
    on(&settings).args(["recalled", "list"]).assert().success().stdout(contains("nothing is recalled"));
    recalled(&settings, "mail", &["m"]);
    recalled(&settings, "billing", &["a", "b", "c"]);
    // It was never on its way.
    let stray = raw::message("", "delay.recalled.billing", "stray", &json!({}));
    raw::publish(&settings, [stray]);
    eventually("it is there", || waiting(&settings, "delay.recalled.billing") == 4);

    let all = json(on(&settings).args(["recalled", "list", "--json"]));
    let groups: Vec<_> =
        all["groups"].as_array().unwrap().iter().map(|it| (&it["app"], &it["count"])).collect();
    assert_eq!((&all["waiting"], groups.len()), (&json!(5), 3), "{all:#}");
    assert!(
        groups.contains(&(&json!("billing"), &json!(3))) && groups.contains(&(&json!("mail"), &json!(1)))
    );
    on(&settings)
        .args(["recalled", "list", "--app", "billing"])
        .assert()
        .success()
        .stdout(contains("4 messages recalled").and(contains("stray")).and(contains("mail").not()));
    let cut = json(on(&settings).args(["recalled", "list", "--limit", "2", "--json"]));
    assert_eq!((&cut["waiting"], &cut["examined"]), (&json!(5), &json!(2)));
    let refused = on(&settings).args(["recalled", "list", "--app", "plain"]).assert().code(1);
    refused.stderr(contains("delayline app add plain --recall"));
    let shown = stdout(on(&settings).args(["recalled", "show", "--app", "billing", "--id", "b", "--json"]));
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert_eq!((&shown["body"], &shown["reason"]), (&json!("b"), &json!("recalled")), "{shown:#}");
    on(&settings).args(["recalled", "show", "--app", "billing", "--id", "m"]).assert().code(1);
    on(&settings).args(["recalled", "show"]).assert().code(2).stderr(contains("--app"));
    eventually("looking takes nothing away", || waiting(&settings, "delay.recalled.billing") == 4);

    for verb in ["replay", "discard"] {
        let refused = on(&settings).args(["recalled", verb, "--app", "billing"]).assert().code(2);
        refused.stderr(contains("--id").and(contains("--all")));
    }
    let mut session = Session::open(&settings.broker).unwrap();
    let consumer = session.consume("billing", 10).unwrap();
    on(&settings)
        .args(["recalled", "replay", "--app", "billing", "--id", "b"])
        .assert()
        .success()
        .stdout(contains("1 message sent on, 3 kept"));
    let next = || match consumer.next(PATIENCE) {
        Next::Delivery(delivery) => delivery,
        other => panic!("{other:?}"),
    };
    // With its id, at once; it knows where it was.
    let sent = next();
    assert_eq!(sent.body, b"b");
    assert_eq!(sent.routing_key, "delay.0000.0000.0000.0000.0000.0000.0000.billing.~.b");
    let from = sent.headers["delayline-routing-key"].clone();
    assert_eq!(from, Value::from("delay.0000.0000.0000.0000.0000.0000.0110.billing.~.b"));
    // What is not the application's stays.
    on(&settings)
        .args(["recalled", "replay", "--app", "billing", "--all"])
        .assert()
        .success()
        .stdout(contains("2 messages sent on, 1 kept").and(contains("1 message stay")));
    let others = [next(), next()].map(|it| it.body);
    assert!(others.contains(&b"a".to_vec()) && others.contains(&b"c".to_vec()), "{others:?}");

    let discard = |app: &str, more: &[&str]| {
        stdout(on(&settings).args(["recalled", "discard", "--app", app]).args(more))
    };
    assert!(discard("mail", &["--older-than", "1d"]).contains("0 messages discarded, 1 kept"));
    assert!(discard("mail", &["--id", "m"]).contains("1 message discarded, 0 kept"));
    assert!(discard("billing", &["--all"]).contains("1 message discarded, 0 kept"));
    assert_eq!(waiting(&settings, "delay.unroutable"), 0);
}
