//! `delayline-bench run`

use std::{
    fs,
    process::{Child, Command, Stdio},
};

use delayline_admin as admin;
use delayline_settings::Settings;
use predicates::{function::function, prelude::PredicateBooleanExt, str::contains};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value as Json, json};

use crate::{
    bench,
    common::{eventually, http, installed, schemas, shared_node, topology, vhost},
    on,
};

const SMALL: [&str; 11] = [
    "run",
    "--count",
    "200",
    "--hops",
    "1,2",
    "--rate",
    "100",
    "--duration",
    "1s",
    "--delays",
    "uniform:1s..10s",
];

/// The number of exchanges that belong to temporary sets.
fn left_over(settings: &Settings) -> usize {
    let found = http(&shared_node(), "GET", &format!("exchanges/{}", settings.broker.vhost), &json!({}));
    let names = found.as_array().cloned().unwrap_or_default();
    names
        .iter()
        .filter(|exchange| exchange["name"].as_str().unwrap_or_default().starts_with("bench-"))
        .count()
}

#[test]
fn prints_tables_that_a_plan_can_use() {
    let settings = vhost().build().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let [hdr, file] = ["late.hlog", "bench.json"].map(|name| directory.path().join(name));
    // The exit code is 1 if this machine takes fewer messages per second than were requested.
    let busy = |code: &i32| [0, 1].contains(code);
    on(&settings).args(SMALL).arg("--hdr").arg(&hdr).assert().code(function(busy)).stdout(
        contains("through the entry")
            .and(contains("2 levels"))
            .and(contains("100/s"))
            .and(contains("Level 0 drains at about")),
    );
    assert!(fs::read_to_string(&hdr).unwrap().contains("Tag=steady-100,"));
    let output = on(&settings)
        .args(SMALL)
        .args(["--json", "--shortcuts"])
        .assert()
        .code(function(busy))
        .get_output()
        .clone();
    let report: Json = serde_json::from_slice(&output.stdout).unwrap();
    schemas::check(&report);
    let steady = &report["steady"];
    // All of these delays are in one word.
    assert!(steady["hops"].as_f64().unwrap() <= 1.0 && report["conditions"]["shortcuts"] == true, "{report}");
    for figure in ["lost", "early", "duplicates"] {
        assert_eq!(steady[figure], 0, "{report}");
    }
    let is_busy = |problem: &Json| problem.as_str().unwrap().starts_with("the broker accepts");
    let problems = report["problems"].as_array().unwrap();
    assert!(problems.iter().all(is_busy), "{report}");
    assert_eq!(output.status.code(), Some(i32::from(!problems.is_empty())));
    fs::write(&file, report.to_string()).unwrap();
    on(&settings)
        .args(["plan", "--rate", "1", "--delays", "fixed:1s", "--bench"])
        .arg(&file)
        .assert()
        .success()
        .stdout(contains("The broker can carry this load.").and(contains("On RabbitMQ ")));
    assert_eq!(left_over(&settings), 0);
}

#[test]
fn refuses_a_set_that_exists() {
    let settings = installed(1_000);
    on(&settings)
        .args(["run", "--name", "delay"])
        .assert()
        .code(2)
        .stderr(contains("already exists"))
        .stdout("");
    assert_eq!(admin::verify(&settings, &topology(&settings)).unwrap().findings, []);
}

#[test]
fn a_file_keeps_its_lines_until_there_are_new_ones() {
    let directory = tempfile::tempdir().unwrap();
    let [old, new] = ["old.hlog", "new.hlog"].map(|name| directory.path().join(name));
    fs::write(&old, "of last week").unwrap();
    for file in [&old, &new] {
        let mut run = bench();
        run.args(["run", "--url", "amqp://127.0.0.1:1", "--hdr"]).arg(file);
        run.assert().code(3).stderr(contains("127.0.0.1:1"));
    }
    assert_eq!(fs::read_to_string(&old).unwrap(), "of last week");
    assert!(!new.exists(), "a run that measures nothing writes no file");
}

/// A measurement of several minutes, with its output in a pipe.
fn long(settings: &Settings) -> Child {
    let command = on(settings);
    let mut child = Command::new(command.get_program());
    for (name, value) in command.get_envs().filter_map(|(name, value)| Some((name, value?))) {
        child.env(name, value);
    }
    let child = child
        .args(["run", "--count", "100", "--rate", "50", "--duration", "10m"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    eventually("its set is installed", || left_over(settings) > 20);
    child
}

#[test]
fn an_interrupt_or_a_closed_pipe_removes_the_set() {
    let settings = vhost().build().unwrap();
    let mut child = long(&settings);
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(left_over(&settings), 0);
    let mut child = long(&settings);
    // Stderr still has a reader: only the output counts.
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(left_over(&settings), 0);
}
