//! Queues that hold messages: looking changes nothing, and no message is lost.

use std::{
    collections::HashSet,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use delayline_admin::{
    Kept,
    drain::{Decision, Drain, DrainError, Drained, Outgoing, Sample},
};
use delayline_amqp::{
    Delivery, Session,
    broker::{Credentials, Secret},
};
use delayline_core::{
    message::{Properties, Value},
    topology::{Argument, Queue, UNREACHABLE_DELIVERY_LIMIT},
};
use delayline_settings::Settings;
use serde_json::{Value as Json, json};

use crate::common::Counting;
use crate::common::{
    eventually, eventually_seen, http, installed,
    keeping::{self, number},
    raw, shared_node, topology, vhost,
};

fn queue(name: &str, arguments: &[(&str, Argument)]) -> Queue {
    let kind = [("x-queue-type", Argument::from("quorum"))];
    let arguments = kind.iter().chain(arguments).map(|(name, value)| ((*name).to_owned(), value.clone()));
    Queue::new(name).with_arguments(arguments)
}

fn kept() -> Queue {
    queue("kept", &[("x-delivery-limit", UNREACHABLE_DELIVERY_LIMIT.into())])
}

/// A vhost with a queue `kept` that holds messages with the bodies 0, 1, 2, …
fn holding(count: usize) -> (Settings, Session) {
    let settings = vhost().build().unwrap();
    let mut session = Session::open(&settings.broker).unwrap();
    session.declare_queue(&kept()).unwrap();
    raw::publish(&settings, (0..count).map(|n| raw::message("", "kept", n, &json!({}))));
    eventually("all messages are in the queue", || ready(&mut session, "kept") as usize == count);
    (settings, session)
}

fn ready(session: &mut Session, queue: &str) -> u32 {
    session.counts(queue).unwrap().unwrap().ready
}

/// The numbers of the messages in a queue, in order.
fn look(settings: &Settings, queue: &Queue) -> Vec<usize> {
    keeping::look(Drain::new(settings, queue)).1
}

#[test]
fn looking_takes_nothing_away_however_often() {
    // More than two pages, and more looks than the 20 deliveries that RabbitMQ 4 allows.
    let (settings, mut session) = holding(2_500);
    let all: Vec<_> = (0..2_500).collect();
    for _ in 0..3 {
        assert_eq!(look(&settings, &kept()), all);
        // The next command finds all of them.
        assert_eq!(ready(&mut session, "kept"), 2_500);
    }
    let mut progress = Vec::new();
    for _ in 0..25 {
        let report = Drain::new(&settings, &kept())
            .at_most(10)
            .run(|_| Decision::Keep, |at| progress.push(at))
            .unwrap();
        assert_eq!((report.examined, report.unexamined()), (10, 2_490));
        assert_eq!(ready(&mut session, "kept"), 2_500);
    }
    assert!(progress.iter().all(|at| at.total == 10) && progress.last().unwrap().settled == 10);
}

#[test]
fn selected_messages_are_sent_on_and_others_stay_in_order() {
    let (settings, mut session) = holding(2_500);
    session.declare_queue(&queue("target", &[])).unwrap();
    let report = Drain::new(&settings, &kept())
        .run(
            |delivery| match number(delivery) % 5 {
                0 => Decision::Discard,
                1 | 2 => Decision::Send(Outgoing::of(delivery, "", "target").into()),
                _ => Decision::Keep,
            },
            |_| {},
        )
        .unwrap();
    let expected = Drained {
        waiting: 2_500,
        examined: 2_500,
        kept: 1_000,
        discarded: 500,
        sent: 1_000,
        ..Drained::default()
    };
    assert_eq!(report, expected);
    eventually("the remaining messages are back", || ready(&mut session, "kept") == 1_000);
    let stayed: Vec<_> = (0..2_500).filter(|n| n % 5 > 2).collect();
    assert_eq!(look(&settings, &kept()), stayed);
    let sent: HashSet<_> = look(&settings, &queue_unlimited("target")).into_iter().collect();
    assert_eq!(sent, (0..2_500).filter(|n| matches!(n % 5, 1 | 2)).collect());
}

/// A queue without a delivery limit in its arguments.
fn queue_unlimited(name: &str) -> Queue {
    Queue::new(name)
}

#[test]
fn messages_that_come_back_are_not_sent_in_circles() {
    let (settings, mut session) = holding(300);
    let mut origins = 0;
    let report = Drain::new(&settings, &kept())
        .run(
            |delivery| {
                origins += usize::from(delivery.headers.contains_key("delayline-routing-key"));
                Decision::Send(Outgoing::of(delivery, "", "kept").into())
            },
            |_| {},
        )
        .unwrap();
    assert_eq!((report.sent, report.examined, origins), (300, 300, 0));
    // There are more only if the broker lost acknowledgements at the end of the run.
    eventually("all messages came back", || ready(&mut session, "kept") >= 300);
    let mut samples = Vec::new();
    let keep = |delivery: &Delivery| {
        samples.push(Sample::new(delivery, 1));
        Decision::Keep
    };
    Drain::new(&settings, &kept()).run(keep, |_| {}).unwrap();
    let again =
        |sample: &&Sample| sample.headers.get("delayline-routing-key").is_some_and(|key| key == "kept");
    assert_eq!(samples.iter().filter(again).count(), 300);
    let last = samples.last().unwrap();
    assert_eq!((last.body.as_deref(), last.truncated, last.bytes), (Some("2"), true, 3));
    assert!(again(&last));
}

#[test]
fn refused_messages_stay_and_others_are_sent_on() {
    let (settings, mut session) = holding(50);
    session.declare_queue(&queue("target", &[])).unwrap();
    let decide = |delivery: &Delivery| {
        let mut outgoing = Outgoing::of(delivery, "", "target");
        match number(delivery) {
            // In order: a message that is returned; one that cannot be written; one that closes the
            // channel with all messages in flight; one with a routing key that is too long; and one
            // in another user's name, which is sent without it.
            5 => outgoing.routing_key = "nowhere".into(),
            15 => outgoing.headers = [("x".repeat(256), Value::Void)].into(),
            25 => outgoing.exchange = "no such exchange".into(),
            35 => outgoing.routing_key = "x".repeat(256),
            45 => {
                outgoing.properties = Properties { user_id: Some("somebody".into()), ..Properties::default() }
            }
            _ => {}
        }
        Decision::Send(outgoing.into())
    };
    let report = Drain::new(&settings, &kept()).run(decide, |_| {}).unwrap();
    assert_eq!((report.sent, report.refused, &report.failure), (46, 4, &None), "{report:?}");
    eventually("the refused messages are back", || ready(&mut session, "kept") == 4);
    assert_eq!(look(&settings, &kept()), [5, 15, 25, 35]);
    let arrived: HashSet<_> = look(&settings, &queue_unlimited("target")).into_iter().collect();
    assert_eq!(arrived.len(), 46, "each message arrives at least once");

    // If no message is accepted, the run ends instead of trying all of them.
    let mut refused = 0;
    let report = Drain::new(&settings, &kept())
        .run(
            |delivery| {
                refused += 1;
                Decision::Send(Outgoing::of(delivery, "", "nowhere").into())
            },
            |_| {},
        )
        .unwrap();
    assert_eq!((report.sent, report.refused, refused), (0, 4, 4));
    assert!(report.refusal.unwrap().contains("routes it to no queue"));
    eventually("the messages are back", || ready(&mut session, "kept") == 4);
}

#[test]
fn a_run_ends_if_every_message_is_refused_and_counts_all_of_them() {
    let (settings, mut session) = holding(30);
    let report = Drain::new(&settings, &kept())
        .run(|delivery| Decision::Send(Outgoing::of(delivery, "", "nowhere").into()), |_| {})
        .unwrap();
    assert!(report.failure.as_ref().unwrap().contains("10 messages in a row"), "{report:?}");
    assert!(report.refused >= 10 && report.sent == 0, "{report:?}");
    // Messages that were sent and not answered are in doubt, and all of them are counted.
    assert_eq!(report.refused + report.in_doubt, report.examined, "{report:?}");
    eventually("the messages are back", || ready(&mut session, "kept") == 30);
}

#[test]
fn messages_in_flight_are_in_doubt_when_the_connection_is_lost() {
    const LAST: usize = 50;
    let (mut settings, mut session) = holding(100);
    // No login works later, so the run must not try for long.
    settings.router.publish_timeout = Duration::from_secs(5);
    session.declare_queue(&queue("target", &[])).unwrap();
    // A user that can be locked out.
    let (vhost, node) = (settings.broker.vhost.clone(), &shared_node());
    let user = format!("sender-of-{vhost}");
    let password = |password: &str| {
        http(node, "PUT", &format!("users/{user}"), &json!({ "password": password, "tags": "" }));
    };
    password("first");
    let all = json!({ "configure": ".*", "write": ".*", "read": ".*" });
    http(node, "PUT", &format!("permissions/{vhost}/{user}"), &all);
    settings.broker.credentials =
        Credentials::Plain { username: user.clone(), password: Secret::new("first") };
    let cut_off = || {
        password("second");
        let publisher = |all: &Json| -> Option<String> {
            let ours = |one: &&Json| {
                let purpose = one["client_properties"]["information"].as_str().unwrap_or_default();
                one["user"] == user.as_str() && purpose.contains("(router)")
            };
            let one = all.as_array()?.iter().find(ours)?;
            Some(one["name"].as_str()?.replace(' ', "%20").replace('>', "%3E"))
        };
        let look = || publisher(&http(node, "GET", "connections", &json!(null)));
        let name = eventually_seen("the API lists the publisher", look, Option::is_some).unwrap();
        http(node, "DELETE", &format!("connections/{name}"), &json!(null));
    };
    let report = Drain::new(&settings, &kept())
        .run(
            |delivery| {
                // The message is sent into a closed connection, and no other connection can be
                // opened.
                if number(delivery) == LAST {
                    cut_off();
                }
                Decision::Send(Outgoing::of(delivery, "", "target").into())
            },
            |_| {},
        )
        .unwrap();
    assert!(report.failure.is_some() && report.in_doubt > 0, "{report:?}");
    assert_eq!(report.sent + report.in_doubt, report.examined, "{report:?}");
    eventually("the messages that were not confirmed are back", || {
        u64::from(ready(&mut session, "kept")) == 100 - report.sent
    });
}

#[test]
fn a_look_that_ends_early_reports_its_failure() {
    let settings = installed(1_000);
    raw::publish(&settings, (0..2_500).map(|n| raw::message("delay", "garbage", n, &json!({}))));
    let mut session = Session::open(&settings.broker).unwrap();
    eventually("all messages are unroutable", || ready(&mut session, "delay.unroutable") == 2_500);
    let mut gone = false;
    let report = Kept::Unroutable
        .list(&settings, &topology(&settings), 10_000, |_| {
            if !std::mem::replace(&mut gone, true) {
                session.delete_queue("delay.unroutable").unwrap();
            }
        })
        .unwrap();
    assert!(report.failure.is_some() && report.unchecked.is_empty(), "{report:?}");
    assert!(report.examined < 2_500, "{report:?}");
}

#[test]
fn an_interrupted_run_goes_on_where_it_was() {
    let (settings, mut session) = holding(2_000);
    session.declare_queue(&queue("target", &[])).unwrap();
    let stop = AtomicBool::new(false);
    let mut seen = 0;
    let report = Drain::new(&settings, &kept())
        .until(&stop)
        .run(
            |delivery| {
                seen += 1;
                stop.store(seen == 700, Ordering::Relaxed);
                Decision::Send(Outgoing::of(delivery, "", "target").into())
            },
            |_| {},
        )
        .unwrap();
    assert!(report.interrupted && report.in_doubt == 0, "{report:?}");
    assert_eq!((report.sent, report.examined), (700, 700));
    eventually("the remaining messages are back", || ready(&mut session, "kept") == 1_300);
    let send = |delivery: &Delivery| Decision::Send(Outgoing::of(delivery, "", "target").into());
    assert_eq!(Drain::new(&settings, &kept()).run(send, |_| {}).unwrap().sent, 1_300);
    assert_eq!(look(&settings, &queue_unlimited("target")), (0..2_000).collect::<Vec<_>>());
}

#[test]
fn a_queue_that_counts_looks_is_not_touched() {
    let settings = vhost().build().unwrap();
    let mut session = Session::open(&settings.broker).unwrap();
    let error = |settings: &Settings, queue: &Queue| {
        Drain::new(settings, queue).run(|_| panic!("the queue was read"), |_| {}).unwrap_err()
    };
    assert!(matches!(error(&settings, &kept()), DrainError::Missing { .. }));
    session.declare_queue(&queue("kept", &[("x-delivery-limit", 3.into())])).unwrap();
    raw::publish(&settings, [raw::message("", "kept", 0, &json!({}))]);
    eventually("the API shows the queue", || {
        matches!(error(&settings, &kept()), DrainError::DeliveryLimit { limit: 3, .. })
    });
    // Without the management API, the limit is unknown.
    let mut blind = settings.clone();
    blind.management = None;
    assert!(matches!(error(&blind, &kept()), DrainError::UnknownLimit { .. }));
    // The same limit by policy.
    session.delete_queue("kept").unwrap();
    session.declare_queue(&kept()).unwrap();
    raw::publish(&settings, [raw::message("", "kept", 0, &json!({}))]);
    let policy = json!({"pattern": "^kept$", "definition": {"delivery-limit": 5}, "apply-to": "queues"});
    http(&shared_node(), "PUT", &format!("policies/{}/five", settings.broker.vhost), &policy);
    eventually("the policy applies", || {
        let result = Drain::new(&settings, &kept()).at_most(0).run(|_| Decision::Keep, |_| {});
        matches!(result, Err(DrainError::DeliveryLimit { limit: 5, .. }))
    });
    assert_eq!(ready(&mut session, "kept"), 1);
}
