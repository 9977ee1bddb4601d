//! `delayline-bench probe`

use predicates::{prelude::PredicateBooleanExt, str::contains};

use crate::{
    bench,
    common::{http, installed, permit, shared_node, vhost},
    json, on, stdout,
};

#[test]
fn reports_the_lateness_of_each_level() {
    let settings = installed(100);
    let report = json(on(&settings).args(["probe", "--horizon", "2", "--max-late", "10m", "--json"]));
    let probes = report["probes"].as_array().unwrap();
    let levels: Vec<_> = probes.iter().map(|probe| probe["levels"].as_str().unwrap()).collect();
    assert_eq!(levels, ["00", "01", "02", "02+01+00", "02+00"]);
    assert_eq!((&report["missing"], &report["twice"]), (&0.into(), &0.into()), "{report}");
    assert_eq!(report["sent"], report["arrived"], "{report}");
    // A message that waited in a router for a unit took another path, so it is not counted.
    assert!(
        report["arrived"].as_u64() > Some(0) && report["worst_late_seconds"].as_f64() > Some(0.0),
        "{report}"
    );

    // Three rounds, because a message that waited in the router for a unit is not counted.
    let probe = ["probe", "--horizon", "0", "--rounds", "3", "--max-late", "10m"];
    let text = stdout(on(&settings).args(probe));
    assert!(text.contains("late, mean") && text.contains("0 missing, 0 twice"), "{text}");
}

#[test]
fn late_is_a_problem() {
    let settings = installed(100);
    on(&settings).args(["probe", "--horizon", "0", "--max-late", "0s"]).assert().code(1);
}

#[test]
fn a_missing_set_is_reported_at_once() {
    let settings = vhost().build().unwrap();
    on(&settings).arg("probe").assert().code(3).stderr(contains("delayline install"));
    // The probe leaves no queue behind.
    let queues = http(&shared_node(), "GET", &format!("queues/{}", settings.broker.vhost), &().into());
    assert_eq!(queues, serde_json::json!([]));
    let mut nowhere = bench();
    nowhere.args(["probe", "--url", "amqp://127.0.0.1:1"]);
    nowhere.assert().code(3).stderr(contains("cannot reach the broker"));
    on(&settings).args(["probe", "--horizon", "10"]).assert().code(2);
}

#[test]
fn a_message_that_was_not_sent_is_a_problem() {
    let settings = installed(100);
    let (canary, read) = (r"^delay\.canary\.", r"^delay\.(dispatch|canary\..*)$");
    permit(&settings.broker.vhost, "deaf", [canary, canary, read]);
    let probe = || {
        let mut command = on(&settings);
        let url = format!("amqp://deaf:deaf@{}/{}", shared_node().authority(), settings.broker.vhost);
        command.env("DELAYLINE_URL", url).args(["probe", "--horizon", "0"]);
        command
    };
    probe().assert().code(1).stdout(contains("it could not go on: ").and(contains("exchange 'delay'")));
    let report = json(probe().arg("--json"));
    assert_eq!((&report["sent"], &report["arrived"]), (&0.into(), &0.into()), "{report}");
    assert!(report["problem"].as_str().is_some_and(|problem| problem.contains("403")), "{report}");
}
