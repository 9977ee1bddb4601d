//! What happens to messages that the broker refuses.

use std::{collections::HashSet, thread};

use delayline_amqp::{AmqpError, Session};
use delayline_client::router::Cause;
use delayline_core::{
    Message,
    codec::Delay,
    message::Properties,
    topology::{Binding, Endpoint, Exchange, ExchangeKind, Queue, Unit},
};
use delayline_settings::Settings;
use serde_json::json;

use crate::common::Counting;
use crate::common::{Inbox, PATIENCE, app, as_user, http, installed, permit, shared_node, vhost};

fn message(key: &str) -> Message {
    Message::after(app(key), Delay::from_seconds(1).unwrap(), key)
}

fn entry_exchange(settings: &Settings) -> Session {
    let mut session = Session::open(&settings.broker).unwrap();
    let exchange = Exchange::new("delay", ExchangeKind::Topic);
    session.declare_exchange(&exchange).unwrap();
    session
}

#[test]
fn without_a_set_the_error_names_it() {
    let router = vhost().build().unwrap().router().connect().unwrap();
    for _ in 0..2 {
        let error = router.publish(message("app")).unwrap_err();
        assert!(matches!(error.cause(), Cause::Rejected { code: 404, .. }), "{error}");
        assert!(error.to_string().contains("delayline install"), "{error}");
        assert_eq!(error.into_message(), message("app"));
    }
}

/// A router whose unit differs from the set's would multiply all delays by a wrong factor.
#[test]
fn the_check_of_the_set_finds_differences_that_the_user_may_see() {
    let settings = installed(10);
    let connect = |settings: &Settings| settings.router().check_set(true).connect();
    let with_unit = |settings: &Settings, unit| {
        let mut other = settings.clone();
        other.topology.unit = unit;
        connect(&other)
    };
    drop(connect(&settings).unwrap());
    let error = with_unit(&settings, Unit::SECOND).unwrap_err();
    assert!(matches!(error, AmqpError::Unit { .. }) && error.to_string().contains("'10'"), "{error}");
    // The number of replicas differs as well.
    let mut one = settings.clone();
    one.topology.set = "one".parse().unwrap();
    one.topology.replicas = std::num::NonZeroU8::new(1);
    crate::common::install(&one);
    drop(connect(&one).unwrap());
    let error = with_unit(&one, Unit::SECOND).unwrap_err();
    assert!(matches!(error, AmqpError::Unit { .. }), "{error}");
    // A user with the rights of an application can see whether the set exists, but not its unit.
    let vhost = settings.broker.vhost.clone();
    permit(&vhost, "compares", ["^$", "^(delay|missing)$", "^$"]);
    let mut theirs = as_user(&settings, "compares");
    drop(with_unit(&theirs, Unit::SECOND).unwrap());
    theirs.topology.set = "missing".parse().unwrap();
    let error = connect(&theirs).unwrap_err();
    assert!(matches!(&error, AmqpError::NoSet { set } if set == "missing"), "{error}");
    // If there is no set, the check creates no queue.
    let nothing = crate::common::vhost().build().unwrap();
    let error = connect(&nothing).unwrap_err();
    assert!(error.to_string().contains("no set `delay` in this vhost; is the set installed?"), "{error}");
    assert_eq!(Session::open(&nothing.broker).unwrap().counts("delay.level.00").unwrap(), None);
}

#[test]
fn a_damaged_set_returns_the_message() {
    let settings = vhost().build().unwrap();
    let _session = entry_exchange(&settings);
    let router = settings.router().connect().unwrap();
    let mut pipeline = router.pipeline();
    let mut outcomes = Vec::new();
    for tag in 0..100 {
        outcomes.extend(pipeline.push(tag, message("app").with_header("n", tag)));
    }
    outcomes.extend(pipeline);
    assert_eq!(outcomes.len(), 100);
    for outcome in outcomes {
        let error = outcome.result.unwrap_err();
        assert!(matches!(error.cause(), Cause::Returned { code: 312, .. }), "{error}");
        assert_eq!(error.message().headers["n"].as_i64(), Some(outcome.tag.into()));
    }
}

#[test]
fn a_full_queue_nacks() {
    // The router tries a delayed message again for 26 s, and waits for the last answer until 30 s.
    // In this time, even a busy broker has refused it at least once.
    let settings = vhost().set("publish_timeout", "30s").build().unwrap();
    let mut session = entry_exchange(&settings);
    let arguments = [
        ("x-queue-type".to_owned(), "classic".into()),
        ("x-max-length".to_owned(), 2.into()),
        ("x-overflow".to_owned(), "reject-publish".into()),
    ];
    session.declare_queue(&Queue::new("full").with_arguments(arguments)).unwrap();
    let destination = Endpoint::Queue("full".into());
    session.bind(&Binding { source: "delay".into(), destination, key: "#".into() }).unwrap();
    let router = settings.router().connect().unwrap();
    let results = thread::scope(|scope| {
        let publishing = [(); 5].map(|()| scope.spawn(|| router.publish(message("app"))));
        publishing.map(|publishing| publishing.join().unwrap())
    });
    let nacked = results
        .iter()
        .filter(|result| matches!(result, Err(error) if *error.cause() == Cause::Nacked))
        .count();
    assert_eq!((nacked, results.iter().filter(|result| result.is_ok()).count()), (3, 2), "{results:?}");
}

#[test]
fn a_forbidden_key_fails_alone() {
    // The broker closes the channel, with all other messages in flight.
    let settings = installed(1);
    let vhost = settings.broker.vhost.clone();
    permit(&vhost, "tenant", ["^$", "^delay$", "^$"]);
    http(
        &shared_node(),
        "PUT",
        &format!("topic-permissions/{vhost}/tenant"),
        &json!({"exchange": "delay", "write": "^delay(\\.[01]{4}){7}\\.mine$", "read": "^$"}),
    );
    let inbox = Inbox::open(&settings, "mine");
    let router = as_user(&settings, "tenant").router().connect().unwrap();
    let mut pipeline = router.pipeline();
    let mut outcomes = Vec::new();
    for number in 0..200 {
        let key = if number % 50 == 25 { "theirs" } else { "mine" };
        let properties = Properties { message_id: Some(number.to_string()), ..Properties::default() };
        outcomes.extend(pipeline.push(key, message(key).with_properties(properties)));
    }
    outcomes.extend(pipeline);
    for outcome in &outcomes {
        match (outcome.tag, &outcome.result) {
            ("mine", Ok(_)) => {}
            ("theirs", Err(error)) => {
                assert!(matches!(error.cause(), Cause::Rejected { code: 403, .. }), "{error}")
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(outcomes.len(), 200);
    // Messages that were in flight at that time may come twice, and the copies must not hide
    // missing messages.
    let mut arrived = HashSet::new();
    while arrived.len() < 196 {
        let arrival = inbox.next(PATIENCE).unwrap_or_else(|| panic!("only {} of 196 came", arrived.len()));
        assert_eq!(arrival.body, b"mine");
        arrived.insert(arrival.id);
    }
}

#[test]
fn another_users_id_fails_alone() {
    let settings = installed(1);
    let router = settings.router().connect().unwrap();
    let properties = Properties { user_id: Some("somebody".into()), ..Properties::default() };
    let error = router.publish(message("app").with_properties(properties)).unwrap_err();
    assert!(matches!(error.cause(), Cause::Rejected { code: 406, .. }), "{error}");
    router.publish(message("app")).unwrap();
}
