//! No confirmed message is lost, whatever happens to the broker.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use delayline_client::router::{Cause, Stats};
use delayline_core::{Message, codec::Delay, message::Properties};
use delayline_node::PrivateNode;
use delayline_settings::{Layers, Settings};

use crate::common::{
    Inbox, PATIENCE, app, disturbed_node, eventually, install, mortal_node, revive, vhost_on,
};

fn message(id: u64, delay: u64) -> Message {
    let properties = Properties { message_id: Some(id.to_string()), ..Properties::default() };
    Message::after(app("app"), Delay::from_seconds(delay).unwrap(), "x".repeat(256))
        .with_properties(properties)
}

fn settings(layers: Layers, publish_timeout: &str) -> Settings {
    let settings = layers.set("unit_ms", "10").set("publish_timeout", publish_timeout).build().unwrap();
    install(&settings);
    settings
}

#[test]
fn a_killed_node_loses_nothing_that_was_confirmed() {
    const MESSAGES: u64 = 3_000;
    let mut node = mortal_node();
    // Longer than any start of the node.
    let settings = settings(node.settings(), "1h");
    let mut inbox = Inbox::open(&settings, "app");
    let stats = Arc::new(Stats::default());
    let router = settings.router().counting(Arc::clone(&stats)).connect().unwrap();

    let mut confirmed: HashSet<String> = HashSet::new();
    let mut pipeline = router.pipeline();
    for id in 0..MESSAGES {
        // Due in 5 to 20 s, so that the messages wait while the node is down.
        confirmed.extend(pipeline.push(id, message(id, 500 + id % 1_500)).map(|o| {
            o.result.unwrap();
            o.tag.to_string()
        }));
    }
    confirmed.extend(pipeline.map(|o| {
        o.result.unwrap();
        o.tag.to_string()
    }));
    assert_eq!(confirmed.len() as u64, MESSAGES);

    // A second thread publishes all the time, one confirmed message after the other.
    let router = Arc::new(router);
    let stop = Arc::new(AtomicBool::new(false));
    let publisher = {
        let (router, stop) = (Arc::clone(&router), Arc::clone(&stop));
        thread::spawn(move || {
            let mut receipts = HashMap::new();
            let mut id = 1_000_000;
            while !stop.load(Ordering::Relaxed) {
                receipts.insert(id.to_string(), router.publish(message(id, 300)).unwrap().publishes);
                id += 1;
            }
            receipts
        })
    };
    let publishes = |more: u64| {
        let before = stats.counts().confirmed;
        eventually("the router publishes", || stats.counts().confirmed >= before + more);
    };
    publishes(10);
    node.write_down_queues().unwrap();
    // The node is killed while it has a message that it cannot confirm.
    node.pause();
    eventually("a message is on its way", || {
        let counts = stats.counts();
        counts.published > counts.confirmed
    });
    node.kill();
    revive(&mut node);
    inbox.reopen();
    publishes(10);
    stop.store(true, Ordering::Relaxed);
    let receipts = publisher.join().unwrap();
    assert!(receipts.values().any(|&publishes| publishes > 1), "the router went on after the restart");
    confirmed.extend(receipts.into_keys());

    let mut arrived: HashMap<String, u32> = HashMap::new();
    let mut early = 0;
    loop {
        let complete = confirmed.iter().all(|id| arrived.contains_key(id));
        // When all messages have arrived, the test waits only for duplicates.
        let Some(arrival) = inbox.next(if complete { Duration::from_secs(2) } else { PATIENCE }) else {
            break;
        };
        early += u32::from(arrival.late_ms() < 0);
        *arrived.entry(arrival.id).or_default() += 1;
    }
    let lost: Vec<_> = confirmed.iter().filter(|&id| !arrived.contains_key(id)).collect();
    let duplicates = arrived.values().filter(|&&count| count > 1).count();
    println!(
        "killed node: {} confirmed, {} lost, {duplicates} twice, {early} early",
        confirmed.len(),
        lost.len()
    );
    assert_eq!((lost.len(), early), (0, 0), "{lost:?}");
    a_router_can_start_before_its_broker(&mut node, &settings);
}

#[test]
fn a_memory_alarm_blocks_and_releases() {
    let node = disturbed_node();
    let settings = settings(vhost_on(&node), "10s");
    let inbox = Inbox::open(&settings, "app");
    let router = settings.router().connect().unwrap();
    router.publish(message(0, 1)).unwrap();
    let alarm = |set: bool| {
        let call = if set {
            "set_alarm({{resource_limit, memory, node()}, []})"
        } else {
            "clear_alarm({resource_limit, memory, node()})"
        };
        node.tell(&["eval", &format!("rabbit_alarm:{call}.")]).unwrap();
    };
    alarm(true);
    // The broker informs its connections a moment later, and only when something is published. So
    // the first failed messages may be in doubt, but a later one was certainly not sent.
    let (unsent, _) = (2..1_000)
        .filter_map(|id| Some((id, router.publish(message(id, 1)).err()?)))
        .inspect(|(_, error)| {
            assert!(matches!(error.cause(), Cause::Blocked { .. } | Cause::Unconfirmed { .. }), "{error}");
        })
        .find(|(_, error)| matches!(error.cause(), Cause::Blocked { .. }) && !error.maybe_delivered())
        .expect("the connection is blocked, and nothing is sent");
    alarm(false);
    eventually("the router publishes again", || router.publish(message(1, 1)).is_ok());
    let mut ids = HashSet::new();
    while !(ids.contains("0") && ids.contains("1")) {
        ids.insert(inbox.next(PATIENCE).unwrap_or_else(|| panic!("only {ids:?} came")).id);
    }
    // This message would arrive after the message that must not arrive.
    router.publish(Message::after(app("app"), Delay::from_seconds(31).unwrap(), "the last")).unwrap();
    ids.extend(inbox.until("the last").into_iter().map(|arrival| arrival.id));
    assert!(!ids.contains(&unsent.to_string()), "{ids:?}");
}

#[test]
fn closing_and_dropping_end_during_an_alarm() {
    let node = disturbed_node();
    let settings = settings(vhost_on(&node), "2s");
    let router = settings.router().connect().unwrap();
    node.tell(&["eval", "rabbit_alarm:set_alarm({{resource_limit, memory, node()}, []})."]).unwrap();
    // Far more than the client library buffers before it blocks.
    let mut pipeline = router.pipeline();
    for id in 0..40 {
        let mut large = message(id, 1);
        large.body = vec![0; 1 << 20];
        drop(pipeline.push(id, large));
    }
    drop(pipeline);
    let started = Instant::now();
    assert!(router.close(Duration::from_secs(1)).is_err());
    assert!(started.elapsed() < PATIENCE, "closing took {:?}", started.elapsed());
}

#[test]
fn a_silent_node_is_given_up_and_found_again() {
    let node = disturbed_node();
    let settings = settings(vhost_on(&node).set("heartbeat", "1"), "5m");
    let mut inbox = Inbox::open(&settings, "app");
    let stats = Arc::new(Stats::default());
    let router = settings.router().counting(Arc::clone(&stats)).connect().unwrap();
    router.publish(message(0, 1)).unwrap();
    node.pause();
    thread::scope(|scope| {
        let publishing = scope.spawn(|| router.publish(message(1, 1)));
        // With heartbeats every second, the connection is closed after two.
        eventually("the connection is closed", || stats.counts().lost > 0);
        assert_eq!(stats.counts().confirmed, 1, "a paused node has confirmed a message");
        node.resume();
        publishing.join().unwrap().unwrap()
    });
    assert!(stats.counts().reconnects > 0, "{:?}", stats.counts());
    inbox.reopen();
    while inbox.next(PATIENCE).expect("the message that was published again").id != "1" {}
}

#[test]
fn closed_connections_are_opened_again() {
    let node = disturbed_node();
    let settings = settings(vhost_on(&node), "5m");
    let mut inbox = Inbox::open(&settings, "app");
    let stats = Arc::new(Stats::default());
    let router = settings.router().counting(Arc::clone(&stats)).connect().unwrap();
    let confirmed = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                router.publish(message(confirmed.load(Ordering::Relaxed), 1)).unwrap();
                confirmed.fetch_add(1, Ordering::Relaxed);
            }
        });
        for _ in 0..3 {
            let before = confirmed.load(Ordering::Relaxed);
            eventually("the router publishes", || confirmed.load(Ordering::Relaxed) > before + 10);
            node.tell(&["close_all_connections", "--vhost", &settings.broker.vhost, "test"]).unwrap();
        }
        let before = confirmed.load(Ordering::Relaxed);
        eventually("the router publishes again", || confirmed.load(Ordering::Relaxed) > before + 10);
        stop.store(true, Ordering::Relaxed);
    });
    assert!(stats.counts().reconnects >= 3, "{:?}", stats.counts());
    inbox.reopen();
    let confirmed = confirmed.into_inner();
    let mut missing: BTreeSet<_> = (0..confirmed).map(|id| id.to_string()).collect();
    while !missing.is_empty() {
        let arrival = inbox.next(PATIENCE).unwrap_or_else(|| panic!("{missing:?} are missing"));
        missing.remove(&arrival.id);
    }
}

fn a_router_can_start_before_its_broker(node: &mut PrivateNode, settings: &Settings) {
    node.write_down_queues().unwrap();
    node.kill();
    assert!(settings.router().connect().is_err());
    let router = settings.router().connect_later();
    thread::scope(|scope| {
        let publishing = scope.spawn(|| router.publish(message(1, 1)));
        node.restart().unwrap();
        publishing.join().unwrap().unwrap();
    });
}
