//! Making stuck queues try again. The broker of these tests tries again only after an hour, so
//! messages arrive only because of `unstick`.

mod policies;
mod refused;
mod relief;
mod serve;

pub(crate) use refused::anew;

use std::{collections::BTreeSet, sync::OnceLock, time::Duration};

use delayline_admin::{
    self as admin, AdminError, DoctorOptions, FindingCode, Unstick, UnstickOptions, UnstickReport,
};
use delayline_amqp::Session;
use delayline_broker::{ManagementApi, ManagementError, PolicyKind};
use delayline_core::{
    codec::{Delay, RoutingKey},
    topology::{Argument, Binding, Endpoint, Exchange, ExchangeKind, Queue},
};
use delayline_node::{NodeOptions, PrivateNode};
use delayline_settings::Settings;
use serde_json::{Value as Json, json};

use crate::common::Counting;
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

/// A set in its own vhost on this node.
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
    // The wait is long, so that it ends because no dead letter is left.
    UnstickOptions { which, wait: PATIENCE, ..UnstickOptions::default() }
}

fn unstick(settings: &Settings, options: &UnstickOptions) -> Result<UnstickReport, AdminError> {
    admin::unstick(settings, &topology(settings), options)
}

fn now(settings: &Settings) -> UnstickReport {
    unstick(settings, &options(Unstick::Set)).unwrap()
}

fn matching(pattern: &str) -> Unstick {
    Unstick::Matching(pattern.into())
}

/// Publishes with exactly this delay. A router would subtract the time that a message waits in it.
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
    api.queue(&settings.broker.vhost, queue).unwrap().and_then(|queue| queue.messages_dlx).unwrap_or(0)
}

/// Waits until a queue has this many stuck dead letters.
pub(crate) fn stuck(settings: &Settings, queue: &str, count: u64) {
    eventually_seen("dead letters are stuck", || dead_letters(settings, queue), |&stuck| stuck == count);
}

/// Makes messages stuck in level 0, as after a start of the broker: the dispatch exchange does not
/// exist yet. Then creates the exchange.
fn stuck_without_dispatch(settings: &Settings, ids: std::ops::Range<u32>) -> Inbox {
    let count = u64::from(ids.end - ids.start);
    // The counts are seconds old, so earlier messages must be gone from them first.
    stuck(settings, "delay.level.00", 0);
    let mut session = Session::open(&settings.broker).unwrap();
    session.delete_exchange("delay.dispatch").unwrap();
    // This delay passes the levels 1 and 0.
    send(settings, "app", ids, 3);
    stuck(settings, "delay.level.00", count);
    stuck(settings, "delay.level.01", 0);
    install(settings);
    Inbox::open(settings, "app")
}

/// The number of messages that have arrived before a marker. The marker is published now, directly
/// to the exchange of the inbox.
fn arrived(settings: &Settings, inbox: &Inbox) -> usize {
    let key = RoutingKey::new(Delay::ZERO, app("app")).encode();
    raw::publish(settings, [raw::message("delay.dispatch", &key, "a marker", &json!({}))]);
    inbox.until("a marker").len()
}

/// Waits until each of these messages has arrived.
fn all_arrive(inbox: &Inbox, ids: std::ops::Range<u32>) {
    let mut missing: BTreeSet<_> = ids.map(|id| id.to_string()).collect();
    while !missing.is_empty() {
        let arrival = inbox.next(PATIENCE);
        let arrival = arrival.unwrap_or_else(|| panic!("{} do not arrive: {missing:?}", missing.len()));
        missing.remove(&arrival.id);
    }
}

/// All policies and operator policies of the vhost.
pub(crate) fn policies(settings: &Settings) -> [Json; 2] {
    let vhost = &settings.broker.vhost;
    ["policies", "operator-policies"].map(|what| http(node(), "GET", &format!("{what}/{vhost}"), &Json::Null))
}

/// Waits until the broker shows that these policies apply to a queue. It shows that as late as its
/// counts.
fn applies(settings: &Settings, queue: &str, policy: &str, operator_policy: &str) {
    let api = ManagementApi::new(settings.management.as_ref().unwrap()).unwrap();
    let told = || {
        let queue = api.queue(&settings.broker.vhost, queue).unwrap().unwrap();
        [queue.policy, queue.operator_policy].map(Option::unwrap_or_default)
    };
    eventually_seen("these policies apply", told, |told| *told == [policy, operator_policy]);
}

#[test]
fn a_stuck_level_hands_on_at_once() {
    let settings = installed();
    let before = policies(&settings);
    let inbox = stuck_without_dispatch(&settings, 0..100);
    let dry = unstick(&settings, &UnstickOptions { dry_run: true, ..options(Unstick::Set) }).unwrap();
    assert!(dry.dry_run && dry.touched.len() == 1 && dry.touched[0].left.is_none(), "{dry:#?}");
    assert_eq!(
        (arrived(&settings, &inbox), policies(&settings)),
        (0, before.clone()),
        "a dry run changed something"
    );
    let report = now(&settings);
    let [touched] = report.touched.as_slice() else { panic!("{report:#?}") };
    assert_eq!((touched.queue.as_str(), touched.by), ("delay.level.00", PolicyKind::Policy));
    assert_eq!((touched.dead_letters, touched.left), (Some(100), Some(0)));
    assert!(report.occupied.is_empty() && report.left_behind.is_empty());
    all_arrive(&inbox, 0..100);
    assert_eq!(policies(&settings), before);
    // A second run has nothing to do.
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
    // On a busy machine, the last message may still be in hand-over from a level.
    let touched = report.touched.iter().find(|it| it.queue == landing.name);
    assert_eq!(touched.unwrap().left, Some(0), "{report:#?}");
    let depth = || session.counts("target").unwrap().unwrap().ready;
    let mut depth = depth;
    eventually("all messages are in the target", || depth() == 50);
}

/// A landing queue of the application `app` in front of this queue.
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

/// The lowest levels of a foreign layout. Each exchange, from `<prefix>00` on, leads a bit of 1 to
/// the queue of its name, and a bit of 0 to the exchange below. The lowest leads to `delivery`. No
/// exchange has an alternate, so messages without a bound queue are stuck.
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
        // By default, `unstick` ignores queues outside the set.
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
        let mut ready = || session.counts(&target).unwrap().unwrap().ready;
        eventually("all messages have arrived", || ready() == 40);
    }
    // Queues that dead-letter at most once, or not at all, are never touched.
    let all = UnstickOptions { all: true, dry_run: true, ..options(matching(".")) };
    let report = unstick(&settings, &all).unwrap();
    let names: BTreeSet<_> = report.touched.iter().map(|queue| queue.queue.as_str()).collect();
    assert_eq!(names.len(), 28 + 1 + 3 + 3, "{names:?}");
    assert!(!names.contains("delay.parked") && !names.contains("target-of-celery_delayed_"), "{names:?}");
}

/// Leaves the policy of a run that was killed between its two steps.
fn leave_behind(settings: &Settings, what: &str, name: &str, queue: &str) {
    let definition = json!({"delivery-limit": i32::MAX});
    let pattern = format!("^(?:{})$", regex_escaped(queue));
    let body = json!({
        "pattern": pattern, "priority": -1_000_000, "definition": definition, "apply-to": "queues",
    });
    put(settings, what, name, &body);
}

fn regex_escaped(name: &str) -> String {
    name.replace('.', r"\.")
}

#[test]
fn policies_of_an_interrupted_run_are_found_and_deleted() {
    let settings = installed();
    let clean = policies(&settings);
    let inbox = stuck_without_dispatch(&settings, 0..40);
    // The policies are set while the dispatch exchange is missing, so setting them frees no
    // message.
    let mut session = Session::open(&settings.broker).unwrap();
    session.delete_exchange("delay.dispatch").unwrap();
    leave_behind(&settings, "policies", "delayline-unstick", "delay.level.00");
    leave_behind(&settings, "operator-policies", "delayline-unstick", "delay.level.05");
    leave_behind(&settings, "policies", "delayline-no-limit", "delay.level.07");
    install(&settings);
    drop(inbox);
    let inbox = Inbox::open(&settings, "app");
    let report = admin::doctor(&settings, &topology(&settings), &DoctorOptions::default()).unwrap();
    let found = report.findings.iter().filter(|finding| finding.code == FindingCode::PolicyLeftBehind);
    let found: Vec<_> = found.map(|finding| (&*finding.subject, &*finding.advice)).collect();
    let advised = |(subject, advice): &(&str, &str)| match subject.contains("no-limit") {
        true => advice.contains("run the interrupted one again"),
        false => advice.contains("delayline unstick"),
    };
    assert!(found.iter().all(advised), "{found:?}");
    let subjects: Vec<_> = found.iter().map(|(subject, _)| *subject).collect();
    let unstick = ["operator policy `delayline-unstick`", "policy `delayline-unstick`"];
    assert_eq!(subjects, [unstick[0], "policy `delayline-no-limit`", unstick[1]]);
    let report = now(&settings);
    assert_eq!(report.left_behind, [PolicyKind::Policy, PolicyKind::OperatorPolicy]);
    assert_eq!((report.touched.len(), report.touched[0].left), (1, Some(0)), "{report:#?}");
    all_arrive(&inbox, 0..40);
    // A transfer may be running, so its policy is not deleted.
    assert_eq!(policies(&settings)[0][0]["name"], "delayline-no-limit");
    http(node(), "DELETE", &format!("policies/{}/delayline-no-limit", settings.broker.vhost), &().into());
    assert_eq!(policies(&settings), clean);
    let report = admin::doctor(&settings, &topology(&settings), &DoctorOptions::default()).unwrap();
    assert!(!report.findings.iter().any(|finding| finding.code == FindingCode::PolicyLeftBehind));
}

#[test]
fn the_missing_right_is_reported() {
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
    // A queue with a policy needs an operator policy.
    let theirs = json!({
        "pattern": "^delay\\.level\\.00$", "definition": {"max-length": 100_000}, "apply-to": "queues",
    });
    put(&settings, "policies", "theirs", &theirs);
    let maker = as_user("maker", "policymaker");
    // Setting the other policy has freed the stuck messages, so new ones are needed.
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
    // Without the management API, the error names it.
    let mut blind = settings;
    blind.management = None;
    assert!(matches!(unstick(&blind, &options(Unstick::Set)), Err(AdminError::NotConfigured { .. })));
}
