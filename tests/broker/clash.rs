//! Quorum queues of two vhosts that have one internal name.

use delayline_admin::{self as admin, AppQueue, AppSpec, Delivery, FindingCode};
use delayline_amqp::Session;
use delayline_core::topology::Queue;
use delayline_settings::Settings;

use crate::common::{NO_SIGNAL, app, install, named_vhost, shared_node, topology};

/// A new vhost of the shared node.
fn in_vhost(name: &str) -> Settings {
    named_vhost(&shared_node(), name).build().unwrap()
}

fn declare(settings: &Settings, queue: &str) {
    let queue = Queue::new(queue).with_arguments([("x-queue-type".to_owned(), "quorum".into())]);
    Session::open(&settings.broker).unwrap().declare_queue(&queue).unwrap();
}

#[test]
fn a_taken_name_is_named_and_no_restart_is_advised() {
    let (short, long) = (in_vhost("clash"), in_vhost("clash_eu"));
    declare(&short, "eu_billing");
    declare(&short, "eu_delay.level.05");
    let topology = topology(&long);
    let refused = admin::install(&long, &topology, false, || {}).unwrap_err().to_string();
    let words = "queue `delay.level.05` in vhost `clash_eu` has the same internal name as queue \
                 `eu_delay.level.05` in vhost `clash`";
    assert!(refused.contains(words) && !refused.contains("overloaded"), "{refused}");
    let doctor = admin::doctor(&long, &topology, &admin::DoctorOptions::default()).unwrap();
    let clash = doctor.findings.iter().find(|it| it.code == FindingCode::NameClash);
    assert!(clash.is_some_and(|it| it.subject == "queue `delay.level.05`"), "{doctor:#?}");
    assert!(!doctor.findings.iter().any(|it| it.code == FindingCode::DeadLetteringEnded), "{doctor:#?}");

    Session::open(&short.broker).unwrap().delete_queue("eu_delay.level.05").unwrap();
    install(&long);
    let spec = AppSpec::new(app("billing"), Delivery::Direct(AppQueue::new("billing")));
    let refused = admin::add_app(&long, &topology, &spec, false, false).unwrap_err().to_string();
    assert!(refused.contains("queue `eu_billing` in vhost `clash`"), "{refused}");
    admin::uninstall(&long, &topology, true, &NO_SIGNAL).unwrap().unwrap();
}
