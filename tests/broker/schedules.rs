//! Recurring schedules, published by daemons that are stopped and killed.

mod own;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use delayline_admin::{
    self as admin, AppQueue, AppSpec, Applied, ApplyOptions, Delivery, FindingCode, Platform,
};
use delayline_amqp::{Session, broker::Secret};
use delayline_core::{
    message::Value,
    topology::{Names, RecallSettings},
};
use delayline_node::{NodeOptions, PrivateNode};
use delayline_schedules::{
    self as schedules, Change, Changed, Missed, ScheduleName, ScheduleStats, ScheduleSummary, Scheduler,
    Spec, State, Timing,
};
use delayline_settings::Settings;

use crate::common::Counting;
use crate::common::{
    Arrival, Inbox, NO_SIGNAL, PATIENCE, app,
    daemon::{Daemon, serve_as},
    eventually, eventually_seen, install, installed, revive, topology,
};

/// The parts of a daemon that these tests do not need.
const ONLY_SCHEDULES: [&str; 6] =
    ["--no-web", "--no-canary", "--no-retry", "--no-sweep", "--no-unstick", "--no-gateways"];

fn name(text: &str) -> ScheduleName {
    text.parse().unwrap()
}

/// A schedule with an interval in units.
fn every(units: u64) -> Spec {
    let every = delayline_core::codec::Delay::from_seconds(units).unwrap();
    let mut spec = Spec::new(app("billing"), Timing::Every { every });
    spec.body = b"again".to_vec();
    spec
}

fn delay(units: u64) -> delayline_core::codec::Delay {
    delayline_core::codec::Delay::from_seconds(units).unwrap()
}

fn set(settings: &Settings, of: &str, spec: &Spec) -> schedules::ScheduleChange {
    schedules::change(settings, &topology(settings), &name(of), Change::Set(spec), false).unwrap()
}

fn change(settings: &Settings, of: &str, change: Change<'_>) -> schedules::ScheduleChange {
    schedules::change(settings, &topology(settings), &name(of), change, false).unwrap()
}

/// Waits until a daemon has recalled the messages that a change made stale, if it took longer than the change.
fn all_recalled(settings: &Settings, changed: &schedules::ScheduleChange) {
    assert!(changed.recall && changed.recalled.is_some(), "{changed:?}");
    eventually("all are recalled", || {
        let book = schedules::read(settings, &topology(settings)).unwrap().unwrap();
        book.to_be_recalled(&changed.schedule) == 0
    });
}

fn listed(settings: &Settings) -> Vec<ScheduleSummary> {
    schedules::list(settings, &topology(settings), None).unwrap().schedules
}

fn occurrence(arrival: &Arrival) -> i64 {
    arrival.headers.get("delayline-occurrence").and_then(Value::as_i64).unwrap()
}

/// Registers the application `billing`, whose messages can be recalled, and consumes them.
fn billing(settings: &Settings) -> Inbox {
    let recall = Some(RecallSettings::default());
    let delivery = Delivery::Direct(AppQueue { existing: true, ..AppQueue::new("in.billing") });
    let inbox = Inbox::open(settings, "billing");
    let spec = AppSpec { recall, ..AppSpec::new(app("billing"), delivery) };
    let report = admin::add_app(settings, &topology(settings), &spec, false, false).unwrap();
    assert_eq!(report.outcome, Applied::Installed, "{report:?}");
    inbox
}

/// Publishes schedules while `work` runs.
fn while_published<T>(settings: &Settings, work: impl FnOnce(&ScheduleStats) -> T) -> T {
    let (stop, stats) = (AtomicBool::new(false), Arc::new(ScheduleStats::default()));
    thread::scope(|scope| {
        let scheduler = Scheduler::new(settings.clone(), Arc::clone(&stats));
        scope.spawn(|| scheduler.run(&stop));
        // Also if it panics.
        struct Stopping<'a>(&'a AtomicBool);
        impl Drop for Stopping<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let _stopping = Stopping(&stop);
        work(&stats)
    })
}

#[test]
fn what_was_published_ahead_is_recalled_by_a_pause_and_replaced_by_a_change() {
    let settings = installed(10);
    let inbox = billing(&settings);
    // Every second.
    let mut spec = every(100);
    spec.headers.insert("kind".into(), "news".into());
    spec.content_type = Some("text/plain".into());
    let added = set(&settings, "news", &spec);
    assert_eq!((added.outcome, added.daemons, added.recall), (Changed::Added, Some(0), true));
    assert_eq!(set(&settings, "news", &spec).outcome, Changed::Unchanged);
    let options = admin::DoctorOptions { sample: 0, ..admin::DoctorOptions::default() };
    // The broker's count of consumers is some seconds old.
    eventually_seen(
        "the doctor misses a daemon",
        || admin::doctor(&settings, &topology(&settings), &options).unwrap().findings,
        |findings| findings.iter().any(|finding| finding.code == FindingCode::SchedulesUnserved),
    );

    while_published(&settings, |stats| {
        // On a busy machine, one can overtake another.
        let mut first = BTreeMap::new();
        while !first.keys().zip(first.keys().skip(1)).any(|(one, next)| next - one == 1_000) {
            let arrival = inbox.next(PATIENCE).unwrap();
            first.insert(occurrence(&arrival), arrival);
        }
        for arrival in first.values() {
            assert_eq!(occurrence(arrival) % 1_000, 0);
            assert!(arrival.at.as_millisecond() >= occurrence(arrival), "early: {arrival:?}");
            let at = jiff::Timestamp::from_millisecond(occurrence(arrival)).unwrap();
            assert_eq!(arrival.id, at.strftime("news@%Y-%m-%dT%H:%M:%S+00:00").to_string());
            assert_eq!(arrival.headers["delayline-schedule"], "news".into());
            assert_eq!(arrival.headers["kind"], "news".into());
            assert_eq!(arrival.properties.content_type.as_deref(), Some("text/plain"));
            assert_eq!(arrival.body, b"again");
        }
        eventually_seen(
            "the daemon counts what it publishes",
            || stats.counts(),
            |counts| counts.leads && counts.schedules.get("news").is_some_and(|line| line.published > 400),
        );

        let paused = change(&settings, "news", Change::Pause);
        assert_eq!(paused.outcome, Changed::Paused);
        assert!(paused.ahead > 400, "{paused:?}");
        all_recalled(&settings, &paused);
        assert_eq!(listed(&settings)[0].state, State::Paused);
        // Messages that were due before the pause may still be on their way. Later ones are not delivered.
        let at = jiff::Timestamp::now().as_millisecond() + 2_000;
        let recalled = Names::new(settings.topology.set.clone()).recalled(&app("billing"));
        let mut session = Session::open(&settings.broker).unwrap();
        eventually("recalled messages are due", || {
            session.counts(&recalled).unwrap().is_some_and(|depth| depth.ready >= 5)
        });
        while let Some(arrival) = inbox.next(Duration::ZERO) {
            assert!(occurrence(&arrival) <= at, "{arrival:?}");
        }

        // It is changed while it is paused, and goes on with other contents.
        spec.body = b"other".to_vec();
        assert_eq!(set(&settings, "news", &spec).outcome, Changed::Changed);
        assert_eq!(listed(&settings)[0].state, State::Paused);
        let before = jiff::Timestamp::now().as_millisecond();
        assert_eq!(change(&settings, "news", Change::Resume).outcome, Changed::Resumed);
        let resumed = inbox.next(PATIENCE).unwrap();
        assert_eq!(resumed.body, b"other");
        assert!(occurrence(&resumed) > before, "occurrences during the pause are left out");

        // A change replaces what waits: no message of both is missing, and none comes twice.
        spec.body = b"third".to_vec();
        let is_ahead = || listed(&settings)[0].ahead > 0;
        eventually("messages wait again", is_ahead);
        let changed = set(&settings, "news", &spec);
        assert_eq!(changed.outcome, Changed::Changed);
        all_recalled(&settings, &changed);
        let mut seen = BTreeMap::from([(occurrence(&resumed), resumed.body)]);
        let until = Instant::now() + PATIENCE;
        let whole = |seen: &BTreeMap<i64, Vec<u8>>| {
            seen.keys().zip(seen.keys().skip(1)).all(|(one, next)| next - one == 1_000)
                && seen.values().filter(|body| *body == b"third").count() >= 3
        };
        while !whole(&seen) {
            assert!(Instant::now() < until, "{seen:?}");
            let arrival = inbox.next(PATIENCE).unwrap();
            seen.insert(occurrence(&arrival), arrival.body);
        }

        let id = schedules::run_now(&settings, &topology(&settings), &name("news")).unwrap();
        eventually("it is published once more", || inbox.next(PATIENCE).unwrap().id == id);
        eventually("messages wait again", is_ahead);
        let removed = change(&settings, "news", Change::Remove);
        assert_eq!(removed.outcome, Changed::Removed);
        all_recalled(&settings, &removed);
        assert!(listed(&settings).is_empty());
    });
    let unknown = schedules::change(&settings, &topology(&settings), &name("news"), Change::Pause, false);
    assert!(unknown.unwrap_err().to_string().contains("delayline schedule list"));
}

/// An outage of 7,200 units, with schedules of 60 units.
#[test]
fn an_outage_misses_nothing_that_was_published_ahead_and_the_rest_is_sent_as_wanted() {
    let settings = installed(1);
    let inbox = billing(&settings);
    let near = |missed| {
        let mut spec = every(60);
        (spec.ahead, spec.missed) = (delay(600), missed);
        spec
    };
    set(&settings, "ahead", &every(60));
    for missed in [Missed::Skip, Missed::Once, Missed::All] {
        set(&settings, missed.as_str(), &near(missed));
    }
    let now = || jiff::Timestamp::now().as_millisecond();
    let is_published = || listed(&settings).iter().all(|it| it.ahead > 1);
    while_published(&settings, |_| eventually("all are published", is_published));
    let stopped = now();
    thread::sleep(Duration::from_millis(7_200));
    let started = now();
    // From the last occurrence that was published ahead until the daemon came back.
    let (from, to) = (stopped + 1_200, started - 200);
    let complete = ((to - from) / 60) as usize;
    let in_the_outage = |seen: &BTreeMap<String, BTreeSet<i64>>, of: &str| {
        seen.get(of).into_iter().flatten().filter(|at| **at > from && **at < to).count()
    };
    let mut by_schedule: BTreeMap<String, BTreeSet<i64>> = BTreeMap::new();
    while_published(&settings, |_| {
        let until = Instant::now() + PATIENCE;
        let reached =
            |found: Option<&BTreeSet<i64>>| found.is_some_and(|it| it.last() > Some(&(started + 500)));
        // Late ones may come after later ones.
        while !["ahead", "skip", "once", "all"].iter().all(|it| reached(by_schedule.get(*it)))
            || ["ahead", "all"].iter().any(|it| in_the_outage(&by_schedule, it) < complete - 1)
        {
            let arrival = inbox.next(PATIENCE).unwrap();
            assert!(arrival.at.as_millisecond() >= occurrence(&arrival), "early: {arrival:?}");
            let Some(Value::Text(of)) = arrival.headers.get("delayline-schedule") else {
                panic!("{arrival:?}")
            };
            by_schedule.entry(of.clone()).or_default().insert(occurrence(&arrival));
            assert!(Instant::now() < until, "{by_schedule:?}");
        }
    });
    assert_eq!(in_the_outage(&by_schedule, "skip"), 0, "{by_schedule:?}");
    assert!(in_the_outage(&by_schedule, "once") <= 1, "{by_schedule:?}");
    for of in ["skip", "once", "all", "ahead"] {
        change(&settings, of, Change::Remove);
    }
}

/// Occurrences without a gap, until there are `number`.
fn without_a_gap(inbox: &mut Inbox, ms: i64, number: usize, mut disturb: impl FnMut(usize, &mut Inbox)) {
    let mut seen: BTreeMap<i64, BTreeSet<String>> = BTreeMap::new();
    let deadline = Instant::now() + 3 * PATIENCE;
    loop {
        disturb(seen.len(), inbox);
        if let Some(arrival) = inbox.next(Duration::from_secs(1)) {
            assert!(arrival.at.as_millisecond() >= occurrence(&arrival), "early: {arrival:?}");
            seen.entry(occurrence(&arrival)).or_default().insert(arrival.id);
        }
        // A late one fills the gap.
        let times: Vec<_> = seen.keys().copied().collect();
        let whole = times.windows(2).all(|two| two[1] - two[0] == ms);
        if whole && times.len() >= number {
            break;
        }
        assert!(Instant::now() < deadline, "{seen:?}");
    }
    assert!(seen.values().all(|ids| ids.len() == 1), "an occurrence has one id: {seen:?}");
}

#[test]
fn of_two_daemons_either_may_be_killed() {
    let settings = installed(10);
    let mut inbox = billing(&settings);
    let user = format!("daemon-of-{}", settings.broker.vhost);
    admin::add_daemon_user(&settings, &topology(&settings), (&user, Some(Secret::new(&user))), None, false)
        .unwrap();
    let mut spec = every(50);
    (spec.ahead, spec.missed) = (delay(400), Missed::All);
    set(&settings, "beat", &spec);
    let daemon = || {
        let mut command = serve_as(&user, &settings);
        command.args(ONLY_SCHEDULES);
        Daemon::with(tempfile::tempdir().unwrap(), command)
    };
    let mut daemons = [daemon(), daemon()];
    let mut kills = 0;
    without_a_gap(&mut inbox, 500, 30, |seen, _| {
        if seen / 6 > kills {
            let daemon = &mut daemons[kills % 2];
            daemon.kill();
            daemon.again();
            kills += 1;
        }
    });
    assert!(kills >= 4, "{kills}");
    for daemon in &mut daemons {
        assert_eq!(daemon.stop(), Some(0), "{}", daemon.log());
    }
    let log: String = daemons.iter().map(Daemon::log).collect();
    assert!(log.matches("schedules are published here").count() >= 2, "{log}");
    change(&settings, "beat", Change::Remove);
}

#[test]
fn a_killed_node_loses_no_schedule_and_no_occurrence() {
    // Messages that were in hand-over are offered again after five seconds, and not after three minutes.
    let rabbit = vec!["{dead_letter_worker_publisher_confirm_timeout, 5000}".into()];
    let mut node = PrivateNode::start(NodeOptions { rabbit, ..NodeOptions::default() }).unwrap();
    let settings = node.settings().set("unit_ms", "10").set("heartbeat", "1").build().unwrap();
    install(&settings);
    let mut inbox = billing(&settings);
    let mut spec = every(50);
    (spec.ahead, spec.missed) = (delay(400), Missed::All);
    set(&settings, "beat", &spec);
    node.write_down_queues().unwrap();
    let mut killed = false;
    while_published(&settings, |_| {
        without_a_gap(&mut inbox, 500, 40, |seen, inbox| {
            if seen >= 10 && !killed {
                killed = true;
                node.kill();
                revive(&mut node);
                inbox.reopen();
            }
            if killed && seen % 5 == 0 {
                // Messages in hand-over would wait for minutes.
                let _ = admin::unstick(&settings, &topology(&settings), &admin::UnstickOptions::default());
            }
        });
    });
    assert_eq!(listed(&settings).len(), 1);
}

#[test]
fn a_platform_file_has_schedules_and_a_set_with_schedules_stays() {
    let settings = installed(1_000);
    let topology = topology(&settings);
    let platform = |schedules: &str| {
        let text =
            format!("[sets.delay]\n[sets.delay.apps.billing]\nno_user = true\nrecall = true\n{schedules}");
        Platform::parse(&text, &settings.topology).unwrap()
    };
    let apply = |platform: &Platform, prune, dry_run| {
        let options = ApplyOptions { prune, dry_run };
        admin::apply(&settings, platform, options, &NO_SIGNAL, |_, _| {}).unwrap()
    };
    let outcomes = |report: &admin::ApplyReport| {
        report.sets[0].schedules.iter().map(|it| it.outcome).collect::<Vec<_>>()
    };
    let one =
        platform("[[schedules]]\nname = 'news'\napp = 'billing'\ncron = '@daily'\nzone = 'Europe/Berlin'\n");
    assert_eq!(outcomes(&apply(&one, false, true)), [Changed::Added]);
    assert!(listed(&settings).is_empty());
    let applied = apply(&one, false, false);
    assert_eq!((applied.outcome, outcomes(&applied)), (Applied::Installed, vec![Changed::Added]));
    let again = apply(&one, false, true);
    assert_eq!(
        (again.outcome, outcomes(&again)),
        (Applied::Unchanged, vec![Changed::Unchanged]),
        "{again:#?}"
    );
    let verified = admin::verify(&settings, &topology).unwrap();
    assert!(verified.findings.is_empty(), "{verified:#?}");

    let other = platform("[[schedules]]\nname = 'news'\napp = 'billing'\ncron = '@hourly'\n");
    assert_eq!(outcomes(&apply(&other, false, true)), [Changed::Changed]);
    let none = platform("");
    assert_eq!(apply(&none, false, true).sets[0].not_in_file, ["schedule `news`"]);
    let refused = admin::uninstall(&settings, &topology, false, &NO_SIGNAL).unwrap().unwrap_err();
    assert!(refused.to_string().contains("it has schedules: `news`"), "{refused}");
    assert_eq!(outcomes(&apply(&none, true, false)), [Changed::Removed]);
    assert!(listed(&settings).is_empty());
    let removed = admin::uninstall(&settings, &topology, true, &NO_SIGNAL).unwrap().unwrap();
    for part in ["exchange `delay.schedules`", "queue `delay.schedules`", "queue `delay.schedules.turn`"] {
        assert!(removed.removed.iter().any(|it| it == part), "{part}: {removed:?}");
    }
}
