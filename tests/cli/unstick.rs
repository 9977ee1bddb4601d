//! Stuck queues, and how an operator helps them.

use delayline_amqp::Session;
use delayline_core::{
    Message,
    codec::{Delay, RoutingKey},
    topology::{Binding, Endpoint, Queue},
};
use delayline_settings::Settings;
use predicates::{prelude::PredicateBooleanExt, str::contains};
use serde_json::json;

use crate::{
    common::{app, eventually, http, installed, shared_node},
    json, on,
};

/// Five messages that level 0 cannot hand on, because the dispatch exchange is missing.
fn stuck() -> Settings {
    let settings = installed(1_000);
    let mut session = Session::open(&settings.broker).unwrap();
    let arguments = [("x-queue-type".to_owned(), "quorum".into())];
    session.declare_queue(&Queue::new("in").with_arguments(arguments)).unwrap();
    let destination = Endpoint::Queue("in".into());
    let key = RoutingKey::binding_pattern(&app("app"));
    session.bind(&Binding { source: "delay.dispatch".into(), destination, key }).unwrap();
    session.delete_exchange("delay.dispatch").unwrap();
    let router = settings.router().connect().unwrap();
    for _ in 0..5 {
        router.publish(Message::after(app("app"), Delay::from_seconds(1).unwrap(), "x")).unwrap();
    }
    eventually("the messages are stuck", || {
        let status = json(on(&settings).args(["status", "--json"]));
        let stuck = |level: &serde_json::Value| level["stuck"].as_u64().unwrap_or(0);
        status["levels"].as_array().unwrap().iter().map(stuck).sum::<u64>() == 5
    });
    settings
}

#[test]
fn stuck_queues_are_freed_and_the_exit_code_shows_it() {
    let settings = stuck();
    on(&settings)
        .args(["unstick", "--dry-run"])
        .assert()
        .code(1)
        .stdout("delay.level.00  would make it try again, with a policy: 5 dead letters\n");
    // The dispatch exchange is still missing.
    on(&settings).args(["unstick", "--wait", "7"]).assert().code(1).stdout(
        contains("delay.level.00  still stuck: 5 dead letters before, 5 still stuck")
            .and(contains("No queue accepts the messages that are still stuck")),
    );
    on(&settings).arg("install").assert().success();
    let report = json(on(&settings).args(["unstick", "--wait", "300", "--json"]));
    assert_eq!(report["touched"][0]["queue"], "delay.level.00", "{report}");
    assert_eq!((&report["touched"][0]["by"], &report["touched"][0]["left"]), (&json!("policy"), &json!(0)));
    assert_eq!(report["left_behind"], json!([]));
    on(&settings)
        .arg("unstick")
        .assert()
        .success()
        .stdout("unchanged no message is stuck, according to the broker's counts\n");
    on(&settings)
        .args(["unstick", "--level", "3", "--level", "4"])
        .assert()
        .success()
        .stdout(contains("delay.level.03  flowing: 0 dead letters before, none now"));
}

#[test]
fn policies_that_prevent_the_help_are_reported() {
    let settings = stuck();
    let theirs = json!({"pattern": "^delay", "definition": {"max-length": 100_000}, "apply-to": "queues", "priority": 7});
    for what in ["policies", "operator-policies"] {
        http(&shared_node(), "PUT", &format!("{what}/{}/theirs", settings.broker.vhost), &theirs);
    }
    let args = ["unstick", "--dry-run", "--json"];
    eventually("the policies are reported", || {
        json(on(&settings).args(args))["occupied"][0]["policy"] == "theirs"
    });
    on(&settings).arg("unstick").assert().code(1).stdout(contains(
        "delay.level.00  not touched: the policy `theirs` and the operator policy `theirs` both apply to it and are \
         left alone",
    ));
}

#[test]
fn wrong_usage_and_brokers_that_cannot_be_asked() {
    let settings = installed(1_000);
    for (wrong, says) in [
        (&["--level", "28"][..], "28"),
        (&["--queues", "("], "regex parse error"),
        (&["--queues", "x", "--level", "1"], "cannot be used with"),
        (&["--wait", "soon"], "`soon` is not a delay"),
    ] {
        on(&settings).arg("unstick").args(wrong).assert().code(2).stderr(contains(says));
    }
    on(&settings)
        .env("DELAYLINE_MANAGEMENT_URL", "none")
        .arg("unstick")
        .assert()
        .code(2)
        .stderr(contains("needs the management API").and(contains("--management-url")));
    on(&settings)
        .env("DELAYLINE_MANAGEMENT_URL", "http://127.0.0.1:1")
        .arg("unstick")
        .assert()
        .code(3)
        .stderr(contains("cannot be reached"));
}
