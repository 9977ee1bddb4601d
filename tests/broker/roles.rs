//! The permissions that docs/security.md lists: each role can do its work with
//! them, and no more.

use std::{collections::BTreeMap, sync::atomic::AtomicBool};

use delayline_admin::{self as admin, Applied, Kept, Selection};
use delayline_amqp::{AmqpError, Session};
use delayline_client::retry::Service;
use delayline_core::{
    Message,
    codec::Delay,
    retry::SharedPolicies,
    topology::{Queue, Topology},
};
use delayline_settings::{Layers, Settings};
use serde_json::json;

use crate::common::{self, PATIENCE, raw};

/// A role's permissions, as the document has them.
fn roles() -> BTreeMap<String, [String; 4]> {
    let document = include_str!("../../docs/security.md");
    let section = document.split("## Roles").nth(1).unwrap();
    let rows = section.lines().skip_while(|line| !line.starts_with("|---")).skip(1);
    rows.take_while(|line| line.starts_with('|'))
        .map(|row| {
            // A bar within a cell is escaped.
            let row = row.replace(r"\|", "\u{1}");
            let cells: Vec<_> = row
                .trim_matches('|')
                .split('|')
                .map(|cell| cell.trim().trim_matches('`').replace('\u{1}', "|"))
                .collect();
            let permissions = std::array::from_fn(|index| cells[index + 1].clone());
            (cells[0].clone(), permissions)
        })
        .collect()
}

/// Makes a user with a role's permissions in a vhost, and returns its settings.
fn settings_as(role: &str, layers: Layers, vhost: &str) -> Settings {
    let [configure, write, read, tag] = roles().remove(role).unwrap_or_else(|| panic!("no role {role}"));
    let node = &common::shared_node();
    let name = format!("{}-{vhost}", role.replace(' ', "-"));
    common::http(node, "PUT", &format!("users/{name}"), &json!({ "password": "pw", "tags": tag }));
    let body = json!({ "configure": configure, "write": write, "read": read });
    common::http(node, "PUT", &format!("permissions/{vhost}/{name}"), &body);
    layers.set("username", name).set("password", "pw").build().unwrap()
}

fn refused<T: std::fmt::Debug>(what: &str, answer: Result<T, AmqpError>) {
    match answer {
        Err(error) if error.code() == Some(403) => {}
        other => panic!("{what}: {other:?}"),
    }
}

fn vhost_of(settings: &Settings) -> String {
    settings.broker.vhost.clone()
}

fn on(settings: &Settings) -> Layers {
    let node = &common::shared_node();
    node.settings()
        .set("url", format!("{}/{}", node.url().replace("guest:guest@", ""), settings.broker.vhost))
}

#[test]
fn an_installer_can_install_verify_and_uninstall_and_touches_nothing_else() {
    let root = common::vhost().build().unwrap();
    let settings = settings_as("installer", on(&root), &vhost_of(&root));
    let topology = Topology::new(settings.topology.clone());
    let report = admin::install(&settings, &topology, false, || {}).unwrap();
    assert_eq!(report.outcome, Applied::Installed, "{report:?}");
    assert_eq!(admin::verify(&settings, &topology).unwrap().findings, []);
    let mut session = Session::open(&settings.broker).unwrap();
    let foreign = Queue::new("orders");
    refused("declaring an application's queue", session.declare_queue(&foreign));
    drop(session);
    assert!(admin::uninstall(&settings, &topology, false).unwrap().is_ok());
}

#[test]
fn an_operator_can_look_send_on_and_discard_and_not_touch_the_levels() {
    let root = common::installed(1_000);
    let settings = settings_as("operator", on(&root), &vhost_of(&root));
    let topology = common::topology(&settings);
    let key = |app: &str| delayline_core::codec::RoutingKey::new(Delay::ZERO, common::app(app)).encode();
    raw::publish(&root, (0..2).map(|n| raw::message("delay", &key(&format!("app{n}")), n, &json!({}))));
    let unroutable = || common::status(&settings).unroutable;
    common::eventually("both are unroutable", || unroutable() == Some(2));
    assert!(admin::verify(&settings, &topology).is_ok());
    let report = Kept::Unroutable.list(&settings, &topology, 10, |_| {}).unwrap();
    assert_eq!(report.groups.len(), 2);
    let inbox = common::Inbox::open(&root, "app0");
    let stop = AtomicBool::new(false);
    let of = |app: &str| Selection { app: Some(common::app(app)), ..Selection::default() };
    Kept::Unroutable.replay(&settings, &topology, &of("app0"), true, &stop, |_| {}).unwrap().unwrap();
    assert_eq!(inbox.collect(1, PATIENCE).len(), 1);
    // What the replay looked at and left comes back to the queue in its own time.
    common::eventually("both are gone", || {
        Kept::Unroutable.discard(&settings, &topology, &of("app1"), &stop, |_| {}).unwrap();
        unroutable() == Some(0)
    });
    assert!(Kept::Parked.list(&settings, &topology, 10, |_| {}).is_ok());
    // Who may do what is for administrators; the rest it sees.
    let list = admin::list_apps(&settings, &topology).unwrap();
    assert!(list.apps[0].users.is_none() && list.unchecked[0].contains("administrator"), "{list:?}");
    let mut session = Session::open(&settings.broker).unwrap();
    refused("consuming a level", session.consume("delay.level.00", 1));
    refused("deleting a level", session.delete_queue("delay.level.00"));
    refused("deleting dispatch", session.delete_exchange("delay.dispatch"));
}

#[test]
fn an_application_gets_from_app_add_what_the_document_says() {
    let root = common::installed(1_000);
    let topology = common::topology(&root);
    let spec = admin::AppSpec {
        app: common::app("billing"),
        delivery: admin::Delivery::Direct(admin::AppQueue::new("billing")),
        user: Some(admin::AppUser {
            name: format!("billing-{}", vhost_of(&root)),
            password: Some(delayline_amqp::broker::Secret::new("pw")),
            ..admin::AppUser::default()
        }),
        recall: None,
    };
    admin::add_app(&root, &topology, &spec, false, false).unwrap();
    let fragment = admin::Export::new(vhost_of(&root)).with_app(&topology, &spec).definitions();
    let [configure, write, read, _] = roles().remove("application").unwrap();
    let given = &fragment["permissions"][0];
    assert_eq!(
        [&given["configure"], &given["write"], &given["read"]],
        [&json!(configure), &json!(write), &json!(read)]
    );
    let document = include_str!("../../docs/security.md");
    for topic in fragment["topic_permissions"].as_array().unwrap() {
        let text = |field: &str| topic[field].as_str().unwrap().to_owned();
        let row = format!("| `{}` | `{}` | `{}` |", text("exchange"), text("write"), text("read"));
        assert!(document.contains(&row), "the document lacks {row}");
    }
    // It works with that, through the router.
    let user = given["user"].as_str().unwrap();
    let layers = on(&root).set("management_url", "none");
    let settings = layers.set("username", user).set("password", "pw").build().unwrap();
    let router = settings.router().connect().unwrap();
    router.publish(Message::after(common::app("billing"), Delay::ZERO, "mine")).unwrap();
    assert!(router.publish(Message::after(common::app("orders"), Delay::ZERO, "not mine")).is_err());
    let mut session = Session::open(&settings.broker).unwrap();
    let consumer = session.consume("billing", 1).unwrap();
    let next = consumer.next(PATIENCE);
    assert!(
        matches!(&next, delayline_amqp::Next::Delivery(delivery) if delivery.body == b"mine"),
        "{next:?}"
    );
}

#[test]
fn a_retry_service_can_take_send_back_and_park_and_nothing_else() {
    let root = common::installed(1);
    let settings = settings_as("retry service", on(&root), &vhost_of(&root));
    let inbox = common::Inbox::open(&root, "billing");
    let policies = "[default]\nfixed = \"1s\"\n[apps.hopeless]\nattempts = 0\n";
    let policies = SharedPolicies::new(delayline_settings::parse_policies(policies).unwrap());
    let stop = AtomicBool::new(false);
    let mut session = Session::open(&settings.broker).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| Service::new(settings.router(), policies).run(&stop));
        raw::publish(
            &root,
            ["billing", "hopeless"].map(|app| raw::message("delay.retry", app, "failed", &json!({}))),
        );
        assert_eq!(inbox.collect(1, PATIENCE).len(), 1);
        common::eventually("one is parked", || common::status(&root).parked == Some(1));
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    refused("consuming what is parked", session.consume("delay.parked", 1));
    refused("consuming a level", session.consume("delay.level.00", 1));
    refused("deleting its queue", session.delete_queue("delay.retry"));
}
