//! Differences grouped by cause: one fault shows in many places and is fixed once. Pure.

use std::collections::{BTreeMap, BTreeSet};

use crate::{finding::Finding, finding::FindingCode};
use delayline_broker::{Difference, REPLACED, earlier_remedy, is_federated};
use delayline_core::shell::{command, quoted};
use delayline_core::topology::{Binding, Endpoint, Names, SetName};
use delayline_messages::number::named;

/// One finding for each cause, in the order in which each cause appears first.
#[must_use]
pub fn findings(set: &SetName, differences: &[Difference]) -> Vec<Finding> {
    let missing: BTreeSet<&str> = differences
        .iter()
        .filter_map(|difference| match difference {
            Difference::Missing { object } => Some(object.as_str()),
            _ => None,
        })
        .collect();
    let mut differing: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for difference in differences {
        if let Difference::Different { object, argument, .. } = difference {
            differing.entry(object).or_default().insert(argument);
        }
    }
    let mut groups: Vec<(Key<'_>, Vec<&Difference>)> = Vec::new();
    for difference in differences {
        let key = Key::of(difference, &missing, &differing);
        match groups.iter_mut().find(|(other, _)| *other == key) {
            Some((_, group)) => group.push(difference),
            None => groups.push((key, vec![difference])),
        }
    }
    groups.into_iter().map(|(key, group)| key.finding(set, &group)).collect()
}

/// What differences with the same cause have in common.
#[derive(Debug, PartialEq, Eq)]
enum Key<'a> {
    /// Objects are missing, and their bindings with them.
    Missing,
    /// Bindings between existing objects are missing.
    MissingBindings,
    /// The whole set is of an earlier version.
    EarlierVersion,
    /// The same arguments differ.
    Different(BTreeSet<&'a str>),
    ExtraBindings(&'a Endpoint, &'a str),
    /// Bindings of brokers that federate exchanges.
    Federated(&'a str),
    Replaced,
    Recall(&'a str),
    Journal(&'a str),
    Unsuitable(&'a str, &'a str),
    MissingReplicas(&'a [String], usize),
    ReplicasOffline(&'a [String], bool),
    NoLeader,
    Shovel(&'a str),
    Policy(&'a [String]),
}

impl<'a> Key<'a> {
    fn of(
        difference: &'a Difference,
        missing: &BTreeSet<&str>,
        differing: &BTreeMap<&'a str, BTreeSet<&'a str>>,
    ) -> Self {
        match difference {
            Difference::Missing { .. } => Self::Missing,
            Difference::MissingBinding { binding: Binding { source, destination, .. } } => {
                let ends = [Endpoint::Exchange(source.clone()), destination.clone()];
                match ends.iter().any(|end| missing.contains(end.to_string().as_str())) {
                    true => Self::Missing,
                    false => Self::MissingBindings,
                }
            }
            Difference::Different { object, .. } => {
                Self::Different(differing.get(object.as_str()).cloned().unwrap_or_default())
            }
            Difference::EarlierVersion { .. } => Self::EarlierVersion,
            Difference::ExtraBinding { binding, effect } if is_federated(binding) => Self::Federated(effect),
            Difference::ExtraBinding { effect, .. } if *effect == REPLACED => Self::Replaced,
            Difference::ExtraBinding { binding, effect } => Self::ExtraBindings(&binding.destination, effect),
            Difference::Recall { app, .. } => Self::Recall(app),
            Difference::Journal { app, .. } => Self::Journal(app),
            Difference::Unsuitable { reason, remedy } => Self::Unsuitable(reason, remedy),
            Difference::MissingReplicas { members, wanted, .. } => Self::MissingReplicas(members, *wanted),
            Difference::ReplicasOffline { offline, stalled, .. } => Self::ReplicasOffline(offline, *stalled),
            Difference::NoLeader { .. } => Self::NoLeader,
            Difference::Shovel { name, .. } => Self::Shovel(name),
            Difference::Policy { origins, .. } => Self::Policy(origins),
        }
    }

    fn finding(self, set: &SetName, group: &[&Difference]) -> Finding {
        let subjects: Vec<_> = group.iter().map(|difference| subject(difference)).collect();
        let it = |one: &'static str, many: &'static str| if group.len() == 1 { one } else { many };
        let (subject, what, advice) = match self {
            Self::Missing => {
                let (bindings, objects): (Vec<&Difference>, Vec<&Difference>) = group
                    .iter()
                    .copied()
                    .partition(|difference| matches!(difference, Difference::MissingBinding { .. }));
                let objects: Vec<_> = objects.into_iter().map(self::subject).collect();
                let (they, them) = if objects.len() == 1 { ("it is", "it") } else { ("they are", "them") };
                let what = match bindings.len() {
                    0 => format!("{they} missing"),
                    1 => format!("{they} missing, and with {them} 1 binding"),
                    number => format!("{they} missing, and with {them} {number} bindings"),
                };
                (named(objects), what, set.command(&["install"]))
            }
            Self::MissingBindings => {
                (named(subjects), it("it is missing", "they are missing").into(), set.command(&["install"]))
            }
            Self::EarlierVersion => {
                (format!("set `{set}`"), named(group.iter().map(ToString::to_string)), earlier_remedy(set))
            }
            Self::Different(_) => (
                named(subjects),
                different(group),
                format!(
                    "if the set was installed with other settings, use those. If it was declared by hand, \
                     let it run empty, delete it and run `{}`",
                    set.command(&["install"])
                ),
            ),
            Self::Replaced => (named(subjects), REPLACED.into(), set.command(&["install"])),
            Self::ExtraBindings(_, effect) => (
                named(subjects),
                effect.into(),
                "find out who made it and remove it; applications may bind only to the dispatch \
                exchange"
                    .into(),
            ),
            Self::Federated(effect) => (
                named(group.iter().map(|difference| match difference {
                    Difference::ExtraBinding { binding, .. } => {
                        Endpoint::Exchange(binding.source.clone()).to_string()
                    }
                    other => other.to_string(),
                })),
                effect.into(),
                format!(
                    "change the federation policy of the broker that the bound exchange is named after: its \
                     pattern must leave `{set}` and all names that begin with `{set}.` alone"
                ),
            ),
            Self::Recall(app) => (
                named(subjects),
                format!(
                    "messages of `{app}` with an id may be lost, or cannot be recalled: {}",
                    named(group.iter().map(ToString::to_string))
                ),
                format!(
                    "run `{}` with the flags it was registered with. Before that, remove objects with other \
                     arguments (`{}`)",
                    set.command(&["app", "add", app, "--recall"]),
                    set.command(&["app", "remove", app, "--recall"])
                ),
            ),
            Self::Journal(app) => (
                named(subjects),
                format!(
                    "scheduled messages of `{app}` cannot be listed, or not for the whole time of its \
                    journal: {}",
                    named(group.iter().map(ToString::to_string))
                ),
                format!(
                    "run `{}` with the flags it was registered with. First delete a stream with other \
                     arguments, which also deletes its copies",
                    set.command(&["app", "add", app, "--recall", "--journal", "AGE"])
                ),
            ),
            Self::Unsuitable(reason, remedy) => ("broker".into(), reason.into(), remedy.into()),
            Self::MissingReplicas(members, wanted) => (
                named(subjects),
                format!(
                    "{} {} of {wanted} replicas, on {}",
                    it("it has", "they have"),
                    members.len(),
                    members.join(", ")
                ),
                "rabbitmq-queues grow NODE all, for a node without one".into(),
            ),
            Self::ReplicasOffline(offline, true) => (
                named(subjects),
                format!(
                    "no replica runs on {}: {} no majority, and everything in {} waits",
                    offline.join(", "),
                    it("it has", "they have"),
                    it("it", "them")
                ),
                "start those nodes. If they are lost for good, follow docs/runbook/broker.md, which can \
                 lose messages"
                    .into(),
            ),
            Self::ReplicasOffline(offline, false) => (
                named(subjects),
                format!("no replica runs on {}", offline.join(", ")),
                "start those nodes before another one fails".into(),
            ),
            Self::NoLeader => (
                named(subjects),
                format!(
                    "{} replicas run but none of them leads: nothing gets in or out, so nothing leaves the \
                     levels that pass messages to {}",
                    it("its", "their"),
                    it("it", "them")
                ),
                format!(
                    "check that (rabbitmq-queues quorum_status QUEUE), then delete the queue and run `{}`. \
                     A restart of the node does not help",
                    set.command(&["install"])
                ),
            ),
            Self::Shovel(name) => {
                let effects = group.iter().map(|difference| match difference {
                    Difference::Shovel { object, effect, .. } => format!("{object}: {effect}"),
                    other => other.to_string(),
                });
                (
                    format!("shovel `{name}`"),
                    named(effects),
                    format!(
                        "give it another queue or exchange, or remove it (rabbitmqctl clear_parameter -p VHOST \
                         shovel {}). To move messages of the set, use `{}`",
                        quoted(name),
                        command(&["transfer"])
                    ),
                )
            }
            Self::Policy(_) => (named(subjects), policy(group), policy_remedy(set, group)),
        };
        let apps = match group[0] {
            Difference::Recall { app, .. } | Difference::Journal { app, .. } => vec![app.clone()],
            _ => owners(set, group),
        };
        let details = match group {
            [_] => Vec::new(),
            several => several.iter().map(ToString::to_string).collect(),
        };
        Finding { details, apps, ..Finding::new(code(group[0]), subject, what, advice) }
    }
}

fn code(difference: &Difference) -> FindingCode {
    match difference {
        Difference::Missing { .. }
        | Difference::EarlierVersion { .. }
        | Difference::MissingBinding { .. }
        | Difference::Different { .. }
        | Difference::ExtraBinding { .. }
        | Difference::Recall { .. }
        | Difference::Journal { .. }
        | Difference::Shovel { .. } => FindingCode::SetDiffers,
        Difference::Unsuitable { .. } => FindingCode::BrokerUnsuitable,
        Difference::MissingReplicas { .. } => FindingCode::TooFewReplicas,
        Difference::ReplicasOffline { stalled: true, .. } => FindingCode::NoMajority,
        Difference::ReplicasOffline { stalled: false, .. } => FindingCode::ReplicaOffline,
        Difference::NoLeader { .. } => FindingCode::NoLeader,
        Difference::Policy { .. } => FindingCode::PolicyOnSet,
    }
}

fn subject(difference: &Difference) -> String {
    match difference {
        Difference::Missing { object }
        | Difference::Different { object, .. }
        | Difference::Policy { object, .. } => object.clone(),
        Difference::MissingBinding { binding } | Difference::ExtraBinding { binding, .. } => {
            binding.to_string()
        }
        Difference::Recall { of, .. } | Difference::Journal { of, .. } => subject(of),
        Difference::Unsuitable { .. } => "broker".into(),
        Difference::Shovel { name, .. } => format!("shovel `{name}`"),
        Difference::EarlierVersion { .. } => "the set".into(),
        Difference::MissingReplicas { queue, .. }
        | Difference::ReplicasOffline { queue, .. }
        | Difference::NoLeader { queue } => format!("queue `{queue}`"),
    }
}

/// The applications whose own queues are changed by policies.
fn owners(set: &SetName, group: &[&Difference]) -> Vec<String> {
    let names = Names::new(set.clone());
    let queues = group.iter().filter_map(|difference| match difference {
        Difference::Policy { object, .. } => object.strip_prefix("queue `")?.strip_suffix('`'),
        _ => None,
    });
    let owner = |queue| names.app_of_landing(queue).or_else(|| names.app_of_recalled(queue));
    let owners: BTreeSet<_> = queues.filter_map(owner).map(str::to_owned).collect();
    owners.into_iter().collect()
}

/// What differs: everything on one object, or the same arguments on several.
fn different(group: &[&Difference]) -> String {
    let mut by_argument: BTreeMap<&str, BTreeSet<(&str, &str)>> = BTreeMap::new();
    for difference in group {
        if let Difference::Different { argument, wanted, found, .. } = difference {
            by_argument.entry(argument).or_default().insert((wanted, found));
        }
    }
    let texts = by_argument.into_iter().map(|(argument, values)| match values.first() {
        Some((wanted, found)) if values.len() == 1 => {
            format!("`{argument}` should be {wanted}, but is {found}")
        }
        _ => format!("`{argument}` has a wrong value"),
    });
    texts.collect::<Vec<_>>().join("; ")
}

/// What a policy sets, and the effects.
fn policy(group: &[&Difference]) -> String {
    let mut set: Vec<(&str, Vec<&str>)> = Vec::new();
    for difference in group {
        let Difference::Policy { policy, effect, .. } = difference else { continue };
        match set.iter_mut().find(|(other, _)| other == policy) {
            Some((_, effects)) if effects.contains(effect) => {}
            Some((_, effects)) => effects.push(effect),
            None => set.push((policy, vec![effect])),
        }
    }
    let texts = set.into_iter().map(|(policy, effects)| format!("{policy}: {}", effects.join("; ")));
    texts.collect::<Vec<_>>().join("; ")
}

fn policy_remedy(set: &SetName, group: &[&Difference]) -> String {
    let by_operator = group.iter().any(|difference| match difference {
        Difference::Policy { origins, .. } => origins.iter().any(|origin| origin.starts_with("operator ")),
        _ => false,
    });
    let operator = match by_operator {
        true => " (operator policies: rabbitmqctl list_operator_policies)",
        false => "",
    };
    format!(
        "change the policy's pattern so that it leaves `{set}` and all names that begin with `{set}.` \
         alone{operator}"
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use delayline_broker::{Policies, Policy, Snapshot};
    use delayline_core::topology::{Topology, TopologySettings};

    fn setup() -> (Topology, Snapshot) {
        let topology = Topology::new(TopologySettings::default());
        let snapshot = Snapshot::default().with(topology.objects());
        (topology, snapshot)
    }

    /// How many places a finding has.
    fn places(finding: &Finding) -> usize {
        finding.details.len().max(1)
    }

    fn grouped(topology: &Topology, snapshot: &Snapshot) -> Vec<Finding> {
        let differences = snapshot.compare(topology);
        let findings = findings(&topology.settings().set, &differences);
        // Every difference belongs to a cause.
        assert_eq!(findings.iter().map(places).sum::<usize>(), differences.len());
        findings
    }

    #[test]
    fn a_missing_object_and_its_bindings_are_one_cause() {
        let (topology, mut snapshot) = setup();
        snapshot.queues.remove("delay.level.03");
        snapshot.exchanges.remove("delay.level.05");
        let before = snapshot.bindings().len();
        // The queue and the exchange of a level share a name.
        let ends = [Endpoint::Queue("delay.level.03".into()), Endpoint::Exchange("delay.level.05".into())];
        snapshot.retain_bindings(|it| it.source != "delay.level.05" && !ends.contains(&it.destination));
        let gone = before - snapshot.bindings().len();
        let causes = grouped(&topology, &snapshot);
        assert_eq!(causes.len(), 1, "{causes:#?}");
        assert_eq!(causes[0].what, format!("they are missing, and with them {gone} bindings"));
        for part in ["queue `delay.level.03`", "exchange `delay.level.05`"] {
            assert!(causes[0].subject.contains(part), "{}", causes[0].subject);
        }
        assert_eq!(causes[0].advice, "delayline install");
        // A missing binding between existing objects is another cause.
        snapshot.retain_bindings(|it| it.source != "delay.retry");
        assert_eq!(grouped(&topology, &snapshot).len(), 2);
    }

    #[test]
    fn one_policy_is_one_cause_for_all_keys_and_queues() {
        let (topology, mut snapshot) = setup();
        let policy = |name: &str, pattern: &str, definition| -> Policy {
            let json = json!({"name": name, "pattern": pattern, "apply-to": "all", "definition": definition});
            serde_json::from_value(json).unwrap()
        };
        let all = policy("all", "^delay", json!({"expires": 60_000, "dead-letter-routing-key": "x"}));
        let tight = policy("tight", "parked", json!({"max-length": 9}));
        snapshot.apply(Policies { user: Ok(vec![all]), operator: Ok(vec![tight]) });
        let causes = grouped(&topology, &snapshot);
        assert_eq!(causes.len(), 2, "{causes:#?}");
        let (all, tight) = (&causes[0], &causes[1]);
        assert!(places(all) > 28 && all.subject.ends_with("more"), "{all:#?}");
        for part in ["policy `all` sets `expires` to 60000: the broker deletes", "`dead-letter-routing-key`"]
        {
            assert_eq!(all.what.matches(part).count(), 1, "{}", all.what);
        }
        assert!(
            all.advice.contains("leaves `delay` and all names that begin with `delay.`"),
            "{}",
            all.advice
        );
        assert_eq!(tight.subject, "queue `delay.parked`");
        assert!(tight.what.starts_with("operator policy `tight` sets"), "{}", tight.what);
        assert!(tight.advice.contains("operator"), "{}", tight.advice);
    }

    #[test]
    fn a_shovel_is_one_cause_at_both_ends() {
        let (topology, mut snapshot) = setup();
        let shovel = json!({"name": "my shovel", "value": {
            "src-uri": "amqp://", "src-queue": "delay.parked",
            "dest-uri": "amqp://", "dest-exchange": "delay.level.03", "dest-exchange-key": "x",
        }});
        snapshot.shovels = vec![serde_json::from_value(shovel).unwrap()];
        let causes = grouped(&topology, &snapshot);
        assert_eq!(causes.len(), 1, "{causes:#?}");
        assert_eq!(
            (causes[0].subject.as_str(), causes[0].code),
            ("shovel `my shovel`", FindingCode::SetDiffers)
        );
        for part in ["queue `delay.parked`: it takes", "exchange `delay.level.03`: it lets in"] {
            assert!(causes[0].what.contains(part), "{}", causes[0].what);
        }
        assert!(
            causes[0].advice.contains("clear_parameter -p VHOST shovel 'my shovel'"),
            "{}",
            causes[0].advice
        );
    }

    #[test]
    fn equal_differences_are_one_cause_and_others_are_another() {
        let (topology, mut snapshot) = setup();
        for queue in snapshot.queues.values_mut() {
            queue.arguments.insert("x-max-priority".into(), 5.into());
        }
        let causes = grouped(&topology, &snapshot);
        assert_eq!(causes.len(), 1, "{causes:#?}");
        assert_eq!(causes[0].what, "`x-max-priority` should be not set, but is 5");
        let level = snapshot.queues.get_mut("delay.level.03").unwrap();
        level.durable = false;
        level.arguments.insert("x-expires".into(), 1.into());
        let causes = grouped(&topology, &snapshot);
        assert_eq!(causes.len(), 2, "{causes:#?}");
        let odd = causes.iter().find(|cause| cause.what.contains("x-expires")).unwrap();
        assert!(odd.what.contains("`durable` should be true, but is false; "), "{odd:#?}");
    }

    #[test]
    fn of_a_long_list_only_the_first_are_named() {
        let names = |count: usize| named((0..count).map(|number| format!("q{number}")));
        assert_eq!(names(3), "q0, q1, q2");
        assert_eq!(names(5), "q0, q1, q2 and 2 more");
        assert_eq!(named(["q".into(), "q".into()]), "q");
    }
}
