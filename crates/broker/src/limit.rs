//! Whether a queue refuses messages when it is full: pure.

use serde_json::Value as Json;

use crate::management::QueueInfo;

/// How a queue refuses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limit {
    /// How much of it is used, and who set it.
    pub text: String,
    /// Whether the queue is full, as far as the broker reports its messages.
    pub full: bool,
}

/// How a queue refuses when it is full, by its arguments or by policy; `None` if it
/// does not.
#[must_use]
pub fn limit(queue: &QueueInfo) -> Option<Limit> {
    let overflow = queue
        .arguments
        .get("x-overflow")
        .map(|value| (value, false))
        .or_else(|| queue.policy_value("overflow").map(|value| (value, true)))?;
    overflow.0.as_str().filter(|behaviour| behaviour.starts_with("reject-publish"))?;
    let mut limits = Vec::new();
    let mut full = false;
    let mut by_policy = overflow.1;
    for (argument, key, now, unit) in [
        ("x-max-length", "max-length", queue.messages_ready, "messages"),
        ("x-max-length-bytes", "max-length-bytes", queue.message_bytes_ready, "bytes"),
    ] {
        let argument = queue.arguments.get(argument).and_then(Json::as_u64);
        let policy = queue.policy_value(key).and_then(Json::as_u64);
        // The lower of both applies.
        if let Some(most) = argument.into_iter().chain(policy).min() {
            full |= now.is_some_and(|now| now >= most);
            by_policy |= argument.is_none_or(|argument| policy.is_some_and(|policy| policy < argument));
            let now = now.map_or_else(|| "?".into(), |now| now.to_string());
            limits.push(format!("{now} of {most} {unit}"));
        }
    }
    if limits.is_empty() {
        return None;
    }
    let names: Vec<_> = [("policy", &queue.policy), ("operator policy", &queue.operator_policy)]
        .into_iter()
        .filter_map(|(kind, name)| name.as_ref().filter(|name| !name.is_empty()).map(|name| (kind, name)))
        .map(|(kind, name)| format!("{kind} `{name}`"))
        .collect();
    let by = if by_policy && !names.is_empty() { names.join(" and ") } else { "its arguments".into() };
    Some(Limit { text: format!("{}, by {by}", limits.join(", ")), full })
}
