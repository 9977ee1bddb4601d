//! Provokes each finding of `doctor`.

mod rights;

use std::{
    collections::BTreeSet,
    io::{BufRead, BufReader},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use delayline_admin::{self as admin, DoctorOptions, DoctorReport, Finding, FindingCode};
use delayline_amqp::Session;
use delayline_broker::ManagementApi;
use delayline_core::{
    Message,
    codec::{Delay, RoutingKey},
    topology::{Binding, Endpoint, Exchange, ExchangeKind, Names, Queue},
};
use delayline_node::{NodeOptions, PrivateNode};
use delayline_settings::Settings;
use serde_json::{Value as Json, json};

use crate::common::Counting;
use crate::common::{
    self, Inbox, PATIENCE, app, eventually, eventually_seen, http, install, new_set, not_tested::not_tested,
    raw, shared_node, topology, vhost,
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

/// The findings with this code, once there are some.
fn found(settings: &Settings, code: FindingCode) -> Vec<Finding> {
    found_with(settings, code, "")
}

/// The same, once one of them contains this text: the first may come from the count of a part.
fn found_with(settings: &Settings, code: FindingCode, text: &str) -> Vec<Finding> {
    let is_it = |finding: &Finding| finding.code == code && finding.what.contains(text);
    let there = |report: &DoctorReport| report.findings.iter().any(is_it);
    let report = eventually_seen(code.as_str(), || look(settings), there);
    report.findings.into_iter().filter(|finding| finding.code == code).collect()
}

/// Looks until there are findings with all of these codes, and returns them by code.
fn found_all<const N: usize>(settings: &Settings, wanted: [FindingCode; N]) -> [Vec<Finding>; N] {
    let all = |report: &DoctorReport| wanted.iter().all(|code| codes(report).contains(code));
    let report = eventually_seen("all codes are found", || look(settings), all);
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

/// Binds a queue or exchange for an application.
fn receives(session: &mut Session, key: &str, destination: Endpoint) {
    bind(session, "delay.dispatch", destination, &RoutingKey::binding_pattern(&app(key)));
}

fn send(settings: &Settings, key: &str, count: usize) {
    send_after(settings, key, 1, count);
}

fn send_after(settings: &Settings, key: &str, delay: u64, count: usize) {
    let router = settings.router().connect().unwrap();
    for _ in 0..count {
        router.publish(Message::after(app(key), Delay::from_seconds(delay).unwrap(), "x")).unwrap();
    }
}

fn put(settings: &Settings, what: &str, name: &str, body: Json) {
    http(&shared_node(), "PUT", &format!("{what}/{}/{name}", settings.broker.vhost), &body);
}

#[test]
fn a_clean_set_has_no_finding() {
    // This node has no objects of other tests.
    let node = PrivateNode::start(NodeOptions::default()).unwrap();
    let settings = node.settings().set("unit_ms", "100").build().unwrap();
    let report = look(&settings);
    assert_eq!(codes(&report), [FindingCode::SetDiffers].into(), "{report:#?}");
    install(&settings);
    let inbox = Inbox::open(&settings, "app");
    send(&settings, "app", 20);
    assert_eq!(inbox.collect(20, PATIENCE).len(), 20);
    for options in [DoctorOptions::default(), DoctorOptions { sample: 0, ..DoctorOptions::default() }] {
        // The broker counts a new queue some seconds later.
        eventually_seen(
            "there is no finding",
            || look_with(&settings, &options),
            |report| report.findings.is_empty() && report.unchecked.is_empty(),
        );
    }
    // With less traffic, `doctor` reports neither the prefetch count nor shortcuts.
    let busy = DoctorOptions { busy_rate: 0.01, ..DoctorOptions::default() };
    let both = [FindingCode::DeadLetterPrefetch, FindingCode::ShortcutsSaveHops];
    let found = AtomicBool::new(false);
    let report = thread::scope(|scope| {
        // A steady flow, so that each look sees some in each of their levels. 11110: four levels, or two
        // shortcuts.
        scope.spawn(|| {
            let router = settings.router().connect().unwrap();
            while !found.load(Ordering::Relaxed) {
                router.publish(Message::after(app("app"), Delay::from_seconds(30).unwrap(), "x")).unwrap();
                thread::sleep(Duration::from_millis(20));
            }
        });
        let look = || look_with(&settings, &busy);
        let report = eventually_seen("the rate and the depths are known", look, |report| {
            both.iter().all(|code| codes(report).contains(code))
        });
        found.store(true, Ordering::Relaxed);
        report
    });
    let advice = "{dead_letter_worker_consumer_prefetch, 512}";
    assert!(report.findings.iter().any(|finding| finding.advice.contains(advice)), "{report:#?}");
}

/// The documented command that asks the broker which queues hold dead letters.
fn who_holds() -> &'static str {
    let document = include_str!("../../docs/runbook/stuck.md");
    let (_, rest) = document.split_once("rabbitmqctl eval '").expect("the command is in the document");
    rest.split_once('\'').unwrap().0
}

#[test]
fn a_full_queue_that_refuses_is_found_with_the_queues_that_it_blocks() {
    // Whole seconds: otherwise, a message that waits in a busy router could be due when it is sent,
    // and the full queue would refuse it while it is published.
    let settings = new_set(1_000);
    let mut session = Session::open(&settings.broker).unwrap();
    let limits = json!({"x-queue-type": "quorum", "x-max-length": 3, "x-overflow": "reject-publish"});
    queue(&mut session, "small", limits.clone());
    receives(&mut session, "greedy", Endpoint::Queue("small".into()));
    // A landing queue limits the damage to its application.
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
        "a queue behind a landing queue is no finding"
    );

    send(&settings, "guarded", 60);
    send(&settings, "greedy", 60);
    let of = |report: &DoctorReport, code: FindingCode, queue: &str| {
        let subject = format!("queue `{queue}`");
        report.findings.iter().find(|finding| finding.code == code && finding.subject == subject).cloned()
    };
    let stuck = |report: &DoctorReport, queue: &str| of(report, FindingCode::StuckDeadLetters, queue);
    let report = eventually_seen(
        "the stuck queues are found",
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

    // The documented command answers who holds them.
    let text = shared_node().tell(&["eval", who_holds()]).unwrap().replace(char::is_whitespace, "");
    let key = RoutingKey::new(Delay::from_seconds(1).unwrap(), app("greedy")).encode();
    assert!(text.contains(&format!("{{<<\"delay.level.00\">>,[<<\"{key}\">>],[<<\"small\">>]}}")), "{text}");

    // The documented remedy helps.
    receives_no_more(&mut session, "greedy", "small");
    session.delete_queue("small").unwrap();
    let others = |report: &DoctorReport| {
        !report
            .findings
            .iter()
            .any(|finding| finding.subject == "queue `small`" || finding.code == FindingCode::TargetRefuses)
    };
    eventually_seen("the queue is no longer a finding", || look(&settings), others);
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
    // An exchange of the application that leads to a queue, and another that does not.
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
    // An exchange that leads back to the entry exchange.
    exchange(&mut session, "again");
    receives(&mut session, "round", Endpoint::Exchange("again".into()));
    bind(&mut session, "again", Endpoint::Exchange("delay".into()), "#");
    // Two patterns: the first matches an application that is bound, and the second matches none.
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
    let nobody = found_with(&settings, nobody[0].code, "2 messages wait");
    only(&nobody, "`asleep`", "2 messages wait", &["asleep"]);
    only(&dead_end, "exchange `void`", "`lost` leads to it", &["lost"]);
    only(&round, "exchange `delay`", "messages that are due for `round` come back there", &["round"]);
    only(&collision, "key `#.old`", "it also receives the messages of `old`", &["old"]);
    only(&wildcard, "yet-to-come", "can catch", &[]);
    assert_eq!((can_refuse.len(), dead_end.len(), collision.len(), wildcard.len()), (1, 1, 1, 1));

    // As the finding says, messages for such an exchange get stuck.
    send(&settings, "lost", 5);
    let stuck = found_with(&settings, StuckDeadLetters, "5 dead letters are stuck");
    assert_eq!(
        (stuck[0].subject.as_str(), stuck[0].apps.as_slice()),
        ("queue `delay.level.00`", &["lost".to_owned()][..])
    );
}

#[test]
fn unroutable_messages_are_found_with_their_application() {
    let settings = new_set(100);
    let api = ManagementApi::new(settings.management.as_ref().unwrap()).unwrap();
    let history = || {
        let queue = api.queue_history(&settings.broker.vhost, "delay.unroutable", 600).unwrap();
        queue.map(|queue| queue.history()).unwrap_or_default()
    };
    eventually_seen("the broker has counted the queue", history, |history| !history.is_empty());
    send(&settings, "nobody", 3);
    http(
        &shared_node(),
        "POST",
        &format!("exchanges/{}/delay/publish", settings.broker.vhost),
        &json!({"properties": {}, "routing_key": "delay.1111.oops", "payload": "x", "payload_encoding": "string"}),
    );
    use FindingCode::*;
    // The finding appears at once, although the management API shows the messages only after some
    // seconds.
    let mut session = Session::open(&settings.broker).unwrap();
    eventually("a message is there", || session.counts("delay.unroutable").unwrap().unwrap().ready > 0);
    assert!(codes(&look(&settings)).contains(&MalformedMessages));
    let [nobody, malformed, growing] =
        found_all(&settings, [NobodyBound, MalformedMessages, UnroutableGrowing]);
    let settled = || found(&settings, NobodyBound);
    eventually_seen("all three messages are there", settled, |nobody| {
        nobody[0].what.contains("3 messages for it are unroutable")
    });
    assert!(nobody[0].subject == "app key `nobody`" && nobody[0].apps == ["nobody"], "{nobody:#?}");
    assert!(malformed[0].what.contains("1 message has a malformed routing key"), "{malformed:#?}");
    assert!(growing[0].what.contains("it grew from 0 to"), "{growing:#?}");

    // A queue is bound now, but the messages that were kept before must be sent on.
    queue(&mut session, "late", json!({"x-queue-type": "quorum"}));
    receives(&mut session, "nobody", Endpoint::Queue("late".into()));
    let report =
        eventually_seen("the binding is known", || look(&settings), |r| !codes(r).contains(&NobodyBound));
    let waiting = report.findings.iter().find(|finding| finding.code == UnroutableWaiting).unwrap();
    assert!(waiting.what.contains("3 messages are kept for applications that are bound now"), "{waiting:#?}");

    // Without a sample, `doctor` reports only the number.
    let cheap = DoctorOptions { sample: 0, ..DoctorOptions::default() };
    let cheap = eventually_seen(
        "all messages are counted",
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
    // Only versions that know deprecated features accept this line, and 4.3 needs it.
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
        "the alarm is reported",
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
        // The advice helps.
        node.tell(&["enable_feature_flag", "all"]).unwrap();
    }
    alarm("clear_alarm({resource_limit, disk, node()})");
    http(&node, "DELETE", "queues/%2F/transient", &json!({}));
    if !old || off.is_empty() {
        node.tell(&["enable_feature_flag", "all"]).unwrap();
    }
    install(&settings);
    eventually_seen("there is no finding", || look(&settings), |report| report.findings.is_empty());
}

#[test]
fn messages_that_come_back_to_their_consumer_over_and_over_are_found() {
    let settings = new_set(1);
    let mut session = Session::open(&settings.broker).unwrap();
    // A classic queue delivers messages again without a limit.
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
        eventually_seen("doctor finds it", looping, |report| report.findings.iter().any(|it| is_loop(&it)));
    let finding = report.findings.iter().find(is_loop).unwrap();
    assert_eq!((finding.subject.as_str(), &finding.apps[..]), ("queue `loop`", &["billing".to_owned()][..]));
    assert!(finding.what.contains("0 are acknowledged"), "{finding:#?}");
    // Every look finds it, although the broker counts only every 5 s.
    for _ in 0..6 {
        thread::sleep(Duration::from_secs(1));
        let report = looping();
        assert!(codes(&report).contains(&FindingCode::HotLoop), "{report:#?}");
    }
    eventually_seen(
        "the finding is gone",
        || look(&settings),
        |report| !codes(report).contains(&FindingCode::HotLoop),
    );
}

#[test]
fn clients_with_small_frames_are_found_where_the_broker_takes_them() {
    const CLIENT: &str = "import sys, pika\n\
        connection = pika.BlockingConnection(pika.URLParameters(sys.argv[1]))\n\
        print('connected', flush=True)\n\
        sys.stdin.read()";
    let settings = new_set(1_000);
    let python = std::env::var("TEST_PYTHON").expect("TEST_PYTHON names a Python that has pika");
    let url = format!("{}?frame_max=4096&heartbeat=0", common::url(&settings));
    let mut client = std::process::Command::new(python)
        .args(["-c", CLIENT, &url])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let mut connected = String::new();
    BufReader::new(client.stdout.take().unwrap()).read_line(&mut connected).unwrap();
    if connected.is_empty() {
        // From 4.1 on, the broker refuses less than 8,192 bytes.
        assert!(!client.wait().unwrap().success());
        assert!(!codes(&look(&settings)).contains(&FindingCode::SmallFrames));
        return;
    }
    let [finding] = &found(&settings, FindingCode::SmallFrames)[..] else { panic!("one finding") };
    assert!(finding.what.contains("`guest`"), "{finding:#?}");
    drop(client.stdin.take());
    client.wait().unwrap();
    eventually("the finding is gone", || !codes(&look(&settings)).contains(&FindingCode::SmallFrames));
}
