//! Looking for problems, and saying what to do about them.
//!
//! The broker is asked first (`Facts`); then each check is a pure function of the answers.

mod access;
mod bindings;
mod broker;
mod copies;
mod dead_letters;
mod ended;
mod facts;
mod foreign;
mod headers;
mod journals;
mod recalls;
mod requeues;
mod set;
mod targets;
mod unbound;
mod unroutable;
pub(crate) mod walk;

use jiff::Timestamp;
use serde::Serialize;

use delayline_core::topology::Topology;
use delayline_settings::Settings;

use crate::{AdminError, RecallCounts, finding::Finding, gateway};

use facts::Facts;

pub use foreign::doctor_layout;
pub(crate) use targets::streams;

/// How thoroughly to look.
#[derive(Debug, Clone, PartialEq)]
pub struct DoctorOptions {
    /// How many unroutable and how many parked messages are examined, to tell which
    /// applications they are for and which headers they have; 1,000. With 0 they are only
    /// counted, and no message is taken from any queue: a check then costs some ten requests
    /// to the management API, and can be repeated often.
    pub sample: u64,
    /// The rate of messages into the set, per second, from which the dead-letter prefetch is
    /// worth a finding; 2,000.
    pub busy_rate: f64,
    /// What somebody has counted already of the recalls; if `None`, they are counted. The broker
    /// lists them all for that, so that a daemon does it seldom.
    pub recalls: Option<RecallCounts>,
    /// Users that are meant to control the whole set, such as the one that installs it: what
    /// they may do is no finding. Administrators never need to be named.
    pub trusted: Vec<String>,
}

impl Default for DoctorOptions {
    fn default() -> Self {
        Self { sample: 1_000, busy_rate: 2_000.0, recalls: None, trusted: Vec::new() }
    }
}

/// The findings, and what could not be checked.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct DoctorReport {
    /// The name of the set, or of the layout.
    pub set: String,
    /// The findings, the worst first.
    pub findings: Vec<Finding>,
    /// What could not be checked, and why.
    pub unchecked: Vec<String>,
}

/// Looks at a set, at what is bound to it, and at its broker. Changes nothing, and does not
/// wait, since brokers keep the statistics over time that it needs, with two exceptions: if a
/// queue seems to have no leader, it looks again, for 20 s at most; and if a policy of
/// [`unstick`](crate::unstick) exists, for 3 s.
///
/// # Errors
/// If the broker cannot be asked, over AMQP or through its management API: nearly all
/// findings come from there.
pub fn doctor(
    settings: &Settings,
    topology: &Topology,
    options: &DoctorOptions,
) -> Result<DoctorReport, AdminError> {
    let (facts, mut unchecked) = facts::gather(settings, topology, options)?;
    let findings = examine(topology, &facts, options, &settings.broker.vhost, &mut unchecked);
    Ok(DoctorReport { set: topology.settings().set.to_string(), findings, unchecked })
}

/// All checks, on what the broker said.
fn examine(
    topology: &Topology,
    facts: &Facts,
    options: &DoctorOptions,
    vhost: &str,
    unchecked: &mut Vec<String>,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.extend(set::check(topology, facts));
    if facts.installed(topology) {
        let targets = walk::targets(topology, &facts.observed);
        findings.extend(dead_letters::check(topology, facts, &targets, options));
        findings.extend(targets::check(topology, &facts.observed, &targets));
        findings.extend(requeues::check(&targets, facts.about.version.as_deref()));
        findings.extend(bindings::check(topology, &facts.observed));
        findings.extend(unbound::check(topology, facts, &targets));
        findings.extend(unroutable::check(topology, facts));
        findings.extend(gateway::findings(topology, &facts.observed));
        findings.extend(headers::check(topology, facts));
        findings.extend(recalls::check(topology, facts, Timestamp::now()));
        findings.extend(journals::check(topology, facts, vhost, Timestamp::now()));
        findings.extend(dead_letters::left_behind(facts));
        findings.extend(copies::check(topology, facts, &targets, vhost));
        findings.extend(access::check(topology, facts, options, vhost, unchecked));
    }
    findings.extend(broker::check(topology, facts));
    findings.sort();
    findings.dedup();
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        compare::Observed,
        finding::FindingCode,
        handover::Look,
        management::{BindingInfo, DeprecatedFeature, ExchangeInfo, FeatureFlag, NodeInfo, QueueInfo},
    };
    use delayline_core::{
        codec::{AppKey, RoutingKey},
        topology::TopologySettings,
    };

    /// What a cluster would say of a set with one application, whose queue is `app`.
    fn facts(topology: &Topology) -> Facts {
        let mut observed = Observed::standing(topology);
        observed.nodes = Some(3);
        observed.queues.push(QueueInfo {
            name: "app".into(),
            kind: "quorum".into(),
            durable: true,
            ..QueueInfo::default()
        });
        for queue in &mut observed.queues {
            queue.members = ["a", "b", "c"].map(String::from).into();
            queue.online = queue.members.clone();
        }
        observed.bindings.push(BindingInfo {
            source: topology.names().dispatch(),
            destination: "app".into(),
            destination_type: "queue".into(),
            routing_key: RoutingKey::binding_pattern(&AppKey::new("billing").unwrap()),
            ..BindingInfo::default()
        });
        Facts { observed, ..Facts::default() }
    }

    fn found(topology: &Topology, facts: &Facts) -> Vec<Finding> {
        examine(topology, facts, &DoctorOptions::default(), "/", &mut Vec::new())
    }

    /// How many dead letters a queue had over time, and nothing else.
    fn hands_on(facts: &mut Facts, queue: &str, counts: &[u64]) {
        let looks = counts.iter().map(|&due| Look { due, messages: due, ..Look::default() });
        facts.dead_letters.insert(queue.into(), looks.collect());
    }

    fn codes(findings: &[Finding]) -> Vec<(&str, &str)> {
        findings.iter().map(|finding| (finding.code.as_str(), finding.subject.as_str())).collect()
    }

    #[test]
    fn replicas_that_are_down_are_told_from_a_majority_that_is() {
        let topology = Topology::new(TopologySettings::default());
        let mut facts = facts(&topology);
        assert_eq!(codes(&found(&topology, &facts)), []);
        for (name, online) in [("delay.level.03", 2), ("delay.level.04", 1), ("app", 1)] {
            let queue = facts.observed.queues.iter_mut().find(|queue| queue.name == name).unwrap();
            queue.online.truncate(online);
        }
        let few = facts.observed.queues.iter_mut().find(|queue| queue.name == "delay.level.05").unwrap();
        few.members.truncate(2);
        few.online.truncate(2);
        let findings = found(&topology, &facts);
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

        // What is due for a queue without a majority is what gets stuck.
        hands_on(&mut facts, "delay.level.00", &[0, 40, 40, 40, 40]);
        let findings = found(&topology, &facts);
        let stuck = findings.iter().find(|finding| finding.code == FindingCode::StuckDeadLetters).unwrap();
        assert_eq!(stuck.apps, ["billing"]);
        assert!(stuck.what.contains("40 dead letters") && stuck.what.contains("no majority"), "{stuck:#?}");
    }

    #[test]
    fn a_set_without_its_entry_is_incomplete_and_not_absent() {
        let topology = Topology::new(TopologySettings::default());
        let mut facts = facts(&topology);
        facts.observed.exchanges.retain(|exchange| exchange.name != "delay");
        let said = |facts: &Facts| format!("{:?}", found(&topology, facts));
        assert!(
            said(&facts).contains("SetDiffers") && !said(&facts).contains("not installed"),
            "{}",
            said(&facts)
        );
        facts.observed = Observed::default();
        assert!(said(&facts).contains("it is not installed"), "{}", said(&facts));
    }

    #[test]
    fn what_is_bound_back_into_the_set_is_said_once() {
        let topology = Topology::new(TopologySettings::default());
        for (kind, name, code) in [
            ("exchange", "delay", "target-loop"),
            ("exchange", "delay.level.04", "target-loop"),
            ("queue", "delay.level.04", "target-loop"),
            ("exchange", "delay.unroutable", "set-differs"),
            ("queue", "delay.parked", "set-differs"),
        ] {
            let mut facts = facts(&topology);
            let binding = facts.observed.bindings.last_mut().unwrap();
            (binding.destination, binding.destination_type) = (name.into(), kind.into());
            let findings = found(&topology, &facts);
            assert_eq!(findings.len(), 1, "{kind} {name}: {findings:#?}");
            assert_eq!(findings[0].code.as_str(), code, "{kind} {name}");
            assert!(findings[0].subject.contains(name), "{findings:#?}");
        }
    }

    fn bind(facts: &mut Facts, source: &str, (kind, destination): (&str, &str), key: &str) {
        facts.observed.bindings.push(BindingInfo {
            source: source.into(),
            destination: destination.into(),
            destination_type: kind.into(),
            routing_key: key.into(),
            ..BindingInfo::default()
        });
    }

    fn exchange(facts: &mut Facts, name: &str) {
        let (name, kind) = (name.into(), "topic".into());
        facts.observed.exchanges.push(ExchangeInfo { name, kind, durable: true, ..ExchangeInfo::default() });
    }

    #[test]
    fn a_branch_that_leads_nowhere_matters_only_if_no_other_leads_to_a_queue() {
        let topology = Topology::new(TopologySettings::default());
        let dispatch = topology.names().dispatch();
        let key = |app: &str| RoutingKey::binding_pattern(&AppKey::new(app).unwrap());
        let mut facts = facts(&topology);
        for name in ["events", "audit", "ring", "ring.back"] {
            exchange(&mut facts, name);
        }
        // To a queue and to an exchange that nobody has bound, at dispatch and behind it.
        bind(&mut facts, &dispatch, ("exchange", "audit"), &key("billing"));
        bind(&mut facts, &dispatch, ("exchange", "events"), &key("orders"));
        bind(&mut facts, "events", ("queue", "app"), "delay.#");
        bind(&mut facts, "events", ("exchange", "audit"), "#");
        assert_eq!(codes(&found(&topology, &facts)), []);

        // Round in a ring by many ways, and nowhere else.
        bind(&mut facts, &dispatch, ("exchange", "ring"), &key("ringing"));
        for n in 0..50 {
            bind(
                &mut facts,
                "ring",
                ("exchange", "ring.back"),
                &format!("delay.#.{}", ["#."; 1].repeat(n % 3).concat() + "#"),
            );
            bind(&mut facts, "ring.back", ("exchange", "ring"), "#");
        }
        let findings = found(&topology, &facts);
        assert_eq!(codes(&findings), [("target-dead-end", "exchange `ring`")]);
        assert_eq!(findings[0].apps, ["ringing"]);
        bind(&mut facts, "ring.back", ("queue", "app"), "#");
        assert_eq!(codes(&found(&topology, &facts)), []);

        // Nobody is to blame for what is stuck who receives all the same.
        bind(&mut facts, &dispatch, ("exchange", "audit"), &key("lost"));
        hands_on(&mut facts, "delay.level.00", &[0, 40, 40, 40, 40]);
        let findings = found(&topology, &facts);
        assert_eq!(
            codes(&findings),
            [("stuck-dead-letters", "queue `delay.level.00`"), ("target-dead-end", "exchange `audit`")]
        );
        assert_eq!(findings[0].apps, ["lost"]);

        // A pattern on dispatch catches it as well.
        bind(&mut facts, &dispatch, ("queue", "app"), "#.lost");
        let findings = found(&topology, &facts);
        assert!(!codes(&findings).iter().any(|(code, _)| *code == "target-dead-end"), "{findings:#?}");
    }

    #[test]
    fn what_is_wrong_with_a_landing_queue_holds_up_the_levels() {
        let topology = Topology::new(TopologySettings::default());
        let healthy = {
            let mut facts = facts(&topology);
            let arguments = [("x-dead-letter-exchange", ""), ("x-dead-letter-routing-key", "app")];
            facts.observed.queues.push(QueueInfo {
                name: "delay.landing.billing".into(),
                kind: "quorum".into(),
                durable: true,
                arguments: arguments.map(|(name, value)| (name.to_owned(), value.into())).into(),
                members: ["a", "b", "c"].map(String::from).into(),
                online: ["a", "b", "c"].map(String::from).into(),
                ..QueueInfo::default()
            });
            facts.observed.bindings.last_mut().unwrap().destination = "delay.landing.billing".into();
            facts
        };
        assert_eq!(
            codes(&found(&topology, &Facts { observed: healthy.observed.clone(), ..Facts::default() })),
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
            let mut facts = Facts { observed: healthy.observed.clone(), ..Facts::default() };
            damage(facts.observed.queues.last_mut().unwrap());
            let findings = found(&topology, &facts);
            assert_eq!(codes(&findings), [(code, "queue `delay.landing.billing`")]);
            assert_eq!(findings[0].apps, ["billing"]);
            hands_on(&mut facts, "delay.level.00", &[0, 40, 40, 40, 40]);
            let findings = found(&topology, &facts);
            let stuck = findings.iter().find(|it| it.code == FindingCode::StuckDeadLetters).unwrap();
            let blamed = code != "policy-on-set";
            assert_eq!(stuck.apps == ["billing"], blamed, "{stuck:#?}");
        }
    }

    #[test]
    fn the_queue_of_a_canary_matters_only_if_it_takes_nothing() {
        let topology = Topology::new(TopologySettings::default());
        let mut facts = facts(&topology);
        facts.observed.queues.push(QueueInfo {
            name: "delay.canary.0".into(),
            kind: "quorum".into(),
            durable: true,
            members: ["a", "b", "c"].map(String::from).into(),
            online: ["a", "b", "c"].map(String::from).into(),
            ..QueueInfo::default()
        });
        let key = RoutingKey::binding_pattern(&AppKey::new("delayline-canary.0").unwrap());
        bind(&mut facts, &topology.names().dispatch(), ("queue", "delay.canary.0"), &key);
        assert_eq!(codes(&found(&topology, &facts)), []);
        facts.observed.queues.last_mut().unwrap().online.truncate(1);
        assert_eq!(codes(&found(&topology, &facts)), [("no-majority", "queue `delay.canary.0`")]);
        hands_on(&mut facts, "delay.level.00", &[0, 40, 40, 40, 40]);
        let findings = found(&topology, &facts);
        let stuck = findings.iter().find(|it| it.code == FindingCode::StuckDeadLetters).unwrap();
        assert_eq!(stuck.apps, ["delayline-canary.0"], "{stuck:#?}");
    }

    #[test]
    fn what_comes_back_more_often_than_it_is_done_is_a_loop() {
        let topology = Topology::new(TopologySettings::default());
        let with = |again: f64, done: f64, arguments: serde_json::Value, version: &str| {
            let mut facts = facts(&topology);
            facts.about.version = Some(version.into());
            let queue = facts.observed.queues.iter_mut().find(|queue| queue.name == "app").unwrap();
            queue.message_stats = serde_json::from_value(serde_json::json!({
                "redeliver_details": { "rate": again }, "ack_details": { "rate": done },
            }))
            .unwrap();
            queue.arguments = serde_json::from_value(arguments).unwrap();
            found(&topology, &facts)
        };
        let none = || serde_json::json!({});
        // The rate of this moment is 0 in most moments.
        let mut facts = facts(&topology);
        let queue = facts.observed.queues.iter_mut().find(|queue| queue.name == "app").unwrap();
        queue.message_stats.redeliver_details.avg_rate = 100.0;
        let findings = found(&topology, &facts);
        assert!(findings[0].what.contains("100 messages a second"), "{findings:#?}");
        // A consumer that restarts, and one that does more than comes back.
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
        let mut facts = facts(&topology);
        for name in ["delay.level.04", "app"] {
            facts.observed.queues.iter_mut().find(|queue| queue.name == name).unwrap().leaderless = true;
        }
        let findings = found(&topology, &facts);
        assert_eq!(codes(&findings), [("no-leader", "queue `app`"), ("no-leader", "queue `delay.level.04`")]);
        assert_eq!(findings[0].apps, ["billing"]);
        hands_on(&mut facts, "delay.level.00", &[0, 40, 40, 40, 40]);
        let findings = found(&topology, &facts);
        let stuck = findings.iter().find(|it| it.code == FindingCode::StuckDeadLetters).unwrap();
        assert!(stuck.what.contains("queue `app` has no leader"), "{stuck:#?}");
    }

    #[test]
    fn dead_letters_that_nothing_explains() {
        let topology = Topology::new(TopologySettings::default());
        let mut facts = facts(&topology);
        hands_on(&mut facts, "delay.level.07", &[5; 12]);
        let advice = |facts: &Facts| found(&topology, facts)[0].advice.clone();
        facts.about.version = Some("4.3.6".into());
        assert!(!advice(&facts).contains("was starting"));
        facts.about.version = Some("3.10.8".into());
        let text = advice(&facts);
        assert!(text.contains("docs/doctor.md") && text.contains("was starting"), "{text}");

        // Those that come and go say nothing; those that are always too many are a
        // matter of throughput.
        hands_on(&mut facts, "delay.level.07", &[5, 9, 0, 3, 0]);
        assert_eq!(codes(&found(&topology, &facts)), []);
        hands_on(&mut facts, "delay.level.07", &[900, 400, 700, 300, 500]);
        let findings = found(&topology, &facts);
        assert_eq!(codes(&findings), [("dead-letter-prefetch", "broker")]);
        assert!(findings[0].what.contains("`delay.level.07` had 300 or more"), "{findings:#?}");
    }

    #[test]
    fn what_a_broker_says_of_itself() {
        let topology = Topology::new(TopologySettings::default());
        let mut facts = facts(&topology);
        let flag = |name: &str, state: &str, stability: &str| FeatureFlag {
            name: name.into(),
            state: state.into(),
            stability: stability.into(),
        };
        facts.about.flags = Some(vec![
            flag("stream_queue", "disabled", "stable"),
            flag("classic_thing", "disabled", "stable"),
            flag("new_thing", "disabled", "experimental"),
            flag("old_thing", "enabled", "stable"),
            flag("odd_thing", "unsupported", "stable"),
        ]);
        facts.nodes = Some(vec![
            NodeInfo { name: "a".into(), running: true, mem_alarm: true, ..NodeInfo::default() },
            NodeInfo { name: "b".into(), running: true, ..NodeInfo::default() },
        ]);
        facts.deprecated = Some(vec![DeprecatedFeature {
            name: "transient_nonexcl_queues".into(),
            deprecation_phase: "denied_by_default".into(),
        }]);
        let findings = found(&topology, &facts);
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
