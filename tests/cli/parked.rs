//! What was given up.

use delayline_amqp::Session;
use delayline_core::{
    Message,
    codec::Delay,
    message::{Headers, Properties, Value},
    topology::{Binding, Endpoint, Exchange, ExchangeKind},
};
use delayline_settings::Settings;
use jiff::Timestamp;
use predicates::{prelude::PredicateBooleanExt, str::contains};

use crate::{
    common::{Inbox, PATIENCE, app, eventually, installed},
    json, on,
};

fn waiting(settings: &Settings) -> u32 {
    Session::open(&settings.broker).unwrap().queue_depth("delay.parked").unwrap().unwrap().ready
}

/// Parks messages as the service does, with ids from 0.
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
    on(&settings).args(["parked", "list"]).assert().success().stdout(contains("nothing is parked"));
    park(
        &settings,
        &[
            ("billing", "attempts", 1),
            ("billing", "attempts", 50),
            ("billing", "expired", 1),
            ("mail", "age", 1),
        ],
    );
    eventually("all are parked", || waiting(&settings) == 4);
    on(&settings)
        .args(["parked", "list"])
        .assert()
        .success()
        .stdout(contains("4 messages parked").and(contains("attempts")).and(contains("50h")));
    let report = json(on(&settings).args(["parked", "list", "--json"]));
    assert_eq!((&report["waiting"], report["groups"].as_array().unwrap().len()), (&4.into(), 3));
    on(&settings)
        .args(["parked", "show", "--app", "mail"])
        .assert()
        .success()
        .stdout(contains("parked because of `age`").and(contains("header       mine = \"kept\"")));
    on(&settings).args(["parked", "show", "--app", "nobody"]).assert().code(1);
    assert_eq!(waiting(&settings), 4, "looking takes nothing away");

    on(&settings).args(["parked", "replay"]).assert().code(2).stderr(contains("--all"));
    let inbox = Inbox::open(&settings, "billing");
    on(&settings)
        .args(["parked", "replay", "--app", "billing", "--reason", "attempts", "--older-than", "1d"])
        .assert()
        .success()
        .stdout(contains("1 message sent on, 3 kept"));
    let arrival = inbox.next(PATIENCE).unwrap();
    assert_eq!((arrival.id.as_str(), arrival.body.as_slice()), ("1", &b"body"[..]));
    // It begins anew, but still knows where it came from at first.
    let names: Vec<_> = arrival.headers.keys().filter(|name| !name.starts_with("x-")).collect();
    assert_eq!(names, ["delayline-exchange", "delayline-routing-key", "mine"]);
    assert_eq!(arrival.headers["delayline-exchange"], Value::from("orders"));

    on(&settings).args(["parked", "discard"]).assert().code(2).stderr(contains("--all"));
    on(&settings)
        .args(["parked", "discard", "--reason", "rejected", "--app", "mail"])
        .assert()
        .success()
        .stdout(contains("1 message discarded, 2 kept"));
    on(&settings).args(["parked", "discard", "--all"]).assert().success();
    eventually("nothing is left", || waiting(&settings) == 0);
}
