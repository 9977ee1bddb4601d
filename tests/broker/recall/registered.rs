//! The objects that `app add --recall` creates, and which users may recall which messages.

use std::process::Command;

use delayline_admin::{self as admin, AppQueue, AppSpec, AppUser, Applied, Delivery, RemoveOptions, Target};
use delayline_amqp::{AmqpError, ProbeAnswer, Session, broker::Secret};
use delayline_core::{
    codec::RoutingKey,
    topology::{Queue, Rejected},
};

use super::*;

/// An application whose messages can be recalled, and a user whose password is the user's name.
fn spec(settings: &Settings, key: &str, delivery: Delivery) -> AppSpec {
    let name = format!("{key}-of-{}", settings.broker.vhost);
    let user = AppUser { password: Some(Secret::new(&name)), name, ..AppUser::default() };
    let recall = Some(RecallSettings::default());
    AppSpec { user: Some(user), recall, ..AppSpec::new(app(key), delivery) }
}

pub(super) fn direct(settings: &Settings, key: &str) -> AppSpec {
    spec(settings, key, Delivery::Direct(AppQueue::new(key)))
}

pub(super) fn added(settings: &Settings, spec: &AppSpec) -> admin::AddReport {
    let report = admin::add_app(settings, &topology(settings), spec, false, false).unwrap();
    assert!(matches!(report.outcome, Applied::Installed | Applied::Unchanged), "{report:?}");
    report
}

/// The settings of an application's user.
pub(super) fn its_own(settings: &Settings, spec: &AppSpec) -> Settings {
    common::as_user(settings, &spec.user.as_ref().unwrap().name)
}

#[test]
fn without_a_set_no_application_has_to_be_registered_for_recall() {
    let settings = installed(1_000);
    let billing = direct(&settings, "billing");
    added(&settings, &billing);
    let theirs = its_own(&settings, &billing);
    let key = RoutingKey::new("1h".parse().unwrap(), app("billing")).with_id("x".parse().unwrap()).unwrap();
    let handle = Handle::new(key, None).unwrap();
    let recaller = recaller(&theirs);
    assert_eq!(recaller.recall(&handle), Ok(Answer::Uncertain));
    admin::uninstall(&settings, &topology(&settings), true, &crate::common::NO_SIGNAL).unwrap().unwrap();
    let refused = recaller.recall(&handle).unwrap_err();
    assert!(matches!(&refused, RecallError::NoSet { .. }), "{refused:?}");
    assert!(refused.to_string().contains("delayline install"), "{refused}");
}

#[test]
fn an_application_recalls_its_own_messages_with_the_rights_it_is_given() {
    let settings = installed(1_000);
    let mut root = Session::open(&settings.broker).unwrap();
    root.declare_exchange(&delayline_core::topology::Exchange::new(
        "events",
        delayline_core::topology::ExchangeKind::Topic,
    ))
    .unwrap();
    let arguments = [("x-queue-type".to_owned(), "quorum".into())];
    root.declare_queue(&Queue::new("mine").with_arguments(arguments)).unwrap();
    root.bind(&Binding {
        source: "events".into(),
        destination: Endpoint::Queue("mine".into()),
        key: "due".into(),
    })
    .unwrap();
    let target =
        Target::Exchange { exchange: "events".into(), key: Some("due".into()), queue: Some("mine".into()) };
    let apps = [
        (direct(&settings, "billing"), "billing"),
        (spec(&settings, "landed", Delivery::Landing(Target::Queue(AppQueue::new("landed")))), "landed"),
        (spec(&settings, "events", Delivery::Landing(target)), "mine"),
    ];
    for (spec, queue) in &apps {
        added(&settings, spec);
        let again = added(&settings, spec);
        assert!(again.steps.iter().all(|step| step.stood), "{again:?}");
        let tenant = its_own(&settings, spec);
        let router = tenant.router().connect().unwrap();
        let message = |id: &str| {
            Message::after(spec.app.clone(), Delay::from_seconds(GOOD_TIME).unwrap(), id)
                .with_id(id.parse().unwrap())
        };
        let gone = handle(&send(&router, message("gone")));
        let back = handle(&send(&router, message("back")));
        send(&router, message("kept"));
        send(&router, Message::after(spec.app.clone(), Delay::ZERO, "plain"));
        let recaller = recaller(&tenant);
        assert_eq!(recaller.recall(&gone).unwrap(), Answer::InTime);
        assert_eq!(recaller.recall(&back).unwrap(), Answer::InTime);
        assert_eq!(recaller.undo(&back).unwrap(), Answer::InTime);
        assert!(!recaller.is_recalled(&gone).unwrap());
        let user = spec.user.as_ref().unwrap();
        let password = Secret::new(&user.name);
        let checked =
            AppSpec { user: None, ..AppSpec::new(spec.app.clone(), Delivery::Direct(AppQueue::new(*queue))) };
        let checked = AppSpec { recall: spec.recall, ..checked };
        let check = admin::check_app(&settings, &topology(&settings), &checked, user, &password).unwrap();
        let wrong: Vec<_> = check.probes.iter().filter(|probe| !probe.passed()).collect();
        assert!(check.passed(), "{wrong:#?}");
        // Without the flag, these rights are too many.
        let without = AppSpec { recall: None, ..checked };
        let check = admin::check_app(&settings, &topology(&settings), &without, user, &password).unwrap();
        assert_eq!(check.probes.iter().filter(|probe| !probe.passed()).count(), 3, "{check:#?}");
    }
    for (spec, queue) in &apps {
        eventually("three of four messages have arrived", || depth(&settings, queue) == 3);
        eventually("one message was recalled", || {
            depth(&settings, &format!("delay.recalled.{}", spec.app)) == 1
        });
    }
    assert_eq!(depth(&settings, "delay.unroutable"), 0);
    let topology = topology(&settings);
    assert_eq!(admin::verify(&settings, &topology).unwrap().findings, []);
    let list = admin::list_apps(&settings, &topology).unwrap();
    assert_eq!(list.apps.len(), 3, "{list:#?}");
    assert!(
        list.apps.iter().all(|entry| entry.recall.as_ref().is_some_and(|it| it.pending == 1)),
        "{list:#?}"
    );
    let doctor = admin::doctor(&settings, &topology, &admin::DoctorOptions::default()).unwrap();
    let about_recall = doctor.findings.iter().filter(|it| format!("{it:?}").contains("recall"));
    assert_eq!(about_recall.count(), 0, "{doctor:#?}");
}

#[test]
fn recall_is_added_to_an_existing_application_and_removed_with_it() {
    let settings = installed(1_000);
    let topology = topology(&settings);
    let recallable = direct(&settings, "billing");
    let queue = AppQueue { rejected: Some(Rejected::Retried), ..AppQueue::new("billing") };
    // Its queue has retries, which the flag --recall alone does not name.
    let plain = AppSpec { recall: None, delivery: Delivery::Direct(queue), ..recallable.clone() };
    added(&settings, &plain);
    let router = settings.router().connect().unwrap();
    send(&router, Message::after(app("billing"), Delay::from_seconds(3).unwrap(), "waits"));
    // The user already has other permissions.
    let report = admin::add_app(&settings, &topology, &recallable, false, false).unwrap();
    assert!(
        report.outcome == Applied::Conflict
            && report.conflicts.iter().all(|it| it.contains("--replace-permissions")),
        "{report:?}"
    );
    let report = admin::add_app(&settings, &topology, &recallable, true, false).unwrap();
    assert_eq!(report.outcome, Applied::Installed, "{report:?}");
    let tenant = its_own(&settings, &recallable);
    let recaller = recaller(&tenant);
    let waiting = handle(&send(&router, message("later", 3_600)));
    assert_eq!(recaller.recall(&waiting).unwrap(), Answer::InTime);
    eventually("the waiting message has arrived once", || depth(&settings, "billing") == 1);

    let remove = |force: bool| {
        let user = recallable.user.as_ref().map(|user| user.name.clone());
        let options = RemoveOptions { user, delete_user: true, force, ..RemoveOptions::default() };
        admin::remove_app(&settings, &topology, &app("billing"), &options, &crate::common::NO_SIGNAL).unwrap()
    };
    Session::open(&settings.broker).unwrap().purge_queue("billing").unwrap();
    eventually("only the recall prevents the removal", || {
        let refused = remove(false).unwrap_err();
        refused.recalls == 1
            && refused.waiting.is_empty()
            && refused.to_string().contains("1 recall is pending")
    });
    let refused =
        admin::uninstall(&settings, &topology, false, &crate::common::NO_SIGNAL).unwrap().unwrap_err();
    assert!(refused.landing.contains(&"delay.recalled.billing".to_owned()), "{refused:?}");
    assert_eq!(recaller.undo(&waiting).unwrap(), Answer::InTime);
    // The broker may still show an older count from before the purge, even after a newer one.
    let mut removed = None;
    eventually("nothing prevents the removal", || {
        removed = remove(false).ok();
        removed.is_some()
    });
    let removed = removed.unwrap();
    for gone in [
        "exchange `delay.recall.billing`",
        "exchange `delay.through.billing`",
        "queue `delay.recalled.billing`",
    ] {
        assert!(removed.removed.contains(&gone.to_owned()), "{removed:?}");
    }
    let left = common::http(
        &common::shared_node(),
        "GET",
        &format!("bindings/{}", settings.broker.vhost),
        &json!(null),
    );
    assert!(!left.to_string().contains("billing"), "{left}");
    // The message is still delayed, but it can no longer be delivered.
    assert_eq!(admin::verify(&settings, &topology).unwrap().findings, []);
}

#[test]
fn rights_to_recall_are_not_lost_by_leaving_out_a_flag() {
    let settings = installed(1_000);
    let topology = topology(&settings);
    let journal = Some(delayline_core::topology::JournalSettings::default());
    let mut full = direct(&settings, "billing");
    full.recall.as_mut().unwrap().journal = journal;
    added(&settings, &full);
    let mut without_journal = full.clone();
    without_journal.recall.as_mut().unwrap().journal = None;
    let without_recall = AppSpec { recall: None, ..full.clone() };
    for (spec, flag) in [(without_journal, "--journal"), (without_recall, "--recall")] {
        let report = admin::add_app(&settings, &topology, &spec, true, false).unwrap();
        assert_eq!(report.outcome, Applied::Conflict, "{report:?}");
        assert!(
            report.conflicts.len() == 1
                && report.conflicts[0].contains(&format!("give {flag} as well"))
                && report.conflicts[0].contains("delayline app remove billing --recall"),
            "{report:?}"
        );
    }
    let again = admin::add_app(&settings, &topology, &full, true, false).unwrap();
    assert_eq!(again.outcome, Applied::Unchanged, "{again:?}");
    // The user can still recall messages.
    let router = settings.router().connect().unwrap();
    let waiting = handle(&send(&router, message("later", 3_600)));
    assert_eq!(recaller(&its_own(&settings, &full)).recall(&waiting).unwrap(), Answer::InTime);
}

#[test]
fn recall_alone_is_removed_and_differences_are_found() {
    let settings = installed(1_000);
    let topology = topology(&settings);
    let recallable = direct(&settings, "billing");
    added(&settings, &recallable);
    let router = settings.router().connect().unwrap();
    let recaller = recaller(&settings);
    let gone = handle(&send(&router, message("gone", GOOD_TIME)));
    assert_eq!(recaller.recall(&gone).unwrap(), Answer::InTime);
    let remove = || {
        let options = RemoveOptions { only_recall: true, ..RemoveOptions::default() };
        admin::remove_app(&settings, &topology, &app("billing"), &options, &crate::common::NO_SIGNAL).unwrap()
    };
    let refused = remove().unwrap_err();
    assert_eq!(refused.recalls, 1, "{refused:?}");
    eventually("the message was recalled", || recalled(&settings) == 1);
    assert_eq!(
        recaller.undo(&Handle::new(gone.routing_key().clone(), None).unwrap()).unwrap(),
        Answer::Uncertain
    );
    let refused = remove().unwrap_err();
    assert!(
        refused.recalls == 0 && refused.to_string().contains("1 message waits in `delay.recalled.billing`")
    );

    // A change by hand is found, with its application.
    let mut session = Session::open(&settings.broker).unwrap();
    let route = topology.recall_route(&app("billing"));
    session.unbind(&route).unwrap();
    let findings = admin::verify(&settings, &topology).unwrap().findings;
    assert!(findings.len() == 1 && findings[0].apps == ["billing"], "{findings:#?}");
    assert!(findings[0].advice.contains("delayline app add billing --recall"), "{findings:#?}");
    assert!(
        findings[0].what.contains("`delay.dispatch` -> exchange `delay.recall.billing`"),
        "{findings:#?}"
    );
    added(&settings, &recallable);
    assert_eq!(admin::verify(&settings, &topology).unwrap().findings, []);

    session.purge_queue("delay.recalled.billing").unwrap();
    let mut removed = None;
    // The broker's count is some seconds old.
    eventually("no message waits", || {
        removed = remove().ok();
        removed.is_some()
    });
    let removed = removed.unwrap();
    assert_eq!(
        removed.removed,
        [
            "binding of exchange `delay.recall.billing` to `delay.dispatch`",
            "exchange `delay.recall.billing`",
            "exchange `delay.through.billing`",
            "queue `delay.recalled.billing`",
        ]
    );
    assert!(removed.left.iter().any(|left| left.contains("--replace-permissions")), "{removed:?}");
    // The application itself has not changed.
    assert_eq!(admin::verify(&settings, &topology).unwrap().findings, []);
    send(&router, Message::after(app("billing"), Delay::ZERO, "plain"));
    eventually("the application still receives messages", || depth(&settings, "billing") == 1);
    let list = admin::list_apps(&settings, &topology).unwrap();
    assert!(list.apps.len() == 1 && list.apps[0].recall.is_none(), "{list:#?}");
    // A second removal finds nothing to remove.
    assert_eq!(remove().unwrap().removed, [""; 0]);
}

/// The code of the broker's refusal, if there was one.
fn code<T>(result: Result<T, AmqpError>) -> Option<u16> {
    result.err().and_then(|error| error.code())
}

#[test]
fn no_user_changes_the_schedule_of_another_application() {
    let settings = installed(1_000);
    let own = direct(&settings, "billing");
    added(&settings, &own);
    added(&settings, &direct(&settings, "orders"));
    let router = settings.router().connect().unwrap();
    let theirs = Message::after(app("orders"), Delay::from_seconds(GOOD_TIME).unwrap(), "theirs");
    let theirs = handle(&send(&router, theirs.with_id("theirs".parse().unwrap())));
    let key = theirs.routing_key().encode();
    let tenant = its_own(&settings, &own);
    let mut session = Session::open(&tenant.broker).unwrap();
    let queue = |name: &str| Endpoint::Queue(name.into());
    let exchange = |name: &str| Endpoint::Exchange(name.into());
    let (recall, recalled) = ("delay.recall.orders", "delay.recalled.orders");
    let ends = [
        // The other application's scheduled messages: recalling, and undoing a recall.
        (recall, queue(recalled)),
        (recall, queue("delay.recalled.billing")),
        (recall, queue("billing")),
        (recall, exchange("delay")),
        (recall, exchange("delay.recall.billing")),
        ("delay.through.orders", queue("delay.recalled.billing")),
        ("delay.through.orders", queue("billing")),
        ("delay.through.orders", exchange("delay")),
        // The other application's queues.
        ("delay.recall.billing", queue(recalled)),
        ("delay.recall.billing", queue("orders")),
        ("delay.recall.billing", exchange(recall)),
        ("delay.recall.billing", exchange("delay.through.orders")),
        ("delay.recall.billing", exchange("delay.dispatch")),
        ("delay.dispatch", exchange("delay.recall.billing")),
        ("delay.dispatch", queue("delay.recalled.billing")),
        ("delay", queue("delay.recalled.billing")),
        ("delay.level.00", queue("delay.recalled.billing")),
        ("delay.unroutable", queue("delay.recalled.billing")),
    ];
    let mut tried = 0;
    let mut allowed = Vec::new();
    let mut note = |what: String, code: Option<u16>| {
        tried += 1;
        if code != Some(403) {
            allowed.push(format!("{what}: {code:?}"));
        }
    };
    for (source, destination) in ends {
        for key in [key.as_str(), "#", ""] {
            let binding =
                Binding { source: source.into(), destination: destination.clone(), key: key.into() };
            note(format!("bind {binding}"), code(session.bind(&binding)));
            note(format!("unbind {binding}"), code(session.unbind(&binding)));
        }
    }
    for name in [recalled, "orders"] {
        note(format!("consume {name}"), code(session.consume(name, 1)));
        note(format!("purge {name}"), code(session.purge_queue(name)));
    }
    for name in [recalled, "delay.recalled.billing", "orders"] {
        note(format!("delete {name}"), code(session.delete_queue(name)));
    }
    for name in [recall, "delay.through.orders", "delay.recall.billing", "delay.through.billing"] {
        note(format!("delete {name}"), code(session.delete_exchange(name)));
    }
    let to = Endpoint::Queue("orders".into());
    for object in topology(&settings).recall(&app("orders"), to, RecallSettings::default()) {
        match object {
            Object::Exchange(it) => note(format!("declare {}", it.name), code(session.declare_exchange(&it))),
            Object::Queue(it) => note(format!("declare {}", it.name), code(session.declare_queue(&it))),
            Object::Binding(_) => {}
        }
    }
    let own_key = "delay.0000.0000.0000.0000.0000.0000.0000.billing.~.";
    for (exchange, key) in [
        ("delay", key.clone()),
        ("delay", format!("{own_key}{}", "x".repeat(65))),
        ("delay", format!("{own_key}a.b")),
        ("delay", format!("{own_key}*")),
        ("delay", own_key.to_owned()),
        ("delay", format!("{own_key}x\n")),
        (recall, key.clone()),
        ("delay.through.orders", key.clone()),
        ("delay.recall.billing", format!("{own_key}x")),
        ("delay.through.billing", format!("{own_key}x")),
        ("", recalled.to_owned()),
        ("", "delay.recalled.billing".to_owned()),
    ] {
        let answer = session.probe_publish(exchange, &key).unwrap();
        let refused = matches!(answer, ProbeAnswer::Refused(_));
        note(format!("publish `{key}` to `{exchange}`"), refused.then_some(403));
    }
    // The handle has no due time, so the attempts before do not make it too late.
    let whenever = Handle::new(theirs.routing_key().clone(), None).unwrap();
    let refused = recaller(&tenant).recall(&whenever).unwrap_err();
    assert!(matches!(&refused, RecallError::NotPermitted { .. }), "{refused:?}");
    assert!(tried >= 100 && allowed.is_empty(), "{tried} tried: {allowed:#?}");

    // The application can lead its own messages back into a level. `verify` finds that binding.
    let round = Binding {
        source: "delay.recall.billing".into(),
        destination: exchange("delay"),
        key: format!("{own_key}x"),
    };
    session.bind(&round).unwrap();
    let findings = admin::verify(&settings, &topology(&settings)).unwrap().findings;
    let told = format!("{findings:?}");
    assert!(
        findings.len() == 1 && told.contains("can stay in a level") && told.contains(&round.source),
        "{told}"
    );
    session.unbind(&round).unwrap();
    eventually("the other application's message arrives", || depth(&settings, "orders") == 1);
    assert_eq!(depth(&settings, recalled), 0);
}

#[test]
fn a_publisher_recalls_what_it_may_recall_and_reads_none_of_it() {
    let settings = installed(1_000);
    added(&settings, &direct(&settings, "billing"));
    let mut shop = spec(&settings, "shop", Delivery::Nothing);
    shop.recall = None;
    shop.user.as_mut().unwrap().may_recall = vec![app("billing")];
    added(&settings, &shop);
    let tenant = its_own(&settings, &shop);
    let router = tenant.router().connect().unwrap();
    let gone = handle(&send(&router, message("gone", GOOD_TIME)));
    let recaller = recaller(&tenant);
    assert_eq!(recaller.recall(&gone).unwrap(), Answer::InTime);
    let read = Session::open(&tenant.broker).unwrap().consume("delay.recalled.billing", 1);
    assert_eq!(code(read), Some(403));
    let user = shop.user.as_ref().unwrap();
    let check =
        admin::check_app(&settings, &topology(&settings), &shop, user, &Secret::new(&user.name)).unwrap();
    let wrong: Vec<_> = check.probes.iter().filter(|probe| !probe.passed()).collect();
    assert!(check.passed(), "{wrong:#?}");
    eventually("the message was recalled", || recalled(&settings) == 1);
}

/// The only code block of a language that recalls.
pub(super) fn snippet(language: &str) -> &'static str {
    let document = match language {
        "javascript" => include_str!("../../../docs/for-teams/javascript.md"),
        _ => include_str!("../../../docs/for-teams/python.md"),
    };
    let fence = format!("```{language} recall.");
    let blocks = document.split(fence.as_str()).skip(1).filter_map(|rest| rest.split_once('\n'));
    let blocks = blocks.filter_map(|(_, rest)| rest.split("\n```").next());
    let mut blocks = blocks.filter(|block| block.contains("delay.recall."));
    let block = blocks.next().expect("a code block");
    assert_eq!(blocks.next(), None, "more than one block of {language}");
    block
}

#[test]
fn the_documents_snippets_recall_with_the_rights_that_app_add_gives() {
    the_snippets_recall(1_000);
}

#[test]
fn the_documents_snippets_recall_in_a_set_with_another_unit() {
    the_snippets_recall(500);
}

/// Publishes and recalls with the snippets, in the unit of a set.
fn the_snippets_recall(unit_ms: u64) {
    let settings = installed(unit_ms);
    let delay = GOOD_TIME * 1_000 / unit_ms;
    let in_the_unit = |language: &str| {
        let text = snippet(language);
        assert!(text.contains("UNIT_MS = 1000"), "{text}");
        text.replace("UNIT_MS = 1000", &format!("UNIT_MS = {unit_ms}"))
    };
    let spec = direct(&settings, "eu.billing");
    added(&settings, &spec);
    let tenant = its_own(&settings, &spec);
    let user = &spec.user.as_ref().unwrap().name;
    let url = format!("amqp://{user}:{user}@127.0.0.1:{}/{}", tenant.broker.port, tenant.broker.vhost);
    let python = format!(
        "{}\nchannel = pika.BlockingConnection(pika.URLParameters({url:?})).channel()\n\
         channel.confirm_delivery()\n\
         handle, due = publish_with_id(channel, {delay}, 'eu.billing', 'pika', b'gone')\n\
         mistyped = 'delay' + '.0000' * 6 + '.0001' + handle[40:]\n\
         print(handle, due, recall(channel, f'{{handle}}@{{due}}'), recall(channel, mistyped, due))\n\
         publish_with_id(channel, {delay}, 'eu.billing', 'pika', b'kept')\n\
         for wrong in (lambda: publish_with_id(channel, 2**28, 'eu.billing', 'pika', b'too far'),\n    \
                       lambda: recall(channel, handle + '!', due), lambda: recall(channel, handle[1:], due)):\n    \
             try: wrong()\n    \
             except ValueError: continue\n    \
             raise SystemExit('it is not refused')\n",
        in_the_unit("python")
    );
    let javascript = format!(
        "{}\nconst amqplib = require('amqplib');\n\
         (async () => {{\n\
           const connection = await amqplib.connect({url:?});\n\
           const channel = await connection.createConfirmChannel();\n\
           const message = await publishWithId(channel, {delay}, 'eu.billing', 'amqplib', 'gone');\n\
           const mistyped = 'delay' + '.0000'.repeat(6) + '.0010' + message.handle.slice(40);\n\
           const inTime = [await recall(channel, message), await recall(channel, {{ ...message, handle: mistyped }})];\n\
           await publishWithId(channel, {delay}, 'eu.billing', 'amqplib', 'kept');\n\
           const bad = [() => publishWithId(channel, 2 ** 28, 'eu.billing', 'amqplib', 'too far'),\n\
             () => recall(channel, {{ ...message, handle: message.handle + '!' }}),\n\
             () => recall(channel, {{ ...message, handle: message.handle.slice(1) }})];\n\
           for (const call of bad) {{\n\
             const refused = await call().then(() => false, (error) => error instanceof RangeError);\n\
             if (!refused) throw new Error('it is not refused');\n\
           }}\n\
           console.log(message.handle, message.due, ...inTime.map((it) => it ? 'True' : 'False'));\n\
           await connection.close();\n\
         }})();\n",
        in_the_unit("javascript")
    );
    let python_with_pika = std::env::var("TEST_PYTHON").expect("TEST_PYTHON names a Python that has pika");
    let packages = std::env::var("TEST_NODE_PATH").expect("scripts/test sets TEST_NODE_PATH");
    let mut by_pika = Command::new(python_with_pika);
    by_pika.args(["-c", &python]);
    let mut by_amqplib = Command::new("node");
    by_amqplib.env("NODE_PATH", packages).args(["-e", &javascript]);
    let mut handles = Vec::new();
    for program in [by_pika, by_amqplib] {
        let output = common::run_in_time(program);
        let printed = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{printed} {}", String::from_utf8_lossy(&output.stderr));
        let [handle, due, in_time, mistyped] = printed.split_whitespace().collect::<Vec<_>>()[..] else {
            panic!("{printed}");
        };
        // A due time that the delay cannot reach belongs to another message.
        assert_eq!((in_time, mistyped), ("True", "False"), "{printed}");
        let key: RoutingKey = handle.parse().unwrap();
        assert_eq!(u64::from(key.delay.seconds()), delay);
        handles.push(format!("{handle}@{due}").parse::<Handle>().unwrap());
    }
    let pending =
        || admin::pending_recalls(&settings, &topology(&settings), Some(&spec.app)).unwrap().pending;
    eventually_seen("the API shows all recalls", pending, |pending| pending.len() == 4);
    // These have the same id and delay as the recalled messages.
    eventually("the messages that were not recalled arrive", || depth(&settings, "eu.billing") == 2);
    eventually("the other messages were recalled", || depth(&settings, "delay.recalled.eu.billing") == 2);
    let recaller = recaller(&settings);
    assert!(handles.iter().all(|handle| recaller.is_recalled(handle).unwrap()));
}
