//! If the broker refuses messages of one application, retries of other applications go on.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use delayline_amqp::Session;
use delayline_client::retry::{RetryStats, Service};
use delayline_core::{
    codec::RoutingKey,
    retry::SharedPolicies,
    topology::{Binding, Endpoint, Queue},
};
use delayline_settings::Settings;
use serde_json::json;

use crate::common::{
    self, Inbox, PATIENCE, eventually, eventually_seen, http, installed, permit, shared_node,
};

use super::{faults::dead_letters, parked};

/// Runs the service while `during` runs.
fn serving<T>(settings: &Settings, policies: &str, during: impl FnOnce(&RetryStats) -> T) -> T {
    let policies = SharedPolicies::new(delayline_settings::parse_policies(policies).unwrap());
    let retries = Arc::<RetryStats>::default();
    let service = Service::new(settings.router(), policies).counting(Arc::clone(&retries));
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| service.run(&stop));
        // Also stops the service after a panic; otherwise the scope would never end.
        let stopping = Stopping(&stop);
        let done = during(&retries);
        drop(stopping);
        done
    })
}

struct Stopping<'a>(&'a AtomicBool);

impl Drop for Stopping<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Waits until so many messages of `bad` are counted as refused. A message is counted a moment after it is
/// parked.
fn counted(retries: &RetryStats, count: u64) {
    let refused = || retries.by_app().get("bad").and_then(|bad| bad.parked.get("refused").copied());
    eventually_seen("they are counted", refused, |refused| *refused == Some(count));
}

#[test]
fn a_key_that_the_service_may_not_use_is_parked_and_others_go_on() {
    let settings = installed(10);
    let vhost = &settings.broker.vhost;
    let inbox = Inbox::open(&settings, "good");
    permit(vhost, "half", ["^$", r"^delay(\.parked)?$", r"^delay\.retry$"]);
    let rule = json!({ "exchange": "delay", "write": r"\.good$", "read": "" });
    http(&shared_node(), "PUT", &format!("topic-permissions/{vhost}/half"), &rule);
    // More messages than the service holds at a time.
    dead_letters(&settings, "bad", 0..300);
    dead_letters(&settings, "good", 0..20);
    let as_half = common::as_user(&settings, "half");
    serving(&as_half, "[default]\nfixed = '1s'\nattempts = 1\n", |retries| {
        assert_eq!(inbox.collect(20, PATIENCE).len(), 20, "{:?}", retries.by_app());
        let parked = parked(&settings, 300);
        assert!(parked.iter().all(|message| message.body == b"dead body" && !message.damaged));
        counted(retries, 300);
    });
}

#[test]
fn without_the_parked_exchange_retries_go_on_and_nothing_is_lost() {
    let settings = installed(10);
    let mut session = Session::open(&settings.broker).unwrap();
    session.delete_exchange("delay.parked").unwrap();
    let inbox = Inbox::open(&settings, "good");
    dead_letters(&settings, "bad", 0..5);
    dead_letters(&settings, "good", 0..20);
    let policies = "[default]\nfixed = '1s'\nattempts = 1\n[apps.bad]\nattempts = 0\n";
    serving(&settings, policies, |retries| {
        assert_eq!(inbox.collect(20, PATIENCE).len(), 20, "{:?}", retries.by_app());
        counted(retries, 5);
    });
    // The messages still belong to the queue, because they cannot reach the missing exchange.
    let path = format!("queues/{}/delay.retry", settings.broker.vhost);
    eventually("the messages are in the queue", || {
        http(&shared_node(), "GET", &path, &json!(null))["messages"] == 5
    });
}

#[test]
fn without_the_entry_all_wait_and_none_is_parked() {
    let settings = installed(10);
    let mut session = Session::open(&settings.broker).unwrap();
    session.delete_exchange("delay").unwrap();
    dead_letters(&settings, "app", 0..5);
    serving(&settings, "[default]\nfixed = '1s'\nattempts = 1\n", |retries| {
        eventually("the service has tried", || {
            retries.by_app().get("app").is_some_and(|app| app.retries >= 10)
        });
        assert!(retries.by_app()["app"].parked.is_empty());
    });
    common::install(&settings);
    let inbox = Inbox::open(&settings, "app");
    serving(&settings, "[default]\nfixed = '1s'\nattempts = 1\n", |_| {
        assert_eq!(inbox.collect(5, PATIENCE).len(), 5);
    });
}

#[test]
fn a_full_queue_that_is_retried_at_once_takes_no_places_from_others() {
    let settings = installed(10);
    let inbox = Inbox::open(&settings, "good");
    let mut session = Session::open(&settings.broker).unwrap();
    let arguments = [
        ("x-queue-type".to_owned(), "quorum".into()),
        ("x-max-length".to_owned(), 1.into()),
        ("x-overflow".to_owned(), "reject-publish".into()),
    ];
    let full = Queue::new("full").with_arguments(arguments);
    session.declare_queue(&full).unwrap();
    let key = RoutingKey::binding_pattern(&common::app("full"));
    let destination = Endpoint::Queue("full".into());
    session.bind(&Binding { source: "delay.dispatch".into(), destination, key }).unwrap();
    // More messages than the service holds at a time, all without a delay.
    dead_letters(&settings, "full", 0..400);
    dead_letters(&settings, "good", 0..20);
    let policies = "[default]\nfixed = '1s'\nattempts = 1\n[apps.full]\nfixed = '0s'\n";
    serving(&settings, policies, |retries| {
        assert_eq!(inbox.collect(20, PATIENCE).len(), 20, "{:?}", retries.by_app());
        // A message that finds no place is parked unchanged, and none is lost.
        eventually("some messages are parked", || {
            retries.by_app().get("full").is_some_and(|full| full.parked.contains_key("refused"))
        });
    });
    let api = |queue: &str| {
        let path = format!("queues/{}/{queue}", settings.broker.vhost);
        http(&shared_node(), "GET", &path, &json!(null))["messages"].as_u64().unwrap_or(0)
    };
    eventually("no message is missing", || api("full") + api("delay.retry") + api("delay.parked") >= 400);
}
