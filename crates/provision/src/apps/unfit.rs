//! Queues that an application may not receive its messages in, since they can stop other applications:
//! pure.

use delayline_core::{
    codec::{Delay, RoutingKey},
    topology::{Endpoint, Topology},
};

use super::{AppSpec, Delivery, Target};
use delayline_broker::{Snapshot, streams_behind};

/// Why the queue or exchange that an application requests cannot be used, and which one to use instead.
pub(super) fn unfit(topology: &Topology, spec: &AppSpec, snapshot: &Snapshot) -> Vec<String> {
    let own_key = RoutingKey::new(Delay::ZERO, spec.app.clone()).encode();
    let (to, key) = match &spec.delivery {
        Delivery::Direct(queue) | Delivery::Landing(Target::Queue(queue)) => {
            (Endpoint::Queue(queue.name.clone()), own_key)
        }
        Delivery::Landing(Target::Exchange { exchange, key, .. }) => {
            (Endpoint::Exchange(exchange.clone()), key.clone().unwrap_or(own_key))
        }
        Delivery::Nothing => return Vec::new(),
    };
    let streams = streams_behind(topology, snapshot, &to, &key).into_iter().map(|stream| {
        format!(
            "{to} {}a stream. One due message that a stream cannot store, such as a message with a decimal \
             in a header, ends all dead-lettering of a node, also behind a landing queue. Use a quorum \
             queue, and copy its messages to the stream with a shovel or a program \
             (docs/reference/message-outcomes.md)",
            match to.name() == stream.name {
                true => "is ".to_owned(),
                false => format!("leads to queue `{}`, ", stream.name),
            }
        )
    });
    streams.chain(transient(spec, snapshot)).collect()
}

/// A queue bound to dispatch directly that disappears with a connection or a consumer.
fn transient(spec: &AppSpec, snapshot: &Snapshot) -> Option<String> {
    let Delivery::Direct(queue) = &spec.delivery else { return None };
    let info = snapshot.queues.get(&queue.name)?;
    let (kind, with) = match (info.exclusive, info.auto_delete) {
        (true, _) => ("exclusive", "the connection that declared it"),
        (_, true) => ("auto-delete", "its last consumer"),
        _ => return None,
    };
    Some(format!(
        "queue `{}` is {kind}: it disappears with {with}, and messages that are just being passed to it \
         then stay in their level, where 32 of them block every application. Declare a durable queue, or \
         put a landing queue in front of it (--landing)",
        queue.name
    ))
}

#[cfg(test)]
mod tests {
    use delayline_core::{codec::AppKey, topology::TopologySettings};

    use super::*;
    use crate::apps::AppQueue;
    use delayline_broker::{BindingInfo, ExchangeInfo, QueueInfo};

    fn snapshot(topology: &Topology) -> Snapshot {
        let mut snapshot = Snapshot::default().with(topology.objects());
        let queue = |name: &str, kind: &str| QueueInfo {
            name: name.into(),
            kind: kind.into(),
            durable: true,
            ..QueueInfo::default()
        };
        let exclusive = QueueInfo { exclusive: true, ..queue("mine", "classic") };
        let fleeting = QueueInfo { auto_delete: true, ..queue("fleeting", "classic") };
        let queues = [queue("plain", "quorum"), queue("log", "stream"), exclusive, fleeting];
        let exchange = |name: &str| ExchangeInfo {
            name: name.into(),
            kind: "topic".into(),
            durable: true,
            ..ExchangeInfo::default()
        };
        let binding = |(source, destination, kind): (&str, &str, &str)| BindingInfo {
            source: source.into(),
            destination: destination.into(),
            destination_type: kind.into(),
            routing_key: "#.billing".into(),
            ..BindingInfo::default()
        };
        let bindings =
            [("events", "audit", "exchange"), ("audit", "log", "queue"), ("orders", "plain", "queue")];
        snapshot.enter(["events", "audit", "orders"].map(exchange), queues, bindings.map(binding));
        snapshot
    }

    fn found(delivery: Delivery) -> Vec<String> {
        let topology = Topology::new(TopologySettings::default());
        let spec = AppSpec::new(AppKey::new("billing").unwrap(), delivery);
        unfit(&topology, &spec, &snapshot(&topology))
    }

    fn exchange(name: &str, key: Option<&str>) -> Delivery {
        let (exchange, key) = (name.to_owned(), key.map(str::to_owned));
        Delivery::Landing(Target::Exchange { exchange, key, queue: None })
    }

    #[test]
    fn targets_that_can_stop_others_are_refused_with_a_remedy() {
        let direct = |name: &str| Delivery::Direct(AppQueue::new(name));
        let behind = |name: &str| Delivery::Landing(Target::Queue(AppQueue::new(name)));
        for (delivery, words) in [
            (direct("log"), "queue `log` is a stream"),
            (behind("log"), "queue `log` is a stream"),
            (exchange("events", None), "exchange `events` leads to queue `log`, a stream"),
            (exchange("audit", Some("the.billing")), "exchange `audit` leads to queue `log`, a stream"),
            (direct("mine"), "queue `mine` is exclusive"),
            (direct("fleeting"), "queue `fleeting` is auto-delete"),
        ] {
            let found = found(delivery.clone());
            assert!(found.len() == 1 && found[0].starts_with(words), "{delivery:?}: {found:?}");
        }
        let harmless = [
            direct("plain"),
            direct("not.declared.yet"),
            behind("plain"),
            behind("fleeting"),
            exchange("orders", None),
            exchange("audit", Some("another.key")),
            Delivery::Nothing,
        ];
        for delivery in harmless {
            assert_eq!(found(delivery.clone()), [""; 0], "{delivery:?}");
        }
    }
}
