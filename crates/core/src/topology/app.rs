//! The objects of an application besides a set: its queue, its landing queue, its binding.

use crate::codec::{AppKey, RoutingKey};

use super::{
    Argument, Binding, Endpoint, Exchange, ExchangeKind, Queue, QueueType, Topology, build::queue_arguments,
};

/// Where messages go if an application rejects them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rejected {
    /// To the retry service.
    Retried,
    /// To the parked messages, without a retry: for frameworks that have their own retries.
    Parked,
}

impl Topology {
    /// The argument of a paused application's queue with the time of pausing.
    pub const PAUSED_SINCE: &str = "x-delayline-paused-since";

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

    /// The queue in which the messages of an application wait while it is paused. Its messages leave it for
    /// `to` when they are rejected. If `since` is `None`, they leave it at once; otherwise that is the time of
    /// pausing, in milliseconds since the epoch, which the broker keeps and does not compare.
    #[must_use]
    pub fn paused_queue(&self, app: &AppKey, to: &Endpoint, since: Option<i64>) -> Queue {
        let (exchange, key) = match to {
            Endpoint::Queue(queue) => ("", Some(queue.as_str())),
            Endpoint::Exchange(exchange) => (exchange.as_str(), None),
        };
        let mut queue = self.landing_queue(app, exchange, key);
        queue.name = self.names().paused(app);
        if let Some(since) = since {
            queue.arguments.remove("x-message-ttl");
            queue.arguments.insert(Self::PAUSED_SINCE.into(), Argument::Number(since));
        }
        queue
    }

    /// The exchanges with which the messages of an application are moved away from a queue or exchange
    /// without a gap and without a copy, and the binding of the second. A message that enters the first
    /// leaves it for the queue or exchange that is bound to it, and otherwise for the present one, by way of
    /// the second.
    #[must_use]
    pub fn moving(&self, app: &AppKey, from: &Endpoint) -> ([Exchange; 2], Binding) {
        let names = self.names();
        let [to, back] = names.moving(app);
        let exchange = |name: &str, alternate: String| {
            let arguments = [("alternate-exchange".to_owned(), alternate.into())];
            Exchange::new(name, ExchangeKind::Fanout).with_arguments(arguments)
        };
        let present = Binding { source: back.clone(), destination: from.clone(), key: String::new() };
        ([exchange(&to, back.clone()), exchange(&back, names.unroutable())], present)
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
        let of_app = names.app_of_recall(name).or_else(|| names.app_of_moving(name));
        let of_app = of_app.or_else(|| names.gateway_of(name));
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
    fn a_paused_application_keeps_its_messages_until_they_are_handed_on() {
        let topology = Topology::new(TopologySettings::default());
        let app = AppKey::new("billing").unwrap();
        let mut queue = topology.paused_queue(&app, &Endpoint::Queue("in".into()), Some(7));
        assert_eq!(queue.arguments.remove(Topology::PAUSED_SINCE), Some(Argument::Number(7)));
        let mut landing = topology.landing_queue(&app, "", Some("in"));
        assert_eq!(landing.arguments.remove("x-message-ttl"), Some(Argument::Number(0)));
        assert_eq!((queue.name.as_str(), &queue.arguments), ("delay.paused.billing", &landing.arguments));
        let at_once = topology.paused_queue(&app, &Endpoint::Exchange("events".into()), None);
        assert_eq!(at_once.arguments, topology.landing_queue(&app, "events", None).arguments);
        assert_eq!(topology.names().app_of_landing(&queue.name), Some("billing"));
        assert!(topology.owns_queue(&queue.name));
    }

    #[test]
    fn what_moves_an_application_belongs_to_the_set_and_does_not_lead_back_into_it() {
        let topology = Topology::new(TopologySettings::default());
        let app = AppKey::new("billing").unwrap();
        for name in topology.names().moving(&app) {
            assert!(topology.owns_exchange(&name), "{name}");
            assert!(!topology.leads_back(&Endpoint::Exchange(name)));
        }
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
