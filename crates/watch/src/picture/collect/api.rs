//! The part of a picture that the management API gives.

use std::{collections::BTreeMap, time::Duration};

use delayline_admin::{AppBinding, RecallStats};
use delayline_broker::{
    Alarm, Look, ManagementApi, NO_STATISTICS, QueueCounts, QueueInfo, Reading, remembered,
};
use delayline_core::topology::Queue;
use delayline_settings::NO_MANAGEMENT;
use jiff::Timestamp;

use super::{
    super::{LandingView, Level, handing_on::HandingOn, services},
    Collector,
};

impl Collector {
    /// Takes in the management API's report.
    pub(super) fn take_reading(&mut self, reading: &Reading) -> Result<(), String> {
        let QueueCounts { queues, entry, alarms, without_statistics } = reading.counts.as_ref()?;
        let api = match &self.api {
            None => return Err(NO_MANAGEMENT.into()),
            Some(Err(error)) => return Err(error.to_string()),
            Some(Ok(api)) => api,
        };
        let vhost = &self.settings.broker.vhost;
        self.api_silence =
            without_statistics.then(|| format!("published messages, and consumers: {NO_STATISTICS}"));
        match alarms {
            Ok(alarms) => {
                let node = |alarm: &Alarm| format!("{} ({})", alarm.node, alarm.resource);
                self.last.broker.alarms = Some(alarms.iter().map(node).collect());
            }
            Err(error) => {
                self.last.broker.alarms = None;
                let unknown = format!("whether a node is in alarm: {error}");
                let silence = self.api_silence.iter().cloned().chain([unknown]);
                self.api_silence = Some(silence.collect::<Vec<_>>().join("; "));
            }
        }
        if self.sources.apps {
            let bindings = api.bindings_from(vhost, &self.topology.names().dispatch());
            let bindings = bindings.map_err(|error| error.to_string())?;
            self.last.apps = Some(AppBinding::all(&self.topology, bindings));
        }
        let names = self.topology.names();
        let recalls = self.sources.recalls.as_deref().map(RecallStats::counts);
        self.last.recalls = Some(services::recalls(names, &self.settings, recalls.as_ref(), queues));
        self.last.gateways = Some(services::gateways(names, queues));
        self.entered = entry.as_ref().map(|entry| entry.message_stats.publish_in);
        let held = queues.iter().filter(|queue| queue.messages_unacknowledged > Some(0));
        self.in_hands = held.filter_map(|queue| Some((queue.name.clone(), queue.messages?))).collect();
        let queues: BTreeMap<&str, &QueueInfo> =
            queues.iter().map(|queue| (queue.name.as_str(), queue)).collect();
        self.topology = self.topology.as_installed(false, |name| queues.contains_key(name));
        let waits = |queue: &&Queue| queue.level.is_some();
        let published = |queue: &Queue| queues.get(queue.name.as_str())?.published();
        self.published = self.topology.queues().filter(waits).map(published).sum();
        let (now, at) = (self.started.elapsed(), self.last.at);
        for level in &mut self.last.levels {
            if !queues.contains_key(level.queue.as_str()) {
                level.forget_dead_letters();
                continue;
            }
            let (mut handing_on, mut open, mut all_stuck, mut first) = (Some(0), 0, 0, None);
            let of_level =
                self.topology.queues().filter(|queue| queue.level.is_some_and(|it| it == level.level));
            for queue in of_level.filter_map(|queue| queues.get(queue.name.as_str())) {
                let Some(seen) = note(&mut self.handing_on, api, (vhost, queue), now)? else {
                    handing_on = None;
                    break;
                };
                handing_on = handing_on.map(|sum| sum + seen.due);
                open += seen.open;
                all_stuck += seen.stuck;
                first = first.into_iter().chain(seen.since).min();
            }
            if handing_on.is_none() {
                level.forget_dead_letters();
                continue;
            }
            (level.handing_on, level.open, level.stuck) = (handing_on, Some(open), Some(all_stuck));
            level.stuck_since = began((at, now), first, level.stuck_since);
        }
        let last = self.last.landings.take().unwrap_or_default();
        let mut landings = Vec::new();
        for queue in queues.values() {
            let Some(app) = self.topology.names().app_of_landing(&queue.name) else { continue };
            let Some(seen) = note(&mut self.handing_on, api, (vhost, queue), now)? else { continue };
            let known = last.iter().find(|last| last.queue == queue.name).and_then(|last| last.stuck_since);
            landings.push(LandingView {
                app: app.to_owned(),
                queue: queue.name.clone(),
                open: seen.open,
                stuck: seen.stuck,
                stuck_since: began((at, now), seen.since, known),
            });
        }
        landings.retain(|it| it.open + it.stuck > 0);
        self.last.landings = Some(landings);
        Ok(())
    }

    /// Forgets all of that.
    pub(super) fn forget_api(&mut self) {
        self.last.apps = None;
        self.last.broker.alarms = None;
        self.api_silence = None;
        self.last.landings = None;
        self.last.recalls = None;
        self.last.gateways = None;
        (self.entered, self.published) = (None, None);
        self.in_hands.clear();
        self.handing_on.forget();
        for level in &mut self.last.levels {
            level.forget_dead_letters();
        }
    }
}

/// The due messages of a queue.
struct Due {
    due: u64,
    open: u64,
    stuck: u64,
    /// Since when it has had stuck messages.
    since: Option<Duration>,
}

/// Notes the current count of a queue; `None` if the broker does not report its due messages.
fn note(
    seen: &mut HandingOn,
    api: &ManagementApi,
    (vhost, queue): (&str, &QueueInfo),
    now: Duration,
) -> Result<Option<Due>, String> {
    let name = queue.name.as_str();
    let Some(due) = queue.messages_dlx else { return Ok(None) };
    // The broker has counts from before the first look.
    if due > 0 && seen.is_new(name) {
        let looks = remembered(api, vhost, queue).map_err(|error| error.to_string())?;
        seen.begin_with(name, now, &looks);
    }
    let (messages, reductions) = (queue.messages.unwrap_or(0).max(due), queue.reductions);
    seen.note(name, now, Look { due, messages, reductions });
    let open = if seen.is_open(name) { due } else { 0 };
    let (stuck, since) = seen.stuck(name).unzip();
    Ok(Some(Due { due, open, stuck: stuck.map_or(0, |count: u64| count.min(due)), since }))
}

/// The time at which messages got stuck, from the time since the start and the time that was known before.
fn began(
    (at, now): (Timestamp, Duration),
    since: Option<Duration>,
    known: Option<Timestamp>,
) -> Option<Timestamp> {
    let began = at.checked_sub(now.saturating_sub(since?)).unwrap_or(at);
    Some(known.map_or(began, |known| known.min(began)))
}

impl Level {
    fn forget_dead_letters(&mut self) {
        (self.handing_on, self.open, self.stuck, self.stuck_since) = (None, None, None, None);
    }
}
