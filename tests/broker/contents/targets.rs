//! Kinds of queues and exchanges that can be bound to the dispatch exchange.

use std::cell::RefCell;

use delayline_amqp::Session;
use delayline_core::topology::Endpoint;
use delayline_node::PrivateNode;
use delayline_settings::Settings;
use serde_json::{Value as Json, json};

use crate::common;

/// A kind of target, by its name in the document.
pub(super) struct Target {
    pub(super) name: &'static str,
    make: fn(&Ground<'_>, &str) -> Made,
}

/// The objects that were declared for a target.
#[derive(Debug, Clone, Default)]
pub(super) struct Made {
    /// The queues and exchanges that are bound to the dispatch exchange.
    pub(super) bound: Vec<Endpoint>,
    /// The queue whose length is the number of arrived messages.
    pub(super) end: Option<String>,
}

/// The vhost in which targets are declared.
pub(super) struct Ground<'a> {
    pub(super) node: &'a PrivateNode,
    pub(super) settings: &'a Settings,
    /// Keeps exclusive queues alive.
    pub(super) session: &'a RefCell<Session>,
}

impl Ground<'_> {
    pub(super) fn api(&self, method: &str, kind: &str, rest: &str, body: &Json) {
        let path = format!("{kind}/{}/{rest}", self.settings.broker.vhost);
        let answer = common::http(self.node, method, &path, body);
        assert!(answer.get("error").is_none(), "{method} {path}: {answer}");
    }

    pub(super) fn queue(&self, name: &str, arguments: &Json) -> String {
        self.api("PUT", "queues", name, &json!({ "durable": true, "arguments": arguments }));
        name.to_owned()
    }

    fn exchange(&self, name: &str, kind: &str, arguments: &Json) -> String {
        self.api("PUT", "exchanges", name, &json!({ "type": kind, "durable": true, "arguments": arguments }));
        name.to_owned()
    }

    fn bind(&self, source: &str, (kind, to): (&str, &str), key: &str, arguments: &Json) {
        let body = json!({ "routing_key": key, "arguments": arguments });
        self.api("POST", "bindings", &format!("e/{source}/{kind}/{to}"), &body);
    }

    /// A full queue that refuses messages.
    fn full(&self, name: &str, kind: &str) -> String {
        let arguments = json!({ "x-queue-type": kind, "x-max-length": 1, "x-overflow": "reject-publish" });
        self.queue(name, &arguments);
        common::fill(self.settings, name);
        name.to_owned()
    }

    fn landing(&self, name: &str, behind: &str) -> String {
        let arguments = json!({
            "x-queue-type": "quorum", "x-message-ttl": 0, "x-overflow": "reject-publish",
            "x-dead-letter-strategy": "at-least-once", "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": behind,
        });
        self.queue(&format!("{name}.landing"), &arguments)
    }

    /// An exchange of this kind, with a quorum queue bound to it.
    fn behind(&self, name: &str, kind: &str, arguments: &Json, (key, matches): (&str, &Json)) -> Made {
        let (exchange, queue) =
            (self.exchange(&format!("{name}.x"), kind, arguments), self.queue(name, &kind_of("quorum")));
        self.bind(&exchange, ("q", &queue), key, matches);
        Made { bound: vec![Endpoint::Exchange(exchange)], end: Some(queue) }
    }
}

fn kind_of(kind: &str) -> Json {
    json!({ "x-queue-type": kind })
}

fn queue(name: String) -> Made {
    Made { bound: vec![Endpoint::Queue(name.clone())], end: Some(name) }
}

impl Target {
    pub(super) fn make(&self, ground: &Ground<'_>, name: &str) -> Made {
        (self.make)(ground, name)
    }
}

/// All targets, in the order of the document.
pub(super) const TARGETS: &[Target] = &[
    Target { name: "quorum queue", make: |ground, name| queue(ground.queue(name, &kind_of("quorum"))) },
    Target { name: "classic queue", make: |ground, name| queue(ground.queue(name, &kind_of("classic"))) },
    Target {
        name: "exclusive queue",
        make: |ground, _| queue(ground.session.borrow_mut().declare_own_queue().unwrap()),
    },
    Target {
        name: "auto-delete queue",
        make: |ground, name| {
            let body = json!({ "durable": true, "auto_delete": true, "arguments": {} });
            ground.api("PUT", "queues", name, &body);
            queue(name.to_owned())
        },
    },
    Target {
        name: "full queue that drops its oldest",
        make: |ground, name| {
            let mut made = queue(ground.queue(
                name,
                &json!({ "x-queue-type": "quorum", "x-max-length": 1, "x-overflow": "drop-head" }),
            ));
            made.end = None;
            made
        },
    },
    Target {
        name: "full quorum queue that refuses",
        make: |ground, name| Made { end: None, ..queue(ground.full(name, "quorum")) },
    },
    Target {
        name: "full classic queue that refuses",
        make: |ground, name| Made { end: None, ..queue(ground.full(name, "classic")) },
    },
    Target {
        name: "landing queue",
        make: |ground, name| {
            let end = ground.queue(name, &kind_of("quorum"));
            Made { bound: vec![Endpoint::Queue(ground.landing(name, &end))], end: Some(end) }
        },
    },
    Target {
        name: "landing queue before a full queue",
        make: |ground, name| {
            let end = ground.full(name, "quorum");
            Made { bound: vec![Endpoint::Queue(ground.landing(name, &end))], ..Made::default() }
        },
    },
    Target { name: "stream", make: |ground, name| queue(ground.queue(name, &kind_of("stream"))) },
    Target {
        name: "exchange to a stream",
        make: |ground, name| {
            let (first, second) = (format!("{name}.1"), format!("{name}.2"));
            let end = ground.queue(name, &kind_of("stream"));
            let first = ground.exchange(&first, "topic", &json!({}));
            let second = ground.exchange(&second, "fanout", &json!({}));
            ground.bind(&first, ("e", &second), "#", &json!({}));
            ground.bind(&second, ("q", &end), "", &json!({}));
            Made { bound: vec![Endpoint::Exchange(first)], end: Some(end) }
        },
    },
    Target {
        name: "exchange to no queue",
        make: |ground, name| {
            let exchange = ground.exchange(name, "topic", &json!({}));
            Made { bound: vec![Endpoint::Exchange(exchange)], ..Made::default() }
        },
    },
    Target {
        name: "headers exchange to a queue",
        make: |ground, name| {
            ground.behind(name, "headers", &json!({}), ("", &json!({ "x-match": "all-with-x" })))
        },
    },
    Target {
        name: "consistent-hash exchange to a queue",
        make: |ground, name| {
            let by = json!({ "hash-header": "h" });
            ground.behind(name, "x-consistent-hash", &by, ("1", &json!({})))
        },
    },
    Target {
        name: "recent-history exchange to a queue",
        make: |ground, name| ground.behind(name, "x-recent-history", &json!({}), ("", &json!({}))),
    },
    Target {
        name: "random exchange to a queue",
        make: |ground, name| ground.behind(name, "x-random", &json!({}), ("", &json!({}))),
    },
    Target {
        name: "entry exchange",
        make: |_, _| Made { bound: vec![Endpoint::Exchange("delay".into())], ..Made::default() },
    },
    Target { name: "nothing", make: |_, _| Made::default() },
];
