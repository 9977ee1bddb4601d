//! Findings of `doctor`, as an operator and a script see them.

use delayline_amqp::Session;
use delayline_core::topology::{Binding, Endpoint, Queue};
use predicates::{prelude::PredicateBooleanExt, str::contains};

use crate::{
    common::{eventually_seen, installed, vhost},
    json, on,
};

/// An application with two findings that `doctor` sees at once.
fn with_findings() -> delayline_settings::Settings {
    let settings = installed(1_000);
    let mut session = Session::open(&settings.broker).unwrap();
    let arguments = [("x-queue-type".to_owned(), "classic".into())];
    session.declare_queue(&Queue::new("old").with_arguments(arguments)).unwrap();
    session
        .bind(&Binding {
            source: "delay.dispatch".into(),
            destination: Endpoint::Queue("old".into()),
            key: "#.old\u{1b}[31m".into(),
        })
        .unwrap();
    settings
}

#[test]
fn findings_are_printed_with_advice_and_exit_with_1() {
    let settings = with_findings();
    // The broker may still count the new queue.
    let look = || json(on(&settings).args(["doctor", "--json"]));
    let codes = |report: &serde_json::Value| -> Vec<_> {
        report["findings"].as_array().unwrap().iter().map(|finding| finding["code"].clone()).collect()
    };
    let report = eventually_seen("doctor finds both", look, |report| {
        codes(report) == ["target-classic", "wildcard-binding"]
    });
    assert_eq!(report["findings"][0]["severity"], "advice");
    on(&settings).arg("doctor").assert().code(1).stdout(
        contains("! target-classic  queue `old`")
            .and(contains("to do: declare it again as a quorum queue"))
            .and(contains("! wildcard-binding"))
            // Names that others chose cannot control the terminal.
            .and(contains("\u{1b}[31m").not())
            .and(contains("set `delay`: 2 advice (`delayline doctor CODE` explains one)")),
    );

    // Ignored findings are those that the operator accepts.
    on(&settings)
        .args(["doctor", "--ignore", "target-classic"])
        .assert()
        .code(1)
        .stdout(contains("target-classic").not().and(contains("1 advice")).and(contains("1 ignored")));
    on(&settings)
        .args(["doctor", "--ignore", "target-classic", "--ignore", "wildcard-binding"])
        .assert()
        .success()
        .stdout(contains("nothing found, 2 ignored"));
    on(&settings)
        .args(["doctor", "--ignore", "old-queue"])
        .assert()
        .code(2)
        .stderr(contains("`old-queue` is not the code of a finding; the codes are stuck-dead-letters,"));
}

#[test]
fn a_clean_set_exits_with_0_and_an_absent_one_with_1() {
    let settings = installed(1_000);
    let look = || on(&settings).arg("doctor").output().unwrap();
    eventually_seen("doctor finds nothing", look, |ended| {
        ended.status.success() && ended.stdout == b"set `delay`: nothing found\n"
    });
    let nothing = vhost().build().unwrap();
    on(&nothing)
        .arg("doctor")
        .assert()
        .code(1)
        .stdout(contains("✗ set-differs  set `delay`").and(contains("to do: delayline install")));
    on(&settings)
        .env("DELAYLINE_MANAGEMENT_URL", "none")
        .arg("doctor")
        .assert()
        .code(2)
        .stderr(contains("needs the management API").and(contains("--management-url")));
}
