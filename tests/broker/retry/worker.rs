use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc, Barrier, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::Duration,
};

use delayline_amqp::{Next, Session};
use delayline_client::retry::{Ended, Handled, Worker};
use delayline_core::{
    Message,
    codec::Delay,
    message::Properties,
    retry::{Policy, SharedPolicies},
};
use delayline_settings::Settings;
use serde_json::json;

use crate::{
    common::{
        Inbox, PATIENCE, app, as_user, eventually, install, installed, mortal_node, permit, raw, revive,
    },
    proxy::{Valve, proxy},
};

use super::{by_id, parked};
use crate::common::Counting;

#[test]
fn a_handler_decides_and_a_panic_is_a_failure() {
    let settings = installed(100);
    // This only declares and binds the queue `in.app`.
    drop(Inbox::open(&settings, "app"));
    let router = settings.router().connect().unwrap();
    for id in ["done", "again", "later", "never", "panic", "expired"] {
        let properties = Properties {
            message_id: Some(id.into()),
            expiration: (id == "expired").then(|| "1".into()),
            ..Properties::default()
        };
        let delay = Delay::from_seconds(u64::from(id == "expired")).unwrap();
        router.publish(Message::after(app("app"), delay, id).with_properties(properties)).unwrap();
    }
    let policies =
        SharedPolicies::new(delayline_settings::parse_policies("default.list = ['1s', '2s']").unwrap());
    let worker = Worker::new(settings.target(), "in.app", app("app"), policies);
    let seen: Mutex<HashMap<String, Vec<u32>>> = Mutex::default();
    let messages = thread::scope(|scope| {
        let running = scope.spawn(|| {
            worker.run(|job| {
                let id = job.properties.message_id.clone().unwrap();
                seen.lock().unwrap().entry(id.clone()).or_default().push(job.attempt);
                assert_eq!(job.exchange, "delay");
                assert!(job.routing_key.ends_with(".app") && job.body == id.as_bytes());
                assert_eq!(job.first_failed.is_some(), job.attempt > 0);
                match id.as_str() {
                    "done" => Handled::Done,
                    "again" if job.attempt == 2 => Handled::Done,
                    "later" => Handled::RetryAfter(Delay::from_seconds(1).unwrap(), "busy".into()),
                    "never" => Handled::Park("malformed".into()),
                    "panic" => panic!("on purpose"),
                    _ => Handled::Retry("failed".into()),
                }
            })
        });
        let messages = by_id(parked(&settings, 4));
        worker.stop_handle().stop();
        assert_eq!(running.join().unwrap(), Ended::Stopped);
        messages
    });
    let why = |id: &str| {
        let (message, times) = &messages[id];
        assert_eq!((*times, message.body.as_slice()), (1, id.as_bytes()));
        (message.text("delayline-reason"), message.text("delayline-failure"))
    };
    assert_eq!(why("later"), ("attempts", "busy"));
    assert_eq!(why("never"), ("gave-up", "malformed"));
    assert_eq!(why("panic"), ("attempts", "panic"));
    assert_eq!(why("expired"), ("expired", "expired"));
    let seen = seen.into_inner().unwrap();
    let attempts = |id: &str| seen.get(id).cloned().unwrap_or_default();
    assert_eq!((attempts("done"), attempts("never"), attempts("expired")), (vec![0], vec![0], vec![]));
    for id in ["again", "later", "panic"] {
        assert_eq!(attempts(id), [0, 1, 2], "{id}");
    }
    let mut left = Session::open(&settings.broker).unwrap();
    eventually("the queue is empty", || {
        left.counts("in.app").unwrap().is_some_and(|depth| depth.ready == 0 && depth.consumers == 0)
    });
}

/// Failed messages with unreadable headers, and a readable message behind them.
fn unreadable_ones(settings: &Settings, count: usize) {
    // Our properties cannot hold this one.
    let unreadable = json!({ "cluster_id": "obsolete" });
    let messages = (0..count).map(|_| raw::message("", "in.app", "unreadable", &unreadable));
    raw::publish(settings, messages.chain([raw::message("", "in.app", "good", &json!({}))]));
}

#[test]
fn messages_that_cannot_be_sent_again_are_rejected_where_that_is_safe() {
    let settings = installed(10);
    Session::open(&settings.broker)
        .unwrap()
        .declare_queue(
            &delayline_core::topology::Queue::new("in.app").with_arguments(
                [("x-queue-type", "quorum"), ("x-dead-letter-exchange", "delay.parked")]
                    .map(|(name, value)| (name.to_owned(), value.into())),
            ),
        )
        .unwrap();
    unreadable_ones(&settings, 30);
    let policies = SharedPolicies::new(delayline_settings::parse_policies("default.fixed = '1s'").unwrap());
    let worker = Worker::new(settings.target(), "in.app", app("app"), policies).rejecting();
    let stop = worker.stop_handle();
    let ended = worker.run(|job| match job.body {
        b"good" => {
            stop.stop();
            Handled::Done
        }
        _ => Handled::Retry("failed".into()),
    });
    assert_eq!(ended, Ended::Stopped);
    assert!(parked(&settings, 30).iter().all(|message| message.damaged && message.body == b"unreadable"));
}

#[test]
fn a_worker_without_free_places_ends_and_loses_nothing() {
    let settings = installed(10);
    drop(Inbox::open(&settings, "app"));
    unreadable_ones(&settings, 10);
    let policies = SharedPolicies::new(delayline_settings::parse_policies("default.fixed = '1s'").unwrap());
    let worker = Worker::new(settings.target(), "in.app", app("app"), policies);
    let ended = worker.run(|job| {
        assert_eq!(job.body, b"unreadable", "the worker got a message beyond its places");
        Handled::Retry("failed".into())
    });
    assert_eq!(ended, Ended::Full { queue: "in.app".into(), count: 10 });
    let mut session = Session::open(&settings.broker).unwrap();
    eventually("all messages are back", || {
        session.counts("in.app").unwrap().is_some_and(|depth| depth.ready == 11)
    });
}

/// Otherwise, the handler would get each failed message again and again.
#[test]
fn a_worker_that_may_not_retry_takes_nothing_until_it_may() {
    let settings = installed(10);
    drop(Inbox::open(&settings, "app"));
    // An application has copied these headers from a retry of another message.
    let copied = json!({ "headers": { "delayline-attempt": 7, "delayline-first-failed": 1 } });
    raw::publish(&settings, [raw::message("", "in.app", "failed", &copied)]);
    let vhost = settings.broker.vhost.clone();
    permit(&vhost, "worker", ["^$", "^delay$", r"^in\.app$"]);
    let valve = Arc::new(Valve::default());
    let mut theirs = as_user(&settings, "worker");
    theirs.broker.port = proxy(theirs.broker.port, &valve);
    let policies = "[default]\nfixed = '1s'\nattempts = 1\n";
    let policies = SharedPolicies::new(delayline_settings::parse_policies(policies).unwrap());
    let worker = Worker::new(theirs.target(), "in.app", app("app"), policies);
    let calls = AtomicU32::new(0);
    thread::scope(|scope| {
        let running = scope.spawn(|| {
            worker.run(|job| {
                assert_eq!(job.attempt, calls.fetch_add(1, Ordering::SeqCst));
                Handled::Retry("failed".into())
            })
        });
        // A login takes about 500 bytes.
        eventually("the worker has tried several times", || valve.written.load(Ordering::SeqCst) > 5_000);
        assert_eq!(calls.load(Ordering::SeqCst), 0);
        permit(&vhost, "worker", ["^$", r"^delay(\.parked)?$", r"^in\.app$"]);
        let message = parked(&settings, 1).remove(0);
        worker.stop_handle().stop();
        assert_eq!(running.join().unwrap(), Ended::Stopped);
        assert_eq!((message.text("delayline-reason"), message.number("delayline-attempt")), ("attempts", 1));
    });
    assert_eq!(calls.load(Ordering::SeqCst), 2);
}

/// The number of ready messages in a queue, if the broker answers.
fn ready(settings: &Settings, queue: &str) -> Option<u32> {
    Some(Session::open(&settings.broker).ok()?.counts(queue).ok()??.ready)
}

#[test]
fn messages_are_processed_side_by_side_and_a_killed_broker_loses_none() {
    const MESSAGES: u32 = 400;
    let mut node = mortal_node();
    let settings = node.settings().build().unwrap();
    install(&settings);
    drop(Inbox::open(&settings, "app"));
    let messages = (0..MESSAGES).map(|id| Message::after(app("app"), Delay::ZERO, id.to_string()));
    assert!(settings.router().connect().unwrap().publish_all(messages).iter().all(Result::is_ok));
    node.write_down_queues().unwrap();
    let worker = Worker::new(settings.target(), "in.app", app("app"), Policy::default()).concurrency(8);
    let (together, begun) = (Barrier::new(8), AtomicU32::new(0));
    thread::scope(|scope| {
        let running = scope.spawn(|| {
            worker.run(|_| {
                // The first eight calls wait for each other.
                if begun.fetch_add(1, Ordering::SeqCst) < 8 {
                    together.wait();
                }
                thread::sleep(Duration::from_millis(20));
                Handled::Park("failed".into())
            })
        });
        eventually("the worker is at work", || begun.load(Ordering::SeqCst) > 100);
        node.kill();
        revive(&mut node);
        let mut session = Session::open(&settings.broker).unwrap();
        let consumer = session.consume("delay.parked", 100).unwrap();
        let mut parked = HashSet::new();
        while parked.len() < MESSAGES as usize {
            match consumer.next(PATIENCE) {
                Next::Delivery(delivery) => {
                    parked.insert(delivery.body.clone());
                    consumer.ack(delivery).unwrap();
                }
                other => panic!("{} of {MESSAGES} are parked: {other:?}", parked.len()),
            }
        }
        eventually("no message is left", || ready(&settings, "in.app") == Some(0));
        worker.stop_handle().stop();
        assert_eq!(running.join().unwrap(), Ended::Stopped);
    });
    eventually("all messages are acknowledged", || ready(&settings, "in.app") == Some(0));
}

#[test]
fn a_worker_that_is_stopped_finishes_what_it_has_begun() {
    let settings = installed(10);
    drop(Inbox::open(&settings, "app"));
    let messages = (0..20).map(|id: u32| Message::after(app("app"), Delay::ZERO, id.to_string()));
    assert!(settings.router().connect().unwrap().publish_all(messages).iter().all(Result::is_ok));
    let worker = Worker::new(settings.target(), "in.app", app("app"), Policy::default()).concurrency(4);
    let worker = worker.prefetch(4);
    let (begun, may_end) = (Barrier::new(5), Barrier::new(5));
    thread::scope(|scope| {
        let running = scope.spawn(|| {
            worker.run(|_| {
                begun.wait();
                may_end.wait();
                Handled::Done
            })
        });
        begun.wait();
        worker.stop_handle().stop();
        may_end.wait();
        assert_eq!(running.join().unwrap(), Ended::Stopped);
    });
    eventually("the other messages are back", || ready(&settings, "in.app") == Some(16));
}

#[test]
fn large_messages_behind_a_busy_handler_do_not_pile_up() {
    const LARGE: usize = 23;
    let settings = installed(10);
    drop(Inbox::open(&settings, "app"));
    let bodies = [1].into_iter().chain([12 << 20; LARGE]);
    let messages = bodies.map(|length: usize| Message::after(app("app"), Delay::ZERO, vec![b'x'; length]));
    assert!(settings.router().connect().unwrap().publish_all(messages).iter().all(Result::is_ok));
    let worker = Worker::new(settings.target(), "in.app", app("app"), Policy::default()).prefetch(100);
    let (begun, may_end) = (Barrier::new(2), Barrier::new(2));
    let (small, large) = (AtomicU32::new(0), AtomicU32::new(0));
    thread::scope(|scope| {
        let running = scope.spawn(|| {
            worker.run(|job| {
                if job.body.len() > 1 {
                    large.fetch_add(1, Ordering::Relaxed);
                } else if small.fetch_add(1, Ordering::Relaxed) == 0 {
                    begun.wait();
                    may_end.wait();
                }
                Handled::Done
            })
        });
        begun.wait();
        // They have more than 256 MiB, and return to the queue, with the one that is being processed.
        eventually("the worker holds none", || ready(&settings, "in.app") == Some(1 + LARGE as u32));
        may_end.wait();
        eventually("all are processed", || large.load(Ordering::Relaxed) >= LARGE as u32);
        eventually("no message is left", || ready(&settings, "in.app") == Some(0));
        worker.stop_handle().stop();
        assert_eq!(running.join().unwrap(), Ended::Stopped);
    });
    assert_eq!((small.into_inner(), large.into_inner()), (2, LARGE as u32));
}
