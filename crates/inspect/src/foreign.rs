//! Problems in a layout.
//!
//! The broker is asked first; then each check is a pure function of the answers.

use delayline_core::shell::command;
use std::collections::BTreeSet;

use delayline_broker::{End, PREFETCH, QueueInfo, Route, Snapshot, Stall, layout_routes, limit};
use delayline_core::topology::Topology;
use delayline_settings::{Layout, Settings};

use crate::{doctor::DoctorOptions, doctor::DoctorReport};
use crate::{finding::Finding, finding::FindingCode, guard, layout, layout::gather};
use delayline_messages::{error::AdminError, held::Kept, held::KeptReport, held::Reason, number::grouped};

/// Checks a layout: stuck messages and their cause, unroutable messages, and the guard. Changes nothing.
///
/// # Errors If the vhost has no such layout, or the broker cannot be asked, over AMQP or through its
/// management API.
pub fn doctor_layout(
    settings: &Settings,
    topology: &Topology,
    layout: &Layout,
    options: &DoctorOptions,
) -> Result<DoctorReport, AdminError> {
    let snapshot = gather(settings, layout)?;
    let mut unchecked = snapshot.unchecked.clone();
    let mut kept = None;
    if options.sample > 0 && layout::unroutable(&snapshot, layout) > Some(0) {
        match Kept::Guarded(layout.clone()).list(settings, topology, options.sample, |_| {}) {
            Ok(report) => kept = Some(report),
            Err(error) => unchecked.push(format!("the applications of the unroutable messages: {error}")),
        }
    }
    let findings = examine(topology, layout, &snapshot, kept.as_ref());
    Ok(DoctorReport { set: layout.to_string(), findings, unchecked })
}

/// All checks, on the answers of the broker.
fn examine(
    topology: &Topology,
    layout: &Layout,
    snapshot: &Snapshot,
    kept: Option<&KeptReport>,
) -> Vec<Finding> {
    let targets = layout_routes(topology, layout, snapshot);
    let mut findings = Vec::new();
    findings.extend(missing(layout, snapshot));
    findings.extend(stuck(layout, snapshot, &targets));
    findings.extend(unguarded(layout, snapshot));
    findings.extend(stale(layout, snapshot));
    let classic = has_classic_levels(layout, snapshot);
    let applications = targets.iter().filter(|target| !is_kept(layout, target));
    findings.extend(applications.flat_map(|it| target(it, classic)));
    findings.extend(collisions(layout, snapshot));
    findings.extend(kept.into_iter().flat_map(|report| unroutable(layout, report)));
    findings.sort();
    findings.dedup();
    findings
}

fn subject(layout: &Layout) -> String {
    format!("layout `{layout}`")
}

fn guard_add(layout: &Layout) -> String {
    command(&["guard", "add", &layout.to_string()])
}

/// A command on the messages that its guard keeps.
fn held(layout: &Layout, verb: &str, more: &[&str]) -> String {
    command(&[&["held", verb, "--layout", &layout.to_string()], more].concat())
}

/// Missing objects of the layout.
fn missing(layout: &Layout, snapshot: &Snapshot) -> Option<Finding> {
    let exchanges = layout.exchanges();
    let gone = |name: &&String| !snapshot.exchanges.contains_key(*name);
    let mut details: Vec<_> =
        exchanges.iter().filter(gone).map(|name| format!("exchange `{name}`")).collect();
    let levels = exchanges.iter().filter(|name| layout.level_of(name).is_some());
    let queue = |name: &&String| !snapshot.queues.contains_key(*name);
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
        match layout == &Layout::nservicebus() {
            true => {
                "start a program that uses the library, which declares the layout, or declare the layout with \
                 the library's command (rabbitmq-transport delays create)"
            }
            false => "start a program that uses the library, which declares the layout",
        },
    );
    finding.details = details;
    Some(finding)
}

/// Levels that pass no messages on, and the cause.
fn stuck(layout: &Layout, snapshot: &Snapshot, targets: &[Route<'_>]) -> Vec<Finding> {
    let mut blocked: Vec<_> =
        targets.iter().filter_map(|target| Some((target.app.clone(), target.blocked()?))).collect();
    blocked.sort();
    blocked.dedup();
    let open = layout::unguarded(snapshot, layout);
    let mut findings = Vec::new();
    for (queue, looks) in &snapshot.dead_letters {
        let count = Stall::of(looks).stuck();
        if count == 0 {
            continue;
        }
        let effect = match count >= PREFETCH {
            true => "this level delivers nothing to any application",
            false => "with 32 of them, this level would deliver nothing to any application",
        };
        let blame = match (&blocked[..], open.is_empty()) {
            ([], true) => "no destination is known to refuse messages".to_owned(),
            ([], false) => "most likely no queue is bound for them".to_owned(),
            (all, _) => {
                let all: Vec<_> = all.iter().map(|(app, why)| format!("`{app}` ({why})")).collect();
                format!("they are probably for {}", all.join(", "))
            }
        };
        let advice = match (&blocked[..], open.is_empty()) {
            (_, false) => format!(
                "run `{}`, which keeps undeliverable messages and makes the levels try again; then `{}` \
                 shows the applications of the messages",
                guard_add(layout),
                held(layout, "list", &[])
            ),
            ([], true) => format!(
                "run `{}` again, which makes the levels try again. A command in docs/runbook/stuck.md \
                 (stuck-dead-letters) shows the keys of stuck messages",
                guard_add(layout)
            ),
            (_, true) => format!(
                "make it accept messages again, or remove the binding that leads there. Then run `{}`. No \
                 message is lost",
                guard_add(layout)
            ),
        };
        let them = if count == 1 {
            "1 dead letter is stuck".to_owned()
        } else {
            format!("{count} dead letters are stuck")
        };
        findings.push(
            Finding::new(
                FindingCode::StuckDeadLetters,
                format!("queue `{queue}`"),
                format!("{them}: {effect}; {blame}"),
                advice,
            )
            .about(blocked.iter().map(|(app, _)| app)),
        );
    }
    findings
}

/// Whether unroutable messages can stall a level, or are lost.
fn unguarded(layout: &Layout, snapshot: &Snapshot) -> Option<Finding> {
    let open = layout::unguarded(snapshot, layout);
    if open.is_empty() {
        return None;
    }
    let what = match has_classic_levels(layout, snapshot) {
        true => "its levels are classic queues: a message without a bound queue is dropped silently",
        false => {
            "32 messages without a bound queue stall a level for every application, until a queue is bound"
        }
    };
    let mut finding = Finding::new(
        FindingCode::Unguarded,
        subject(layout),
        what,
        format!(
            "run `{}`: a policy makes the broker keep them instead; `{}` removes it",
            guard_add(layout),
            command(&["guard", "remove", &layout.to_string()])
        ),
    );
    finding.details = open.iter().map(|name| format!("exchange `{name}`")).collect();
    Some(finding)
}

/// Whether levels are classic queues. These pass messages on at most once, so a message that is refused is
/// lost, and stalls nothing.
fn has_classic_levels(layout: &Layout, snapshot: &Snapshot) -> bool {
    let classic =
        |queue: &QueueInfo| layout.level_of(&queue.name).is_some() && queue.kind.contains("classic");
    snapshot.queues.values().any(classic)
}

/// Whether the policies that the guard repeats have changed, and its own have not.
fn stale(layout: &Layout, snapshot: &Snapshot) -> Option<Finding> {
    let details = guard::stale(layout, snapshot);
    if details.is_empty() {
        return None;
    }
    let mut finding = Finding::new(
        FindingCode::GuardStale,
        subject(layout),
        format!("policies have changed since its guard was set: {}", details.join("; ")),
        format!(
            "run `{}` again, which follows the changes; --dry-run shows the policies it would set",
            guard_add(layout)
        ),
    );
    finding.details = details;
    Some(finding)
}

/// Whether a route ends in the queue of the guard.
fn is_kept(layout: &Layout, target: &Route<'_>) -> bool {
    matches!(&target.end, End::Queue(queue) if queue.name == layout.kept())
}

/// The finding about a destination.
fn target(target: &Route<'_>, classic: bool) -> Option<Finding> {
    let stalls = match classic {
        true => "messages due for it are lost, since the levels are classic queues",
        false => "32 messages due for it stall a level for every application",
    };
    let finding = match &target.end {
        End::Nowhere(exchange) => Finding::new(
            FindingCode::TargetDeadEnd,
            format!("exchange `{exchange}`"),
            format!("`{}` leads to it, and it leads to no queue: {stalls}", target.app),
            "bind the queue of the application to it again, or delete it if the application no longer \
             exists; a guard with --targets keeps its messages instead",
        ),
        End::Queue(queue) if !queue.has_majority() => Finding::new(
            FindingCode::NoMajority,
            format!("queue `{}`", queue.name),
            format!(
                "{} of {} replicas run: it accepts no messages, and {stalls}",
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
                format!("{what}: then {stalls}, and no guard helps"),
                "consume from it. Then remove the limit, or let the queue drop the oldest messages \
                 (x-overflow: drop-head)",
            )
        }
        End::Back(_) => return None,
    };
    Some(finding.about([&target.app]))
}

/// Bindings that also catch the messages of other applications: `#.orders` matches `eu.orders`.
fn collisions(layout: &Layout, snapshot: &Snapshot) -> Vec<Finding> {
    let delivery = layout.delivery();
    let bindings = snapshot.bindings_from(&delivery).iter();
    let bindings: BTreeSet<_> =
        bindings.map(|binding| (binding.key.as_str(), binding.destination.name())).collect();
    let mut findings = Vec::new();
    for (key, destination) in &bindings {
        let mut caught: Vec<_> = bindings
            .iter()
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
                "rename either of them: the library binds by the end of the name, word by word",
            )
            .about(caught),
        );
    }
    findings
}

/// The messages that the guard keeps.
fn unroutable(layout: &Layout, report: &KeptReport) -> Vec<Finding> {
    let queue = format!("queue `{}`", layout.kept());
    let of =
        |group: &delayline_messages::held::KeptGroup| {
            match (&group.cause.app, group.cause.reason.as_str()) {
        (Some(app), reason) if reason == Reason::NobodyBound.as_str() && group.bound != Some(true) => {
            Finding::new(
                FindingCode::NobodyBound,
                format!("destination `{app}`"),
                format!(
                    "no queue is bound for it, and {} of its messages are kept",
                    grouped(group.group.count)
                ),
                format!(
                    "if it exists, start it, which binds it, and replay them (`{}`); if not, discard them \
                     (`{}`)",
                    held(layout, "replay", &["--app", app]),
                    held(layout, "discard", &["--app", app])
                ),
            )
            .about([app])
        }
        (_, reason) if reason == Reason::Malformed.as_str() => Finding::new(
            FindingCode::MalformedMessages,
            queue.clone(),
            format!("{} messages have a key that no message of this layout has", grouped(group.group.count)),
            format!(
                "check the keys (`{}`), correct their publishers, and discard the messages (`{}`)",
                held(layout, "list", &[]),
                held(layout, "discard", &["--reason", "malformed"])
            ),
        ),
        _ => Finding::new(
            FindingCode::UnroutableWaiting,
            queue.clone(),
            format!("{} messages are kept that could be delivered", grouped(group.group.count)),
            format!("replay them (`{}`)", held(layout, "replay", &["--all"])),
        ),
    }
        };
    report.groups.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::enter_alternates;
    use delayline_broker::{BindingInfo, ExchangeInfo, Look, Policy, Snapshot};
    use delayline_core::codec::Level;
    use delayline_core::topology::TopologySettings;
    use delayline_messages::{drain::Group, held::KeptGroup};

    /// A layout that is complete, with a queue `Sales`, and no guard.
    fn complete(layout: &Layout) -> Snapshot {
        let mut snapshot = Snapshot::default();
        for name in layout.exchanges() {
            if layout.level_of(&name).is_some() {
                snapshot.enter([], [queue(&name)], []);
            }
            snapshot.enter([exchange(&name, "topic")], [], []);
        }
        snapshot.enter([], [queue("Sales")], []);
        bind(&mut snapshot, layout, "Sales", "queue");
        snapshot
    }

    fn queue(name: &str) -> QueueInfo {
        QueueInfo { name: name.into(), kind: "quorum".into(), ..QueueInfo::default() }
    }

    fn exchange(name: &str, kind: &str) -> ExchangeInfo {
        ExchangeInfo { name: name.into(), kind: kind.into(), ..ExchangeInfo::default() }
    }

    fn bind(snapshot: &mut Snapshot, layout: &Layout, name: &str, kind: &str) {
        let binding = BindingInfo {
            source: layout.delivery(),
            destination: name.into(),
            destination_type: kind.into(),
            routing_key: format!("#.{name}"),
            ..BindingInfo::default()
        };
        snapshot.enter([], [], [binding]);
    }

    fn guard_it(layout: &Layout, snapshot: &mut Snapshot) {
        let definition = [("alternate-exchange".to_owned(), layout.kept().into())].into();
        let policy =
            Policy { pattern: "delay".into(), apply_to: "all".into(), definition, ..Policy::default() };
        snapshot.policies.user = Ok(vec![policy]);
        let binding = BindingInfo {
            source: layout.kept(),
            destination: layout.kept(),
            destination_type: "queue".into(),
            ..BindingInfo::default()
        };
        snapshot.enter([exchange(&layout.kept(), "fanout")], [queue(&layout.kept())], [binding]);
        enter_alternates(snapshot);
    }

    fn codes(layout: &Layout, snapshot: &Snapshot, kept: Option<&KeptReport>) -> Vec<(&'static str, String)> {
        let topology = Topology::new(TopologySettings::default());
        let findings = examine(&topology, layout, snapshot, kept);
        findings.into_iter().map(|finding| (finding.code.as_str(), finding.subject)).collect()
    }

    #[test]
    fn in_a_complete_layout_only_the_missing_guard_is_found() {
        for layout in [Layout::nservicebus(), Layout::celery(None)] {
            let mut snapshot = complete(&layout);
            assert_eq!(codes(&layout, &snapshot, None), [("unguarded", format!("layout `{layout}`"))]);
            guard_it(&layout, &mut snapshot);
            assert_eq!(codes(&layout, &snapshot, None), []);
            snapshot.queues.remove(&layout.level(Level::TOP));
            assert_eq!(codes(&layout, &snapshot, None), [("set-differs", format!("layout `{layout}`"))]);
        }
    }

    #[test]
    fn the_blocked_destination_is_named() {
        let layout = Layout::nservicebus();
        let mut snapshot = complete(&layout);
        guard_it(&layout, &mut snapshot);
        snapshot.enter([exchange("Old", "fanout")], [], []);
        bind(&mut snapshot, &layout, "Old", "exchange");
        let looks = [40; 5].map(|due| Look { due, messages: due, ..Look::default() });
        snapshot.dead_letters.insert("nsb.v2.delay-level-00".into(), looks.into());
        let topology = Topology::new(TopologySettings::default());
        let findings = examine(&topology, &layout, &snapshot, None);
        let [stuck, dead_end] = &findings[..] else { panic!("{findings:#?}") };
        assert_eq!((stuck.code, &stuck.apps[..]), (FindingCode::StuckDeadLetters, &["Old".to_owned()][..]));
        assert!(stuck.what.contains("40") && stuck.what.contains("leads to no queue"), "{stuck:?}");
        assert_eq!(
            (dead_end.code, dead_end.subject.as_str()),
            (FindingCode::TargetDeadEnd, "exchange `Old`")
        );
        // With the guard on it as well, there is no dead end.
        snapshot.dead_letters.clear();
        snapshot.policies.user.as_mut().unwrap()[0].pattern = "delay|Old".into();
        enter_alternates(&mut snapshot);
        assert_eq!(codes(&layout, &snapshot, None), []);
    }

    #[test]
    fn behind_classic_levels_refused_messages_are_lost_and_stall_nothing() {
        let layout = Layout::nservicebus_v1();
        let mut snapshot = complete(&layout);
        guard_it(&layout, &mut snapshot);
        snapshot.enter([exchange("Old", "fanout")], [], []);
        bind(&mut snapshot, &layout, "Old", "exchange");
        let topology = Topology::new(TopologySettings::default());
        let said = |snapshot: &Snapshot| examine(&topology, &layout, snapshot, None)[0].what.clone();
        assert!(said(&snapshot).contains("stall a level"), "{}", said(&snapshot));
        snapshot.queues.values_mut().for_each(|queue| queue.kind = "classic".into());
        assert!(said(&snapshot).contains("messages due for it are lost"), "{}", said(&snapshot));
    }

    #[test]
    fn an_end_of_a_name_is_a_collision() {
        let layout = Layout::nservicebus();
        let mut snapshot = complete(&layout);
        guard_it(&layout, &mut snapshot);
        snapshot.enter([], [queue("Company.Sales")], []);
        bind(&mut snapshot, &layout, "Company.Sales", "queue");
        let found = codes(&layout, &snapshot, None);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!((found[0].0, found[0].1.contains("`#.Sales`")), ("binding-collision", true));
    }

    #[test]
    fn kept_messages_are_reported_by_destination() {
        let layout = Layout::celery(None);
        let mut snapshot = complete(&layout);
        guard_it(&layout, &mut snapshot);
        let group = |app, reason| KeptGroup::new(app, reason, Group { count: 7, ..Group::default() });
        let mut bound = group(Some("tasks"), "nobody-bound");
        bound.bound = Some(true);
        let groups = vec![group(Some("gone"), "nobody-bound"), bound, group(None, "malformed")];
        let found = codes(&layout, &snapshot, Some(&KeptReport::new((21, 21), groups)));
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
