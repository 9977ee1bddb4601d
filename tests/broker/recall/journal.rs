//! The journal of an application, which lists its scheduled messages.

mod index;
mod index_cost;
mod limits;
mod lost;

use std::{num::NonZeroU64, ops::Range, process::Command, sync::atomic::AtomicBool, thread};

use delayline_admin::{
    self as admin, AdminError, AppQueue, AppSpec, AppUser, Applied, CountBy, Delivery, JournalUnread,
    RemoveOptions, ScheduleFilter, ScheduleList, ScheduleState,
};
use delayline_amqp::{Event, Publisher, broker::Secret};
use delayline_client::retry::{Handled, Worker};
use delayline_core::{
    message::{Headers, Properties, Value},
    retry::{Backoff, Policy},
    topology::JournalSettings,
};
use delayline_watch::picture::{Collector, Sources};
use jiff::tz::TimeZone;

use super::{
    registered::{added, direct, its_own, snippet},
    *,
};

static NOT_STOPPED: AtomicBool = AtomicBool::new(false);

/// An application with a journal, and a user whose password is the user's name.
fn journalled(settings: &Settings, key: &str, journal: JournalSettings) -> AppSpec {
    let recall = Some(RecallSettings::default().with_journal(journal));
    AppSpec { recall, ..direct(settings, key) }
}

fn registered(settings: &Settings) -> AppSpec {
    let spec = journalled(settings, "billing", JournalSettings::default());
    added(settings, &spec);
    spec
}

fn listed_by(settings: &Settings, filter: &ScheduleFilter, range: Range<usize>) -> ScheduleList {
    let topology = topology(settings);
    admin::list_scheduled(settings, &topology, &app("billing"), filter, range, &NOT_STOPPED, |_, _| {})
        .unwrap()
}

fn listed(settings: &Settings) -> ScheduleList {
    listed_by(settings, &ScheduleFilter::default(), 0..100)
}

/// The id and the state of each message.
fn states(list: &ScheduleList) -> Vec<(&str, ScheduleState)> {
    list.messages.iter().map(|it| (it.id.as_deref().unwrap_or(""), it.state)).collect()
}

#[test]
fn a_journal_is_made_checked_and_removed_with_its_application() {
    let settings = installed(1_000);
    let topology = topology(&settings);
    // The application already exists without a journal.
    let plain = direct(&settings, "billing");
    added(&settings, &plain);
    let missing = admin::list_scheduled(
        &settings,
        &topology,
        &plain.app,
        &ScheduleFilter::default(),
        0..1,
        &NOT_STOPPED,
        |_, _| {},
    );
    let refused = missing.unwrap_err();
    assert!(matches!(&refused, AdminError::Journal(JournalUnread::NoJournal { .. })), "{refused:?}");
    assert!(refused.to_string().contains("register it again with --journal"), "{refused}");
    let spec = journalled(&settings, "billing", JournalSettings::default());
    let report = admin::add_app(&settings, &topology, &spec, true, false).unwrap();
    assert_eq!(report.outcome, Applied::Installed, "{report:?}");
    let again = added(&settings, &spec);
    assert!(again.steps.iter().all(|step| step.stood), "{again:?}");

    let user = spec.user.as_ref().unwrap();
    let check = |spec: &AppSpec| {
        admin::check_app(&settings, &topology, spec, user, &Secret::new(&user.name)).unwrap()
    };
    let found = check(&spec);
    let wrong: Vec<_> = found.probes.iter().filter(|probe| !probe.passed()).collect();
    assert!(found.passed(), "{wrong:#?}");
    // Without the flag, the right to read the journal is too much.
    let found = check(&plain);
    assert_eq!(found.probes.iter().filter(|probe| !probe.passed()).count(), 1, "{found:#?}");
    assert_eq!(admin::verify(&settings, &topology).unwrap().findings, []);
    let list = admin::list_apps(&settings, &topology).unwrap();
    let journal = list.apps[0].recall.as_ref().and_then(|it| it.journal.as_ref()).expect("a journal");
    assert_eq!((journal.max_age.as_deref(), journal.max_bytes), (Some("7776000s"), Some(10_000_000_000)));

    let router = its_own(&settings, &spec).router().connect().unwrap();
    let receipt = send(&router, message("later", 3_600));
    let remove = |force: bool| {
        let user = Some(user.name.clone());
        let options = RemoveOptions { user, delete_user: true, force, ..RemoveOptions::default() };
        admin::remove_app(&settings, &topology, &spec.app, &options, &crate::common::NO_SIGNAL).unwrap()
    };
    let refused = remove(false).unwrap_err();
    assert_eq!(refused.journalled.messages, 1, "{refused:?}");
    assert_eq!(refused.journalled.until.map(|it| it.as_millisecond()), Some(receipt.due.as_millisecond()));
    assert!(refused.to_string().contains("1 message in its journal is not due yet"), "{refused}");
    let refused =
        admin::uninstall(&settings, &topology, false, &crate::common::NO_SIGNAL).unwrap().unwrap_err();
    assert!(refused.landing.contains(&"delay.journal.billing".to_owned()), "{refused:?}");
    let removed = remove(true).unwrap();
    assert!(removed.removed.contains(&"queue `delay.journal.billing`".to_owned()), "{removed:?}");
    let left = http(&settings, "bindings");
    assert!(!left.contains("journal"), "{left}");
    assert_eq!(admin::verify(&settings, &topology).unwrap().findings, []);
}

/// A journal as it was when each publisher asked for a copy of each message.
#[test]
fn an_earlier_journal_becomes_complete_without_a_gap() {
    let settings = installed(1_000);
    let topology = topology(&settings);
    let spec = registered(&settings);
    let mut session = Session::open(&settings.broker).unwrap();
    let earlier = topology.earlier_journal_binding(&spec.app);
    session.bind(&earlier).unwrap();
    topology.journal_bindings(&spec.app).iter().for_each(|binding| session.unbind(binding).unwrap());
    let found = admin::verify(&settings, &topology).unwrap().findings;
    assert!(found.iter().all(|it| it.advice.contains("app add billing --recall --journal")), "{found:#?}");
    assert!(!found.is_empty());
    let done = AtomicBool::new(false);
    let confirmed = thread::scope(|scope| {
        let publishing = scope.spawn(|| {
            let mut publisher = Publisher::open(&settings.broker).unwrap();
            let headers = Headers::from([("BCC".into(), Value::Array(vec!["journal.billing".into()]))]);
            let key =
                |id: u64| message(&format!("m-{id}"), 3_600).handle("1h".parse().unwrap(), Timestamp::MAX);
            let mut count = 0;
            while !done.load(Ordering::Relaxed) || count < 100 {
                let key = key(count).unwrap().routing_key().encode();
                publisher.publish("delay", key, Properties::default(), headers.clone(), b"x");
                assert!(matches!(publisher.next_within(PATIENCE), Some(Event::Ack { .. })));
                count += 1;
            }
            publisher.close(PATIENCE);
            count
        });
        eventually("messages are copied the earlier way", || listed(&settings).journal.read > 0);
        assert_eq!(added(&settings, &spec).outcome, Applied::Installed);
        done.store(true, Ordering::Relaxed);
        publishing.join().unwrap()
    });
    let list = listed_by(&settings, &ScheduleFilter::default(), 0..100_000);
    assert_eq!((list.journal.read, list.messages.len() as u64), (confirmed, confirmed));
    assert!(list.messages.iter().all(|message| message.copies == 1));
    assert_eq!(admin::verify(&settings, &topology).unwrap().findings, []);
    assert_eq!(added(&settings, &spec).outcome, Applied::Unchanged);
}

/// Other clients set no header, and the journal has several files.
#[test]
fn a_message_without_a_due_time_is_due_by_the_brokers_clock() {
    let settings = installed(1_000);
    let small = JournalSettings::default().with_max_bytes(NonZeroU64::new(1_000_000).unwrap());
    added(&settings, &journalled(&settings, "billing", small));
    let router = settings.router().connect().unwrap();
    // One that is listed by its own time, and one with the time of another message.
    let exact = send(&router, message("exact", 3_600));
    let mut publisher = Publisher::open(&settings.broker).unwrap();
    let stale = Headers::from([("delayline-due".into(), Value::I64(1_000))]);
    let mut times = Vec::new();
    for number in 0..6 {
        let key = RoutingKey::new(Delay::from_seconds(7_200 + number).unwrap(), app("billing")).encode();
        let headers = if number == 2 { stale.clone() } else { Headers::new() };
        let begin = Timestamp::now();
        publisher.publish("delay", key, Properties::default(), headers, &[b'x'; 60_000]);
        assert!(matches!(publisher.next_within(PATIENCE), Some(Event::Ack { .. })));
        times.push((begin, Timestamp::now()));
        // Between two files, and between two messages of one.
        thread::sleep(Duration::from_millis(2_100));
    }
    publisher.close(PATIENCE);
    // RabbitMQ 3.10 does not answer for a time between two files. A busy broker may answer too late.
    let most = if session_version(&settings).starts_with("3.") { 120 } else { 1 };
    let accuracy = |it: &admin::ScheduledMessage| it.due_latest.unwrap().duration_since(it.due).as_secs();
    let list = eventually_seen(
        "the times are found",
        || listed(&settings),
        |list| {
            (list.messages.len(), list.estimated.messages) == (7, 6)
                && list.messages[1..].iter().all(|it| accuracy(it) <= most)
        },
    );
    assert_eq!(
        (list.messages[0].due.as_millisecond(), list.messages[0].due_latest),
        (exact.due.as_millisecond(), None)
    );
    for (number, (message, (begin, end))) in (0_i64..).zip(list.messages[1..].iter().zip(times)) {
        let delay = SignedDuration::from_secs(7_200 + number);
        let (due, latest) = (message.due - delay, message.due_latest.unwrap() - delay);
        assert!(due <= end && latest >= begin, "{number}: {due} {latest} {begin} {end}");
        assert_eq!((message.id.as_deref(), message.state), (None, ScheduleState::Waiting));
    }
}

fn session_version(settings: &Settings) -> String {
    Session::open(&settings.broker).unwrap().server_version().unwrap()
}

/// The codes of `doctor`'s findings about journals.
fn found_by_doctor(settings: &Settings) -> Vec<String> {
    let report = admin::doctor(settings, &topology(settings), &admin::DoctorOptions::default()).unwrap();
    let codes = report.findings.iter().map(|finding| finding.code.to_string());
    codes.filter(|code| code.starts_with("journal-")).collect()
}

#[test]
fn a_journal_that_is_gone_or_gets_nothing_is_found_and_made_again() {
    let settings = installed(1_000);
    let topology = topology(&settings);
    let spec = registered(&settings);
    let mut session = Session::open(&settings.broker).unwrap();
    session.unbind(&topology.journal_bindings(&spec.app)[1]).unwrap();
    let findings = || admin::verify(&settings, &topology).unwrap().findings;
    let found = findings();
    assert_eq!(found.len(), 1, "{found:#?}");
    assert!(found[0].what.contains(".billing.~.*` is missing") && found[0].apps == ["billing"], "{found:#?}");
    assert!(found[0].advice.contains("app add billing --recall --journal"), "{found:#?}");
    assert_eq!(added(&settings, &spec).outcome, Applied::Installed);
    assert_eq!(findings(), []);
    session.delete_queue("delay.journal.billing").unwrap();
    eventually("doctor reports the missing journal", || found_by_doctor(&settings) == ["journal-missing"]);
    assert_eq!(added(&settings, &spec).outcome, Applied::Installed);
    assert_eq!((found_by_doctor(&settings), findings()), (vec![], vec![]));
}

fn http(settings: &Settings, what: &str) -> String {
    let path = format!("{what}/{}", settings.broker.vhost);
    common::http(&common::shared_node(), "GET", &path, &json!(null)).to_string()
}

#[test]
fn a_set_is_removed_with_its_journals() {
    let settings = installed(1_000);
    registered(&settings);
    let router = settings.router().connect().unwrap();
    send(&router, message("later", 3_600));
    let removed =
        admin::uninstall(&settings, &topology(&settings), true, &crate::common::NO_SIGNAL).unwrap().unwrap();
    assert!(removed.removed.contains(&"queue `delay.journal.billing`".to_owned()), "{removed:?}");
    // Copies in the journal are not counted as lost messages.
    assert!(removed.discarded.iter().all(|it| !it.queue.contains("journal")), "{removed:?}");
    assert!(!http(&settings, "queues").contains("delay.journal"));
}

#[test]
fn one_copy_is_made_and_nothing_else_changes() {
    let settings = installed(10);
    let spec = registered(&settings);
    let tenant = its_own(&settings, &spec);
    let router = tenant.router().connect().unwrap();
    let delay = |units| Delay::from_seconds(units).unwrap();
    // Delays through three levels, one, and none, with an id and without.
    for (number, units) in (0_i64..).zip([0b111, 0b1000, 0]) {
        let message = Message::after(app("billing"), delay(units), format!("m-{number}"));
        let message = message.with_header("number", number);
        send(&router, message.clone());
        send(&router, message.with_id(format!("id-{number}").parse().unwrap()));
    }
    // The publisher's own header `BCC` has no effect.
    let own = Value::Array(vec!["journal.billing".into()]);
    send(&router, Message::after(app("billing"), delay(1), "plain").with_header("BCC", own));
    let mut session = Session::open(&tenant.broker).unwrap();
    let consumer = session.consume("billing", 100).unwrap();
    let mut came = Vec::new();
    while came.len() < 7 {
        let delayline_amqp::Next::Delivery(delivery) = consumer.next(PATIENCE) else { panic!("{came:?}") };
        assert!(
            !delivery.headers.contains_key("BCC") && !delivery.headers.contains_key("CC"),
            "{delivery:?}"
        );
        came.push(String::from_utf8(delivery.body.clone()).unwrap());
        consumer.ack(delivery).unwrap();
    }
    came.sort();
    assert_eq!(came, ["m-0", "m-0", "m-1", "m-1", "m-2", "m-2", "plain"]);
    // No message came twice, or to the wrong queue.
    send(&router, Message::after(app("billing"), Delay::ZERO, "the last"));
    let delayline_amqp::Next::Delivery(last) = consumer.next(PATIENCE) else {
        panic!("the last message did not arrive")
    };
    assert_eq!(last.body, b"the last");
    assert_eq!(depth(&settings, "delay.unroutable"), 0);
    let all = ScheduleFilter::default().with_due_after(Some(Timestamp::UNIX_EPOCH));
    let list = listed_by(&tenant, &all, 0..100);
    assert_eq!((list.messages.len(), list.journal.read, list.journal.odd), (8, 8, 0), "{list:#?}");
    // `doctor` does not mistake the copies for multiplied messages.
    let doctor = admin::doctor(&settings, &topology(&settings), &admin::DoctorOptions::default()).unwrap();
    let told = format!("{:?}", doctor.findings);
    assert!(!told.contains("MultipliedMessages") && !told.contains("journal"), "{told}");
}

#[test]
fn scheduled_messages_are_listed_with_recalled_ones() {
    let settings = installed(1_000);
    let spec = registered(&settings);
    let router = its_own(&settings, &spec).router().connect().unwrap();
    let recaller = recaller(&settings);
    let [late, soon, mid] = [("late", 7_200), ("soon", 3_600), ("mid", 5_400)]
        .map(|(id, delay)| send(&router, message(id, delay).with_header("of", id)));
    send(&router, Message::after(app("billing"), Delay::from_seconds(9_000).unwrap(), "no id"));
    assert_eq!(recaller.recall(&handle(&mid)).unwrap(), Answer::InTime);
    eventually("the list shows the recall", || {
        states(&listed(&settings))
            == [
                ("soon", ScheduleState::Waiting),
                ("mid", ScheduleState::Recalled),
                ("late", ScheduleState::Waiting),
                ("", ScheduleState::Waiting),
            ]
    });
    let list = listed_by(&settings, &ScheduleFilter::default(), 0..1);
    assert_eq!((list.messages.len(), list.more, list.waiting, list.recalled), (1, 3, 3, 1), "{list:#?}");
    assert_eq!(list.messages[0].handle, handle(&soon).to_string());
    let before = ScheduleFilter::default()
        .with_due_before(Timestamp::from_millisecond(late.due.as_millisecond()).ok());
    assert_eq!(listed_by(&settings, &before, 0..9).messages.len(), 2);
    let by_id = ScheduleFilter::default().with_id(Some("late".parse().unwrap()));
    assert_eq!(states(&listed_by(&settings, &by_id, 0..9)), [("late", ScheduleState::Waiting)]);
    let by_header = ScheduleFilter::default().with_headers(vec!["of=soon".parse().unwrap()]);
    assert_eq!(states(&listed_by(&settings, &by_header, 0..9)), [("soon", ScheduleState::Waiting)]);
    let second = listed_by(&settings, &ScheduleFilter::default(), 1..2);
    assert_eq!((states(&second), second.more), (vec![("mid", ScheduleState::Recalled)], 2), "{second:#?}");
    let recalled = listed_by(&settings, &ScheduleFilter::default().only_recalled(true), 0..9);
    assert_eq!(states(&recalled), [("mid", ScheduleState::Recalled)]);
    let counts =
        admin::count_apps(&settings, &topology(&settings), None, &by_header, &NOT_STOPPED, |_, _| {})
            .unwrap();
    let counts: Vec<_> = counts.apps.iter().map(|it| (it.app.as_str(), it.waiting, it.recalled)).collect();
    assert_eq!(counts, [("billing", 1, 0)]);

    let topology = topology(&settings);
    let find = |handle: &Handle| {
        admin::find_scheduled(&settings, &topology, handle, 2, &NOT_STOPPED, |_, _| {}).unwrap().0
    };
    let found = find(&handle(&late)).unwrap();
    assert_eq!((found.body.as_slice(), found.message.copies), (&b"late"[..], 1));
    assert_eq!((found.sample.body.as_deref(), found.headers["of"].clone()), (Some("la"), "late".into()));
    let stranger = Handle::new(handle(&late).routing_key().clone(), Some(soon.due)).unwrap();
    assert!(find(&stranger).is_none());

    let by = (CountBy::Day, TimeZone::UTC);
    let count = admin::count_scheduled(
        &settings,
        &topology,
        &spec.app,
        &ScheduleFilter::default(),
        by,
        &NOT_STOPPED,
        |_, _| {},
    );
    let slots = count.unwrap().slots;
    let sum = |of: fn(&admin::ScheduleSlot) -> u64| slots.iter().map(of).sum::<u64>();
    assert_eq!((sum(|it| it.waiting), sum(|it| it.recalled), sum(|it| it.due)), (3, 1, 0), "{slots:#?}");

    // The application's own user can read the journal. Without the management API, the list reports
    // that it cannot see the recalls.
    let mut tenant = its_own(&settings, &spec);
    tenant.management = None;
    let list = listed(&tenant);
    assert!(list.messages.len() == 4 && list.recalled == 0 && list.unchecked.len() == 1, "{list:#?}");
}

/// Also if they cannot be distinguished by key and time, and the journal has several files.
#[test]
fn listed_messages_are_read_again_each_with_its_own_contents() {
    let settings = installed(1_000);
    let small = JournalSettings::default().with_max_bytes(NonZeroU64::new(1_000_000).unwrap());
    let spec = journalled(&settings, "billing", small);
    added(&settings, &spec);
    let router = settings.router().connect().unwrap();
    for number in 0..9_u8 {
        let message = Message::after(spec.app.clone(), "1h".parse().unwrap(), vec![number; 60_000]);
        send(&router, message.with_header("half", i64::from(number % 2)));
    }
    let filter = ScheduleFilter::default().with_headers(vec!["half=1".parse().unwrap()]);
    let list = listed_by(&settings, &filter, 1..3);
    assert_eq!((list.messages.len(), list.more), (2, 1), "{list:#?}");
    let mut found = Vec::new();
    let topology = topology(&settings);
    let read = |stop: &AtomicBool, found: &mut Vec<_>| {
        admin::read_scheduled((&settings, &topology, &spec.app), &list, 1, stop, |it| {
            found.push((it.message.due, it.body[0], it.body.len()));
            Ok::<_, AdminError>(())
        })
    };
    read(&NOT_STOPPED, &mut found).unwrap();
    let due: Vec<_> = list.messages.iter().map(|it| it.due).collect();
    assert_eq!(found, [(due[0], 3, 60_000), (due[1], 5, 60_000)]);
    read(&AtomicBool::new(true), &mut found).unwrap();
    assert_eq!(found.len(), 2);
}

#[test]
fn a_message_of_another_client_is_listed_with_the_rights_that_app_add_gives() {
    let settings = installed(1_000);
    let spec = registered(&settings);
    let tenant = its_own(&settings, &spec);
    let user = &spec.user.as_ref().unwrap().name;
    let url = format!("amqp://{user}:{user}@127.0.0.1:{}/{}", tenant.broker.port, tenant.broker.vhost);
    let program = format!(
        "{}\nchannel = pika.BlockingConnection(pika.URLParameters({url:?})).channel()\n\
         channel.confirm_delivery()\n\
         print(*publish_with_id(channel, 3600, 'billing', 'by-hand', b'pay!'), sep='@')\n",
        snippet("python")
    );
    let python = std::env::var("TEST_PYTHON").expect("TEST_PYTHON names a Python that has pika");
    let mut publish = Command::new(python);
    publish.args(["-c", &program]);
    let output = common::run_in_time(publish);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let list = listed(&tenant);
    let [message] = list.messages.as_slice() else { panic!("{list:#?}") };
    assert_eq!(message.handle, String::from_utf8(output.stdout).unwrap().trim());
    assert_eq!(depth(&settings, "delay.unroutable"), 0);
}

#[test]
fn pending_recalls_are_counted_and_in_the_picture() {
    let settings = installed(1_000);
    registered(&settings);
    let router = settings.router().connect().unwrap();
    let first = send(&router, message("a", 7_200));
    let recaller = recaller(&settings);
    assert_eq!(recaller.recall(&handle(&first)).unwrap(), Answer::InTime);
    let stats = Arc::new(admin::RecallStats::default());
    let topology = topology(&settings);
    eventually("the recall is counted", || {
        stats.count(&settings, &topology).unwrap();
        stats.counts().apps["billing"].pending == 1
    });
    let mut collector = Collector::new(settings, Sources { recalls: Some(stats), ..Sources::default() });
    eventually("the picture has the recall", || {
        let views = collector.look().recalls.clone().unwrap_or_default();
        views.first().is_some_and(|view| (view.pending, view.over) == (Some(1), Some(0)))
    });
}

#[test]
fn a_message_that_waits_for_its_retry_is_listed_and_recalled() {
    let settings = installed(1_000);
    let mut spec = journalled(&settings, "billing", JournalSettings::default());
    spec.user.as_mut().unwrap().may_retry = true;
    added(&settings, &spec);
    let tenant = its_own(&settings, &spec);
    send(&tenant.router().connect().unwrap(), message("fails", 1));
    let policy = Policy::new(Backoff::Fixed("1h".parse().unwrap()));
    let worker = Worker::new(tenant.target(), "billing", spec.app.clone(), policy);
    thread::scope(|scope| {
        scope.spawn(|| worker.run(|_| Handled::Retry("the bank is closed".into())));
        eventually("the retry is listed", || listed(&settings).messages.iter().any(|it| it.attempt == 1));
        worker.stop_handle().stop();
    });
    let list = listed(&settings);
    assert_eq!(states(&list), [("fails", ScheduleState::Waiting)]);
    let retry: Handle = list.messages[0].handle.parse().unwrap();
    assert_eq!(retry.routing_key().delay.seconds(), 3_600);
    assert_eq!(recaller(&tenant).recall(&retry).unwrap(), Answer::InTime);
    eventually("the recall is known", || states(&listed(&settings)) == [("fails", ScheduleState::Recalled)]);
}

#[test]
fn no_user_reads_or_writes_the_journal_of_another_application() {
    let settings = installed(1_000);
    let own = registered(&settings);
    added(&settings, &journalled(&settings, "orders", JournalSettings::default()));
    let tenant = its_own(&settings, &own);
    let mut session = Session::open(&tenant.broker).unwrap();
    let theirs = "delay.journal.orders";
    let refused = |result: Result<(), delayline_amqp::AmqpError>| {
        assert_eq!(result.err().and_then(|error| error.code()), Some(403));
    };
    refused(session.read_stream(theirs, delayline_amqp::StreamStart::First, 1).map(drop));
    refused(session.delete_queue(theirs).map(drop));
    refused(session.delete_queue("delay.journal.billing").map(drop));
    for (source, queue, key) in [
        ("delay", theirs, "delay.*.*.*.*.*.*.*.orders"),
        ("delay", "delay.journal.billing", "delay.*.*.*.*.*.*.*.orders"),
        ("delay", "delay.journal.billing", "#"),
        ("delay", "billing", "delay.*.*.*.*.*.*.*.billing"),
        ("delay.dispatch", "delay.journal.billing", "#"),
    ] {
        let binding =
            Binding { source: source.into(), destination: Endpoint::Queue(queue.into()), key: key.into() };
        refused(session.bind(&binding));
        refused(session.unbind(&binding));
    }
}
