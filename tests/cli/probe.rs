//! `delayline probe`

use delayline_amqp::Session;
use predicates::{prelude::PredicateBooleanExt, str::contains};

use crate::{
    common::{http, installed, permit, shared_node, vhost},
    delayline, json, on,
    others::nservicebus,
    stdout,
};

#[test]
fn says_how_late_each_level_is() {
    let settings = installed(100);
    let report = json(on(&settings).args(["probe", "--horizon", "2", "--max-late", "10m", "--json"]));
    let probes = report["probes"].as_array().unwrap();
    let levels: Vec<_> = probes.iter().map(|probe| probe["levels"].as_str().unwrap()).collect();
    assert_eq!(levels, ["00", "01", "02", "02+01+00", "02+00"]);
    assert_eq!((&report["missing"], &report["twice"]), (&0.into(), &0.into()), "{report}");
    assert_eq!(report["sent"], report["arrived"], "{report}");
    // One that waited in a router for a unit went another way, and does not count.
    assert!(
        report["arrived"].as_u64() > Some(0) && report["worst_late_seconds"].as_f64() > Some(0.0),
        "{report}"
    );

    // Three, because one that waited in the router for a unit is not counted.
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
fn what_is_not_there_is_said_at_once() {
    let settings = vhost().build().unwrap();
    on(&settings).arg("probe").assert().code(3).stderr(contains("delayline install"));
    // Nothing is left behind.
    let queues = http(&shared_node(), "GET", &format!("queues/{}", settings.broker.vhost), &().into());
    assert_eq!(queues, serde_json::json!([]));
    let mut nowhere = delayline();
    nowhere.args(["probe", "--url", "amqp://127.0.0.1:1"]);
    nowhere.assert().code(3).stderr(contains("cannot reach the broker"));
    on(&settings).args(["probe", "--horizon", "10"]).assert().code(2);
}

#[test]
fn what_could_not_be_sent_is_a_problem() {
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

#[test]
fn the_delays_of_others_are_measured_where_they_have_a_guard() {
    let settings = vhost().set("unit_ms", "100").build().unwrap();
    let mut session = Session::open(&settings.broker).unwrap();
    let probe = |layout: &str| {
        let mut probe = on(&settings);
        probe.args(["probe", "--layout", layout, "--horizon", "2", "--max-late", "10m", "--json"]);
        probe
    };
    probe("celery").assert().code(3).stderr(contains("has no exchange of the layout"));
    nservicebus(&mut session, 100);
    probe("nservicebus").assert().code(3).stderr(contains("run `delayline guard nservicebus` first"));
    assert_eq!(session.queue_depth("delayline.canary.nservicebus.0").unwrap(), None);
    on(&settings).args(["guard", "nservicebus"]).assert().success();
    let report = json(&mut probe("nservicebus"));
    let counts = ["sent", "arrived", "missing", "twice"].map(|name| report[name].as_u64());
    assert_eq!(counts, [Some(5), Some(5), Some(0), Some(0)], "{report:#}");
}
