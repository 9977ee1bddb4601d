//! The picture of a set: the broker's numbers, and the conclusions from them.

use std::net::TcpListener;

use delayline_admin::{self as admin, Kept, Selection, Severity};
use delayline_amqp::{Next, Session};
use delayline_broker::ManagementApi;
use delayline_client::Router;
use delayline_core::{Message, codec::Delay};
use delayline_settings::Settings;
use delayline_watch::picture::{Collector, KeptView, Picture, Sources, Watch};
use jiff::Timestamp;
use serde_json::json;

use crate::common::Counting;
use crate::common::{
    Inbox, NO_SIGNAL, PATIENCE, app, eventually, eventually_seen, new_set,
    raw::{message, publish},
    topology, vhost,
};

/// Publishes messages, and returns the router, which keeps the connection open.
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
    // 2^12 and 2^11 ms, so that all messages enter at the first of the two levels, even on a slow
    // machine. The broker may lose the count of a channel that is closed within seconds.
    let _open = send(&settings, "billing", 3 << 11, 60);
    assert_eq!(inbox.collect(60, PATIENCE).len(), 60);
    let api = ManagementApi::new(settings.management.as_ref().unwrap()).unwrap();
    let published = || {
        let queues = api.queue_counts(&settings.broker.vhost, None).unwrap();
        let of = |name: &str| queues.iter().find(|queue| queue.name == name).unwrap().message_stats.publish;
        let entry = api.exchange(&settings.broker.vhost, "delay").unwrap().unwrap();
        (of("delay.level.12"), of("delay.level.11"), entry.message_stats.publish_in)
    };
    eventually_seen("messages are counted at the level where they entered", published, |seen| {
        *seen == (60, 0, 60)
    });
}

#[test]
fn rates_and_estimates_follow_from_the_counts_of_the_broker() {
    let settings = new_set(1_000);
    send(&settings, "billing", 1 << 14, 40);
    send(&settings, "billing", 1 << 5, 64);
    let mut collector = Collector::new(settings.clone(), Sources::default());
    // The broker counts the messages of a new queue after some seconds.
    let look = || collector.look().clone();
    let picture = eventually_seen("the broker has counted", look, |picture| {
        picture.verdict.headline == "No message is stuck."
            && (level(picture, 14).ready, picture.verified.ok) == (Some(40), Some(true))
    });
    assert!(picture.broker.reachable, "{picture:?}");
    // The forecast counts messages only if they are certainly due. Level 5 holds them for 32 s, and
    // lower levels for at most 31 s more, so they are due within the hour. Those with 4.6 h are
    // certainly due within a day.
    let [minute, hour, day] = &picture.forecast[..] else { panic!("{picture:?}") };
    let short = level(&picture, 5).ready.unwrap();
    assert_eq!((minute.at_least, hour.at_least, day.at_least), (0, short, short + 40));
    assert_eq!(day.estimate, short + 40);
    let rates = || collector.look().rates.clone();
    let seen =
        eventually_seen("rates are measured after 10 s", rates, |rates| rates.dispatch_per_s.is_some());
    // At most all 104 messages within at least 10 s.
    for rate in [seen.entry_per_s, seen.dispatch_per_s] {
        assert!(rate.is_some_and(|rate| (0.0..=10.4).contains(&rate)), "{seen:?}");
    }
}

#[test]
fn a_set_that_goes_is_missed_at_once() {
    let settings = new_set(1_000);
    let mut collector = Collector::new(settings.clone(), Sources::default());
    let compared = || collector.look().verified.clone();
    let well =
        eventually_seen("the set matches", compared, |seen| seen.ok == Some(true) && !seen.unchecked_for_now);
    assert_eq!(well.installed, Some(true));
    admin::uninstall(&settings, &topology(&settings), true, &NO_SIGNAL).unwrap().unwrap();
    // The next comparison would be due in a minute.
    assert_eq!(collector.look().verified.installed, Some(false));
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

    // Repeated looks remove no message, and the count never drops.
    let watch = Watch::start(settings, Sources::default());
    let live = watch.live();
    eventually("the messages are counted", || live.picture().unroutable == Some(9));
    for _ in 0..2 {
        let before = live.kept(&Kept::Unroutable).map(|report| report.at);
        eventually("the queue is read again", || {
            assert_eq!(live.picture().unroutable, Some(9));
            live.kept(&Kept::Unroutable).is_some_and(|report| Some(report.at) != before)
        });
    }
    let report = live.kept(&Kept::Unroutable).unwrap().report;
    assert_eq!((report.waiting, report.unchecked), (9, Vec::new()));
}

#[test]
fn looking_for_one_message_takes_only_one_out_of_the_queue() {
    let settings = new_set(1_000);
    let topology = topology(&settings);
    publish(&settings, (0..30).map(|_| message("delay", "nonsense", "x", &json!({}))).collect::<Vec<_>>());
    publish(&settings, (0..30).map(|_| message("delay.parked", "app", "x", &json!({}))).collect::<Vec<_>>());
    // The broker has read them, and stores them.
    let mut session = Session::open(&settings.broker).unwrap();
    for queue in ["delay.unroutable", "delay.parked"] {
        eventually("all messages are kept", || session.counts(queue).unwrap().unwrap().ready == 30);
    }
    let all = Selection::default();
    let looks = [
        Kept::Unroutable.messages(&settings, &topology, &all, (1, 0), |_| {}).unwrap(),
        Kept::Parked.messages(&settings, &topology, &all, (1, 0), |_| {}).unwrap(),
    ];
    for (look, queue) in looks.iter().zip(["delay.unroutable", "delay.parked"]) {
        assert_eq!((look.waiting, look.examined, &look.failure), (30, 1, &None), "{queue}");
        // The broker marks messages that were delivered before.
        let consumer = session.consume(queue, 30).unwrap();
        let marks = (0..30).map(|_| match consumer.next(PATIENCE) {
            Next::Delivery(delivery) => delivery.redelivered,
            other => panic!("{queue}: {other:?}"),
        });
        assert_eq!(marks.filter(|marked| *marked).count(), 1, "{queue}");
    }
}

#[test]
fn the_age_of_the_oldest_message_is_found_on_request() {
    let settings = new_set(1_000);
    send(&settings, "nobody", 0, 3);
    let sent = Timestamp::now();
    let watch = Watch::start(settings, Sources { ages: true, ..Sources::default() });
    let live = watch.live();
    let picture = eventually_seen(
        "the first message was read",
        || live.picture(),
        // Before that, the age counts from the first look that saw the message.
        |picture| picture.unroutable_oldest.is_some_and(|oldest| oldest <= sent),
    );
    assert_eq!((picture.unroutable, picture.parked_oldest), (Some(3), None));
    // While all messages are read, the age stays known, and the count never drops.
    eventually("all messages are read", || {
        let picture = live.picture();
        assert_eq!((picture.unroutable, picture.unroutable_last_minute.unwrap_or(0)), (Some(3), 0));
        assert!(picture.unroutable_oldest.is_some_and(|oldest| oldest <= sent));
        live.kept(&Kept::Unroutable).is_some_and(|view| view.report.examined == 3 && view.first.is_some())
    });
}

#[test]
fn a_management_api_that_does_not_answer_is_not_a_broker_that_does_not() {
    let mut settings = new_set(1_000);
    // A server that accepts connections but never reads.
    let deaf = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", deaf.local_addr().unwrap());
    settings.management.as_mut().unwrap().url = url.parse().unwrap();
    let watch = Watch::start(settings, Sources::default());
    let live = watch.live();
    let mut seen = Vec::new();
    eventually("the API is asked several times in vain", || {
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
    assert_eq!(picture.verdict.headline, "No problem is known, but stuck messages cannot be counted.");
    assert!(picture.levels.iter().all(|level| level.ready == Some(0) && level.stuck.is_none()));
}

#[test]
fn unknown_numbers_are_reported() {
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
    assert_eq!(picture.verdict.headline, "No problem is known, but stuck messages cannot be counted.");
    assert!(picture.verified.ok == Some(true) && picture.verified.is_partial(), "{:?}", picture.verified);
    assert!(picture.unchecked[0].contains("stuck and published messages"), "{:?}", picture.unchecked);

    let mut unreachable = settings;
    // No server listens on port 1.
    unreachable.broker.port = 1;
    let mut collector = Collector::new(unreachable, Sources::default());
    let first = collector.look().clone();
    assert_eq!(first.verdict.severity, Some(Severity::Problem));
    assert!(
        first.broker.problem.as_ref().is_some_and(|problem| problem.contains("127.0.0.1:1")),
        "{first:?}"
    );
    // The time of the first failure, not of the last.
    assert_eq!(collector.look().broker.since, first.broker.since);
}
