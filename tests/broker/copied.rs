//! What copies messages of a set, takes them away or lets others in is found: federation, shovels and shards,
//! and every policy key that a broker knows.

use delayline_admin::{self as admin, FindingCode};
use delayline_amqp::Session;
use delayline_broker::{Difference, is_judged};
use delayline_core::{
    Message,
    codec::{Delay, RoutingKey},
    topology::Topology,
};
use delayline_node::{NodeOptions, PrivateNode};
use delayline_settings::Settings;
use serde_json::{Value as Json, json};

use crate::common::Counting;
use crate::common::{
    Inbox, PATIENCE, app, eventually_seen, http, install, installed, named_vhost, shared_node, topology,
};

/// Messages for a queue that refuses them.
const MANY: usize = 5;

/// A node with plugins that copy and move messages.
fn node() -> PrivateNode {
    let plugins = ["federation", "shovel", "sharding"].map(|name| format!("rabbitmq_{name}")).into();
    PrivateNode::start(NodeOptions { plugins, ..NodeOptions::default() }).unwrap()
}

/// A vhost of the node with a set.
fn vhost(node: &PrivateNode, name: &str) -> (Settings, Topology) {
    let settings = named_vhost(node, name).set("unit_ms", "100").build().unwrap();
    install(&settings);
    let topology = topology(&settings);
    (settings, topology)
}

/// Sets a policy with a pattern that every name matches.
fn policy(node: &PrivateNode, vhost: &str, name: &str, definition: &Json) {
    let policy = json!({"pattern": ".*", "apply-to": "all", "definition": definition});
    http(node, "PUT", &format!("policies/{vhost}/{name}"), &policy);
}

fn parameter(node: &PrivateNode, path: &str, value: &Json) {
    http(node, "PUT", &format!("parameters/{path}"), &json!({ "value": value }));
}

/// The objects that a policy is found to change by a key.
fn changed(settings: &Settings, topology: &Topology, wanted: &str) -> Vec<String> {
    let report = admin::verify(settings, topology).unwrap();
    let changed = report.differences.into_iter().filter_map(|difference| match difference {
        Difference::Policy { object, key, .. } if key == wanted => Some(object),
        _ => None,
    });
    changed.collect()
}

/// Everything that `verify` and `doctor` find, which must be the same.
fn found(settings: &Settings, topology: &Topology, code: FindingCode) -> Vec<String> {
    let verify = admin::verify(settings, topology).unwrap();
    let doctor = admin::doctor(settings, topology, &Default::default()).unwrap();
    for unknown in verify.unchecked.iter().chain(&doctor.unchecked) {
        assert!(unknown.contains("has a leader"), "{unknown}");
    }
    let texts = |findings: Vec<admin::Finding>| {
        let of_code = findings.into_iter().filter(|finding| finding.code == code);
        let mut texts: Vec<_> =
            of_code.map(|it| format!("{}: {}; {}", it.subject, it.what, it.advice)).collect();
        texts.sort();
        texts
    };
    let (verify, doctor) = (texts(verify.findings), texts(doctor.findings));
    assert_eq!(verify, doctor);
    verify
}

/// All in one test, because a node with these plugins is dear.
#[test]
fn what_copies_and_moves_messages_is_found() {
    let node = node();
    every_policy_key_of_the_broker_is_judged(&node);
    federation_and_shards_are_found_on_both_sides(&node);
    shovels_out_of_the_set_and_into_it_are_found(&node);
}

fn every_policy_key_of_the_broker_is_judged(node: &PrivateNode) {
    let keys = node
        .tell(&[
            "eval",
            "[io_lib:format(\"~s \", [Key]) || Class <- [policy_validator, operator_policy_validator], \
             {Key, _} <- rabbit_registry:lookup_all(Class)].",
        ])
        .unwrap();
    let keys: Vec<_> =
        keys.split(|it: char| !it.is_ascii_lowercase() && it != '-').filter(|it| !it.is_empty()).collect();
    for known in ["message-ttl", "federation-upstream-set", "shards-per-node", "delivery-limit"] {
        assert!(keys.contains(&known), "{known} is not among {keys:?}");
    }
    let unknown: Vec<_> = keys.into_iter().filter(|key| !is_judged(key)).collect();
    assert_eq!(unknown, [""; 0]);
}

fn federation_and_shards_are_found_on_both_sides(node: &PrivateNode) {
    let ((up, above), (down, below)) = (vhost(node, "up"), vhost(node, "down"));
    assert_eq!(found(&down, &below, FindingCode::PolicyOnSet), [""; 0]);

    parameter(node, "federation-upstream/down/from-up", &json!({"uri": "amqp:///up", "expires": 3_600_000}));
    policy(node, "down", "federate", &json!({"federation-upstream-set": "all"}));
    let places = changed(&down, &below, "federation-upstream-set");
    let (exchanges, queues) = (below.exchanges().count(), below.queues().count());
    assert_eq!(places.len(), exchanges + queues, "{places:?}");
    let said = found(&down, &below, FindingCode::PolicyOnSet);
    assert!(
        said.len() == 1
            && said[0].contains(
                "policy `federate` sets `federation-upstream-set` to all: messages that other brokers"
            ),
        "{said:#?}"
    );

    // The links on the other side, which copy what is published there.
    let links = || {
        let differences = admin::verify(&up, &above).unwrap().differences.into_iter();
        let links = differences.filter(|it| it.to_string().contains("another broker federates the exchange"));
        links.map(|it| it.to_string()).collect::<Vec<_>>()
    };
    eventually_seen("every level is linked", links, |links| {
        above.exchanges().filter(|it| it.name.contains("level")).all(|exchange| {
            links.iter().any(|link| {
                link.starts_with(&format!("binding `{}` -> exchange `federation: ", exchange.name))
            })
        })
    });
    // It still links more while these look, so their texts may differ.
    let verify = admin::verify(&up, &above).unwrap().findings;
    let doctor = admin::doctor(&up, &above, &Default::default()).unwrap().findings;
    for findings in [verify, doctor] {
        let of_set: Vec<_> = findings.iter().filter(|it| it.code == FindingCode::SetDiffers).collect();
        assert!(
            of_set.len() == 1 && of_set[0].advice.starts_with("change the federation policy of the broker"),
            "{of_set:#?}"
        );
    }

    policy(node, "up", "shard", &json!({"shards-per-node": 1, "routing-key": "#"}));
    let sharded = changed(&up, &above, "shards-per-node");
    assert_eq!(sharded.len(), above.exchanges().count());
}

fn shovels_out_of_the_set_and_into_it_are_found(node: &PrivateNode) {
    let (settings, topology) = vhost(node, "moved");
    let shovel = |name: &str, value: &Json| {
        let mut value = value.clone();
        value["src-uri"] = "amqp:///moved".into();
        value["dest-uri"] = "amqp://".into();
        parameter(node, &format!("shovel/moved/{name}"), &value);
    };
    shovel("outbox", &json!({"src-queue": "outbox", "dest-exchange": "delay"}));
    assert_eq!(found(&settings, &topology, FindingCode::SetDiffers), [""; 0]);
    shovel("drain", &json!({"src-queue": "delay.parked", "dest-queue": "archive"}));
    shovel("early", &json!({"src-queue": "outbox", "dest-exchange": "delay.dispatch"}));
    let said = found(&settings, &topology, FindingCode::SetDiffers);
    assert_eq!(said.len(), 2, "{said:#?}");
    for (finding, part) in said.iter().zip([
        "shovel `drain`: queue `delay.parked`: it takes messages away from their applications; ",
        "shovel `early`: exchange `delay.dispatch`: it lets in messages that did not come through the entry",
    ]) {
        assert!(
            finding.starts_with(part) && finding.contains("shovel early") == part.contains("early"),
            "{finding}"
        );
    }
}

#[test]
fn an_overflow_by_policy_loses_messages_and_is_found() {
    let settings = installed(100);
    let topology = topology(&settings);
    let vhost = &settings.broker.vhost;
    let node = shared_node();
    let policy = json!({"pattern": "level", "apply-to": "queues", "definition": {"overflow": "drop-head"}});
    http(&node, "PUT", &format!("policies/{vhost}/drop"), &policy);
    let levels = topology.queues().filter(|queue| queue.level.is_some()).count();
    assert_eq!(changed(&settings, &topology, "overflow").len(), levels);

    // A classic queue keeps to its limit at once, unlike a quorum queue.
    let limits = json!({"x-queue-type": "classic", "x-max-length": 1, "x-overflow": "reject-publish"});
    http(&node, "PUT", &format!("queues/{vhost}/full"), &json!({"durable": true, "arguments": limits}));
    let bound = json!({"routing_key": RoutingKey::binding_pattern(&app("full"))});
    http(&node, "POST", &format!("bindings/{vhost}/e/delay.dispatch/q/full"), &bound);
    let inbox = Inbox::open(&settings, "app");
    let router = settings.router().connect().unwrap();
    for key in [["full"; MANY].as_slice(), &["app"]].concat() {
        router.publish(Message::after(app(key), Delay::from_seconds(1).unwrap(), "x")).unwrap();
    }
    // Once the last one has come, the level holds none of the others. They have not arrived, either.
    assert!(inbox.next(PATIENCE).is_some());
    let level = || http(&node, "GET", &format!("queues/{vhost}/delay.level.00"), &Json::Null);
    eventually_seen("the level is empty again", level, |level| level["messages"] == 0);
    let mut session = Session::open(&settings.broker).unwrap();
    assert_eq!(session.counts("full").unwrap().unwrap().ready, 1);
    http(&node, "DELETE", &format!("policies/{vhost}/drop"), &Json::Null);
}
