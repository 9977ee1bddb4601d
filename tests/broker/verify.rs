use std::collections::BTreeSet;

use delayline_admin::{self as admin, DoctorOptions, FindingCode, Kept};
use delayline_amqp::Session;
use delayline_core::{
    codec::RoutingKey,
    topology::{Binding, Endpoint, Exchange, ExchangeKind, Queue},
};
use delayline_node::{NodeOptions, PrivateNode};
use delayline_settings::Settings;
use serde_json::{Value as Json, json};

use crate::common::{
    NO_SIGNAL, app, eventually, eventually_seen, http, install, installed, not_tested::not_tested,
    shared_node, status, topology,
};

fn differences(settings: &Settings) -> Vec<String> {
    let report = admin::verify(settings, &topology(settings)).unwrap();
    report.differences.iter().map(ToString::to_string).collect()
}

fn queue(session: &mut Session, name: &str) {
    let arguments = [("x-queue-type".to_owned(), "classic".into())];
    session.declare_queue(&Queue::new(name).with_arguments(arguments)).unwrap();
}

fn bind(session: &mut Session, source: &str, queue: &str, key: &str) {
    let destination = Endpoint::Queue(queue.into());
    session.bind(&Binding { source: source.into(), destination, key: key.into() }).unwrap();
}

#[test]
fn finds_missing_and_additional_objects() {
    let settings = installed(1_000);
    let mut session = Session::open(&settings.broker).unwrap();
    let topology = topology(&settings);
    queue(&mut session, "spy");
    queue(&mut session, "orders");

    // The binding of an application is no finding.
    bind(&mut session, "delay.dispatch", "orders", &RoutingKey::binding_pattern(&app("eu.orders")));
    assert_eq!(differences(&settings), [""; 0]);

    let removed = topology.bindings().nth(200).unwrap();
    session.unbind(removed).unwrap();
    session.delete_queue("delay.level.27").unwrap();
    bind(&mut session, "delay", "spy", "#");
    bind(&mut session, "delay.dispatch", "orders", "#.orders");
    let found = differences(&settings);
    for part in [
        format!("{removed} is missing"),
        "queue `delay.level.27` is missing".into(),
        "binding `delay` -> queue `spy` with key `#` does not belong to the set: it copies or diverts".into(),
        "binding `delay.dispatch` -> queue `orders` with key `#.orders` does not belong to the set".into(),
    ] {
        assert!(found.iter().any(|finding| finding.contains(&part)), "{part} is not among {found:#?}");
    }
    // The bindings of the deleted queue are missing, too.
    let gone = Endpoint::Queue("delay.level.27".into());
    let bindings = topology.bindings().filter(|binding| binding.destination == gone).count();
    assert_eq!(found.len(), 4 + bindings, "{found:#?}");
}

/// For example an exchange from another version under the set's name.
#[test]
fn another_way_into_the_levels_is_found_and_left_alone() {
    let settings = installed(1_000);
    let topology = topology(&settings);
    let mut session = Session::open(&settings.broker).unwrap();
    let aside = Exchange::new("delay.aside", ExchangeKind::Direct)
        .with_arguments([("alternate-exchange".to_owned(), "delay.unroutable".into())]);
    session.declare_exchange(&aside).unwrap();
    for queue in topology.queues().filter(|queue| queue.level.is_some()) {
        bind(&mut session, "delay.aside", &queue.name, &queue.name);
    }
    let dispatch = Endpoint::Exchange("delay.dispatch".into());
    let binding = Binding { source: "delay.aside".into(), destination: dispatch, key: "dispatch".into() };
    session.bind(&binding).unwrap();
    let says_so = |found: &String| {
        found.contains("`delay.aside`") && found.contains("did not come through the entry exchange")
    };
    let found = differences(&settings);
    assert!(found.len() == 29 && found.iter().all(says_so), "{found:#?}");
    // The exchange does not prevent a new installation or a removal.
    let again = admin::install(&settings, &topology, false, || {}).unwrap();
    assert_eq!(again.outcome, admin::Applied::Unchanged, "{again:?}");
    assert_eq!(differences(&settings), found);
    let removed = admin::uninstall(&settings, &topology, false, &NO_SIGNAL).unwrap().unwrap();
    assert!(removed.removed.len() == 63 && removed.foreign.is_empty(), "{removed:?}");
    assert!(session.exchange_exists("delay.aside").unwrap());
}

#[test]
fn finds_an_argument_that_differs() {
    let settings = installed(1_000);
    let mut session = Session::open(&settings.broker).unwrap();
    session.delete_queue("delay.level.03").unwrap();
    session.delete_exchange("delay.dispatch").unwrap();
    let mut level = topology(&settings)
        .queues()
        .find(|queue| queue.level.is_some_and(|level| level == 3))
        .unwrap()
        .clone();
    level.arguments.insert("x-message-ttl".into(), 9_000.into());
    level.arguments.remove("x-dead-letter-strategy");
    session.declare_queue(&level).unwrap();
    let exchange = Exchange::new("delay.dispatch", ExchangeKind::Topic);
    session.declare_exchange(&exchange).unwrap();
    let found = differences(&settings);
    for part in [
        "queue `delay.level.03`: `x-message-ttl` should be 8000, but is 9000",
        "queue `delay.level.03`: `x-dead-letter-strategy` should be at-least-once, but is not set",
        "exchange `delay.dispatch`: `alternate-exchange` should be delay.unroutable, but is not set",
    ] {
        assert!(found.iter().any(|finding| finding == part), "{part} is not among {found:#?}");
    }

    // Without the management API, each object has at most one difference, and the report lists what
    // it did not check.
    let mut blind = settings.clone();
    blind.management = None;
    let report = admin::verify(&blind, &topology(&blind)).unwrap();
    assert_eq!(report.differences.len(), 2, "{:?}", report.differences);
    assert!(report.unchecked.iter().any(|text| text.starts_with("bindings")), "{:?}", report.unchecked);
    assert_eq!(report.bindings, 0);
}

#[test]
fn finds_policies_that_change_a_level() {
    let settings = installed(1_000);
    let vhost = &settings.broker.vhost;
    let policy = json!({
        "pattern": "^delay\\.level\\.1", "apply-to": "queues",
        "definition": {"message-ttl": 60_000, "dead-letter-routing-key": "x"},
    });
    http(&shared_node(), "PUT", &format!("policies/{vhost}/all"), &policy);
    // The API shows policies together with its statistics, a little later.
    eventually("the policy is shown", || differences(&settings).len() >= 10);
    let found = differences(&settings);
    assert!(
        found.iter().any(|finding| finding.contains("level.19")
            && finding.contains("`all`")
            && finding.contains("too early")),
        "{found:#?}"
    );
    assert!(
        found
            .iter()
            .any(|finding| finding.contains("level.10") && finding.contains("dead-letter-routing-key")),
        "{found:#?}"
    );
}

#[test]
fn an_absent_set_is_all_missing() {
    let settings = crate::common::vhost().build().unwrap();
    let report = admin::verify(&settings, &topology(&settings)).unwrap();
    assert_eq!(report.differences.len(), topology(&settings).objects().len());
    let mut blind = settings.clone();
    blind.management = None;
    assert_eq!(admin::verify(&blind, &topology(&blind)).unwrap().differences.len(), 63);
}

#[test]
fn an_unreachable_management_api_is_not_needed_explicit_or_guessed() {
    let settings = installed(1_000);
    let topology = topology(&settings);
    for explicit in [true, false] {
        let mut blind = settings.clone();
        let management = blind.management.as_mut().unwrap();
        management.url.set_port(Some(1)).unwrap();
        management.explicit = explicit;
        let report = admin::verify(&blind, &topology).unwrap();
        assert!(report.unchecked[0].contains("cannot be reached"), "{:?}", report.unchecked);
        assert_eq!(report.findings, []);
        eventually_seen(
            "status has the reason",
            || status(&blind).unchecked,
            |unchecked| unchecked.iter().any(|unchecked| unchecked.contains("cannot be reached")),
        );
        admin::install(&blind, &topology, false, || {}).unwrap();
        // This first looks at the delivery limit of the queue.
        Kept::Unroutable.list(&blind, &topology, 10, |_| {}).unwrap();
    }
}

#[test]
fn a_management_api_that_was_named_and_refuses_us_is_an_error() {
    let mut settings = installed(1_000);
    let topology = topology(&settings);
    settings.management.as_mut().unwrap().username = "nobody".into();
    let error = admin::verify(&settings, &topology).unwrap_err().to_string();
    assert!(error.contains("refused user `nobody`"), "{error}");
    // An API at a guessed address may reject the login.
    settings.management.as_mut().unwrap().explicit = false;
    let report = admin::verify(&settings, &topology).unwrap();
    assert!(report.unchecked[0].contains("refused user `nobody`"), "{:?}", report.unchecked);
}

#[test]
fn finds_queues_that_come_back_without_a_leader() {
    let version =
        Session::open(&crate::common::vhost().build().unwrap().broker).unwrap().server_version().unwrap();
    if !["3.", "4.0."].iter().any(|old| version.starts_with(old)) {
        return not_tested(
            "a queue without a leader: this version stores new queues before it confirms them",
        );
    }
    let mut node = PrivateNode::start(NodeOptions::default()).unwrap();
    let settings = node.settings().set("unit_ms", "1000").build().unwrap();
    install(&settings);
    let mut found = BTreeSet::new();
    for round in 0..4 {
        let names: Vec<_> = (0..4).map(|n| format!("app-{round}-{n}")).collect();
        let mut session = Session::open(&settings.broker).unwrap();
        for name in &names {
            declare(&mut session, name);
            bind(&mut session, "delay.dispatch", name, &RoutingKey::binding_pattern(&app(name)));
        }
        drop(session);
        // The node is killed before it has stored the list of its queues. Up to 4.0, a single node
        // may then return with some queues that have no leader.
        node.kill();
        node.restart().unwrap();
        // Ra, which implements the queues, knows for certain. After a start, it takes some time for
        // Ra and for the statistics that `doctor` uses.
        let (apps, ..) = eventually_seen(
            "doctor finds exactly the queues without a leader",
            || {
                let report =
                    admin::doctor(&settings, &topology(&settings), &DoctorOptions::default()).unwrap();
                let of = |code| report.findings.iter().filter(move |finding| finding.code == code);
                let apps: BTreeSet<_> =
                    of(FindingCode::NoLeader).flat_map(|finding| finding.apps.clone()).collect();
                let there = still_there(&node, &names);
                let led: BTreeSet<_> = there.iter().filter(|name| is_led(&node, name)).cloned().collect();
                (apps, led, there, of(FindingCode::NoMajority).count())
            },
            |(apps, led, there, starting)| {
                *starting == 0 && apps.is_disjoint(led) && apps.union(led).eq(there)
            },
        );
        found = apps;
        if !found.is_empty() {
            break;
        }
    }
    if found.is_empty() {
        // On 3.10.8, three of four queues return without a leader, and on 4.0.5 some do.
        assert!(version.starts_with("4."), "all of 16 queues came back with a leader");
        return not_tested("a queue without a leader: none returned without a leader in four rounds");
    }
    // The advice helps.
    let mut session = Session::open(&settings.broker).unwrap();
    for name in &found {
        session.delete_queue(name).unwrap();
        declare(&mut session, name);
        assert!(is_led(&node, name), "{name}");
    }
}

fn declare(session: &mut Session, name: &str) {
    let arguments = [("x-queue-type".to_owned(), "quorum".into())];
    session.declare_queue(&Queue::new(name).with_arguments(arguments)).unwrap();
}

/// The queues that the broker still knows, and that are bound. It may have been killed before it
/// had stored a queue or binding. `doctor` examines only queues that the set delivers to.
fn still_there(node: &PrivateNode, names: &[String]) -> BTreeSet<String> {
    let known = |path: &str, name: &str| -> BTreeSet<String> {
        let found = http(node, "GET", path, &Json::Null);
        let found = found.as_array().into_iter().flatten().filter_map(|it| it[name].as_str());
        found.filter(|name| names.iter().any(|it| it == name)).map(str::to_owned).collect()
    };
    let queues = known("queues/%2F?columns=name", "name");
    let bound = known("exchanges/%2F/delay.dispatch/bindings/source", "destination");
    queues.intersection(&bound).cloned().collect()
}

/// Whether a queue of the default vhost has a leader.
fn is_led(node: &PrivateNode, queue: &str) -> bool {
    let asked =
        node.ctl(&["eval", &format!("element(1, ra:members({{'%2F_{queue}', node()}}, 1000)).")]).unwrap();
    String::from_utf8_lossy(&asked.stdout).trim() == "ok"
}
