//! `scripts/compare` in its smallest form: every layout delays, everything that was
//! confirmed arrives once and not early, and the report can be made. No rates.

#[path = "../../benches/compare/suite/mod.rs"]
#[allow(dead_code, reason = "the long form uses all of it")]
pub(crate) mod suite;

use std::{fs, process::Command};

use crate::common::not_tested::not_tested;
use suite::{
    broker::Broker,
    conditions::Conditions,
    layouts,
    measure::measure,
    reference::Reference,
    report,
    results::{Knee, Run, Step},
    scale::Scale,
    series, targets,
    workload::Workload,
};

#[test]
fn every_layout_delivers_and_the_report_can_be_made() {
    let scale = Scale::tiny();
    let broker = Broker::start(None, &[]).unwrap();
    let mut run = Run {
        conditions: Conditions { rabbitmq: broker.version.clone(), ..Conditions::new(&scale) },
        layouts: layouts::all().into_iter().map(|(description, _)| description).collect(),
        cells: Vec::new(),
        hops: series::hops(&broker, &scale).unwrap(),
        waiting: series::waiting(&broker, &scale).unwrap(),
        knees: ["delayline", "nservicebus"].map(knee).into(),
        failures: Vec::new(),
    };
    let mut reference = Reference::new(&broker, &Workload::all(&scale)[0]).unwrap();
    // All that differs between the workloads is the delays, so one is enough for most.
    for workload in Workload::all(&scale) {
        for (description, make) in layouts::all() {
            let is_wanted = match workload.id {
                "mixed" => description.id != "plugin" || broker.has_delay_plugin,
                "burst" => ["delayline", "straight"].contains(&description.id.as_str()),
                _ => false,
            };
            if !is_wanted {
                if workload.id == "mixed" {
                    not_tested(&format!("the layout `{}`: the broker has no such plugin", description.id));
                }
                continue;
            }
            let cell = measure(&broker, &description.id, make().as_mut(), &workload, &scale, &mut reference);
            assert_eq!(cell.failure, None, "{cell:?}");
            assert!(cell.confirmed > 0, "{cell:?}");
            assert_eq!((cell.lost, cell.unfinished, cell.early), (0, 0, 0), "{cell:?}");
            run.cells.push(cell);
        }
    }
    let celery = run.cell("celery", "mixed").unwrap();
    assert_eq!(celery.queues, 28, "kombu declares a queue for each level");

    let found = targets::targets(std::slice::from_ref(&run));
    assert!(
        found.iter().any(|target| target.what.contains("knee") && target.met == Some(false)),
        "{found:?}"
    );
    let docs = tempfile::tempdir().unwrap();
    let written = report::write(&[run], docs.path()).unwrap();
    assert_eq!(written.len(), 6);
    let page = fs::read_to_string(docs.path().join("benchmarks.md")).unwrap();
    assert!(!page.contains("{{"), "every place is filled in: {page}");
    assert!(page.contains("of a quick run"), "a test is no measurement");
    for (description, _) in layouts::all() {
        assert!(page.contains(&description.title), "{}", description.title);
    }
    // An XML parser takes the charts.
    for file in written.iter().filter(|file| file.extension().is_some_and(|extension| extension == "svg")) {
        let script = "import sys, xml.dom.minidom as dom; dom.parse(sys.argv[1])";
        let python = std::env::var("TEST_PYTHON").expect("scripts/test sets TEST_PYTHON");
        assert!(Command::new(python).args(["-c", script]).arg(file).status().unwrap().success(), "{file:?}");
    }
}

/// The search takes too long for a test.
fn knee(layout: &str) -> Knee {
    let step = Step { rate: 1_000.0, achieved: 1_000.0, p99_ms: 5.0, holds: true, stolen: 0.0 };
    Knee { layout: layout.into(), rate: 1_000.0, steps: vec![step] }
}
