//! Problems in the delays of others.
//!
//! The broker is asked first (`LayoutFacts`); then each check is a pure function of the
//! answers.

use std::collections::BTreeMap;

use crate::{
    AdminError, Kept, KeptReport, Layout, Reason,
    finding::{Finding, FindingCode},
    guard,
    handover::{PREFETCH, Sign},
    layout_status::{LayoutFacts, gather},
    limit::limit,
    management::QueueInfo,
    number::grouped,
};
use delayline_core::topology::Topology;
use delayline_settings::Settings;

use super::{
    DoctorOptions, DoctorReport,
    walk::{End, Route, layout_targets},
};

/// Looks at the delays of others: what is stuck and who is to blame, what is unroutable, and
/// whether a guard is set. Changes nothing.
///
/// # Errors
/// If there is no such layout in the vhost, or the broker cannot be asked, over AMQP or
/// through its management API.
pub fn doctor_layout(
    settings: &Settings,
    topology: &Topology,
    layout: &Layout,
    options: &DoctorOptions,
) -> Result<DoctorReport, AdminError> {
    let facts = gather(settings, layout)?;
    let mut unchecked = facts.unchecked.clone();
    let mut kept = None;
    if options.sample > 0 && facts.unroutable() > Some(0) {
        match Kept::Guarded(layout.clone()).list(settings, topology, options.sample, |_| {}) {
            Ok(report) => kept = Some(report),
            Err(error) => unchecked.push(format!("whom the unroutable messages are for: {error}")),
        }
    }
    let findings = examine(topology, layout, &facts, kept.as_ref());
    Ok(DoctorReport { set: layout.to_string(), findings, unchecked })
}

/// All checks, on what the broker said.
fn examine(
    topology: &Topology,
    layout: &Layout,
    facts: &LayoutFacts,
    kept: Option<&KeptReport>,
) -> Vec<Finding> {
    let targets = layout_targets(topology, layout, &facts.observed);
    let mut findings = Vec::new();
    findings.extend(missing(layout, facts));
    findings.extend(stuck(layout, facts, &targets));
    findings.extend(unguarded(layout, facts));
    findings.extend(stale(layout, facts));
    findings.extend(targets.iter().filter(|target| !is_kept(layout, target)).flat_map(|it| target(it)));
    findings.extend(collisions(layout, facts));
    findings.extend(kept.into_iter().flat_map(|report| unroutable(layout, report)));
    findings.sort();
    findings.dedup();
    findings
}

fn subject(layout: &Layout) -> String {
    format!("layout `{layout}`")
}

/// Objects of the layout that are gone.
fn missing(layout: &Layout, facts: &LayoutFacts) -> Option<Finding> {
    let exchanges = layout.exchanges();
    let gone = |name: &&String| !facts.observed.exchanges.iter().any(|exchange| exchange.name == **name);
    let mut details: Vec<_> =
        exchanges.iter().filter(gone).map(|name| format!("exchange `{name}`")).collect();
    let levels = exchanges.iter().filter(|name| layout.level_of(name).is_some());
    let queue = |name: &&String| !facts.observed.queues.iter().any(|queue| queue.name == **name);
    details.extend(levels.filter(queue).map(|name| format!("queue `{name}`")));
    if details.is_empty() {
        return None;
    }
    let mut finding = Finding::new(
        FindingCode::SetDiffers,
        subject(layout),
        format!(
            "{} is missing: messages that would pass it are lost or stay where they are",
            details.join(", ")
        ),
        "start a program of the library that declares the layout, or let it declare the layout by command \
         (rabbitmq-transport delays create)",
    );
    finding.details = details;
    Some(finding)
}

/// Levels that pass on nothing, and who is to blame.
fn stuck(layout: &Layout, facts: &LayoutFacts, targets: &[Route<'_>]) -> Vec<Finding> {
    let mut blocked: Vec<_> =
        targets.iter().filter_map(|target| Some((target.app.clone(), target.blocked()?))).collect();
    blocked.sort();
    blocked.dedup();
    let open = facts.unguarded(layout);
    let mut findings = Vec::new();
    for (queue, looks) in &facts.dead_letters {
        let count = Sign::of(looks).stuck();
        if count == 0 {
            continue;
        }
        let effect = match count >= PREFETCH {
            true => "nothing leaves this level any more, for anybody",
            false => "with 32 of them, nothing would leave this level any more",
        };
        let blame = match (&blocked[..], open.is_empty()) {
            ([], true) => "no destination is known to refuse messages".to_owned(),
            ([], false) => "most likely nobody is bound for them".to_owned(),
            (all, _) => {
                let all: Vec<_> = all.iter().map(|(app, why)| format!("`{app}` ({why})")).collect();
                format!("as far as can be seen they are for {}", all.join(", "))
            }
        };
        let advice = match (&blocked[..], open.is_empty()) {
            (_, false) => format!(
                "run delayline guard {layout}, which keeps what nobody is bound for and has the levels try \
                 again; delayline unroutable list --layout {layout} then says whom the messages are for"
            ),
            ([], true) => format!(
                "run delayline guard {layout} again, which makes the levels try again; docs/doctor.md \
                 (stuck-dead-letters) has a command that shows the keys of messages that stay"
            ),
            (_, true) => format!(
                "make it accept messages again, or take away the binding that leads there, and run delayline \
                 guard {layout}; no message is lost"
            ),
        };
        let them =
            if count == 1 { "1 dead letter goes".to_owned() } else { format!("{count} dead letters go") };
        findings.push(
            Finding::new(
                FindingCode::StuckDeadLetters,
                format!("queue `{queue}`"),
                format!("{them} nowhere, and {effect}; {blame}"),
                advice,
            )
            .about(blocked.iter().map(|(app, _)| app)),
        );
    }
    findings
}

/// Whether what nobody is bound for can stall a level, or is lost.
fn unguarded(layout: &Layout, facts: &LayoutFacts) -> Option<Finding> {
    let open = facts.unguarded(layout);
    if open.is_empty() {
        return None;
    }
    let classic =
        |queue: &&QueueInfo| layout.level_of(&queue.name).is_some() && queue.kind.contains("classic");
    let what = match facts.observed.queues.iter().any(|queue| classic(&queue)) {
        true => "its levels are classic queues: a message that nobody is bound for is dropped silently",
        false => "32 messages that nobody is bound for stall a level of it for everybody, until somebody is",
    };
    let mut finding = Finding::new(
        FindingCode::Unguarded,
        subject(layout),
        what,
        format!("run delayline guard {layout}: a policy has them kept instead; --undo takes it back"),
    );
    finding.details = open.iter().map(|name| format!("exchange `{name}`")).collect();
    Some(finding)
}

/// Whether the policies of the guard are what they were, while those that they repeat are not.
fn stale(layout: &Layout, facts: &LayoutFacts) -> Option<Finding> {
    let details = guard::stale(layout, &facts.observed, &facts.policies);
    if details.is_empty() {
        return None;
    }
    let mut finding = Finding::new(
        FindingCode::GuardStale,
        subject(layout),
        format!("policies have changed since its guard was set: {}", details.join("; ")),
        format!("run delayline guard {layout} again, which follows them; --dry-run shows what it would set"),
    );
    finding.details = details;
    Some(finding)
}

/// Whether a route ends in the queue of the guard.
fn is_kept(layout: &Layout, target: &Route<'_>) -> bool {
    matches!(&target.end, End::Queue(queue) if queue.name == layout.kept())
}

/// What is wrong with a destination.
fn target(target: &Route<'_>) -> Option<Finding> {
    const STALLS: &str = "32 messages due for it stall a level for everybody";
    let finding = match &target.end {
        End::Nowhere(exchange) => Finding::new(
            FindingCode::TargetDeadEnd,
            format!("exchange `{exchange}`"),
            format!("`{}` leads to it, and it leads to no queue: {STALLS}", target.app),
            "bind the queue of the application to it again, or delete it if the application is gone; a guard \
             with --targets keeps its messages instead",
        ),
        End::Queue(queue) if !queue.has_majority() => Finding::new(
            FindingCode::NoMajority,
            format!("queue `{}`", queue.name),
            format!(
                "{} of {} replicas run: it accepts no messages, and {STALLS}",
                queue.online.len(),
                queue.members.len()
            ),
            "start the nodes of the others",
        ),
        End::Queue(queue) => {
            let limit = limit(queue)?;
            let (code, what) = match limit.full {
                true => {
                    (FindingCode::TargetRefuses, format!("it is full ({}) and refuses messages", limit.text))
                }
                false => (
                    FindingCode::TargetCanRefuse,
                    format!("it refuses messages once it is full ({})", limit.text),
                ),
            };
            Finding::new(
                code,
                format!("queue `{}`", queue.name),
                format!("{what}: then {STALLS}, and no guard helps"),
                "consume from it; then remove the limit, or let the queue drop the oldest messages \
                 (x-overflow: drop-head)",
            )
        }
        End::Back(_) => return None,
    };
    Some(finding.about([&target.app]))
}

/// Bindings that also catch the messages of others: `#.orders` matches `eu.orders`.
fn collisions(layout: &Layout, facts: &LayoutFacts) -> Vec<Finding> {
    let delivery = layout.delivery();
    let bindings: BTreeMap<_, _> = facts
        .observed
        .bindings
        .iter()
        .filter(|binding| binding.source == delivery)
        .map(|binding| ((binding.routing_key.as_str(), binding.destination.as_str()), binding))
        .collect();
    let mut findings = Vec::new();
    for (key, destination) in bindings.keys() {
        let mut caught: Vec<_> = bindings
            .keys()
            .filter(|(other, to)| other != key && to != destination)
            .filter_map(|(other, _)| other.strip_prefix("#."))
            .filter(|other| layout.delivers(key, other))
            .collect();
        caught.dedup();
        if caught.is_empty() {
            continue;
        }
        let names: Vec<_> = caught.iter().map(|name| format!("`{name}`")).collect();
        findings.push(
            Finding::new(
                FindingCode::BindingCollision,
                format!("binding `{delivery}` -> `{destination}` with key `{key}`"),
                format!("it also receives the messages of {}", names.join(", ")),
                "give one of the two another name: the library binds by the end of the name, word by word",
            )
            .about(caught),
        );
    }
    findings
}

/// What the guard keeps.
fn unroutable(layout: &Layout, report: &KeptReport) -> Vec<Finding> {
    let queue = format!("queue `{}`", layout.kept());
    let of = |group: &crate::KeptGroup| {
        match (&group.cause.app, group.cause.reason.as_str()) {
        (Some(app), reason) if reason == Reason::NobodyBound.as_str() && group.bound != Some(true) => {
            Finding::new(
                FindingCode::NobodyBound,
                format!("destination `{app}`"),
                format!(
                    "nobody is bound for it, and {} of its messages are kept",
                    grouped(group.group.count)
                ),
                format!(
                    "if it exists, start it, which binds it, and send them on (delayline unroutable replay \
                     --layout {layout} --app {app}); if not, discard them (delayline unroutable discard --layout \
                     {layout} --app {app})"
                ),
            )
            .about([app])
        }
        (_, reason) if reason == Reason::Malformed.as_str() => Finding::new(
            FindingCode::MalformedMessages,
            queue.clone(),
            format!("{} messages have a key that is none of this layout", grouped(group.group.count)),
            format!(
                "see what is wrong with the keys (delayline unroutable list --layout {layout}), correct their \
                 publishers, and discard the messages (delayline unroutable discard --layout {layout} --reason \
                 malformed)"
            ),
        ),
        _ => Finding::new(
            FindingCode::UnroutableWaiting,
            queue.clone(),
            format!("{} messages are kept that could be delivered", grouped(group.group.count)),
            format!("send them on (delayline unroutable replay --layout {layout} --all)"),
        ),
    }
    };
    report.groups.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        KeptGroup,
        compare::Observed,
        drain::Group,
        handover::Look,
        management::{BindingInfo, ExchangeInfo, Policy},
    };
    use delayline_core::topology::TopologySettings;

    /// A layout that is complete, with a queue `Sales`, and no guard.
    fn facts(layout: &Layout) -> LayoutFacts {
        let mut observed = Observed::default();
        for name in layout.exchanges() {
            let kind = "topic".to_owned();
            observed.exchanges.push(ExchangeInfo { name: name.clone(), kind, ..ExchangeInfo::default() });
            if layout.level_of(&name).is_some() {
                observed.queues.push(QueueInfo { name, kind: "quorum".into(), ..QueueInfo::default() });
            }
        }
        observed.queues.push(QueueInfo {
            name: "Sales".into(),
            kind: "quorum".into(),
            ..QueueInfo::default()
        });
        let mut facts = LayoutFacts { observed, ..LayoutFacts::default() };
        bind(&mut facts, layout, "Sales", "queue");
        facts
    }

    fn bind(facts: &mut LayoutFacts, layout: &Layout, name: &str, kind: &str) {
        facts.observed.bindings.push(BindingInfo {
            source: layout.delivery(),
            destination: name.into(),
            destination_type: kind.into(),
            routing_key: format!("#.{name}"),
            ..BindingInfo::default()
        });
    }

    fn guarded(layout: &Layout, facts: &mut LayoutFacts) {
        let definition = [("alternate-exchange".to_owned(), layout.kept().into())].into();
        let policy =
            Policy { pattern: "delay".into(), apply_to: "all".into(), definition, ..Policy::default() };
        facts.policies.push(policy);
        let kind = "fanout".to_owned();
        facts.observed.exchanges.push(ExchangeInfo { name: layout.kept(), kind, ..ExchangeInfo::default() });
        facts.observed.queues.push(QueueInfo { name: layout.kept(), ..QueueInfo::default() });
        facts.observed.bindings.push(BindingInfo {
            source: layout.kept(),
            destination: layout.kept(),
            destination_type: "queue".into(),
            ..BindingInfo::default()
        });
    }

    fn codes(layout: &Layout, facts: &LayoutFacts, kept: Option<&KeptReport>) -> Vec<(&'static str, String)> {
        let topology = Topology::new(TopologySettings::default());
        let findings = examine(&topology, layout, facts, kept);
        findings.into_iter().map(|finding| (finding.code.as_str(), finding.subject)).collect()
    }

    #[test]
    fn only_the_missing_guard_is_found_in_what_is_well() {
        for layout in [Layout::nservicebus(), Layout::celery(None)] {
            let mut facts = facts(&layout);
            assert_eq!(codes(&layout, &facts, None), [("unguarded", format!("layout `{layout}`"))]);
            guarded(&layout, &mut facts);
            assert_eq!(codes(&layout, &facts, None), []);
            facts.observed.queues.remove(0);
            assert_eq!(codes(&layout, &facts, None), [("set-differs", format!("layout `{layout}`"))]);
        }
    }

    #[test]
    fn who_is_to_blame_is_named() {
        let layout = Layout::nservicebus();
        let mut facts = facts(&layout);
        guarded(&layout, &mut facts);
        facts.observed.exchanges.push(ExchangeInfo {
            name: "Old".into(),
            kind: "fanout".into(),
            ..ExchangeInfo::default()
        });
        bind(&mut facts, &layout, "Old", "exchange");
        let looks = [40; 5].map(|due| Look { due, messages: due, ..Look::default() });
        facts.dead_letters.insert("nsb.v2.delay-level-00".into(), looks.into());
        let topology = Topology::new(TopologySettings::default());
        let findings = examine(&topology, &layout, &facts, None);
        let [stuck, dead_end] = &findings[..] else { panic!("{findings:#?}") };
        assert_eq!((stuck.code, &stuck.apps[..]), (FindingCode::StuckDeadLetters, &["Old".to_owned()][..]));
        assert!(stuck.what.contains("40") && stuck.what.contains("leads to no queue"), "{stuck:?}");
        assert_eq!(
            (dead_end.code, dead_end.subject.as_str()),
            (FindingCode::TargetDeadEnd, "exchange `Old`")
        );
        // With the guard on it as well, it is none.
        facts.dead_letters.clear();
        facts.policies[0].pattern = "delay|Old".into();
        facts.settle();
        assert_eq!(codes(&layout, &facts, None), []);
    }

    #[test]
    fn an_end_of_a_name_is_a_collision() {
        let layout = Layout::nservicebus();
        let mut facts = facts(&layout);
        guarded(&layout, &mut facts);
        facts.observed.queues.push(QueueInfo { name: "Company.Sales".into(), ..QueueInfo::default() });
        bind(&mut facts, &layout, "Company.Sales", "queue");
        let found = codes(&layout, &facts, None);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!((found[0].0, found[0].1.contains("`#.Sales`")), ("binding-collision", true));
    }

    #[test]
    fn what_is_kept_is_told_by_destination() {
        let layout = Layout::celery(None);
        let mut facts = facts(&layout);
        guarded(&layout, &mut facts);
        let group = |app, reason| KeptGroup::new(app, reason, Group { count: 7, ..Group::default() });
        let mut bound = group(Some("tasks"), "nobody-bound");
        bound.bound = Some(true);
        let groups = vec![group(Some("gone"), "nobody-bound"), bound, group(None, "malformed")];
        let found = codes(&layout, &facts, Some(&KeptReport::new((21, 21), groups)));
        let found: Vec<_> = found.iter().map(|(code, subject)| (*code, subject.as_str())).collect();
        assert_eq!(
            found,
            [
                ("nobody-bound", "destination `gone`"),
                ("malformed-messages", "queue `delayline.guard.celery`"),
                ("unroutable-waiting", "queue `delayline.guard.celery`"),
            ]
        );
    }
}
