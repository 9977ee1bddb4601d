//! The journal of an application: a stream with a copy of each message that was published for it,
//! so that scheduled messages can be listed.

use std::num::NonZeroU64;

use crate::codec::{AppKey, Delay, RoutingKey};

use super::{Binding, Endpoint, Object, Queue, QueueType, Topology, object::Arguments};

/// The largest and the smallest file of a stream. The broker drops whole files, so a small journal
/// has small files.
const SEGMENT_BYTES: (u64, u64) = (100_000, 500_000_000);

/// The number of files of a journal that has reached its size.
const SEGMENTS: u64 = 10;

/// How much an application's journal keeps, and for how long. Over either limit, the broker drops
/// the oldest part, even if its messages are still waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct JournalSettings {
    /// How long a copy is kept after its message was published; 90 days by default. It should be at
    /// least the longest delay to list.
    pub max_age: Delay,
    /// The most bytes that are kept; 10 GB by default.
    pub max_bytes: NonZeroU64,
}

impl JournalSettings {
    /// The smallest limit in bytes: 1 MB.
    pub const LEAST_BYTES: u64 = 1_000_000;

    /// Sets how long a copy is kept.
    #[must_use]
    pub fn with_max_age(mut self, age: Delay) -> Self {
        self.max_age = age;
        self
    }

    /// Sets how many bytes are kept.
    #[must_use]
    pub fn with_max_bytes(mut self, bytes: NonZeroU64) -> Self {
        self.max_bytes = bytes;
        self
    }
}

impl Default for JournalSettings {
    fn default() -> Self {
        let quarter = Delay::from_seconds(90 * 24 * 60 * 60).expect("90 days are a delay");
        Self { max_age: quarter, max_bytes: NonZeroU64::new(10_000_000_000).expect("it is not zero") }
    }
}

impl Topology {
    /// The journal of an application: its stream, and the bindings that lead copies there.
    #[must_use]
    pub fn journal(&self, app: &AppKey, settings: JournalSettings) -> [Object; 3] {
        let bytes = settings.max_bytes.get();
        let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        let mut arguments = Arguments::from([
            ("x-queue-type".into(), Queue::STREAM.into()),
            ("x-max-age".into(), format!("{}s", settings.max_age.seconds()).into()),
            ("x-max-length-bytes".into(), number(bytes).into()),
            (
                "x-stream-max-segment-size-bytes".into(),
                number((bytes / SEGMENTS).clamp(SEGMENT_BYTES.0, SEGMENT_BYTES.1)).into(),
            ),
        ]);
        if self.settings().queue_type == QueueType::Quorum {
            arguments.insert("x-queue-leader-locator".into(), "balanced".into());
            if let Some(replicas) = self.settings().replicas {
                arguments.insert("x-initial-cluster-size".into(), i64::from(replicas.get()).into());
            }
        }
        let queue = Queue { name: self.names().journal(app), level: None, hop: None, arguments };
        let [plain, with_id] = self.journal_bindings(app).map(Object::Binding);
        [Object::Queue(queue), plain, with_id]
    }

    /// The bindings that lead a copy of each message of an application to its journal: messages
    /// without an id, and messages with one. They are on the entry, which each message passes only
    /// once, so there is one copy of each.
    #[must_use]
    pub fn journal_bindings(&self, app: &AppKey) -> [Binding; 2] {
        [RoutingKey::binding_pattern(app), RoutingKey::recall_pattern(app)]
            .map(|key| self.to_journal(app, key))
    }

    /// The binding of a journal that copied only messages whose publishers asked for it, by the
    /// header `BCC`.
    #[must_use]
    pub fn earlier_journal_binding(&self, app: &AppKey) -> Binding {
        self.to_journal(app, format!("journal.{app}"))
    }

    fn to_journal(&self, app: &AppKey, key: String) -> Binding {
        let destination = Endpoint::Queue(self.names().journal(app));
        Binding { source: self.names().entry(), destination, key }
    }

    /// Whether this is one of the [`journal_bindings`](Self::journal_bindings) of an application, or its
    /// [earlier one](Self::earlier_journal_binding).
    #[must_use]
    pub fn is_journal_binding(&self, binding: &Binding) -> bool {
        let Endpoint::Queue(name) = &binding.destination else { return false };
        let app = self.names().app_of_journal(name).and_then(|app| AppKey::new(app).ok());
        app.is_some_and(|app| {
            self.journal_bindings(&app).contains(binding) || self.earlier_journal_binding(&app) == *binding
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::TopologySettings;

    fn topology() -> Topology {
        Topology::new(TopologySettings::default())
    }

    fn arguments(settings: JournalSettings) -> Arguments {
        let [Object::Queue(queue), ..] = topology().journal(&AppKey::new("billing").unwrap(), settings)
        else {
            panic!("a queue and a binding")
        };
        queue.arguments
    }

    #[test]
    fn is_a_stream_with_both_limits() {
        insta::assert_json_snapshot!(arguments(JournalSettings::default()), @r#"
        {
          "x-max-age": "7776000s",
          "x-max-length-bytes": 10000000000,
          "x-queue-leader-locator": "balanced",
          "x-queue-type": "stream",
          "x-stream-max-segment-size-bytes": 500000000
        }
        "#);
        let bytes = |bytes| JournalSettings::default().with_max_bytes(NonZeroU64::new(bytes).unwrap());
        let segment = |settings| arguments(settings)["x-stream-max-segment-size-bytes"].clone();
        assert_eq!(segment(bytes(20_000_000)), 2_000_000.into());
        assert_eq!(segment(bytes(JournalSettings::LEAST_BYTES)), 100_000.into());
    }

    #[test]
    fn belongs_to_the_set_and_only_its_own_bindings_lead_there() {
        let topology = topology();
        assert!(topology.owns_queue("delay.journal.billing"));
        assert!(!topology.owns_exchange("delay.journal.billing"));
        let app = AppKey::new("billing").unwrap();
        let bindings = topology.journal_bindings(&app);
        assert_eq!(
            bindings.each_ref().map(|it| it.key.as_str()),
            ["delay.*.*.*.*.*.*.*.billing", "delay.*.*.*.*.*.*.*.billing.~.*"]
        );
        assert!(bindings.iter().all(|it| topology.is_journal_binding(it)));
        let binding = topology.earlier_journal_binding(&app);
        assert!(topology.is_journal_binding(&binding));
        for other in [
            Binding { key: "#".into(), ..binding.clone() },
            Binding { key: RoutingKey::binding_pattern(&AppKey::new("orders").unwrap()), ..binding.clone() },
            Binding { source: "delay.dispatch".into(), ..binding.clone() },
            Binding { destination: Endpoint::Queue("mine".into()), ..binding },
        ] {
            assert!(!topology.is_journal_binding(&other), "{other}");
        }
    }
}
