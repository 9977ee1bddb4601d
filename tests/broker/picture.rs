//! A picture is what the broker says, and what follows from it.

use std::net::TcpListener;

use delayline_admin::{Kept, Selection, Severity, management::ManagementApi};
use delayline_amqp::{Next, Session};
use delayline_client::Router;
use delayline_core::{Message, codec::Delay};
use delayline_node::{NodeOptions, PrivateNode};
use delayline_settings::Settings;
use delayline_watch::picture::{Collector, KeptView, Picture, Sources, Watch};
use jiff::Timestamp;
use serde_json::json;

use crate::common::{
    Inbox, PATIENCE, app, eventually, eventually_seen, install, new_set,
    raw::{message, publish},
    topology, vhost,
};

/// Publishes, and leaves the connection open for as long as it is kept.
fn send(settings: &Settings, key: &str, units: u64, count: usize) -> Router {
    let router = settings.router().connect().unwrap();
    let delay = Delay::from_seconds(units).unwrap();
    for _ in 0..count {
        router.publish(Message::after(app(key), delay, "x")).unwrap();
    }
    router
}

fn level(picture: &Picture, level: u8) -> &delayline_watch::picture::Level {
    picture.levels.iter().find(|found| found.level == level).unwrap()
}

#[test]
fn brokers_count_what_is_published_and_not_what_they_move() {
    let settings = new_set(1);
    let inbox = Inbox::open(&settings, "billing");
    // 2^10 and 2^9 ms: however slow the machine, what is published goes into the first.
    // The broker may forget what a channel published that is closed within seconds.
    let _open = send(&settings, "billing", 3 << 9, 60);
    assert_eq!(inbox.collect(60, PATIENCE).len(), 60);
    let api = ManagementApi::new(settings.management.as_ref().unwrap()).unwrap();
    let published = || {
        let queues = api.queue_counts(&settings.broker.vhost).unwrap();
        let of = |name: &str| queues.iter().find(|queue| queue.name == name).unwrap().message_stats.publish;
        let entry = api.exchange(&settings.broker.vhost, "delay").unwrap().unwrap();
        (of("delay.level.10"), of("delay.level.09"), entry.message_stats.publish_in)
    };
    eventually_seen("what was published is counted where it went in", published, |seen| *seen == (60, 0, 60));
}

#[test]
fn depths_rates_and_bounds_follow_from_what_waits() {
    let settings = new_set(1_000);
    send(&settings, "billing", 1 << 14, 40);
    send(&settings, "billing", 1 << 5, 64);
    let mut collector = Collector::new(settings.clone(), Sources::default());
    let picture = collector.look().clone();
    assert!(picture.broker.reachable && picture.verified.ok == Some(true), "{picture:?}");
    assert_eq!(picture.verdict.headline, "Nothing is held up.");
    assert_eq!(level(&picture, 14).ready, Some(40));
    // 32 s and 31 s of lower bits at most, so it is due within the hour; 4.6 h is not sure
    // within it, and sure within a day.
    let [minute, hour, day] = &picture.forecast[..] else { panic!("{picture:?}") };
    let short = level(&picture, 5).ready.unwrap();
    assert_eq!((minute.at_least, hour.at_least, day.at_least), (0, short, short + 40));
    assert_eq!(day.at_most, short + 40);
    // Once all have gone that came before it was watched, what came in and what went out
    // are what was there.
    let seen = eventually_seen(
        "32 s later, what went out is known",
        || collector.look().clone(),
        |picture| level(picture, 5).out_per_s.is_some(),
    );
    let out = level(&seen, 5).out_per_s.unwrap();
    assert!((0.0..=2.0).contains(&out), "{out}");
    assert_eq!(level(&seen, 14).out_per_s, None);
    // All that ever came: 104 into the entry exchange, and what was seen of it by the
    // first look is not counted again.
    assert!(seen.rates.entry_per_s.is_some_and(|rate| rate <= 104.0 / 30.0), "{:?}", seen.rates);
}

#[test]
fn kept_messages_are_grouped_and_stay() {
    let settings = new_set(1_000);
    send(&settings, "nobody", 0, 7);
    send(&settings, "noone.else", 0, 2);
    let look = |kept| KeptView::look(&kept, &settings, &topology(&settings)).unwrap();
    let view = look(Kept::Unroutable);
    assert_eq!((view.report.waiting, view.report.examined, view.others), (9, 9, 0));
    let groups: Vec<_> =
        view.report.groups.iter().map(|it| (it.cause.app.as_deref(), it.group.count)).collect();
    assert_eq!(groups, [(Some("nobody"), 7), (Some("noone.else"), 2)]);
    assert_eq!(look(Kept::Parked).report.waiting, 0);

    // Looked at again and again, none is gone, and the count does not dip.
    let watch = Watch::start(settings, Sources::default());
    let live = watch.live();
    eventually("it is counted", || live.picture().unroutable == Some(9));
    for _ in 0..2 {
        let before = live.kept(&Kept::Unroutable).map(|report| report.at);
        eventually("it is looked at again", || {
            assert_eq!(live.picture().unroutable, Some(9));
            live.kept(&Kept::Unroutable).is_some_and(|report| Some(report.at) != before)
        });
    }
    let report = live.kept(&Kept::Unroutable).unwrap().report;
    assert_eq!((report.waiting, report.unchecked), (9, Vec::new()));
}

#[test]
fn who_looks_for_one_message_takes_one_out_of_the_queue() {
    let settings = new_set(1_000);
    let topology = topology(&settings);
    publish(&settings, (0..30).map(|_| message("delay", "nonsense", "x", &json!({}))).collect::<Vec<_>>());
    publish(&settings, (0..30).map(|_| message("delay.parked", "app", "x", &json!({}))).collect::<Vec<_>>());
    let all = Selection::default();
    let looks = [
        Kept::Unroutable.messages(&settings, &topology, &all, (1, 0), |_| {}).unwrap(),
        Kept::Parked.messages(&settings, &topology, &all, (1, 0), |_| {}).unwrap(),
    ];
    for (look, queue) in looks.iter().zip(["delay.unroutable", "delay.parked"]) {
        assert_eq!((look.waiting, look.examined, &look.failure), (30, 1, &None), "{queue}");
        // The broker marks what it has handed out before.
        let mut session = Session::open(&settings.broker).unwrap();
        let consumer = session.consume(queue, 30).unwrap();
        let marks = (0..30).map(|_| match consumer.next(PATIENCE) {
            Next::Delivery(delivery) => delivery.redelivered,
            other => panic!("{queue}: {other:?}"),
        });
        assert_eq!(marks.filter(|marked| *marked).count(), 1, "{queue}");
    }
}

#[test]
fn the_age_of_the_oldest_is_found_out_for_whoever_wants_it() {
    let settings = new_set(1_000);
    send(&settings, "nobody", 0, 3);
    let sent = Timestamp::now();
    let watch = Watch::start(settings, Sources { ages: true, ..Sources::default() });
    let live = watch.live();
    let picture = eventually_seen(
        "the first message was looked at",
        || live.picture(),
        // Until then it is as old as it has been seen to be there.
        |picture| picture.unroutable_oldest.is_some_and(|oldest| oldest <= sent),
    );
    assert_eq!((picture.unroutable, picture.parked_oldest), (Some(3), None));
    // It stays known, and the count does not dip, while all are looked at.
    eventually("all are looked at", || {
        let picture = live.picture();
        assert_eq!((picture.unroutable, picture.unroutable_last_minute.unwrap_or(0)), (Some(3), 0));
        assert!(picture.unroutable_oldest.is_some_and(|oldest| oldest <= sent));
        live.kept(&Kept::Unroutable).is_some_and(|view| view.report.examined == 3 && view.first.is_some())
    });
}

#[test]
fn a_management_api_that_does_not_answer_is_not_a_broker_that_does_not() {
    let mut settings = new_set(1_000);
    // Its system takes connections, and nobody reads them.
    let deaf = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", deaf.local_addr().unwrap());
    settings.management.as_mut().unwrap().url = url.parse().unwrap();
    let watch = Watch::start(settings, Sources::default());
    let live = watch.live();
    let mut seen = Vec::new();
    eventually("it is asked, in vain, more than once", || {
        let picture = live.picture();
        assert!(picture.broker.reachable || picture.counted.is_none(), "{:?}", picture.broker);
        if picture.unchecked.iter().any(|unchecked| unchecked.contains("management API"))
            && !seen.contains(&picture.at)
        {
            seen.push(picture.at);
        }
        seen.len() == 10
    });
    let picture = live.picture();
    assert_eq!(picture.verdict.headline, "Nothing is known to be held up; stuck messages cannot be seen.");
    assert!(picture.levels.iter().all(|level| level.ready == Some(0) && level.stuck.is_none()));
}

#[test]
fn says_what_cannot_be_seen() {
    let nothing = vhost().build().unwrap();
    let mut collector = Collector::new(nothing, Sources::default());
    let picture = collector.look();
    assert_eq!(picture.verdict.headline, "The set `delay` is not installed.");
    assert!(picture.levels.iter().all(|level| level.ready.is_none()) && picture.unroutable.is_none());

    let settings = new_set(1_000);
    send(&settings, "billing", 1 << 20, 3);
    let mut without = settings.clone();
    without.management = None;
    let mut collector = Collector::new(without, Sources::default());
    let picture = collector.look();
    assert_eq!((level(picture, 20).ready, level(picture, 20).stuck), (Some(3), None));
    assert_eq!((picture.stuck, picture.rates.entry_per_s), (None, None));
    assert_eq!(picture.verdict.headline, "Nothing is known to be held up; stuck messages cannot be seen.");
    assert!(picture.verified.ok == Some(true) && picture.verified.is_partial(), "{:?}", picture.verified);
    assert!(picture.unchecked[0].contains("stuck messages and what is published"), "{:?}", picture.unchecked);

    let mut unreachable = settings;
    // Nobody listens on the port of nothing.
    unreachable.broker.port = 1;
    let mut collector = Collector::new(unreachable, Sources::default());
    let first = collector.look().clone();
    assert_eq!(first.verdict.severity, Some(Severity::Problem));
    assert!(
        first.broker.problem.as_ref().is_some_and(|problem| problem.contains("127.0.0.1:1")),
        "{first:?}"
    );
    // Since the first time, not since the last.
    assert_eq!(collector.look().broker.since, first.broker.since);
}

#[test]
fn a_broker_that_was_killed_is_gone_before_anybody_looks_again() {
    let mut node = PrivateNode::start(NodeOptions::default()).unwrap();
    let settings = node.settings().build().unwrap();
    install(&settings);
    let watch = Watch::start(settings, Sources::default());
    let live = watch.live();
    // A look that is under way at this very moment would see it first.
    for _ in 0..5 {
        eventually("the broker is there", || live.latest().broker.reachable);
        let before = live.latest().at;
        eventually("it was looked at just now", || live.latest().at != before);
        node.kill();
        let gone = loop {
            let picture = live.latest();
            if !picture.broker.reachable {
                break picture;
            }
            std::thread::yield_now();
        };
        assert_eq!(gone.verdict.headline, "The broker cannot be reached.");
        if gone.broker.problem.is_some_and(|problem| problem.contains("lost a moment ago")) {
            // Looking says more.
            let problem = || live.latest().broker.problem.unwrap_or_default();
            eventually_seen("it was looked at", problem, |problem| problem.contains("cannot reach"));
            return;
        }
        node.restart().unwrap();
    }
    panic!("each time somebody had to look");
}
