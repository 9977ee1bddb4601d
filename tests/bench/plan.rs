//! `delayline-bench plan`

use predicates::str::contains;

use crate::{bench, json, stdout};

#[test]
fn a_load_is_estimated_without_a_broker() {
    let plan = |extra: &[&str]| {
        let mut command = bench();
        command.args(["plan", "--rate", "1000", "--delays", "uniform:1s..60s"]).args(extra);
        command
    };
    let report = json(plan(&["--json"]).arg("--tolerance").arg("5%"));
    assert!(report["load"]["hops"].as_f64().unwrap() < 3.1);
    assert_eq!(report["load"]["levels"].as_array().unwrap().len(), 28);
    assert_eq!(report["tolerances"].as_array().unwrap().len(), 4);
    let text = stdout(&mut plan(&[]));
    for part in
        ["30,500 messages wait", "hottest", "What a tolerance would change", "not yours", "starts within"]
    {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    let huge = stdout(bench().args(["plan", "--rate", "100000", "--delays", "uniform:1s..365d"]));
    for part in [
        "trillion messages wait",
        "The broker cannot carry this load.",
        "such brokers",
        "sets",
        "24, 23, 22, 21",
    ] {
        assert!(huge.contains(part), "{part} is not in {huge}");
    }
}

#[test]
fn a_measured_broker_is_judged() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("bench.json");
    let drained = |hops, rate| {
        serde_json::json!({"hops": hops, "messages": 100, "per_second": rate,
            "late_ms": {"p50": 1.0, "p90": 1.0, "p99": 1.0, "p999": 1.0, "max": 1.0}})
    };
    let measured = serde_json::json!({
        "delayline": "0.1.0", "at": "2026-01-01T00:00:00Z", "broker": {"version": "4.3.6", "nodes": 1},
        "conditions": {"size": 256, "unit_ms": 50, "queue_type": "quorum", "replicas": null, "window": 1000, "client_processors": 2},
        "publish": [{"way": "entry", "messages": 100, "per_second": 10_000.0}],
        "drain": [drained(1, 5_000.0), drained(3, 2_000.0)],
        "steady": null, "knee": null, "stock": null, "unchecked": [], "meaning": ["words"],
    });
    std::fs::write(&file, measured.to_string()).unwrap();
    let plan = |rate: &str, code| {
        let mut command = bench();
        command.args(["plan", "--rate", rate, "--delays", "fixed:1s", "--bench"]).arg(&file);
        command.assert().code(code).stdout(contains("On RabbitMQ 4.3.6, 1 node"));
    };
    plan("100", 0);
    plan("10000", 1);
    std::fs::write(&file, "{}").unwrap();
    bench()
        .args(["plan", "--rate", "1", "--delays", "fixed:1s", "--bench"])
        .arg(&file)
        .assert()
        .code(2)
        .stderr(contains("delayline-bench run --json"));
}
