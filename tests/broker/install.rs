use std::thread;

use delayline::{
    admin::{self, Outcome},
    amqp::Session,
    codec::Delay,
    topology::{Argument, Exchange, ExchangeKind, Queue},
};

use crate::common::{Inbox, app, install, installed, topology, vhost};

#[test]
fn installs_once_and_then_finds_everything_standing() {
    let settings = vhost().build().unwrap();
    let topology = topology(&settings);
    let mut steps = 0;
    let first = admin::install(&settings, &topology, false, || steps += 1).unwrap();
    assert_eq!((first.created.len(), first.standing, first.created_bindings), (64, 0, Some(466)));
    assert_eq!(steps, topology.objects().len());
    let second = admin::install(&settings, &topology, false, || {}).unwrap();
    assert_eq!((second.created.len(), second.standing, second.created_bindings), (0, 64, Some(0)));
    assert_eq!(admin::verify(&settings, &topology).unwrap().findings, []);
}

#[test]
fn a_dry_run_touches_nothing() {
    let settings = vhost().build().unwrap();
    let topology = topology(&settings);
    for _ in 0..2 {
        let report = admin::install(&settings, &topology, true, || panic!("nothing is declared")).unwrap();
        assert_eq!(
            (report.outcome, report.created.len(), report.created_bindings),
            (Outcome::DryRun, 64, Some(466))
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
        assert_eq!(report.join().unwrap().unwrap().outcome, Outcome::Installed);
    }
    assert_eq!(admin::verify(&settings, &topology(&settings)).unwrap().findings, []);
}

#[test]
fn repairs_what_is_missing() {
    let settings = installed(1_000);
    let mut session = Session::open(&settings.broker).unwrap();
    session.delete_queue("delay.level.05").unwrap();
    session.delete_exchange("delay.level.09").unwrap();
    let report = admin::install(&settings, &topology(&settings), false, || {}).unwrap();
    assert_eq!(report.created, ["queue `delay.level.05`", "exchange `delay.level.09`"]);
    // The queue's 23 bindings from above and one from express, and the exchange's own 11.
    assert_eq!(report.created_bindings, Some(24 + 11 - 1));
    assert_eq!(admin::verify(&settings, &topology(&settings)).unwrap().findings, []);
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
        session
            .declare_queue(&Queue { name: "delay.level.03".into(), level: None, arguments: arguments.into() })
            .unwrap();
        session
            .declare_exchange(&Exchange {
                name: "delay.dispatch".into(),
                kind: ExchangeKind::Fanout,
                arguments: [].into(),
            })
            .unwrap();

        let report =
            admin::install(&settings, &topology(&settings), false, || panic!("nothing is declared")).unwrap();
        assert_eq!(report.outcome, Outcome::Conflict);
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
        assert_eq!(session.queue_depth("delay.level.04").unwrap(), None);
        assert!(!session.exchange_exists("delay").unwrap());
    }
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
        let router = delayline::Router::connect(settings).unwrap();
        for body in ["x", "the last"] {
            let key = app(settings.topology.set.as_str());
            router.publish(delayline::Message::after(key, Delay::from_seconds(5).unwrap(), body)).unwrap();
        }
        assert_eq!(inbox.until("the last").len(), 1);
    }
}

#[test]
fn classic_queues_deliver_too() {
    let settings = vhost().set("queue_type", "classic").set("unit_ms", "1").build().unwrap();
    install(&settings);
    assert_eq!(admin::verify(&settings, &topology(&settings)).unwrap().findings, []);
    let inbox = Inbox::open(&settings, "app");
    let router = delayline::Router::connect(&settings).unwrap();
    for seconds in [0, 1, 77, 500] {
        let delay = Delay::from_seconds(seconds).unwrap();
        router.publish(delayline::Message::after(app("app"), delay, "x")).unwrap();
    }
    assert_eq!(inbox.collect(4, std::time::Duration::from_secs(5)).len(), 4);
}

#[test]
fn asks_for_replicas() {
    let replicas = |number: &str| vhost().set("replicas", number).build().unwrap();
    let settings = replicas("1");
    install(&settings);
    assert_eq!(admin::verify(&settings, &topology(&settings)).unwrap().findings, []);
    // The broker would make one replica on one node and say nothing.
    let settings = replicas("3");
    let report = admin::install(&settings, &topology(&settings), false, || {}).unwrap();
    assert_eq!(report.outcome, Outcome::Unsuitable);
    assert!(report.unsuitable[0].to_string().contains("the number of nodes is 1"), "{report:?}");
    assert_eq!(Session::open(&settings.broker).unwrap().queue_depth("delay.level.00").unwrap(), None);
}

#[test]
fn a_missing_vhost_and_wrong_credentials_are_refusals() {
    let node = crate::common::shared_node();
    let settings = node.settings().set("url", format!("{}/nowhere", node.url())).build().unwrap();
    let error = admin::install(&settings, &topology(&settings), false, || {}).unwrap_err().to_string();
    assert!(error.contains("connecting"), "{error}");
    let settings = node.settings().set("username", "nobody").set("password", "hunter2").build().unwrap();
    let error = Session::open(&settings.broker).unwrap_err().to_string();
    assert!(error.contains("nobody") && !error.contains("hunter2"), "{error}");
}
