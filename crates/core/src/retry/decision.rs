//! Retry or park: a failure and a policy make a decision, and the decision makes the message's
//! successor.

use std::fmt;

use crate::{
    codec::{AppKey, Delay, RoutingKey},
    message::{Headers, Message, Properties, direct, headers, move_user_id},
    topology::{Names, Unit},
};

use super::{Failure, Policy};

/// What to do with a message that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// The message is tried again.
    Retry {
        /// The number of the retry, from 1.
        attempt: u32,
        /// How long it waits before that.
        delay: Delay,
    },
    /// The message is parked.
    Park(ParkReason),
}

/// Why a message is parked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ParkReason {
    /// The message has used up all its attempts.
    Attempts,
    /// The next retry would be too long after the first failure.
    Age,
    /// The message has expired, or would expire before the next retry.
    Expired,
    /// The application requested it.
    GaveUp,
}

impl ParkReason {
    /// The word in the header [`headers::REASON`].
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Attempts => "attempts",
            Self::Age => "age",
            Self::Expired => "expired",
            Self::GaveUp => "gave-up",
        }
    }
}

impl fmt::Display for ParkReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Decision {
    /// Decides at `now`, in ms since the epoch. `asked` is a delay that replaces the policy's.
    /// `random` is from 0 up to, but not including, 1.
    #[must_use]
    pub fn new(
        policy: &Policy,
        failure: &Failure,
        asked: Option<Delay>,
        unit: Unit,
        now: i64,
        random: f64,
    ) -> Self {
        let attempt = failure.history.attempt.saturating_add(1);
        if failure.history.is_expired(now) {
            return Self::Park(ParkReason::Expired);
        }
        if attempt > policy.attempts {
            return Self::Park(ParkReason::Attempts);
        }
        let delay = asked.unwrap_or_else(|| policy.delay(attempt, random));
        let due = now.saturating_add(milliseconds(delay, unit));
        if failure.history.is_expired(due) {
            return Self::Park(ParkReason::Expired);
        }
        let age = due.saturating_sub(failure.first_failed());
        if policy.max_age.is_some_and(|most| age > milliseconds(most, unit)) {
            return Self::Park(ParkReason::Age);
        }
        Self::Retry { attempt, delay }
    }

    /// The message to publish in place of the failed one: its body, properties and headers, and the
    /// record of the failure.
    ///
    /// The broker accepts a `user_id` only from the user it names. A `user_id` that is not the
    /// `sender`'s goes into a header.
    #[must_use]
    pub fn successor(
        self,
        failure: &Failure,
        names: &Names,
        sender: Option<&str>,
        parts: (Vec<u8>, Properties, Headers),
    ) -> Message {
        let (body, mut properties, mut headers) = parts;
        for stale in [headers::REASON, headers::FAILURE, headers::LAST_FAILED] {
            headers.remove(stale);
        }
        move_user_id(&mut properties, &mut headers, sender);
        let history = &failure.history;
        headers.insert(headers::EXCHANGE.into(), history.exchange.as_str().into());
        headers.insert(headers::ROUTING_KEY.into(), history.routing_key.as_str().into());
        headers.insert(headers::FIRST_FAILED.into(), failure.first_failed().into());
        if let Some(expires) = history.expires {
            headers.insert(headers::EXPIRES.into(), expires.into());
        }
        let app: AppKey = failure.app.clone();
        let (attempt, mut message) = match self {
            Self::Retry { attempt, delay } => (attempt, Message::after(app, delay, body)),
            Self::Park(reason) => {
                headers.insert(headers::REASON.into(), reason.as_str().into());
                headers.insert(headers::FAILURE.into(), failure.reason.as_str().into());
                headers.insert(headers::LAST_FAILED.into(), failure.failed.into());
                (history.attempt, direct::to(app, names.parked(), body))
            }
        };
        headers.insert(headers::ATTEMPT.into(), i64::from(attempt).into());
        if message.direct.is_none() {
            // So that it can be recalled and listed like the original message.
            let origin = history.routing_key.parse::<RoutingKey>().ok();
            message.id = origin.filter(|key| key.app == message.app).and_then(|key| key.id().cloned());
        }
        (message.properties, message.headers) = (properties, headers);
        message
    }
}

fn milliseconds(delay: Delay, unit: Unit) -> i64 {
    i64::try_from(delay.duration(unit.duration()).as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        codec::MessageId,
        message::Value,
        retry::{Backoff, History, Jitter},
        topology::SetName,
    };

    const NOW: i64 = 1_000_000;

    fn policy() -> Policy {
        Policy {
            backoff: Backoff::Fixed("10s".parse().unwrap()),
            jitter: Jitter::None,
            attempts: 3,
            max_age: None,
        }
    }

    fn failure(attempt: u32) -> Failure {
        Failure {
            app: AppKey::new("billing").unwrap(),
            reason: "rejected".into(),
            failed: NOW - 5,
            history: History {
                attempt,
                first_failed: (attempt > 0).then_some(NOW - 60_000),
                expires: None,
                exchange: "orders".into(),
                routing_key: "order.created".into(),
            },
        }
    }

    fn decide(policy: &Policy, failure: &Failure) -> Decision {
        Decision::new(policy, failure, None, Unit::SECOND, NOW, 0.5)
    }

    #[test]
    fn counts_attempts() {
        let delay = "10s".parse().unwrap();
        assert_eq!(decide(&policy(), &failure(0)), Decision::Retry { attempt: 1, delay });
        assert_eq!(decide(&policy(), &failure(2)), Decision::Retry { attempt: 3, delay });
        for used_up in [3, 4, u32::MAX] {
            assert_eq!(decide(&policy(), &failure(used_up)), Decision::Park(ParkReason::Attempts));
        }
    }

    #[test]
    fn a_requested_delay_replaces_the_policys_within_its_limits() {
        let asked = |asked: &str| {
            let policy = Policy { max_age: Some("2m".parse().unwrap()), ..policy() };
            Decision::new(&policy, &failure(1), Some(asked.parse().unwrap()), Unit::SECOND, NOW, 0.5)
        };
        assert_eq!(asked("60s"), Decision::Retry { attempt: 2, delay: "60s".parse().unwrap() });
        assert_eq!(asked("61s"), Decision::Park(ParkReason::Age));
    }

    #[test]
    fn a_message_that_would_arrive_expired_is_parked() {
        let expiring = |expires| {
            let mut failure = failure(0);
            failure.history.expires = Some(expires);
            decide(&policy(), &failure)
        };
        assert_eq!(expiring(NOW), Decision::Park(ParkReason::Expired));
        assert_eq!(expiring(NOW + 10_000), Decision::Park(ParkReason::Expired));
        assert!(matches!(expiring(NOW + 10_001), Decision::Retry { .. }));
    }

    #[test]
    fn a_retry_keeps_the_id() {
        let names = Names::new(SetName::default());
        let retry = |routing_key: &str| {
            let mut failure = failure(0);
            failure.history.routing_key = routing_key.into();
            let parts = (Vec::new(), Properties::default(), Headers::new());
            decide(&policy(), &failure).successor(&failure, &names, None, parts)
        };
        let key = |app: &str| format!("delay.0000.0000.0000.0000.0000.0000.0001.{app}.~.17");
        assert_eq!(retry(&key("billing")).id.as_ref().map(MessageId::as_str), Some("17"));
        // The id of another application does not apply.
        assert_eq!(retry(&key("orders")).id, None);
        assert_eq!(retry("order.created").id, None);
    }

    #[test]
    fn a_successor_keeps_the_messages_own_values() {
        let properties = Properties {
            message_id: Some("7".into()),
            user_id: Some("tenant".into()),
            ..Properties::default()
        };
        let headers = Headers::from([
            ("mine".into(), Value::Void),
            (headers::REASON.into(), "attempts".into()),
            (headers::FAILURE.into(), "old".into()),
        ]);
        let names = Names::new(SetName::default());
        let successor = |decision: Decision| {
            let parts = (b"body".to_vec(), properties.clone(), headers.clone());
            decision.successor(&failure(2), &names, Some("service"), parts)
        };
        let retry = successor(decide(&policy(), &failure(2)));
        assert_eq!(
            (retry.body.as_slice(), retry.properties.message_id.as_deref()),
            (&b"body"[..], Some("7"))
        );
        assert_eq!(retry.properties.user_id, None);
        let mut expected = Headers::from([
            ("mine".into(), Value::Void),
            (headers::USER_ID.into(), "tenant".into()),
            (headers::ATTEMPT.into(), Value::I64(3)),
            (headers::FIRST_FAILED.into(), Value::I64(NOW - 60_000)),
            (headers::EXCHANGE.into(), "orders".into()),
            (headers::ROUTING_KEY.into(), "order.created".into()),
        ]);
        assert_eq!(retry.headers, expected);
        let parked = successor(Decision::Park(ParkReason::Age));
        assert_eq!(parked.direct.unwrap().exchange, "delay.parked");
        expected.extend([
            (headers::ATTEMPT.into(), Value::I64(2)),
            (headers::REASON.into(), "age".into()),
            (headers::FAILURE.into(), "rejected".into()),
            (headers::LAST_FAILED.into(), Value::I64(NOW - 5)),
        ]);
        assert_eq!(parked.headers, expected);
    }
}
