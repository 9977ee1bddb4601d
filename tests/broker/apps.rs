//! Registering and removing applications.

mod moving;
mod removing;
mod unbound;

use delayline_admin::{
    self as admin, AppQueue, AppSpec, AppUser, Applied, Delivery, Export, RemoveOptions, RemoveRefusal,
    RemoveReport, Target,
};
use delayline_amqp::{
    Next, Session,
    broker::{Credentials, Secret},
};
use delayline_core::{
    codec::{Delay, RoutingKey},
    topology::{Binding, Endpoint, Exchange, ExchangeKind, Queue, Rejected, Topology},
};
use delayline_settings::Settings;
use serde_json::{Value as Json, json};

use crate::common::Counting;
use crate::common::{self, NO_SIGNAL, PATIENCE, app, raw};

const PASSWORD: &str = "of-an-app";

/// An application with a user name that no other test uses.
fn spec(settings: &Settings, key: &str, delivery: Delivery) -> AppSpec {
    let name = format!("{key}-of-{}", settings.broker.vhost);
    let user = AppUser { name, password: Some(Secret::new(PASSWORD)), ..AppUser::default() };
    AppSpec { user: Some(user), ..AppSpec::new(app(key), delivery) }
}

fn direct(settings: &Settings, key: &str) -> AppSpec {
    spec(settings, key, Delivery::Direct(AppQueue::new(key)))
}

fn topology(settings: &Settings) -> Topology {
    common::topology(settings)
}

fn add(settings: &Settings, spec: &AppSpec) -> admin::AddReport {
    admin::add_app(settings, &topology(settings), spec, false, false).unwrap()
}

fn added(settings: &Settings, spec: &AppSpec) {
    let report = add(settings, spec);
    assert_eq!(report.outcome, Applied::Installed, "{report:?}");
}

/// The conflicts of an application. They must prevent all changes.
fn conflicts(settings: &Settings, spec: &AppSpec) -> Vec<String> {
    let before = picture(settings);
    let report = add(settings, spec);
    assert_eq!(report.outcome, Applied::Conflict, "{report:?}");
    assert_eq!(picture(settings), before);
    report.conflicts
}

fn remove(
    settings: &Settings,
    spec: &AppSpec,
    options: RemoveOptions,
) -> Result<RemoveReport, RemoveRefusal> {
    let user = spec.user.as_ref().map(|user| user.name.clone());
    let options = RemoveOptions { user, ..options };
    admin::remove_app(settings, &topology(settings), &spec.app, &options, &NO_SIGNAL).unwrap()
}

fn api(method: &str, path: &str, body: &Json) -> Json {
    common::http(&common::shared_node(), method, path, body)
}

/// Everything in a vhost that adding and removing could change, by name.
fn picture(settings: &Settings) -> Json {
    let vhost = &settings.broker.vhost;
    let names = |kind: &str, fields: &[&str]| -> Json {
        let list = api("GET", &format!("{kind}/{vhost}"), &json!(null));
        let of = |item: &Json| -> Json { fields.iter().map(|&field| item[field].clone()).collect() };
        list.as_array().unwrap().iter().map(of).collect()
    };
    let mut users: Vec<_> = api("GET", "users", &json!(null)).as_array().unwrap().clone();
    users.retain(|user| user["name"].as_str().unwrap().ends_with(&format!("-of-{vhost}")));
    let users: Vec<_> = users.iter().map(|user| user["name"].clone()).collect();
    json!({
        "queues": names("queues", &["name"]),
        "bindings": names("bindings", &["source", "destination", "routing_key"]),
        "permissions": api("GET", &format!("vhosts/{vhost}/permissions"), &json!(null)),
        "topics": api("GET", &format!("vhosts/{vhost}/topic-permissions"), &json!(null)),
        "users": users,
    })
}

fn key(app_key: &str) -> String {
    RoutingKey::new(Delay::ZERO, app(app_key)).encode()
}

fn publish(settings: &Settings, app_key: &str, count: usize) {
    raw::publish(settings, (0..count).map(|n| raw::message("delay", &key(app_key), n, &json!({}))));
}

fn limited(name: &str) -> Queue {
    let arguments = [
        ("x-queue-type".to_owned(), "quorum".into()),
        ("x-max-length".to_owned(), 5.into()),
        ("x-overflow".to_owned(), "reject-publish".into()),
    ];
    Queue::new(name).with_arguments(arguments)
}

#[test]
fn adding_again_changes_nothing_and_removing_leaves_nothing() {
    let settings = common::installed(1_000);
    let before = picture(&settings);
    let spec = direct(&settings, "billing");
    let dry = admin::add_app(&settings, &topology(&settings), &spec, false, true).unwrap();
    assert_eq!(dry.outcome, Applied::DryRun);
    assert_eq!(picture(&settings), before);
    added(&settings, &spec);
    let registered = picture(&settings);
    let again = add(&settings, &spec);
    assert_eq!(again.outcome, Applied::Unchanged);
    assert!(again.steps.iter().all(|step| step.stood), "{again:?}");
    assert_eq!(picture(&settings), registered);

    let list = admin::list_apps(&settings, &topology(&settings)).unwrap();
    let [entry] = list.apps.as_slice() else { panic!("{list:?}") };
    assert_eq!((entry.app.as_deref(), entry.queue.as_deref()), (Some("billing"), Some("billing")));
    let users = entry.users.as_ref().unwrap();
    assert_eq!((users.len(), users[0].consumes, users[0].publishes), (1, Some(true), Some(true)));

    let options = RemoveOptions { delete_user: true, ..RemoveOptions::default() };
    let dry = remove(&settings, &spec, RemoveOptions { dry_run: true, ..options.clone() }).unwrap();
    assert_eq!(picture(&settings), registered, "{dry:?}");
    let report = remove(&settings, &spec, options.clone()).unwrap();
    assert!(report.removed.len() == 4 && report.left.is_empty(), "{report:?}");
    assert_eq!(picture(&settings), before);
    assert!(remove(&settings, &spec, options).unwrap().removed.is_empty());
}

#[test]
fn conflicts_are_named_and_nothing_changes() {
    let settings = common::installed(1_000);
    let mut session = Session::open(&settings.broker).unwrap();
    let named = |found: &[String], words: &[&str]| {
        assert!(
            found.len() == 1 && words.iter().all(|word| found[0].contains(word)),
            "{words:?} in {found:?}"
        );
    };
    session.declare_queue(&limited("taken")).unwrap();
    let taken = spec(&settings, "app", Delivery::Direct(AppQueue::new("taken")));
    named(&conflicts(&settings, &taken), &["queue `taken`", "x-max-length"]);
    let existing = AppQueue { existing: true, ..AppQueue::new("nowhere") };
    named(&conflicts(&settings, &spec(&settings, "app", Delivery::Direct(existing))), &["queue `nowhere`"]);
    let target = Target::Exchange { exchange: "nowhere".into(), key: None, queue: None };
    named(&conflicts(&settings, &spec(&settings, "app", Delivery::Landing(target))), &["exchange `nowhere`"]);
    let mut nobody = direct(&settings, "app");
    nobody.user.as_mut().unwrap().password = None;
    named(&conflicts(&settings, &nobody), &["does not exist", "DELAYLINE_APP_PASSWORD"]);
    let mut root = direct(&settings, "app");
    root.user.as_mut().unwrap().name = "guest".into();
    let found = conflicts(&settings, &root);
    assert!(found.iter().any(|conflict| conflict.contains("administrator")), "{found:?}");

    // A second queue for the same app key would receive copies.
    let binding = topology(&settings).app_binding(&app("app"), "taken");
    session.bind(&binding).unwrap();
    named(&conflicts(&settings, &direct(&settings, "app")), &["bound to queue `taken`", "copy"]);
    session.unbind(&binding).unwrap();

    // Other permissions are kept, unless `--replace-permissions` is given.
    let spec = direct(&settings, "app");
    let user = spec.user.as_ref().unwrap().name.clone();
    let path = format!("permissions/{}/{user}", settings.broker.vhost);
    api("PUT", &format!("users/{user}"), &json!({ "password": PASSWORD, "tags": "" }));
    api("PUT", &path, &json!({ "configure": ".*", "write": ".*", "read": ".*" }));
    named(&conflicts(&settings, &spec), &[&user, "configure `.*`", "--replace-permissions"]);
    let report = admin::add_app(&settings, &topology(&settings), &spec, true, false).unwrap();
    assert_eq!(report.outcome, Applied::Installed);
    assert_eq!(api("GET", &path, &json!(null))["configure"], "^$");

    let elsewhere = common::vhost().build().unwrap();
    let found = conflicts(&elsewhere, &direct(&elsewhere, "app"));
    assert!(found[0].contains("not installed"), "{found:?}");
}

#[test]
fn a_queue_that_can_refuse_is_pointed_out() {
    let settings = common::installed(1_000);
    Session::open(&settings.broker).unwrap().declare_queue(&limited("small")).unwrap();
    let small = AppQueue { existing: true, ..AppQueue::new("small") };
    let warnings = add(&settings, &spec(&settings, "app", Delivery::Direct(small.clone()))).warnings;
    assert!(warnings.iter().any(|warning| warning.contains("--landing")), "{warnings:?}");
    let mut bound = direct(&settings, "binder");
    bound.user.as_mut().unwrap().may_bind = true;
    let warnings = add(&settings, &bound).warnings;
    assert!(warnings.iter().any(|warning| warning.contains("block a level")), "{warnings:?}");
}

#[test]
fn a_check_finds_what_a_user_may_do_and_does_nothing() {
    let settings = common::installed(1_000);
    added(&settings, &direct(&settings, "orders"));
    let mut spec = direct(&settings, "billing");
    {
        let user = spec.user.as_mut().unwrap();
        user.may_publish = vec![app("shop")];
        user.max_delay = Some("1d".parse().unwrap());
        user.may_retry = true;
    }
    added(&settings, &spec);
    let before = picture(&settings);
    let check = |user: &AppUser| {
        admin::check_app(&settings, &topology(&settings), &spec, user, &Secret::new(PASSWORD)).unwrap()
    };
    let user = spec.user.clone().unwrap();
    let found = check(&user);
    assert!(found.passed() && found.probes.len() > 50 && found.unchecked.is_empty(), "{found:?}");
    let tried = |what: &str| found.probes.iter().any(|probe| probe.what.contains(what));
    assert!(tried("publish the key `orders`") && tried("consume or purge `orders`"), "{found:?}");

    // An application without these flags should have fewer rights.
    let wrong = |user: &AppUser| -> Vec<String> {
        check(user).probes.iter().filter(|probe| !probe.passed()).map(|probe| probe.what.clone()).collect()
    };
    let plain = AppUser { name: user.name.clone(), ..AppUser::default() };
    assert_eq!(
        wrong(&plain),
        [
            "publish with a delay of 8y 26w 1h 33m 35s".to_owned(),
            "publish its own key to `delay.retry`".into(),
            "publish its own key to `delay.parked`".into()
        ]
        .map(|what| what.replace("8y 26w 1h 33m 35s", &Delay::MAX.to_string()))
    );
    // With all permissions, nearly every check fails.
    let path = |kind: &str| format!("{kind}/{}/{}", settings.broker.vhost, user.name);
    api("PUT", &path("permissions"), &json!({ "configure": ".*", "write": ".*", "read": ".*" }));
    api("DELETE", &path("topic-permissions"), &json!(null));
    // The broker caches the rights of a connection for a moment, but not those of a user.
    let wrong = wrong(&user);
    for what in [
        "publish the key `orders`",
        "publish to `delay.dispatch`",
        "consume or purge `delay.level.27`",
        "bind every key",
        "declare or delete `delay`",
        "declare or delete anything at all (`.*`)",
    ] {
        assert!(wrong.iter().any(|wrong| wrong.starts_with(what)), "{what} in {wrong:?}");
    }
    // The rights of a tag cannot be tried, but the tag is visible.
    api("PUT", &format!("users/{}", user.name), &json!({ "password": PASSWORD, "tags": "policymaker" }));
    let found = check(&user);
    let probe = found.probes.iter().find(|probe| probe.what.contains("policymaker")).unwrap();
    assert!(!probe.passed(), "{probe:?}");
    let spec = direct(&settings, "billing");
    let report = add(&settings, &spec);
    assert!(report.conflicts.iter().any(|it| it.contains("tag policymaker")), "{report:?}");
    // The checks have left nothing behind.
    let after = picture(&settings);
    for kind in ["queues", "bindings"] {
        assert_eq!(after[kind], before[kind]);
    }
    let mut session = Session::open(&settings.broker).unwrap();
    for queue in ["billing", "orders", "delay.unroutable", "delay.retry", "delay.parked"] {
        assert_eq!(session.counts(queue).unwrap().unwrap().ready, 0, "{queue}");
    }
    assert_eq!(admin::verify(&settings, &topology(&settings)).unwrap().findings, []);
    // If the broker lets a user publish in any name, this check cannot learn anything.
    api("PUT", &format!("users/{}", user.name), &json!({ "password": PASSWORD, "tags": "impersonator" }));
    let found = check(&user);
    assert!(found.probes.is_empty() && found.unchecked.iter().any(|it| it.contains("user_id")), "{found:?}");
}

#[test]
fn a_full_target_behind_a_landing_queue_stalls_only_its_own_application() {
    let settings = common::installed(1);
    let mut session = Session::open(&settings.broker).unwrap();
    session.declare_queue(&limited("full")).unwrap();
    let full = Target::Queue(AppQueue { existing: true, ..AppQueue::new("full") });
    let full = spec(&settings, "full", Delivery::Landing(full));
    added(&settings, &full);
    let chooser = Exchange::new("choice", ExchangeKind::Topic);
    session.declare_exchange(&chooser).unwrap();
    let chosen = Queue::new("chosen").with_arguments([("x-queue-type".to_owned(), "quorum".into())]);
    session.declare_queue(&chosen).unwrap();
    session
        .bind(&Binding {
            source: "choice".into(),
            destination: Endpoint::Queue("chosen".into()),
            key: "invoice.due".into(),
        })
        .unwrap();
    let target = Target::Exchange {
        exchange: "choice".into(),
        key: Some("invoice.due".into()),
        queue: Some("chosen".into()),
    };
    added(&settings, &spec(&settings, "choosy", Delivery::Landing(target)));
    added(&settings, &spec(&settings, "plain", Delivery::Landing(Target::Queue(AppQueue::new("plain")))));

    let delayed = |app_key: &str| RoutingKey::new(Delay::from_seconds(1).unwrap(), app(app_key)).encode();
    let message = |app_key: &str, n: usize| raw::message("delay", &delayed(app_key), n, &json!({}));
    // More messages than a level's dead-letter worker holds: without the landing queue, level 0
    // would be stuck.
    raw::publish(&settings, (0..200).map(|n| message("full", n)));
    raw::publish(&settings, ["choosy", "plain"].iter().flat_map(|app| (0..50).map(|n| message(app, n))));
    for (queue, routing_key) in [("chosen", "invoice.due"), ("plain", "plain")] {
        let consumer = session.consume(queue, 100).unwrap();
        let mut bodies = Vec::new();
        while bodies.len() < 50 {
            match consumer.next(PATIENCE) {
                Next::Delivery(delivery) => {
                    assert_eq!(delivery.routing_key, routing_key);
                    bodies.push(String::from_utf8(delivery.body.clone()).unwrap());
                    consumer.ack(delivery).unwrap();
                }
                other => panic!("{queue} after {}: {other:?}", bodies.len()),
            }
        }
        bodies.sort_by_key(|body| body.parse::<usize>().unwrap());
        bodies.dedup();
        assert_eq!(bodies.len(), 50);
    }
    let waiting = common::eventually_seen(
        "the remaining messages wait in the landing queue",
        || {
            let list = admin::list_apps(&settings, &topology(&settings)).unwrap();
            let full = list.apps.into_iter().find(|entry| entry.app.as_deref() == Some("full")).unwrap();
            full.landing.unwrap().messages.unwrap_or(0) + full.messages.unwrap_or(0)
        },
        |&messages| messages == 200,
    );
    assert_eq!(waiting, 200);
    // While these messages wait, neither the application nor the set can be removed.
    let refusal = remove(&settings, &full, RemoveOptions::default()).unwrap_err();
    assert!(refusal.waiting.iter().any(|it| it.queue == "delay.landing.full"), "{refusal:?}");
    let refusal = admin::uninstall(&settings, &topology(&settings), false, &NO_SIGNAL).unwrap().unwrap_err();
    assert!(refusal.landing.contains(&"delay.landing.plain".to_owned()), "{refusal:?}");
    assert!(refusal.waiting.iter().any(|it| it.queue == "delay.landing.full"), "{refusal}");
    let options = RemoveOptions { force: true, ..RemoveOptions::default() };
    let report = remove(&settings, &full, options).unwrap();
    assert!(report.left.iter().any(|left| left.contains("`full`")), "{report:?}");
    assert!(report.discarded.iter().any(|it| it.queue == "delay.landing.full"), "{report:?}");
    let report = admin::uninstall(&settings, &topology(&settings), true, &NO_SIGNAL).unwrap().unwrap();
    assert!(report.removed.contains(&"queue `delay.landing.plain`".to_owned()), "{report:?}");
    assert!(session.counts("delay.landing.choosy").unwrap().is_none());
    assert!(session.counts("chosen").unwrap().is_some());
}

#[test]
fn exported_definitions_register_the_same_application() {
    let settings = common::installed(1_000);
    let vhost = &settings.broker.vhost;
    let target = Target::Queue(AppQueue::new("o'b"));
    let mut spec = spec(&settings, "o'b.$x", Delivery::Landing(target));
    spec.user.as_mut().unwrap().may_retry = true;
    let topology = topology(&settings);
    add(&settings, &spec);
    // The user is kept.
    remove(&settings, &spec, RemoveOptions::default()).unwrap();
    api("POST", "definitions", &Export::new(vhost).with_app(&topology, &spec).definitions());
    let report = add(&settings, &spec);
    assert_eq!(report.outcome, Applied::Unchanged, "{report:?}");
}

#[test]
fn a_user_that_may_bind_can_lead_its_messages_back_into_a_level_and_verify_finds_it() {
    let settings = common::installed(1_000);
    let mut spec = direct(&settings, "billing");
    spec.user.as_mut().unwrap().may_bind = true;
    added(&settings, &spec);
    let user = spec.user.as_ref().unwrap();
    let credentials = Credentials::Plain { username: user.name.clone(), password: Secret::new(PASSWORD) };
    let mut session = Session::open(&settings.broker.clone().with_credentials(credentials)).unwrap();
    let own = topology(&settings).app_binding(&spec.app, "billing");
    session.unbind(&own).unwrap();
    session.bind(&own).unwrap();
    let all = Binding { key: "#".into(), ..own.clone() };
    assert_eq!(session.bind(&all).unwrap_err().code(), Some(403));
    assert_eq!(admin::verify(&settings, &topology(&settings)).unwrap().findings, []);
    // The risk of `--may-bind` that docs/explanation/security.md describes.
    session.bind(&Binding { destination: Endpoint::Exchange("delay".into()), ..own }).unwrap();
    let findings = admin::verify(&settings, &topology(&settings)).unwrap().findings;
    assert!(findings.iter().any(|finding| finding.subject.contains("exchange `delay`")), "{findings:?}");
}

#[test]
fn a_queue_without_a_dead_letter_exchange_is_a_conflict_with_advice() {
    let settings = common::installed(1_000);
    let mut session = Session::open(&settings.broker).unwrap();
    let name = "it's.billing";
    let arguments = [("x-queue-type".to_owned(), "quorum".into())];
    session.declare_queue(&Queue::new(name).with_arguments(arguments)).unwrap();
    let delivery = |existing: bool| {
        let rejected = (!existing).then_some(Rejected::Retried);
        Delivery::Direct(AppQueue { existing, rejected, ..AppQueue::new(name) })
    };
    let alone = |delivery| AppSpec { user: None, ..spec(&settings, "billing", delivery) };
    let said = conflicts(&settings, &alone(delivery(false)));
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].contains("x-dead-letter-exchange") && said[0].contains("--existing"), "{said:?}");
    // With `existing`, the queue is accepted as it is, but with a warning.
    let before =
        admin::add_app(&settings, &topology(&settings), &alone(delivery(true)), false, true).unwrap();
    assert!(before.warnings.iter().any(|text| text.contains("has no dead-letter exchange")), "{before:?}");

    // A shell understands the suggested command, and the command helps.
    let (_, command) = said[0].split_once("rabbitmqctl ").unwrap();
    let (arguments, _) = command.split_once(" (only one policy").unwrap();
    let taken_apart = std::process::Command::new("sh")
        .args(["-c", &format!("printf '%s\\n' {arguments}")])
        .output()
        .unwrap();
    let arguments = String::from_utf8(taken_apart.stdout).unwrap();
    common::shared_node().tell(&arguments.lines().collect::<Vec<_>>()).unwrap();
    added(&settings, &alone(delivery(true)));
    let after = add(&settings, &alone(delivery(true)));
    assert!(!after.warnings.iter().any(|text| text.contains("dead-letter")), "{after:?}");
    raw::publish(&settings, [raw::message("", name, "x", &json!({}))]);
    let consumer = session.consume(name, 1).unwrap();
    match consumer.next(PATIENCE) {
        Next::Delivery(delivery) => consumer.reject(delivery).unwrap(),
        other => panic!("{other:?}"),
    }
    common::eventually("the rejected message is in the retry queue", || {
        session.counts("delay.retry").unwrap().unwrap().ready == 1
    });
}
