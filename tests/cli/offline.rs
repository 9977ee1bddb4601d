//! What needs no broker.

use std::{
    io::{Read, Write},
    net::TcpListener,
    process::Stdio,
    thread,
};

use predicates::{prelude::PredicateBooleanExt, str::contains};

use crate::{delayline, document, json, stdout};

const NINETY: &str = "delay.0000.0000.0000.0000.0000.0101.1010.billing";

/// The address of no broker.
const NOBODY: [&str; 2] = ["--url", "amqp://127.0.0.1:1"];

#[test]
fn key_prints_just_the_key() {
    assert_eq!(stdout(delayline().args(["key", "90s", "billing"])), format!("{NINETY}\n"));
    let report = json(delayline().args(["key", "90s", "billing", "--json", "--set", "later"]));
    assert_eq!(
        report,
        serde_json::json!({
            "schema": "key", "schema_version": 1,
            "exchange": "later", "routing_key": NINETY, "app": "billing", "seconds": 90, "hops": 4,
        })
    );
    let with_id = format!("{NINETY}.~.invoice-17\n");
    assert_eq!(stdout(delayline().args(["key", "90s", "billing", "--id", "invoice-17"])), with_id);
    let (app, id) = ("a".repeat(150), "x".repeat(64));
    delayline().args(["key", "90s", &app, "--id", &id]).assert().code(2).stderr(contains("258 bytes"));
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
    // A handle, as `send` prints it.
    let handle = format!("{NINETY}.~.invoice-17@1767222000000");
    delayline().args(["decode", &handle]).assert().success().stdout(contains("invoice-17"));
    let report = json(delayline().args(["decode", &handle, "--json"]));
    assert_eq!((&report["id"], &report["due"]), (&"invoice-17".into(), &"2025-12-31T23:00:00Z".into()));
}

#[test]
fn what_cannot_be_written_is_no_answer() {
    for words in
        [&["version"][..], &["key", "90s", "billing"], &["plan", "--rate", "1", "--delays", "fixed:1s"]]
    {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let mut run = std::process::Command::new(env!("CARGO_BIN_EXE_delayline"));
        let ended = run.args(words).stdout(full).stderr(Stdio::piped()).output().unwrap();
        assert_eq!(ended.status.code(), Some(2), "{words:?}: {ended:?}");
        assert!(String::from_utf8_lossy(&ended.stderr).contains("No space left"), "{ended:?}");
    }
}

#[test]
fn a_recall_that_is_only_to_be_shown_is_refused_and_not_made() {
    let handle = format!("{NINETY}.~.invoice-17");
    let all = ["--app", "billing", "--all"];
    let when = ["--due-after", "2026-12-24", "--due-before", "2026-12-01"];
    for (words, said) in [
        (vec![&*handle, "--dry-run"], "--dry-run"),
        (vec![&*handle, "--undo", "--dry-run"], "--dry-run"),
        (vec!["--undo", "--dry-run"], "--dry-run"),
        (vec!["--wait", "--dry-run"], "--dry-run"),
        (vec!["--dry-run"], "--sweep"),
        ([&all[..], &["--dry-run"]].concat(), "--dry-run"),
        ([&all[..], &["--wait", "--dry-run"]].concat(), "--dry-run"),
        (vec![&*handle, "--id", "other"], "--id"),
        (vec![&*handle, "--all"], "--all"),
        (vec![&*handle, "--due-after", "18:00"], "--due-after"),
        (vec!["--due-after", "18:00"], "--all"),
        (vec!["--pending", "--due-before", "18:00"], "--due-before"),
        (vec!["--app", "billing", "--id", "a", "--due-after", "18:00"], "--due-after"),
        (vec!["--sweep", "--all"], "--sweep"),
        (vec!["--sweep", "--app", "billing", "--all"], "--sweep"),
        (vec!["--sweep", "--due-after", "18:00"], "--sweep"),
        ([&all[..], &when].concat(), "is not later than"),
    ] {
        // Nobody is there: whatever goes on to the broker ends with 3.
        let mut run = delayline();
        run.arg("recall").args(&words).args(["--url", "amqp://127.0.0.1:1"]).write_stdin(handle.as_str());
        run.assert().code(2).stderr(contains(said));
    }
}

#[test]
fn what_is_wrong_is_named_and_has_its_exit_code() {
    for (arguments, code, word) in [
        (&["decode", "delay.0000.0001"][..], 1, "ends after 2 of the seven words"),
        (&["decode", "later.0.1"], 1, "first word must be `delay`"),
        (&["decode", "delay.0000.x"], 1, "word 2"),
        (&["key", "soon", "billing"], 2, "soon"),
        (&["key", "268435456", "billing"], 2, "268435455"),
        (&["key", "90s", "a b"], 2, "white space"),
        (&["key", "90s"], 2, "APP"),
        (&["send", "--app", "a", "--delay", "1s", "--at", "18:00"], 2, "--at"),
        (&["send", "--app", "a", "--delay", "1s", "--file", "/nowhere"], 2, "/nowhere"),
        (&["send", "--delay", "1s", "--body", "x"], 2, "--app"),
        (&["send", "--app", "a", "--body", "x"], 2, "--delay"),
        // What is wrong with the flags is said before anybody is asked.
        (
            &[&["send", "--app", "a", "--delay", "1s", "--body", "x", "--replace"][..], &NOBODY].concat(),
            2,
            "--id",
        ),
        (&[&["send", "--app", "a", "--journal", "--body", "x"][..], &NOBODY].concat(), 2, "--delay"),
        (&[&["send", "--delay", "1s", "--lines"][..], &NOBODY].concat(), 2, "--app"),
        (&["transfer", "nservicebus", "nservicebus"], 2, "`set:nservicebus`"),
        (&["transfer", "delay", "celery:eu"], 2, "only be moved to a set"),
        (&["transfer", "delay", "set:delay"], 2, "another vhost (--to-vhost)"),
        (&["recall", "invoice-17"], 2, "`invoice-17` is not a handle"),
        (&["reschedule", "invoice-17", "--delay", "1h"], 2, "scheduled list --app KEY --id ID"),
        (&["recall", NINETY], 2, "has no id"),
        (&["instal"], 2, "'install', 'uninstall'"),
        (&["install", "--replicas", "x"], 2, "a whole number, and not negative"),
        (&["install", "--replicas", "256"], 2, "1 to 255"),
        (
            &["verify", "--url", "amqps://h", "--ca-file", "/nowhere/ca.pem"],
            2,
            "error: TLS: ca_file /nowhere/ca.pem: No such",
        ),
        (&["serve", "--health", "--listen", "127.0.0.1:1"], 3, "at 127.0.0.1:1: Connection refused"),
        (
            &[&["send", "--app", "a", "--delay", "1s", "--jsonl", "--file", "/tmp"][..], &NOBODY].concat(),
            2,
            "error: /tmp: is a directory",
        ),
        (&["verify", "--url", "amqp://[::1]:1"], 3, "amqp://[::1]:1"),
        (&["plan", "--rate", "0", "--delays", "fixed:1s"], 2, "above 0"),
        (&["plan", "--rate", "1", "--delays", "30s"], 2, "uniform:1s..60s"),
        (&["plan", "--rate", "1", "--delays", "mix:1s=50%"], 2, "50.0%"),
        (&["plan", "--rate", "1", "--delays", "fixed:1s", "--bench", "/nowhere"], 2, "/nowhere"),
        (&["bench", "--hops", "0"], 2, "1 to 12"),
        (&["bench", "--delays", "fixed:30d"], 2, "--speed"),
        (&["bench", "--name", "a b"], 2, "a b"),
        (&["bench", "--hdr", "/nowhere/file"], 2, "/nowhere/file"),
        (&["bench", "--url", "amqp://127.0.0.1:1"], 3, "127.0.0.1:1"),
        (&["nonsense"], 2, "nonsense"),
        (
            &["verify", "--url", "amqp://127.0.0.1:1"],
            3,
            "error: cannot reach the broker at amqp://127.0.0.1:1",
        ),
        (
            &["install", "--url", "amqp://127.0.0.1:1"],
            3,
            "error: cannot reach the broker at amqp://127.0.0.1:1",
        ),
        (&["status", "--url", "http://h"], 2, "amqp"),
        (&["install", "--set", "two words"], 2, "two words"),
        (&["install", "--config", "/nowhere.toml"], 2, "/nowhere.toml"),
    ] {
        delayline().args(arguments).assert().code(code).stderr(contains(word)).stdout("");
    }
}

#[test]
fn what_could_not_be_counted_is_not_zero() {
    for words in [&["status"][..], &["top", "--once"]] {
        let look = delayline().args(words).args(NOBODY).arg("--json").output().unwrap();
        assert_eq!(look.status.code(), Some(3), "{look:?}");
        let picture: serde_json::Value = serde_json::from_slice(&look.stdout).unwrap();
        for count in ["counted", "waiting", "handing_on", "stuck", "unroutable", "parked", "retry"] {
            assert!(picture.as_object().unwrap().contains_key(count), "{count} in {picture}");
            assert!(picture[count].is_null(), "{words:?}: {count} in {picture}");
        }
    }
}

#[test]
fn what_is_no_broker_is_called_that() {
    let answers = |what: &'static [u8]| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            while let Ok((mut connection, _)) = listener.accept() {
                let _ = connection.read(&mut [0; 10_000]);
                let _ = connection.write_all(what);
            }
        });
        address
    };
    let hangs_up = answers(b"");
    delayline()
        .args(["verify", "--url", &format!("amqp://{hangs_up}")])
        .assert()
        .code(3)
        .stderr(contains("before it had greeted us; is this the port of something else"));
    let page = answers(b"HTTP/1.1 200 OK\r\ncontent-length: 13\r\nconnection: close\r\n\r\n<html></html>");
    delayline()
        .args(["app", "list", "--management-url", &format!("http://{page}")])
        .assert()
        .code(3)
        .stderr(contains("it is not JSON; is this the address of something else"));
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
fn a_set_is_exported_without_a_broker() {
    let export = |arguments: &[&str]| {
        let mut command = delayline();
        command.arg("export").args(arguments).env("DELAYLINE_URL", "amqp://localhost:1/team");
        command
    };
    let definitions = document(&mut export(&["--set", "later"]));
    let last = definitions["exchanges"].as_array().unwrap().last().unwrap();
    assert_eq!((&last["name"], &last["vhost"]), (&"later".into(), &"team".into()));
    assert_eq!(json(&mut export(&["--json", "--set", "later"]))["document"], definitions);
    let resources = document(&mut export(&["--format", "terraform"]));
    assert!(resources["resource"]["rabbitmq_queue"].get("delay_level_27").is_some());
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/platform.toml");
    let definitions = document(&mut export(&["--file", file]));
    let queues: Vec<_> = definitions["queues"].as_array().unwrap().iter().map(|it| &it["name"]).collect();
    assert!(queues.contains(&&"delay.level.00".into()) && queues.contains(&&"billing".into()), "{queues:?}");
    assert_eq!(definitions["permissions"].as_array().unwrap().len(), 4);
    export(&["--format", "ansible"]).assert().code(2).stderr(contains("terraform"));
}

#[test]
fn completions_are_scripts_that_the_shell_takes() {
    let script = stdout(delayline().args(["completions", "bash"]));
    let mut bash = std::process::Command::new("bash");
    let mut child = bash.arg("-n").stdin(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), script.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
    delayline().args(["completions", "sh"]).assert().code(2).stderr(contains("fish"));
}

#[test]
fn manual_pages_are_of_all_commands() {
    let page = stdout(delayline().args(["man", "app", "add"]));
    for words in [".TH delayline-app-add 1", "may\\-publish", "Examples:"] {
        assert!(page.contains(words), "{words} is not in {page}");
    }
    assert!(stdout(delayline().arg("man")).contains(".TH delayline 1"));
    let directory = tempfile::tempdir().unwrap();
    let report = json(delayline().args(["man", "--json", "--into"]).arg(directory.path()));
    let files = report["files"].as_array().unwrap();
    assert!(files.contains(&"delayline-unroutable-replay.1".into()), "{report}");
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), files.len());
    delayline().args(["man", "app", "ad"]).assert().code(2).stderr(contains("it has add,"));
    delayline().args(["man", "nope"]).assert().code(2).stderr(contains("`delayline` has no command `nope`"));
    delayline().args(["man", "key", "x"]).assert().code(2).stderr(contains("no commands of its own"));
}

#[test]
fn help_and_version_are_commands_too() {
    assert!(stdout(delayline().args(["help", "app", "add"])).contains("--may-publish"));
    assert_eq!(
        stdout(delayline().arg("version")),
        format!("delayline {}, wire contract 1\n", env!("CARGO_PKG_VERSION"))
    );
    assert_eq!(json(delayline().args(["version", "--json"]))["wire_contract"], 1);
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

#[test]
fn plan_reckons_without_a_broker() {
    let plan = |extra: &[&str]| {
        let mut command = delayline();
        command.args(["plan", "--rate", "1000", "--delays", "uniform:1s..60s"]).args(extra);
        command
    };
    let report = json(plan(&["--json"]).arg("--tolerance").arg("5%"));
    assert!(report["load"]["hops"].as_f64().unwrap() < 3.1);
    assert_eq!(report["load"]["levels"].as_array().unwrap().len(), 28);
    assert_eq!(report["tolerances"].as_array().unwrap().len(), 4);
    let text = stdout(&mut plan(&[]));
    for part in ["30,500 messages wait", "hottest", "What a tolerance would change", "not yours"] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    let huge = stdout(delayline().args(["plan", "--rate", "100000", "--delays", "uniform:1s..365d"]));
    for part in ["trillion messages wait", "It does not hold.", "such brokers", "sets", "24, 23, 22, 21"] {
        assert!(huge.contains(part), "{part} is not in {huge}");
    }
}

#[test]
fn plan_judges_a_measured_broker() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("bench.json");
    let drained = |hops, rate| {
        serde_json::json!({"hops": hops, "messages": 100, "per_second": rate,
            "late_ms": {"p50": 1.0, "p90": 1.0, "p99": 1.0, "p999": 1.0, "max": 1.0}})
    };
    let bench = serde_json::json!({
        "delayline": "0.1.0", "at": "2026-01-01T00:00:00Z", "broker": {"version": "4.3.6", "nodes": 1},
        "conditions": {"size": 256, "unit_ms": 50, "queue_type": "quorum", "replicas": null, "window": 1000, "client_processors": 2},
        "publish": [{"way": "entry", "messages": 100, "per_second": 10_000.0}],
        "drain": [drained(1, 5_000.0), drained(3, 2_000.0)],
        "steady": null, "knee": null, "stock": null, "unchecked": [], "meaning": ["words"],
    });
    std::fs::write(&file, bench.to_string()).unwrap();
    let plan = |rate: &str, code| {
        let mut command = delayline();
        command.args(["plan", "--rate", rate, "--delays", "fixed:1s", "--bench"]).arg(&file);
        command.assert().code(code).stdout(contains("On RabbitMQ 4.3.6, 1 node"));
    };
    plan("100", 0);
    plan("10000", 1);
    std::fs::write(&file, "{}").unwrap();
    delayline()
        .args(["plan", "--rate", "1", "--delays", "fixed:1s", "--bench"])
        .arg(&file)
        .assert()
        .code(2)
        .stderr(contains("delayline bench --json"));
}
