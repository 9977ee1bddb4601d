use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread,
};

use delayline_client::retry::{Handled, Worker, WorkerFull};
use delayline_core::{Message, codec::Delay, message::Properties, retry::SharedPolicies};

use serde_json::json;

use crate::{
    common::{Inbox, app, as_user, eventually, installed, permit, raw},
    proxy::{Valve, proxy},
};

use super::{by_id, parked};

#[test]
fn a_handler_decides_and_a_panic_is_a_failure() {
    let settings = installed(100);
    // Declares and binds the queue `in.app`, and takes nothing itself.
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
    let worker = Worker::new(settings.router(), "in.app", app("app"), policies);
    let seen: Mutex<HashMap<String, Vec<u32>>> = Mutex::default();
    let stop = AtomicBool::new(false);
    let messages = thread::scope(|scope| {
        let running = scope.spawn(|| {
            worker.run(&stop, |job| {
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
        stop.store(true, Ordering::Relaxed);
        assert!(running.join().unwrap().unwrap());
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
    let mut left = delayline_amqp::Session::open(&settings.broker).unwrap();
    crate::common::eventually("the queue is empty", || {
        left.queue_depth("in.app").unwrap().is_some_and(|depth| depth.ready == 0 && depth.consumers == 0)
    });
}

/// Messages that failed and whose headers nobody can read, and one that can be processed
/// behind them.
fn unreadable_ones(settings: &delayline_settings::Settings, count: usize) {
    // Has no place in our properties.
    let unreadable = json!({ "cluster_id": "obsolete" });
    let messages = (0..count).map(|_| raw::message("", "in.app", "unreadable", &unreadable));
    raw::publish(settings, messages.chain([raw::message("", "in.app", "good", &json!({}))]));
}

#[test]
fn messages_that_cannot_be_sent_again_are_rejected_where_that_is_safe() {
    let settings = installed(10);
    delayline_amqp::Session::open(&settings.broker)
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
    let worker = Worker::new(settings.router(), "in.app", app("app"), policies).rejecting();
    let stop = AtomicBool::new(false);
    let ended = worker.run(&stop, |job| match job.body {
        b"good" => {
            stop.store(true, Ordering::Relaxed);
            Handled::Done
        }
        _ => Handled::Retry("failed".into()),
    });
    assert_eq!(ended, Ok(true));
    assert!(parked(&settings, 30).iter().all(|message| message.damaged && message.body == b"unreadable"));
}

#[test]
fn a_worker_whose_places_are_all_taken_says_so_and_loses_nothing() {
    let settings = installed(10);
    drop(Inbox::open(&settings, "app"));
    unreadable_ones(&settings, 10);
    let policies = SharedPolicies::new(delayline_settings::parse_policies("default.fixed = '1s'").unwrap());
    let worker = Worker::new(settings.router(), "in.app", app("app"), policies);
    let stop = AtomicBool::new(false);
    let ended = worker.run(&stop, |job| {
        assert_eq!(job.body, b"unreadable", "there is no place for another");
        Handled::Retry("failed".into())
    });
    assert!(matches!(&ended, Err(WorkerFull { queue, count: 10, .. }) if queue == "in.app"), "{ended:?}");
    let mut session = delayline_amqp::Session::open(&settings.broker).unwrap();
    crate::common::eventually("all are back", || {
        session.queue_depth("in.app").unwrap().is_some_and(|depth| depth.ready == 11)
    });
}

/// Otherwise the handler would get each failed message again and again.
#[test]
fn a_worker_that_may_not_retry_takes_nothing_until_it_may() {
    let settings = installed(10);
    drop(Inbox::open(&settings, "app"));
    // An application has copied what a retry of another message said.
    let copied = json!({ "headers": { "delayline-attempt": 7, "delayline-first-failed": 1 } });
    raw::publish(&settings, [raw::message("", "in.app", "failed", &copied)]);
    let vhost = settings.broker.vhost.clone();
    permit(&vhost, "worker", ["^$", "^delay$", r"^in\.app$"]);
    let valve = Arc::new(Valve::default());
    let mut theirs = as_user(&settings, "worker");
    theirs.broker.port = proxy(theirs.broker.port, &valve);
    let policies = "[default]\nfixed = '1s'\nattempts = 1\n";
    let policies = SharedPolicies::new(delayline_settings::parse_policies(policies).unwrap());
    let worker = Worker::new(theirs.router(), "in.app", app("app"), policies);
    let (stop, calls) = (AtomicBool::new(false), AtomicU32::new(0));
    thread::scope(|scope| {
        let running = scope.spawn(|| {
            worker.run(&stop, |job| {
                assert_eq!(job.attempt, calls.fetch_add(1, Ordering::SeqCst));
                Handled::Retry("failed".into())
            })
        });
        // A login takes some 500 bytes.
        eventually("it has tried some times", || valve.written.load(Ordering::SeqCst) > 5_000);
        assert_eq!(calls.load(Ordering::SeqCst), 0);
        permit(&vhost, "worker", ["^$", r"^delay(\.parked)?$", r"^in\.app$"]);
        let message = parked(&settings, 1).remove(0);
        stop.store(true, Ordering::Relaxed);
        assert_eq!(running.join().unwrap(), Ok(true));
        assert_eq!((message.text("delayline-reason"), message.number("delayline-attempt")), ("attempts", 1));
    });
    assert_eq!(calls.load(Ordering::SeqCst), 2);
}
