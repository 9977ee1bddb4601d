//! Differences grouped by cause: one fault shows in many places and is fixed once. Pure.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    compare::{Difference, EARLIER_REMEDY},
    finding::{Finding, FindingCode},
};
use delayline_core::topology::{Binding, Endpoint, SetName};

/// How many places of a cause are named before the list is cut short.
const NAMED: usize = 3;

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
    Recall(&'a str),
    Journal(&'a str),
    Unsuitable(&'a str, &'a str),
    MissingReplicas(&'a [String], usize),
    ReplicasOffline(&'a [String], bool),
    NoLeader,
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
            Difference::ExtraBinding { binding, effect } => Self::ExtraBindings(&binding.destination, effect),
            Difference::Recall { app, .. } => Self::Recall(app),
            Difference::Journal { app, .. } => Self::Journal(app),
            Difference::Unsuitable { reason, remedy } => Self::Unsuitable(reason, remedy),
            Difference::MissingReplicas { members, wanted, .. } => Self::MissingReplicas(members, *wanted),
            Difference::ReplicasOffline { offline, stalled, .. } => Self::ReplicasOffline(offline, *stalled),
            Difference::NoLeader { .. } => Self::NoLeader,
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
                (named(objects), what, set.command("install"))
            }
            Self::MissingBindings => {
                (named(subjects), it("it is missing", "they are missing").into(), set.command("install"))
            }
            Self::EarlierVersion => {
                (format!("set `{set}`"), named(group.iter().map(ToString::to_string)), EARLIER_REMEDY.into())
            }
            Self::Different(_) => (
                named(subjects),
                different(group),
                "if the set was installed with other settings, use those; if somebody declared it by hand, \
                 let it run empty, delete it and run `delayline install`"
                    .into(),
            ),
            Self::ExtraBindings(_, effect) => (
                named(subjects),
                effect.into(),
                "find out who made it and remove it; applications bind only to the dispatch exchange".into(),
            ),
            Self::Recall(app) => (
                named(subjects),
                format!(
                    "messages of `{app}` with an id may be lost, or cannot be recalled: {}",
                    named(group.iter().map(ToString::to_string))
                ),
                format!(
                    "run `delayline app add {app} --recall` with the flags it was registered with; what has other \
                     arguments has to be removed before (delayline app remove {app} --recall)"
                ),
            ),
            Self::Journal(app) => (
                named(subjects),
                format!(
                    "what is scheduled for `{app}` cannot be listed, or not for as long as it should: {}",
                    named(group.iter().map(ToString::to_string))
                ),
                format!(
                    "run `delayline app add {app} --recall --journal AGE` with the flags it was registered with; a \
                     stream with other arguments has to be deleted before, with the copies that it has"
                ),
            ),
            Self::Unsuitable(reason, remedy) => ("broker".into(), reason.into(), remedy.into()),
            Self::MissingReplicas(members, wanted) => (
                named(subjects),
                format!("{} {} of {wanted} replicas, on {}", it("it has", "they have"), members.len(), members.join(", ")),
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
                "start those nodes; if they are lost for good, docs/doctor.md says how to do without them, which \
                 can lose messages"
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
                "check that (rabbitmq-queues quorum_status QUEUE), then delete the queue and run `delayline \
                 install`; restarting the node does not help"
                    .into(),
            ),
            Self::Policy(_) => (named(subjects), policy(group), policy_remedy(set, group)),
        };
        let apps = match group[0] {
            Difference::Recall { app, .. } | Difference::Journal { app, .. } => vec![app.clone()],
            _ => Vec::new(),
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
        | Difference::Journal { .. } => FindingCode::SetDiffers,
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
        Difference::Missing { object } | Difference::Different { object, .. } => object.clone(),
        Difference::MissingBinding { binding } | Difference::ExtraBinding { binding, .. } => {
            binding.to_string()
        }
        Difference::Recall { of, .. } | Difference::Journal { of, .. } => subject(of),
        Difference::Unsuitable { .. } => "broker".into(),
        Difference::EarlierVersion { .. } => "the set".into(),
        Difference::MissingReplicas { queue, .. }
        | Difference::ReplicasOffline { queue, .. }
        | Difference::NoLeader { queue }
        | Difference::Policy { queue, .. } => format!("queue `{queue}`"),
    }
}

/// Each name once, and of many only the first few.
pub fn named(subjects: impl IntoIterator<Item = String>) -> String {
    let mut distinct: Vec<String> = Vec::new();
    for subject in subjects {
        if !distinct.contains(&subject) {
            distinct.push(subject);
        }
    }
    match distinct.len().checked_sub(NAMED + 1) {
        None => distinct.join(", "),
        Some(_) => format!("{} and {} more", distinct[..NAMED].join(", "), distinct.len() - NAMED),
    }
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
        _ => format!("`{argument}` differs from what it should be"),
    });
    texts.collect::<Vec<_>>().join("; ")
}

/// What a policy sets, and the effect.
fn policy(group: &[&Difference]) -> String {
    let mut seen = BTreeSet::new();
    let texts = group.iter().filter_map(|difference| match difference {
        Difference::Policy { policy, effect, .. } => {
            seen.insert((policy, effect)).then(|| format!("{policy}: {effect}"))
        }
        _ => None,
    });
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
    use crate::{compare::Observed, management::Policy};
    use delayline_core::topology::{Topology, TopologySettings};

    fn setup() -> (Topology, Observed) {
        let topology = Topology::new(TopologySettings::default());
        let observed = Observed::standing(&topology);
        (topology, observed)
    }

    /// How many places a finding has.
    fn places(finding: &Finding) -> usize {
        finding.details.len().max(1)
    }

    fn grouped(topology: &Topology, observed: &Observed) -> Vec<Finding> {
        let differences = observed.compare(topology);
        let findings = findings(&topology.settings().set, &differences);
        // Every difference is in one of them.
        assert_eq!(findings.iter().map(places).sum::<usize>(), differences.len());
        findings
    }

    #[test]
    fn what_is_missing_is_said_once_with_its_bindings() {
        let (topology, mut observed) = setup();
        observed.queues.retain(|queue| queue.name != "delay.level.03");
        observed.exchanges.retain(|exchange| exchange.name != "delay.level.05");
        let before = observed.bindings.len();
        observed.bindings.retain(|binding| {
            // The queue and the exchange of a level share a name.
            let end = (binding.destination_type.as_str(), binding.destination.as_str());
            binding.source != "delay.level.05"
                && ![("queue", "delay.level.03"), ("exchange", "delay.level.05")].contains(&end)
        });
        let gone = before - observed.bindings.len();
        let causes = grouped(&topology, &observed);
        assert_eq!(causes.len(), 1, "{causes:#?}");
        assert_eq!(causes[0].what, format!("they are missing, and with them {gone} bindings"));
        for part in ["queue `delay.level.03`", "exchange `delay.level.05`"] {
            assert!(causes[0].subject.contains(part), "{}", causes[0].subject);
        }
        assert_eq!(causes[0].advice, "delayline install");
        // A binding that is gone although both its ends stand is another matter.
        let between = observed
            .bindings
            .iter()
            .position(|it| it.source == "delay.dispatch" || it.source == "delay.retry");
        observed.bindings.remove(between.unwrap());
        assert_eq!(grouped(&topology, &observed).len(), 2);
    }

    #[test]
    fn one_policy_is_one_cause_whatever_it_sets_and_wherever() {
        let (topology, mut observed) = setup();
        let policy = |name: &str, pattern: &str, definition| -> Policy {
            let json = json!({"name": name, "pattern": pattern, "apply-to": "all", "definition": definition});
            serde_json::from_value(json).unwrap()
        };
        let all = policy("all", "^delay", json!({"expires": 60_000, "dead-letter-routing-key": "x"}));
        let tight = policy("tight", "parked", json!({"max-length": 9}));
        observed.apply_policies(&[all], &[tight]);
        let causes = grouped(&topology, &observed);
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
    fn what_differs_alike_is_one_cause_and_what_does_not_is_another() {
        let (topology, mut observed) = setup();
        for queue in &mut observed.queues {
            queue.arguments.insert("x-quorum-initial-group-size".into(), 5.into());
        }
        let causes = grouped(&topology, &observed);
        assert_eq!(causes.len(), 1, "{causes:#?}");
        assert_eq!(causes[0].what, "`x-quorum-initial-group-size` should be not set, but is 5");
        observed.queues[0].durable = false;
        observed.queues[0].arguments.insert("x-expires".into(), 1.into());
        let causes = grouped(&topology, &observed);
        assert_eq!(causes.len(), 2, "{causes:#?}");
        let odd = causes.iter().find(|cause| cause.what.contains("x-expires")).unwrap();
        assert!(odd.what.contains("`durable` should be true, but is false; "), "{odd:#?}");
    }

    #[test]
    fn of_many_only_the_first_are_named() {
        let names = |count: usize| named((0..count).map(|number| format!("q{number}")));
        assert_eq!(names(3), "q0, q1, q2");
        assert_eq!(names(5), "q0, q1, q2 and 2 more");
        assert_eq!(named(["q".into(), "q".into()]), "q");
    }
}
