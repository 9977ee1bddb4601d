//! The levels that messages are moved from.

use std::{collections::BTreeMap, time::Duration};

use serde_json::Value as Json;

use crate::{
    AdminError,
    drain::DrainError,
    management::{ManagementApi, QueueInfo},
};
use delayline_amqp::Session;
use delayline_core::{
    codec::{Delay, Level},
    topology::{Endpoint, Queue, QueueType, Topology},
};
use delayline_settings::Settings;

use super::TransferSource;

/// A level's queue, as it is on the broker.
#[derive(Debug, Clone)]
pub(super) struct Site {
    pub(super) level: Level,
    pub(super) queue: Queue,
    pub(super) quorum: bool,
    /// The unit of time: what a message waits in level 0.
    pub(super) unit: Duration,
    /// Messages that are ready now.
    pub(super) ready: u64,
    /// Messages that have left the queue and are not confirmed by the next.
    pub(super) handing_on: u64,
    /// The names of the queues of all levels, the lowest first.
    names: Vec<String>,
}

impl Site {
    /// Whether nothing is ready in it now. What cannot be counted is not taken for empty:
    /// reading it says what is wrong.
    pub(super) fn is_empty(&self, session: &mut Session) -> bool {
        matches!(session.queue_depth(&self.queue.name), Ok(Some(depth)) if depth.ready == 0)
    }

    /// How many messages are ready in it now, as far as that can be counted.
    pub(super) fn ready_now(&self, session: &mut Session) -> u64 {
        session.queue_depth(&self.queue.name).ok().flatten().map_or(0, |depth| depth.ready.into())
    }

    /// The queue that a message with this delay was in before it came here, if it was in any.
    pub(super) fn before(&self, delay: Delay) -> Option<&str> {
        let higher =
            Level::all().find(|level| *level > self.level && delay.seconds() & level.units() != 0)?;
        Some(&self.names[higher.index()])
    }
}

/// The management API, without which nobody knows how long a message waits where.
pub(super) fn api(settings: &Settings) -> Result<ManagementApi, AdminError> {
    crate::api(settings, "tells how long a level is")
}

/// The levels that exist, the highest first: what moves down meanwhile is found again.
pub(super) fn sites(
    api: &ManagementApi,
    from: &Settings,
    source: &TransferSource,
) -> Result<Vec<Site>, AdminError> {
    let topology = Topology::new(from.topology.clone());
    let names: Vec<_> = Level::all()
        .map(|level| match source {
            TransferSource::Set => topology.names().level_queue(level),
            TransferSource::Layout(layout) => layout.level(level),
        })
        .collect();
    let vhost = &from.broker.vhost;
    let queues: BTreeMap<_, _> =
        api.queues(vhost)?.into_iter().map(|queue| (queue.name.clone(), queue)).collect();
    let mut session = crate::connect(&from.broker)?;
    let mut sites = Vec::new();
    for level in Level::all().rev() {
        let Some(info) = queues.get(&names[level.index()]) else { continue };
        let depth =
            session.queue_depth(&info.name).map_err(crate::doing(format!("counting `{}`", info.name)))?;
        let quorum = info.kind.contains(QueueType::Quorum.as_str());
        let arguments = if quorum {
            vec![("x-queue-type".to_owned(), QueueType::Quorum.as_str().into())]
        } else {
            vec![]
        };
        sites.push(Site {
            level,
            queue: Queue::new(&info.name).with_arguments(arguments),
            quorum,
            unit: unit(info, level)?,
            ready: depth.map_or(0, |depth| depth.ready.into()),
            handing_on: info.messages_dlx,
            names: names.clone(),
        });
    }
    if sites.is_empty() {
        return Err(match source {
            TransferSource::Set => DrainError::Missing { what: Endpoint::Queue(names[0].clone()) }.into(),
            TransferSource::Layout(layout) => {
                AdminError::NoLayout { layout: layout.to_string(), vhost: vhost.clone() }
            }
        });
    }
    Ok(sites)
}

/// The unit of a level, from how long its queue says that messages stay.
fn unit(queue: &QueueInfo, level: Level) -> Result<Duration, AdminError> {
    let stays = queue.arguments.get("x-message-ttl").and_then(Json::as_u64).unwrap_or(0);
    let units = u64::from(level.units());
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
    fn a_level_says_its_unit() {
        let queue = |ttl: u64| QueueInfo {
            arguments: [("x-message-ttl".into(), ttl.into())].into(),
            ..QueueInfo::default()
        };
        let level = |number: u8| Level::try_from(number).unwrap();
        assert_eq!(unit(&queue(8_000), level(3)).unwrap(), Duration::from_secs(1));
        assert_eq!(unit(&queue(80), level(3)).unwrap(), Duration::from_millis(10));
        for wrong in [0, 7, 8_001] {
            assert!(unit(&queue(wrong), level(3)).is_err(), "{wrong}");
        }
        assert!(unit(&QueueInfo::default(), level(0)).is_err());
    }
}
