//! A vhost with so many queues of others that only those on the way of messages are asked for.

use std::collections::BTreeSet;

use delayline_admin::{self as admin, AppQueue, AppSpec, Applied, Delivery, DoctorOptions, Target};
use delayline_amqp::Session;
use delayline_broker::{BindingInfo, ManagementApi};
use delayline_core::topology::{Binding, Endpoint, Exchange, ExchangeKind, Queue};
use delayline_settings::Settings;
use serde_json::{Value as Json, json};

use crate::common::{app, eventually_seen, http, install, shared_node, topology, vhost};

/// More than are listed.
const OTHERS: usize = 1_050;

/// The differences of the set, its findings, and its applications.
fn look(settings: &Settings) -> [BTreeSet<String>; 3] {
    let topology = topology(settings);
    let verified = admin::verify(settings, &topology).unwrap();
    let report = admin::doctor(settings, &topology, &DoctorOptions::default()).unwrap();
    let apps = admin::list_apps(settings, &topology).unwrap().apps;
    [
        verified.differences.iter().map(ToString::to_string).collect(),
        report.findings.iter().map(|finding| format!("{}: {}", finding.code, finding.what)).collect(),
        apps.iter().map(|entry| format!("{:?} {} {:?}", entry.app, entry.bound, entry.queue)).collect(),
    ]
}

/// Queues of others, each bound to an exchange of theirs.
fn crowd(settings: &Settings) -> Vec<String> {
    let names: Vec<_> = (0..OTHERS).map(|number| format!("other.{number}")).collect();
    let common = json!({ "durable": true, "auto_delete": false, "arguments": {} });
    let object = |more: Json| {
        let mut object = common.clone();
        object.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        object
    };
    let exchange = object(json!({ "name": "others", "type": "direct", "internal": false }));
    let queues: Vec<_> = names.iter().map(|name| object(json!({ "name": name }))).collect();
    let binding = |name: &String| {
        json!({ "source": "others", "destination": name, "destination_type": "queue", "routing_key": name,
            "arguments": {} })
    };
    let bindings: Vec<_> = names.iter().map(binding).collect();
    let all = json!({ "exchanges": [exchange], "queues": queues, "bindings": bindings });
    let path = format!("definitions/{}", settings.broker.vhost);
    let answer = http(&shared_node(), "POST", &path, &all);
    assert!(answer.get("error").is_none(), "{answer}");
    names
}

#[test]
fn many_queues_of_others_hide_nothing() {
    let settings = vhost().build().unwrap();
    install(&settings);
    let mut session = Session::open(&settings.broker).unwrap();
    session.declare_queue(&Queue::new("orders")).unwrap();
    for name in ["shop", "void"] {
        session.declare_exchange(&Exchange::new(name, ExchangeKind::Fanout)).unwrap();
    }
    let tap = session.declare_own_queue().unwrap();
    let mut bind = |source: &str, destination: Endpoint, key: &str| {
        session.bind(&Binding { source: source.into(), destination, key: key.into() }).unwrap();
    };
    bind("shop", Endpoint::Queue("orders".into()), "");
    // A way into the set that is not its own, and a way out.
    bind("shop", Endpoint::Queue("delay.level.03".into()), "");
    bind("delay", Endpoint::Queue("orders".into()), "#");
    bind("delay.level.05", Endpoint::Queue(tap.clone()), "#");
    let through = |exchange: &str| Target::Exchange { exchange: exchange.into(), key: None, queue: None };
    for (key, delivery) in [
        ("billing", Delivery::Direct(AppQueue::new("billing"))),
        ("orders", Delivery::Landing(through("shop"))),
        ("lost", Delivery::Landing(through("void"))),
    ] {
        let spec = AppSpec::new(app(key), delivery);
        let report = admin::add_app(&settings, &topology(&settings), &spec, false, false).unwrap();
        assert_eq!(report.outcome, Applied::Installed, "{report:?}");
    }
    let before = eventually_seen(
        "all is found",
        || look(&settings),
        |[differences, findings, apps]| {
            let has = |all: &BTreeSet<String>, part: &str| all.iter().any(|it| it.contains(part));
            has(differences, "`shop`")
                && has(differences, "`delay` -> queue `orders`")
                && has(findings, "`lost` leads to it")
                && apps.len() == 3
        },
    );
    let others = crowd(&settings);
    let api = ManagementApi::new(settings.management.as_ref().unwrap()).unwrap();
    let named = |bindings: Result<Vec<BindingInfo>, _>| {
        let mut bindings = bindings.unwrap();
        bindings.retain(|binding| !binding.source.is_empty());
        bindings.sort_by_key(|binding| format!("{binding:?}"));
        bindings
    };
    let vhost = &settings.broker.vhost;
    let listed = named(api.bindings(vhost, |_| true));
    assert!(listed.iter().any(|binding| binding.destination == tap) && listed.len() > OTHERS);
    assert_eq!(named(api.searched_bindings(vhost, |_| true)), listed);
    eventually_seen("the same is found", || look(&settings), |now| *now == before);
    // It belongs to an application, and a change is as safe as before.
    let spec = AppSpec::new(app("late"), Delivery::Direct(AppQueue::new("late")));
    for outcome in [Applied::Installed, Applied::Unchanged] {
        let report = admin::add_app(&settings, &topology(&settings), &spec, false, false).unwrap();
        assert_eq!(report.outcome, outcome, "{report:?}");
    }
    let again = admin::install(&settings, &topology(&settings), false, || {}).unwrap();
    assert_eq!(again.outcome, Applied::Unchanged, "{again:?}");
    // Other tests use the node.
    for name in others {
        session.delete_queue(&name).unwrap();
    }
}
