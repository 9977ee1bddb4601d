//! An upgrade of the broker in place.

use std::{collections::BTreeSet, env, path::Path};

use delayline_admin::{self as admin, AppQueue, AppSpec, AppUser, Applied, Delivery};
use delayline_amqp::{Next, Session, broker::Secret};
use delayline_client::recall::{Answer, Recaller};
use delayline_core::{
    Message,
    codec::Delay,
    topology::{RecallSettings, Rejected, Topology},
};
use delayline_node::Installation;

use crate::common::Counting;
use crate::common::{PATIENCE, app, eventually, install, mortal_node, not_tested::not_tested};

/// RabbitMQ skips no version before 4.0, and 3.13 is in no release of Debian.
const FROM: &str = "4.0";
const TO: &str = "4.3";

#[test]
fn messages_recalls_and_rights_survive_an_upgrade_in_place() {
    const MESSAGES: u64 = 40;
    let root = env::var_os("RABBITMQ_ROOT").unwrap_or_default();
    let next = Installation::in_root(Path::new(&root).with_file_name(TO));
    let Some(next) = next.filter(|_| Path::new(&root).ends_with(FROM)) else {
        return not_tested(&format!("an upgrade in place: only from {FROM} to {TO}"));
    };
    let mut node = mortal_node();
    let root = node.settings().build().unwrap();
    install(&root);
    let topology = Topology::new(root.topology.clone());
    let queue = AppQueue { rejected: Some(Rejected::Retried), ..AppQueue::new("billing") };
    let user = AppUser { name: "svc".into(), password: Some(Secret::new("svc")), ..AppUser::default() };
    let recall = Some(RecallSettings::default());
    let spec = AppSpec { user: Some(user), recall, ..AppSpec::new(app("billing"), Delivery::Direct(queue)) };
    let add = || admin::add_app(&root, &topology, &spec, false, false).unwrap().outcome;
    assert_eq!(add(), Applied::Installed);

    let url = format!("amqp://svc:svc@{}", node.authority());
    let settings = node.settings().set("url", url).build().unwrap();
    let router = settings.router().connect().unwrap();
    let recaller = Recaller::connect(settings.target()).unwrap();
    for number in 0..MESSAGES {
        let (id, delay) = (format!("m{number}"), Delay::from_seconds(60 + number).unwrap());
        let message = Message::after(app("billing"), delay, id.clone()).with_id(id.parse().unwrap());
        let receipt = router.publish(message).unwrap();
        if number % 2 == 0 {
            assert_eq!(recaller.recall(&receipt.handle.unwrap()).unwrap(), Answer::InTime);
        }
    }
    drop((router, recaller));
    node.write_down_queues().unwrap();

    node.stop().unwrap();
    node.upgrade(next).unwrap();
    node.tell(&["enable_feature_flag", "all"]).unwrap();
    eventually("the set is complete", || {
        admin::verify(&root, &topology).is_ok_and(|report| report.findings.is_empty())
    });
    assert_eq!(add(), Applied::Unchanged);
    let mut session = Session::open(&settings.broker).unwrap();
    let consumer = session.consume("billing", 10).unwrap();
    let mut arrived = BTreeSet::new();
    while arrived.len() < MESSAGES as usize / 2 {
        match consumer.next(PATIENCE) {
            Next::Delivery(delivery) => {
                arrived.insert(String::from_utf8(delivery.body.clone()).unwrap());
                consumer.ack(delivery).unwrap();
            }
            other => panic!("{other:?} after {arrived:?}"),
        }
    }
    let odd = (0..MESSAGES).filter(|number| number % 2 == 1);
    assert_eq!(arrived, odd.map(|number| format!("m{number}")).collect());
    let mut session = Session::open(&root.broker).unwrap();
    let recalled = topology.names().recalled(&app("billing"));
    eventually("the others are recalled", || {
        session.counts(&recalled).unwrap().is_some_and(|depth| u64::from(depth.ready) == MESSAGES / 2)
    });
}
