//! The permissions that docs/explanation/security.md lists: they are enough for the work of each
//! role, and allow nothing else.

use std::{collections::BTreeMap, sync::atomic::AtomicBool};

use delayline_admin::{self as admin, Applied, Kept, Selection};
use delayline_amqp::{AmqpError, Session};
use delayline_core::{
    Message,
    codec::Delay,
    topology::{Binding, Endpoint, ExchangeKind, Object, Queue, RecallSettings, Topology},
};
use delayline_settings::{Layers, Settings};
use serde_json::json;

use crate::common::Counting;
use crate::common::{
    self, NO_SIGNAL, PATIENCE,
    daemon::{Daemon, serve_as},
    raw,
};

/// The permissions of each role in the document.
fn roles() -> BTreeMap<String, [String; 4]> {
    let document = include_str!("../../docs/explanation/security.md");
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

/// Creates a user with a role's permissions in a vhost, and returns the settings of the user.
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
    assert!(admin::uninstall(&settings, &topology, false, &NO_SIGNAL).unwrap().is_ok());
}

#[test]
fn an_operator_can_look_send_on_and_discard_and_not_touch_the_levels() {
    let root = common::installed(1_000);
    let settings = settings_as("operator", on(&root), &vhost_of(&root));
    let topology = common::topology(&settings);
    let key = |app: &str| delayline_core::codec::RoutingKey::new(Delay::ZERO, common::app(app)).encode();
    raw::publish(&root, (0..2).map(|n| raw::message("delay", &key(&format!("app{n}")), n, &json!({}))));
    let unroutable = || common::status(&settings).unroutable;
    common::eventually("both messages are unroutable", || unroutable() == Some(2));
    assert!(admin::verify(&settings, &topology).is_ok());
    let report = Kept::Unroutable.list(&settings, &topology, 10, |_| {}).unwrap();
    assert_eq!(report.groups.len(), 2);
    let inbox = common::Inbox::open(&root, "app0");
    let stop = AtomicBool::new(false);
    let of = |app: &str| Selection { app: Some(common::app(app)), ..Selection::default() };
    Kept::Unroutable.replay(&settings, &topology, &of("app0"), true, &stop, |_| {}).unwrap().unwrap();
    assert_eq!(inbox.collect(1, PATIENCE).len(), 1);
    // Messages that the replay examined and left return to the queue a moment later.
    common::eventually("both messages are gone", || {
        Kept::Unroutable.discard(&settings, &topology, &of("app1"), &stop, |_| {}).unwrap();
        unroutable() == Some(0)
    });
    assert!(Kept::Parked.list(&settings, &topology, 10, |_| {}).is_ok());
    // Only administrators may see permissions; an operator sees the rest of the list.
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
    let document = include_str!("../../docs/explanation/security.md");
    for topic in fragment["topic_permissions"].as_array().unwrap() {
        let text = |field: &str| topic[field].as_str().unwrap().to_owned();
        let row = format!("| `{}` | `{}` | `{}` |", text("exchange"), text("write"), text("read"));
        assert!(document.contains(&row), "the document lacks {row}");
    }
    // These permissions are enough for publishing through the router.
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
fn the_daemon_can_do_all_its_work_as_the_user_that_is_made_for_it_and_no_more() {
    let root = common::installed(20);
    let (topology, vhost) = (common::topology(&root), vhost_of(&root));
    let (name, app) = (format!("daemon-{vhost}"), common::app("billing"));
    let make = || {
        let password = Some(delayline_amqp::broker::Secret::new(&*name));
        admin::add_daemon_user(&root, &topology, (&name, password), None, false).unwrap()
    };
    assert_eq!(make().outcome, Applied::Installed);
    assert_eq!(make().outcome, Applied::Unchanged);
    let gateway = admin::add_gateway(&root, &topology, "late.orders", ExchangeKind::Topic, false);
    assert_eq!(gateway.unwrap().unwrap().outcome, Applied::Installed);
    let report = make();
    assert!(report.steps.iter().any(|step| step.replaces.is_some()), "{report:?}");
    // The document has what it made.
    let commands = admin::daemon_user_commands(&root, &topology, &name, false).unwrap();
    let [configure, write, read, tags] = roles().remove("daemon").unwrap();
    let write = write.replace(r"))?\z", r"))?|late\.orders)\z").replacen('^', "^(", 1);
    assert!(commands[3].ends_with(&format!("'{configure}' '{write}' '{read}'")), "{commands:?}\n{write}");
    assert!(commands[1].ends_with(&tags.replace(',', " ")), "{commands:?}");
    let commands = admin::daemon_user_commands(&root, &topology, &name, true).unwrap();
    let [configure, write, read, _] = roles().remove("pausing daemon").unwrap();
    let write = write.replace("|billing)", ")").replace("|amq", r"|late\.orders|amq");
    assert!(commands[3].ends_with(&format!("'{configure}' '{write}' '{read}'")), "{commands:?}\n{write}");

    // Retries, parking, the canary, the page, and a gateway.
    let inbox = common::Inbox::open(&root, "billing");
    let mut session = Session::open(&root.broker).unwrap();
    session.declare_queue(&Queue::new("late")).unwrap();
    let destination = Endpoint::Queue("late".into());
    session.bind(&Binding { source: "late.orders".into(), destination, key: "#".into() }).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let policies = "[default]\nfixed = \"1s\"\n[apps.hopeless]\nattempts = 0\n";
    std::fs::write(directory.path().join("policies.toml"), policies).unwrap();
    let mut serve = serve_as(&name, &root);
    serve.args(["--policies", "policies.toml", "--listen", "127.0.0.1:0"]);
    serve.env("DELAYLINE_CANARY_INTERVAL", "1s");
    let daemon = Daemon::with(directory, serve);
    raw::publish(
        &root,
        ["billing", "hopeless"].map(|app| raw::message("delay.retry", app, "failed", &json!({}))),
    );
    assert_eq!(inbox.collect(1, PATIENCE).len(), 1);
    common::eventually("one is parked", || common::status(&root).parked == Some(1));
    let headers = json!({ "headers": { "x-delay": 1 } });
    raw::publish(&root, [raw::message("late.orders.in", "any", "late", &headers)]);
    common::eventually("the gateway sends it on", || {
        session.counts("late").unwrap().is_some_and(|depth| depth.ready == 1)
    });
    common::eventually_seen(
        "it is ready, and its test messages arrive",
        || {
            let ask = |path: &str| ureq::get(format!("{}{path}", daemon.page())).call();
            let text = |path: &str| ask(path).ok()?.body_mut().read_to_string().ok();
            Some((text("readyz")?, text("metrics")?))
        },
        |seen| {
            let arrived = |metrics: &str| {
                let mut lines = metrics.lines();
                lines.any(|line| line.starts_with("delayline_canary_arrived_total{") && !line.ends_with(" 0"))
            };
            let verified = |metrics: &str| metrics.contains("delayline_set_verified 1");
            seen.as_ref().is_some_and(|(_, metrics)| arrived(metrics) && verified(metrics))
        },
    );
    assert!(!daemon.log().contains("refused"), "{}", daemon.log());
    drop(daemon);

    // Recalls and stuck queues.
    let settings = on(&root).set("username", &*name).set("password", &*name).build().unwrap();
    let recall = topology.recall(&app, Endpoint::Queue("late".into()), RecallSettings::default());
    for object in recall {
        match object {
            Object::Exchange(exchange) => session.declare_exchange(&exchange).unwrap(),
            Object::Queue(queue) => session.declare_queue(&queue).unwrap(),
            Object::Binding(binding) => session.bind(&binding).unwrap(),
        }
    }
    let key = "delay.0000.0000.0000.0000.0000.0000.0001.billing.~.id".parse().unwrap();
    session.bind(&Binding::recalling(topology.names(), &key)).unwrap();
    let soon = admin::SweepOptions::default().with_grace(std::time::Duration::from_millis(1));
    let stop = AtomicBool::new(false);
    let sweep = || admin::sweep_recalls(&settings, &topology, &soon, &stop).unwrap();
    common::eventually("the recall is seen", || sweep().noted == 1);
    common::eventually("the recall is swept up", || sweep().swept == 1);
    let options = admin::UnstickOptions { all: true, wait: std::time::Duration::ZERO, ..Default::default() };
    assert!(!admin::unstick(&settings, &topology, &options).unwrap().touched.is_empty());

    let report = admin::doctor(&root, &topology, &admin::DoctorOptions::default()).unwrap();
    assert!(!report.findings.iter().any(|finding| finding.what.contains(&name)), "{report:?}");
    let mut session = Session::open(&settings.broker).unwrap();
    refused("consuming what is parked", session.consume("delay.parked", 1));
    refused("consuming a level", session.consume("delay.level.00", 1));
    refused("deleting its queue", session.delete_queue("delay.retry"));
    let copies = topology.app_binding(&app, "delay.canary.0");
    refused("copying an application's messages", session.bind(&copies));
}
