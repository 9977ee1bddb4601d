//! The levels that messages are moved from.

use std::{collections::BTreeMap, time::Duration};

use serde_json::Value as Json;

use crate::{drain::DrainError, error::AdminError};
use delayline_amqp::{AmqpError, QueueDepth, Session};
use delayline_broker::{ManagementApi, QueueInfo, Scope};
use delayline_core::{
    codec::{Delay, Hop, Level},
    topology::{Endpoint, Queue, QueueType, Topology},
};
use delayline_settings::Settings;

use super::TransferSource;

/// A level's queue, as it is on the broker.
#[derive(Debug, Clone)]
pub(super) struct Site {
    pub(super) hop: Hop,
    pub(super) queue: Queue,
    pub(super) quorum: bool,
    /// The unit of time: what a message waits in level 0.
    pub(super) unit: Duration,
    /// Messages that are ready now; `None` if the queue was too slow to count them.
    pub(super) ready: Option<u64>,
    /// Messages that have left the queue and are not confirmed by the next.
    pub(super) handing_on: Option<u64>,
    /// The names of the queues of all levels and shortcuts.
    names: Vec<(Hop, String)>,
}

impl Site {
    /// How many messages are ready in it now, or 1 if there are some; `None` if the queue does not answer. The
    /// broker reports 0 for such a queue, so the queue itself is asked.
    ///
    /// # Errors
    /// Reading the queue returns the same error.
    pub(super) fn ready_now(&self, session: &mut Session) -> Result<Option<u64>, AmqpError> {
        let name = &self.queue.name;
        match session.queue_depth(name)? {
            Some(QueueDepth { ready: Some(ready @ 1..), .. }) => Ok(Some(ready.into())),
            _ => match session.is_empty(name) {
                Ok(is_empty) => Ok(Some(u64::from(!is_empty))),
                Err(error @ AmqpError::Channel { .. }) => Err(error),
                Err(_) => Ok(None),
            },
        }
    }

    /// The queues that a message with this delay may have been in before it came here: that of a level, or a
    /// shortcut in its place.
    pub(super) fn before(&self, delay: Delay) -> Vec<&str> {
        let own = self.hop.rest(delay) | self.hop.units();
        let above = delay.levels().filter(|level| level.units() & own == 0 && level.units() > own);
        let Some(level) = above.last() else { return Vec::new() };
        let of_other_word = level.word() != self.hop.level().word();
        let shortcut = Hop::shortcut_for(delay, level).filter(|_| of_other_word).map(Hop::Shortcut);
        let hops = [Some(Hop::Level(level)), shortcut];
        let names = self.names.iter().filter(|(hop, _)| hops.contains(&Some(*hop)));
        names.map(|(_, name)| name.as_str()).collect()
    }
}

/// The management API, which alone shows how long a message stays in each level.
pub(super) fn api(settings: &Settings) -> Result<ManagementApi, AdminError> {
    crate::error::api(settings, "shows how long each level keeps a message")
}

/// The levels and shortcuts that exist, the longest wait first. A message that moves down meanwhile is found again.
pub(super) fn sites(
    api: &ManagementApi,
    from: &Settings,
    source: &TransferSource,
) -> Result<Vec<Site>, AdminError> {
    let topology = Topology::new(from.topology.clone());
    let mut names: Vec<(Hop, String)> = match source {
        TransferSource::Set => Hop::all().map(|hop| (hop, topology.names().hop(hop))).collect(),
        TransferSource::Layout(layout) => {
            Level::all().map(|level| (Hop::Level(level), layout.level(level))).collect()
        }
    };
    names.sort_by_key(|(hop, _)| hop.units());
    let vhost = &from.broker.vhost;
    let scope = match source {
        TransferSource::Set => Scope::Set(&topology, &[]),
        TransferSource::Layout(layout) => Scope::Layout(&topology, layout),
    };
    let (queues, _) = api.queues_matching(vhost, Some(&scope.pattern()))?;
    let queues: BTreeMap<_, _> = queues.into_iter().map(|queue| (queue.name.clone(), queue)).collect();
    let mut session = crate::error::connect(&from.broker)?;
    let mut sites = Vec::new();
    for (hop, name) in names.iter().rev() {
        let (hop, Some(info)) = (*hop, queues.get(name)) else { continue };
        let depth = session
            .queue_depth(&info.name)
            .map_err(crate::error::doing(format!("counting `{}`", info.name)))?;
        let quorum = info.kind.contains(QueueType::Quorum.as_str());
        let arguments = if quorum {
            vec![("x-queue-type".to_owned(), QueueType::Quorum.as_str().into())]
        } else {
            vec![]
        };
        sites.push(Site {
            hop,
            queue: Queue::new(&info.name).with_arguments(arguments),
            quorum,
            unit: unit(info, hop)?,
            ready: depth.and_then(|depth| depth.ready).map(u64::from),
            // A level that was just declared has no statistics yet, and no messages.
            handing_on: (!info.uncounted).then(|| info.messages_dlx.unwrap_or(0)),
            names: names.clone(),
        });
    }
    if sites.is_empty() {
        return Err(match source {
            TransferSource::Set => DrainError::Missing { what: Endpoint::Queue(names[0].1.clone()) }.into(),
            TransferSource::Layout(layout) => {
                AdminError::NoLayout { layout: layout.to_string(), vhost: vhost.clone() }
            }
        });
    }
    Ok(sites)
}

/// The unit of a level, by the time that messages stay in its queue.
fn unit(queue: &QueueInfo, hop: Hop) -> Result<Duration, AdminError> {
    let stays = queue.arguments.get("x-message-ttl").and_then(Json::as_u64).unwrap_or(0);
    let units = u64::from(hop.units());
    match stays > 0 && stays.is_multiple_of(units) {
        true => Ok(Duration::from_millis(stays / units)),
        false => Err(AdminError::NoManagement {
            reason: format!(
                "queue `{}` does not say how long a message stays: its x-message-ttl is {stays}, which is no \
                 multiple of {units}",
                queue.name
            ),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_unit_of_a_level() {
        let queue = |ttl: u64| QueueInfo {
            arguments: [("x-message-ttl".into(), ttl.into())].into(),
            ..QueueInfo::default()
        };
        let level = |number: u8| Hop::Level(Level::try_from(number).unwrap());
        assert_eq!(unit(&queue(8_000), level(3)).unwrap(), Duration::from_secs(1));
        assert_eq!(unit(&queue(80), level(3)).unwrap(), Duration::from_millis(10));
        for wrong in [0, 7, 8_001] {
            assert!(unit(&queue(wrong), level(3)).is_err(), "{wrong}");
        }
        assert!(unit(&QueueInfo::default(), level(0)).is_err());
    }
}
