//! The exported definitions, imported by the broker itself.

use delayline_admin::{self as admin, AppQueue, AppSpec, Applied, Delivery, Export};
use delayline_core::topology::{JournalSettings, RecallSettings, Rejected};

use crate::common::{app, http, shared_node, topology, vhost};

/// Imports the definitions through one of the broker's two interfaces, and expects the same set as
/// `install` makes.
fn imported(path: impl Fn(&str) -> String, queue_type: &str) {
    let settings = vhost().set("queue_type", queue_type).build().unwrap();
    let (vhost, topology) = (&settings.broker.vhost, topology(&settings));
    let spec = AppSpec {
        app: app("billing"),
        delivery: Delivery::Direct(AppQueue {
            rejected: Some(Rejected::Retried),
            ..AppQueue::new("billing")
        }),
        user: None,
        recall: Some(RecallSettings::default().with_journal(JournalSettings::default())),
    };
    let definitions = Export::new(vhost).with_set(&topology).with_app(&topology, &spec).definitions();
    let answer = http(&shared_node(), "POST", &path(vhost), &definitions);
    assert!(answer.get("error").is_none(), "{answer}");
    let report = admin::verify(&settings, &topology).unwrap();
    assert!(report.findings.is_empty(), "{report:?}");
    // `install` has nothing left to do.
    let report = admin::install(&settings, &topology, false, || {}).unwrap();
    assert_eq!(
        (report.outcome, report.created, report.created_bindings),
        (Applied::Unchanged, vec![], Some(0))
    );
    let report = admin::add_app(&settings, &topology, &spec, false, false).unwrap();
    assert_eq!(report.outcome, Applied::Unchanged, "{report:?}");
}

#[test]
fn imported_definitions_equal_an_installed_set() {
    imported(|_| "definitions".into(), "quorum");
}

#[test]
fn they_can_be_imported_into_a_vhost_too() {
    imported(|vhost| format!("definitions/{vhost}"), "quorum");
}

#[test]
fn a_set_of_classic_queues_is_exported_alike() {
    imported(|_| "definitions".into(), "classic");
}

#[test]
fn import_keeps_existing_objects_and_verify_finds_them() {
    let settings = vhost().build().unwrap();
    let vhost = &settings.broker.vhost;
    let queue = format!("queues/{vhost}/delay.level.05");
    let other = serde_json::json!({ "durable": true, "arguments": { "x-queue-type": "quorum" } });
    http(&shared_node(), "PUT", &queue, &other);
    let export = Export::new(vhost).with_set(&topology(&settings));
    http(&shared_node(), "POST", "definitions", &export.definitions());
    let report = admin::verify(&settings, &topology(&settings)).unwrap();
    let texts: Vec<_> = report.differences.iter().map(ToString::to_string).collect();
    assert!(!texts.is_empty() && texts.iter().all(|text| text.contains("delay.level.05")), "{texts:?}");
}
