//! Schedules that applications manage themselves, as their users.

use std::collections::BTreeSet;

use delayline_admin::{AppCheck, AppUser};
use delayline_amqp::{Event, Next, Outstanding, Publisher, STREAM_OFFSET, StreamStart};
use delayline_core::{
    codec::AppKey,
    message::{Headers, Properties},
};
use delayline_schedules::{Definition, ScheduleError};
use jiff::Timestamp;
use serde_json::{Value as Json, json};

use super::*;

/// The user of an application in this vhost.
fn user_of(settings: &Settings, key: &str) -> String {
    format!("{key}-of-{}", settings.broker.vhost)
}

/// Registers an application that manages its schedules, consumes its messages, and logs in as its user.
fn register(settings: &Settings, key: &str) -> (AppSpec, Inbox, Settings) {
    let inbox = Inbox::open(settings, key);
    let name = user_of(settings, key);
    let password = Some(Secret::new(&name));
    let user = AppUser { name: name.clone(), password, may_schedule: true, ..AppUser::default() };
    let delivery = Delivery::Direct(AppQueue { existing: true, ..AppQueue::new(format!("in.{key}")) });
    let recall = Some(RecallSettings::default());
    let spec = AppSpec { recall, user: Some(user), ..AppSpec::new(app(key), delivery) };
    let report = admin::add_app(settings, &topology(settings), &spec, false, false).unwrap();
    assert_eq!(report.outcome, Applied::Installed, "{report:?}");
    let url = crate::common::url(settings).replace("guest:guest", &format!("{name}:{name}"));
    let layers = delayline_settings::Layers::default().set("url", url).set("management_url", "none");
    let own = layers.set("unit_ms", settings.topology.unit.millis().to_string()).build().unwrap();
    (spec, inbox, own)
}

fn spec_for(key: &str, units: u64) -> Spec {
    let mut spec = every(units);
    spec.app = app(key);
    spec
}

fn names(settings: &Settings, owner: Option<&AppKey>) -> BTreeSet<String> {
    let list = schedules::list(settings, &topology(settings), owner).unwrap();
    list.schedules.iter().map(|it| it.schedule.to_string()).collect()
}

fn refused<T: std::fmt::Debug>(what: &str, result: Result<T, ScheduleError>) {
    let error = result.expect_err(what).to_string();
    assert!(error.contains("403") && error.contains("app add APP --schedules"), "{what}: {error}");
}

/// Writes records to the exchange of an application's schedules, as its user.
fn write(own: &Settings, key: &str, records: &[Json]) {
    let mut publisher = Publisher::open(&own.broker).unwrap();
    let exchange = topology(own).names().schedules_of(&app(key));
    let mut outstanding = Outstanding::default();
    for record in records {
        let body = serde_json::to_vec(record).unwrap();
        outstanding.push((), body.len());
        publisher.publish(&exchange, String::new(), Properties::default(), Headers::new(), &body);
    }
    while !outstanding.is_empty() {
        match publisher.next_within(PATIENCE) {
            Some(Event::Ack { tag, multiple }) => drop(outstanding.settle(tag, multiple)),
            other => panic!("{other:?}"),
        }
    }
}

fn definition(of: &str, state: State, rev: u64, spec: Spec) -> Json {
    json!({ "definition": Definition { name: name(of), rev, state, after: Timestamp::now(), spec } })
}

/// The state of a schedule as a daemon knows it.
fn is_known(stats: &ScheduleStats, of: &str, state: State) -> bool {
    stats.counts().schedules.get(of).is_some_and(|line| line.state == state)
}

#[test]
fn an_application_manages_its_own_schedules_and_no_others() {
    let settings = installed(10);
    let topology = topology(&settings);
    let (spec, inbox, billing) = register(&settings, "billing");
    let (_, others_inbox, orders) = register(&settings, "orders");
    let as_user = |own: &Settings, of: &str, change: Change<'_>| {
        schedules::change(own, &topology, &name(of), change, false)
    };
    let daemon_user = user_of(&settings, "daemon");
    let password = Some(Secret::new(&daemon_user));
    admin::add_daemon_user(&settings, &topology, (&daemon_user, password), None, false).unwrap();
    let mut command = serve_as(&daemon_user, &settings);
    command.args(ONLY_SCHEDULES);
    let mut daemon = Daemon::with(tempfile::tempdir().unwrap(), command);

    // As its user: every command.
    let news = spec_for("billing", 100);
    let added = as_user(&billing, "billing/news", Change::Set(&news)).unwrap();
    assert_eq!((added.outcome, added.recall), (Changed::Added, true));
    let first = inbox.next(PATIENCE).unwrap();
    assert!(first.id.starts_with("billing/news@"), "{first:?}");
    assert_eq!(first.headers["delayline-schedule"], "billing/news".into());
    assert_eq!(names(&billing, Some(&app("billing"))), BTreeSet::from(["billing/news".to_owned()]));
    let shown = schedules::show(&billing, &topology, &name("billing/news"), 3).unwrap();
    assert_eq!((shown.occurrences.len(), shown.recall), (3, true));
    let id = schedules::run_now(&billing, &topology, &name("billing/news")).unwrap();
    eventually("it is published once more", || inbox.next(PATIENCE).unwrap().id == id);
    let paused = as_user(&billing, "billing/news", Change::Pause).unwrap();
    assert_eq!(paused.outcome, Changed::Paused);
    all_recalled(&settings, &paused);
    assert_eq!(as_user(&billing, "billing/news", Change::Resume).unwrap().outcome, Changed::Resumed);
    let resumed_at = Timestamp::now().as_millisecond();

    // As the user of another application: nothing.
    for change in [Change::Set(&news), Change::Pause, Change::Resume, Change::Remove] {
        refused("changing it", as_user(&orders, "billing/news", change));
        refused("changing a schedule of the platform team", as_user(&orders, "news", change));
    }
    refused("showing it", schedules::show(&orders, &topology, &name("billing/news"), 1));
    refused("running it", schedules::run_now(&orders, &topology, &name("billing/news")));
    refused("listing them", schedules::list(&orders, &topology, Some(&app("billing"))));
    refused("listing all", schedules::list(&orders, &topology, None));
    let error = as_user(&orders, "orders/news", Change::Set(&news)).unwrap_err().to_string();
    assert!(error.contains("`orders/news` cannot send messages to application `billing`"), "{error}");
    let user = spec.user.as_ref().unwrap();
    let password = Secret::new(&user.name);
    let checked: AppCheck = admin::check_app(&settings, &topology, &spec, user, &password).unwrap();
    assert!(checked.passed(), "{checked:?}");
    let tried = |what: &str| checked.probes.iter().any(|probe| probe.what.contains(what));
    for place in ["delay.schedules-of.billing`", "delay.schedules-of.orders`", "delay.schedules`"] {
        assert!(tried(&format!("publish to `{place}")), "{checked:?}");
    }

    // A platform file with the same applications changes nothing, and prunes no schedule.
    let table = |key: &str| {
        let user = user_of(&settings, key);
        format!(
            "[sets.delay.apps.{key}]\nuser = '{user}'\nqueue = 'in.{key}'\nexisting = true\nrecall = true\n\
             schedules = true\n"
        )
    };
    let text = ["billing", "orders"].map(table).concat();
    let platform = Platform::parse(&text, &settings.topology).unwrap();
    let options = ApplyOptions { prune: true, dry_run: true };
    let applied = admin::apply(&settings, &platform, options, &NO_SIGNAL, |_, _| {}).unwrap();
    assert_eq!(applied.outcome, Applied::Unchanged, "{applied:#?}");
    let verified = admin::verify(&settings, &topology).unwrap();
    assert!(verified.findings.is_empty(), "{verified:#?}");

    // What it forges in its own stream says nothing about others.
    let after_all = Timestamp::now().as_millisecond().unsigned_abs() + 1_000_000;
    let handles: Vec<_> = (0..50).map(|it| json!([occurrence(&first) + it * 1_000, 0, 1])).collect();
    write(
        &orders,
        "orders",
        &[
            definition("billing/evil", State::Active, after_all, news.clone()),
            definition("billing/news", State::Removed, after_all, news.clone()),
            definition("news", State::Active, after_all, news.clone()),
            definition("orders/evil", State::Active, after_all, news.clone()),
            definition("orders/quick", State::Active, after_all, spec_for("orders", 0)),
            json!({ "ahead": [{ "name": "billing/news", "rev": 1, "app": "billing", "messages": handles }] }),
            json!({ "ahead": [{ "name": "orders/x", "rev": 1, "app": "billing", "messages": handles }] }),
            json!({ "published": [{ "name": "billing/news", "rev": 1, "through": "2100-01-01T00:00:00Z" }] }),
            json!({ "copied": u64::MAX }),
            json!("no record"),
            definition("orders/fine", State::Active, after_all, spec_for("orders", 100)),
        ],
    );
    let mut of_orders = BTreeSet::new();
    while of_orders.len() < 3 {
        let arrival = others_inbox.next(PATIENCE).unwrap();
        assert!(arrival.id.starts_with("orders/fine@"), "{arrival:?}");
        of_orders.insert(occurrence(&arrival));
    }
    // None was recalled.
    let mut of_billing = BTreeSet::new();
    let is_whole = |seen: &BTreeSet<i64>| {
        let resumed: Vec<_> = seen.range(resumed_at..).collect();
        resumed.windows(2).all(|two| two[1] - two[0] == 1_000)
    };
    let until = Instant::now() + PATIENCE;
    while of_billing.last() < of_orders.last() || !is_whole(&of_billing) {
        let arrival = inbox.next(PATIENCE).unwrap();
        assert!(arrival.id.starts_with("billing/news@"), "{arrival:?}");
        of_billing.insert(occurrence(&arrival));
        assert!(Instant::now() < until, "{of_billing:?}");
    }
    let all = ["billing/news", "orders/fine", "orders/quick"].map(str::to_owned);
    assert_eq!(names(&settings, None), BTreeSet::from(all));
    let fault = schedules::show(&settings, &topology, &name("orders/quick"), 1).unwrap().summary.fault;
    assert!(fault.is_some_and(|fault| fault.contains("the shortest interval is 10s")));

    // An application with schedules stays.
    let remove = admin::RemoveOptions { user: Some(user.name.clone()), ..Default::default() };
    let refused = admin::remove_app(&settings, &topology, &app("billing"), &remove, &NO_SIGNAL).unwrap();
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("it has 1 schedule of its own"), "{refused}");
    as_user(&billing, "billing/news", Change::Remove).unwrap();
    let force = admin::RemoveOptions { force: true, ..remove.clone() };
    let report =
        admin::remove_app(&settings, &topology, &app("billing"), &force, &NO_SIGNAL).unwrap().unwrap();
    for part in ["exchange `delay.schedules-of.billing`", "queue `delay.schedules-of.billing`"] {
        assert!(report.removed.iter().any(|it| it == part), "{report:?}");
    }
    // The daemon goes on with the others.
    let before = Timestamp::now().as_millisecond();
    eventually("others are published", || occurrence(&others_inbox.next(PATIENCE).unwrap()) > before + 2_000);
    assert_eq!(daemon.stop(), Some(0), "{}", daemon.log());
    let report = admin::uninstall(&settings, &topology, true, &NO_SIGNAL).unwrap().unwrap();
    assert!(report.removed.iter().any(|it| it == "queue `delay.schedules-of.orders`"), "{report:?}");
}

/// The place of the first record that the broker still has.
fn first_place(settings: &Settings, stream: &str) -> i64 {
    let mut session = Session::open(&settings.broker).unwrap();
    let consumer = session.read_stream(stream, StreamStart::First, 1).unwrap();
    match consumer.next(PATIENCE) {
        Next::Delivery(delivery) => delivery.headers[STREAM_OFFSET].as_i64().unwrap(),
        other => panic!("{other:?}"),
    }
}

/// The stream of an application keeps 10 MB, and 12 MB are written to it.
#[test]
fn records_are_written_again_before_the_broker_drops_them() {
    let settings = installed(1_000);
    let (_, _inbox, own) = register(&settings, "billing");
    let daily = spec_for("billing", 86_400);
    let stream = topology(&settings).names().schedules_of(&app("billing"));
    schedules::change(&own, &topology(&own), &name("billing/old"), Change::Set(&daily), false).unwrap();
    let ahead = while_published(&settings, |stats| {
        let list = || schedules::list(&own, &topology(&own), Some(&app("billing"))).unwrap().schedules;
        eventually("it is published ahead", || list()[0].ahead == 2);
        let mut rev = 0;
        let mut large = daily.clone();
        large.body = vec![0; 64 * 1024];
        for state in [State::Paused, State::Removed].into_iter().cycle().take(14) {
            let records: Vec<_> = (0..11)
                .map(|_| {
                    rev += 1;
                    definition("billing/large", state, rev, large.clone())
                })
                .collect();
            write(&own, "billing", &records);
            eventually("the daemon has read it", || {
                is_known(stats, "billing/large", state)
                    || state == State::Removed && !stats.counts().schedules.contains_key("billing/large")
            });
        }
        eventually("the broker has dropped the beginning", || first_place(&settings, &stream) > 20);
        list()[0].ahead
    });
    assert_eq!(ahead, 2);
    // A daemon that reads only what is left knows everything, also what it must recall.
    while_published(&settings, |_| {
        let removed =
            schedules::change(&own, &topology(&own), &name("billing/old"), Change::Remove, false).unwrap();
        assert_eq!((removed.outcome, removed.ahead), (Changed::Removed, 2));
        all_recalled(&settings, &removed);
    });
}
