//! The objects of an application besides a set: its queue, its landing queue, its binding.

use crate::codec::{AppKey, RoutingKey};

use super::{Argument, Binding, Endpoint, Queue, QueueType, Topology, build::queue_arguments};

/// Where messages go if an application rejects them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rejected {
    /// To the retry service.
    Retried,
    /// To the parked messages, without a retry: for frameworks that have their own retries.
    Parked,
}

impl Topology {
    /// The queue of an application. Rejected messages leave it under the app key, at least once.
    /// They are dropped if `rejected` is `None`.
    #[must_use]
    pub fn app_queue(&self, app: &AppKey, name: &str, rejected: Option<Rejected>) -> Queue {
        let mut arguments = queue_arguments(self.settings());
        if let Some(rejected) = rejected {
            let exchange = match rejected {
                Rejected::Retried => self.names().retry(),
                Rejected::Parked => self.names().parked(),
            };
            arguments.insert("x-dead-letter-exchange".into(), exchange.into());
            arguments.insert("x-dead-letter-routing-key".into(), app.as_str().into());
            arguments.insert("x-overflow".into(), "reject-publish".into());
            if self.settings().queue_type == QueueType::Quorum {
                arguments.insert("x-dead-letter-strategy".into(), "at-least-once".into());
            }
        }
        Queue { name: name.into(), level: None, hop: None, arguments }
    }

    /// The landing queue of an application. Every message leaves it at once for `exchange`, under
    /// `key` or its own key. Messages that are not accepted there wait here instead of in a level.
    /// It has no length limit, since it must never refuse.
    #[must_use]
    pub fn landing_queue(&self, app: &AppKey, exchange: &str, key: Option<&str>) -> Queue {
        let mut arguments = queue_arguments(self.settings());
        arguments.insert("x-queue-type".into(), QueueType::Quorum.as_str().into());
        arguments.insert("x-message-ttl".into(), Argument::Number(0));
        arguments.insert("x-dead-letter-exchange".into(), exchange.into());
        if let Some(key) = key {
            arguments.insert("x-dead-letter-routing-key".into(), key.into());
        }
        arguments.insert("x-dead-letter-strategy".into(), "at-least-once".into());
        // Without this, at-least-once silently becomes at-most-once.
        arguments.insert("x-overflow".into(), "reject-publish".into());
        Queue { name: self.names().landing(app), level: None, hop: None, arguments }
    }

    /// The binding by which an application receives: exactly its own messages.
    #[must_use]
    pub fn app_binding(&self, app: &AppKey, queue: &str) -> Binding {
        Binding {
            source: self.names().dispatch(),
            destination: Endpoint::Queue(queue.into()),
            key: RoutingKey::binding_pattern(app),
        }
    }

    /// Whether a queue of this name belongs to the set, or to one of its applications or gateways.
    #[must_use]
    pub fn owns_queue(&self, name: &str) -> bool {
        let names = self.names();
        let of_app = names.app_of_landing(name).or_else(|| names.app_of_recalled(name));
        let of_app = of_app.or_else(|| names.app_of_journal(name));
        self.queues().any(|queue| queue.name == name) || of_app.or_else(|| names.gateway_of(name)).is_some()
    }

    /// Whether an exchange of this name belongs to the set, or to one of its applications or
    /// gateways.
    #[must_use]
    pub fn owns_exchange(&self, name: &str) -> bool {
        let names = self.names();
        let of_app = names.app_of_recall(name).or_else(|| names.gateway_of(name));
        self.exchanges().any(|exchange| exchange.name == name) || of_app.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::TopologySettings;

    #[test]
    fn a_landing_queue_keeps_nothing_and_loses_nothing() {
        let topology = Topology::new(TopologySettings::default());
        let app = AppKey::new("billing").unwrap();
        insta::assert_json_snapshot!(topology.landing_queue(&app, "", Some("in")), @r#"
        {
          "name": "delay.landing.billing",
          "level": null,
          "arguments": {
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": "in",
            "x-dead-letter-strategy": "at-least-once",
            "x-message-ttl": 0,
            "x-overflow": "reject-publish",
            "x-queue-leader-locator": "balanced",
            "x-queue-type": "quorum"
          }
        }
        "#);
        assert!(topology.owns_queue("delay.landing.billing") && topology.owns_queue("delay.level.00"));
        assert!(!topology.owns_queue("billing") && !topology.owns_exchange("delay.landing.billing"));
    }

    #[test]
    fn a_queue_with_retries_names_its_app() {
        let topology = Topology::new(TopologySettings::default());
        let app = AppKey::new("eu.orders").unwrap();
        let queue = topology.app_queue(&app, "orders-in", Some(Rejected::Retried));
        assert_eq!(queue.arguments["x-dead-letter-exchange"], Argument::from("delay.retry"));
        assert_eq!(queue.arguments["x-dead-letter-routing-key"], Argument::from("eu.orders"));
        let parked = topology.app_queue(&app, "orders-in", Some(Rejected::Parked));
        assert_eq!(parked.arguments["x-dead-letter-exchange"], Argument::from("delay.parked"));
        assert_eq!(topology.app_queue(&app, "q", None).arguments.len(), 2);
    }
}
