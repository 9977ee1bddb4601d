//! Every policy key of RabbitMQ 3.10 to 4.3 and of its plugins, and its effect on a set: pure.

use serde_json::Value as Json;

use crate::{management::QueueInfo, policy::kind};

/// The part that an exchange or queue has in a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Exchange,
    Level,
    /// Keeps messages until an operator decides about them.
    Keeping,
    /// The queue of a service: the retry queue, and the queues of gateways.
    Service,
    /// Passes messages on at once. No application consumes from it.
    Landing,
    /// Keeps recalled messages.
    Recalled,
}

use Part::{Exchange, Keeping, Landing, Level, Recalled, Service};

/// The harm that a key does to some parts of a set.
type Harm = (&'static [Part], &'static str);

const QUEUES: &[Part] = &[Level, Keeping, Service, Landing, Recalled];
const DROPS: &str = "messages are dropped after they were read that often";
const ONCE: &str = "the queue no longer passes messages on at least once, so messages can be lost on the way";
const FEDERATED_EXCHANGE: &str = "messages that other brokers publish to such an exchange also enter here, \
                                  and each level passes them on, so they are delivered several times";
const FEDERATED_QUEUE: &str =
    "while a program consumes from the queue, messages of queues of other brokers move here";
const FEDERATED: &[Harm] = &[(&[Exchange], FEDERATED_EXCHANGE), (QUEUES, FEDERATED_QUEUE)];
const FULL: &[Harm] = &[
    (&[Level], "the queue refuses messages once it is full, and the level above stalls"),
    (&[Keeping, Service], "once it is full, messages are dropped, or the levels they come from stall"),
    (&[Recalled], "recalled messages are dropped earlier than they should be"),
];

/// All keys, each with its harm. Keys without any change nothing in a set, for the reason beside them.
const KEYS: &[(&str, &[Harm])] = &[
    // Exchanges that can have unroutable messages have the argument, which takes precedence.
    ("alternate-exchange", &[]),
    // Commands that read for too long fail with the broker's reason. No message is lost.
    ("consumer-timeout", &[]),
    ("consumer-disconnected-timeout", &[]),
    (
        "dead-letter-exchange",
        &[
            (&[Keeping], "messages that are dropped because the queue is full go to that exchange"),
            (&[Recalled], "recalled messages go to that exchange once they expire, and can be delivered"),
        ],
    ),
    (
        "dead-letter-routing-key",
        &[
            (&[Level], "it replaces the delay in the routing key, so every message ends up unroutable"),
            (&[Service], "it replaces the routing key of rejected messages"),
            (&[Landing], "it replaces the key that the application's messages should arrive with"),
        ],
    ),
    // Queues with a dead-letter exchange have the argument, which takes precedence.
    ("dead-letter-strategy", &[]),
    (
        "delayed-retry-type",
        &[(
            &[Keeping, Service, Recalled],
            "messages that were read and put back cannot be read again for a while",
        )],
    ),
    // Without the type, these two change nothing.
    ("delayed-retry-min", &[]),
    ("delayed-retry-max", &[]),
    ("delivery-limit", &[(&[Keeping, Service, Recalled], DROPS)]),
    (
        "expires",
        &[
            (
                &[Level, Keeping, Service],
                "the broker deletes the queue with all its messages once it is unused for that long",
            ),
            (
                &[Landing],
                "the broker deletes the queue with all its messages, since a landing queue has no consumers",
            ),
            (
                &[Recalled],
                "the broker deletes the queue with all recalls once it is unused for that long, so recalled \
                 messages are delivered",
            ),
        ],
    ),
    ("federation-upstream", FEDERATED),
    ("federation-upstream-pattern", FEDERATED),
    ("federation-upstream-set", FEDERATED),
    // Mirrored classic queues, up to 3.13. A mirror changes no message.
    ("ha-mode", &[]),
    ("ha-params", &[]),
    ("ha-promote-on-failure", &[]),
    ("ha-promote-on-shutdown", &[]),
    ("ha-sync-batch-size", &[]),
    ("ha-sync-mode", &[]),
    // The place and number of replicas of new queues. `verify` checks the present number.
    ("initial-cluster-size", &[]),
    ("queue-leader-locator", &[]),
    ("queue-master-locator", &[]),
    ("target-group-size", &[]),
    // Streams: `doctor` checks how much a journal keeps.
    ("max-age", &[]),
    ("stream-filter-size-bytes", &[]),
    ("stream-max-segment-size-bytes", &[]),
    // How much of a queue is in memory.
    ("max-in-memory-bytes", &[]),
    ("max-in-memory-length", &[]),
    ("queue-mode", &[]),
    ("queue-version", &[]),
    // At the end of every route, every queue is checked for limits, landing queues included.
    ("max-length", FULL),
    ("max-length-bytes", FULL),
    (
        "message-ttl",
        &[
            (&[Level], "messages leave this level too early if it is lower than the level's own"),
            (&[Keeping], "messages are dropped after that time"),
            (&[Service], "messages that wait that long are moved on as if they had been rejected"),
            (&[Recalled], "recalled messages are dropped earlier than they should be"),
        ],
    ),
    (
        "overflow",
        &[
            (&[Level, Service, Landing], ONCE),
            (
                &[Keeping, Recalled],
                "once it is full, it refuses messages, and the levels they come from stall",
            ),
        ],
    ),
    // The plugin rabbitmq_sharding. Without a number of queues, its routing key changes nothing.
    ("routing-key", &[]),
    (
        "shards-per-node",
        &[(
            &[Exchange],
            "the broker binds queues of its own to the exchange, which receive copies of messages",
        )],
    ),
];

/// Whether the effect of a policy key on a set is known.
#[must_use]
pub fn is_judged(key: &str) -> bool {
    KEYS.iter().any(|(name, _)| *name == key)
}

/// The harms to an exchange or queue with this part, by key.
pub(super) fn harms(part: Part) -> impl Iterator<Item = (&'static str, &'static str)> {
    let of = move |harms: &[Harm]| harms.iter().find(|(parts, _)| parts.contains(&part)).map(|it| it.1);
    KEYS.iter().filter_map(move |(key, harms)| Some((*key, of(harms)?)))
}

/// Whether a value that a policy sets takes effect on a queue and does harm.
pub(super) fn takes_effect(part: Part, key: &str, value: &Json, queue: &QueueInfo) -> bool {
    let argument = |key: &str| queue.arguments.get(&format!("x-{key}"));
    match key {
        // Negative: no limit. So many deliveries do not happen.
        "delivery-limit" => value.as_i64().is_none_or(|limit| (0..1_000_000).contains(&limit)),
        // The lower one applies, so a higher limit than the queue's own changes nothing.
        "message-ttl" | "max-length" | "max-length-bytes" => {
            argument(key).and_then(Json::as_i64).is_none_or(|own| value.as_i64() < Some(own))
        }
        "dead-letter-exchange" => {
            let drops = part == Recalled || argument("max-length").is_some();
            drops && argument(key).is_none()
        }
        "dead-letter-routing-key" => argument(key).is_none(),
        // Unlike for other keys, the policy takes precedence over the argument of a quorum queue.
        "overflow" if kind(queue) != "quorum" => false,
        "overflow" => match part {
            Keeping | Recalled => value != "drop-head" && argument("max-length").is_some(),
            _ => argument(key) != Some(value),
        },
        "delayed-retry-type" => value != "disabled" && queue.policy_value("delayed-retry-min").is_some(),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_listed_once_and_every_part_once_for_each() {
        for (at, (key, harms)) in KEYS.iter().enumerate() {
            assert!(is_judged(key) && KEYS[at + 1..].iter().all(|(other, _)| other != key), "{key}");
            let parts: Vec<_> = harms.iter().flat_map(|(parts, _)| *parts).collect();
            assert!(parts.iter().enumerate().all(|(at, part)| !parts[at + 1..].contains(part)), "{key}");
        }
        assert!(!is_judged("selector-fields"));
    }
}
