//! The journal of an application: a stream with a copy of each message that was published for it
//! with a journal, so that scheduled messages can be listed.

use std::num::NonZeroU64;

use crate::codec::{AppKey, Delay};

use super::{Binding, Endpoint, Names, Object, Queue, QueueType, Topology, object::Arguments};

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
    /// The journal of an application: its stream, and the binding that leads copies there.
    #[must_use]
    pub fn journal(&self, app: &AppKey, settings: JournalSettings) -> [Object; 2] {
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
        [Object::Queue(queue), Object::Binding(self.journal_binding(app))]
    }

    /// The binding that leads the copies of an application's messages to its journal. It is on the
    /// entry, which each message passes only once, so there is one copy of each.
    #[must_use]
    pub fn journal_binding(&self, app: &AppKey) -> Binding {
        Binding {
            source: self.names().entry(),
            destination: Endpoint::Queue(self.names().journal(app)),
            key: Names::journal_key(app),
        }
    }

    /// Whether this is the [`journal_binding`](Self::journal_binding) of an application.
    #[must_use]
    pub fn is_journal_binding(&self, binding: &Binding) -> bool {
        let Endpoint::Queue(name) = &binding.destination else { return false };
        let app = self.names().app_of_journal(name).and_then(|app| AppKey::new(app).ok());
        app.is_some_and(|app| self.journal_binding(&app) == *binding)
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
        let [Object::Queue(queue), _] = topology().journal(&AppKey::new("billing").unwrap(), settings) else {
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
    fn belongs_to_the_set_and_only_its_own_binding_leads_there() {
        let topology = topology();
        assert!(topology.owns_queue("delay.journal.billing"));
        assert!(!topology.owns_exchange("delay.journal.billing"));
        let binding = topology.journal_binding(&AppKey::new("billing").unwrap());
        assert_eq!(
            binding.to_string(),
            "binding `delay` -> queue `delay.journal.billing` with key `journal.billing`"
        );
        assert!(topology.is_journal_binding(&binding));
        for other in [
            Binding { key: "#".into(), ..binding.clone() },
            Binding { key: "journal.orders".into(), ..binding.clone() },
            Binding { source: "delay.dispatch".into(), ..binding.clone() },
            Binding { destination: Endpoint::Queue("mine".into()), ..binding },
        ] {
            assert!(!topology.is_journal_binding(&other), "{other}");
        }
    }
}
