//! Moving an application to another queue while its messages flow.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::Duration,
};

use delayline_admin::Hold;
use delayline_core::{Message, topology::RecallSettings};

use super::*;
use crate::common::Counting;

/// How many messages may be on their way. Without a limit, a broker that is slower than the publisher would
/// fall further and further behind, and tests beside it with it.
const UNDERWAY: u64 = 300;

/// Publishes messages with short delays until it is stopped, every second one with an id. Returns their
/// number; the broker has confirmed each.
fn publish_until(settings: &Settings, stop: &AtomicBool, arrived: &AtomicU64) -> u64 {
    let router = settings.router().connect().unwrap();
    let mut pipeline = router.pipeline();
    let mut sent = 0;
    while !stop.load(Ordering::Relaxed) {
        let delay = Delay::from_seconds(sent % 4).unwrap();
        let message = Message::after(app("billing"), delay, sent.to_string());
        let message = match sent % 2 {
            0 => message,
            _ => message.with_id(format!("m{sent}").parse().unwrap()),
        };
        let outcome = pipeline.push((), message);
        assert!(outcome.is_none_or(|outcome| outcome.result.is_ok()));
        sent += 1;
        thread::sleep(Duration::from_millis(10));
        while sent >= arrived.load(Ordering::Relaxed) + UNDERWAY && !stop.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(50));
        }
    }
    assert!(pipeline.all(|outcome| outcome.result.is_ok()));
    sent
}

/// Consumes a queue until it is stopped; how often each message arrived.
fn consume_until(settings: &Settings, stop: &AtomicBool, arrived: &AtomicU64) -> BTreeMap<String, u64> {
    let mut session = Session::open(&settings.broker).unwrap();
    let consumer = session.consume("billing", 1_000).unwrap();
    let mut arrivals = BTreeMap::new();
    while !stop.load(Ordering::Relaxed) {
        match consumer.next(Duration::from_millis(100)) {
            Next::Delivery(delivery) => {
                *arrivals.entry(String::from_utf8(delivery.body.clone()).unwrap()).or_default() += 1;
                consumer.ack(delivery).unwrap();
                arrived.store(arrivals.len() as u64, Ordering::Relaxed);
            }
            Next::Timeout => {}
            Next::Ended(cause) => panic!("{cause:?}"),
        }
    }
    arrivals
}

/// Stops the threads when the test ends, even if it fails.
struct Stop<'a>([&'a AtomicBool; 2]);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|flag| flag.store(true, Ordering::Relaxed));
    }
}

#[test]
fn an_application_is_moved_and_paused_while_its_messages_flow() {
    let settings = common::installed(100);
    let topology = topology(&settings);
    let recall = Some(RecallSettings::default());
    let bound_directly = AppSpec { recall, ..direct(&settings, "billing") };
    let landing = Delivery::Landing(Target::Queue(AppQueue::new("billing")));
    let landed = AppSpec { recall, ..spec(&settings, "billing", landing) };
    let queue = AppQueue { keep_landing: false, ..AppQueue::new("billing") };
    let back = AppSpec { delivery: Delivery::Direct(queue), ..bound_directly.clone() };
    added(&settings, &bound_directly);
    let mut session = Session::open(&settings.broker).unwrap();
    let mut depth = |queue: &str| session.counts(queue).unwrap().map(|depth| depth.ready);
    let (published, consumed, arrived) = (AtomicBool::new(false), AtomicBool::new(false), AtomicU64::new(0));
    let seen = || arrived.load(Ordering::Relaxed);
    thread::scope(|scope| {
        let _stop = Stop([&published, &consumed]);
        let publisher = scope.spawn(|| publish_until(&settings, &published, &arrived));
        let consumer = scope.spawn(|| consume_until(&settings, &consumed, &arrived));
        let flows = |what: &str| {
            let before = seen();
            common::eventually(what, || seen() > before + 100);
        };
        flows("messages flow");

        let report = add(&settings, &landed);
        assert_eq!(report.outcome, Applied::Installed, "{report:?}");
        let replaced: Vec<_> = report.steps.iter().filter_map(|step| step.replaces.as_deref()).collect();
        assert!(replaced.len() == 2 && replaced[0].contains("in place of queue `billing`"), "{replaced:?}");
        assert_eq!(add(&settings, &landed).outcome, Applied::Unchanged);
        flows("messages flow through the landing queue");

        let pause = |dry_run| {
            admin::pause_app(&settings, &topology, &landed.app, Hold::UntilResumed, dry_run).unwrap()
        };
        assert_eq!(pause(true).outcome, Applied::DryRun);
        assert_eq!(pause(false).outcome, Applied::Installed);
        assert_eq!(pause(false).outcome, Applied::Unchanged);
        common::eventually("messages wait", || depth("delay.paused.billing") > Some(100));
        let list = admin::list_apps(&settings, &topology).unwrap();
        let [entry] = list.apps.as_slice() else { panic!("{list:#?}") };
        assert!(entry.paused && entry.queue.as_deref() == Some("billing"), "{entry:#?}");
        let again = add(&settings, &landed);
        assert_eq!(again.outcome, Applied::Unchanged, "{again:?}");
        assert!(again.warnings.iter().any(|it| it.contains("app resume billing")), "{again:?}");
        let resume = |stop: &AtomicBool| {
            admin::resume_app(&settings, &topology, &landed.app, PATIENCE, false, stop).unwrap()
        };
        // It is interrupted, and paused again.
        assert!(resume(&AtomicBool::new(true)).interrupted);
        let again = pause(false);
        assert_eq!(again.outcome, Applied::Installed, "{again:?}");
        common::eventually("messages wait", || depth("delay.paused.billing") > Some(100));
        let report = resume(&NO_SIGNAL);
        assert!(report.waiting == Some(0) && report.handed_on > 100, "{report:?}");
        assert_eq!(depth("delay.paused.billing"), None);

        // Leaving out a flag takes nothing away.
        assert_eq!(add(&settings, &bound_directly).outcome, Applied::Unchanged);
        let report = add(&settings, &back);
        assert_eq!(report.outcome, Applied::Installed, "{report:?}");
        let replaced: Vec<_> = report.steps.iter().filter_map(|step| step.replaces.as_deref()).collect();
        assert!(
            replaced.len() == 2 && replaced[0].contains("in place of queue `delay.landing.billing`"),
            "{replaced:?}"
        );
        flows("messages flow without the landing queue");
        // The broker's count of a queue is late.
        common::eventually("the landing queue is removed", || {
            add(&settings, &back).outcome == Applied::Unchanged
        });
        assert_eq!(depth("delay.landing.billing"), None);

        published.store(true, Ordering::Relaxed);
        let sent = publisher.join().unwrap();
        common::eventually_seen("all messages arrived", seen, |&seen| seen == sent);
        assert_eq!(depth("delay.unroutable"), Some(0));
        // All queues on the way are empty, so nothing else arrives.
        assert_eq!(depth("billing"), Some(0));
        consumed.store(true, Ordering::Relaxed);
        let arrivals = consumer.join().unwrap();
        let twice: Vec<_> = arrivals.iter().filter(|(_, count)| **count > 1).collect();
        println!("{sent} messages, {} of them twice", twice.len());
        assert!(twice.is_empty(), "{twice:?} of {sent}");
    });
    let names = topology.names();
    assert!(names.moving(&app("billing")).iter().all(|name| !session.exchange_exists(name).unwrap()));
    assert_eq!(admin::verify(&settings, &topology).unwrap().findings, []);
}
