//! Behaviour that many commands share: `--watch`, reporting that nothing was changed, `--dry-run`,
//! and naming a broker.

use std::{
    fs,
    io::{BufRead, BufReader},
    process::{Command as Process, Stdio},
};

use delayline_amqp::Session;
use delayline_settings::Settings;
use predicates::{prelude::PredicateBooleanExt, str::contains};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value as Json;

use crate::common::Counting;
use crate::{
    common::{eventually, eventually_seen, installed, shared_node, vhost},
    delayline, json, on, schemas, stdout,
};

/// A long-running command on this vhost, with its environment.
fn running(settings: &Settings, arguments: &[&str]) -> Process {
    let mut process = Process::new("env");
    process.args(["--default-signal=INT", env!("CARGO_BIN_EXE_delayline")]).args(arguments);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("DELAYLINE_") {
            process.env_remove(name);
        }
    }
    process
        .env("DELAYLINE_URL", format!("{}/{}", shared_node().url(), settings.broker.vhost))
        .env("DELAYLINE_MANAGEMENT_URL", shared_node().management_url())
        .current_dir(std::env::temp_dir())
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    process
}

#[test]
fn watching_goes_on_until_a_signal_ends_it() {
    let settings = installed(1_000);
    for command in [&["status"][..], &["app", "list"], &["held", "list", "--kind", "unroutable"], &["verify"]]
    {
        let arguments = [command, &["--watch", "1", "--json"]].concat();
        let mut child = running(&settings, &arguments).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        for _ in 0..3 {
            let seen: Json = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
            let words = command.iter().take_while(|word| !word.starts_with('-'));
            assert_eq!(seen["schema"], words.copied().collect::<Vec<_>>().join("-"));
            schemas::check(&seen);
        }
        kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(0), "{command:?}");
    }
    // After a failed look, the command looks again.
    let mut child = running(&settings, &["verify", "--watch", "1"]);
    child.env("DELAYLINE_URL", "amqp://127.0.0.1:1").stderr(Stdio::piped());
    let mut child = child.spawn().unwrap();
    let errors = BufReader::new(child.stderr.take().unwrap()).lines().take(2);
    assert_eq!(errors.filter(|line| line.as_ref().unwrap().contains("127.0.0.1:1")).count(), 2);
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    child.wait().unwrap();
    delayline().args(["status", "--watch", "0"]).assert().code(2).stderr(contains("1s to 1d"));
}

#[test]
fn a_dry_run_changes_nothing_and_a_command_without_work_reports_that() {
    let settings = installed(1_000);
    on(&settings)
        .args(["uninstall", "--dry-run"])
        .assert()
        .success()
        .stdout(contains("dry run would remove 63 objects"));
    on(&settings).arg("verify").assert().success();
    on(&settings).args(["send", "--app", "nobody", "--delay", "0", "--body", "x"]).assert().success();
    let list = || json(on(&settings).args(["held", "list", "--kind", "unroutable", "--json"]));
    eventually_seen("the message is unroutable", list, |list| list["waiting"] == 1);
    on(&settings)
        .args(["held", "discard", "--kind", "unroutable", "--all", "--dry-run"])
        .assert()
        .success()
        .stdout(contains("dry run 1 message would be discarded, 0 kept"));
    let mut session = Session::open(&settings.broker).unwrap();
    eventually("the message is back", || session.counts("delay.unroutable").unwrap().unwrap().ready == 1);
    // The result of a real run, before the runs that change nothing.
    let gone =
        on(&settings).args(["held", "discard", "--yes", "--kind", "unroutable", "--all"]).assert().success();
    gone.stdout(contains("1 message discarded").and(contains("unchanged").not()));
    for (arguments, words) in [
        (
            &["held", "discard", "--yes", "--kind", "unroutable", "--all"][..],
            "unchanged 0 messages discarded, 0 kept",
        ),
        (&["held", "discard", "--yes", "--kind", "parked", "--all"], "unchanged 0 messages discarded"),
        (
            &["app", "remove", "nobody", "--yes", "--no-user"],
            "unchanged application `nobody` is not registered",
        ),
        (&["scheduled", "sweep"], "unchanged 0 recalls"),
        (&["unstick"], "unchanged no message is stuck"),
        (&["install"], "unchanged set `delay`"),
    ] {
        on(&settings).args(arguments).assert().success().stdout(contains(words));
    }
    // The broker's count may be older than the discarding.
    eventually("the set is removed", || {
        let said = on(&settings).args(["uninstall", "--yes"]).output().unwrap();
        let words = String::from_utf8_lossy(&said.stdout);
        let counted = said.status.code() == Some(1) && words.contains("still waits: 1 in `delay.unroutable`");
        assert!(said.status.success() || counted, "{said:?}");
        said.status.success()
    });
    on(&settings).args(["uninstall", "--yes"]).assert().success().stdout(contains("unchanged set `delay`"));
}

#[test]
fn a_broker_can_have_a_name() {
    let settings = vhost().build().unwrap();
    let (node, vhost) = (&shared_node(), &settings.broker.vhost);
    let directory = tempfile::tempdir().unwrap();
    let text = format!(
        "url = 'amqp://127.0.0.1:1'\n[brokers.test]\nurl = '{}/{vhost}'\nmanagement_url = '{}'\n",
        node.url(),
        node.management_url()
    );
    fs::write(directory.path().join("delayline.toml"), text).unwrap();
    let run = |arguments: &[&str]| {
        let mut run = delayline();
        run.current_dir(directory.path()).args(arguments);
        run
    };
    run(&["verify"]).assert().code(3).stderr(contains("127.0.0.1:1"));
    run(&["install", "--broker", "test"]).assert().success();
    run(&["verify", "--broker", "test"]).env("DELAYLINE_URL", "amqp://127.0.0.1:2").assert().success();
    run(&["verify"]).env("DELAYLINE_BROKER", "test").assert().success();
    run(&["verify", "--broker", "prod"]).assert().code(2).stderr(contains("`prod`").and(contains("`test`")));
    assert!(stdout(&mut run(&["help", "settings"])).contains("DELAYLINE_BROKER"));
}
