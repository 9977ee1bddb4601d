//! How much a stream keeps, and for how long: pure.

use std::time::Duration;

use delayline_core::{shell::quoted, topology::Queue};
use serde_json::{Value as Json, json};

use crate::{management::QueueInfo, pattern::escape};

const DAY: u64 = 24 * 60 * 60;

/// How much a stream keeps, and for how long; `None` where nothing limits it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Retention {
    /// How long it keeps a message.
    pub max_age: Option<Duration>,
    /// How many bytes it keeps.
    pub max_bytes: Option<u64>,
}

impl Retention {
    /// The declared retention of a stream.
    #[must_use]
    pub fn declared(info: &QueueInfo) -> Self {
        Self::of(|key| info.arguments.get(&format!("x-{key}")))
    }

    /// The retention that applies. Unlike for other queues, a policy overrides the declared arguments,
    /// whether its value is higher or lower.
    #[must_use]
    pub fn effective(info: &QueueInfo) -> Self {
        Self::of(|key| info.policy_value(key).or_else(|| info.arguments.get(&format!("x-{key}"))))
    }

    /// The retention that a stream would be declared with.
    #[must_use]
    pub fn wanted(queue: &Queue) -> Self {
        let json: Json = serde_json::to_value(&queue.arguments).unwrap_or_default();
        Self::of(|key| json.get(format!("x-{key}")))
    }

    fn of<'a>(value: impl Fn(&str) -> Option<&'a Json>) -> Self {
        Self {
            max_age: value("max-age").and_then(Json::as_str).and_then(age),
            max_bytes: value("max-length-bytes").and_then(Json::as_u64),
        }
    }

    /// The command that gives an existing stream this retention.
    #[must_use]
    pub fn policy(self, queue: &str, vhost: &str) -> String {
        let mut definition = serde_json::Map::new();
        if let Some(age) = self.max_age {
            definition.insert("max-age".into(), format!("{}s", age.as_secs()).into());
        }
        if let Some(bytes) = self.max_bytes {
            definition.insert("max-length-bytes".into(), bytes.into());
        }
        format!(
            "rabbitmqctl set_policy -p {} --apply-to queues --priority 1 {} {} {} (only one policy applies \
             to a queue: add the settings of its current policy)",
            quoted(vhost),
            quoted(&format!("retention-{queue}")),
            quoted(&format!("^{}$", escape(queue))),
            quoted(&json!(definition).to_string()),
        )
    }
}

/// An age in the broker's words: a number, and `Y`, `M`, `D`, `h`, `m` or `s`.
fn age(text: &str) -> Option<Duration> {
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let seconds = match unit {
        "Y" => 365 * DAY,
        "M" => 30 * DAY,
        "D" => DAY,
        "h" => 60 * 60,
        "m" => 60,
        "s" => 1,
        _ => return None,
    };
    Some(Duration::from_secs(number.parse::<u64>().ok()?.checked_mul(seconds)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_ages_as_the_broker_does() {
        for (text, seconds) in
            [("7776000s", 7_776_000), ("90D", 90 * DAY), ("2M", 60 * DAY), ("1Y", 365 * DAY)]
        {
            assert_eq!(age(text), Some(Duration::from_secs(seconds)), "{text}");
        }
        assert_eq!(
            (age("5m"), age("2h")),
            (Some(Duration::from_secs(300)), Some(Duration::from_secs(7_200)))
        );
        for text in ["", "s", "90", "90d", "-1s", "99999999999999999999s", "9é"] {
            assert_eq!(age(text), None, "{text}");
        }
    }

    #[test]
    fn a_policy_overrides_the_declared_retention() {
        let mut info = QueueInfo {
            arguments: [("x-max-age".to_owned(), json!("7D")), ("x-max-length-bytes".to_owned(), json!(10))]
                .into(),
            ..QueueInfo::default()
        };
        let days = |days| Some(Duration::from_secs(days * DAY));
        let found =
            |info: &QueueInfo| (Retention::effective(info).max_age, Retention::effective(info).max_bytes);
        assert_eq!(found(&info), (days(7), Some(10)));
        info.effective_policy_definition = json!({ "max-age": "30D" });
        assert_eq!(found(&info), (days(30), Some(10)));
        assert_eq!(Retention::declared(&info).max_age, days(7));
        let command = Retention::effective(&info).policy("delay.journal.a", "/");
        assert!(
            command.starts_with(
                r#"rabbitmqctl set_policy -p / --apply-to queues --priority 1 retention-delay.journal.a '^delay\.journal\.a$' '{"max-age":"2592000s","max-length-bytes":10}'"#
            ),
            "{command}"
        );
    }
}
