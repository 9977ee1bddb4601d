use std::{num::NonZeroU8, thread};

use delayline_admin::{self as admin, AppQueue, AppSpec, Applied, Delivery};
use delayline_amqp::Session;
use delayline_broker::{Difference, ManagementApi};
use delayline_core::{
    codec::{Delay, Level},
    topology::{Argument, Binding, Endpoint, Exchange, ExchangeKind, Queue},
};
use serde_json::json;

use crate::common::Counting;
use crate::common::{
    Inbox, NO_SIGNAL, PATIENCE, app, as_user, eventually, eventually_seen, http, install, installed, permit,
    raw, shared_node, topology, vhost,
};

/// The number of bindings in a set.
const BINDINGS: usize = 598;

#[test]
fn installs_once_and_then_finds_everything_standing() {
    let settings = vhost().build().unwrap();
    let topology = topology(&settings);
    let mut steps = 0;
    let first = admin::install(&settings, &topology, false, || steps += 1).unwrap();
    assert_eq!((first.created.len(), first.standing, first.created_bindings), (63, 0, Some(BINDINGS)));
    assert_eq!(steps, topology.objects().len());
    let second = admin::install(&settings, &topology, false, || {}).unwrap();
    assert_eq!((second.created.len(), second.standing, second.created_bindings), (0, 63, Some(0)));
    assert_eq!(admin::verify(&settings, &topology).unwrap().findings, []);
}

#[test]
fn a_dry_run_touches_nothing() {
    let settings = vhost().build().unwrap();
    let topology = topology(&settings);
    for _ in 0..2 {
        let report = admin::install(&settings, &topology, true, || panic!("an object was declared")).unwrap();
        assert_eq!(
            (report.outcome, report.created.len(), report.created_bindings),
            (Applied::DryRun, 63, Some(BINDINGS))
        );
    }
}

#[test]
fn many_may_install_at_once() {
    let settings = vhost().build().unwrap();
    let reports: Vec<_> = (0..5)
        .map(|_| {
            let settings = settings.clone();
            thread::spawn(move || admin::install(&settings, &topology(&settings), false, || {}))
        })
        .collect();
    for report in reports {
        let outcome = report.join().unwrap().unwrap().outcome;
        assert!(matches!(outcome, Applied::Installed | Applied::Unchanged), "{outcome:?}");
    }
    assert_eq!(admin::verify(&settings, &topology(&settings)).unwrap().findings, []);
}

#[test]
fn bindings_lost_with_the_dispatch_exchange_are_reported() {
    let settings = installed(1_000);
    Session::open(&settings.broker).unwrap().delete_exchange("delay.dispatch").unwrap();
    for dry_run in [true, false] {
        let report = admin::install(&settings, &topology(&settings), dry_run, || {}).unwrap();
        let of_dispatch = |warning: &&String| warning.contains("`delayline apply FILE`");
        assert_eq!(report.warnings.iter().filter(of_dispatch).count(), 1, "{:?}", report.warnings);
    }
    let again = admin::install(&settings, &topology(&settings), false, || {}).unwrap();
    assert!(!again.warnings.iter().any(|it| it.contains("dispatch")), "{:?}", again.warnings);
}

#[test]
fn missing_objects_are_repaired() {
    let settings = installed(1_000);
    let mut session = Session::open(&settings.broker).unwrap();
    session.delete_queue("delay.level.05").unwrap();
    session.delete_exchange("delay.level.09").unwrap();
    let report = admin::install(&settings, &topology(&settings), false, || {}).unwrap();
    assert_eq!(report.created, ["queue `delay.level.05`", "exchange `delay.level.09`"]);
    let topology = topology(&settings);
    let gone = topology.bindings().filter(|binding| {
        let queue = Endpoint::Queue("delay.level.05".into());
        binding.destination == queue || binding.source == "delay.level.09"
    });
    assert_eq!(report.created_bindings, Some(gone.count()));
    assert_eq!(admin::verify(&settings, &topology).unwrap().findings, []);
}

#[test]
fn names_every_conflict_and_changes_nothing() {
    for management in [true, false] {
        let mut layers = vhost();
        if !management {
            layers = layers.set("management_url", "none");
        }
        let settings = layers.build().unwrap();
        let mut session = Session::open(&settings.broker).unwrap();
        let arguments =
            [("x-queue-type".to_owned(), "quorum".into()), ("x-message-ttl".to_owned(), Argument::from(5))];
        session.declare_queue(&Queue::new("delay.level.03").with_arguments(arguments)).unwrap();
        session.declare_exchange(&Exchange::new("delay.dispatch", ExchangeKind::Fanout)).unwrap();

        let report =
            admin::install(&settings, &topology(&settings), false, || panic!("an object was declared"))
                .unwrap();
        assert_eq!(report.outcome, Applied::Conflict);
        let mut conflicts: Vec<_> = report
            .conflicts
            .iter()
            .map(|c| (c.object.as_str(), c.argument.as_str(), c.wanted.as_str(), c.found.as_str()))
            .collect();
        conflicts.sort_unstable();
        let (exchange, queue) = (conflicts[0], conflicts[1]);
        assert_eq!(exchange, ("exchange `delay.dispatch`", "type", "topic", "fanout"));
        assert_eq!(queue.0, "queue `delay.level.03`");
        assert!(!queue.1.is_empty() && !queue.3.is_empty(), "{queue:?}");
        assert_eq!(session.counts("delay.level.04").unwrap(), None);
        assert!(!session.exchange_exists("delay").unwrap());
    }
}

#[test]
fn a_limit_on_queues_is_named_before_anything_is_made() {
    let settings = vhost().build().unwrap();
    let (node, vhost) = (shared_node(), &settings.broker.vhost);
    let limit = |most: i64| {
        http(&node, "PUT", &format!("vhost-limits/{vhost}/max-queues"), &json!({ "value": most }));
    };
    limit(20);
    let report =
        admin::install(&settings, &topology(&settings), false, || panic!("an object was declared")).unwrap();
    assert_eq!(report.outcome, Applied::Unsuitable, "{report:?}");
    let text = report.unsuitable[0].to_string();
    assert!(text.contains("may have 20 queues, has 0, and 31 more are needed"), "{text}");
    assert!(text.contains("set_vhost_limits"), "{text}");
    // The advice helps, but leaves no room for an application.
    limit(31);
    install(&settings);
    let spec = AppSpec::new(app("billing"), Delivery::Direct(AppQueue::new("billing")));
    let report = admin::add_app(&settings, &topology(&settings), &spec, false, false).unwrap();
    assert_eq!(report.outcome, Applied::Conflict, "{report:?}");
    assert!(report.conflicts[0].contains("has 31, and 1 more"), "{report:?}");
}

#[test]
fn a_refusal_on_the_way_names_what_was_made_and_the_commands_that_continue_or_remove_it() {
    let settings = vhost().build().unwrap();
    let (vhost, user) = (&settings.broker.vhost, format!("half-of-{}", settings.broker.vhost));
    permit(vhost, &user, [r"^delay(\.level\..+|\.unroutable)?\z", ".*", ".*"]);
    let theirs = as_user(&settings, &user);
    let error = admin::install(&theirs, &topology(&theirs), false, || {}).unwrap_err().to_string();
    assert!(error.contains("made before this failed, and stay"), "{error}");
    for words in ["`delayline install` continues", "`delayline uninstall` removes them", "delay."] {
        assert!(error.contains(words), "{words}: {error}");
    }
    assert!(error.ends_with("ACCESS_REFUSED") || error.contains("403"), "{error}");
    install(&settings);
}

#[test]
fn the_number_of_replicas_in_effect_is_accepted_and_another_is_one_conflict() {
    let settings = installed(1_000);
    let mut asked = settings.clone();
    let replicas = |number| NonZeroU8::new(number);
    asked.topology.replicas = replicas(1);
    let report = eventually_seen(
        "the broker reports the members of its queues",
        || admin::install(&asked, &topology(&asked), false, || {}).unwrap(),
        |report| report.outcome == Applied::Unchanged,
    );
    assert_eq!(report.conflicts, []);
    assert_eq!(admin::verify(&asked, &topology(&asked)).unwrap().findings, []);
    asked.topology.replicas = replicas(3);
    let report =
        admin::install(&asked, &topology(&asked), false, || panic!("an object was declared")).unwrap();
    let [conflict] = report.conflicts.as_slice() else { panic!("{report:?}") };
    assert_eq!(report.unsuitable, []);
    let text = conflict.to_string();
    assert!(text.contains("and 28 more: `replicas` should be 3, but is 1; leave out"), "{text}");
    // The different number does not prevent a removal, either.
    assert!(admin::uninstall(&asked, &topology(&asked), false, &NO_SIGNAL).unwrap().is_ok());
}

#[test]
fn a_policy_for_all_queues_is_named_with_one_that_protects_the_set() {
    let settings = vhost().build().unwrap();
    let (node, vhost) = (shared_node(), &settings.broker.vhost);
    let catch_all =
        json!({ "pattern": ".*", "definition": { "max-length": 1_000 }, "apply-to": "all", "priority": 7 });
    for kind in ["policies", "operator-policies"] {
        http(&node, "PUT", &format!("{kind}/{vhost}/all"), &catch_all);
    }
    let report = admin::install(&settings, &topology(&settings), true, || {}).unwrap();
    let found: Vec<_> = report.warnings.iter().filter(|it| it.contains("max-length")).collect();
    assert_eq!(found.len(), 1, "{:#?}", report.warnings);
    install(&settings);
    let verified = || admin::verify(&settings, &topology(&settings)).unwrap().findings;
    assert!(!verified().is_empty());
    let protections =
        report.warnings.iter().filter_map(|warning| warning.split_once("nothing itself: rabbitmqctl "));
    let protections: Vec<_> = protections.collect();
    assert_eq!(protections.len(), 2, "{:#?}", report.warnings);
    for (_, command) in protections {
        let script = format!("printf '%s\\n' {command}");
        let words = std::process::Command::new("sh").args(["-c", &script]).output().unwrap().stdout;
        let words = String::from_utf8(words).unwrap();
        node.tell(&words.lines().collect::<Vec<_>>()).unwrap();
    }
    assert_eq!(verified(), []);
}

#[test]
fn two_sets_share_a_vhost() {
    let layers = || vhost();
    let first = layers().set("unit_ms", "1").build().unwrap();
    install(&first);
    let mut second = first.clone();
    second.topology.set = "other".parse().unwrap();
    install(&second);
    for settings in [&first, &second] {
        let inbox = Inbox::open(settings, settings.topology.set.as_str());
        let router = settings.router().connect().unwrap();
        let send = |body| {
            let key = app(settings.topology.set.as_str());
            router
                .publish(delayline_core::Message::after(key, Delay::from_seconds(5).unwrap(), body))
                .unwrap();
        };
        send("x");
        assert_eq!(inbox.exactly(1, send).len(), 1);
    }
}

#[test]
fn classic_queues_deliver_too() {
    let settings = vhost().set("queue_type", "classic").set("unit_ms", "1").build().unwrap();
    install(&settings);
    assert_eq!(admin::verify(&settings, &topology(&settings)).unwrap().findings, []);
    let inbox = Inbox::open(&settings, "app");
    let router = settings.router().connect().unwrap();
    for seconds in [0, 1, 77, 500] {
        let delay = Delay::from_seconds(seconds).unwrap();
        router.publish(delayline_core::Message::after(app("app"), delay, "x")).unwrap();
    }
    assert_eq!(inbox.collect(4, PATIENCE).len(), 4);
}

#[test]
fn asks_for_replicas() {
    let replicas = |number: &str| vhost().set("replicas", number).build().unwrap();
    let settings = replicas("1");
    install(&settings);
    assert_eq!(admin::verify(&settings, &topology(&settings)).unwrap().findings, []);
    // The broker would silently create one replica on one node.
    let settings = replicas("3");
    let report = admin::install(&settings, &topology(&settings), false, || {}).unwrap();
    assert_eq!(report.outcome, Applied::Unsuitable);
    assert!(report.unsuitable[0].to_string().contains("the number of nodes is 1"), "{report:?}");
    assert_eq!(Session::open(&settings.broker).unwrap().counts("delay.level.00").unwrap(), None);
}

#[test]
fn a_missing_vhost_and_wrong_credentials_are_refusals() {
    let node = &crate::common::shared_node();
    let settings = node.settings().set("url", format!("{}/nowhere", node.url())).build().unwrap();
    let error = admin::install(&settings, &topology(&settings), false, || {}).unwrap_err().to_string();
    assert!(error.ends_with("; create it: rabbitmqctl add_vhost nowhere"), "{error}");
    let settings = node.settings().set("username", "nobody").set("password", "hunter2").build().unwrap();
    let error = Session::open(&settings.broker).unwrap_err().to_string();
    assert!(error.contains("nobody") && !error.contains("hunter2"), "{error}");
}

/// Replaces the bindings of the set with those of an earlier version: one bit per word, for the
/// lowest levels and for an application.
fn make_it_an_earlier_set(settings: &delayline_settings::Settings) {
    let names = topology(settings).names().clone();
    let mut session = Session::open(&settings.broker).unwrap();
    for binding in topology(settings).bindings() {
        if binding.source.starts_with("delay.level") || binding.source == names.entry() {
            session.unbind(binding).unwrap();
        }
    }
    let bind = |session: &mut Session, source: String, destination: Endpoint, key: String| {
        session.bind(&Binding { source, destination, key }).unwrap();
    };
    for level in [0_u8, 5, 27] {
        let at = |number: u8| Level::try_from(number).unwrap();
        let stars = |count: u8| "*.".repeat(count.into());
        let above = stars(27 - level);
        for target in [0, 6].into_iter().filter(|target| *target <= level) {
            let key = format!("delay.{above}{}1.{}*.#", "0.".repeat((level - target).into()), stars(target));
            let queue = Endpoint::Queue(names.level_queue(at(target)));
            bind(&mut session, names.level_exchange(at(level)), queue, key);
        }
        let key = format!("delay.{above}{}*.#", "0.".repeat(usize::from(level) + 1));
        bind(&mut session, names.level_exchange(at(level)), Endpoint::Exchange(names.dispatch()), key);
    }
    session.declare_queue(&inbox_queue("billing")).unwrap();
    let key = format!("delay.{}billing", "*.".repeat(28));
    bind(&mut session, names.dispatch(), Endpoint::Queue("billing".into()), key);
}

fn inbox_queue(name: &str) -> Queue {
    let arguments = [("x-queue-type".to_owned(), Argument::from("quorum"))];
    Queue::new(name).with_arguments(arguments)
}

#[test]
fn a_set_of_an_earlier_version_is_named_and_left_alone_and_loses_nothing() {
    let settings = installed(1_000);
    make_it_an_earlier_set(&settings);
    let topology = topology(&settings);
    let bindings = || {
        let api = ManagementApi::new(settings.management.as_ref().unwrap()).unwrap();
        let mut all: Vec<_> = api.bindings(&settings.broker.vhost, |_| true).unwrap();
        all.sort_by_key(|binding| format!("{binding:?}"));
        format!("{all:?}")
    };
    let before = bindings();
    for dry_run in [true, false] {
        let report =
            admin::install(&settings, &topology, dry_run, || panic!("an object was declared")).unwrap();
        assert_eq!(report.outcome, Applied::EarlierVersion);
        assert!(report.earlier.unwrap().to_string().contains("this is a set of an earlier version"));
    }
    match &admin::verify(&settings, &topology).unwrap().differences[..] {
        [Difference::EarlierVersion { bindings: 7 }] => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(bindings(), before, "a binding was changed");

    // While a message waits in the old set, `uninstall` refuses to remove it, and the message
    // arrives. The delay of 64 s gives `uninstall` enough time on a busy machine.
    let key = format!("delay.{}1.0.0.0.0.0.0.billing", "0.".repeat(21));
    raw::publish(&settings, [raw::message("delay", &key, "of old", &serde_json::json!({}))]);
    let refusal = admin::uninstall(&settings, &topology, false, &NO_SIGNAL).unwrap().unwrap_err();
    assert!(!refusal.waiting.is_empty(), "{refusal}");
    assert_eq!(bindings(), before, "a binding was changed");
    let mut session = Session::open(&settings.broker).unwrap();
    eventually("the message arrives", || session.counts("billing").unwrap().unwrap().ready == 1);
    // The empty old set can be removed, and the current version can be installed.
    eventually("its levels are empty", || {
        admin::uninstall(&settings, &topology, false, &NO_SIGNAL).unwrap().is_ok()
    });
    let report = admin::install(&settings, &topology, false, || {}).unwrap();
    assert_eq!((report.outcome, report.created.len()), (Applied::Installed, 63));
}
