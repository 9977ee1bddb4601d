//! Finding problems, and their remedies.
//!
//! The broker is asked first (`Evidence`); then each check is a pure function of the answers.

mod access;
mod bindings;
mod broker;
mod copies;
mod dead_letters;
mod ended;
mod evidence;
mod headers;
mod paused;
mod requeues;
mod scheduled;
mod set;
mod targets;
mod unbound;
mod unroutable;

use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;

use delayline_core::topology::Topology;
use delayline_settings::Settings;

use delayline_broker::{ManagementApi, ManagementError, SeenSet, Survey, routes};

use crate::{finding::Finding, gateways};
use delayline_messages::{error::AdminError, scheduled::IndexedJournal, scheduled::RecallCounts};

use evidence::Evidence;

pub(crate) use targets::streams;

/// How thorough the checks are.
#[derive(Debug, Clone, PartialEq)]
pub struct DoctorOptions {
    /// How many unroutable and how many parked messages are examined for their applications and headers;
    /// 1,000 by default. With 0 they are only counted, and no message is taken from any queue. A check then
    /// costs some ten requests to the management API, and can be repeated often.
    pub sample: u64,
    /// The rate of messages into the set, per second, from which the dead-letter prefetch becomes a
    /// finding; 2,000 by default.
    pub busy_rate: f64,
    /// Recall counts from an earlier run; if `None`, recalls are counted. The broker lists all recalls for
    /// that, so a daemon counts them rarely.
    pub recalls: Option<RecallCounts>,
    /// The index of a daemon.
    pub index: Vec<IndexedJournal>,
    /// Users that may control the whole set, such as the user that installs it: their rights are no
    /// finding. Administrators never need to be named.
    pub trusted: Vec<String>,
}

impl Default for DoctorOptions {
    fn default() -> Self {
        Self { sample: 1_000, busy_rate: 2_000.0, recalls: None, index: Vec::new(), trusted: Vec::new() }
    }
}

/// The findings, and what could not be checked.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct DoctorReport {
    /// The name of the set, or of the layout.
    pub set: String,
    /// The findings, the worst first.
    pub findings: Vec<Finding>,
    /// The checks that were not possible, and why.
    pub unchecked: Vec<String>,
}

/// Checks a set, the queues bound to it, and its broker. Changes nothing. Does not wait, since brokers keep
/// the statistics that it needs, with three exceptions. A broker without statistics is asked about due
/// messages for 15 s. If a queue seems to have no leader, it checks again,
/// for up to 20 s. If a policy of [`unstick`](delayline_messages::unstick) exists, it checks again, for up to 3 s.
///
/// # Errors If the broker cannot be asked, over AMQP or through its management API: nearly all findings
/// come from there.
pub fn doctor(
    settings: &Settings,
    topology: &Topology,
    options: &DoctorOptions,
) -> Result<DoctorReport, AdminError> {
    diagnose(settings, topology, options, |api| SeenSet::fetch(api, &settings.broker.vhost, topology))
}

/// The same for a daemon, which has seen the set at most `age` ago.
///
/// # Errors See [`doctor`].
pub fn doctor_seen(
    settings: &Settings,
    topology: &Topology,
    options: &DoctorOptions,
    (survey, age): (&Survey, Duration),
) -> Result<DoctorReport, AdminError> {
    diagnose(settings, topology, options, |_| Ok(SeenSet::clone(&*survey.set(age)?)))
}

fn diagnose(
    settings: &Settings,
    topology: &Topology,
    options: &DoctorOptions,
    look: impl FnOnce(&ManagementApi) -> Result<SeenSet, ManagementError>,
) -> Result<DoctorReport, AdminError> {
    let (evidence, mut unchecked) = evidence::gather(settings, topology, options, look)?;
    let findings = examine(topology, &evidence, options, &mut unchecked);
    Ok(DoctorReport { set: topology.settings().set.to_string(), findings, unchecked })
}

/// All checks, on the answers of the broker.
fn examine(
    topology: &Topology,
    evidence: &Evidence,
    options: &DoctorOptions,
    unchecked: &mut Vec<String>,
) -> Vec<Finding> {
    let topology = &evidence.snapshot.as_installed(topology);
    let mut findings = Vec::new();
    findings.extend(set::check(topology, evidence));
    if evidence.snapshot.is_installed(topology) {
        let targets = routes(topology, &evidence.snapshot);
        findings.extend(dead_letters::check(topology, evidence, &targets, options));
        findings.extend(targets::check(topology, &evidence.snapshot, &targets));
        findings.extend(requeues::check(&targets, evidence.snapshot.about.version.as_deref()));
        findings.extend(bindings::check(topology, &evidence.snapshot));
        findings.extend(unbound::check(topology, evidence, &targets));
        findings.extend(paused::check(topology, evidence, Timestamp::now()));
        findings.extend(unroutable::check(topology, evidence));
        findings.extend(gateways::findings(topology, &evidence.snapshot));
        findings.extend(headers::check(topology, evidence));
        findings.extend(headers::unjournalled(topology, evidence));
        findings.extend(headers::small_frames(evidence));
        findings.extend(scheduled::recalls::check(topology, evidence, Timestamp::now()));
        findings.extend(scheduled::journals::check(topology, evidence, Timestamp::now()));
        findings.extend(scheduled::journals::unindexed(topology, &options.index));
        findings.extend(scheduled::schedules::check(topology, evidence, Timestamp::now()));
        findings.extend(dead_letters::left_behind(evidence));
        findings.extend(copies::check(topology, evidence, &targets));
        findings.extend(access::check(topology, evidence, options, unchecked));
    }
    findings.extend(broker::check(topology, evidence));
    findings.sort();
    findings.dedup();
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::FindingCode;
    use delayline_broker::{
        Alarm, BindingInfo, DeprecatedFeature, ExchangeInfo, FeatureFlag, Look, NodeInfo, QueueInfo, Snapshot,
    };
    use delayline_core::{
        codec::{AppKey, RoutingKey},
        topology::TopologySettings,
    };

    /// The answers of a cluster about a set with one application, whose queue is `app`.
    fn evidence(topology: &Topology) -> Evidence {
        let mut snapshot = Snapshot::default().with(topology.objects());
        snapshot.about.nodes = Some(vec![NodeInfo::default(); 3]);
        let queue =
            QueueInfo { name: "app".into(), kind: "quorum".into(), durable: true, ..QueueInfo::default() };
        let app = topology.app_binding(&AppKey::new("billing").unwrap(), "app");
        snapshot.enter([], [queue], [(&app).into()]);
        for queue in snapshot.queues.values_mut() {
            queue.members = ["a", "b", "c"].map(String::from).into();
            queue.online = queue.members.clone();
        }
        Evidence { snapshot, ..Evidence::default() }
    }

    fn found(topology: &Topology, evidence: &Evidence) -> Vec<Finding> {
        examine(topology, evidence, &DoctorOptions::default(), &mut Vec::new())
    }

    /// The number of dead letters of a queue over time.
    fn hands_on(evidence: &mut Evidence, queue: &str, counts: &[u64]) {
        let looks = counts.iter().map(|&due| Look { due, messages: due, ..Look::default() });
        evidence.snapshot.dead_letters.insert(queue.into(), looks.collect());
    }

    /// A quorum queue with all its replicas.
    fn replicated(name: &str) -> QueueInfo {
        let nodes: Vec<_> = ["a", "b", "c"].map(String::from).into();
        let (name, kind, durable) = (name.to_owned(), "quorum".into(), true);
        QueueInfo { name, kind, durable, members: nodes.clone(), online: nodes, ..QueueInfo::default() }
    }

    fn codes(findings: &[Finding]) -> Vec<(&str, &str)> {
        findings.iter().map(|finding| (finding.code.as_str(), finding.subject.as_str())).collect()
    }

    #[test]
    fn stopped_replicas_differ_from_a_lost_majority() {
        let topology = Topology::new(TopologySettings::default());
        let mut evidence = evidence(&topology);
        assert_eq!(codes(&found(&topology, &evidence)), []);
        for (name, online) in [("delay.level.03", 2), ("delay.level.04", 1), ("app", 1)] {
            evidence.snapshot.queues.get_mut(name).unwrap().online.truncate(online);
        }
        let few = evidence.snapshot.queues.get_mut("delay.level.05").unwrap();
        few.members.truncate(2);
        few.online.truncate(2);
        let findings = found(&topology, &evidence);
        assert_eq!(
            codes(&findings),
            [
                ("no-majority", "queue `app`"),
                ("no-majority", "queue `delay.level.04`"),
                ("replica-offline", "queue `delay.level.03`"),
                ("too-few-replicas", "queue `delay.level.05`"),
            ]
        );
        assert_eq!(findings[0].apps, ["billing"]);
        assert!(findings[1].what.contains("no replica runs on b, c"), "{findings:#?}");

        // Due messages for a queue without a majority are the stuck ones.
        hands_on(&mut evidence, "delay.level.00", &[0, 40, 40, 40, 40]);
        let findings = found(&topology, &evidence);
        let stuck = findings.iter().find(|finding| finding.code == FindingCode::StuckDeadLetters).unwrap();
        assert_eq!(stuck.apps, ["billing"]);
        assert!(stuck.what.contains("40 dead letters") && stuck.what.contains("no majority"), "{stuck:#?}");
    }

    #[test]
    fn a_set_without_its_entry_is_incomplete_and_not_absent() {
        let topology = Topology::new(TopologySettings::default());
        let mut evidence = evidence(&topology);
        evidence.snapshot.exchanges.remove("delay");
        let said = |evidence: &Evidence| format!("{:?}", found(&topology, evidence));
        assert!(
            said(&evidence).contains("SetDiffers") && !said(&evidence).contains("not installed"),
            "{}",
            said(&evidence)
        );
        evidence.snapshot = Snapshot::default();
        assert!(said(&evidence).contains("it is not installed"), "{}", said(&evidence));
    }

    #[test]
    fn a_binding_back_into_the_set_is_one_finding() {
        let topology = Topology::new(TopologySettings::default());
        for (kind, name, code) in [
            ("exchange", "delay", "target-loop"),
            ("exchange", "delay.level.04", "target-loop"),
            ("queue", "delay.level.04", "target-loop"),
            ("exchange", "delay.unroutable", "set-differs"),
            ("queue", "delay.parked", "set-differs"),
        ] {
            let mut evidence = evidence(&topology);
            bind_app(&topology, &mut evidence, (kind, name));
            let findings = found(&topology, &evidence);
            assert_eq!(findings.len(), 1, "{kind} {name}: {findings:#?}");
            assert_eq!(findings[0].code.as_str(), code, "{kind} {name}");
            assert!(findings[0].subject.contains(name), "{findings:#?}");
        }
    }

    fn bind(evidence: &mut Evidence, source: &str, (kind, destination): (&str, &str), key: &str) {
        let binding = BindingInfo {
            source: source.into(),
            destination: destination.into(),
            destination_type: kind.into(),
            routing_key: key.into(),
            ..BindingInfo::default()
        };
        evidence.snapshot.enter([], [], [binding]);
    }

    /// Binds the application to an object other than its queue.
    fn bind_app(topology: &Topology, evidence: &mut Evidence, to: (&str, &str)) {
        let app = topology.app_binding(&AppKey::new("billing").unwrap(), "app");
        evidence.snapshot.retain_bindings(|binding| *binding != app);
        bind(evidence, &app.source, to, &app.key);
    }

    fn exchange(evidence: &mut Evidence, name: &str) {
        let (name, kind) = (name.into(), "topic".into());
        let exchange = ExchangeInfo { name, kind, durable: true, ..ExchangeInfo::default() };
        evidence.snapshot.enter([exchange], [], []);
    }

    #[test]
    fn a_dead_end_matters_only_if_no_other_branch_leads_to_a_queue() {
        let topology = Topology::new(TopologySettings::default());
        let dispatch = topology.names().dispatch();
        let key = |app: &str| RoutingKey::binding_pattern(&AppKey::new(app).unwrap());
        let mut evidence = evidence(&topology);
        for name in ["events", "audit", "ring", "ring.back"] {
            exchange(&mut evidence, name);
        }
        // To a queue and to an exchange without bindings, at dispatch and behind it.
        bind(&mut evidence, &dispatch, ("exchange", "audit"), &key("billing"));
        bind(&mut evidence, &dispatch, ("exchange", "events"), &key("orders"));
        bind(&mut evidence, "events", ("queue", "app"), "delay.#");
        bind(&mut evidence, "events", ("exchange", "audit"), "#");
        assert_eq!(codes(&found(&topology, &evidence)), []);

        // In a ring by many ways, and nowhere else.
        bind(&mut evidence, &dispatch, ("exchange", "ring"), &key("ringing"));
        for n in 0..50 {
            bind(
                &mut evidence,
                "ring",
                ("exchange", "ring.back"),
                &format!("delay.#.{}", ["#."; 1].repeat(n % 3).concat() + "#"),
            );
            bind(&mut evidence, "ring.back", ("exchange", "ring"), "#");
        }
        let findings = found(&topology, &evidence);
        assert_eq!(codes(&findings), [("target-dead-end", "exchange `ring`")]);
        assert_eq!(findings[0].apps, ["ringing"]);
        bind(&mut evidence, "ring.back", ("queue", "app"), "#");
        assert_eq!(codes(&found(&topology, &evidence)), []);

        // An application that receives its messages is not the cause of stuck ones.
        bind(&mut evidence, &dispatch, ("exchange", "audit"), &key("lost"));
        hands_on(&mut evidence, "delay.level.00", &[0, 40, 40, 40, 40]);
        let findings = found(&topology, &evidence);
        assert_eq!(
            codes(&findings),
            [("stuck-dead-letters", "queue `delay.level.00`"), ("target-dead-end", "exchange `audit`")]
        );
        assert_eq!(findings[0].apps, ["lost"]);

        // A pattern on dispatch catches it as well.
        bind(&mut evidence, &dispatch, ("queue", "app"), "#.lost");
        let findings = found(&topology, &evidence);
        assert!(!codes(&findings).iter().any(|(code, _)| *code == "target-dead-end"), "{findings:#?}");
    }

    #[test]
    fn a_fault_of_a_landing_queue_blocks_the_levels() {
        let topology = Topology::new(TopologySettings::default());
        let healthy = {
            let mut evidence = evidence(&topology);
            let arguments = [("x-dead-letter-exchange", ""), ("x-dead-letter-routing-key", "app")];
            let landing = QueueInfo {
                arguments: arguments.map(|(name, value)| (name.to_owned(), value.into())).into(),
                ..replicated("delay.landing.billing")
            };
            evidence.snapshot.enter([], [landing], []);
            bind_app(&topology, &mut evidence, ("queue", "delay.landing.billing"));
            evidence
        };
        assert_eq!(
            codes(&found(&topology, &Evidence { snapshot: healthy.snapshot.clone(), ..Evidence::default() })),
            []
        );
        type Damage = fn(&mut QueueInfo);
        let broken: [(&str, Damage); 3] = [
            ("no-majority", |queue| queue.online.truncate(1)),
            ("no-leader", |queue| queue.leaderless = true),
            ("policy-on-set", |queue| {
                queue.effective_policy_definition = serde_json::json!({"expires": 60_000});
            }),
        ];
        for (code, damage) in broken {
            let mut evidence = Evidence { snapshot: healthy.snapshot.clone(), ..Evidence::default() };
            damage(evidence.snapshot.queues.get_mut("delay.landing.billing").unwrap());
            let findings = found(&topology, &evidence);
            assert_eq!(codes(&findings), [(code, "queue `delay.landing.billing`")]);
            assert_eq!(findings[0].apps, ["billing"]);
            hands_on(&mut evidence, "delay.level.00", &[0, 40, 40, 40, 40]);
            let findings = found(&topology, &evidence);
            let stuck = findings.iter().find(|it| it.code == FindingCode::StuckDeadLetters).unwrap();
            let blamed = code != "policy-on-set";
            assert_eq!(stuck.apps == ["billing"], blamed, "{stuck:#?}");
        }
    }

    #[test]
    fn a_canarys_queue_matters_only_if_it_refuses() {
        let topology = Topology::new(TopologySettings::default());
        let mut evidence = evidence(&topology);
        evidence.snapshot.enter([], [replicated("delay.canary.0")], []);
        let key = RoutingKey::binding_pattern(&AppKey::new("delayline-canary.0").unwrap());
        bind(&mut evidence, &topology.names().dispatch(), ("queue", "delay.canary.0"), &key);
        assert_eq!(codes(&found(&topology, &evidence)), []);
        evidence.snapshot.queues.get_mut("delay.canary.0").unwrap().online.truncate(1);
        assert_eq!(codes(&found(&topology, &evidence)), [("no-majority", "queue `delay.canary.0`")]);
        hands_on(&mut evidence, "delay.level.00", &[0, 40, 40, 40, 40]);
        let findings = found(&topology, &evidence);
        let stuck = findings.iter().find(|it| it.code == FindingCode::StuckDeadLetters).unwrap();
        assert_eq!(stuck.apps, ["delayline-canary.0"], "{stuck:#?}");
    }

    #[test]
    fn more_redeliveries_than_acknowledgements_are_a_loop() {
        let topology = Topology::new(TopologySettings::default());
        let with = |again: f64, done: f64, arguments: serde_json::Value, version: &str| {
            let mut evidence = evidence(&topology);
            evidence.snapshot.about.version = Some(version.into());
            let queue = evidence.snapshot.queues.get_mut("app").unwrap();
            queue.message_stats = serde_json::from_value(serde_json::json!({
                "redeliver_details": { "rate": again }, "ack_details": { "rate": done },
            }))
            .unwrap();
            queue.arguments = serde_json::from_value(arguments).unwrap();
            found(&topology, &evidence)
        };
        let none = || serde_json::json!({});
        // The rate of a single moment is mostly 0.
        let mut evidence = evidence(&topology);
        let queue = evidence.snapshot.queues.get_mut("app").unwrap();
        queue.message_stats.redeliver_details.avg_rate = 100.0;
        let findings = found(&topology, &evidence);
        assert!(findings[0].what.contains("100 messages a second"), "{findings:#?}");
        // A consumer that restarts, and one that acknowledges more than comes back.
        assert_eq!(codes(&with(9.0, 0.0, none(), "4.3.6")), []);
        assert_eq!(codes(&with(500.0, 600.0, none(), "4.3.6")), []);
        let waits = serde_json::json!({ "x-delayed-retry-type": "all", "x-delayed-retry-min": 1_500 });
        for (arguments, version, words) in [
            (none(), "4.3.6", "never ends"),
            (waits.clone(), "4.3.6", "each waits 1500 ms"),
            (waits, "4.0.5", "as the queue allows"),
        ] {
            let findings = with(900.0, 12.0, arguments, version);
            assert_eq!(codes(&findings), [("hot-loop", "queue `app`")]);
            assert!(
                findings[0].what.contains("900 messages") && findings[0].what.contains(words),
                "{findings:#?}"
            );
            assert_eq!(findings[0].apps, ["billing"]);
        }
    }

    #[test]
    fn a_queue_without_a_leader_is_found_wherever_it_matters() {
        let topology = Topology::new(TopologySettings::default());
        let mut evidence = evidence(&topology);
        for name in ["delay.level.04", "app"] {
            evidence.snapshot.queues.get_mut(name).unwrap().leaderless = true;
        }
        let findings = found(&topology, &evidence);
        assert_eq!(codes(&findings), [("no-leader", "queue `app`"), ("no-leader", "queue `delay.level.04`")]);
        assert_eq!(findings[0].apps, ["billing"]);
        hands_on(&mut evidence, "delay.level.00", &[0, 40, 40, 40, 40]);
        let findings = found(&topology, &evidence);
        let stuck = findings.iter().find(|it| it.code == FindingCode::StuckDeadLetters).unwrap();
        assert!(stuck.what.contains("queue `app` has no leader"), "{stuck:#?}");
    }

    #[test]
    fn dead_letters_without_a_known_reason() {
        let topology = Topology::new(TopologySettings::default());
        let mut evidence = evidence(&topology);
        hands_on(&mut evidence, "delay.level.07", &[5; 12]);
        let advice = |evidence: &Evidence| found(&topology, evidence)[0].advice.clone();
        evidence.snapshot.about.version = Some("4.3.6".into());
        assert!(!advice(&evidence).contains("was starting"));
        evidence.snapshot.about.version = Some("3.10.8".into());
        let text = advice(&evidence);
        assert!(text.contains("docs/runbook/stuck.md") && text.contains("was starting"), "{text}");

        // Dead letters that come and go are no evidence; if there are always too many, the throughput is
        // too low.
        hands_on(&mut evidence, "delay.level.07", &[5, 9, 0, 3, 0]);
        assert_eq!(codes(&found(&topology, &evidence)), []);
        hands_on(&mut evidence, "delay.level.07", &[900, 400, 700, 300, 500]);
        let findings = found(&topology, &evidence);
        assert_eq!(codes(&findings), [("dead-letter-prefetch", "broker")]);
        assert!(findings[0].what.contains("`delay.level.07` always had at least 300"), "{findings:#?}");
    }

    #[test]
    fn findings_about_the_broker() {
        let topology = Topology::new(TopologySettings::default());
        let mut evidence = evidence(&topology);
        let flag = |name: &str, state: &str, stability: &str| FeatureFlag {
            name: name.into(),
            state: state.into(),
            stability: stability.into(),
        };
        evidence.snapshot.about.flags = Some(vec![
            flag("stream_queue", "disabled", "stable"),
            flag("classic_thing", "disabled", "stable"),
            flag("new_thing", "disabled", "experimental"),
            flag("old_thing", "enabled", "stable"),
            flag("odd_thing", "unsupported", "stable"),
        ]);
        evidence.snapshot.about.nodes = Some(vec![
            NodeInfo { name: "a".into(), running: true, ..NodeInfo::default() },
            NodeInfo { name: "b".into(), running: true, ..NodeInfo::default() },
        ]);
        evidence.snapshot.about.alarms = Some(vec![Alarm { node: "a".into(), resource: "memory".into() }]);
        evidence.snapshot.about.deprecated = Some(vec![DeprecatedFeature {
            name: "transient_nonexcl_queues".into(),
            deprecation_phase: "denied_by_default".into(),
        }]);
        let findings = found(&topology, &evidence);
        assert_eq!(
            codes(&findings),
            [
                ("broker-unsuitable", "broker"),
                ("broker-alarm", "node a"),
                ("feature-flag-off", "feature flag `classic_thing`"),
                ("deprecated-feature", "deprecated feature `transient_nonexcl_queues`"),
            ]
        );
        assert!(findings[0].what.contains("stream_queue") && findings[3].what.contains("denied by default"));
    }
}
