//! Recalling messages before they are due.

mod journal;
mod registered;
mod sweeping;

use std::{
    collections::BTreeSet,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use delayline_admin as admin;
use delayline_amqp::Session;
use delayline_client::{
    Router,
    recall::{Answer, MARGIN, RecallError, Recaller, ReplaceError},
    router::Receipt,
};
use delayline_core::{
    Message,
    codec::{Delay, MessageId, RoutingKey},
    message::Handle,
    topology::{Binding, Endpoint, Names, Object, RecallSettings},
};
use delayline_settings::Settings;
use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use crate::common::Counting;
use crate::{
    common::{
        self, Inbox, PATIENCE, app, eventually, eventually_seen, installed, mortal_node, raw, revive,
        topology,
    },
    proxy::{Valve, proxy},
};

/// A delay in seconds in which a busy machine finishes a test's work before the message is due,
/// with [`MARGIN`] to spare.
const GOOD_TIME: u64 = 32;

/// Declares everything that recalls need, in front of the queue of an [`Inbox`].
fn offer(settings: &Settings, key: &str) {
    let mut session = Session::open(&settings.broker).unwrap();
    let to = Endpoint::Queue(format!("in.{key}"));
    for object in topology(settings).recall(&app(key), to, RecallSettings::default()) {
        match object {
            Object::Exchange(exchange) => session.declare_exchange(&exchange).unwrap(),
            Object::Queue(queue) => session.declare_queue(&queue).unwrap(),
            Object::Binding(binding) => session.bind(&binding).unwrap(),
        }
    }
}

/// An installed set with an application whose messages can be recalled.
fn offered() -> (Settings, Inbox, Router, Recaller) {
    let settings = installed(1_000);
    let inbox = Inbox::open(&settings, "billing");
    offer(&settings, "billing");
    let router = settings.router().connect().unwrap();
    let recaller = recaller(&settings);
    (settings, inbox, router, recaller)
}

fn recaller(settings: &Settings) -> Recaller {
    Recaller::connect(settings.target()).unwrap()
}

fn message(id: &str, seconds: u64) -> Message {
    Message::after(app("billing"), Delay::from_seconds(seconds).unwrap(), id).with_id(id.parse().unwrap())
}

fn send(router: &Router, message: Message) -> Receipt {
    router.publish(message).unwrap()
}

fn handle(receipt: &Receipt) -> Handle {
    receipt.handle.clone().unwrap()
}

/// The number of recalled messages.
fn recalled(settings: &Settings) -> u32 {
    depth(settings, "delay.recalled.billing")
}

fn depth(settings: &Settings, queue: &str) -> u32 {
    Session::open(&settings.broker).unwrap().counts(queue).unwrap().unwrap().ready
}

/// The keys of the bindings of the exchange for recalls.
fn bound(settings: &Settings) -> Vec<String> {
    let path = format!("exchanges/{}/delay.recall.billing/bindings/source", settings.broker.vhost);
    let bindings = common::http(&common::shared_node(), "GET", &path, &json!(null));
    let bindings = bindings.as_array().unwrap().iter();
    let mut keys: Vec<_> = bindings.map(|it| it["routing_key"].as_str().unwrap().to_owned()).collect();
    keys.sort();
    keys
}

/// The bodies of `count` messages, and of all others that arrive before one that is sent last.
fn bodies(inbox: &Inbox, router: &Router, count: usize) -> BTreeSet<String> {
    let arrivals = inbox.exactly(count, |last| {
        send(router, Message::after(app("billing"), Delay::ZERO, last));
    });
    arrivals.iter().map(|arrival| String::from_utf8(arrival.body.clone()).unwrap()).collect()
}

#[test]
fn recalled_messages_are_put_aside_and_all_others_arrive() {
    let (settings, inbox, router, _) = offered();
    let handles: Vec<_> = (0..400)
        .map(|number| {
            let receipt = send(&router, message(&format!("m-{number}"), 8 + number % 8));
            assert_eq!(receipt.handle.as_ref().and_then(Handle::due), Some(receipt.due));
            handle(&receipt)
        })
        .collect();
    // Every second message is recalled, from several connections at once.
    let answers: Vec<_> = std::thread::scope(|scope| {
        let parts = handles.chunks(100).map(|part| {
            let settings = &settings;
            scope.spawn(move || {
                let recaller = recaller(settings);
                let every_second = part.iter().step_by(2);
                every_second.map(|it| (it.clone(), recaller.recall(it).unwrap())).collect::<Vec<_>>()
            })
        });
        let parts: Vec<_> = parts.collect();
        parts.into_iter().flat_map(|part| part.join().unwrap()).collect()
    });
    let in_time = answers.iter().filter(|(_, answer)| *answer == Answer::InTime).count();
    println!("{in_time} of {} recalls were in time", answers.len());
    let mut arrivals = Vec::new();
    eventually("each message has arrived or is recalled", || {
        arrivals.extend(std::iter::from_fn(|| inbox.next(Duration::ZERO)));
        recalled(&settings) as usize + arrivals.len() == 400
    });
    let arrived: BTreeSet<_> = arrivals.iter().map(|arrival| arrival.routing_key.clone()).collect();
    for (handle, answer) in &answers {
        let came = arrived.contains(&handle.routing_key().encode());
        match answer {
            Answer::InTime => assert!(!came, "{handle} was recalled in time, and delivered"),
            Answer::TooLate => assert!(came, "{handle} was too late, and not delivered"),
            _ => {}
        }
    }
    for arrival in &arrivals {
        assert!(arrival.late_ms() >= 0, "{arrival:?}");
    }
    // No message is in both places or in neither.
    let keeper = recaller(&settings);
    for handle in handles.iter().take(8) {
        let came = arrived.contains(&handle.routing_key().encode());
        assert_ne!(keeper.is_recalled(handle).unwrap(), came, "{handle}");
    }
}

#[test]
fn recalling_twice_is_no_error_and_undoing_lets_the_message_arrive() {
    let (settings, inbox, router, recaller) = offered();
    let gone = handle(&send(&router, message("gone", GOOD_TIME)));
    let back = handle(&send(&router, message("back", GOOD_TIME)));
    for handle in [&gone, &back, &gone, &back] {
        assert_eq!(recaller.recall(handle).unwrap(), Answer::InTime);
    }
    assert_eq!(bound(&settings), [&back, &gone].map(|it| it.routing_key().encode()));
    assert_eq!(recaller.undo(&back).unwrap(), Answer::InTime);
    // The recall no longer exists, and that is no error.
    assert_eq!(recaller.undo(&back).unwrap(), Answer::InTime);
    assert_eq!(bodies(&inbox, &router, 1), ["back".to_owned()].into());
    eventually("the other message was recalled", || recalled(&settings) == 1);
    assert!(recaller.is_recalled(&gone).unwrap() && !recaller.is_recalled(&back).unwrap());
    // Reading the queue has not removed a message.
    eventually("the message is still there", || recalled(&settings) == 1);
}

#[test]
fn a_late_recall_changes_nothing_and_an_uncertain_one_is_seen_afterwards() {
    let (settings, inbox, router, recaller) = offered();
    let late = handle(&send(&router, message("late", 0)));
    assert_eq!(inbox.next(PATIENCE).unwrap().body, b"late");
    assert_eq!(recaller.recall(&late).unwrap(), Answer::TooLate);
    assert_eq!(recaller.undo(&late).unwrap(), Answer::TooLate);
    assert_eq!(bound(&settings), Vec::<String>::new());

    // Without a due time, the answer is uncertain, although the recall is in time here.
    let known = handle(&send(&router, message("unknown", GOOD_TIME)));
    let unknown = Handle::new(known.routing_key().clone(), None).unwrap();
    assert_eq!(recaller.recall(&unknown).unwrap(), Answer::Uncertain);
    // This handle's due time is within the margin, but it is wrong.
    let other = handle(&send(&router, message("soon", GOOD_TIME)));
    let soon = Timestamp::now().checked_add(SignedDuration::try_from(MARGIN / 2).unwrap()).unwrap();
    assert_eq!(recaller.recall(&other.clone().with_due(soon)).unwrap(), Answer::Uncertain);
    assert!(!recaller.is_recalled(&unknown).unwrap());
    eventually("both messages were recalled", || recalled(&settings) == 2);
    assert!(recaller.is_recalled(&unknown).unwrap() && recaller.is_recalled(&other).unwrap());
    assert_eq!(bodies(&inbox, &router, 0), BTreeSet::new());
}

#[test]
fn a_try_whose_answer_was_lost_is_never_called_too_late_afterwards() {
    let (settings, inbox, router, direct) = offered();
    // A busy broker may need several tries to answer within five seconds.
    let [gone, back, never] =
        ["gone", "back", "never"].map(|id| handle(&send(&router, message(id, 2 * GOOD_TIME))));
    assert_eq!(direct.recall(&back).unwrap(), Answer::InTime);
    let valve = Arc::new(Valve::default());
    let hold = |held| valve.hold_from_broker.store(held, Ordering::SeqCst);
    let mut through = settings.clone();
    through.broker.request_timeout = Duration::from_secs(5);
    through.broker.port = proxy(settings.broker.port, &valve);
    let recaller = recaller(&through);
    // The broker executes both changes, but its answers are lost.
    for change in [
        |recaller: &Recaller, [gone, _]: [&Handle; 2]| recaller.recall(gone),
        |recaller: &Recaller, [_, back]: [&Handle; 2]| recaller.undo(back),
    ] {
        // The recaller opens a new session and channel after the loss.
        eventually("the recaller is connected", || recaller.is_recalled(&never).is_ok());
        hold(true);
        let lost = change(&recaller, [&gone, &back]).unwrap_err();
        assert!(matches!(lost, RecallError::Amqp(_)), "{lost}");
        hold(false);
    }
    assert_eq!(bodies(&inbox, &router, 2), ["back", "never"].map(str::to_owned).into());
    eventually("the other message was recalled", || recalled(&settings) == 1);
    assert_eq!(recaller.recall(&gone).unwrap(), Answer::Uncertain);
    assert_eq!(recaller.undo(&back).unwrap(), Answer::Uncertain);
    assert_eq!(recaller.recall(&never).unwrap(), Answer::TooLate);
    assert!(recaller.is_recalled(&gone).unwrap() && !recaller.is_recalled(&back).unwrap());
    // A recaller that has not tried before answers that it is too late.
    assert_eq!(direct.recall(&gone).unwrap(), Answer::TooLate);
    let bound = |handle| admin::is_recall_bound(&settings, &topology(&settings), handle).unwrap();
    assert_eq!([&gone, &back, &never].map(bound), [true, false, false]);
}

#[test]
fn one_id_at_one_delay_is_one_handle() {
    let (settings, inbox, router, recaller) = offered();
    let [first, again] = ["first", "again"].map(|body| {
        let mut message = message("same", GOOD_TIME);
        message.body = body.into();
        handle(&send(&router, message))
    });
    let other = handle(&send(&router, message("same", GOOD_TIME - 1)));
    assert_eq!(first.routing_key(), again.routing_key());
    assert_eq!(recaller.recall(&first).unwrap(), Answer::InTime);
    // A message with another delay has another handle.
    assert_ne!(first.routing_key(), other.routing_key());
    assert_eq!(bodies(&inbox, &router, 1), ["same".to_owned()].into());
    eventually("both messages were recalled", || recalled(&settings) == 2);
    // A message that is published later with the same routing key is recalled as well.
    send(&router, message("same", GOOD_TIME));
    eventually("the later message was recalled, too", || recalled(&settings) == 3);
}

#[test]
fn the_longest_key_is_recalled_like_any_other() {
    let settings = installed(1_000);
    let key = "a".repeat(150);
    let inbox = Inbox::open(&settings, &key);
    offer(&settings, &key);
    let router = settings.router().connect().unwrap();
    let message = |id: String, body: &str| {
        Message::after(app(&key), Delay::from_seconds(GOOD_TIME).unwrap(), body)
            .with_id(MessageId::new(id).unwrap())
    };
    let gone = router.publish(message("x".repeat(61), "gone")).unwrap().handle.unwrap();
    router.publish(message("y".repeat(61), "kept")).unwrap();
    assert_eq!(gone.routing_key().encode().len(), RoutingKey::MAX_BYTES);
    assert_eq!(recaller(&settings).recall(&gone).unwrap(), Answer::InTime);
    assert_eq!(inbox.next(PATIENCE).unwrap().body, b"kept");
    eventually("the message was recalled", || depth(&settings, &format!("delay.recalled.{key}")) == 1);
    let refused = router.publish(message("x".repeat(62), "too long")).unwrap_err();
    assert!(!refused.maybe_delivered() && refused.to_string().contains("61 bytes or fewer"), "{refused}");
}

#[test]
fn an_application_without_recall_gets_nothing_with_an_id_and_nothing_is_lost() {
    let settings = installed(1_000);
    let inbox = Inbox::open(&settings, "billing");
    let router = settings.router().connect().unwrap();
    let receipt = send(&router, message("early", 1));
    let recaller = recaller(&settings);
    let later = Handle::new(handle(&receipt).routing_key().clone(), None).unwrap();
    let refused = recaller.recall(&later).unwrap_err();
    assert!(matches!(&refused, RecallError::NotOffered { .. }), "{refused:?}");
    assert!(refused.to_string().contains("register it again with --recall"), "{refused}");
    assert!(matches!(recaller.is_recalled(&later), Err(RecallError::NotOffered { .. })));
    eventually("the message is kept", || depth(&settings, "delay.unroutable") == 1);
    assert_eq!(bodies(&inbox, &router, 0), BTreeSet::new());
    // The same connection works once recalls are offered.
    offer(&settings, "billing");
    let receipt = send(&router, message("now", GOOD_TIME));
    assert_eq!(recaller.recall(&handle(&receipt)).unwrap(), Answer::InTime);
    eventually("the message was recalled", || recalled(&settings) == 1);
}

#[test]
fn recalls_survive_a_restart_of_the_broker() {
    let mut node = mortal_node();
    let settings = node.settings().set("unit_ms", "1000").build().unwrap();
    common::install(&settings);
    let mut inbox = Inbox::open(&settings, "billing");
    offer(&settings, "billing");
    // Queues that were declared shortly before a kill return without a leader (3.10, 4.0).
    node.write_down_queues().unwrap();
    let router = settings.router().connect().unwrap();
    let recaller = recaller(&settings);
    for number in 0..40 {
        let handle = handle(&send(&router, message(&format!("m-{number}"), GOOD_TIME)));
        if number % 2 == 0 {
            assert_eq!(recaller.recall(&handle).unwrap(), Answer::InTime);
        }
    }
    // Otherwise, bindings that were created shortly before the kill are lost (seen on 3.10).
    node.write_down_queues().unwrap();
    node.kill();
    revive(&mut node);
    inbox.reopen();
    // Some messages may come twice after a fault.
    let mut arrived = BTreeSet::new();
    eventually_seen(
        "half of the messages arrive, and half are recalled",
        || {
            let bodies = std::iter::from_fn(|| inbox.next(Duration::ZERO)).map(|arrival| arrival.body);
            arrived.extend(bodies.map(|body| String::from_utf8(body).unwrap()));
            (arrived.len(), recalled(&settings))
        },
        |&(arrived, recalled)| arrived >= 20 && recalled >= 20,
    );
    let odd: BTreeSet<_> = (0..40).filter(|number| number % 2 == 1).map(|it| format!("m-{it}")).collect();
    assert_eq!(arrived, odd);
    // The recaller replaces the connection that was lost with the node.
    let handle = handle(&send(&router, message("after", GOOD_TIME)));
    let again = recaller.recall(&handle).or_else(|_| recaller.recall(&handle)).unwrap();
    assert_eq!(again, Answer::InTime);
}

#[test]
fn recalls_hold_while_a_broker_starts() {
    const MESSAGES: usize = 60;
    /// As many bindings as a slow machine can create in time.
    const OTHERS: usize = 4_000;
    let mut node = mortal_node();
    let settings = node.settings().set("unit_ms", "1000").build().unwrap();
    common::install(&settings);
    let mut inbox = Inbox::open(&settings, "billing");
    offer(&settings, "billing");
    let router = settings.router().connect().unwrap();
    let recaller = recaller(&settings);
    // The delay has one bit, so a message is due when it leaves its only level. The due times are
    // spread over the time that a node takes to start.
    let mut due = None;
    for number in 0..MESSAGES {
        let handle = handle(&send(&router, message(&format!("m-{number}"), 64)));
        assert_eq!(recaller.recall(&handle).unwrap(), Answer::InTime);
        due = due.or(handle.due());
        std::thread::sleep(Duration::from_millis(300));
    }
    let first_due = due.unwrap();
    // Up to 4.0, a starting node processes its bindings in the order of exchanges and keys, while
    // its levels deliver messages already. These bindings come before the others.
    let binding = |number: usize| {
        let key = RoutingKey::new(Delay::from_seconds(1).unwrap(), app("billing"));
        let key = key.with_id(format!("o-{number}").parse().unwrap()).unwrap();
        let destination = Endpoint::Queue("delay.recalled.billing".into());
        Binding { source: "delay.recall.billing".into(), destination, key: key.to_string() }
    };
    std::thread::scope(|scope| {
        for part in 0..4 {
            let (settings, binding) = (&settings, &binding);
            scope.spawn(move || {
                let mut session = Session::open(&settings.broker).unwrap();
                for number in (part..OTHERS).step_by(4) {
                    if Timestamp::now() > first_due - SignedDuration::from_secs(10) {
                        break;
                    }
                    session.bind(&binding(number)).unwrap();
                }
            });
        }
    });
    node.write_down_queues().unwrap();
    let left = first_due.duration_since(Timestamp::now()) - SignedDuration::from_secs(2);
    std::thread::sleep(left.try_into().unwrap_or_default());
    node.kill();
    revive(&mut node);
    inbox.reopen();
    eventually_seen(
        "all messages are recalled",
        || {
            let delivered = inbox.next(Duration::ZERO);
            assert!(delivered.is_none(), "delivered although it was recalled: {delivered:?}");
            recalled(&settings)
        },
        |&recalled| recalled >= MESSAGES as u32,
    );
}

#[test]
fn a_message_takes_the_place_of_another_one() {
    let (settings, inbox, router, recaller) = offered();
    let old = handle(&send(&router, message("old", GOOD_TIME)));
    let replaced = recaller.replace(&router, &old, message("new", GOOD_TIME - 2)).unwrap();
    assert_eq!(replaced.recalled, Answer::InTime);
    // A handle can be replaced only once; otherwise, two successors would wait.
    let refused = recaller.replace(&router, &old, message("newer", GOOD_TIME)).unwrap_err();
    assert!(matches!(&refused, ReplaceError::Recalled { handle } if *handle == old), "{refused:?}");
    // Replacements with the id and delay of the old message, or of an earlier recalled one, still
    // arrive.
    let first = handle(&send(&router, message("same", GOOD_TIME)));
    let second = recaller.replace(&router, &first, message("same", GOOD_TIME - 1)).unwrap();
    let third = recaller.replace(&router, &handle(&second.receipt), message("same", GOOD_TIME)).unwrap();
    let third = handle(&third.receipt);
    assert!(third.id().renews(first.id()) && third.routing_key() != first.routing_key(), "{third}");
    let again = recaller.replace(&router, &third, message("same", GOOD_TIME)).unwrap();
    assert_eq!(again.recalled, Answer::InTime);
    // If the new message is not confirmed, the old one is not recalled.
    let kept = handle(&send(&router, message("kept", GOOD_TIME)));
    let mut impossible = message(&"x".repeat(62), GOOD_TIME);
    impossible.app = app(&"a".repeat(150));
    let refused = recaller.replace(&router, &kept, impossible).unwrap_err();
    assert!(matches!(refused, ReplaceError::Publish { .. }), "{refused:?}");
    // If the old message visibly cannot be recalled, the new one is not sent.
    let stranger = |app: &str| {
        let key = format!("delay.0000.0000.0000.0000.0000.0000.1010.{app}.~.x");
        key.parse::<Handle>().unwrap()
    };
    let refused = recaller.replace(&router, &stranger("nobody"), message("none", GOOD_TIME)).unwrap_err();
    assert!(matches!(refused, ReplaceError::Check(RecallError::NotOffered { .. })), "{refused:?}");
    // If that is discovered only afterwards, the error contains the receipt.
    let half = delayline_core::topology::Queue::new("delay.recalled.half");
    Session::open(&settings.broker).unwrap().declare_queue(&half).unwrap();
    let refused = recaller.replace(&router, &stranger("half"), message("more", GOOD_TIME)).unwrap_err();
    assert!(matches!(refused, ReplaceError::Recall { .. }), "{refused:?}");
    let expected = ["new", "same", "kept", "more"].map(str::to_owned).into();
    assert_eq!(bodies(&inbox, &router, 4), expected);
    eventually("the old messages were recalled", || recalled(&settings) == 4);
}

#[test]
fn any_client_can_recall_by_binding() {
    let (settings, inbox, _, recaller) = offered();
    let [key, other] = ["by-hand", "kept"].map(|id| {
        let key = RoutingKey::new(Delay::from_seconds(GOOD_TIME).unwrap(), app("billing"));
        key.with_id(id.parse().unwrap()).unwrap()
    });
    let names = Names::new(settings.topology.set.clone());
    Session::open(&settings.broker).unwrap().bind(&Binding::recalling(&names, &key)).unwrap();
    raw::publish(&settings, [&key, &other].map(|key| raw::message("delay", &key.encode(), key, &json!({}))));
    assert_eq!(inbox.next(PATIENCE).unwrap().routing_key, other.encode());
    eventually("the message was recalled", || recalled(&settings) == 1);
    assert!(recaller.is_recalled(&Handle::new(key, None).unwrap()).unwrap());
}
