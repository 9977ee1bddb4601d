//! How one tenant can harm all others, how the harm is found, and how it is undone.

use std::sync::atomic::AtomicBool;

use delayline_admin::{
    self as admin, AppQueue, AppSpec, AppUser, Delivery, DoctorOptions, Finding, FindingCode,
};
use delayline_amqp::{Publisher, Session, broker::Secret};
use delayline_core::{
    Message,
    codec::{Delay, RoutingKey},
    message::{Headers, Properties, Value},
};
use delayline_node::{NodeOptions, PrivateNode};
use delayline_settings::Settings;
use serde_json::{Value as Json, json};

use crate::common::{self, Inbox, PATIENCE, app, eventually, eventually_seen, raw, topology};

pub(crate) fn key(units: u64, whose: &str) -> String {
    RoutingKey::new(Delay::from_seconds(units).unwrap(), app(whose)).encode()
}

/// The findings with this code.
fn found(settings: &Settings, code: FindingCode) -> Vec<Finding> {
    let report = admin::doctor(settings, &topology(settings), &DoctorOptions::default()).unwrap();
    report.findings.into_iter().filter(|finding| finding.code == code).collect()
}

fn is_old(settings: &Settings) -> bool {
    Session::open(&settings.broker).unwrap().server_version().unwrap().starts_with("3.")
}

/// Runs a command in the broker, and returns its output in one line.
fn eval(node: &PrivateNode, code: &str) -> String {
    node.tell(&["eval", code]).unwrap().replace(char::is_whitespace, "")
}

/// The documented command that starts dead-lettering again.
pub(crate) fn mend() -> &'static str {
    let document = include_str!("../../docs/runbook/stuck.md");
    let (_, rest) = document.split_once("## dead-lettering-ended").expect("the document has the section");
    let (_, rest) = rest.split_once("rabbitmqctl eval '\n").expect("the section has the command");
    rest.split_once('\'').unwrap().0
}

/// The command of the document that starts workers that gave up, and changes no code of the broker.
fn start_workers() -> &'static str {
    let document = include_str!("../../docs/runbook/stuck.md");
    let (_, rest) = document.split_once("rabbitmqctl eval '{ok, _}").expect("the command is in the document");
    let command = document.len() - rest.len() - "{ok, _}".len();
    document[command..].split_once('\'').unwrap().0
}

/// Headers that no broker writes.
fn forged() -> [Json; 4] {
    let count = json!([{
        "queue": "delay.level.00", "reason": "expired", "count": "many", "exchange": "x", "routing-keys": ["a"],
    }]);
    [json!([1, 2]), json!(["x"]), json!([[1]]), count]
}

fn poison(settings: &Settings, headers: impl IntoIterator<Item = Json>) {
    let messages = headers.into_iter().map(|header| {
        raw::message("delay", &key(1, "billing"), "forged", &json!({ "headers": { "x-death": header } }))
    });
    raw::publish(settings, messages);
}

/// Sends a message through each of the three lowest levels.
fn send(settings: &Settings, whose: &str) {
    let router = settings.router().connect().unwrap();
    for units in [1, 2, 4] {
        router.publish(Message::after(app(whose), Delay::from_seconds(units).unwrap(), "good")).unwrap();
    }
}

const RUNNING: &str = "whereis(rabbit_fifo_dlx_sup) =/= undefined.";

#[test]
fn a_forged_header_ends_all_delays_of_an_old_broker_until_it_is_mended() {
    let mut node = PrivateNode::start(NodeOptions::default()).unwrap();
    let settings = common::named_vhost(&node, "shared").set("unit_ms", "100").build().unwrap();
    common::install(&settings);
    let (mut billing, mut orders) = (Inbox::open(&settings, "billing"), Inbox::open(&settings, "orders"));
    workers_that_gave_up_start_again_and_lose_nothing(&node, &settings, &orders);
    if !is_old(&settings) {
        poison(&settings, forged());
        send(&settings, "orders");
        assert_eq!(orders.collect(3, PATIENCE).len(), 3);
        assert_eq!(billing.collect(4, PATIENCE).len(), 4);
        assert_eq!(eval(&node, RUNNING), "true");
        // A message that was stored by an old broker and still exists after an upgrade.
        let stored = "Content = {content, 60, {'P_basic', undefined, undefined, [{<<\"x-death\">>, array, \
            [{long, 1}, {long, 2}]}], 2, undefined, undefined, undefined, undefined, undefined, undefined, \
            undefined, undefined, undefined, undefined}, none, rabbit_framing_amqp_0_9_1, [<<\"x\">>]}, \
            Message = {basic_message, {resource, <<\"/\">>, exchange, <<\"delay\">>}, [<<\"k\">>], Content, \
            <<\"id\">>, true}, \
            Env = case erlang:function_exported(mc, record_death, 4) of true -> [#{}]; false -> [] end, \
            is_tuple(catch apply(mc, record_death, [expired, <<\"q\">>, Message | Env])) andalso \
            element(1, catch apply(mc, record_death, [expired, <<\"q\">>, Message | Env])).";
        assert_eq!(
            eval(&node, stored),
            "'EXIT'",
            "docs/reference/versions.md says that an upgrade does not help"
        );
        assert!(eval(&node, mend()).contains("record_death"));
        assert_eq!(eval(&node, stored), "basic_message");
        return;
    }
    node.write_down_queues().unwrap();
    for (turn, header) in forged().into_iter().enumerate() {
        // Restores the broker's own code, without the fix of the last turn.
        eval(&node, "code:purge(rabbit_dead_letter), code:load_file(rabbit_dead_letter).");
        poison(&settings, [header]);
        eventually("the workers are gone", || eval(&node, RUNNING) == "false");
        if turn == 0 {
            send(&settings, "orders");
            // The broker counts the levels one after the other.
            let is_there = |found: &Vec<Finding>| {
                found.first().is_some_and(|finding| finding.what.contains("`delay.level.00`"))
            };
            let look = || self::found(&settings, FindingCode::DeadLetteringEnded);
            let found = eventually_seen("doctor finds it", look, is_there);
            assert_eq!(found[0].subject, format!("node {}", node.name()), "{found:#?}");
            assert!(found[0].advice.contains("a restart does not help"), "{found:#?}");
            node.stop().unwrap();
            // Without workers, leaders of queues may end as soon as they start.
            node.restart().unwrap();
            eventually("the workers are gone again", || eval(&node, RUNNING) == "false");
            billing.reopen();
            orders.reopen();
        }
        assert!(eval(&node, mend()).contains("revived"));
    }
    assert_eq!(orders.collect(3, PATIENCE).len(), 3);
    assert_eq!(billing.collect(4, PATIENCE).len(), 4);
    // Every level works, and the same messages are harmless now.
    poison(&settings, forged());
    let router = settings.router().connect().unwrap();
    for level in 0..6 {
        let delay = Delay::from_seconds(1 << level).unwrap();
        router.publish(Message::after(app("orders"), delay, "good")).unwrap();
    }
    assert_eq!(orders.collect(6, PATIENCE).len(), 6);
    assert_eq!(billing.collect(4, PATIENCE).len(), 4);
    assert_eq!(eval(&node, "length(supervisor:which_children(rabbit_fifo_dlx_sup))."), "29");
    let gone = |found: &Vec<Finding>| found.is_empty();
    let look = || self::found(&settings, FindingCode::DeadLetteringEnded);
    eventually_seen("nothing is found", look, gone);
}

fn workers_that_gave_up_start_again_and_lose_nothing(
    node: &PrivateNode,
    settings: &Settings,
    orders: &Inbox,
) {
    eval(node, "supervisor:terminate_child(rabbit_sup, rabbit_fifo_dlx_sup).");
    assert_eq!(eval(node, RUNNING), "false");
    send(settings, "orders");
    eval(node, start_workers());
    assert_eq!(eval(node, RUNNING), "true");
    assert_eq!(orders.collect(3, PATIENCE).len(), 3);
}

fn spec(user: &str) -> AppSpec {
    AppSpec {
        app: app("billing"),
        delivery: Delivery::Direct(AppQueue::new("in.billing")),
        user: Some(AppUser { name: user.into(), password: Some(Secret::new(user)), ..AppUser::default() }),
        recall: None,
    }
}

#[test]
fn install_and_app_add_warn_that_tenants_must_trust_each_other() {
    let settings = common::vhost().set("unit_ms", "1000").build().unwrap();
    let topology = topology(&settings);
    let user = format!("{}-billing", settings.broker.vhost);
    let told = |texts: &[String]| {
        let all = texts.iter().filter(|text| text.contains("`x-death`") && text.contains("trust each other"));
        assert_eq!(all.count(), usize::from(is_old(&settings)), "{texts:?}");
    };
    for dry_run in [true, false] {
        told(&admin::install(&settings, &topology, dry_run, || {}).unwrap().warnings);
    }
    let spec = spec(&user);
    told(&admin::add_app(&settings, &topology, &spec, false, false).unwrap().warnings);
    let tenant = spec.user.as_ref().unwrap();
    let check = admin::check_app(&settings, &topology, &spec, tenant, &Secret::new(&user)).unwrap();
    assert!(check.passed(), "{check:#?}");
    told(&check.limits);
    let found = found(&settings, FindingCode::UntrustedTenants);
    assert_eq!(found.len(), usize::from(is_old(&settings)), "{found:#?}");
    assert!(found.iter().all(|finding| finding.what.contains(&format!("`{user}`"))), "{found:#?}");
}

/// Publishes messages that every level copies, with a routing key for each of the lowest levels.
/// The caller keeps the connection open, because the broker may lose the counts of a connection
/// that is closed at once.
fn multiply(settings: &Settings) -> Publisher {
    let mut publisher = Publisher::open(&settings.broker).unwrap();
    let keys: Vec<_> = (0..12).map(|level| Value::from(key(1 << level, "billing"))).collect();
    for header in ["CC", "BCC"] {
        let headers = Headers::from([(header.to_owned(), Value::Array(keys.clone()))]);
        for _ in 0..5 {
            publisher.publish("delay", key(1, "billing"), Properties::default(), headers.clone(), b"copied");
        }
    }
    publisher
}

#[test]
fn copies_that_multiply_are_found_with_who_makes_them_and_can_be_ended() {
    // Messages without a delay that an earlier test published would hide copies for ten minutes.
    let settings = common::new_set(1_000);
    let topology = topology(&settings);
    let (node, vhost) = (&common::shared_node(), settings.broker.vhost.clone());
    let user = format!("{vhost}-billing");
    let report = admin::add_app(&settings, &topology, &spec(&user), false, false).unwrap();
    assert_eq!(report.outcome, admin::Applied::Installed, "{report:?}");
    let orders = Inbox::open(&settings, "orders");
    let ctl = |arguments: &[&str]| node.tell(arguments).unwrap();

    // An application that receives as many messages as it publishes is no finding.
    let tenant = common::as_user(&settings, &user).router().connect().unwrap();
    let message = || Message::after(app("billing"), Delay::from_seconds(3).unwrap(), "good");
    for _ in 0..20 {
        tenant.publish(message()).unwrap();
    }
    assert_eq!(found(&settings, FindingCode::MultipliedMessages), []);

    let multiplying = multiply(&common::as_user(&settings, &user));
    // The broker counts a user's messages connection by connection.
    let who = format!("`{user}` (30 messages, for `billing`)");
    let is_there = |found: &Vec<Finding>| found.first().is_some_and(|it| it.what.contains(&who));
    let look = || found(&settings, FindingCode::MultipliedMessages);
    let findings = eventually_seen("the copies are found", look, is_there);
    drop(multiplying);
    assert_eq!(findings[0].apps, ["billing"], "{findings:#?}");

    // The documented steps: stop the tenant, then discard its waiting messages.
    drop(tenant);
    let its = common::as_user(&settings, &user).broker;
    let open = Session::open(&its).unwrap();
    ctl(&["clear_permissions", "-p", &vhost, &user]);
    ctl(&["close_all_user_connections", &user, "locked out"]);
    assert!(Session::open(&its).is_err());
    drop(open);
    let stop = AtomicBool::new(false);
    let discard = |dry_run| admin::discard_app(&settings, &topology, &app("billing"), dry_run, &stop, |_| {});
    let router = settings.router().connect().unwrap();
    for number in 0..50 {
        let delay = Delay::from_seconds(40 + number % 10).unwrap();
        router.publish(Message::after(app("orders"), delay, format!("{number}"))).unwrap();
    }
    let counted = discard(true).unwrap();
    assert!(counted.messages() > 20 && counted.rounds == 1, "{counted:#?}");
    let report = discard(false).unwrap();
    assert!(!report.unfinished && report.failure.is_none() && report.messages() > 20, "{report:#?}");
    assert_eq!(discard(true).unwrap().messages(), 0);
    // RabbitMQ 4 needs a policy for this, and it is removed afterwards.
    let policies = common::http(&common::shared_node(), "GET", &format!("policies/{vhost}"), &json!(null));
    assert_eq!(policies, json!([]));
    // All messages of the other application arrive, and none is early.
    let arrivals = orders.collect(50, PATIENCE);
    assert_eq!(arrivals.len(), 50);
    assert!(arrivals.iter().all(|arrival| arrival.late_ms() >= 0), "{}", common::lateness(&arrivals));
}
