//! Guards that keep messages which foreign exchanges do not route.

use super::{
    Binding, Endpoint, Exchange, ExchangeKind, Object, QueueType, Topology, TopologySettings,
    build::holding_queue, object::Arguments,
};

impl Topology {
    /// A fanout exchange of this name, and a quorum queue of the same name that keeps its messages
    /// until an operator decides about them. They are in an order that is safe for declaring. They
    /// are not part of the set, which need not be installed.
    #[must_use]
    pub fn guard(&self, name: &str) -> Vec<Object> {
        let settings = TopologySettings { queue_type: QueueType::Quorum, ..self.settings().clone() };
        vec![
            Object::Queue(holding_queue(&settings, name.into(), settings.unroutable_max_length)),
            Object::Exchange(Exchange {
                name: name.into(),
                kind: ExchangeKind::Fanout,
                arguments: Arguments::new(),
            }),
            Object::Binding(Binding {
                source: name.into(),
                destination: Endpoint::Queue(name.into()),
                key: String::new(),
            }),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_messages_are_replicated_whatever_the_set_is() {
        let settings = TopologySettings { queue_type: QueueType::Classic, ..TopologySettings::default() };
        let objects = Topology::new(settings).guard("kept");
        let Object::Queue(queue) = &objects[0] else { panic!("{objects:?}") };
        assert_eq!(queue.arguments["x-queue-type"].to_string(), "quorum");
        assert_eq!(queue.arguments["x-delivery-limit"].to_string(), i32::MAX.to_string());
        assert_eq!(
            objects[2],
            Object::Binding(Binding {
                source: "kept".into(),
                destination: Endpoint::Queue("kept".into()),
                key: String::new(),
            })
        );
    }
}
