//! What needs no broker.

use std::process::Stdio;

use predicates::{prelude::PredicateBooleanExt, str::contains};

use crate::{delayline, json, stdout};

const NINETY: &str = "delay.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.1.0.1.1.0.1.0.billing";

#[test]
fn key_prints_just_the_key() {
    assert_eq!(stdout(delayline().args(["key", "90s", "billing"])), format!("{NINETY}\n"));
    let report = json(delayline().args(["key", "90s", "billing", "--json", "--set", "later"]));
    assert_eq!(
        report,
        serde_json::json!({"exchange": "later", "routing_key": NINETY, "app": "billing", "seconds": 90, "hops": 4})
    );
    let report = json(delayline().args(["key", "1000", "billing", "--json", "--tolerance", "5%"]));
    assert_eq!((&report["seconds"], &report["hops"]), (&1_024.into(), &1.into()));
}

#[test]
fn decode_is_the_reverse() {
    delayline()
        .args(["decode", NINETY])
        .assert()
        .success()
        .stdout(contains("1m 30s").and(contains("06 04 03 01")));
    let report = json(delayline().args(["decode", NINETY, "--json"]));
    assert_eq!((&report["seconds"], &report["app"]), (&90.into(), &"billing".into()));
    delayline()
        .args(["decode", &NINETY.replace("billing", "1.billing")])
        .assert()
        .success()
        .stdout(contains("a bit too many"));
}

#[test]
fn what_is_wrong_is_named_and_has_its_exit_code() {
    for (arguments, code, word) in [
        (&["decode", "delay.0.1"][..], 1, "ends after 2 of the 28 bits"),
        (&["decode", "later.0.1"], 1, "first word must be `delay`"),
        (&["decode", "delay.0.x"], 1, "bit 2"),
        (&["key", "soon", "billing"], 2, "soon"),
        (&["key", "268435456", "billing"], 2, "268435455"),
        (&["key", "90s", "a b"], 2, "white space"),
        (&["key", "90s"], 2, "APP"),
        (&["send", "--app", "a", "--delay", "1s", "--at", "18:00"], 2, "--at"),
        (&["send", "--app", "a", "--delay", "1s", "--file", "/nowhere"], 2, "/nowhere"),
        (&["send", "--delay", "1s", "--body", "x"], 2, "--app"),
        (&["send", "--app", "a", "--body", "x"], 2, "--delay"),
        (&["nonsense"], 2, "nonsense"),
        (&["verify", "--url", "amqp://127.0.0.1:1"], 3, "127.0.0.1:1"),
        (&["status", "--url", "http://h"], 2, "amqp"),
        (&["install", "--set", "two words"], 2, "two words"),
        (&["install", "--config", "/nowhere.toml"], 2, "/nowhere.toml"),
    ] {
        delayline().args(arguments).assert().code(code).stderr(contains(word)).stdout("");
    }
}

#[test]
fn errors_are_json_with_json() {
    let output = delayline().args(["verify", "--url", "amqp://127.0.0.1:1", "--json"]).output().unwrap();
    let error: serde_json::Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!(error["exit_code"], 3);
    assert!(error["error"].as_str().unwrap().contains("127.0.0.1:1"));
}

#[test]
fn unknown_settings_are_named() {
    delayline()
        .args(["status"])
        .env("DELAYLINE_WINDW", "1")
        .assert()
        .code(2)
        .stderr(contains("DELAYLINE_WINDW"));
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("delayline.toml"), "windw = 1").unwrap();
    delayline()
        .current_dir(directory.path())
        .args(["status"])
        .assert()
        .code(2)
        .stderr(contains("windw").and(contains("delayline.toml")));
}

#[test]
fn every_help_shows_examples() {
    let commands =
        ["install", "verify", "uninstall", "status", "key", "decode", "send", "listen", "unroutable", "demo"];
    let help = stdout(delayline().arg("--help"));
    for command in commands {
        assert!(help.contains(command), "{command} is not in the overview");
        delayline()
            .args([command, "--help"])
            .assert()
            .success()
            .stdout(contains("Examples:").and(contains("delayline ")));
    }
    assert!(help.contains("Exit codes"));
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    // Standard output is closed before the command writes.
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_delayline"))
        .args(["key", "90s", "billing"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{:?}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stderr.is_empty());
}

#[test]
fn pipes_get_no_colours() {
    let output = delayline().args(["verify", "--url", "amqp://127.0.0.1:1"]).output().unwrap();
    assert!(!output.stderr.contains(&0x1b), "an escape sequence in a pipe");
}
