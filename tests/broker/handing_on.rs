//! Messages on their way between queues are not stuck, but messages that do not move are.

use std::{collections::BTreeSet, time::Instant};

use delayline_admin::{self as admin, FindingCode, Severity};
use delayline_amqp::Session;
use delayline_core::{
    Message,
    codec::{Delay, RoutingKey},
    percent,
    topology::{Binding, Endpoint, Queue},
};
use delayline_node::{NodeOptions, PrivateNode};
use delayline_settings::Settings;
use delayline_watch::picture::{Collector, Level, Picture, Sources};
use serde_json::json;

use crate::common::Counting;
use crate::common::{
    PATIENCE, app, eventually, eventually_seen, http, install, new_set, refusing, status, topology,
};

fn receives(session: &mut Session, key: &str) {
    let arguments = [("x-queue-type".to_owned(), "quorum".into())];
    session.declare_queue(&Queue::new(key).with_arguments(arguments)).unwrap();
    let (source, destination) = ("delay.dispatch".into(), Endpoint::Queue(key.into()));
    session.bind(&Binding { source, destination, key: RoutingKey::binding_pattern(&app(key)) }).unwrap();
}

/// Publishes messages that fall due together, this many seconds after the first is published. Each
/// delay is at least one second. Returns how many seconds it took.
fn publish(settings: &Settings, key: &str, seconds: u64, count: u64) -> u64 {
    let router = settings.router().connect().unwrap();
    let mut pipeline = router.pipeline();
    let begun = Instant::now();
    let message = || {
        let left = seconds.saturating_sub(begun.elapsed().as_secs()).max(1);
        Message::after(app(key), Delay::from_seconds(left).unwrap(), "x")
    };
    let sent = (0..count).flat_map(|number| pipeline.push(number, message()));
    assert!(sent.collect::<Vec<_>>().iter().all(|outcome| outcome.result.is_ok()));
    assert!(pipeline.all(|outcome| outcome.result.is_ok()));
    begun.elapsed().as_secs()
}

/// A busy broker may not answer in time. An unknown count adds nothing.
fn sum(status: &Picture, of: fn(&Level) -> Option<u64>) -> u64 {
    status.levels.iter().filter_map(of).sum()
}

#[test]
fn a_burst_that_is_being_handed_on_is_not_stuck() {
    let settings = new_set(1_000);
    let topology = topology(&settings);
    let mut session = Session::open(&settings.broker).unwrap();
    receives(&mut session, "busy");
    let mut collector = Collector::new(settings.clone(), Sources::default());
    let (mut most, mut all, mut told) = (0, 0, 0);
    // The broker counts every 5 s, and a small burst may be gone by then. A burst that falls due as
    // slowly as it was published never piles up, so the whole burst falls due in one second.
    let (mut burst, mut seconds) = (15_000, 12);
    for _ in 0..5 {
        let took = publish(&settings, "busy", seconds, burst);
        // Arrivals are counted in their queue, because the counts of messages on their way are old.
        all += burst;
        let arrived = |session: &mut Session| u64::from(session.counts("busy").unwrap().unwrap().ready);
        let (mut last, mut until) = (0, Instant::now() + PATIENCE);
        loop {
            let status = status(&settings);
            assert_eq!(sum(&status, |level| level.stuck), 0, "{:?}", status.levels);
            most = most.max(sum(&status, |level| level.handing_on));
            let picture = collector.look();
            // A busy broker may not answer in time. Then the picture has no count.
            if let Some(stuck) = picture.stuck {
                assert_eq!(stuck, 0, "{:?}", picture.levels);
                assert!(picture.verdict.severity.is_none(), "{:?}", picture.verdict);
                told += 1;
            }
            let now = arrived(&mut session);
            if now == all {
                break;
            }
            if now > last {
                (last, until) = (now, Instant::now() + PATIENCE);
            }
            assert!(Instant::now() < until, "the burst does not arrive: {status:?}");
        }
        if most > 100 {
            break;
        }
        if took + 3 > seconds { seconds = took * 3 } else { burst *= 2 }
    }
    assert!(most > 100, "no burst was seen on its way: {most}");
    assert!(told > 0, "the collector never had a count");
    println!("{most} messages were seen being handed on");
    let doctor = admin::doctor(&settings, &topology, &Default::default()).unwrap();
    assert!(doctor.findings.iter().all(|it| it.code != FindingCode::StuckDeadLetters), "{doctor:#?}");
}

#[test]
fn stuck_messages_are_reported_everywhere() {
    let settings = new_set(1_000);
    let topology = topology(&settings);
    refusing(&settings, "full");
    let mut collector = Collector::new(settings.clone(), Sources::default());
    publish(&settings, "full", 1, 9);
    let status = eventually_seen(
        "status reports the stuck messages",
        || status(&settings),
        |status| sum(status, |level| level.stuck) > 0,
    );
    let (stuck, due) = (sum(&status, |level| level.stuck), sum(&status, |level| level.handing_on));
    assert_eq!(stuck, due, "{:?}", status.levels);
    // A single look uses the broker's history; a collector also uses its own earlier looks.
    eventually_seen(
        "a single look reports them, too",
        || Collector::new(settings.clone(), Sources::default()).look().clone(),
        |once| (once.stuck, once.verdict.severity) == (Some(stuck), Some(Severity::Problem)),
    );
    let watched = eventually_seen(
        "the collector reports the stuck messages",
        || collector.look().clone(),
        |it| it.stuck == Some(stuck),
    );
    assert!(watched.verdict.headline.starts_with("Level 00 is stuck: "), "{:?}", watched.verdict);
    assert!(watched.levels.iter().any(|level| level.level == 0 && level.stuck_since.is_some()));
    let doctor = || admin::doctor(&settings, &topology, &Default::default()).unwrap();
    eventually_seen("doctor reports them, too", doctor, |doctor| {
        let found = doctor.findings.iter().find(|it| it.code == FindingCode::StuckDeadLetters);
        found.is_some_and(|found| found.apps == ["full"])
    });
}

#[test]
fn a_count_that_is_not_renewed_says_nothing() {
    let node = PrivateNode::start(NodeOptions::default()).unwrap();
    // A busy queue counts late. Here, all queues count every 40 s instead of every 5 s.
    node.tell(&["eval", "application:set_env(rabbit, quorum_tick_interval, 40000)."]).unwrap();
    let settings = node.settings().set("unit_ms", "1000").build().unwrap();
    install(&settings);
    refusing(&settings, "full");
    publish(&settings, "full", 1, 9);
    let mut collector = Collector::new(settings.clone(), Sources::default());
    eventually_seen(
        "the broker has counted the messages",
        || status(&settings),
        |it| sum(it, |level| level.handing_on) == 9,
    );
    let path = format!("queues/{}/delay.level.00", percent::encode(&settings.broker.vhost));
    let path = format!("{path}?lengths_age=60&lengths_incr=5&data_rates_age=60&data_rates_incr=5");
    let shown = || {
        let queue = http(&node, "GET", &path, &json!(null));
        let of = |statistic: &str| queue[statistic]["samples"].as_array().cloned().unwrap_or_default();
        let nines = of("messages_details").iter().filter(|at| at["sample"] == 9).count();
        let renewed: BTreeSet<_> = of("reductions_details")
            .iter()
            .filter_map(|at| at["sample"].as_u64())
            .filter(|it| *it > 0)
            .collect();
        (nines, renewed.len())
    };
    // The API shows the same old count again and again, which is no evidence.
    eventually("the API has shown the count often enough", || {
        let status = status(&settings);
        assert_eq!(sum(&status, |level| level.stuck), 0, "{:?}", status.levels);
        let picture = collector.look();
        assert_eq!((picture.stuck, picture.verdict.severity), (Some(0), None), "{:?}", picture.levels);
        let (nines, counts) = shown();
        // The broker counted at most three times, including the first count, which was zero.
        assert!(counts < 4, "the broker counted {counts} times");
        nines >= 5
    });
    let doctor = admin::doctor(&settings, &topology(&settings), &Default::default()).unwrap();
    assert!(doctor.findings.iter().all(|it| it.code != FindingCode::StuckDeadLetters), "{doctor:#?}");
}
