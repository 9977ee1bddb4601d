//! Wrong arguments, files and brokers: the exit code and the error.

use predicates::str::contains;

use crate::bench;

#[test]
fn a_wrong_argument_is_refused_with_the_reason() {
    const FIXED: [&str; 2] = ["--delays", "fixed:1s"];
    for (arguments, code, word) in [
        (&["probe", "--rounds", "-3"][..], 2, "use a whole number, 1 or more"),
        (&["probe", "--horizon", "12"], 2, "use a whole number from 0 to 9"),
        (&["probe", "--max-late", "-5s"], 2, "is not a duration"),
        (&["run", "--count", "-3"], 2, "use a whole number"),
        (&["run", "--hops", "1,-3"], 2, "use a whole number"),
        (&["run", "--hops", "0"], 2, "1 to 12"),
        (&["run", "--speed", "-3"], 2, "use a whole number from 1 to 1000"),
        (&["run", "--duration", "-5s"], 2, "a delay cannot be negative"),
        (&["run", "--delays", "fixed:30d"], 2, "--speed"),
        (&["run", "--name", "a b"], 2, "a b"),
        (&["run", "--hdr", "/nowhere/file"], 2, "/nowhere/file"),
        (&["run", "--url", "amqp://127.0.0.1:1"], 3, "127.0.0.1:1"),
        (&["run", "--url", "amqp://u:p@h"], 2, "--url contains a password"),
        (&["probe", "--config", "/nowhere"], 2, "/nowhere"),
        (&[&["plan", "--rate", "-3"][..], &FIXED].concat(), 2, "above 0"),
        (&[&["plan", "--rate", "0"][..], &FIXED].concat(), 2, "above 0"),
        (&[&["plan", "--rate", "1", "--size", "-3"][..], &FIXED].concat(), 2, "use a whole number"),
        (&[&["plan", "--rate", "1", "--bench", "/nowhere"][..], &FIXED].concat(), 2, "/nowhere"),
        (&["plan", "--rate", "1", "--delays", "fixed:-1s"], 2, "negative"),
        (&["plan", "--rate", "1", "--delays", "30s"], 2, "uniform:1s..60s"),
        (&["plan", "--rate", "1", "--delays", "mix:1s=50%"], 2, "50.0%"),
        (&["fill", "--messages", "10"], 2, "1000 or more"),
        (&["fill", "--messages", "1000", "--together", "2000"], 2, "--together"),
        (&["conformance", "--no-such-flag", "true"], 2, "--no-such-flag"),
        (&["conformance"], 2, "COMMAND"),
        (&["nonsense"], 2, "nonsense"),
    ] {
        bench().args(arguments).assert().code(code).stdout("").stderr(contains(word));
    }
    let error = bench().args(["run", "--hops", "0", "--json"]).output().unwrap();
    let error: serde_json::Value = serde_json::from_slice(&error.stderr).unwrap();
    crate::common::schemas::check(&error);
    assert_eq!(error["exit_code"], 2, "{error}");
}
