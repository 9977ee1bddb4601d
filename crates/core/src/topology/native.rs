//! Retries by a quorum queue itself, from RabbitMQ 4.3.

use std::{fmt, num::NonZeroU32, str::FromStr};

use crate::codec::{Delay, DelayError};

use super::{Argument, Queue};

/// How long a quorum queue of RabbitMQ 4.3 or later delays a returned message before it delivers it
/// again. The first wait is the shortest, the second twice as long, and so on up to the longest. A
/// message that has returned more often than allowed is dead-lettered.
///
/// Over AMQP 0-9-1, the broker counts only messages that return because their consumer's channel or
/// connection ended. A message that a consumer requeues waits for the shortest time and is not
/// counted, so it returns forever (measured on RabbitMQ 4.3.6).
///
/// ```
/// use delayline_core::topology::NativeRetry;
///
/// let retry: NativeRetry = "1s..30s".parse()?;
/// assert_eq!(retry.to_string(), "1s..30s");
/// # Ok::<_, delayline_core::topology::NativeRetryError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NativeRetry {
    shortest: Delay,
    longest: Delay,
    attempts: NonZeroU32,
}

/// Why the waits of a [`NativeRetry`] are refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NativeRetryError {
    /// It is not two delays.
    #[error("`{0}` is not a range of delays; write the shortest and the longest wait, such as 1s..30s")]
    NotARange(String),
    /// A part is not a delay.
    #[error("{0}")]
    Delay(#[from] DelayError),
    /// Messages would return at once, again and again.
    #[error("the shortest wait is 0; use 1s or more, or failed messages return at once")]
    NoWait,
    /// The range is the wrong way round.
    #[error("the shortest wait, {shortest}, is longer than the longest, {longest}")]
    Reversed {
        /// The shortest wait that was given.
        shortest: Delay,
        /// The longest wait that was given.
        longest: Delay,
    },
    /// The wait is too long for such a queue.
    #[error(
        "a wait of {0} is too long for a queue; use 1h or less, and leave longer waits to the retry service"
    )]
    TooLong(Delay),
}

impl NativeRetry {
    /// How often a message returns by default: 5 times.
    pub const ATTEMPTS: NonZeroU32 = NonZeroU32::new(5).expect("it is not zero");

    /// The longest wait that can be asked for, in seconds: an hour.
    const LONGEST: u32 = 3_600;

    /// Retries after a wait from `shortest`, at least a second, to `longest`, at most an hour.
    ///
    /// # Errors
    /// The waits are out of range, or in the wrong order.
    pub fn new(shortest: Delay, longest: Delay) -> Result<Self, NativeRetryError> {
        match () {
            () if shortest == Delay::ZERO => Err(NativeRetryError::NoWait),
            () if longest.seconds() > Self::LONGEST => Err(NativeRetryError::TooLong(longest)),
            () if shortest > longest => Err(NativeRetryError::Reversed { shortest, longest }),
            () => Ok(Self { shortest, longest, attempts: Self::ATTEMPTS }),
        }
    }

    /// Sets how often a message returns before it is dead-lettered.
    #[must_use]
    pub fn with_attempts(mut self, attempts: NonZeroU32) -> Self {
        self.attempts = attempts;
        self
    }
}

impl FromStr for NativeRetry {
    type Err = NativeRetryError;

    fn from_str(text: &str) -> Result<Self, NativeRetryError> {
        let (shortest, longest) =
            text.split_once("..").ok_or_else(|| NativeRetryError::NotARange(text.to_owned()))?;
        Self::new(shortest.trim().parse()?, longest.trim().parse()?)
    }
}

impl fmt::Display for NativeRetry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.shortest, self.longest)
    }
}

impl Queue {
    /// The arguments of a queue that delays returned messages.
    pub const NATIVE_RETRY: [&str; 4] =
        ["x-delayed-retry-type", "x-delayed-retry-min", "x-delayed-retry-max", "x-delivery-limit"];

    /// The same queue, which now delays returned messages. It must be a quorum queue.
    #[must_use]
    pub fn with_native_retry(mut self, retry: NativeRetry) -> Self {
        let milliseconds = |delay: Delay| Argument::Number(i64::from(delay.seconds()) * 1_000);
        let [kind, shortest, longest, limit] = Self::NATIVE_RETRY.map(str::to_owned);
        self.arguments.insert(kind, "all".into());
        self.arguments.insert(shortest, milliseconds(retry.shortest));
        self.arguments.insert(longest, milliseconds(retry.longest));
        self.arguments.insert(limit, Argument::Number(retry.attempts.get().into()));
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        codec::AppKey,
        topology::{Topology, TopologySettings},
    };

    #[test]
    fn an_invalid_range_is_named() {
        for (text, words) in [
            ("5s", "1s..30s"),
            ("", "1s..30s"),
            ("1s..x", "x"),
            ("0s..30s", "1s or more"),
            ("30s..1s", "longer than"),
            ("1s..2h", "1h or less"),
        ] {
            let error = text.parse::<NativeRetry>().unwrap_err().to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
        let retry: NativeRetry = "1s .. 1m".parse().unwrap();
        assert_eq!(retry.to_string().parse(), Ok(retry));
    }

    #[test]
    fn a_queue_retries_first_and_then_the_service_does() {
        let topology = Topology::new(TopologySettings::default());
        let queue = topology.app_queue(
            &AppKey::new("billing").unwrap(),
            "in",
            Some(crate::topology::Rejected::Retried),
        );
        let retry: NativeRetry = "1s..30s".parse().unwrap();
        insta::assert_json_snapshot!(
            queue.with_native_retry(retry.with_attempts(NonZeroU32::new(7).unwrap())), @r#"
        {
          "name": "in",
          "level": null,
          "arguments": {
            "x-dead-letter-exchange": "delay.retry",
            "x-dead-letter-routing-key": "billing",
            "x-dead-letter-strategy": "at-least-once",
            "x-delayed-retry-max": 30000,
            "x-delayed-retry-min": 1000,
            "x-delayed-retry-type": "all",
            "x-delivery-limit": 7,
            "x-overflow": "reject-publish",
            "x-queue-leader-locator": "balanced",
            "x-queue-type": "quorum"
          }
        }
        "#);
    }
}
