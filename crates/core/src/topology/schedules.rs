//! The objects of recurring schedules: the stream of their definitions, and the queue that decides which
//! daemon publishes.

use super::{
    Binding, Endpoint, Exchange, ExchangeKind, Object, Queue, QueueType, Topology, build::holding_queue,
    object::Arguments,
};
use crate::codec::AppKey;

/// The size of the stream, and of each of its files. The daemon writes everything valid again long before
/// the broker drops the oldest file.
const STREAM_BYTES: (i64, i64) = (200_000_000, 10_000_000);

/// The same for the stream of an application. It can fill only its own.
const BYTES_OF_ONE: (i64, i64) = (10_000_000, 1_000_000);

impl Topology {
    /// How many bytes the stream of schedules keeps.
    pub const SCHEDULES_BYTES: u64 = STREAM_BYTES.0.unsigned_abs();

    /// The same for the schedules that an application manages itself.
    pub const SCHEDULES_OF_BYTES: u64 = BYTES_OF_ONE.0.unsigned_abs();

    /// The routing key with which a daemon joins those that wait for their turn.
    pub const TURN_KEY: &str = "turn";

    /// The routing key of a record in the stream of schedules.
    pub const RECORD_KEY: &str = "record";

    /// The objects of schedules, in the order in which they are declared.
    #[must_use]
    pub fn schedules(&self) -> Vec<Object> {
        let names = self.names();
        let mut turn = holding_queue(self.settings(), names.schedules_turn(), None);
        turn.arguments.insert("x-single-active-consumer".into(), true.into());
        let bind = |queue: String, key: &str| {
            let (source, destination) = (names.schedules(), Endpoint::Queue(queue));
            Object::Binding(Binding { source, destination, key: key.into() })
        };
        let alternate = [("alternate-exchange".into(), names.unroutable().into())];
        vec![
            Object::Exchange(
                Exchange::new(names.schedules(), ExchangeKind::Direct).with_arguments(alternate),
            ),
            Object::Queue(self.stream(names.schedules(), STREAM_BYTES)),
            Object::Queue(turn),
            bind(names.schedules(), Self::RECORD_KEY),
            bind(names.schedules_turn(), Self::TURN_KEY),
        ]
    }

    /// The objects of the schedules that an application manages itself. Everything that its user publishes to
    /// the exchange goes to the stream, and nothing becomes unroutable.
    #[must_use]
    pub fn schedules_of(&self, app: &AppKey) -> [Object; 3] {
        let name = self.names().schedules_of(app);
        let destination = Endpoint::Queue(name.clone());
        [
            Object::Exchange(Exchange::new(name.clone(), ExchangeKind::Fanout)),
            Object::Queue(self.stream(name.clone(), BYTES_OF_ONE)),
            Object::Binding(Binding { source: name, destination, key: String::new() }),
        ]
    }

    fn stream(&self, name: String, (all, file): (i64, i64)) -> Queue {
        let mut stream = Arguments::from([
            ("x-queue-type".into(), Queue::STREAM.into()),
            ("x-max-length-bytes".into(), all.into()),
            ("x-stream-max-segment-size-bytes".into(), file.into()),
        ]);
        if self.settings().queue_type == QueueType::Quorum {
            stream.insert("x-queue-leader-locator".into(), "balanced".into());
            if let Some(replicas) = self.settings().replicas {
                stream.insert("x-initial-cluster-size".into(), i64::from(replicas.get()).into());
            }
        }
        Queue::new(name).with_arguments(stream)
    }

    /// The same set with the objects of schedules.
    #[must_use]
    pub fn with_schedules(mut self) -> Self {
        if !self.has_schedules() {
            // After the exchange and the queue of unroutable messages, and the binding between them.
            self.objects.splice(3..3, self.schedules());
        }
        self
    }

    /// Whether the objects of schedules are part of it.
    #[must_use]
    pub fn has_schedules(&self) -> bool {
        let name = self.names().schedules();
        self.queues().any(|queue| queue.name == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::TopologySettings;

    #[test]
    fn schedules_are_part_of_a_set_once_their_stream_exists() {
        let topology = Topology::new(TopologySettings::default());
        assert!(!topology.has_schedules());
        let with = topology.as_installed(false, |name| name == "delay.schedules");
        assert!(with.has_schedules() && with == with.clone().with_schedules());
        assert_eq!(with.objects().len(), topology.objects().len() + 5);
        assert!(with.owns_queue("delay.schedules.turn") && with.owns_exchange("delay.schedules"));
        assert_eq!(with.exchanges().next_back().map(|it| it.name.as_str()), Some("delay"));
        let queue = |name: &str| with.queues().find(|queue| queue.name == name).unwrap().clone();
        let arguments = ["delay.schedules", "delay.schedules.turn"].map(|name| queue(name).arguments);
        insta::assert_json_snapshot!(arguments, @r#"
        [
          {
            "x-max-length-bytes": 200000000,
            "x-queue-leader-locator": "balanced",
            "x-queue-type": "stream",
            "x-stream-max-segment-size-bytes": 10000000
          },
          {
            "x-delivery-limit": 2147483647,
            "x-queue-leader-locator": "balanced",
            "x-queue-type": "quorum",
            "x-single-active-consumer": true
          }
        ]
        "#);
    }
}
