//! Messages on their way between queues are not stuck, and messages that do not move are.

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

use crate::common::{
    PATIENCE, app, eventually, eventually_seen, http, install, new_set, refusing, status, topology,
};

fn receives(session: &mut Session, key: &str) {
    let arguments = [("x-queue-type".to_owned(), "quorum".into())];
    session.declare_queue(&Queue::new(key).with_arguments(arguments)).unwrap();
    let (source, destination) = ("delay.dispatch".into(), Endpoint::Queue(key.into()));
    session.bind(&Binding { source, destination, key: RoutingKey::binding_pattern(&app(key)) }).unwrap();
}

/// Publishes messages that fall due together, so many seconds from now, however long it takes to
/// publish them; but not before a second has passed.
fn publish(settings: &Settings, key: &str, seconds: u64, count: u64) {
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
}

fn sum(status: &Picture, of: fn(&Level) -> Option<u64>) -> u64 {
    status.levels.iter().map(|level| of(level).unwrap()).sum()
}

#[test]
fn a_burst_that_is_being_handed_on_is_not_stuck() {
    let settings = new_set(1_000);
    let topology = topology(&settings);
    let mut session = Session::open(&settings.broker).unwrap();
    receives(&mut session, "busy");
    let mut collector = Collector::new(settings.clone(), Sources::default());
    let (mut most, mut all, mut told) = (0, 0, 0);
    // The broker counts every 5 s, and a small burst can be over in between. A burst that falls
    // due as slowly as it was published never piles up, so all of it falls due in one second.
    for burst in [15_000, 30_000, 60_000, 120_000] {
        publish(&settings, "busy", 12, burst);
        // Arrivals are counted in their queue, since the counts of messages on their way are old.
        all += burst;
        let arrived = |session: &mut Session| u64::from(session.queue_depth("busy").unwrap().unwrap().ready);
        let (mut last, mut until) = (0, Instant::now() + PATIENCE);
        loop {
            let status = status(&settings);
            assert_eq!(sum(&status, |level| level.stuck), 0, "{:?}", status.levels);
            most = most.max(sum(&status, |level| level.handing_on));
            let picture = collector.look();
            // A busy broker may not answer in time; then the picture has no count.
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
            assert!(Instant::now() < until, "it does not arrive: {status:?}");
        }
        if most > 100 {
            break;
        }
    }
    assert!(most > 100, "no burst was seen on its way: {most}");
    assert!(told > 0, "the collector never learned it");
    println!("{most} messages were seen being handed on");
    let doctor = admin::doctor(&settings, &topology, &Default::default()).unwrap();
    assert!(doctor.findings.iter().all(|it| it.code != FindingCode::StuckDeadLetters), "{doctor:#?}");
}

#[test]
fn what_does_not_move_is_stuck_in_every_answer() {
    let settings = new_set(1_000);
    let topology = topology(&settings);
    refusing(&settings, "full");
    let mut collector = Collector::new(settings.clone(), Sources::default());
    publish(&settings, "full", 1, 9);
    let status = eventually_seen(
        "status says so",
        || status(&settings),
        |status| sum(status, |level| level.stuck) > 0,
    );
    let (stuck, due) = (sum(&status, |level| level.stuck), sum(&status, |level| level.handing_on));
    assert_eq!(stuck, due, "{:?}", status.levels);
    // Who looks once has what the broker remembers; who watches, what it saw.
    let once = Collector::new(settings.clone(), Sources::default()).look().clone();
    assert_eq!((once.stuck, once.verdict.severity), (Some(stuck), Some(Severity::Problem)), "{once:?}");
    let watched =
        eventually_seen("who watches says so", || collector.look().clone(), |it| it.stuck == Some(stuck));
    assert!(watched.verdict.headline.starts_with("Level 00 is stuck: "), "{:?}", watched.verdict);
    assert!(watched.levels.iter().any(|level| level.level == 0 && level.stuck_since.is_some()));
    let doctor = admin::doctor(&settings, &topology, &Default::default()).unwrap();
    let found = doctor.findings.iter().find(|it| it.code == FindingCode::StuckDeadLetters);
    assert!(found.is_some_and(|found| found.apps == ["full"]), "{doctor:#?}");
}

#[test]
fn a_count_that_is_not_renewed_says_nothing() {
    let node = PrivateNode::start(NodeOptions::default()).unwrap();
    // A queue that is busy counts late. Here all do, every 40 s instead of every 5.
    node.tell(&["eval", "application:set_env(rabbit, quorum_tick_interval, 40000)."]).unwrap();
    let settings = node.settings().set("unit_ms", "1000").build().unwrap();
    install(&settings);
    refusing(&settings, "full");
    publish(&settings, "full", 1, 9);
    let mut collector = Collector::new(settings.clone(), Sources::default());
    eventually_seen("the broker counts", || status(&settings), |it| sum(it, |level| level.handing_on) == 9);
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
    // It is shown time and again, and that alone does not make it true any longer.
    eventually("it is shown often enough to be believed", || {
        let status = status(&settings);
        assert_eq!(sum(&status, |level| level.stuck), 0, "{:?}", status.levels);
        let picture = collector.look();
        assert_eq!((picture.stuck, picture.verdict.severity), (Some(0), None), "{:?}", picture.levels);
        let (nines, counts) = shown();
        // And was counted three times at most, with the first one that saw nothing.
        assert!(counts < 4, "it was counted {counts} times");
        nines >= 5
    });
    let doctor = admin::doctor(&settings, &topology(&settings), &Default::default()).unwrap();
    assert!(doctor.findings.iter().all(|it| it.code != FindingCode::StuckDeadLetters), "{doctor:#?}");
}
