//! Commands that need a broker.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Command, Stdio},
};

use delayline_amqp::Session;
use predicates::{prelude::PredicateBooleanExt, str::contains};
use rustix::process::{Pid, Signal, kill_process};

use crate::common::Counting;
use crate::{
    common::{Inbox, PATIENCE, caught, eventually, eventually_seen, http, installed, shared_node, vhost},
    delayline, json, on, stdout,
};

#[test]
fn install_verify_status_and_uninstall() {
    let settings = vhost().build().unwrap();
    on(&settings).arg("verify").assert().code(1).stdout(contains("not installed"));
    let not_installed = contains("not installed").and(contains("run `delayline install`"));
    on(&settings).arg("status").assert().code(1).stdout(not_installed);
    on(&settings)
        .args(["install", "--dry-run"])
        .assert()
        .success()
        .stdout(contains("would create exchange `delay.dispatch`"));
    on(&settings)
        .arg("install")
        .assert()
        .success()
        .stdout(contains("created 63 exchanges and queues").and(contains("created 598 bindings")));
    on(&settings).arg("install").assert().success().stdout(contains("63 exchanges and queues already there"));
    let report = json(on(&settings).args(["install", "--json"]));
    assert_eq!((&report["outcome"], &report["standing"]), (&"unchanged".into(), &63.into()));
    on(&settings)
        .arg("verify")
        .assert()
        .success()
        .stdout(contains("63 objects and 598 bindings compared, no difference"));
    on(&settings)
        .arg("status")
        .assert()
        .success()
        .stdout(contains("28 levels empty").and(contains("unroutable   0\n")));
    on(&settings).args(["status", "--details"]).assert().success().stdout(contains("4.3 y"));
    assert_eq!(json(on(&settings).args(["status", "--json"]))["levels"].as_array().unwrap().len(), 28);

    on(&settings).args(["send", "--app", "app", "--delay", "1d", "--body", "x"]).assert().success();
    on(&settings)
        .args(["uninstall", "--yes"])
        .assert()
        .code(1)
        .stdout(contains("1 message still waits: 1 in `delay.level.16`").and(contains("--force")));
    let refusal = json(on(&settings).args(["uninstall", "--yes", "--json"]));
    assert_eq!(refusal["refused"]["waiting"][0]["messages"], 1);
    on(&settings)
        .args(["uninstall", "--yes", "--force"])
        .assert()
        .success()
        .stdout(contains("lost with `delay.level.16`: 1 message").and(contains("removed 63 objects")));
    on(&settings).args(["uninstall", "--yes"]).assert().success().stdout(contains("not installed"));
}

#[test]
fn uninstall_does_not_guess_counts_that_it_cannot_see() {
    let settings = installed(1_000);
    let uninstall = || {
        let mut command = on(&settings);
        command.env("DELAYLINE_MANAGEMENT_URL", "none").args(["uninstall", "--yes"]);
        command
    };
    uninstall().assert().code(1).stdout(contains("it is unknown whether").and(contains("--management-url")));
    on(&settings).arg("verify").assert().success();
    uninstall().arg("--force").assert().success().stdout(contains("removed 63 objects"));
}

#[test]
fn verify_reports_skipped_checks() {
    let settings = installed(1_000);
    on(&settings)
        .env("DELAYLINE_MANAGEMENT_URL", "none")
        .arg("verify")
        .assert()
        .code(3)
        .stdout(contains("not checked: bindings").and(contains("63 objects compared, no difference")));
    let report = json(on(&settings).env("DELAYLINE_MANAGEMENT_URL", "none").args(["verify", "--json"]));
    assert!(!report["unchecked"].as_array().unwrap().is_empty());
    on(&settings)
        .env("DELAYLINE_MANAGEMENT_URL", "none")
        .arg("status")
        .assert()
        .success()
        .stdout(contains("not checked"));
}

#[test]
fn a_conflict_changes_nothing_and_exits_with_1() {
    let settings = installed(7);
    let mut command = on(&settings);
    command.env("DELAYLINE_UNIT_MS", "1000").arg("install");
    command
        .assert()
        .code(1)
        .stdout(contains("queue `delay.level.00`: `x-message-ttl` should be 1000, but is 7"));
    on(&settings).arg("verify").assert().success();
}

#[test]
fn sends_one_message_from_a_flag_a_file_or_standard_input() {
    let settings = installed(100);
    let inbox = Inbox::open(&settings, "app");
    let send = || {
        let mut command = on(&settings);
        command.args(["send", "--app", "app", "--delay", "5"]);
        command
    };
    send()
        .args(["--body", "flag"])
        .assert()
        .success()
        .stdout(contains("confirmed; due 2").and(contains("(in 500 ms, 2 hops)")));
    send().write_stdin("stdin\nwith lines").assert().success();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, [0, 0xff, b'\n']).unwrap();
    send().arg("--file").arg(file.path()).assert().success();
    let report = json(send().args(["--json", "--tolerance", "100%", "--body", ""]));
    assert_eq!((&report["message"]["seconds"], &report["message"]["hops"]), (&8.into(), &1.into()));
    let mut at = on(&settings);
    at.args(["send", "--app", "app", "--at", "2020-01-01T00:00:00Z", "--past", "now", "--body", "past"]);
    at.assert().success();
    let mut bodies: Vec<_> = inbox.collect(5, PATIENCE).into_iter().map(|arrival| arrival.body).collect();
    bodies.sort();
    assert_eq!(bodies, [&b""[..], b"\x00\xff\n", b"flag", b"past", b"stdin\nwith lines"]);
}

#[test]
fn sends_many_messages_and_reports_them() {
    let settings = installed(100);
    let inbox = Inbox::open(&settings, "app");
    let send = || {
        let mut command = on(&settings);
        command.args(["send", "--app", "app", "--delay", "5"]);
        command
    };
    send()
        .arg("--lines")
        .write_stdin("a\nb\nc\n")
        .assert()
        .success()
        .stdout(contains("3 confirmed, 0 failed"));
    assert_eq!(inbox.collect(3, PATIENCE).len(), 3);

    // Bad lines of standard input are reported and skipped.
    let lines = "{\"body\": \"good\", \"headers\": {\"n\": [1, null]}}\nnonsense\n\n{\"bdy\": 1}\n{\"delay\": 268435456}\n";
    send()
        .arg("--jsonl")
        .write_stdin(lines)
        .assert()
        .code(2)
        .stdout(contains("1 confirmed, 3 failed"))
        .stderr(contains("line 2").and(contains("bdy")).and(contains("268435455")));
    assert_eq!(inbox.collect(1, PATIENCE)[0].body, b"good");

    // A pipe can be read only once, so it is treated like standard input. An unreadable file is not
    // counted as a failed line.
    let pipe =
        send().args(["--lines", "--file", "/dev/stdin"]).write_stdin("from a pipe\n").output().unwrap();
    assert!(String::from_utf8_lossy(&pipe.stdout).contains("1 confirmed"), "{pipe:?}");
    assert_eq!(inbox.collect(1, PATIENCE).len(), 1);
    send().args(["--lines", "--file", "/"]).assert().code(2).stdout("").stderr(contains("/: is a directory"));

    // A file with bad lines is refused as a whole.
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, lines).unwrap();
    send()
        .arg("--jsonl")
        .arg("--file")
        .arg(file.path())
        .assert()
        .code(2)
        .stderr(contains("line 2").and(contains("line 5")).and(contains("nothing was sent")));

    // The next messages show that nothing was sent.
    let report = json(send().args(["--lines", "--json"]).write_stdin("a\nb\n"));
    assert_eq!((&report["confirmed"], &report["failed"]), (&2.into(), &0.into()));
    let mut bodies: Vec<_> = inbox.collect(2, PATIENCE).into_iter().map(|arrival| arrival.body).collect();
    bodies.sort();
    assert_eq!(bodies, [b"a", b"b"]);
    assert!(report["per_second"].as_f64().unwrap() > 0.0);
}

#[test]
fn sending_without_a_set_is_a_refusal() {
    let settings = vhost().build().unwrap();
    on(&settings)
        .args(["send", "--app", "app", "--delay", "1", "--body", "x"])
        .assert()
        .code(3)
        .stderr(contains("delayline install"));
    on(&settings)
        .args(["send", "--app", "app", "--delay", "1", "--lines"])
        .write_stdin("x\ny\n")
        .assert()
        .code(3)
        .stderr(contains("delayline install"));
}

/// Starts `listen`, and returns once its queue is bound.
fn listen(settings: &delayline_settings::Settings, arguments: &[&str]) -> std::process::Child {
    let before = apps(settings);
    let child = Command::new(env!("CARGO_BIN_EXE_delayline"))
        .args(["listen", "--app", "app"])
        .args(arguments)
        .env("DELAYLINE_URL", format!("{}/{}", shared_node().url(), settings.broker.vhost))
        .env("DELAYLINE_MANAGEMENT_URL", shared_node().management_url())
        .env("DELAYLINE_UNIT_MS", settings.topology.unit.millis().to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    eventually("the queue of `listen` is bound", || apps(settings) > before);
    child
}

fn send(settings: &delayline_settings::Settings, body: &str) {
    on(settings).args(["send", "--app", "app", "--delay", "20", "--body", body]).assert().success();
}

/// The number of bindings of applications. A management API that is slow to answer lists none.
fn apps(settings: &delayline_settings::Settings) -> usize {
    let listed = || json(on(settings).args(["status", "--json"]))["apps"].as_array().map(Vec::len);
    eventually_seen("applications are listed", listed, Option::is_some).unwrap()
}

/// Waits until so many applications are bound: the management API may show a binding a moment later.
fn are_bound(settings: &delayline_settings::Settings, count: usize) {
    eventually_seen("these applications are bound", || apps(settings), |&bound| bound == count);
}

#[test]
fn listen_prints_arrivals_and_unbinds_what_it_made() {
    let settings = installed(100);
    let child = listen(&settings, &["--count", "2", "--json"]);
    send(&settings, "one");
    send(&settings, "two \u{1b}[31m");
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let arrivals: Vec<serde_json::Value> =
        output.stdout.lines().map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect();
    assert_eq!(arrivals.len(), 2);
    assert_eq!((&arrivals[0]["body"], &arrivals[0]["app"]), (&"one".into(), &"app".into()));
    assert!(arrivals[0]["late_ms"].as_i64().unwrap() >= 0);
    are_bound(&settings, 0);
}

#[test]
fn listen_ends_on_an_interrupt_and_escapes_what_could_steer_a_terminal() {
    let settings = installed(100);
    let mut child = listen(&settings, &[]);
    send(&settings, "red \u{1b}[31m\r\n");
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    assert!(line.contains("red \\u{1b}[31m\\r\\n") && line.contains("late"), "{line:?}");
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert!(child.wait().unwrap().success());
    are_bound(&settings, 0);
}

#[test]
fn listen_takes_from_a_named_queue_and_keeps_an_existing_binding() {
    let settings = installed(100);
    let inbox = Inbox::open(&settings, "app");
    drop(inbox);
    send(&settings, "waiting");
    let output =
        on(&settings).args(["listen", "--app", "app", "--queue", "in.app", "--count", "1"]).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).contains("waiting"));
    // The application's binding stays.
    are_bound(&settings, 1);

    // `listen` deletes a queue that it created if the queue is empty at the end.
    let mut child = listen(&settings, &["--queue", "made"]);
    are_bound(&settings, 2);
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert!(child.wait().unwrap().success());
    are_bound(&settings, 1);
}

/// The queues of `listen` runs that only copy messages.
fn listeners(settings: &delayline_settings::Settings) -> Vec<String> {
    let queues = http(&shared_node(), "GET", &format!("queues/{}", settings.broker.vhost), &().into());
    let names = queues.as_array().unwrap().iter().map(|queue| queue["name"].as_str().unwrap().to_owned());
    names.filter(|name| name.starts_with("delay.listen.")).collect()
}

#[test]
fn listen_leaves_no_queue_that_could_not_be_bound() {
    let settings = vhost().build().unwrap();
    on(&settings).args(["listen", "--app", "app"]).assert().code(3).stderr(contains("delay.dispatch"));
    assert_eq!(listeners(&settings), [""; 0]);
}

#[test]
fn a_listener_that_is_killed_leaves_a_queue_that_doctor_finds_and_another_one_removes() {
    let settings = installed(100);
    let mut session = Session::open(&settings.broker).unwrap();
    // A `listen` that ends normally leaves no queue.
    let child = listen(&settings, &["--count", "1"]);
    send(&settings, "shown");
    assert!(child.wait_with_output().unwrap().status.success());
    let listeners = || listeners(&settings);
    assert_eq!(listeners(), [""; 0]);

    let mut child = listen(&settings, &[]);
    child.kill().unwrap();
    child.wait().unwrap();
    let [left] = &listeners()[..] else { panic!("{:?}", listeners()) };
    send(&settings, "copy");
    eventually("the copy waits in the queue of the killed listener", || {
        session.counts(left).unwrap().unwrap().ready == 1
    });
    let look = || json(on(&settings).args(["doctor", "--json"]));
    let report = eventually_seen("doctor finds nothing but the queue", look, |report| {
        let findings = report["findings"].as_array().unwrap();
        findings.len() == 1 && findings[0]["code"] == "nobody-consumes"
    });
    let finding = &report["findings"][0];
    let remedy = format!("delayline listen --app app --queue {left}");
    assert!(finding["advice"].as_str().unwrap().contains(&remedy), "{finding}");
    on(&settings)
        .args(["listen", "--app", "app", "--queue", left, "--count", "1"])
        .assert()
        .success()
        .stdout(contains("copy"));
    assert_eq!(listeners(), [""; 0]);
    are_bound(&settings, 0);
    eventually("doctor finds nothing", || on(&settings).arg("doctor").output().unwrap().status.success());
}

#[test]
fn listen_gives_up_when_nothing_comes() {
    let settings = installed(100);
    on(&settings)
        .args(["listen", "--app", "app", "--timeout", "1s"])
        .assert()
        .code(1)
        .stderr(contains("nothing arrived"));
}

#[test]
fn an_interrupted_send_reports_the_confirmed_messages() {
    let settings = installed(100);
    let inbox = Inbox::open(&settings, "app");
    let mut child = Command::new(env!("CARGO_BIN_EXE_delayline"))
        .args(["send", "--app", "app", "--delay", "1", "--lines"])
        .env("DELAYLINE_URL", format!("{}/{}", shared_node().url(), settings.broker.vhost))
        .env("DELAYLINE_MANAGEMENT_URL", "none")
        .env("DELAYLINE_UNIT_MS", "100")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"one\ntwo\n").unwrap();
    assert_eq!(inbox.collect(2, PATIENCE).len(), 2, "it sends the lines that it has read");
    // The command waits for more lines, but still notices the signal.
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    drop(stdin);
    assert_eq!(output.status.code(), Some(130));
    assert!(String::from_utf8_lossy(&output.stdout).contains("interrupted"));
}

#[test]
fn demo_runs_the_main_job_on_a_broker_of_its_own_and_keeps_it_when_asked() {
    let report = json(delayline().args(["demo", "--json", "--keep"]).timeout(5 * PATIENCE));
    let messages = report["messages"].as_array().unwrap();
    assert_eq!(messages.len(), 12);
    assert!(
        messages.iter().all(|message| message["late_ms"].as_i64().is_some_and(|late| late >= 0)),
        "{report}"
    );
    let url = report["url"].as_str().unwrap();
    let management = report["management_url"].as_str().unwrap();
    let verified = json(delayline().args(["verify", "--json", "--url", url, "--management-url", management]));
    assert_eq!(
        [&verified["findings"], &verified["bindings"]],
        [&serde_json::json!([]), &serde_json::json!(598)]
    );
    let stop = report["stop"].as_str().unwrap();
    assert!(Command::new("sh").args(["-c", stop]).status().unwrap().success());
    delayline().args(["verify", "--url", url]).assert().code(3);
}

#[test]
fn an_interrupted_demo_leaves_nothing_behind() {
    let directory = tempfile::tempdir().unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_delayline"))
        .arg("demo")
        .env("TMPDIR", directory.path())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let files = || std::fs::read_dir(directory.path()).unwrap().count();
    // The node of `demo` is starting, and does not answer yet.
    let pid =
        |node: std::io::Result<std::fs::DirEntry>| node.is_ok_and(|node| node.path().join("pid").exists());
    caught("the node starts", || std::fs::read_dir(directory.path()).unwrap().any(pid));
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    child.wait().unwrap();
    eventually("the node's directory is gone", || files() == 0);
    let path = directory.path().to_str().unwrap();
    eventually("no process of the node is left", || {
        !stdout(assert_cmd::Command::new("ps").args(["-eo", "args"])).lines().any(|line| line.contains(path))
    });
}

#[test]
fn send_is_held_to_a_quota() {
    let settings = installed(1_000);
    let send = |arguments: &[&str], input: &str| {
        let mut command = on(&settings);
        command.env("DELAYLINE_MAX_DELAY", "1h mail=1m").env("DELAYLINE_MAX_MESSAGE_SIZE", "3");
        command.args(["send", "--app", "mail"]).args(arguments).write_stdin(input);
        command.assert()
    };
    send(&["--delay", "61s", "--body", "x"], "")
        .code(2)
        .stderr(contains("1m 1s is longer than the 1m that `max_delay` allows here for `mail`"));
    send(&["--delay", "1m", "--body", "long"], "").code(2).stderr(contains("`max_message_size`"));
    // A file is refused before anything is sent; a single line of a pipe is skipped.
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, "one\nlong\n").unwrap();
    let path = file.path().to_str().unwrap();
    send(&["--delay", "1m", "--lines", "--file", path], "")
        .code(2)
        .stderr(contains("line 2").and(contains("nothing was sent")));
    send(&["--delay", "1m", "--lines"], "one\nlong\n").code(2).stdout(contains("1 confirmed, 1 failed"));
    on(&settings)
        .env("DELAYLINE_MAX_DELAY", "soon")
        .arg("status")
        .assert()
        .code(2)
        .stderr(contains("max_delay").and(contains("`soon` is neither a delay such as `30d`")));
}
