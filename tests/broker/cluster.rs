//! A set on three nodes.

use std::collections::{BTreeMap, BTreeSet};

use delayline_admin::{self as admin, DoctorOptions, FindingCode};
use delayline_broker::{Difference, ManagementApi};
use delayline_core::{Message, codec::Delay, message::Properties};
use delayline_node::{ClusterOptions, NodeOptions, PrivateCluster};

use crate::broker::canary::Running;
use crate::common::{Inbox, PATIENCE, app, eventually, eventually_seen, install, shared::SOON, topology};

#[test]
fn replicas_and_leaders_are_spread_and_a_lost_node_is_noticed_and_survived() {
    let node = NodeOptions { rabbit: vec![SOON.into()], ..NodeOptions::default() };
    let mut cluster = PrivateCluster::start(&ClusterOptions { node, ..ClusterOptions::default() }).unwrap();
    let settings = cluster.settings(0).set("unit_ms", "100").set("publish_timeout", "10m").build().unwrap();
    install(&settings);
    let topology = topology(&settings);
    let api = ManagementApi::new(settings.management.as_ref().unwrap()).unwrap();
    let queues = || api.queues("/").unwrap();
    eventually("every queue has three replicas that run", || queues().iter().all(|q| q.online.len() == 3));
    let mut leaders: BTreeMap<String, usize> = BTreeMap::new();
    for queue in queues() {
        *leaders.entry(queue.leader).or_default() += 1;
    }
    println!("leaders: {leaders:?}");
    assert_eq!(leaders.len(), 3);
    assert!(leaders.values().all(|&count| count >= 5), "{leaders:?}");
    let findings = || admin::verify(&settings, &topology).unwrap().findings;
    eventually_seen("every replica and leader is there", findings, Vec::is_empty);

    let message = |id: usize, delay: u64| {
        let properties = Properties { message_id: Some(id.to_string()), ..Properties::default() };
        Message::after(app("app"), Delay::from_seconds(delay).unwrap(), "x").with_properties(properties)
    };
    let inbox = Inbox::open(&cluster.settings(1).set("unit_ms", "100").build().unwrap(), "app");
    let router = settings.router().connect().unwrap();
    for id in 0..50 {
        router.publish(message(id, 60)).unwrap();
    }
    let canary = Running::start(&settings);
    eventually("a canary's messages come back", || canary.watched.figures().total(|it| it.arrived) > 10);
    // The router, the administration and the canary use this node.
    cluster.node(0).kill();
    for id in 50..100 {
        router.publish(message(id, 10)).unwrap();
    }
    let differences = || admin::verify(&settings, &topology).unwrap().differences;
    eventually_seen("the missing replicas are found", differences, |found| {
        let offline = |it: &&Difference| matches!(it, Difference::ReplicasOffline { stalled: false, .. });
        found.iter().filter(offline).count() == topology.queues().count()
    });
    let codes = || -> BTreeSet<_> {
        let report = admin::doctor(&settings, &topology, &DoctorOptions::default()).unwrap();
        report.findings.iter().map(|finding| finding.code).collect()
    };
    eventually_seen("doctor finds them, too", codes, |codes| codes.contains(&FindingCode::ReplicaOffline));
    // Some messages may come twice, and the copies must not hide missing messages.
    let mut arrived = BTreeSet::new();
    while arrived.len() < 100 {
        let arrival = inbox.next(PATIENCE).unwrap_or_else(|| panic!("only {} of 100 came", arrived.len()));
        assert!(arrival.late_ms() >= 0, "{arrival:?}");
        arrived.insert(arrival.id);
    }

    // The canary's queue takes messages while the node is down.
    let arrived = || canary.watched.figures().total(|it| it.arrived);
    let before = arrived();
    eventually("the canary's messages come back without the node", || arrived() > before + 10);

    cluster.node(0).restart().unwrap();
    eventually_seen("no replica is missing", differences, Vec::is_empty);
    // The application's inbox has a consumer and is empty, so there is no other finding.
    eventually_seen("doctor reports nothing either", codes, BTreeSet::is_empty);

    // A queue that has lost a replica for good.
    let name = cluster.nodes()[2].name().to_owned();
    let shrunk = cluster.nodes()[0].queues_tool(&["delete_member", "delay.level.05", &name]).unwrap();
    assert!(shrunk.status.success(), "{}", String::from_utf8_lossy(&shrunk.stderr));
    eventually_seen(
        "the queue with too few replicas is found",
        differences,
        |found| matches!(&found[..], [Difference::MissingReplicas { queue, wanted: 3, .. }] if queue == "delay.level.05"),
    );
    eventually_seen("doctor finds it, too", codes, |codes| *codes == [FindingCode::TooFewReplicas].into());
}
