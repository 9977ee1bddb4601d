//! `delayline app` as people and scripts use it.

use std::process::Stdio;

use assert_cmd::Command;
use predicates::str::contains;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::common::Counting;
use crate::{common, delayline, document, json, on, stdout};

/// A user name that no other test has.
fn user(settings: &delayline_settings::Settings) -> String {
    format!("billing-of-{}", settings.broker.vhost)
}

/// `delayline app` for the application of this user, with the user's password.
fn of(settings: &delayline_settings::Settings, user: &str, arguments: &[&str]) -> Command {
    let mut command = on(settings);
    command.arg("app").args(arguments).args(["--user", user]).env("DELAYLINE_APP_PASSWORD", "of-an-app");
    command
}

#[test]
fn an_application_is_added_checked_listed_and_removed() {
    let settings = common::installed(1_000);
    let user = user(&settings);
    let app = |arguments: &[&str]| of(&settings, &user, arguments);
    let dry = stdout(&mut app(&["add", "billing", "--dry-run"]));
    assert!(dry.contains("would make queue `billing`"), "{dry}");
    let added = json(&mut app(&["add", "billing", "--landing", "--max-delay", "30d", "--json"]));
    assert_eq!(added["outcome"], "installed", "{added}");
    let again = stdout(&mut app(&["add", "billing", "--landing", "--max-delay", "30d"]));
    assert!(again.contains("already there: queue `delay.landing.billing`"), "{again}");
    app(&["add", "billing", "--landing"])
        .assert()
        .code(1)
        .stdout(contains("conflict"))
        .stdout(contains(&user));

    let checked = stdout(&mut app(&["check", "billing", "--max-delay", "30d"]));
    assert!(checked.contains("all correct"), "{checked}");
    let checked = json(&mut app(&["check", "billing", "--json"]));
    assert_eq!(checked["passed"], json!(false), "{checked}");
    app(&["check", "billing"]).env("DELAYLINE_APP_PASSWORD", "wrong").assert().code(3);
    let mut piped = app(&["check", "billing", "--max-delay", "30d", "--app-password-file", "-"]);
    piped.env_remove("DELAYLINE_APP_PASSWORD").write_stdin("of-an-app\n").assert().success();

    let show = |more: &[&str]| {
        let mut it = on(&settings);
        it.args(["app", "show", "billing"]).args(more);
        it
    };
    let shown = stdout(&mut show(&[]));
    for words in [&format!("amqp://{user}:PASSWORD@"), "from queue `billing`", "python, aio-pika"] {
        assert!(shown.contains(words), "{words} in {shown}");
    }
    let programs = stdout(&mut show(&["--for", "java"]));
    assert!(programs.contains("── Send.java ──") && programs.contains("public class Receive"), "{programs}");
    show(&["--for", "cobol"]).assert().code(2).stderr(contains("aio-pika"));
    on(&settings).args(["app", "show", "nobody"]).assert().code(1).stderr(contains("delayline app add"));

    let list = stdout(on(&settings).args(["app", "list"]));
    for words in ["queue `billing`, by way of `delay.landing.billing`", &user, "may consume", "may publish"] {
        assert!(list.contains(words), "{words} in {list}");
    }
    assert!(!list.contains('^'), "only `-o wide` shows patterns: {list}");
    let wide = stdout(on(&settings).args(["app", "list", "-o", "wide"]));
    for words in [r"write `^delay\z`", "bound with", "delay.*.*.*.*.*.*.*.billing"] {
        assert!(wide.contains(words), "{words} in {wide}");
    }
    let list = json(on(&settings).args(["app", "list", "--json"]));
    assert_eq!(list["apps"][0]["landing"]["queue"], "delay.landing.billing", "{list}");
    on(&settings).args(["uninstall", "--yes"]).assert().code(1).stdout(contains("delayline app remove"));

    app(&["remove", "billing", "--yes", "--delete-user"])
        .assert()
        .success()
        .stdout(contains("removed queue `billing`"));
    app(&["remove", "billing", "--yes"]).assert().success().stdout(contains("nothing to remove"));
    on(&settings).args(["app", "list"]).assert().success().stdout(contains("no application"));
}

#[test]
fn a_check_knows_the_bound_queue_and_a_list_shows_unbound_applications() {
    let settings = common::installed(1_000);
    let user = user(&settings);
    let app = |arguments: &[&str]| of(&settings, &user, arguments);
    for landing in [&["--landing"][..], &[]] {
        app(&[&["add", "billing", "--queue", "billing-in"], landing].concat()).assert().success();
        let check = stdout(&mut app(&["check", "billing"]));
        assert!(check.contains("consume or purge `billing-in`"), "{check}");
        // The application was registered with another queue, and without retries.
        app(&["check", "billing", "--queue", "billing"]).assert().code(1);
        app(&["remove", "billing", "--yes"]).assert().success();
    }
    app(&["add", "billing"]).assert().success();
    delayline_amqp::Session::open(&settings.broker).unwrap().delete_queue("billing").unwrap();
    let list = stdout(on(&settings).args(["app", "list"]));
    for words in ["billing (not bound)", "queue `billing` is not bound: its due messages become unroutable"] {
        assert!(list.contains(words), "{words} in {list}");
    }
    on(&settings).args(["app", "show", "billing"]).assert().code(1).stderr(contains("is not bound"));
    let doctor = on(&settings).arg("doctor").assert().code(1).get_output().stdout.clone();
    let doctor = String::from_utf8(doctor).unwrap();
    for words in ["✗ app-unbound  application `billing`", &user, "delayline app add"] {
        assert!(doctor.contains(words), "{words} in {doctor}");
    }
}

#[test]
fn an_application_without_a_queue_learns_to_whom_it_sends() {
    let settings = common::installed(1_000);
    let user = format!("shop-of-{}", settings.broker.vhost);
    let app = |arguments: &[&str]| of(&settings, &user, arguments);
    let publishes = ["add", "shop", "--publish-only", "--may-publish", "billing,orders"];
    for said in [stdout(&mut app(&publishes)), stdout(&mut app(&["show", "shop"]))] {
        assert!(said.contains("app key `billing` or `orders`; it receives no messages"), "{said}");
    }
    let shown = json(&mut app(&["show", "shop", "--for", "python", "--json"]));
    assert_eq!(shown["sends_to"], json!(["billing", "orders"]), "{shown}");
    assert!(shown["programs"][0]["text"].as_str().unwrap().contains("\"billing\""), "{shown}");
}

#[test]
fn a_paused_application_is_shown_and_resumed() {
    let settings = common::installed(1_000);
    let app = |arguments: &[&str]| {
        let mut it = on(&settings);
        it.arg("app").args(arguments);
        it
    };
    stdout(&mut app(&["add", "billing", "--no-user"]));
    let paused = json(&mut app(&["pause", "billing", "--json"]));
    assert_eq!((&paused["outcome"], &paused["target"]), (&json!("installed"), &json!({"queue": "billing"})));
    let list = stdout(&mut app(&["list"]));
    assert!(list.contains("paused: ") && list.contains("in `delay.paused.billing`"), "{list}");
    // The queue is replaced while the application is paused.
    let mut session = delayline_amqp::Session::open(&settings.broker).unwrap();
    session.delete_queue("billing").unwrap();
    stdout(on(&settings).args(["send", "--app", "billing", "--delay", "0s", "--body", "waits"]));
    app(&["resume", "billing"]).assert().code(1).stdout(contains("queue `billing` does not exist"));
    app(&["pause", "nobody"]).assert().code(1).stdout(contains("delayline app add nobody"));
    let queue = common::topology(&settings).app_queue(&common::app("billing"), "billing", None);
    session.declare_queue(&queue).unwrap();
    let resumed = stdout(&mut app(&["resume", "billing"]));
    assert!(resumed.contains("1 message of `delay.paused.billing` delivered"), "{resumed}");
    assert_eq!(session.counts("billing").unwrap().unwrap().ready, 1);
    stdout(&mut app(&["resume", "billing"]));
}

#[test]
fn printing_needs_no_broker() {
    let print = |format: &str| {
        let mut command = delayline();
        command.args([
            "app",
            "add",
            "shop",
            "--publish-only",
            "--may-publish",
            "billing,orders",
            "--print",
            format,
        ]);
        command.env("DELAYLINE_URL", "amqp://localhost:1/team");
        command
    };
    let resources = document(&mut print("terraform"));
    assert!(resources["resource"]["rabbitmq_topic_permissions"].get("shop").is_some(), "{resources}");
    let fragment = document(&mut print("definitions"));
    assert_eq!(
        fragment["topic_permissions"][0]["write"], r"^delay(\.[01]{4}){7}\.(billing|orders|shop)\z",
        "{fragment}"
    );
    assert_eq!((&fragment["queues"], &fragment["permissions"][0]["read"]), (&json!([]), &json!("^$")));
}

#[test]
fn wrong_usage_says_what_to_do() {
    for (arguments, words) in [
        (&["check", "billing"][..], "DELAYLINE_APP_PASSWORD"),
        (&["add", "billing", "--publish-only", "--landing"], "--publish-only"),
        (&["add", "billing", "--to-queue", "in", "--landing", "false"], "exclude each other"),
        (&["add", "billing", "--queue", "delay.level.03"], "belongs to the set"),
        (&["add", "billing", "--to-exchange", "delay"], "belongs to the set"),
        (&["add", "billing", "--landing", "--queue-type", "classic"], "quorum"),
        (&["add", "eu.*"], "not allowed"),
        (&["add", "billing", "--max-delay", "soon"], "soon"),
    ] {
        delayline().arg("app").args(arguments).assert().code(2).stderr(contains(words));
    }
    // AMQP cannot show bindings or permissions.
    let settings = common::installed(1_000);
    for command in [&["add", "billing", "--no-user"][..], &["list"], &["remove", "billing", "--yes"]] {
        on(&settings)
            .arg("app")
            .args(command)
            .env("DELAYLINE_MANAGEMENT_URL", "none")
            .assert()
            .code(2)
            .stderr(contains("--management-url"));
    }
}

/// As a reader pastes them.
#[test]
fn the_first_commands_of_the_page_succeed() {
    let page = include_str!("../../docs/how-to/applications.md");
    let block = page.split("```").find_map(|block| block.strip_prefix("console\n")).unwrap();
    let node = common::disturbed_node();
    let settings = common::vhost_on(&node).build().unwrap();
    common::install(&settings);
    let commands: Vec<_> = block.lines().filter_map(|line| line.split_once("delayline ")).collect();
    assert!(commands.len() > 4, "{block}");
    for (_, words) in commands {
        let mut run = on(&settings);
        run.env("DELAYLINE_UNIT_MS", "1000").env("DELAYLINE_APP_PASSWORD", "secret");
        run.args(words.split_whitespace()).assert().success();
    }
}

#[test]
fn an_interrupted_removal_names_no_waiting_messages() {
    let settings = common::installed(1_000);
    let user = user(&settings);
    of(&settings, &user, &["add", "billing"]).assert().success();
    let child = std::process::Command::new(env!("CARGO_BIN_EXE_delayline"))
        .args(["app", "remove", "billing", "--yes", "--user", &user])
        .env("DELAYLINE_URL", common::url(&settings))
        .env("DELAYLINE_MANAGEMENT_URL", settings.management.as_ref().unwrap().url.as_str())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let bindings = format!("exchanges/{}/delay.dispatch/bindings/source", settings.broker.vhost);
    common::eventually("the application is unbound", || {
        common::http(&common::shared_node(), "GET", &bindings, &json!(null)).as_array().unwrap().is_empty()
    });
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let ended = child.wait_with_output().unwrap();
    let said = String::from_utf8(ended.stdout).unwrap();
    assert_eq!(ended.status.code(), Some(130), "{said}");
    assert!(said.contains("interrupted; run it again to continue"), "{said}");
    assert!(!said.contains("Wait until"), "{said}");
}
