//! `install` rejects a broker that cannot carry a set before it changes anything.

use delayline_admin::{self as admin, Applied};
use delayline_broker::{Difference, ManagementApi};
use delayline_node::{NodeOptions, PrivateNode};

use crate::common::{not_tested::not_tested, topology};

#[test]
fn a_feature_flag_that_is_off_is_named() {
    let options = NodeOptions { feature_flags: Some(vec!["quorum_queue".into()]), ..NodeOptions::default() };
    let node = PrivateNode::start(options).unwrap();
    let settings = node.settings().build().unwrap();
    let api = ManagementApi::new(settings.management.as_ref().unwrap()).unwrap();
    let can_be_off = api
        .feature_flags()
        .unwrap()
        .iter()
        .any(|flag| flag.name == "stream_queue" && flag.state == "disabled");
    let topology = topology(&settings);
    let report = admin::install(&settings, &topology, false, || {}).unwrap();
    let verified = admin::verify(&settings, &topology).unwrap();
    if !can_be_off {
        // Newer brokers always have this feature flag.
        assert_eq!(
            (report.outcome, report.unsuitable, verified.findings),
            (Applied::Installed, vec![], vec![])
        );
        not_tested("a feature flag that is off: this broker always has stream_queue");
        return;
    }
    assert_eq!(report.outcome, Applied::Unsuitable);
    let text = report.unsuitable[0].to_string();
    assert!(text.contains("rabbitmqctl enable_feature_flag stream_queue"), "{text}");
    assert!(
        api.queues("/").unwrap().is_empty() && !api.exchanges("/").unwrap().iter().any(|x| x.name == "delay")
    );
    assert!(verified.differences.iter().any(|it| matches!(it, Difference::Unsuitable { .. })));

    // The advice helps.
    node.tell(&["enable_feature_flag", "stream_queue"]).unwrap();
    assert_eq!(admin::install(&settings, &topology, false, || {}).unwrap().outcome, Applied::Installed);
    assert_eq!(admin::verify(&settings, &topology).unwrap().findings, []);
}
