//! Conformance cases against correct programs, and against programs with the usual mistakes.

use std::{fs, path::Path};

use predicates::{prelude::PredicateBooleanExt, str::contains};

use crate::{bench, common::not_tested::not_tested, json};

const TOP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

fn runner(name: &str) -> String {
    format!("{TOP}/conformance/runners/{name}")
}

/// Fails unless all answers are correct.
fn passes(command: &[&str]) {
    let report = json(bench().args(["--json", "conformance"]).args(command));
    let passed = report["passed"].as_u64().unwrap_or_default();
    assert!(passed > 230 && report["failed"] == serde_json::json!([]), "{command:?}: {report}");
}

#[test]
fn the_runners_in_the_repository_pass() {
    passes(&["python3", &runner("runner.py")]);
    passes(&["node", &runner("runner.js")]);
    let tests = std::env::current_exe().unwrap();
    let rust = tests.ancestors().nth(2).unwrap().join("examples/conformance_runner");
    passes(&[rust.to_str().unwrap()]);
    // scripts/test sets these variables. A variable is empty if its language is not available.
    for (variable, command) in [
        ("TEST_RUBY", ["/usr/bin/ruby", "runner.rb"].as_slice()),
        ("TEST_PHP_AUTOLOAD", &["php", "runner.php"]),
        ("TEST_GOPATH", &["go", "run", "runner.go"]),
        ("TEST_JAVA_CLASSPATH", &["java", "-XX:TieredStopAtLevel=1", "Runner.java"]),
    ] {
        let found =
            std::env::var(variable).unwrap_or_else(|_| panic!("{variable} is not set; scripts/test sets it"));
        if found.is_empty() {
            not_tested(&format!("{command:?}: it is not available on this machine"));
            continue;
        }
        let (file, program) = command.split_last().unwrap();
        passes(&[program, &[runner(file).as_str()]].concat());
    }
}

#[test]
fn usual_mistakes_are_found() {
    let right = fs::read_to_string(Path::new(&runner("runner.py"))).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("wrong.py");
    for (what, from, to) in [
        ("27 bits", ":034_b}", ":033_b}"),
        ("the lowest bit first", ".replace(\"_\", \".\")", "[::-1].replace(\"_\", \".\")"),
        ("one bit to a word", ".replace(\"_\", \".\")", ".replace(\"_\", \"\"); bits = \".\".join(bits)"),
        ("rounding down", "math.ceil(seconds)", "int(seconds)"),
        ("rounding to the nearest", "math.ceil(seconds)", "round(seconds)"),
        ("no range check", "if not 0 <= seconds <= LONGEST:", "if False:"),
        (
            "cut to 28 bits",
            "if not 0 <= seconds <= LONGEST:",
            "seconds = math.ceil(seconds) % 2**28\n    if False:",
        ),
        ("no check of the app key", "return app\n", "return app\n\n\ndef check_app(app):\n    return app\n"),
        ("a loose pattern", "\"*.\" * 7", "\"#.\""),
        ("any number of words", "len(words) < 9", "False"),
        ("an id of any characters", "[A-Za-z0-9_-]{1,64}\", id", ".{1,64}\", id"),
        ("no limit to the key with the id", "> 255", "> 999"),
        ("the exchange that recalls taken for the queue", "delay.recalled.", "delay.recall."),
        (
            "a retry that keeps the id in its app key",
            "delayed[1] if delayed else key",
            "key.split(\".\", 8)[-1]",
        ),
    ] {
        assert!(right.contains(from), "{what}: the runner has no {from:?}");
        fs::write(&file, right.replacen(from, to, 1)).unwrap();
        let mut it = bench();
        it.args(["--json", "conformance", "python3"]).arg(&file);
        let report = json(&mut it);
        it.assert().code(1);
        assert!(!report["failed"].as_array().unwrap().is_empty(), "{what}: {report}");
    }
}

#[test]
fn a_program_that_is_no_runner_fails() {
    bench()
        .args(["conformance", "/nowhere/at/all"])
        .assert()
        .code(2)
        .stderr(contains("`/nowhere/at/all` cannot be run"));
    // The runner asks a silent program only once.
    let silent = json(bench().args(["--json", "conformance", "--timeout", "1", "sleep", "1000"]));
    let answers: Vec<_> =
        silent["failed"].as_array().unwrap().iter().map(|it| it["answer"].as_str().unwrap()).collect();
    assert_eq!(answers[0], "no answer within 1 s");
    assert!(answers[1..].iter().all(|answer| answer.starts_with("not asked")), "{answers:?}");
    // A program that ends, and a program with other answers.
    bench().args(["conformance", "--only", "bind", "true"]).assert().code(1).stdout(contains("it has ended"));
    bench()
        .args(["conformance", "--only", "bind", "sed", "-u", "s/.*/hello/"])
        .assert()
        .code(1)
        .stdout(contains("not a JSON object: hello").and(contains("wrong")));
}

#[test]
fn a_program_gets_its_own_arguments() {
    let script = r#"[ "$*" = "--seed -5 --json" ] && exec python3 "$0""#;
    let mut it = bench();
    it.args([
        "conformance",
        "--only",
        "bind",
        "sh",
        "-c",
        script,
        &runner("runner.py"),
        "--seed",
        "-5",
        "--json",
    ]);
    it.assert().success().stdout(contains("are right"));
}
