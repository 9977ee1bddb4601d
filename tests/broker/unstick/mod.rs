//! Queues that hand on nothing are made to try again. The broker of these tests does so by
//! itself only after an hour: what arrives, arrives because of it.

mod policies;
mod refused;
mod serve;

pub(crate) use refused::anew;

use std::{collections::BTreeSet, sync::OnceLock, time::Duration};

use delayline_admin::{
    self as admin, AdminError, DoctorOptions, FindingCode, Unstick, UnstickOptions, UnstickReport,
    management::{ManagementApi, ManagementError, PolicyKind},
};
use delayline_amqp::Session;
use delayline_core::{
    codec::{Delay, RoutingKey},
    topology::{Argument, Binding, Endpoint, Exchange, ExchangeKind, Queue},
};
use delayline_node::{NodeOptions, PrivateNode};
use delayline_settings::Settings;
use serde_json::{Value as Json, json};

use crate::common::{
    Inbox, PATIENCE, app, eventually, eventually_seen, http, install, raw, refusing, topology, vhost_on,
};

pub(crate) fn node() -> &'static PrivateNode {
    static NODE: OnceLock<PrivateNode> = OnceLock::new();
    let hour = "{dead_letter_worker_publisher_confirm_timeout, 3600000}".to_owned();
    NODE.get_or_init(|| {
        PrivateNode::start(NodeOptions { rabbit: vec![hour], ..NodeOptions::default() })
            .expect("a private node")
    })
}

/// A set in a vhost of its own on this node.
fn installed() -> Settings {
    in_units_of("10")
}

fn in_units_of(milliseconds: &str) -> Settings {
    let settings = vhost_on(node()).set("unit_ms", milliseconds).build().unwrap();
    install(&settings);
    settings
}

fn put(settings: &Settings, what: &str, name: &str, body: &Json) {
    http(node(), "PUT", &format!("{what}/{}/{name}", settings.broker.vhost), body);
}

fn options(which: Unstick) -> UnstickOptions {
    // Long, so that it is the dead letters that end the looking, and not the time.
    UnstickOptions { which, wait: Duration::from_secs(120), ..UnstickOptions::default() }
}

fn unstick(settings: &Settings, options: &UnstickOptions) -> Result<UnstickReport, AdminError> {
    admin::unstick(settings, &topology(settings), options)
}

fn now(settings: &Settings) -> UnstickReport {
    unstick(settings, &options(Unstick::Set)).unwrap()
}

fn matching(pattern: &str) -> Unstick {
    Unstick::Matching(pattern.parse().unwrap())
}

/// With exactly this delay: a router counts the time that a message waits in it.
fn send(settings: &Settings, key: &str, ids: std::ops::Range<u32>, units: u64) {
    let key = RoutingKey::new(Delay::from_seconds(units).unwrap(), app(key)).encode();
    let path = format!("exchanges/{}/delay/publish", settings.broker.vhost);
    for id in ids {
        let properties = json!({"delivery_mode": 2, "message_id": id.to_string()});
        let body = json!({
            "properties": properties, "routing_key": key, "payload": "x", "payload_encoding": "string",
        });
        assert_eq!(http(node(), "POST", &path, &body)["routed"], true);
    }
}

fn dead_letters(settings: &Settings, queue: &str) -> u64 {
    let api = ManagementApi::new(settings.management.as_ref().unwrap()).unwrap();
    api.queue(&settings.broker.vhost, queue).unwrap().map_or(0, |queue| queue.messages_dlx)
}

/// Waits until so many dead letters of a queue go nowhere.
pub(crate) fn stuck(settings: &Settings, queue: &str, count: u64) {
    eventually_seen("dead letters are stuck", || dead_letters(settings, queue), |&stuck| stuck == count);
}

/// Has messages get stuck in level 0 as after a start of the broker: what they are to be
/// handed to is not there yet. Then it is.
fn stuck_without_dispatch(settings: &Settings, ids: std::ops::Range<u32>) -> Inbox {
    let count = u64::from(ids.end - ids.start);
    // Counts are seconds old: these must not be taken for those.
    stuck(settings, "delay.level.00", 0);
    let mut session = Session::open(&settings.broker).unwrap();
    session.delete_exchange("delay.dispatch").unwrap();
    // Through the levels 1 and 0.
    send(settings, "app", ids, 3);
    stuck(settings, "delay.level.00", count);
    install(settings);
    Inbox::open(settings, "app")
}

/// What arrived before a message that is published now, straight to the exchange that the inbox is
/// bound to.
fn arrived(settings: &Settings, inbox: &Inbox) -> usize {
    let key = RoutingKey::new(Delay::ZERO, app("app")).encode();
    raw::publish(settings, [raw::message("delay.dispatch", &key, "a marker", &json!({}))]);
    inbox.until("a marker").len()
}

/// That each of these arrives, and none is lost.
fn all_arrive(inbox: &Inbox, ids: std::ops::Range<u32>) {
    let mut missing: BTreeSet<_> = ids.map(|id| id.to_string()).collect();
    while !missing.is_empty() {
        let arrival = inbox.next(PATIENCE);
        let arrival = arrival.unwrap_or_else(|| panic!("{} do not arrive: {missing:?}", missing.len()));
        missing.remove(&arrival.id);
    }
}

/// All policies of the vhost, of both kinds.
pub(crate) fn policies(settings: &Settings) -> [Json; 2] {
    let vhost = &settings.broker.vhost;
    ["policies", "operator-policies"].map(|what| http(node(), "GET", &format!("{what}/{vhost}"), &Json::Null))
}

/// Waits until the broker tells of a queue that these policies apply to it; what it tells is
/// as old as its counts.
fn applies(settings: &Settings, queue: &str, policy: &str, operator_policy: &str) {
    let api = ManagementApi::new(settings.management.as_ref().unwrap()).unwrap();
    let told = || {
        let queue = api.queue(&settings.broker.vhost, queue).unwrap().unwrap();
        [queue.policy, queue.operator_policy].map(Option::unwrap_or_default)
    };
    eventually_seen("these policies apply", told, |told| *told == [policy, operator_policy]);
}

#[test]
fn a_level_hands_on_at_once_what_it_could_not() {
    let settings = installed();
    let before = policies(&settings);
    let inbox = stuck_without_dispatch(&settings, 0..100);
    let dry = unstick(&settings, &UnstickOptions { dry_run: true, ..options(Unstick::Set) }).unwrap();
    assert!(dry.dry_run && dry.touched.len() == 1 && dry.touched[0].left.is_none(), "{dry:#?}");
    assert_eq!(
        (arrived(&settings, &inbox), policies(&settings)),
        (0, before.clone()),
        "that changed something"
    );
    let report = now(&settings);
    let [touched] = report.touched.as_slice() else { panic!("{report:#?}") };
    assert_eq!((touched.queue.as_str(), touched.by), ("delay.level.00", PolicyKind::Policy));
    assert_eq!((touched.dead_letters, touched.left), (100, Some(0)));
    assert!(report.occupied.is_empty() && report.left_behind.is_empty());
    all_arrive(&inbox, 0..100);
    assert_eq!(policies(&settings), before);
    // And then there is nothing to do.
    assert!(now(&settings).touched.is_empty());
    let level = options(Unstick::Levels(vec![7.try_into().unwrap()]));
    assert!(unstick(&settings, &level).unwrap().touched.is_empty());
    let report = unstick(&settings, &UnstickOptions { all: true, ..level }).unwrap();
    assert_eq!((report.touched[0].queue.as_str(), report.touched[0].left), ("delay.level.07", Some(0)));
}

#[test]
fn a_landing_queue_hands_on_once_its_target_is_there() {
    let settings = installed();
    let mut session = Session::open(&settings.broker).unwrap();
    let landing = landing(&settings, &mut session, "target");
    send(&settings, "app", 0..50, 1);
    stuck(&settings, &landing.name, 50);
    queue(&mut session, "target", &[]);
    let report = now(&settings);
    assert_eq!((report.touched.len(), report.touched[0].left), (1, Some(0)), "{report:#?}");
    let depth = || session.queue_depth("target").unwrap().unwrap().ready;
    let mut depth = depth;
    eventually("all are in the target", || depth() == 50);
}

/// A landing queue of the application `app`, before this queue.
fn landing(settings: &Settings, session: &mut Session, target: &str) -> Queue {
    let landing = topology(settings).landing_queue(&app("app"), "", Some(target));
    session.declare_queue(&landing).unwrap();
    session
        .bind(&Binding {
            source: "delay.dispatch".into(),
            destination: Endpoint::Queue(landing.name.clone()),
            key: RoutingKey::binding_pattern(&app("app")),
        })
        .unwrap();
    landing
}

fn queue(session: &mut Session, name: &str, more: &[(&str, Argument)]) {
    let quorum = [("x-queue-type", "quorum".into())];
    let arguments = quorum.iter().chain(more).map(|(name, value)| ((*name).to_owned(), value.clone()));
    session.declare_queue(&Queue::new(name).with_arguments(arguments)).unwrap();
}

/// The lowest levels as others lay them out: exchanges `<prefix>00` and so on that lead each
/// bit to the queue of the same name or to the exchange below, and the last to `delivery`.
/// No exchange has an alternate: what nobody is bound for is stuck.
fn chain(session: &mut Session, prefix: &str, delivery: &str) {
    let exchange = |session: &mut Session, name: &str| {
        let kind = ExchangeKind::Topic;
        session.declare_exchange(&Exchange::new(name, kind)).unwrap();
    };
    let bind = |session: &mut Session, source: &str, destination: Endpoint, key: String| {
        session.bind(&Binding { source: source.into(), destination, key }).unwrap();
    };
    exchange(session, delivery);
    for level in 0..3_usize {
        let name = format!("{prefix}{level:02}");
        let below = match level {
            0 => delivery.to_owned(),
            level => format!("{prefix}{:02}", level - 1),
        };
        exchange(session, &name);
        let arguments = [
            ("x-dead-letter-strategy", "at-least-once".into()),
            ("x-overflow", "reject-publish".into()),
            ("x-message-ttl", (10_i64 << level).into()),
            ("x-dead-letter-exchange", below.as_str().into()),
        ];
        queue(session, &name, &arguments);
        let above = "*.".repeat(2 - level);
        bind(session, &name, Endpoint::Queue(name.clone()), format!("{above}1.#"));
        bind(session, &name, Endpoint::Exchange(below), format!("{above}0.#"));
    }
}

#[test]
fn the_levels_of_other_layouts_hand_on_too() {
    let settings = installed();
    let mut session = Session::open(&settings.broker).unwrap();
    for (prefix, delivery, pattern) in [
        ("nsb.v2.delay-level-", "nsb.v2.delay-delivery", r"^nsb\.v2\.delay-level-"),
        ("celery_delayed_", "celery_delayed_delivery", "^celery_delayed_"),
    ] {
        chain(&mut session, prefix, delivery);
        let target = format!("target-of-{prefix}");
        queue(&mut session, &target, &[]);
        let entry = format!("{prefix}02");
        for _ in 0..40 {
            let body = json!({
                "properties": {"delivery_mode": 2}, "routing_key": format!("1.0.1.{target}"),
                "payload": "x", "payload_encoding": "string",
            });
            let path = format!("exchanges/{}/{entry}/publish", settings.broker.vhost);
            assert_eq!(http(node(), "POST", &path, &body)["routed"], true);
        }
        let lowest = format!("{prefix}00");
        stuck(&settings, &lowest, 40);
        // The set's own are not among them, and these are not the set's.
        assert!(now(&settings).touched.is_empty());
        session
            .bind(&Binding {
                source: delivery.into(),
                destination: Endpoint::Queue(target.clone()),
                key: format!("#.{target}"),
            })
            .unwrap();
        let report = unstick(&settings, &options(matching(pattern))).unwrap();
        assert_eq!(report.touched.len(), 1, "{report:#?}");
        assert_eq!((report.touched[0].queue.as_str(), report.touched[0].left), (lowest.as_str(), Some(0)));
        let mut ready = || session.queue_depth(&target).unwrap().unwrap().ready;
        eventually("all have arrived", || ready() == 40);
    }
    // Queues that hand on at most once, or nothing, are never touched.
    let all = UnstickOptions { all: true, dry_run: true, ..options(matching(".")) };
    let report = unstick(&settings, &all).unwrap();
    let names: BTreeSet<_> = report.touched.iter().map(|queue| queue.queue.as_str()).collect();
    assert_eq!(names.len(), 28 + 1 + 3 + 3, "{names:?}");
    assert!(!names.contains("delay.parked") && !names.contains("target-of-celery_delayed_"), "{names:?}");
}

/// What a run leaves that is killed between its two steps.
fn leave_behind(settings: &Settings, what: &str, queue: &str) {
    let definition = json!({"delivery-limit": i32::MAX});
    let pattern = format!("^(?:{})$", regex_escaped(queue));
    let body = json!({
        "pattern": pattern, "priority": -1_000_000, "definition": definition, "apply-to": "queues",
    });
    put(settings, what, "delayline-unstick", &body);
}

fn regex_escaped(name: &str) -> String {
    name.replace('.', r"\.")
}

#[test]
fn what_a_run_left_behind_that_was_cut_short_is_found_and_deleted() {
    let settings = installed();
    let clean = policies(&settings);
    let inbox = stuck_without_dispatch(&settings, 0..40);
    // It was set while nothing could be handed on, so that it has helped nobody.
    let mut session = Session::open(&settings.broker).unwrap();
    session.delete_exchange("delay.dispatch").unwrap();
    leave_behind(&settings, "policies", "delay.level.00");
    leave_behind(&settings, "operator-policies", "delay.level.05");
    install(&settings);
    drop(inbox);
    let inbox = Inbox::open(&settings, "app");
    let report = admin::doctor(&settings, &topology(&settings), &DoctorOptions::default()).unwrap();
    let found = report.findings.iter().filter(|finding| finding.code == FindingCode::PolicyLeftBehind);
    let found: Vec<_> = found.map(|finding| (&*finding.subject, &*finding.advice)).collect();
    assert!(found.iter().all(|(_, advice)| advice.contains("delayline unstick")), "{found:?}");
    let subjects: Vec<_> = found.iter().map(|(subject, _)| *subject).collect();
    assert_eq!(subjects, ["operator policy `delayline-unstick`", "policy `delayline-unstick`"]);
    let report = now(&settings);
    assert_eq!(report.left_behind, [PolicyKind::Policy, PolicyKind::OperatorPolicy]);
    assert_eq!((report.touched.len(), report.touched[0].left), (1, Some(0)), "{report:#?}");
    all_arrive(&inbox, 0..40);
    assert_eq!(policies(&settings), clean);
    let report = admin::doctor(&settings, &topology(&settings), &DoctorOptions::default()).unwrap();
    assert!(!report.findings.iter().any(|finding| finding.code == FindingCode::PolicyLeftBehind));
}

#[test]
fn who_may_do_it_is_said() {
    let settings = installed();
    let vhost = settings.broker.vhost.clone();
    let inbox = stuck_without_dispatch(&settings, 0..40);
    let as_user = |name: &str, tags: &str| {
        http(node(), "PUT", &format!("users/{name}"), &json!({"password": name, "tags": tags}));
        let none = json!({"configure": "", "write": "", "read": ""});
        http(node(), "PUT", &format!("permissions/{vhost}/{name}"), &none);
        let url = format!("{}/{vhost}", node().url());
        let layers = node().settings().set("url", url).set("unit_ms", "10");
        layers.set("username", name).set("password", name).build().unwrap()
    };
    let clean = policies(&settings);
    let needed = |settings: &Settings| match unstick(settings, &options(Unstick::Set)) {
        Err(AdminError::Management(ManagementError::Refused { needed, .. })) => needed,
        other => panic!("{other:#?}"),
    };
    let watcher = as_user("watcher", "monitoring");
    assert!(needed(&watcher).contains("`policymaker`"), "{}", needed(&watcher));
    assert_eq!(policies(&settings), clean);
    // A queue with a policy takes an operator policy.
    let theirs = json!({
        "pattern": "^delay\\.level\\.00$", "definition": {"max-length": 100_000}, "apply-to": "queues",
    });
    put(&settings, "policies", "theirs", &theirs);
    let maker = as_user("maker", "policymaker");
    // Setting theirs was a touch as well; so there must be something that is stuck anew.
    all_arrive(&inbox, 0..40);
    drop(inbox);
    let inbox = stuck_without_dispatch(&settings, 40..80);
    applies(&settings, "delay.level.00", "theirs", "");
    assert!(needed(&maker).contains("`administrator`"), "{}", needed(&maker));
    http(node(), "DELETE", &format!("policies/{vhost}/theirs"), &Json::Null);
    all_arrive(&inbox, 40..80);
    drop(inbox);
    let inbox = stuck_without_dispatch(&settings, 80..120);
    applies(&settings, "delay.level.00", "", "");
    let report = unstick(&maker, &options(Unstick::Set)).unwrap();
    assert_eq!((report.touched[0].by, report.touched[0].left), (PolicyKind::Policy, Some(0)), "{report:#?}");
    all_arrive(&inbox, 80..120);
    assert_eq!(policies(&settings), clean);
    // And without the management API it says what is missing.
    let mut blind = settings;
    blind.management = None;
    assert!(matches!(unstick(&blind, &options(Unstick::Set)), Err(AdminError::NotConfigured { .. })));
}
