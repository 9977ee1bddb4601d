//! A broker without statistics, as in the plain Docker image: unknown counts are not zero.

use delayline_admin::{self as admin, FindingCode, UnstickOptions};
use delayline_amqp::Session;
use delayline_core::{
    Message,
    codec::{Delay, RoutingKey},
    topology::{Binding, Endpoint, ExchangeKind, Queue},
};
use delayline_node::{NodeOptions, PrivateNode};
use delayline_watch::picture::{Collector, Sources};
use predicates::{prelude::PredicateBooleanExt, str::contains};

use crate::{
    common::{NO_SIGNAL, app, eventually_seen, install, refusing, status, topology},
    json, on,
};

/// One full queue holds up this many messages.
const STUCK: u64 = 30;

#[test]
fn unknown_counts_are_not_zero() {
    let config = "management_agent.disable_metrics_collector = true\n".to_owned();
    let node = PrivateNode::start(NodeOptions { config, ..NodeOptions::default() }).unwrap();
    let settings = node.settings().set("unit_ms", "1000").build().unwrap();
    install(&settings);
    refusing(&settings, "full");
    let topology = topology(&settings);
    let mut session = Session::open(&settings.broker).unwrap();
    session.declare_queue(&Queue::new("read")).unwrap();
    let (source, destination) = (topology.names().dispatch(), Endpoint::Queue("read".into()));
    session.bind(&Binding { source, destination, key: RoutingKey::binding_pattern(&app("read")) }).unwrap();
    admin::add_gateway(&settings, &topology, "orders", ExchangeKind::Topic, false).unwrap().unwrap();
    let _reader = session.consume("read", 1).unwrap();
    let _daemon = session.consume("delay.gateway.orders", 1).unwrap();
    let router = settings.router().connect().unwrap();
    for _ in 0..STUCK {
        router.publish(Message::after(app("full"), Delay::from_seconds(1).unwrap(), "x")).unwrap();
    }

    let seen = eventually_seen("they are counted", || status(&settings), |it| it.handing_on == Some(STUCK));
    assert_eq!((seen.open, seen.rates.entry_per_s), (Some(STUCK), None), "{seen:?}");
    assert_eq!(seen.verdict.headline, "No message is known to be stuck yet.");
    assert!(seen.unchecked.iter().any(|it| it.contains("keeps no statistics")), "{seen:?}");
    on(&settings)
        .args(["unstick", "--dry-run"])
        .assert()
        .code(1)
        .stdout(contains(format!("{STUCK} dead letters")).and(contains("no message is stuck").not()));
    let mut collector = Collector::new(settings.clone(), Sources::default());
    let watched =
        eventually_seen("that they are stuck", || collector.look().clone(), |it| it.stuck == Some(STUCK));
    assert!(watched.verdict.headline.starts_with("Level 00 is stuck"), "{:?}", watched.verdict);
    assert_eq!(watched.gateways.as_ref().unwrap()[0].channels, None, "{:?}", watched.gateways);

    let doctor = admin::doctor(&settings, &topology, &admin::DoctorOptions::default()).unwrap();
    let codes: Vec<_> = doctor.findings.iter().map(|finding| finding.code).collect();
    assert!(codes.contains(&FindingCode::StuckDeadLetters), "{doctor:#?}");
    assert!(codes.contains(&FindingCode::StatisticsOff), "{doctor:#?}");
    assert!(!codes.contains(&FindingCode::NobodyConsumes), "{doctor:#?}");
    let dry = UnstickOptions { dry_run: true, ..UnstickOptions::default() };
    let report = admin::unstick(&settings, &topology, &dry).unwrap();
    assert_eq!((report.touched[0].dead_letters, &report.uncounted[..]), (Some(STUCK), &[][..]), "{report:?}");

    // Consumers are asked for over AMQP.
    let list = admin::list_apps(&settings, &topology).unwrap();
    let consumers: Vec<_> = list.apps.iter().map(|it| (it.app.as_deref(), it.consumers)).collect();
    assert!(consumers.contains(&(Some("read"), Some(1))), "{consumers:?}");
    let gateways = admin::list_gateways(&settings, &topology).unwrap().gateways;
    assert_eq!((gateways[0].channels, &gateways[0].unchecked[..]), (Some(1), &[][..]), "{gateways:?}");
    let unserved = |it: &String| it.contains("no daemon");
    assert!(!gateways[0].problems.iter().any(unserved), "{gateways:?}");
    let shown = json(on(&settings).args(["status", "--json"]));
    assert!(shown["rates"]["entry_per_s"].is_null() && shown["gateways"][0]["channels"].is_null(), "{shown}");

    let refusal = admin::uninstall(&settings, &topology, false, &NO_SIGNAL).unwrap().unwrap_err();
    let level = refusal.waiting.iter().find(|waiting| waiting.queue == "delay.level.00");
    assert_eq!(level.and_then(|waiting| waiting.messages), Some(STUCK), "{refusal:?}");
}
