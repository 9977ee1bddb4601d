//! The entry for trusted publishers.

use delayline::{
    Message, Router, Settings, admin,
    amqp::Session,
    codec::Delay,
    message::Value,
    router::Cause,
    settings::Entry,
    topology::{Binding, Endpoint},
};

use serde_json::json;

use crate::common::{
    Inbox, PATIENCE, app, as_user, eventually, eventually_seen, http, installed, permit, raw, shared_node,
    topology,
};

fn express(settings: &Settings) -> Router {
    let mut settings = settings.clone();
    settings.router.entry = Entry::Express;
    Router::connect(&settings).unwrap()
}

fn message(delay: u64) -> Message {
    Message::after(app("app"), Delay::from_seconds(delay).unwrap(), delay.to_string())
}

#[test]
fn delivers_every_kind_of_delay_once_and_none_early() {
    let settings = installed(10);
    let inbox = Inbox::open(&settings, "app");
    let router = express(&settings);
    let delays = [0, 1, 2, 3, 90, 64, 127, 255];
    for delay in delays {
        assert_eq!(router.publish(message(delay)).unwrap().publishes, 1);
    }
    let arrivals = inbox.collect(delays.len(), PATIENCE);
    let mut bodies: Vec<u64> =
        arrivals.iter().map(|arrival| String::from_utf8_lossy(&arrival.body).parse().unwrap()).collect();
    bodies.sort_unstable();
    let mut expected = delays.to_vec();
    expected.sort_unstable();
    assert_eq!(bodies, expected);
    for arrival in &arrivals {
        assert!(arrival.late_ms() >= 0, "{arrival:?}");
        assert!(!arrival.headers.contains_key("BCC"), "the broker hides the key: {arrival:?}");
        assert!(arrival.routing_key.ends_with(".app"), "{}", arrival.routing_key);
    }
    router.publish(Message::after(app("app"), Delay::from_seconds(255).unwrap(), "the last")).unwrap();
    let more: Vec<_> = inbox.until("the last").into_iter().map(|arrival| arrival.body).collect();
    assert!(more.is_empty(), "nothing comes twice: {more:?}");
}

#[test]
fn a_message_waits_in_the_queue_of_its_first_bit() {
    let settings = installed(1_000);
    let router = express(&settings);
    for delay in [3_600, 5_000, 1 << 27] {
        router.publish(message(delay)).unwrap();
    }
    let mut session = Session::open(&settings.broker).unwrap();
    let mut ready = |level: &str| {
        let depth = session.queue_depth(&format!("delay.level.{level}")).unwrap();
        depth.unwrap().ready
    };
    eventually("three messages wait", || [ready("11"), ready("12"), ready("27")] == [1, 1, 1]);
}

#[test]
fn what_nobody_is_bound_for_is_kept() {
    let settings = installed(10);
    let router = express(&settings);
    for delay in [0, 3] {
        router.publish(message(delay)).unwrap();
    }
    let mut session = Session::open(&settings.broker).unwrap();
    eventually("both are unroutable", || {
        session.queue_depth("delay.unroutable").unwrap().unwrap().ready == 2
    });
}

/// A message without the hidden key matches nothing, whatever its routing key.
#[test]
fn without_the_header_a_message_is_unroutable_and_not_lost() {
    let mut settings = installed(10);
    let mut session = Session::open(&settings.broker).unwrap();
    // The router's topic entry is the set's name: this one leads to express.
    session
        .declare_exchange(&delayline::topology::Exchange {
            name: "plain".into(),
            kind: delayline::topology::ExchangeKind::Fanout,
            arguments: [].into(),
        })
        .unwrap();
    session
        .bind(&Binding {
            source: "plain".into(),
            destination: Endpoint::Exchange("delay.express".into()),
            key: String::new(),
        })
        .unwrap();
    let stands = topology(&settings);
    settings.topology.set = "plain".parse().unwrap();
    Router::connect(&settings).unwrap().publish(message(5)).unwrap();
    eventually("it is unroutable", || session.queue_depth("delay.unroutable").unwrap().unwrap().ready == 1);
    settings.topology.set = "delay".parse().unwrap();
    let findings = admin::verify(&settings, &stands).unwrap().findings;
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert!(
        findings[0].to_string().contains("let messages in")
            || findings[0].to_string().contains("lets messages in"),
        "{}",
        findings[0]
    );
}

#[test]
fn uninstall_closes_both_entries_and_puts_both_back() {
    let settings = installed(1_000);
    let router = express(&settings);
    router.publish(message(3_600).with_header("mine", Value::I64(1))).unwrap();
    let stands = topology(&settings);
    assert!(admin::uninstall(&settings, &stands, false).unwrap().is_err());
    assert_eq!(admin::verify(&settings, &stands).unwrap().findings, []);
    router.publish(message(3_600)).unwrap();
    admin::uninstall(&settings, &stands, true).unwrap().unwrap();
    let error = router.publish(message(1)).unwrap_err();
    assert!(error.to_string().contains("delay.express"), "{error}");
}

/// The first hop does not look at the routing key, so what is wrong with it shows
/// at the second: it is kept all the same, and so is what names no queue.
#[test]
fn a_malformed_key_is_kept_as_anywhere() {
    let settings = installed(1);
    let zeros = |n: usize| vec!["0000"; n].join(".");
    let one = format!("delay.{}.0001", zeros(6));
    let garbage = [
        // Into a level, and from there nowhere.
        (json!(["00"]), "app".to_owned()),
        (json!(["00"]), format!("delay.{}.app", zeros(6))),
        (json!(["01"]), format!("delay.{}", zeros(7))),
        (json!(["dispatch"]), format!("delay.{}.nobody", zeros(7))),
        // Into no level.
        (json!(["28"]), format!("{one}.app")),
        (json!(["0"]), format!("{one}.app")),
        (json!([]), format!("{one}.app")),
    ];
    let count = garbage.len() as u64;
    raw::publish(
        &settings,
        garbage.map(|(hidden, key)| {
            raw::message("delay.express", &key, "garbage", &json!({"headers": {"BCC": hidden}}))
        }),
    );
    // What says the right level is delivered whoever published it.
    let inbox = Inbox::open(&settings, "app");
    let good =
        raw::message("delay.express", &format!("{one}.app"), "good", &json!({"headers": {"BCC": ["00"]}}));
    raw::publish(&settings, [good]);
    assert_eq!(inbox.next(PATIENCE).unwrap().body, b"good");
    let mut session = Session::open(&settings.broker).unwrap();
    eventually_seen(
        "all garbage is unroutable",
        || u64::from(session.queue_depth("delay.unroutable").unwrap().unwrap().ready),
        |&ready| ready == count,
    );
}

/// Whoever may write to the express entry may write to every app; whoever may
/// not is told so, and loses nothing.
#[test]
fn permission_to_write_is_the_only_guard() {
    let settings = installed(1_000);
    let vhost = settings.broker.vhost.clone();
    let user = |name: &str, write: &str| {
        permit(&vhost, name, ["^$", write, "^$"]);
        for exchange in ["delay", "delay.express"] {
            let only_mine =
                json!({"exchange": exchange, "write": "^delay(\\.[01]{4}){7}\\.mine$", "read": "^$"});
            http(shared_node(), "PUT", &format!("topic-permissions/{vhost}/{name}"), &only_mine);
        }
        let mut settings = as_user(&settings, name);
        settings.router.entry = Entry::Express;
        Router::connect(&settings).unwrap()
    };
    let theirs = || Message::after(app("theirs"), Delay::from_seconds(3_600).unwrap(), "x");
    let error = user("express-tenant", "^delay$").publish(theirs()).unwrap_err();
    assert!(matches!(error.cause(), Cause::Rejected { code: 403, .. }), "{error}");
    assert_eq!(error.into_message(), theirs());
    user("express-service", "^delay\\.express$").publish(theirs()).unwrap();
}
