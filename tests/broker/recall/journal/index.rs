//! The index of a daemon, compared with the journals that it follows.

use std::thread::JoinHandle;

use delayline_admin::{Index, Unindexed};

use super::*;

/// An index that follows journals until it is dropped.
struct Running {
    index: Arc<Index>,
    settings: Settings,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    fn start(settings: &Settings, apps: &[&str]) -> Self {
        let (index, stop) = (Arc::new(Index::new(settings.clone())), Arc::new(AtomicBool::new(false)));
        let queues: Vec<_> = apps.iter().map(|app| format!("delay.journal.{app}")).collect();
        let (runs, until) = (Arc::clone(&index), Arc::clone(&stop));
        let thread = thread::spawn(move || runs.run(|| Some(queues.clone()), &until));
        Self { index, settings: settings.clone(), stop, thread: Some(thread) }
    }

    /// Waits until it lists what the journal has, and returns that.
    fn agrees(&self, filter: &ScheduleFilter) -> ScheduleList {
        let lists = || {
            let list = self.index.list(&app("billing"), filter, 0..10_000);
            (list, listed_by(&self.settings, filter, 0..10_000))
        };
        let (_, list) = eventually_seen("the index has what the journal has", lists, |(found, journal)| {
            found.as_ref().is_ok_and(|found| contents(found) == contents(journal) && overlap(found, journal))
        });
        list
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

/// Everything but due times that are estimated.
fn contents(list: &ScheduleList) -> impl PartialEq + use<> {
    let of = |it: &admin::ScheduledMessage| {
        let exact = it.due_latest.is_none().then(|| it.handle.clone());
        let key = it.handle.split('@').next().unwrap().to_owned();
        (it.place, key, exact, it.state, it.id.clone(), it.attempt, it.bytes, it.copies)
    };
    let mut messages: Vec<_> = list.messages.iter().map(of).collect();
    messages.sort_by_key(|it| it.0);
    (messages, list.more, list.waiting, list.recalled, list.uncertain, list.estimated.messages)
}

/// Whether the times between which each message is due have a time in common.
fn overlap(found: &ScheduleList, journal: &ScheduleList) -> bool {
    let times = |it: &admin::ScheduledMessage| (it.due, it.due_latest.unwrap_or(it.due));
    let times = |list: &ScheduleList| {
        list.messages.iter().map(|it| (it.place, times(it))).collect::<std::collections::BTreeMap<_, _>>()
    };
    let others = times(journal);
    times(found).into_iter().all(|(place, (from, to))| {
        others.get(&place).is_some_and(|(begin, end)| from <= *end && to >= *begin)
    })
}

/// Publishes a message as a client does that knows nothing of headers.
fn plain(settings: &Settings, seconds: u64) {
    let key = RoutingKey::new(Delay::from_seconds(seconds).unwrap(), app("billing")).encode();
    raw::publish(settings, [raw::message("delay", &key, "plain", &json!({}))]);
}

fn of_customer(id: &str, seconds: u64, customer: &str) -> Message {
    message(id, seconds).with_header("customer", customer)
}

#[test]
fn the_index_answers_as_the_journal_and_follows_it() {
    let mut settings = installed(1_000);
    settings.index.headers = vec!["other".into(), "customer".into()];
    let spec = registered(&settings);
    added(&settings, &journalled(&settings, "orders", JournalSettings::default()));
    let router = settings.router().connect().unwrap();
    for (id, seconds, customer) in [("a", 3_600, "C-4"), ("b", 7_200, "C-5"), ("c", 86_400, "C-4")] {
        send(&router, of_customer(id, seconds, customer));
    }
    send(&router, of_customer("long", 7_200, &"x".repeat(5_000)));
    send(&router, message("soon", 1));
    plain(&settings, 5_000);
    let running = Running::start(&settings, &["billing", "orders"]);
    let any = ScheduleFilter::default;
    let header = |text: &str| any().with_headers(vec![text.parse().unwrap()]);
    let filters = [
        any(),
        header("customer=C-4"),
        any().with_id(Some("b".parse().unwrap())),
        any()
            .with_due_after(Some(Timestamp::now() + SignedDuration::from_hours(1)))
            .with_due_before(Some(Timestamp::now() + SignedDuration::from_hours(3))),
    ];
    let all: Vec<_> = filters.iter().map(|filter| running.agrees(filter).messages.len()).collect();
    assert_eq!(all, [5, 2, 1, 3]);

    // What is published later, and a recall.
    let later = send(&router, of_customer("d", 3_000, "C-4"));
    send(&router, message("brief", 3));
    plain(&settings, 6_000);
    let recaller = Recaller::connect(settings.target()).unwrap();
    recaller.recall(&handle(&later)).unwrap();
    eventually("the message that is due soon is gone", || running.agrees(&any()).messages.len() == 7);
    let list = running.agrees(&filters[1]);
    assert_eq!((list.messages.len(), list.waiting, list.recalled), (3, 2, 1), "{list:#?}");
    let page = running.index.list(&app("billing"), &any(), 2..4).unwrap();
    assert_eq!((page.messages.len(), page.more), (2, 3), "{page:#?}");
    for by in [CountBy::Minute, CountBy::Hour, CountBy::Day] {
        // Estimates differ, and may be in the next minute.
        let (app, exact) = (app("billing"), header("customer=C-4"));
        let zone = || (by, TimeZone::UTC);
        let found = running.index.count(&app, &exact, zone()).unwrap();
        let topology = topology(&settings);
        let read =
            admin::count_scheduled(&settings, &topology, &app, &exact, zone(), &NOT_STOPPED, |_, _| {})
                .unwrap();
        assert_eq!(found.slots, read.slots);
        let all = running.index.count(&app, &any(), zone()).unwrap();
        let sum = |of: fn(&admin::ScheduleSlot) -> u64| all.slots.iter().map(of).sum::<u64>();
        assert_eq!((sum(|it| it.waiting), sum(|it| it.recalled)), (6, 1), "{all:#?}");
    }
    let counts = running.index.count_apps(None, &any()).unwrap();
    let counts: Vec<_> = counts.apps.iter().map(|it| (it.app.as_str(), it.waiting, it.recalled)).collect();
    assert_eq!(counts, [("billing", 6, 1), ("orders", 0, 0)]);
    let shown = running.index.show(&app("billing"), &filters[2], 0..9, 3).unwrap();
    assert_eq!((shown.len(), shown[0].sample.bytes), (1, 1));
    assert_eq!(shown[0].sample.headers["customer"], "C-5");

    let refused = |filter: &ScheduleFilter| running.index.list(&app("billing"), filter, 0..1).unwrap_err();
    assert_eq!(refused(&any().with_due_after(Some(Timestamp::UNIX_EPOCH))), Unindexed::Past);
    assert_eq!(refused(&header("unknown=1")), Unindexed::Header("unknown".into()));
    assert!(matches!(refused(&header(&format!("customer={}", "x".repeat(5_000)))), Unindexed::Header(_)));
    let unknown = running.index.list(&app("nobody"), &any(), 0..1).unwrap_err();
    assert!(matches!(unknown, Unindexed::NoJournal(_)));

    // Another stream of the same name.
    Session::open(&settings.broker).unwrap().delete_queue("delay.journal.billing").unwrap();
    assert_eq!(added(&settings, &spec).outcome, Applied::Installed);
    send(&router, message("first", 3_600));
    assert_eq!(states(&running.agrees(&any())), [("first", ScheduleState::Waiting)]);
}

#[test]
fn a_journal_that_the_daemon_may_not_read_is_reported_with_the_remedy() {
    let settings = installed(1_000);
    let own = registered(&settings);
    added(&settings, &journalled(&settings, "orders", JournalSettings::default()));
    let running = Running::start(&its_own(&settings, &own), &["orders"]);
    let orders = || running.index.list(&app("orders"), &ScheduleFilter::default(), 0..1);
    let error = eventually_seen("the index has no right", orders, |list| {
        list.as_ref().is_err_and(|error| error.to_string().contains("`delayline serve user NAME`"))
    });
    assert!(matches!(error, Err(Unindexed::Failed { .. })), "{error:?}");
}

#[test]
fn after_faults_the_index_has_what_a_ledger_has() {
    let mut node = mortal_node();
    let settings = node.settings().set("unit_ms", "1000").build().unwrap();
    common::install(&settings);
    registered(&settings);
    let running = Running::start(&settings, &["billing"]);
    let confirmed = std::sync::Mutex::new(BTreeSet::new());
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let publishing = scope.spawn(|| {
            let router = settings.router().connect().unwrap();
            let mut number = 0;
            while !done.load(Ordering::Relaxed) {
                // One in five is due at once.
                let (id, seconds) = (format!("m-{number}"), if number % 5 == 0 { 1 } else { 7_200 });
                if router.publish(message(&id, seconds)).is_ok() && seconds > 1 {
                    confirmed.lock().unwrap().insert(id);
                }
                number += 1;
                thread::sleep(Duration::from_millis(5));
            }
        });
        let more = |count: usize| {
            let before = confirmed.lock().unwrap().len();
            eventually("more are confirmed", || confirmed.lock().unwrap().len() >= before + count);
        };
        more(100);
        node.tell(&["close_all_connections", "test"]).unwrap();
        more(100);
        node.kill();
        revive(&mut node);
        more(100);
        done.store(true, Ordering::Relaxed);
        publishing.join().unwrap();
    });
    let ids =
        |list: &ScheduleList| list.messages.iter().filter_map(|it| it.id.clone()).collect::<BTreeSet<_>>();
    let confirmed = confirmed.into_inner().unwrap();
    let settled = |running: &Running| {
        eventually("the messages that were due are gone", || {
            let list = running.agrees(&ScheduleFilter::default());
            list.messages.iter().all(|it| it.due > Timestamp::now() + SignedDuration::from_mins(10))
        });
        running.agrees(&ScheduleFilter::default())
    };
    let list = settled(&running);
    // A stream of 3.10 can lose what it confirms in the first moments after a restart.
    if !session_version(&settings).starts_with("3.") {
        let missing: Vec<_> = confirmed.difference(&ids(&list)).cloned().collect();
        assert!(missing.is_empty(), "{missing:?}");
    }
    // A daemon that was killed has another index.
    drop(running);
    assert_eq!(ids(&settled(&Running::start(&settings, &["billing"]))), ids(&list));
}

#[test]
fn an_application_that_floods_its_journal_does_not_push_out_others() {
    let mut settings = installed(1_000);
    settings.index.bytes = 12_000_000;
    registered(&settings);
    added(&settings, &journalled(&settings, "orders", JournalSettings::default()));
    let router = settings.router().connect().unwrap();
    let mut small = message("small", 3_600);
    small.app = app("orders");
    send(&router, small);
    let running = Running::start(&settings, &["billing", "orders"]);
    running.agrees(&ScheduleFilter::default());
    let mut session = Session::open(&settings.broker).unwrap();
    let destination = Endpoint::Queue("delay.journal.billing".into());
    session.bind(&Binding { source: "delay".into(), destination, key: "odd.#".into() }).unwrap();
    raw::publish(&settings, [raw::message("delay", "odd.key", "malformed", &json!({}))]);
    let odd = || running.index.list(&app("billing"), &ScheduleFilter::default(), 0..1);
    let counted =
        eventually_seen("it is counted", odd, |list| list.as_ref().is_ok_and(|list| list.journal.odd == 1));
    assert_eq!(counted.unwrap().waiting, 0);

    let mut pipeline = router.pipeline();
    for number in 0..20_000_u32 {
        let id = format!("{number:0>64}");
        if let Some(outcome) = pipeline.push(number, message(&id, 7_200)) {
            outcome.result.unwrap();
        }
    }
    assert!(pipeline.all(|outcome| outcome.result.is_ok()));
    for running in [&running, &Running::start(&settings, &["billing", "orders"])] {
        let billing = || running.index.list(&app("billing"), &ScheduleFilter::default(), 0..1);
        let error = eventually_seen("it is too large", billing, |list| {
            list.as_ref().is_err_and(|error| error.to_string().contains("index_bytes"))
        });
        assert!(matches!(error, Err(Unindexed::Failed { .. })), "{error:?}");
        let orders = || running.index.list(&app("orders"), &ScheduleFilter::default(), 0..9);
        eventually_seen("the other one is listed", orders, |list| {
            list.as_ref().is_ok_and(|it| it.waiting == 1)
        })
        .unwrap();
        let problems = running.index.journals().into_iter().map(|it| it.problem.is_some());
        assert_eq!(problems.collect::<Vec<_>>(), [true, false]);
    }
}
