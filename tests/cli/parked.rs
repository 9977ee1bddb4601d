//! Parked messages.

use delayline_amqp::{Next, Publisher, Session};
use delayline_core::{
    Message,
    codec::Delay,
    message::{Headers, Properties, Value},
    topology::{Binding, Endpoint, Exchange, ExchangeKind},
};
use delayline_settings::Settings;
use jiff::Timestamp;
use predicates::{prelude::PredicateBooleanExt, str::contains};

use crate::common::Counting;
use crate::{
    common::{Inbox, PATIENCE, app, eventually, eventually_seen, installed},
    json, on,
};

fn waiting(settings: &Settings) -> u32 {
    Session::open(&settings.broker).unwrap().counts("delay.parked").unwrap().unwrap().ready
}

/// Parks messages as the service does, with ids that start at 0.
fn park(settings: &Settings, reasons: &[(&str, &str, i64)]) {
    let mut session = Session::open(&settings.broker).unwrap();
    let exchange = Exchange::new("fill", ExchangeKind::Fanout);
    session.declare_exchange(&exchange).unwrap();
    let destination = Endpoint::Exchange("delay.parked".into());
    session.bind(&Binding { source: "fill".into(), destination, key: String::new() }).unwrap();
    let mut into = settings.clone();
    into.topology.set = "fill".parse().unwrap();
    let router = into.router().connect().unwrap();
    for (id, (key, reason, hours)) in reasons.iter().enumerate() {
        let failed = Timestamp::now().as_millisecond() - hours * 3_600_000;
        let properties = Properties { message_id: Some(id.to_string()), ..Properties::default() };
        let mut message = Message::after(app(key), Delay::ZERO, "body").with_properties(properties);
        message.headers = Headers::from([
            ("mine".into(), Value::from("kept")),
            ("delayline-reason".into(), (*reason).into()),
            ("delayline-failure".into(), "rejected".into()),
            ("delayline-attempt".into(), 3_i64.into()),
            ("delayline-first-failed".into(), (failed - 1).into()),
            ("delayline-last-failed".into(), failed.into()),
            ("delayline-exchange".into(), "orders".into()),
            ("delayline-routing-key".into(), "order.created".into()),
            ("delayline-expires".into(), failed.into()),
        ]);
        router.publish(message).unwrap();
    }
}

#[test]
fn list_show_replay_and_discard() {
    let settings = installed(100);
    on(&settings)
        .args(["held", "list", "--kind", "parked"])
        .assert()
        .success()
        .stdout(contains("nothing is parked"));
    park(
        &settings,
        &[
            ("billing", "attempts", 1),
            ("billing", "attempts", 50),
            ("billing", "expired", 1),
            ("mail", "age", 1),
        ],
    );
    eventually("all messages are parked", || waiting(&settings) == 4);
    on(&settings)
        .args(["held", "list", "--kind", "parked"])
        .assert()
        .success()
        .stdout(contains("4 messages parked").and(contains("attempts")).and(contains("2.1 d")));
    let report = json(on(&settings).args(["held", "list", "--kind", "parked", "--json"]));
    assert_eq!((&report["waiting"], report["groups"].as_array().unwrap().len()), (&4.into(), 3));
    on(&settings)
        .args(["held", "show", "--kind", "parked", "--app", "mail"])
        .assert()
        .success()
        .stdout(contains("parked because of `age`").and(contains("header       mine = \"kept\"")));
    on(&settings).args(["held", "show", "--kind", "parked", "--app", "nobody"]).assert().code(1);
    eventually("showing messages removes none", || waiting(&settings) == 4);

    on(&settings).args(["held", "replay", "--kind", "parked"]).assert().code(2).stderr(contains("--all"));
    let inbox = Inbox::open(&settings, "billing");
    on(&settings)
        .args([
            "held",
            "replay",
            "--kind",
            "parked",
            "--app",
            "billing",
            "--reason",
            "attempts",
            "--older-than",
            "1d",
        ])
        .assert()
        .success()
        .stdout(contains("1 message sent on, 3 kept"));
    let arrival = inbox.next(PATIENCE).unwrap();
    assert_eq!((arrival.id.as_str(), arrival.body.as_slice()), ("1", &b"body"[..]));
    // The attempts start again, but the original exchange and routing key are kept.
    let names: Vec<_> = arrival.headers.keys().filter(|name| !name.starts_with("x-")).collect();
    assert_eq!(names, ["delayline-exchange", "delayline-routing-key", "mine"]);
    assert_eq!(arrival.headers["delayline-exchange"], Value::from("orders"));

    on(&settings)
        .args(["held", "discard", "--yes", "--kind", "parked"])
        .assert()
        .code(2)
        .stderr(contains("--all"));
    on(&settings)
        .args(["held", "discard", "--yes", "--kind", "parked", "--reason", "rejected", "--app", "mail"])
        .assert()
        .success()
        .stdout(contains("1 message discarded, 2 kept"));
    on(&settings).args(["held", "discard", "--yes", "--kind", "parked", "--all"]).assert().success();
    eventually("no message is left", || waiting(&settings) == 0);
}

#[test]
fn without_retries_a_rejected_message_is_parked_and_can_be_replayed() {
    let settings = installed(100);
    on(&settings).args(["app", "add", "own", "--no-user", "--retry", "none"]).assert().success();
    on(&settings)
        .args(["app", "add", "own", "--no-user", "--retry", "none"])
        .assert()
        .success()
        .stdout(contains("unchanged"));
    on(&settings).args(["app", "show", "own"]).assert().success().stdout(contains("none: parked at once"));
    let mut wrong = on(&settings);
    wrong
        .args(["app", "add", "own", "--no-user", "--retry", "never"])
        .assert()
        .code(2)
        .stderr(contains("use `none`"));
    let mut session = Session::open(&settings.broker).unwrap();
    let consumer = session.consume("own", 10).unwrap();
    let take = || match consumer.next(PATIENCE) {
        Next::Delivery(delivery) => delivery,
        other => panic!("{other:?}"),
    };
    on(&settings).args(["send", "--app", "own", "--delay", "1s", "--body", "x"]).assert().success();
    consumer.reject(take()).unwrap();
    eventually("the message is parked", || waiting(&settings) == 1);
    let report = json(on(&settings).args(["held", "list", "--kind", "parked", "--json"]));
    let group = &report["groups"][0];
    assert_eq!(
        (&group["app"], &group["reason"], &group["count"]),
        (&"own".into(), &"rejected".into(), &1.into())
    );
    on(&settings).args(["held", "replay", "--kind", "parked", "--app", "own"]).assert().success();
    let delivery = take();
    assert_eq!(delivery.body, b"x");
    consumer.ack(delivery).unwrap();
    assert!(consumer.finish(PATIENCE));
    eventually("its consumer is gone, and its queue is recognised as its own", || {
        on(&settings).args(["app", "remove", "own", "--no-user", "--yes"]).output().unwrap().status.success()
    });
    assert_eq!(session.counts("own").unwrap(), None);
}

#[test]
fn a_publishers_time_discards_nothing() {
    let settings = installed(100);
    let mut publisher = Publisher::open(&settings.broker).unwrap();
    let properties = Properties { timestamp: Some(0), ..Properties::default() };
    let headers = Headers::from([("delayline-reason".into(), "mine".into())]);
    publisher.publish("", "delay.parked".into(), properties, headers, b"new");
    publisher.close(PATIENCE);
    park(&settings, &[("billing", "attempts", 50)]);
    eventually("both are parked", || waiting(&settings) == 2);
    let discard = |more: &[&str]| {
        let mut command = on(&settings);
        command.args(["held", "discard", "--kind", "parked", "--older-than", "1d"]).args(more);
        command
    };
    let left = "1 message kept, since neither the broker nor delayline recorded when they came";
    discard(&["--dry-run"]).assert().success().stdout(contains("1 message would be").and(contains(left)));
    discard(&["--yes"])
        .assert()
        .success()
        .stdout(contains("1 message discarded, 1 kept").and(contains(left)));
    let report = json(&mut discard(&["--yes", "--json"]));
    assert_eq!(report["undated"], 1, "{report}");
    // A message that was examined and kept returns a moment later.
    let list = || json(on(&settings).args(["held", "list", "--kind", "parked", "--json"]));
    eventually_seen("one message is left", list, |list| list["waiting"] == 1);
}
