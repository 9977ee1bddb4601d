//! Measurements of a broker, which leave the broker unchanged.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use delayline_admin as admin;
use delayline_amqp::Session;
use delayline_bench::measure::{self, BenchError, BenchPlan, Progress, Way};
use delayline_core::topology::Unit;
use delayline_settings::Settings;
use serde_json::{Value as Json, json};

use crate::common::{http, install, shared_node, topology, vhost};

/// A plan that is small enough for a slow machine.
fn small() -> BenchPlan {
    BenchPlan {
        count: 500,
        hops: vec![1, 3],
        rate: 100,
        duration: Duration::from_secs(2),
        delays: "uniform:1s..20s".parse().unwrap(),
        unit: Unit::from_millis(20).unwrap(),
        ..BenchPlan::default()
    }
}

/// The names of all exchanges and queues of the vhost, except the broker's own.
fn objects(settings: &Settings) -> Vec<String> {
    let mut names = Vec::new();
    for kind in ["exchanges", "queues"] {
        let found = http(&shared_node(), "GET", &format!("{kind}/{}", settings.broker.vhost), &json!({}));
        let found = found.as_array().cloned().unwrap_or_default();
        names.extend(found.iter().filter_map(|object| object["name"].as_str()).map(str::to_owned));
    }
    names.retain(|name| !name.is_empty() && !name.starts_with("amq."));
    names.sort();
    names
}

#[test]
fn measures_everything_and_leaves_nothing() {
    let settings = vhost().build().unwrap();
    install(&settings);
    let before = objects(&settings);
    let mut steps = Vec::new();
    let mut progress = |progress| {
        if let Progress::Step { what, .. } = progress {
            steps.push(what);
        }
    };
    let plan = small().checked().unwrap();
    let (report, histograms) =
        measure::run(&settings, &plan, None, &AtomicBool::new(false), &mut progress).unwrap();
    for way in [Way::Entry, Way::Queue] {
        assert!(report.published(way).unwrap() > 0.0, "{way:?}");
    }
    let drained: Vec<_> = report.drain.iter().map(|drained| drained.hops).collect();
    assert_eq!(drained, [0, 1, 3]);
    assert!(report.drain.iter().all(|drained| drained.per_second > 0.0 && drained.messages >= 100));
    let steady = report.steady.as_ref().unwrap();
    assert!(steady.messages > 0 && steady.messages <= 200, "{steady:?}");
    assert_eq!((steady.lost, steady.early), (0, 0), "{steady:?}");
    assert!(steady.late_ms.p50 <= steady.late_ms.p99 && steady.late_ms.p99 <= steady.late_ms.max);
    let stock = report.stock.as_ref().unwrap_or_else(|| panic!("{:?}", report.unchecked));
    // The API may count only some of the messages.
    assert!((1..=500).contains(&stock.messages), "{stock:?}");
    assert!(stock.memory_each > 0.0);
    assert!(report.broker.memory_limit.is_some() && report.broker.nodes == Some(1));
    assert!(report.figures().level_limit() > 0.0);
    assert!(steps.iter().any(|step| step == "draining through 3 queues"), "{steps:?}");
    let mut file = Vec::new();
    histograms.write(&mut file).unwrap();
    let file = String::from_utf8(file).unwrap();
    for tag in ["Tag=drain-1,", "Tag=drain-3,", "Tag=steady-100,"] {
        assert!(file.contains(tag), "{tag} is not in {file}");
    }
    assert_eq!(objects(&settings), before);
    assert_eq!(admin::verify(&settings, &topology(&settings)).unwrap().findings, []);
}

#[test]
fn touches_no_set_that_exists() {
    let settings = vhost().build().unwrap();
    install(&settings);
    let mut session = Session::open(&settings.broker).unwrap();
    let queue = delayline_core::topology::Queue::new("mine.sink")
        .with_arguments([("x-queue-type".to_owned(), "classic".into())]);
    session.declare_queue(&queue).unwrap();
    let before = objects(&settings);
    for name in ["delay", "mine"] {
        let name = name.parse().unwrap();
        let never = AtomicBool::new(false);
        let error = measure::run(&settings, &small(), Some(name), &never, &mut |_| ()).unwrap_err();
        assert!(matches!(error, BenchError::Exists { .. }), "{error}");
    }
    assert_eq!(objects(&settings), before);
}

#[test]
fn removes_its_set_when_it_is_interrupted_or_fails() {
    let settings = vhost().build().unwrap();
    for moment in ["publishing straight", "a steady load"] {
        let stop = AtomicBool::new(false);
        let mut progress = |progress| {
            if matches!(&progress, Progress::Step { what, .. } if what.starts_with(moment)) {
                stop.store(true, Ordering::Relaxed);
            }
        };
        let error = measure::run(&settings, &small(), None, &stop, &mut progress).unwrap_err();
        assert!(matches!(error, BenchError::Interrupted), "{moment}: {error}");
        assert_eq!(objects(&settings), [""; 0], "{moment}");
    }
    // A queue that refuses messages.
    let policy = json!({"pattern": "sink$", "definition": {"max-length": 1, "overflow": "reject-publish"}, "apply-to": "queues"});
    http(&shared_node(), "PUT", &format!("policies/{}/full", settings.broker.vhost), &policy);
    let never = AtomicBool::new(false);
    let error = measure::run(&settings, &small(), None, &never, &mut |_| ()).unwrap_err();
    assert!(matches!(error, BenchError::Publish(_)), "{error}");
    assert_eq!(objects(&settings), [""; 0]);
}

#[test]
fn goes_without_the_management_api() {
    let mut settings = vhost().build().unwrap();
    settings.management = None;
    let plan = BenchPlan { rate: 0, hops: vec![1], count: 100, ..small() };
    let (report, _) = measure::run(&settings, &plan, None, &AtomicBool::new(false), &mut |_| ()).unwrap();
    assert!(report.stock.is_none() && report.steady.is_none());
    assert!(report.unchecked[0].contains("--management-url"), "{:?}", report.unchecked);
    let read: Json = serde_json::to_value(&report).unwrap();
    assert_eq!(read["drain"][1]["hops"], 1);
}
