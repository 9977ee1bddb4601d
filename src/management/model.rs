//! What the API says, as far as we read it.
//!
//! Every field may be missing or `null`: brokers add, rename and leave out
//! fields between versions, and a queue whose node is down has hardly any.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};
use serde_json::Value as Json;

/// Takes `null` for the default as well: that is what brokers say of a queue
/// that is just being declared, or whose node is down.
fn lenient<'de, T: Default + Deserialize<'de>, D: Deserializer<'de>>(input: D) -> Result<T, D::Error> {
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
}

/// One of `GET /api/feature-flags`
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct FeatureFlag {
    /// Its name.
    #[serde(deserialize_with = "lenient")]
    pub name: String,
    /// `enabled`, `disabled` or `unsupported`.
    #[serde(deserialize_with = "lenient")]
    pub state: String,
}

/// One of `GET /api/nodes`
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct NodeInfo {
    /// Its name.
    #[serde(deserialize_with = "lenient")]
    pub name: String,
    /// Whether it is up.
    #[serde(deserialize_with = "lenient")]
    pub running: bool,
    /// Its memory, in bytes.
    pub mem_used: Option<u64>,
    /// The memory at which it stops taking messages, in bytes.
    pub mem_limit: Option<u64>,
    /// Its free disk space, in bytes.
    pub disk_free: Option<u64>,
    /// The free disk space at which it stops taking messages, in bytes.
    pub disk_free_limit: Option<u64>,
    /// Its processors.
    pub processors: Option<u64>,
}

/// One of `GET /api/exchanges/VHOST`
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
    /// Whether it goes with its last binding.
    #[serde(deserialize_with = "lenient")]
    pub auto_delete: bool,
    /// Whether clients may not publish to it.
    #[serde(deserialize_with = "lenient")]
    pub internal: bool,
    /// Its optional arguments.
    #[serde(deserialize_with = "lenient")]
    pub arguments: BTreeMap<String, Json>,
}

/// One of `GET /api/queues/VHOST`
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
    /// Whether it goes with its last consumer.
    #[serde(deserialize_with = "lenient")]
    pub auto_delete: bool,
    /// Its optional arguments.
    #[serde(deserialize_with = "lenient")]
    pub arguments: BTreeMap<String, Json>,
    /// All messages, stuck ones included.
    #[serde(deserialize_with = "lenient")]
    pub messages: u64,
    /// Those that wait.
    #[serde(deserialize_with = "lenient")]
    pub messages_ready: u64,
    /// Those that a consumer holds.
    #[serde(deserialize_with = "lenient")]
    pub messages_unacknowledged: u64,
    /// Those that left the queue and are not confirmed at the other end.
    #[serde(deserialize_with = "lenient")]
    pub messages_dlx: u64,
    /// The memory of its process on the leader's node, in bytes.
    pub memory: Option<u64>,
    /// What policies set, operator policies included: an object, or an empty
    /// list.
    pub effective_policy_definition: Json,
    /// The name of the policy that applies.
    pub policy: Option<String>,
    /// The name of the operator policy that applies.
    pub operator_policy: Option<String>,
    /// The nodes that hold a replica.
    #[serde(deserialize_with = "lenient")]
    pub members: Vec<String>,
    /// Those of them that are up.
    #[serde(deserialize_with = "lenient")]
    pub online: Vec<String>,
    /// The node of its leader.
    #[serde(deserialize_with = "lenient")]
    pub leader: String,
}

impl QueueInfo {
    /// What a policy sets for this queue under a key.
    #[must_use]
    pub fn policy_value(&self, key: &str) -> Option<&Json> {
        self.effective_policy_definition.as_object()?.get(key)
    }
}

/// One of `GET /api/bindings/VHOST`
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_queue_with_no_field_but_its_name() {
        let queue: QueueInfo = serde_json::from_str(r#"{"name": "q", "new_in_5": [1]}"#).unwrap();
        assert_eq!((queue.name.as_str(), queue.messages), ("q", 0));
        assert_eq!(queue.policy_value("expires"), None);
    }

    #[test]
    fn reads_a_queue_of_nulls() {
        let text = r#"{"name": null, "type": null, "leader": null, "members": null, "messages": null,
            "arguments": null, "durable": null, "effective_policy_definition": null, "policy": null}"#;
        let queue: QueueInfo = serde_json::from_str(text).unwrap();
        assert_eq!((queue.leader.as_str(), queue.messages, queue.durable), ("", 0, false));
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
