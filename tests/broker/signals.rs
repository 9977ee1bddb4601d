//! A signal undoes a removal while that is possible. Otherwise, the report mentions the signal.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use delayline_admin::{self as admin, AppQueue, AppSpec, Delivery, RemoveOptions};
use delayline_amqp::Session;
use delayline_core::topology::{Binding, Endpoint, ExchangeKind, Queue};
use delayline_settings::Settings;

use crate::common::{NO_SIGNAL, app, caught, http, installed, shared_node, topology};

/// Everything in a vhost as the management API lists it, without counts.
fn contents(settings: &Settings) -> Vec<String> {
    let vhost = &settings.broker.vhost;
    let names = |kind: &str, fields: [&str; 3]| {
        let all = http(&shared_node(), "GET", &format!("{kind}/{vhost}"), &().into());
        let all = all.as_array().unwrap().clone().into_iter();
        let name = |it: serde_json::Value| fields.map(|field| it[field].to_string()).join(" ");
        let mut all: Vec<_> = all.map(name).collect();
        all.sort();
        all
    };
    let mut found = names("exchanges", ["name", "type", "arguments"]);
    found.extend(names("queues", ["name", "durable", "arguments"]));
    found.extend(names("bindings", ["source", "destination", "routing_key"]));
    found
}

/// Starts a removal, sets the flag once `is_closed` returns true, and returns the result of the
/// removal.
fn interrupted<T: Send + std::fmt::Debug>(
    settings: &Settings,
    mut is_closed: impl FnMut(&mut Session) -> bool,
    remove: impl FnOnce(&AtomicBool) -> T + Send,
) -> T {
    let (stop, mut session) = (AtomicBool::new(false), Session::open(&settings.broker).unwrap());
    thread::scope(|scope| {
        let removing = scope.spawn(|| remove(&stop));
        let mut closed = false;
        caught("the entry is closed, or the removal has ended", || {
            closed = is_closed(&mut session);
            closed || removing.is_finished()
        });
        stop.store(true, Ordering::Relaxed);
        let result = removing.join().unwrap();
        assert!(closed, "nothing was closed: {result:?}");
        result
    })
}

#[test]
fn a_set_an_application_and_a_gateway_are_as_they_were() {
    let settings = installed(1_000);
    let topology = &topology(&settings);
    let spec = AppSpec::new(app("billing"), Delivery::Direct(AppQueue::new("billing")));
    admin::add_app(&settings, topology, &spec, false, false).unwrap();
    admin::add_gateway(&settings, topology, "orders", ExchangeKind::Topic, false).unwrap().unwrap();
    let mut session = Session::open(&settings.broker).unwrap();
    session.declare_queue(&Queue::new("tap")).unwrap();
    let destination = Endpoint::Queue("tap".into());
    session.bind(&Binding { source: "orders.in".into(), destination, key: "tap".into() }).unwrap();
    let before = contents(&settings);

    let gone = |name: &'static str| move |session: &mut Session| !session.exchange_exists(name).unwrap();
    let refusal = interrupted(&settings, gone("orders.in"), |stop| {
        admin::remove_gateway(&settings, topology, "orders", (false, false), stop).unwrap().unwrap_err()
    });
    assert!(refusal.interrupted && refusal.waiting.is_empty(), "{refusal:?}");
    assert_eq!(contents(&settings), before);

    let bindings = format!("exchanges/{}/delay.dispatch/bindings/source", settings.broker.vhost);
    let unbound = |_: &mut Session| {
        let all = http(&shared_node(), "GET", &bindings, &().into());
        !all.as_array().unwrap().iter().any(|it| it["destination"] == "billing")
    };
    let refusal = interrupted(&settings, unbound, |stop| {
        let options = RemoveOptions::default();
        admin::remove_app(&settings, topology, &spec.app, &options, stop).unwrap().unwrap_err()
    });
    assert!(refusal.interrupted && refusal.unbound_meanwhile, "{refusal:?}");
    assert!(refusal.to_string().contains("as it was"), "{refusal}");
    assert_eq!(contents(&settings), before);

    // The gateway must be removed before the set.
    admin::remove_gateway(&settings, topology, "orders", (false, false), &NO_SIGNAL).unwrap().unwrap();
    let before = contents(&settings);
    let refusal = interrupted(&settings, gone("delay"), |stop| {
        admin::uninstall(&settings, topology, false, stop).unwrap().unwrap_err()
    });
    assert!(refusal.interrupted && refusal.waiting.is_empty(), "{refusal:?}");
    assert_eq!(contents(&settings), before);

    // A removal that does not wait cannot be undone. It is completed, and the report mentions the
    // signal.
    let signalled = AtomicBool::new(true);
    let report = admin::uninstall(&settings, topology, true, &signalled).unwrap().unwrap();
    assert!(report.interrupted && report.removed.len() == 63, "{report:?}");
    assert!(!admin::uninstall(&settings, topology, true, &NO_SIGNAL).unwrap().unwrap().interrupted);
}
