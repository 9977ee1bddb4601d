//! Each finding of `doctor`, provoked.

mod rights;

use std::collections::BTreeSet;

use delayline_admin::{
    self as admin, DoctorOptions, DoctorReport, Finding, FindingCode, management::ManagementApi,
};
use delayline_amqp::Session;
use delayline_core::{
    Message,
    codec::{Delay, RoutingKey},
    topology::{Binding, Endpoint, Exchange, ExchangeKind, Names, Queue},
};
use delayline_node::{NodeOptions, PrivateNode};
use delayline_settings::Settings;
use serde_json::{Value as Json, json};

use crate::common::{
    Inbox, PATIENCE, app, eventually, eventually_seen, http, install, new_set, not_tested::not_tested, raw,
    shared_node, topology, vhost,
};

fn look_with(settings: &Settings, options: &DoctorOptions) -> DoctorReport {
    admin::doctor(settings, &topology(settings), options).unwrap()
}

fn look(settings: &Settings) -> DoctorReport {
    look_with(settings, &DoctorOptions::default())
}

fn codes(report: &DoctorReport) -> BTreeSet<FindingCode> {
    report.findings.iter().map(|finding| finding.code).collect()
}

/// The findings of one code, once there are some.
fn found(settings: &Settings, code: FindingCode) -> Vec<Finding> {
    let report = eventually_seen(code.as_str(), || look(settings), |report| codes(report).contains(&code));
    report.findings.into_iter().filter(|finding| finding.code == code).collect()
}

/// Looks until all of these are found; returns the findings of each.
fn found_all<const N: usize>(settings: &Settings, wanted: [FindingCode; N]) -> [Vec<Finding>; N] {
    let all = |report: &DoctorReport| wanted.iter().all(|code| codes(report).contains(code));
    let report = eventually_seen("all are found", || look(settings), all);
    wanted.map(|code| report.findings.iter().filter(|finding| finding.code == code).cloned().collect())
}

fn queue(session: &mut Session, name: &str, arguments: Json) {
    let Json::Object(arguments) = arguments else { panic!("arguments are an object") };
    let arguments = arguments.into_iter().map(|(name, value)| (name, serde_json::from_value(value).unwrap()));
    session.declare_queue(&Queue::new(name).with_arguments(arguments)).unwrap();
}

fn bind(session: &mut Session, source: &str, destination: Endpoint, key: &str) {
    session.bind(&Binding { source: source.into(), destination, key: key.into() }).unwrap();
}

/// Binds what receives an application's messages.
fn receives(session: &mut Session, key: &str, destination: Endpoint) {
    bind(session, "delay.dispatch", destination, &RoutingKey::binding_pattern(&app(key)));
}

fn send(settings: &Settings, key: &str, count: usize) {
    let router = settings.router().connect().unwrap();
    for _ in 0..count {
        router.publish(Message::after(app(key), Delay::from_seconds(1).unwrap(), "x")).unwrap();
    }
}

fn put(settings: &Settings, what: &str, name: &str, body: Json) {
    http(&shared_node(), "PUT", &format!("{what}/{}/{name}", settings.broker.vhost), &body);
}

#[test]
fn a_clean_set_has_no_finding() {
    // On a node that no other test has made anything on.
    let node = PrivateNode::start(NodeOptions::default()).unwrap();
    let settings = node.settings().set("unit_ms", "100").build().unwrap();
    let report = look(&settings);
    assert_eq!(codes(&report), [FindingCode::SetDiffers].into(), "{report:#?}");
    install(&settings);
    let inbox = Inbox::open(&settings, "app");
    send(&settings, "app", 20);
    assert_eq!(inbox.collect(20, PATIENCE).len(), 20);
    for options in [DoctorOptions::default(), DoctorOptions { sample: 0, ..DoctorOptions::default() }] {
        let report = look_with(&settings, &options);
        assert!(report.findings.is_empty() && report.unchecked.is_empty(), "{report:#?}");
    }
    // But with less traffic it would be worth nothing to say this.
    let busy = DoctorOptions { busy_rate: 0.01, ..DoctorOptions::default() };
    let look = || {
        send(&settings, "app", 5);
        look_with(&settings, &busy)
    };
    let report =
        eventually_seen("the rate shows", look, |r| codes(r).contains(&FindingCode::DeadLetterPrefetch));
    assert!(report.findings[0].advice.contains("{dead_letter_worker_consumer_prefetch, 512}"), "{report:#?}");
}

/// The command in the document that asks the broker what holds dead letters.
fn who_holds() -> &'static str {
    let document = include_str!("../../docs/doctor.md");
    let (_, rest) = document.split_once("rabbitmqctl eval '").expect("the command is in the document");
    rest.split_once('\'').unwrap().0
}

#[test]
fn a_full_queue_that_refuses_is_named_with_what_it_holds_up() {
    // Whole seconds: what waited longer in a busy router than it is delayed would be due
    // at once, and the full queue would refuse it to its publisher's face.
    let settings = new_set(1_000);
    let mut session = Session::open(&settings.broker).unwrap();
    let limits = json!({"x-queue-type": "quorum", "x-max-length": 3, "x-overflow": "reject-publish"});
    queue(&mut session, "small", limits.clone());
    receives(&mut session, "greedy", Endpoint::Queue("small".into()));
    // Behind a landing queue the same is nobody else's trouble.
    queue(&mut session, "also-small", limits);
    let landing = Names::new(settings.topology.set.clone()).landing(&app("guarded"));
    queue(
        &mut session,
        &landing,
        json!({
            "x-queue-type": "quorum", "x-message-ttl": 0, "x-overflow": "reject-publish",
            "x-dead-letter-strategy": "at-least-once",
            "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "also-small",
        }),
    );
    receives(&mut session, "guarded", Endpoint::Queue(landing.clone()));
    assert_eq!(
        found(&settings, FindingCode::TargetCanRefuse).iter().map(|f| &f.subject).collect::<Vec<_>>(),
        ["queue `small`"],
        "what a landing queue guards is no finding"
    );

    send(&settings, "guarded", 60);
    send(&settings, "greedy", 60);
    let of = |report: &DoctorReport, code: FindingCode, queue: &str| {
        let subject = format!("queue `{queue}`");
        report.findings.iter().find(|finding| finding.code == code && finding.subject == subject).cloned()
    };
    let stuck = |report: &DoctorReport, queue: &str| of(report, FindingCode::StuckDeadLetters, queue);
    let report = eventually_seen(
        "what is stuck is found",
        || look(&settings),
        |report| {
            let full = of(report, FindingCode::TargetRefuses, "small").is_some();
            full && stuck(report, "delay.level.00").is_some() && stuck(report, &landing).is_some()
        },
    );
    let level = stuck(&report, "delay.level.00").unwrap();
    assert!(level.apps == ["greedy"] && level.what.contains("queue `small` is full"), "{level:#?}");
    let refuses = of(&report, FindingCode::TargetRefuses, "small").unwrap();
    assert!(refuses.what.contains("of 3 messages, by its arguments"), "{refuses:#?}");
    assert!(of(&report, FindingCode::TargetRefuses, "also-small").is_none(), "{report:#?}");
    let behind = stuck(&report, &landing).unwrap();
    assert!(behind.apps == ["guarded"] && behind.what.contains("only this application"), "{behind:#?}");

    // What the document says to ask the broker.
    let text = shared_node().tell(&["eval", who_holds()]).unwrap().replace(char::is_whitespace, "");
    let key = RoutingKey::new(Delay::from_seconds(1).unwrap(), app("greedy")).encode();
    assert!(text.contains(&format!("{{<<\"delay.level.00\">>,[<<\"{key}\">>],[<<\"small\">>]}}")), "{text}");

    // And what to do about it helps.
    receives_no_more(&mut session, "greedy", "small");
    session.delete_queue("small").unwrap();
    let others = |report: &DoctorReport| {
        !report
            .findings
            .iter()
            .any(|finding| finding.subject == "queue `small`" || finding.code == FindingCode::TargetRefuses)
    };
    eventually_seen("the queue is no finding any more", || look(&settings), others);
}

fn receives_no_more(session: &mut Session, key: &str, queue: &str) {
    let key = RoutingKey::binding_pattern(&app(key));
    let destination = Endpoint::Queue(queue.into());
    session.unbind(&Binding { source: "delay.dispatch".into(), destination, key }).unwrap();
}

#[test]
fn targets_and_bindings_that_would_hurt_are_found() {
    let settings = new_set(1_000);
    let mut session = Session::open(&settings.broker).unwrap();
    let quorum = || json!({"x-queue-type": "quorum"});
    queue(&mut session, "limited", quorum());
    receives(&mut session, "limited", Endpoint::Queue("limited".into()));
    put(
        &settings,
        "policies",
        "brakes",
        json!({
            "pattern": "^limited$", "apply-to": "queues",
            "definition": {"max-length": 1_000, "overflow": "reject-publish"},
        }),
    );
    queue(&mut session, "old", json!({"x-queue-type": "classic"}));
    receives(&mut session, "old", Endpoint::Queue("old".into()));
    put(&settings, "queues", "fleeting", json!({"durable": true, "auto_delete": true, "arguments": {}}));
    receives(&mut session, "fleeting", Endpoint::Queue("fleeting".into()));
    queue(&mut session, "asleep", quorum());
    receives(&mut session, "asleep", Endpoint::Queue("asleep".into()));
    // An exchange of the application's own that leads on, and one that does not.
    let exchange = |session: &mut Session, name: &str| {
        let exchange = Exchange::new(name, ExchangeKind::Topic);
        session.declare_exchange(&exchange).unwrap();
    };
    exchange(&mut session, "events");
    receives(&mut session, "events", Endpoint::Exchange("events".into()));
    queue(&mut session, "behind-events", quorum());
    bind(&mut session, "events", Endpoint::Queue("behind-events".into()), "delay.#");
    exchange(&mut session, "void");
    receives(&mut session, "lost", Endpoint::Exchange("void".into()));
    // And one that leads back to the beginning.
    exchange(&mut session, "again");
    receives(&mut session, "round", Endpoint::Exchange("again".into()));
    bind(&mut session, "again", Endpoint::Exchange("delay".into()), "#");
    // Two patterns: one that catches an application that is bound, and one that does not.
    queue(&mut session, "orders", quorum());
    bind(&mut session, "delay.dispatch", Endpoint::Queue("orders".into()), "#.old");
    bind(&mut session, "delay.dispatch", Endpoint::Queue("orders".into()), "delay.#.yet-to-come");
    send(&settings, "asleep", 2);

    use FindingCode::*;
    let [can_refuse, classic, transient, nobody, dead_end, round, collision, wildcard] = found_all(
        &settings,
        [
            TargetCanRefuse,
            TargetClassic,
            TargetTransient,
            NobodyConsumes,
            TargetDeadEnd,
            TargetLoop,
            BindingCollision,
            WildcardBinding,
        ],
    );
    let only = |findings: &[Finding], subject: &str, text: &str, apps: &[&str]| {
        let fits = findings.iter().any(|finding| {
            finding.subject.contains(subject) && finding.what.contains(text) && finding.apps == apps
        });
        assert!(fits, "{subject}: {findings:#?}");
    };
    only(&can_refuse, "`limited`", "0 of 1000 messages, by policy `brakes`", &["limited"]);
    only(&classic, "`old`", "classic", &["old"]);
    only(&transient, "`fleeting`", "its last consumer", &["fleeting"]);
    only(&nobody, "`asleep`", "2 messages wait", &["asleep"]);
    only(&dead_end, "exchange `void`", "`lost` leads to it", &["lost"]);
    only(&round, "exchange `delay`", "messages that are due for `round` come back there", &["round"]);
    only(&collision, "key `#.old`", "it also receives the messages of `old`", &["old"]);
    only(&wildcard, "yet-to-come", "can catch", &[]);
    assert_eq!((can_refuse.len(), dead_end.len(), collision.len(), wildcard.len()), (1, 1, 1, 1));

    // It is as it says: what goes to such an exchange stays between the queues.
    send(&settings, "lost", 5);
    let stuck = found(&settings, StuckDeadLetters);
    assert_eq!(
        (stuck[0].subject.as_str(), stuck[0].apps.as_slice()),
        ("queue `delay.level.00`", &["lost".to_owned()][..])
    );
    assert!(stuck[0].what.contains("5 dead letters go nowhere"), "{stuck:#?}");
}

#[test]
fn what_is_unroutable_is_found_with_whom_it_is_for() {
    let settings = new_set(100);
    let api = ManagementApi::new(settings.management.as_ref().unwrap()).unwrap();
    let history = || {
        let queue = api.queue_history(&settings.broker.vhost, "delay.unroutable", 600).unwrap();
        queue.map(|queue| queue.history()).unwrap_or_default()
    };
    eventually_seen("the broker keeps count", history, |history| !history.is_empty());
    send(&settings, "nobody", 3);
    http(
        &shared_node(),
        "POST",
        &format!("exchanges/{}/delay/publish", settings.broker.vhost),
        &json!({"properties": {}, "routing_key": "delay.1111.oops", "payload": "x", "payload_encoding": "string"}),
    );
    use FindingCode::*;
    // At once, although the management API does not show them for some seconds.
    let mut session = Session::open(&settings.broker).unwrap();
    eventually("it is there", || session.queue_depth("delay.unroutable").unwrap().unwrap().ready > 0);
    assert!(codes(&look(&settings)).contains(&MalformedMessages));
    let [nobody, malformed, growing] =
        found_all(&settings, [NobodyBound, MalformedMessages, UnroutableGrowing]);
    let settled = || found(&settings, NobodyBound);
    eventually_seen("all three are there", settled, |nobody| {
        nobody[0].what.contains("3 messages for it are unroutable")
    });
    assert!(nobody[0].subject == "app key `nobody`" && nobody[0].apps == ["nobody"], "{nobody:#?}");
    assert!(malformed[0].what.contains("1 message has a malformed routing key"), "{malformed:#?}");
    assert!(growing[0].what.contains("it grew from 0 to"), "{growing:#?}");

    // Somebody is bound now; but what was kept before must be sent on.
    queue(&mut session, "late", json!({"x-queue-type": "quorum"}));
    receives(&mut session, "nobody", Endpoint::Queue("late".into()));
    let report =
        eventually_seen("the binding shows", || look(&settings), |r| !codes(r).contains(&NobodyBound));
    let waiting = report.findings.iter().find(|finding| finding.code == UnroutableWaiting).unwrap();
    assert!(waiting.what.contains("3 messages are kept for applications that are bound now"), "{waiting:#?}");

    // Without a sample there is the count.
    let cheap = DoctorOptions { sample: 0, ..DoctorOptions::default() };
    let cheap = eventually_seen(
        "all are counted",
        || look_with(&settings, &cheap),
        |report| report.findings.iter().any(|finding| finding.what.starts_with("4 messages are kept")),
    );
    assert!(codes(&cheap).contains(&UnroutableWaiting));
    assert!(!codes(&cheap).contains(&MalformedMessages));
}

#[test]
fn a_damaged_set_and_a_policy_on_it_are_found() {
    let settings = new_set(1_000);
    let mut session = Session::open(&settings.broker).unwrap();
    let topology = topology(&settings);
    session.unbind(topology.bindings().nth(200).unwrap()).unwrap();
    put(
        &settings,
        "policies",
        "all",
        json!({"pattern": "level.1", "apply-to": "queues", "definition": {"expires": 3_600_000}}),
    );
    let [differs, policy] = found_all(&settings, [FindingCode::SetDiffers, FindingCode::PolicyOnSet]);
    assert_eq!((differs.len(), differs[0].advice.as_str()), (1, "delayline install"));
    assert!(policy[0].what.contains("policy `all` sets `expires`"), "{policy:#?}");
    install(&settings);
    assert!(!codes(&look(&settings)).contains(&FindingCode::SetDiffers));
}

#[test]
fn a_broker_that_is_short_of_something_or_out_of_date_is_found() {
    let version = {
        let settings = vhost().build().unwrap();
        let api = ManagementApi::new(settings.management.as_ref().unwrap()).unwrap();
        api.overview().unwrap().rabbitmq_version
    };
    // Only versions that know of deprecation know this line; 4.3 needs it.
    let old = version.starts_with("3.1") && !version.starts_with("3.13");
    let config = if old { "" } else { "deprecated_features.permit.transient_nonexcl_queues = true\n" };
    let node = PrivateNode::start(NodeOptions {
        feature_flags: Some(vec!["quorum_queue".into()]),
        config: config.into(),
        ..NodeOptions::default()
    })
    .unwrap();
    let settings = node.settings().build().unwrap();
    let api = ManagementApi::new(settings.management.as_ref().unwrap()).unwrap();
    http(
        &node,
        "PUT",
        "queues/%2F/transient",
        &json!({"durable": false, "arguments": {"x-queue-type": "classic"}}),
    );
    let alarm = |call: &str| {
        node.tell(&["eval", &format!("rabbit_alarm:{call}.")]).unwrap();
    };
    alarm("set_alarm({{resource_limit, disk, node()}, []})");
    let report = eventually_seen(
        "the alarm shows",
        || look(&settings),
        |report| {
            codes(report).contains(&FindingCode::BrokerAlarm)
                && (old || codes(report).contains(&FindingCode::DeprecatedFeature))
        },
    );
    let of = |code: FindingCode| report.findings.iter().filter(move |finding| finding.code == code);
    assert!(of(FindingCode::BrokerAlarm).all(|finding| finding.what.contains("disk space")), "{report:#?}");
    if !old {
        let deprecated = of(FindingCode::DeprecatedFeature).next().unwrap();
        assert!(deprecated.subject.contains("transient_nonexcl_queues"), "{deprecated:#?}");
    }
    let off: BTreeSet<_> = api
        .feature_flags()
        .unwrap()
        .into_iter()
        .filter(|flag| flag.state == "disabled" && flag.stability != "experimental")
        .map(|flag| format!("`{}`", flag.name))
        .collect();
    let named = |name: &String| {
        let codes = [FindingCode::FeatureFlagOff, FindingCode::BrokerUnsuitable];
        codes.iter().any(|&code| of(code).any(|f| f.subject.contains(name) || f.what.contains(name)))
    };
    if off.is_empty() {
        not_tested("feature flags that are off: this broker has none");
    }
    assert!(off.iter().all(named), "{off:?}: {report:#?}");
    if old {
        assert_eq!(of(FindingCode::BrokerUnsuitable).count(), 1, "{report:#?}");
        assert!(of(FindingCode::FeatureFlagOff).count() >= 3, "{report:#?}");
        // What it says to do helps.
        node.tell(&["enable_feature_flag", "all"]).unwrap();
    }
    alarm("clear_alarm({resource_limit, disk, node()})");
    http(&node, "DELETE", "queues/%2F/transient", &json!({}));
    if !old || off.is_empty() {
        node.tell(&["enable_feature_flag", "all"]).unwrap();
    }
    install(&settings);
    eventually_seen("all is well", || look(&settings), |report| report.findings.is_empty());
}

#[test]
fn messages_that_come_back_to_their_consumer_over_and_over_are_found() {
    let settings = new_set(1);
    let mut session = Session::open(&settings.broker).unwrap();
    // Of a kind that never stops handing them out.
    queue(&mut session, "loop", json!({"x-queue-type": "classic"}));
    receives(&mut session, "billing", Endpoint::Queue("loop".into()));
    raw::publish(&settings, (0..50).map(|n| raw::message("", "loop", n, &json!({}))));
    let path = format!("queues/{}/loop/get", settings.broker.vhost);
    let requeue = json!({"count": 50, "ackmode": "ack_requeue_true", "encoding": "auto"});
    let looping = || {
        for _ in 0..5 {
            http(&shared_node(), "POST", &path, &requeue);
        }
        look(&settings)
    };
    let is_loop = |finding: &&Finding| finding.code == FindingCode::HotLoop;
    let report =
        eventually_seen("it is found", looping, |report| report.findings.iter().any(|it| is_loop(&it)));
    let finding = report.findings.iter().find(is_loop).unwrap();
    assert_eq!((finding.subject.as_str(), &finding.apps[..]), ("queue `loop`", &["billing".to_owned()][..]));
    assert!(finding.what.contains("0 are acknowledged"), "{finding:#?}");
    // And by every look, although brokers count only every 5 s.
    for _ in 0..6 {
        std::thread::sleep(std::time::Duration::from_secs(1));
        let report = looping();
        assert!(codes(&report).contains(&FindingCode::HotLoop), "{report:#?}");
    }
    eventually_seen(
        "it is over",
        || look(&settings),
        |report| !codes(report).contains(&FindingCode::HotLoop),
    );
}
