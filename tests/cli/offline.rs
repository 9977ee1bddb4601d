//! Commands that need no broker.

use std::{
    io::{Read, Write},
    net::TcpListener,
    process::Stdio,
    thread,
};

use predicates::{prelude::PredicateBooleanExt, str::contains};

use crate::{delayline, document, json, stdout};

const NINETY: &str = "delay.0000.0000.0000.0000.0000.0101.1010.billing";

/// An address where no broker listens.
const NOBODY: [&str; 2] = ["--url", "amqp://127.0.0.1:1"];

#[test]
fn key_prints_just_the_key() {
    assert_eq!(stdout(delayline().args(["key", "encode", "90s", "--app", "billing"])), format!("{NINETY}\n"));
    let report =
        json(delayline().args(["key", "encode", "90s", "--app", "billing", "--json", "--set", "later"]));
    assert_eq!(
        report,
        serde_json::json!({
            "schema": "key-encode", "schema_version": 1,
            "exchange": "later", "routing_key": NINETY, "app": "billing", "seconds": 90, "hops": 4,
        })
    );
    let with_id = format!("{NINETY}.~.invoice-17\n");
    assert_eq!(
        stdout(delayline().args(["key", "encode", "90s", "--app", "billing", "--id", "invoice-17"])),
        with_id
    );
    let (app, id) = ("a".repeat(150), "x".repeat(64));
    delayline()
        .args(["key", "encode", "90s", "--app", &app, "--id", &id])
        .assert()
        .code(2)
        .stderr(contains("258 bytes"));
    let report =
        json(delayline().args(["key", "encode", "1000", "--app", "billing", "--json", "--tolerance", "5%"]));
    assert_eq!((&report["seconds"], &report["hops"]), (&1_024.into(), &1.into()));
}

#[test]
fn decode_is_the_reverse() {
    delayline()
        .args(["key", "decode", NINETY])
        .assert()
        .success()
        .stdout(contains("1m 30s").and(contains("06 04 03 01")));
    let report = json(delayline().args(["key", "decode", NINETY, "--json"]));
    assert_eq!((&report["seconds"], &report["app"]), (&90.into(), &"billing".into()));
    delayline()
        .args(["key", "decode", &NINETY.replace("billing", "1.billing")])
        .assert()
        .success()
        .stdout(contains("a bit too many"));
    // A handle, as printed by `send`.
    let handle = format!("{NINETY}.~.invoice-17@1767222000000");
    delayline().args(["key", "decode", &handle]).assert().success().stdout(contains("invoice-17"));
    let report = json(delayline().args(["key", "decode", &handle, "--json"]));
    assert_eq!((&report["id"], &report["due"]), (&"invoice-17".into(), &"2025-12-31T23:00:00Z".into()));
}

#[test]
fn unwritable_output_is_an_error() {
    for words in [&["version"][..], &["key", "encode", "90s", "--app", "billing"]] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let mut run = std::process::Command::new(env!("CARGO_BIN_EXE_delayline"));
        let ended = run.args(words).stdout(full).stderr(Stdio::piped()).output().unwrap();
        assert_eq!(ended.status.code(), Some(2), "{words:?}: {ended:?}");
        assert!(
            String::from_utf8_lossy(&ended.stderr).contains("standard output: No space left"),
            "{ended:?}"
        );
    }
}

#[test]
fn a_recall_with_contradictory_or_missing_selectors_is_refused() {
    let handle = format!("{NINETY}.~.invoice-17");
    let app = ["--app", "billing"];
    let when = ["--due-after", "2026-12-24", "--due-before", "2026-12-01"];
    for (words, said) in [
        (vec![&*handle, "--id", "other"], "--id"),
        (vec![&*handle, "--all"], "--all"),
        (vec![&*handle, "--file", "-"], "--file"),
        (vec![&*handle, "--due-after", "18:00"], "--due-after"),
        (vec![&*handle, "--header", "a=b"], "--header"),
        (vec!["--due-after", "18:00"], "--app"),
        (vec!["--header", "a=b"], "--app"),
        (vec!["--dry-run"], "--app"),
        (app.to_vec(), "--header"),
        ([&app[..], &["--all", "--due-after", "18:00"]].concat(), "--due-after"),
        ([&app[..], &["--header", "customer"]].concat(), "customer=C-4"),
        ([&app[..], &when].concat(), "is not later than"),
        (vec!["--file", "/nowhere"], "/nowhere"),
    ] {
        for verb in ["recall", "unrecall"] {
            // No broker listens there: a command that tries to connect ends with 3.
            let mut run = delayline();
            run.args(["scheduled", verb]).args(&words).args(["--url", "amqp://127.0.0.1:1"]);
            run.write_stdin(handle.as_str()).assert().code(2).stderr(contains(said));
        }
    }
}

#[test]
fn errors_are_named_and_have_their_exit_codes() {
    for (arguments, code, word) in [
        (&["key", "decode", "delay.0000.0001"][..], 1, "ends after 2 of the seven words"),
        (&["key", "decode", "later.0.1"], 1, "first word must be `delay`"),
        (&["key", "decode", "delay.0000.x"], 1, "word 2"),
        (&["key", "encode", "soon", "--app", "billing"], 2, "soon"),
        (&["key", "encode", "268435456", "--app", "billing"], 2, "268435455"),
        (&["key", "encode", "90s", "--app", "a b"], 2, "white space"),
        (&["key", "encode", "90s"], 2, "APP"),
        (&["send", "--app", "a", "--delay", "1s", "--at", "18:00"], 2, "--at"),
        (&["send", "--app", "a", "--delay", "1s", "--file", "/nowhere"], 2, "/nowhere"),
        (&["send", "--delay", "1s", "--body", "x"], 2, "--app"),
        (&["send", "--app", "a", "--body", "x"], 2, "--delay"),
        // Wrong flags are reported before the command connects.
        (
            &[&["send", "--app", "a", "--delay", "1s", "--body", "x", "--replace"][..], &NOBODY].concat(),
            2,
            "--id",
        ),
        (&[&["send", "--app", "a", "--body", "x"][..], &NOBODY].concat(), 2, "--delay"),
        (&[&["send", "--delay", "1s", "--lines"][..], &NOBODY].concat(), 2, "--app"),
        (&["transfer", "nservicebus", "nservicebus"], 2, "`set:nservicebus`"),
        (&["transfer", "delay", "celery:eu"], 2, "only be moved to a set"),
        (&["transfer", "delay", "set:delay"], 2, "another vhost (--to-vhost)"),
        (&["scheduled", "recall", "invoice-17"], 2, "`invoice-17` is not a handle"),
        (&["scheduled", "reschedule", "invoice-17", "--delay", "1h"], 2, "scheduled list --app APP --id ID"),
        (&["scheduled", "recall", NINETY], 2, "has no id"),
        (&["instal"], 2, "'install', 'uninstall'"),
        (&["install", "--replicas", "x"], 2, "a whole number, 0 or more"),
        (&["install", "--replicas", "256"], 2, "1 to 255"),
        (
            &["verify", "--url", "amqps://h", "--ca-file", "/nowhere/ca.pem"],
            2,
            "error: TLS: ca_file /nowhere/ca.pem: No such",
        ),
        (&["serve", "check", "--listen", "127.0.0.1:1"], 3, "at 127.0.0.1:1: Connection refused"),
        (
            &[&["send", "--app", "a", "--delay", "1s", "--jsonl", "--file", "/tmp"][..], &NOBODY].concat(),
            2,
            "error: /tmp: is a directory",
        ),
        (&["verify", "--url", "amqp://[::1]:1"], 3, "amqp://[::1]:1"),
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
fn an_unknown_count_is_not_zero() {
    for words in [&["status"][..]] {
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
fn a_server_that_is_no_broker_is_named() {
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
        .stderr(contains("before its greeting; the port may belong to something else"));
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
    assert!(files.contains(&"delayline-held-replay.1".into()), "{report}");
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), files.len());
    delayline().args(["man", "app", "ad"]).assert().code(2).stderr(contains("it has add,"));
    delayline().args(["man", "nope"]).assert().code(2).stderr(contains("`delayline` has no command `nope`"));
    delayline().args(["man", "verify", "x"]).assert().code(2).stderr(contains("no commands of its own"));
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
    // Standard output is closed before the command writes to it.
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_delayline"))
        .args(["key", "encode", "90s", "--app", "billing"])
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
fn a_certificate_is_not_read_from_standard_input() {
    let status = ["status", "--url", "amqps://127.0.0.1:1", "--ca-file", "-"];
    delayline().args(status).assert().code(2).stderr(contains("give the name of a file"));
}
