//! The part of a picture that the management API gives.

use std::{collections::BTreeMap, time::Duration};

use delayline_admin::{AppBinding, RecallStats};
use delayline_broker::{Alarm, Look, NO_STATISTICS, QueueCounts, QueueInfo, Reading, remembered};
use delayline_core::topology::Queue;
use delayline_settings::NO_MANAGEMENT;

use super::{
    super::{Level, services},
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
                let name = queue.name.as_str();
                let Some(due) = queue.messages_dlx else {
                    handing_on = None;
                    break;
                };
                // The broker has counts from before the first look.
                if due > 0 && self.handing_on.is_new(name) {
                    let looks = remembered(api, vhost, queue).map_err(|error| error.to_string())?;
                    self.handing_on.begin_with(name, now, &looks);
                }
                let (messages, reductions) = (queue.messages.unwrap_or(0).max(due), queue.reductions);
                self.handing_on.note(name, now, Look { due, messages, reductions });
                handing_on = handing_on.map(|sum| sum + due);
                open += if self.handing_on.is_open(name) { due } else { 0 };
                if let Some((count, since)) = self.handing_on.stuck(name) {
                    all_stuck += count.min(due);
                    first = Some(first.map_or(since, |first: Duration| first.min(since)));
                }
            }
            if handing_on.is_none() {
                level.forget_dead_letters();
                continue;
            }
            (level.handing_on, level.open, level.stuck) = (handing_on, Some(open), Some(all_stuck));
            let ago = |since: Duration| at.checked_sub(now.saturating_sub(since)).unwrap_or(at);
            level.stuck_since =
                first.map(|since| level.stuck_since.map_or(ago(since), |known| known.min(ago(since))));
        }
        Ok(())
    }

    /// Forgets all of that.
    pub(super) fn forget_api(&mut self) {
        self.last.apps = None;
        self.last.broker.alarms = None;
        self.api_silence = None;
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

impl Level {
    fn forget_dead_letters(&mut self) {
        (self.handing_on, self.open, self.stuck, self.stuck_since) = (None, None, None, None);
    }
}
