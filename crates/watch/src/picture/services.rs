//! Retries, gateways, recalls and schedules, from their queues and the counts of this process.

use std::collections::{BTreeMap, BTreeSet};

use delayline_admin::RecallCounts;
use delayline_broker::QueueInfo;
use delayline_client::retry::AppStats;
use delayline_core::{codec::AppKey, topology::Names};
use delayline_schedules::{ScheduleCounts, ScheduleLine, State};
use delayline_settings::Settings;

use super::{AppRetries, GatewayView, RecallView, ScheduleView, SchedulesView};

/// How many schedules are shown.
const SHOWN: usize = 12;

/// The retries of each application, the most of the last minute first; `before` has those until a minute ago.
pub(super) fn retries(
    counts: &BTreeMap<String, AppStats>,
    before: Option<&BTreeMap<String, u64>>,
) -> Vec<AppRetries> {
    let view = |(app, count): (&String, &AppStats)| {
        let then = before.and_then(|then| then.get(app)).copied().unwrap_or(0);
        AppRetries {
            app: app.clone(),
            retries: count.retries,
            last_minute: count.retries.saturating_sub(then),
            parked: count.parked.values().sum(),
        }
    };
    let mut apps: Vec<_> = counts.iter().map(view).collect();
    apps.sort_by_key(|app| std::cmp::Reverse((app.last_minute, app.retries, app.parked)));
    apps
}

/// The schedules that are due next. Paused and ended ones come last.
pub(super) fn schedules(counts: ScheduleCounts) -> SchedulesView {
    let (leads, number) = (counts.leads, counts.schedules.len());
    let mut all: Vec<_> = counts.schedules.into_iter().collect();
    let place =
        |(_, line): &(String, ScheduleLine)| (line.next.is_none(), line.next, line.state != State::Active);
    all.sort_by_key(place);
    let view = |(schedule, line): (String, ScheduleLine)| {
        let ScheduleLine { app, state, next, missed, .. } = line;
        ScheduleView { schedule, app, state, next, missed }
    };
    SchedulesView { leads, number, first: all.into_iter().take(SHOWN).map(view).collect() }
}

/// The state of each gateway that has a queue.
pub(super) fn gateways(names: &Names, queues: &[QueueInfo]) -> Vec<GatewayView> {
    let gateways: BTreeSet<_> = queues.iter().filter_map(|queue| names.gateway_of(&queue.name)).collect();
    let queue = |name: String| queues.iter().find(|queue| queue.name == name);
    let view = |gateway: &str| {
        let (waiting, due) = (queue(names.gateway(gateway)), queue(names.gateway_due(gateway)));
        GatewayView {
            gateway: gateway.to_owned(),
            waiting: waiting.map_or(Some(0), |queue| queue.messages),
            due: due.map_or(Some(0), |queue| queue.messages),
            channels: waiting.map_or(Some(0), |queue| queue.consumers),
        }
    };
    gateways.into_iter().map(view).collect()
}

/// The state of each application that has a queue of recalled messages.
pub(super) fn recalls(
    names: &Names,
    settings: &Settings,
    known: Option<&RecallCounts>,
    queues: &[QueueInfo],
) -> Vec<RecallView> {
    let counts = known.filter(|counts| counts.at.is_some());
    let views = queues.iter().filter_map(|queue| {
        let app = AppKey::new(names.app_of_recalled(&queue.name)?).ok()?;
        let counts = counts.map(|counts| counts.apps.get(app.as_str()).copied().unwrap_or_default());
        Some(RecallView {
            pending: counts.map(|counts| counts.pending),
            over: counts.map(|counts| counts.over),
            swept: counts.map(|counts| counts.swept),
            quota: settings.max_recalls.of(&app),
            recalled: queue.messages,
            app: app.to_string(),
        })
    });
    let mut views: Vec<_> = views.collect();
    views.sort_by(|one, other| one.app.cmp(&other.app));
    views
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules_that_are_due_next_come_first() {
        let line = |state, next: Option<i64>| ScheduleLine {
            app: "billing".into(),
            state,
            next: next.map(|second| jiff::Timestamp::from_second(second).unwrap()),
            published: 0,
            missed: 0,
        };
        let mut counts = ScheduleCounts::default();
        for (name, line) in [
            ("a", line(State::Paused, None)),
            ("b", line(State::Active, None)),
            ("c", line(State::Active, Some(2))),
            ("d", line(State::Active, Some(1))),
        ] {
            counts.schedules.insert(name.into(), line);
        }
        let names = |view: SchedulesView| view.first.into_iter().map(|it| it.schedule).collect::<Vec<_>>();
        assert_eq!(names(schedules(counts.clone())), ["d", "c", "b", "a"]);
        for number in 0..SHOWN {
            counts.schedules.insert(format!("more-{number}"), line(State::Active, Some(0)));
        }
        let view = schedules(counts);
        assert_eq!((view.number, view.first.len()), (SHOWN + 4, SHOWN));
        assert!(names(view).iter().all(|name| name.starts_with("more-")));
    }
}
