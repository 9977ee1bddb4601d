//! Destructive commands ask first. Printed commands can be pasted into a shell, and output cannot
//! control the terminal. Exit codes do not depend on the reader.

use std::{
    io::{Write, pipe},
    process::{Command, Stdio},
};

use delayline_amqp::{Next, Session};
use delayline_core::{
    codec::RoutingKey,
    topology::{Binding, Endpoint, Queue},
};
use delayline_settings::Settings;
use predicates::{prelude::PredicateBooleanExt, str::contains};
use serde_json::json;

use crate::{
    common::{PATIENCE, app, eventually, eventually_seen, install, installed, raw, url, vhost},
    exit_codes::PLATFORM,
    json, on, stdout,
};

/// A set with the application `billing` and a gateway.
fn with_everything() -> Settings {
    let settings = vhost().set("unit_ms", "100").build().unwrap();
    install(&settings);
    on(&settings).args(["app", "add", "billing", "--no-user"]).assert().success();
    on(&settings).args(["gateway", "add", "orders.delayed", "--type", "topic"]).assert().success();
    settings
}

fn everything_is_there(settings: &Settings) {
    let apps = json(on(settings).args(["app", "list", "--json"]));
    assert!(apps["apps"].as_array().unwrap().iter().any(|it| it["app"] == "billing"), "{apps}");
    let gateways = json(on(settings).args(["gateway", "list", "--json"]));
    assert_eq!(gateways["gateways"][0]["gateway"], "orders.delayed", "{gateways}");
    on(settings).arg("verify").assert().success();
}

#[test]
fn commands_that_destroy_something_ask_or_need_yes() {
    let settings = with_everything();
    let commands: [&[&str]; 6] = [
        &["held", "discard", "--kind", "parked", "--all"],
        &["apply", PLATFORM, "--prune"],
        &["app", "discard", "billing"],
        &["app", "remove", "billing", "--no-user"],
        &["gateway", "remove", "orders.delayed"],
        &["uninstall"],
    ];
    for command in commands {
        let needs = contains("--yes").and(contains("--dry-run"));
        on(&settings).args(command).write_stdin("y\n").assert().code(2).stderr(needs);
        let dry = on(&settings).args(command).arg("--dry-run").assert();
        // The set cannot be removed while it has a gateway.
        if command == ["uninstall"] {
            dry.code(1).stdout(contains("orders.delayed"))
        } else {
            dry.success()
        };
        let both = contains("cannot be used with");
        on(&settings).args(command).args(["--dry-run", "--yes"]).assert().code(2).stderr(both);
    }
    on(&settings).args(["guard", "remove", "nservicebus"]).assert().code(2).stderr(contains("--yes"));
    everything_is_there(&settings);
    for command in commands {
        on(&settings).args(command).arg("--yes").assert().success();
    }
    let verified = json(on(&settings).args(["verify", "--json"]).env("DELAYLINE_SET", "delay"));
    assert_eq!(verified["installed"], false, "{verified}");
}

/// The words of the commands in a text, as a shell splits them.
fn pasted(text: &str) -> Vec<Vec<String>> {
    let commands = text.split('`').filter(|part| part.starts_with("delayline "));
    let words = |command: &str| {
        let script = format!("delayline() {{ printf '%s\\n' \"$@\"; }}; {command}");
        let output = Command::new("sh").args(["-c", &script]).output().unwrap();
        assert!(output.status.success(), "{command}");
        String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
    };
    commands.map(words).collect()
}

#[test]
fn remedies_act_on_the_same_set_and_quote_foreign_names() {
    const KEY: &str = "$(echo;touch;/nowhere)";
    let settings = vhost().set("set", "later").set("unit_ms", "100").build().unwrap();
    install(&settings);
    let key = format!("delay.{}.{KEY}", ["0000"; 7].join("."));
    raw::publish(&settings, [raw::message("later", &key, "x", &json!({}))]);
    let on = |words: &[&str]| {
        let mut on = on(&settings);
        on.args(words).args(["--set", "later"]);
        on
    };
    eventually("the message is unroutable", || {
        json(&mut on(&["held", "list", "--kind", "unroutable", "--json"]))["waiting"] == 1
    });
    let advised = || -> Vec<_> {
        let report = json(&mut on(&["doctor", "--json"]));
        let findings = report["findings"].as_array().unwrap();
        findings.iter().flat_map(|it| pasted(it["advice"].as_str().unwrap())).collect()
    };
    let commands = eventually_seen("doctor names the key", advised, |commands| {
        commands.iter().any(|words| words.iter().any(|word| word == KEY))
    });
    for words in &commands {
        let set = words.iter().position(|word| word == "--set");
        assert!(set.is_some_and(|at| words[at + 1] == "later"), "{words:?}");
    }
}

#[test]
fn foreign_names_do_not_control_the_terminal() {
    const EVIL: &str = "evil\u{1b}[2J\u{9b}1m";
    let settings = installed(100);
    let mut session = Session::open(&settings.broker).unwrap();
    session.declare_queue(&Queue::new(EVIL)).unwrap();
    let bind = |session: &mut Session, source: &str, key: String| {
        session
            .bind(&Binding { source: source.into(), destination: Endpoint::Queue(EVIL.into()), key })
            .unwrap();
    };
    bind(&mut session, "delay.dispatch", RoutingKey::binding_pattern(&app("evil")));
    bind(&mut session, "delay.dispatch", format!("{EVIL}.#"));
    let key = format!("delay.{}.{EVIL}", ["0000"; 7].join("."));
    raw::publish(&settings, [raw::message("delay", &key, EVIL, &json!({ "headers": { EVIL: EVIL } }))]);
    eventually("the message is unroutable", || {
        json(on(&settings).args(["held", "list", "--kind", "unroutable", "--json"]))["waiting"] == 1
    });
    for words in [
        &["app", "list"][..],
        &["app", "list", "-o", "wide"],
        &["app", "show", EVIL],
        &["gateway", "list"],
        &["gateway", "check", EVIL],
        &["verify", "--details"],
        &["doctor", "--details"],
        &["status", "-o", "wide"],
        &["held", "list"],
        &["held", "show", "--kind", "unroutable"],
        &["key", "decode", EVIL],
        &["scheduled", "list", "--app", EVIL],
    ] {
        let output = on(&settings).args(words).env("CLICOLOR_FORCE", "1").output().unwrap();
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(!text.contains("\u{1b}[2J") && !text.contains('\u{9b}'), "{words:?}: {text:?}");
    }
    session.delete_queue(EVIL).unwrap();
}

#[test]
fn the_exit_code_of_send_does_not_depend_on_its_reader() {
    let settings = installed(100);
    let (reader, writer) = pipe().unwrap();
    drop(reader);
    let mut child = Command::new(env!("CARGO_BIN_EXE_delayline"))
        .args(["send", "--app", "billing", "--delay", "1d", "--jsonl", "--handles"])
        .env("DELAYLINE_URL", url(&settings))
        .env("DELAYLINE_UNIT_MS", "100")
        .stdin(Stdio::piped())
        .stdout(writer)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = "{\"id\": \"a-1\", \"body\": \"x\"}\n{\"id\": \"a-2\", \"user_id\": \"somebody\"}\n";
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("user_id"), "{said}");
}

#[test]
fn an_empty_standard_input_is_no_message() {
    let settings = installed(100);
    let send = |more: &[&str]| {
        let mut send = on(&settings);
        send.args(["send", "--app", "billing", "--delay", "1d"]).args(more).write_stdin("");
        send
    };
    send(&[]).assert().code(2).stderr(contains("--body ''"));
    assert!(stdout(&mut send(&["--body", ""])).contains("confirmed"));
}

#[test]
fn a_listener_takes_no_more_messages_than_it_prints() {
    let settings = installed(100);
    let mut session = Session::open(&settings.broker).unwrap();
    session.declare_queue(&Queue::new("heard")).unwrap();
    raw::publish(&settings, (0..4).map(|number| raw::message("", "heard", number, &json!({}))));
    let listen = ["listen", "--app", "billing", "--queue", "heard", "--count", "2"];
    on(&settings).args(listen).assert().success();
    let consumer = session.consume("heard", 10).unwrap();
    let redelivered = (0..2).filter(|_| {
        let Next::Delivery(delivery) = consumer.next(PATIENCE) else { panic!("two messages are left") };
        let redelivered = delivery.redelivered;
        consumer.ack(delivery).unwrap();
        redelivered
    });
    assert_eq!(redelivered.count(), 0);
}

#[test]
fn held_messages_that_cannot_be_listed_are_named() {
    let settings = installed(100);
    let mut list = on(&settings);
    list.args(["held", "list"]).env("DELAYLINE_MANAGEMENT_URL", "none");
    list.assert().success().stderr(contains("not checked: recalled messages").and(contains("--app APP")));
}
