//! Recurring schedules: pure.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};

use crate::{doctor::evidence::Evidence, finding::Finding, finding::FindingCode};
use delayline_core::{
    codec::{AppKey, Delay, RoutingKey},
    topology::{Topology, topic_matches},
};
use delayline_messages::{number::counted, number::named};
use delayline_schedules::{ScheduleSummary, State};

/// How late an occurrence is when something is wrong. A daemon publishes hours ahead, or at once.
const LATE: SignedDuration = SignedDuration::from_secs(90);

/// Checks all schedules.
pub(in crate::doctor) fn check(topology: &Topology, evidence: &Evidence, now: Timestamp) -> Vec<Finding> {
    let set = &topology.settings().set;
    let active: Vec<_> = evidence.schedules.iter().filter(|it| it.state == State::Active).collect();
    let names = |of: &[&ScheduleSummary]| named(of.iter().map(|it| format!("`{}`", it.schedule)));
    let apps = |of: &[&ScheduleSummary]| {
        of.iter().filter_map(|it| AppKey::new(it.app.clone()).ok()).collect::<BTreeSet<_>>()
    };
    let mut findings = Vec::new();
    let turn = evidence.snapshot.queues.get(&topology.names().schedules_turn());
    let served = turn.and_then(|queue| queue.consumers);
    if served == Some(0) && !active.is_empty() {
        let finding = Finding::new(
            FindingCode::SchedulesUnserved,
            format!("set `{set}`"),
            format!(
                "no daemon publishes its {}. Messages that were published ahead arrive; after them, \
                 occurrences are missed",
                counted(active.len() as u64, "active schedule")
            ),
            format!("run `{}`, without --no-schedules", set.command(&["serve"])),
        );
        findings.push(finding.about(apps(&active)));
    }
    let show = set.command(&["schedule", "list"]);
    let late = |it: &&&ScheduleSummary| {
        it.fault.is_some() || it.next.is_some_and(|next| now.duration_since(next) > LATE)
    };
    // Without a daemon, all of them stand still.
    let stalled: Vec<_> = active.iter().filter(late).filter(|_| served != Some(0)).copied().collect();
    if !stalled.is_empty() {
        let fault = stalled.iter().find_map(|it| it.fault.clone());
        let why = fault.map(|fault| format!(": {fault}")).unwrap_or_default();
        let finding = Finding::new(
            FindingCode::ScheduleStalled,
            format!("schedule {}", names(&stalled)),
            format!("occurrences are due and were not published{why}"),
            format!(
                "see the log of `{}` for the reason; `{show}` shows how late they are",
                set.command(&["serve"])
            ),
        );
        findings.push(finding.about(apps(&stalled)));
    }
    let bindings = evidence.snapshot.app_bindings(topology);
    let is_bound = |app: AppKey| {
        let key = RoutingKey::new(Delay::ZERO, app).encode();
        bindings.iter().any(|binding| topic_matches(&binding.key, &key))
    };
    let is_unbound = |it: &&&ScheduleSummary| AppKey::new(it.app.clone()).is_ok_and(|app| !is_bound(app));
    let unbound: Vec<_> = active.iter().filter(is_unbound).copied().collect();
    if !unbound.is_empty() {
        let finding = Finding::new(
            FindingCode::ScheduleUnbound,
            format!("schedule {}", names(&unbound)),
            "no queue is bound for its app key, so its messages become unroutable",
            format!(
                "run `{}`, or remove the schedule",
                set.command(&["app", "add", unbound[0].app.as_str()])
            ),
        );
        findings.push(finding.about(apps(&unbound)));
    }
    let is_over = |it: &&&ScheduleSummary| it.next.is_none() && it.fault.is_none();
    let ended: Vec<_> = active.iter().filter(is_over).copied().collect();
    if !ended.is_empty() {
        findings.push(Finding::new(
            FindingCode::ScheduleEnded,
            format!("schedule {}", names(&ended)),
            "it has no further occurrence",
            format!(
                "change its end, or remove it: `{}`",
                set.command(&["schedule", "remove", ended[0].schedule.as_str()])
            ),
        ));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use delayline_broker::{QueueInfo, Snapshot};
    use delayline_core::topology::TopologySettings;
    use delayline_schedules::{Book, Spec, Timing};

    /// The findings about one schedule, one day after it was added.
    fn found(consumers: u64, app_is_bound: bool, change: fn(&mut Spec)) -> Vec<&'static str> {
        let topology = Topology::new(TopologySettings::default()).with_schedules();
        let app = AppKey::new("billing").unwrap();
        let mut snapshot = Snapshot::default().with(topology.objects());
        let turn = topology.names().schedules_turn();
        let turn = QueueInfo { name: turn, consumers: Some(consumers), ..QueueInfo::default() };
        let binding = topology.app_binding(&app, "in");
        snapshot.enter([], [turn], app_is_bound.then(|| (&binding).into()));
        let now: Timestamp = "2026-12-24T00:00:00Z".parse().unwrap();
        let timing = Timing::new(Some("30 12 * * *".into()), None, None).unwrap();
        let mut spec = Spec::new(app, timing);
        change(&mut spec);
        let book = Book::of("noon".parse().unwrap(), spec, now - SignedDuration::from_hours(24));
        let settings = delayline_settings::Settings::from_url("amqp://localhost").unwrap();
        let schedules = delayline_schedules::summaries(&book, &settings, now);
        let evidence = Evidence { snapshot, schedules, ..Evidence::default() };
        check(&topology, &evidence, now).iter().map(|it| it.code.as_str()).collect()
    }

    #[test]
    fn schedules_that_do_not_publish_are_found() {
        let well = |spec: &mut Spec| spec.start = Some("2026-12-24T00:00:00Z".parse().unwrap());
        assert_eq!(found(1, true, well), [""; 0]);
        assert_eq!(found(0, true, well), ["schedules-unserved"]);
        assert_eq!(found(1, false, well), ["schedule-unbound"]);
        assert_eq!(found(1, true, |_| {}), ["schedule-stalled"]);
        assert_eq!(found(0, true, |_| {}), ["schedules-unserved"], "one cause");
        assert_eq!(
            found(1, true, |it| it.end = Some("2026-12-23T01:00:00Z".parse().unwrap())),
            ["schedule-ended"]
        );
        let nowhere = |it: &mut Spec| {
            it.timing = Timing::Cron { cron: "0 8 * * *".into(), zone: "Nowhere/Land".into() };
        };
        assert_eq!(found(1, true, nowhere), ["schedule-stalled"]);
    }
}
