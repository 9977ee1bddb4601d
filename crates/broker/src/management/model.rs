//! What the API says, as far as we read it.
//!
//! Every field may be missing or `null`: brokers add, rename and leave out
//! fields between versions, and a queue whose node is down has hardly any.

use std::collections::BTreeMap;

use delayline_core::topology::{Binding, Endpoint};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value as Json;

use crate::pattern::Pattern;

/// Accepts `null` for the default as well: brokers send it for a queue that is just being
/// declared, or whose node is down.
pub(super) fn lenient<'de, T: Default + Deserialize<'de>, D: Deserializer<'de>>(
    input: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(input)?.unwrap_or_default())
}

/// `GET /api/overview`
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Overview {
    /// The broker's version, such as `3.10.8`.
    #[serde(deserialize_with = "lenient")]
    pub rabbitmq_version: String,
    /// The name of the cluster.
    #[serde(deserialize_with = "lenient")]
    pub cluster_name: String,
    /// The node that answered.
    #[serde(deserialize_with = "lenient")]
    pub node: String,
    /// Whether the broker keeps no statistics.
    #[serde(deserialize_with = "lenient")]
    pub disable_stats: bool,
}

impl Overview {
    /// The numbers of the version; 0 for a missing or unreadable number.
    pub(super) fn version(&self) -> [u32; 3] {
        let mut numbers = self.rabbitmq_version.split(['.', '-', '+']).map(|part| part.parse().unwrap_or(0));
        std::array::from_fn(|_| numbers.next().unwrap_or(0))
    }
}

/// An item of `GET /api/feature-flags`
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct FeatureFlag {
    /// Its name.
    #[serde(deserialize_with = "lenient")]
    pub name: String,
    /// `enabled`, `disabled` or `unsupported`.
    #[serde(deserialize_with = "lenient")]
    pub state: String,
    /// `required`, `stable` or `experimental`.
    #[serde(deserialize_with = "lenient")]
    pub stability: String,
}

/// An item of `GET /api/deprecated-features/used`
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct DeprecatedFeature {
    /// Its name.
    #[serde(deserialize_with = "lenient")]
    pub name: String,
    /// How close its removal is: `permitted_by_default`, `denied_by_default`, `removed`.
    #[serde(deserialize_with = "lenient")]
    pub deprecation_phase: String,
}

/// An item of `GET /api/users`, without anything about passwords.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct UserInfo {
    /// The user's name.
    #[serde(deserialize_with = "lenient")]
    pub name: String,
    /// Its tags: a list, or on old brokers one text with commas.
    tags: Json,
}

impl UserInfo {
    /// Whether the user has a tag, such as `administrator`.
    #[must_use]
    pub fn has_tag(&self, tag: &str) -> bool {
        match &self.tags {
            Json::Array(tags) => tags.iter().any(|other| other == tag),
            Json::String(tags) => tags.split(',').any(|other| other.trim() == tag),
            _ => false,
        }
    }
}

/// The rights of a user in a vhost: one pattern each for the names of exchanges and queues.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(default)]
pub struct Permission {
    /// The user.
    #[serde(deserialize_with = "lenient")]
    pub user: String,
    /// What it may declare and delete.
    #[serde(deserialize_with = "lenient")]
    pub configure: Pattern,
    /// What it may publish to and bind (as the destination).
    #[serde(deserialize_with = "lenient")]
    pub write: Pattern,
    /// What it may consume, purge and bind to (as the source).
    #[serde(deserialize_with = "lenient")]
    pub read: Pattern,
}

/// The rights of a user on one topic exchange: patterns for routing keys and binding keys. If a user has
/// none for an exchange, every key is allowed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(default)]
pub struct TopicPermission {
    /// The user.
    #[serde(deserialize_with = "lenient")]
    pub user: String,
    /// The exchange.
    #[serde(deserialize_with = "lenient")]
    pub exchange: String,
    /// The routing keys it may publish with.
    #[serde(deserialize_with = "lenient")]
    pub write: Pattern,
    /// The keys it may bind with.
    #[serde(deserialize_with = "lenient")]
    pub read: Pattern,
}

/// An item of `GET /api/nodes`
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct NodeInfo {
    /// Its name.
    #[serde(deserialize_with = "lenient")]
    pub name: String,
    /// Whether it is up.
    #[serde(deserialize_with = "lenient")]
    pub running: bool,
    /// Its active plugins.
    pub enabled_plugins: Option<Vec<String>>,
    /// Whether it accepts no messages because its memory is full.
    #[serde(deserialize_with = "lenient")]
    pub mem_alarm: bool,
    /// Whether it accepts no messages because its disk is full.
    #[serde(deserialize_with = "lenient")]
    pub disk_free_alarm: bool,
    /// Its memory, in bytes.
    pub mem_used: Option<u64>,
    /// The memory at which it stops accepting messages, in bytes.
    pub mem_limit: Option<u64>,
    /// Its free disk space, in bytes.
    pub disk_free: Option<u64>,
    /// The free disk space at which it stops accepting messages, in bytes.
    pub disk_free_limit: Option<u64>,
    /// Its processors.
    pub processors: Option<u64>,
    /// For how many milliseconds it has been up.
    pub uptime: Option<u64>,
}

/// A resource that a node is short of: then the whole cluster accepts no messages.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Alarm {
    /// The node.
    #[serde(deserialize_with = "lenient")]
    pub node: String,
    /// `memory` or `disk`.
    #[serde(deserialize_with = "lenient")]
    pub resource: String,
}

/// `GET /api/health/checks/alarms`
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Health {
    #[serde(deserialize_with = "lenient")]
    pub(super) alarms: Vec<Alarm>,
}

/// An item of `GET /api/exchanges/VHOST`
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct ExchangeInfo {
    /// Its name; empty for the default exchange.
    #[serde(deserialize_with = "lenient")]
    pub name: String,
    /// `topic`, `fanout`, …
    #[serde(rename = "type", deserialize_with = "lenient")]
    pub kind: String,
    /// Whether it outlives a restart.
    #[serde(deserialize_with = "lenient")]
    pub durable: bool,
    /// Whether it is deleted with its last binding.
    #[serde(deserialize_with = "lenient")]
    pub auto_delete: bool,
    /// Whether clients may not publish to it.
    #[serde(deserialize_with = "lenient")]
    pub internal: bool,
    /// Its optional arguments.
    #[serde(deserialize_with = "lenient")]
    pub arguments: BTreeMap<String, Json>,
    /// The name of the policy that applies.
    pub policy: Option<String>,
    /// The messages that went through it.
    #[serde(deserialize_with = "lenient")]
    pub message_stats: MessageStats,
}

impl ExchangeInfo {
    /// Messages per second that came in recently; 0 where nothing is known.
    #[must_use]
    pub fn publish_rate(&self) -> f64 {
        self.message_stats.publish_in_details.rate
    }
}

/// The messages that went through an exchange or into a queue, as counted by channels. Messages that the
/// broker moves are not included.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct MessageStats {
    /// Messages that were published into a queue.
    #[serde(deserialize_with = "lenient")]
    pub publish: u64,
    /// How `publish` changed over time, if that was asked for.
    #[serde(deserialize_with = "lenient")]
    pub publish_details: Rate,
    /// Messages that were published to an exchange.
    #[serde(deserialize_with = "lenient")]
    pub publish_in: u64,
    /// How fast messages are published to an exchange, as computed by the broker.
    #[serde(deserialize_with = "lenient")]
    pub publish_in_details: Rate,
    /// How fast messages of a queue are redelivered.
    #[serde(deserialize_with = "lenient")]
    pub redeliver_details: Rate,
    /// How fast messages of a queue are acknowledged.
    #[serde(deserialize_with = "lenient")]
    pub ack_details: Rate,
}

/// How fast a number grows.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Rate {
    /// The growth per second.
    #[serde(deserialize_with = "lenient")]
    pub rate: f64,
    /// The average over the time that was asked for; 0 unless a time was.
    #[serde(deserialize_with = "lenient")]
    pub avg_rate: f64,
    /// Its values over time, if asked for.
    samples: Json,
}

impl Rate {
    /// The values over time, the oldest first; empty unless asked for.
    #[must_use]
    pub fn history(&self) -> Vec<u64> {
        samples(&self.samples)
    }
}

/// An item of `GET /api/vhosts/VHOST/connections`
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct ConnectionInfo {
    /// Its user.
    #[serde(deserialize_with = "lenient")]
    pub user: String,
    /// The largest frame in bytes; 0 for no limit. `None` if the broker does not report it.
    pub frame_max: Option<usize>,
}

/// An item of `GET /api/vhosts/VHOST/channels`
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct ChannelInfo {
    /// The user it belongs to.
    #[serde(deserialize_with = "lenient")]
    pub user: String,
    /// The messages that went through it.
    #[serde(deserialize_with = "lenient")]
    pub message_stats: MessageStats,
}

/// An item of `GET /api/queues/VHOST`
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct QueueInfo {
    /// Its name.
    #[serde(deserialize_with = "lenient")]
    pub name: String,
    /// `quorum`, `classic`, `stream`; `rabbit_quorum_queue` and the like on some
    /// versions.
    #[serde(rename = "type", deserialize_with = "lenient")]
    pub kind: String,
    /// Whether it outlives a restart.
    #[serde(deserialize_with = "lenient")]
    pub durable: bool,
    /// Whether it is deleted with its last consumer.
    #[serde(deserialize_with = "lenient")]
    pub auto_delete: bool,
    /// Its optional arguments.
    #[serde(deserialize_with = "lenient")]
    pub arguments: BTreeMap<String, Json>,
    /// Whether it belongs to one connection and is deleted with it.
    #[serde(deserialize_with = "lenient")]
    pub exclusive: bool,
    /// How many consumers it has. This and the other counts are `None` if the broker does not report
    /// them: the queue was just declared, its node is down, or the broker keeps no statistics.
    pub consumers: Option<u64>,
    /// All messages, stuck ones included.
    pub messages: Option<u64>,
    /// Messages that are ready.
    pub messages_ready: Option<u64>,
    /// Messages that a consumer holds.
    pub messages_unacknowledged: Option<u64>,
    /// Messages that have left the queue and are not confirmed at the other end.
    pub messages_dlx: Option<u64>,
    /// The messages that went into it.
    #[serde(deserialize_with = "lenient")]
    pub message_stats: MessageStats,
    /// The bytes of the messages that are ready.
    pub message_bytes_ready: Option<u64>,
    /// The history of `messages`, if asked for.
    pub messages_details: Json,
    /// The same for `messages_ready`.
    pub messages_ready_details: Json,
    /// The same for `messages_unacknowledged`.
    pub messages_unacknowledged_details: Json,
    /// The work of its process until the count, in reductions of Erlang.
    pub reductions: Option<u64>,
    /// The history of `reductions`, if asked for.
    pub reductions_details: Json,
    /// The memory of its process on the leader's node, in bytes.
    pub memory: Option<u64>,
    /// The settings of its policies, operator policies included: an object, or an empty list.
    pub effective_policy_definition: Json,
    /// The name of the policy that applies.
    pub policy: Option<String>,
    /// The name of the operator policy that applies.
    pub operator_policy: Option<String>,
    /// Which policies set which key, as `policy `x`` or `operator policy `x``; known only if the policies
    /// themselves were read.
    #[serde(skip)]
    pub policy_origins: BTreeMap<String, Vec<String>>,
    /// The nodes that hold a replica.
    #[serde(deserialize_with = "lenient")]
    pub members: Vec<String>,
    /// The nodes among them that are up.
    #[serde(deserialize_with = "lenient")]
    pub online: Vec<String>,
    /// The node of its leader.
    #[serde(deserialize_with = "lenient")]
    pub leader: String,
    /// Whether the broker keeps no statistics and gave no count of this queue: it may have messages.
    #[serde(skip)]
    pub uncounted: bool,
    /// Whether its replicas run but none of them leads. The API does not show this: `doctor` and `verify`
    /// find out by asking again.
    #[serde(skip)]
    pub leaderless: bool,
}

impl QueueInfo {
    /// Takes over the totals that a broker gives without statistics, of the queues that the answering
    /// `node` leads. Of others, it may show old ones.
    pub(super) fn take_totals(&mut self, totals: Option<&Self>, node: &str) {
        let known = totals.filter(|totals| totals.leader.is_empty() || totals.leader == node);
        let of = |count: fn(&Self) -> Option<u64>| known.and_then(count);
        self.messages = of(|totals| totals.messages);
        self.messages_ready = of(|totals| totals.messages_ready);
        self.messages_unacknowledged = of(|totals| totals.messages_unacknowledged);
        self.messages_dlx = of(Self::gone);
        self.uncounted = self.messages_dlx.is_none();
    }

    /// Takes over the counts of another report about the same queue.
    pub fn take_counts(&mut self, other: &Self) {
        self.messages = other.messages;
        self.messages_ready = other.messages_ready;
        self.messages_unacknowledged = other.messages_unacknowledged;
        self.messages_dlx = other.messages_dlx;
        self.consumers = other.consumers;
        self.reductions = other.reductions;
        self.uncounted = other.uncounted;
    }

    /// Messages that are neither ready nor with a consumer: they have left the queue and are not
    /// confirmed at the other end.
    #[must_use]
    pub fn gone(&self) -> Option<u64> {
        let held = self.messages_ready? + self.messages_unacknowledged?;
        Some(self.messages?.saturating_sub(held))
    }

    /// Messages that were published into it; `None` if the broker keeps no statistics.
    #[must_use]
    pub fn published(&self) -> Option<u64> {
        self.reductions.map(|_| self.message_stats.publish)
    }

    /// Whether more than half of its replicas run; true for every queue without replicas.
    #[must_use]
    pub fn has_majority(&self) -> bool {
        self.members.is_empty() || self.online.len() * 2 > self.members.len()
    }

    /// How many messages there were over time, the oldest first; empty unless asked
    /// for.
    #[must_use]
    pub fn history(&self) -> Vec<u64> {
        samples(&self.messages_details["samples"])
    }

    /// How many messages had left the queue and were not confirmed at the other end, over time, the oldest
    /// first; empty unless asked for. They are all messages that are neither ready nor with a consumer.
    #[must_use]
    pub fn dead_letter_history(&self) -> Vec<u64> {
        let (ready, held) =
            (&self.messages_ready_details["samples"], &self.messages_unacknowledged_details["samples"]);
        let others = samples(ready).into_iter().zip(samples(held));
        self.history()
            .into_iter()
            .zip(others)
            .map(|(all, (ready, held))| all.saturating_sub(ready + held))
            .collect()
    }

    /// The work of its process at each of the moments of [`Self::history`]; `None` for moments without a
    /// report.
    #[must_use]
    pub fn reductions_history(&self) -> Vec<Option<u64>> {
        let all = |samples: &Json| samples.as_array().cloned().unwrap_or_default();
        let known = all(&self.reductions_details["samples"]);
        let at = |moment: &Json| known.iter().find(|known| known["timestamp"] == moment["timestamp"]);
        let moments = all(&self.messages_details["samples"]);
        moments.iter().rev().map(|moment| at(moment)?["sample"].as_u64()).collect()
    }

    /// The value that policies set for this queue under a key.
    #[must_use]
    pub fn policy_value(&self, key: &str) -> Option<&Json> {
        self.effective_policy_definition.as_object()?.get(key)
    }
}

/// The values of a statistic over time, the oldest first.
fn samples(samples: &Json) -> Vec<u64> {
    let samples = samples.as_array().map(Vec::as_slice).unwrap_or_default();
    // The newest comes first.
    samples.iter().rev().filter_map(|sample| sample["sample"].as_u64()).collect()
}

/// A queue of any vhost.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub struct PlacedQueue {
    /// Its vhost.
    pub vhost: String,
    /// Its name.
    pub name: String,
}

/// An item of `GET /api/bindings/VHOST`
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct BindingInfo {
    /// The exchange; empty for the default exchange.
    #[serde(deserialize_with = "lenient")]
    pub source: String,
    /// A queue's or an exchange's name.
    #[serde(deserialize_with = "lenient")]
    pub destination: String,
    /// `queue` or `exchange`.
    #[serde(deserialize_with = "lenient")]
    pub destination_type: String,
    /// The binding key.
    #[serde(deserialize_with = "lenient")]
    pub routing_key: String,
    /// Its arguments; bindings with different arguments are different bindings.
    #[serde(deserialize_with = "lenient")]
    pub arguments: BTreeMap<String, Json>,
}

impl From<&BindingInfo> for Binding {
    fn from(info: &BindingInfo) -> Self {
        let destination = match info.destination_type.as_str() {
            "exchange" => Endpoint::Exchange(info.destination.clone()),
            _ => Endpoint::Queue(info.destination.clone()),
        };
        Self { source: info.source.clone(), destination, key: info.routing_key.clone() }
    }
}

impl From<&Binding> for BindingInfo {
    fn from(binding: &Binding) -> Self {
        let kind = match binding.destination {
            Endpoint::Queue(_) => "queue",
            Endpoint::Exchange(_) => "exchange",
        };
        Self {
            source: binding.source.clone(),
            destination: binding.destination.name().into(),
            destination_type: kind.into(),
            routing_key: binding.key.clone(),
            arguments: BTreeMap::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_queue_with_no_field_but_its_name() {
        let queue: QueueInfo = serde_json::from_str(r#"{"name": "q", "new_in_5": [1]}"#).unwrap();
        assert_eq!((queue.name.as_str(), queue.messages, queue.consumers), ("q", None, None));
        assert_eq!(queue.policy_value("expires"), None);
    }

    #[test]
    fn reads_a_queue_of_nulls() {
        let text = r#"{"name": null, "type": null, "leader": null, "members": null, "messages": null,
            "arguments": null, "durable": null, "effective_policy_definition": null, "policy": null}"#;
        let queue: QueueInfo = serde_json::from_str(text).unwrap();
        assert_eq!((queue.leader.as_str(), queue.messages, queue.durable), ("", None, false));
    }

    #[test]
    fn totals_count_only_from_the_node_that_leads() {
        let totals = |leader: &str| QueueInfo {
            leader: leader.into(),
            messages: Some(40),
            messages_ready: Some(3),
            messages_unacknowledged: Some(2),
            ..QueueInfo::default()
        };
        for (leader, expected) in [("a", Some(35)), ("", Some(35)), ("b", None)] {
            let mut queue = QueueInfo::default();
            queue.take_totals(Some(&totals(leader)), "a");
            assert_eq!((queue.messages_dlx, queue.consumers), (expected, None), "{leader}");
        }
        let mut queue = totals("a");
        queue.take_totals(None, "a");
        assert_eq!((queue.messages, queue.messages_dlx, queue.uncounted), (None, None, true));
        assert_eq!(QueueInfo { messages: Some(1), ..QueueInfo::default() }.gone(), None);
    }

    #[test]
    fn dead_letters_are_neither_ready_nor_with_a_consumer() {
        let of = |samples: &str| format!(r#"{{"samples": [{samples}]}}"#);
        let text = format!(
            r#"{{"messages_details": {}, "messages_ready_details": {}, "messages_unacknowledged_details": {}}}"#,
            of(r#"{"sample": 9, "timestamp": 2}, {"sample": 5, "timestamp": 1}"#),
            of(r#"{"sample": 3, "timestamp": 2}, {"sample": 5, "timestamp": 1}"#),
            of(r#"{"sample": 2, "timestamp": 2}, {"sample": 1, "timestamp": 1}"#),
        );
        let queue: QueueInfo = serde_json::from_str(&text).unwrap();
        assert_eq!((queue.history(), queue.dead_letter_history()), (vec![5, 9], vec![0, 4]));
        assert_eq!(queue.reductions_history(), [None, None]);
        assert!(QueueInfo::default().dead_letter_history().is_empty());
    }

    #[test]
    fn reductions_belong_to_the_counts_of_the_same_moment() {
        let text = r#"{
            "messages_details": {"samples": [{"sample": 9, "timestamp": 3}, {"sample": 5, "timestamp": 2}]},
            "reductions_details": {"samples": [{"sample": 70, "timestamp": 2}, {"sample": 60, "timestamp": 1}]}
        }"#;
        let queue: QueueInfo = serde_json::from_str(text).unwrap();
        assert_eq!((queue.history(), queue.reductions_history()), (vec![5, 9], vec![Some(70), None]));
    }

    #[test]
    fn reads_policies_as_an_object_or_an_empty_list() {
        let read = |policy: &str| -> QueueInfo {
            serde_json::from_str(&format!(r#"{{"effective_policy_definition": {policy}}}"#)).unwrap()
        };
        assert_eq!(read("[]").policy_value("expires"), None);
        assert_eq!(read(r#"{"expires": 5}"#).policy_value("expires"), Some(&Json::from(5)));
    }
}
