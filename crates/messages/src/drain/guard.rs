//! Whether a queue may be read without losing messages.

use log::debug;
use serde_json::Value as Json;

use delayline_amqp::{AmqpError, Session};
use delayline_broker::{ManagementApi, Policies, QueueInfo};
use delayline_core::topology::{Argument, Endpoint, Queue, QueueType};
use delayline_settings::{NO_MANAGEMENT, Settings};

use super::DrainError;

/// A delivery limit from here on is not used up by reading.
const SAFE: i64 = 1_000_000;

/// The delivery limit of RabbitMQ 4.0 and newer by default.
const DEFAULT: i64 = 20;

/// AMQP's reply code when the queue has other arguments.
const PRECONDITION_FAILED: u16 = 406;

/// The messages in a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Waiting {
    pub(super) messages: u64,
    /// The size of their bodies, where the management API has counted them all.
    pub(super) bytes: Option<u64>,
}

/// Refuses a queue that would drop messages because they were read. Returns the number of its messages.
pub(super) fn check(
    settings: &Settings,
    session: &mut Session,
    queue: &Queue,
) -> Result<Waiting, DrainError> {
    let name = &queue.name;
    let depth = session
        .queue_depth(name)?
        .ok_or_else(|| DrainError::Missing { what: Endpoint::Queue(name.clone()) })?;
    let messages = match depth.ready {
        Some(ready @ 1..) => ready.into(),
        seen => at_least(session, name, seen)?,
    };
    let unknown = Waiting { messages, bytes: None };
    let quorum = Argument::from(QueueType::Quorum.as_str());
    if queue.arguments.get("x-queue-type") != Some(&quorum) {
        // Classic queues do not count deliveries.
        return Ok(unknown);
    }
    match from_management(settings, name)? {
        Ok((Some(limit), _)) if (0..SAFE).contains(&limit) => {
            Err(DrainError::DeliveryLimit { queue: name.clone(), limit })
        }
        Ok((_, counted)) => {
            // Its count is up to 10 s old.
            let bytes = counted.filter(|counted| counted.messages >= messages).and_then(|it| it.bytes);
            Ok(Waiting { messages, bytes })
        }
        // Declaring it as it should be succeeds only if it is like that.
        Err(reason) => match session.declare_queue(queue) {
            Ok(()) => Ok(unknown),
            Err(AmqpError::Channel { code, text }) => {
                let reason = if code == PRECONDITION_FAILED { text } else { format!("{reason}; {text}") };
                Err(DrainError::UnknownLimit { queue: name.clone(), reason })
            }
            Err(error) => Err(error.into()),
        },
    }
}

/// How many messages there are at least in a queue that seems to be empty. The broker reports that of a queue
/// that does not answer, so the queue itself is asked.
fn at_least(session: &mut Session, queue: &str, seen: Option<u32>) -> Result<u64, DrainError> {
    match session.is_empty(queue) {
        Ok(true) => Ok(0),
        // It has answered, so it can be counted.
        Ok(false) => {
            let depth = session.queue_depth(queue)?;
            Ok(depth.and_then(|depth| depth.ready).map_or(1, |ready| ready.max(1)).into())
        }
        // It may not be asked, but has answered at once.
        Err(AmqpError::Channel { .. }) if seen == Some(0) => Ok(0),
        Err(error) => Err(DrainError::Unanswered { queue: queue.into(), reason: error.to_string() }),
    }
}

/// The delivery limit in force and the counted messages, or why they are unknown.
type Known = Result<(Option<i64>, Option<Waiting>), String>;

fn from_management(settings: &Settings, name: &str) -> Result<Known, DrainError> {
    let Some(management) = &settings.management else {
        return Ok(Err(NO_MANAGEMENT.into()));
    };
    let asked = ManagementApi::new(management).and_then(|api| {
        let version = api.overview()?.rabbitmq_version;
        let mut queue = api.queue(&settings.broker.vhost, name)?;
        // A policy that was just set is not in the queue's statistics yet. A user that may not
        // list policies has only the statistics.
        if let Some(info) = &mut queue
            && let Err(error) = Policies::fetch(&api, &settings.broker.vhost).apply([info])
        {
            debug!("policies that were set in the last few seconds are not seen: {error}");
        }
        Ok((queue, version))
    });
    match asked {
        Ok((Some(info), version)) => Ok(Ok((in_force(&info, &version), counted(&info)))),
        Ok((None, _)) => Err(DrainError::Missing { what: Endpoint::Queue(name.into()) }),
        Err(error) => Ok(Err(error.absence(management)?)),
    }
}

/// Without any bytes, either nothing was counted yet or there is nothing to count.
fn counted(info: &QueueInfo) -> Option<Waiting> {
    let bytes = info.message_bytes_ready.filter(|bytes| *bytes > 0);
    Some(Waiting { messages: info.messages_ready?, bytes: Some(bytes?) })
}

/// How often a queue delivers a message again; `None` for no limit. The lower of argument and policy
/// applies. A negative value means no limit, and a positive one overrides it.
fn in_force(info: &QueueInfo, version: &str) -> Option<i64> {
    let argument = info.arguments.get("x-delivery-limit").and_then(Json::as_i64);
    let policy = info.policy_value("delivery-limit").and_then(Json::as_i64);
    let major: u32 = version.split('.').next().and_then(|major| major.parse().ok()).unwrap_or(u32::MAX);
    let said = match (argument, policy) {
        (Some(argument), Some(policy)) if argument < 0 || policy < 0 => Some(argument.max(policy)),
        (Some(argument), Some(policy)) => Some(argument.min(policy)),
        (one, other) => one.or(other),
    };
    said.or((major >= 4).then_some(DEFAULT)).filter(|limit| *limit >= 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(argument: Option<i64>, policy: Option<i64>) -> QueueInfo {
        let arguments = argument.map(|limit| ("x-delivery-limit".to_owned(), Json::from(limit)));
        QueueInfo {
            arguments: arguments.into_iter().collect(),
            effective_policy_definition: match policy {
                Some(limit) => serde_json::json!({ "delivery-limit": limit }),
                None => serde_json::json!([]),
            },
            ..QueueInfo::default()
        }
    }

    #[test]
    fn finds_the_limit_in_force() {
        for (argument, policy, old, new) in [
            (None, None, None, Some(20)),
            (Some(-1), None, None, None),
            (None, Some(-1), None, None),
            (Some(-1), Some(5), Some(5), Some(5)),
            (Some(i64::from(i32::MAX)), None, Some(i64::from(i32::MAX)), Some(i64::from(i32::MAX))),
            (Some(i64::from(i32::MAX)), Some(3), Some(3), Some(3)),
        ] {
            let info = info(argument, policy);
            assert_eq!((in_force(&info, "3.10.8"), in_force(&info, "4.0.5")), (old, new), "{info:?}");
        }
        assert_eq!(in_force(&info(None, None), "?"), Some(20), "an unknown version is a new one");
    }
}
