//! The objects of an application with which its messages can be recalled.

use std::num::NonZeroU32;

use crate::codec::{AppKey, Delay, RoutingKey};

use super::{
    Binding, Endpoint, Exchange, ExchangeKind, JournalSettings, Names, Object, Queue, QueueType, Topology,
    UNREACHABLE_DELIVERY_LIMIT, build::queue_arguments, object::Arguments,
};

/// How much the queue of an application's recalled messages keeps, and for how long. It must never
/// refuse a message, since that would block the levels. So it drops messages over the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecallSettings {
    /// How long a recalled message is kept after its due time; 30 days by default.
    pub keep: Delay,
    /// The most messages that are kept; 100,000 by default. New messages replace the oldest.
    pub max_length: NonZeroU32,
    /// Whether there is a journal of scheduled messages, and how much it keeps; none by default.
    pub journal: Option<JournalSettings>,
}

impl RecallSettings {
    /// Sets how long recalled messages are kept.
    #[must_use]
    pub fn with_keep(mut self, keep: Delay) -> Self {
        self.keep = keep;
        self
    }

    /// Sets how many recalled messages are kept.
    #[must_use]
    pub fn with_max_length(mut self, messages: NonZeroU32) -> Self {
        self.max_length = messages;
        self
    }

    /// Adds a journal.
    #[must_use]
    pub fn with_journal(mut self, journal: JournalSettings) -> Self {
        self.journal = Some(journal);
        self
    }
}

impl Default for RecallSettings {
    fn default() -> Self {
        let month = Delay::from_seconds(30 * 24 * 60 * 60).expect("30 days are a delay");
        Self { keep: month, max_length: NonZeroU32::new(100_000).expect("it is not zero"), journal: None }
    }
}

impl Topology {
    /// All objects for recalling an application's messages, in the order in which they are
    /// declared. The binding that leads messages there is the last.
    ///
    /// `to` is the target of its other messages: its queue, or its landing queue.
    #[must_use]
    pub fn recall(&self, app: &AppKey, to: Endpoint, settings: RecallSettings) -> Vec<Object> {
        let names = self.names();
        let (recall, through) = (names.recall(app), names.through(app));
        let exchange = |name: &str, kind: ExchangeKind, alternate: String| {
            let arguments = Arguments::from([("alternate-exchange".into(), alternate.into())]);
            Object::Exchange(Exchange { name: name.into(), kind, arguments })
        };
        let journal = settings.journal.map(|journal| self.journal(app, journal));
        let objects = [
            exchange(&through, ExchangeKind::Fanout, names.unroutable()),
            Object::Binding(Binding { source: through.clone(), destination: to, key: String::new() }),
            Object::Queue(self.recalled_queue(app, settings)),
            exchange(&recall, ExchangeKind::Direct, through),
            Object::Binding(self.recall_route(app)),
        ];
        journal.into_iter().flatten().chain(objects).collect()
    }

    /// The binding that leads an application's messages with an id to the exchange for recalls.
    #[must_use]
    pub fn recall_route(&self, app: &AppKey) -> Binding {
        Binding {
            source: self.names().dispatch(),
            destination: Endpoint::Exchange(self.names().recall(app)),
            key: RoutingKey::recall_pattern(app),
        }
    }

    /// Whether this is the [`recall_route`](Self::recall_route) of an application.
    #[must_use]
    pub fn is_recall_route(&self, binding: &Binding) -> bool {
        let Endpoint::Exchange(name) = &binding.destination else { return false };
        let app = self.names().app_of_recall(name).and_then(|app| AppKey::new(app).ok());
        app.is_some_and(|app| self.recall_route(&app) == *binding)
    }

    /// The queue that keeps the recalled messages of an application.
    #[must_use]
    pub fn recalled_queue(&self, app: &AppKey, settings: RecallSettings) -> Queue {
        let mut arguments = queue_arguments(self.settings());
        arguments.insert("x-message-ttl".into(), (i64::from(settings.keep.seconds()) * 1_000).into());
        arguments.insert("x-max-length".into(), i64::from(settings.max_length.get()).into());
        arguments.insert("x-overflow".into(), "drop-head".into());
        if self.settings().queue_type == QueueType::Quorum {
            arguments.insert("x-delivery-limit".into(), UNREACHABLE_DELIVERY_LIMIT.into());
        }
        Queue { name: self.names().recalled(app), level: None, hop: None, arguments }
    }
}

impl Binding {
    /// The binding that recalls the message with this routing key.
    #[must_use]
    pub fn recalling(names: &Names, key: &RoutingKey) -> Self {
        Self {
            source: names.recall(&key.app),
            destination: Endpoint::Queue(names.recalled(&key.app)),
            key: key.encode(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::TopologySettings;

    #[test]
    fn has_the_objects_of_the_contract() {
        let topology = Topology::new(TopologySettings::default());
        let app = AppKey::new("billing").unwrap();
        let objects = topology.recall(&app, Endpoint::Queue("in".into()), RecallSettings::default());
        let shown: Vec<_> = objects
            .iter()
            .map(|object| match object {
                Object::Exchange(it) => format!("{} {} {:?}", it.kind.as_str(), it.name, it.arguments),
                Object::Queue(it) => it.name.clone(),
                Object::Binding(it) => it.to_string(),
            })
            .collect();
        assert_eq!(
            shown,
            [
                r#"fanout delay.through.billing {"alternate-exchange": Text("delay.unroutable")}"#,
                "binding `delay.through.billing` -> queue `in` with key ``",
                "delay.recalled.billing",
                r#"direct delay.recall.billing {"alternate-exchange": Text("delay.through.billing")}"#,
                "binding `delay.dispatch` -> exchange `delay.recall.billing` with key \
                 `delay.*.*.*.*.*.*.*.billing.~.*`",
            ]
        );
        let Object::Queue(queue) = &objects[2] else { panic!("{:?}", objects[2]) };
        insta::assert_json_snapshot!(queue.arguments, @r#"
        {
          "x-delivery-limit": 2147483647,
          "x-max-length": 100000,
          "x-message-ttl": 2592000000,
          "x-overflow": "drop-head",
          "x-queue-leader-locator": "balanced",
          "x-queue-type": "quorum"
        }
        "#);
    }

    #[test]
    fn belongs_to_the_set_and_does_not_lead_back_into_it() {
        let topology = Topology::new(TopologySettings::default());
        assert!(
            topology.owns_queue("delay.recalled.billing") && !topology.owns_queue("delay.recall.billing")
        );
        for exchange in ["delay.recall.billing", "delay.through.billing"] {
            assert!(topology.owns_exchange(exchange), "{exchange}");
            assert!(!topology.leads_back(&Endpoint::Exchange(exchange.into())), "{exchange}");
        }
        assert!(!topology.owns_exchange("delay.recalled.billing"));
        let route = topology.recall_route(&AppKey::new("billing").unwrap());
        assert!(topology.is_recall_route(&route));
        let other = Endpoint::Exchange("delay.recall.orders".into());
        assert!(!topology.is_recall_route(&Binding { destination: other, ..route.clone() }));
        assert!(!topology.is_recall_route(&Binding { key: "#".into(), ..route }));
    }
}
