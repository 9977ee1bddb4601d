//! The two loops that build the whole topology.

use std::num::NonZeroU32;

use crate::codec::{FOUR_BITS, Level, WORD_BITS, WORDS};

use super::{
    Binding, Endpoint, Exchange, ExchangeKind, Names, Object, Queue, QueueType, Topology, TopologySettings,
    UNREACHABLE_DELIVERY_LIMIT, object::Arguments,
};

impl Topology {
    /// The complete wanted state for some settings: 32 exchanges (28 of levels,
    /// dispatch, unroutable, retry, parked; the entry is the top level's), 31 queues
    /// and 598 bindings.
    #[must_use]
    pub fn new(settings: TopologySettings) -> Self {
        let names = Names::new(settings.set.clone());
        let mut objects = vec![
            Object::Exchange(Exchange {
                name: names.unroutable(),
                kind: ExchangeKind::Fanout,
                arguments: Arguments::new(),
            }),
            Object::Queue(holding_queue(&settings, names.unroutable(), settings.unroutable_max_length)),
            Object::Binding(Binding {
                source: names.unroutable(),
                destination: Endpoint::Queue(names.unroutable()),
                key: String::new(),
            }),
            Object::Exchange(topic_exchange(&names, names.dispatch())),
        ];
        for queue in [holding_queue(&settings, names.parked(), None), retry_queue(&settings, &names)] {
            let name = queue.name.clone();
            objects.push(Object::Exchange(topic_exchange(&names, name.clone())));
            objects.push(Object::Queue(queue));
            objects.push(Object::Binding(Binding {
                source: name.clone(),
                destination: Endpoint::Queue(name),
                key: "#".into(),
            }));
        }
        for level in Level::all() {
            objects.push(Object::Queue(level_queue(&settings, &names, level)));
        }
        for level in Level::all() {
            objects.push(Object::Exchange(topic_exchange(&names, names.level_exchange(level))));
            objects.extend(skip_ahead(&names, level).into_iter().map(Object::Binding));
        }
        Self { settings, names, objects }
    }
}

/// A topic exchange that loses nothing: unroutable messages go to the unroutable queue.
fn topic_exchange(names: &Names, name: String) -> Exchange {
    Exchange {
        name,
        kind: ExchangeKind::Topic,
        arguments: Arguments::from([("alternate-exchange".into(), names.unroutable().into())]),
    }
}

/// The arguments that all queues of a set share.
pub(super) fn queue_arguments(settings: &TopologySettings) -> Arguments {
    let mut arguments = Arguments::from([("x-queue-type".into(), settings.queue_type.as_str().into())]);
    if settings.queue_type == QueueType::Quorum {
        // Without it all leaders end up on the node that `install` talks to.
        arguments.insert("x-queue-leader-locator".into(), "balanced".into());
        if let Some(replicas) = settings.replicas {
            arguments.insert("x-quorum-initial-group-size".into(), i64::from(replicas.get()).into());
        }
    }
    arguments
}

/// A queue that keeps messages until somebody decides about them. When it is full, the oldest
/// are dropped: refusing new ones would block the levels they come from, for everybody.
pub(super) fn holding_queue(
    settings: &TopologySettings,
    name: String,
    max_length: Option<NonZeroU32>,
) -> Queue {
    let mut arguments = queue_arguments(settings);
    if settings.queue_type == QueueType::Quorum {
        arguments.insert("x-delivery-limit".into(), UNREACHABLE_DELIVERY_LIMIT.into());
    }
    if let Some(most) = max_length {
        arguments.insert("x-max-length".into(), i64::from(most.get()).into());
        arguments.insert("x-overflow".into(), "drop-head".into());
    }
    Queue { name, level: None, arguments }
}

/// The queue of the retry service. A message that the service cannot even read is rejected,
/// and the broker itself moves it to the parked queue, unchanged.
fn retry_queue(settings: &TopologySettings, names: &Names) -> Queue {
    service_queue(settings, names.retry(), names.parked())
}

/// The queue of a service that moves every message on. What it rejects, or cannot even be
/// given, goes to the exchange `rejected`, unchanged.
pub(super) fn service_queue(settings: &TopologySettings, name: String, rejected: String) -> Queue {
    let mut queue = holding_queue(settings, name, None);
    queue.arguments.insert("x-dead-letter-exchange".into(), rejected.into());
    queue.arguments.insert("x-overflow".into(), "reject-publish".into());
    if settings.queue_type == QueueType::Quorum {
        queue.arguments.insert("x-dead-letter-strategy".into(), "at-least-once".into());
    }
    queue
}

fn level_queue(settings: &TopologySettings, names: &Names, level: Level) -> Queue {
    let next = level.below().map_or_else(|| names.dispatch(), |below| names.level_exchange(below));
    let mut arguments = queue_arguments(settings);
    arguments.insert(
        "x-message-ttl".into(),
        (i64::from(settings.unit.millis()) * i64::from(level.units())).into(),
    );
    arguments.insert("x-dead-letter-exchange".into(), next.into());
    // Quorum queues dead-letter at least once only with this overflow behaviour; without it
    // they silently fall back to at most once.
    arguments.insert("x-overflow".into(), "reject-publish".into());
    if settings.queue_type == QueueType::Quorum {
        arguments.insert("x-dead-letter-strategy".into(), "at-least-once".into());
    }
    Queue { name: names.level_queue(level), level: Some(level), arguments }
}

/// The bindings of one level's exchange: to the queue of the highest set bit at or below
/// it, over all zeros between, or to dispatch if none is left. The patterns exclude each
/// other, so a message enters exactly one queue.
///
/// A pattern names values of whole words, since that is what a topic exchange can tell
/// apart. The exchange of a word's highest bit has not looked at the word yet, and finds
/// the next bit in this one or any below. The three others of a word know that the bit
/// above theirs is set; they decide about the rest of this word, and hand over to the
/// exchange of the next word if nothing is left in it. So a message crosses three exchanges
/// at most, whatever its delay.
fn skip_ahead(names: &Names, level: Level) -> Vec<Binding> {
    let (word, bit) = (level.number() / WORD_BITS, level.number() % WORD_BITS);
    let queue = |word: u8, bit: u8| Endpoint::Queue(names.level_queue(Level::of(word, bit)));
    let bind = |words: String, destination: Endpoint| Binding {
        source: names.level_exchange(level),
        destination,
        // At least one word of app key, so that a truncated key matches nothing.
        key: format!("delay.{words}*.#"),
    };
    let above = "*.".repeat((WORDS - 1 - word).into());
    let mut bindings = Vec::new();
    if bit + 1 == WORD_BITS {
        for set in (0..=word).rev() {
            let zeros = "0000.".repeat((word - set).into());
            let below = "*.".repeat(set.into());
            for (value, bits) in (0_u8..).zip(FOUR_BITS).skip(1) {
                bindings.push(bind(format!("{above}{zeros}{bits}.{below}"), queue(set, highest(value))));
            }
        }
        let zeros = "0000.".repeat((word + 1).into());
        bindings.push(bind(format!("{above}{zeros}"), Endpoint::Exchange(names.dispatch())));
    } else {
        let below = "*.".repeat(word.into());
        let next = match word {
            0 => names.dispatch(),
            _ => names.level_exchange(Level::of(word - 1, WORD_BITS - 1)),
        };
        let passed = 1 << (bit + 1);
        for (value, bits) in (0_u8..).zip(FOUR_BITS).filter(|(value, _)| value & passed != 0) {
            let destination = match value & (passed - 1) {
                0 => Endpoint::Exchange(next.clone()),
                rest => queue(word, highest(rest)),
            };
            bindings.push(bind(format!("{above}{bits}.{below}"), destination));
        }
    }
    bindings
}

/// The number of the highest set bit. At least one must be set.
const fn highest(value: u8) -> u8 {
    (u8::BITS - 1 - value.leading_zeros()) as u8
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU8;

    use super::*;
    use crate::topology::Argument;

    fn topology() -> Topology {
        Topology::new(TopologySettings::default())
    }

    #[test]
    fn has_the_objects_of_the_contract() {
        let topology = topology();
        assert_eq!(topology.exchanges().count(), 28 + 4);
        assert_eq!(topology.queues().count(), 28 + 3);
        assert_eq!(topology.bindings().count(), 595 + 3);
    }

    #[test]
    fn names_every_object_once() {
        let topology = topology();
        let mut exchanges: Vec<_> = topology.exchanges().map(|exchange| &exchange.name).collect();
        let mut queues: Vec<_> = topology.queues().map(|queue| &queue.name).collect();
        for names in [&mut exchanges, &mut queues] {
            names.sort();
            let before = names.len();
            names.dedup();
            assert_eq!(names.len(), before);
        }
    }

    #[test]
    fn declares_what_a_binding_needs_before_it_and_the_entry_last() {
        let mut seen = std::collections::HashSet::new();
        let topology = topology();
        for object in topology.objects() {
            match object {
                Object::Exchange(exchange) => {
                    assert!(seen.insert(Endpoint::Exchange(exchange.name.clone())))
                }
                Object::Queue(queue) => assert!(seen.insert(Endpoint::Queue(queue.name.clone()))),
                Object::Binding(binding) => {
                    assert!(seen.contains(&Endpoint::Exchange(binding.source.clone())), "{binding}");
                    assert!(seen.contains(&binding.destination), "{binding}");
                }
            }
        }
        assert_eq!(topology.exchanges().next_back().map(|exchange| exchange.name.as_str()), Some("delay"));
    }

    #[test]
    fn a_level_queue_holds_what_the_contract_says() {
        let topology = topology();
        let queue = topology.queues().find(|queue| queue.level.is_some_and(|level| level == 22)).unwrap();
        insta::assert_json_snapshot!(queue, @r#"
        {
          "name": "delay.level.22",
          "level": 22,
          "arguments": {
            "x-dead-letter-exchange": "delay.level.21",
            "x-dead-letter-strategy": "at-least-once",
            "x-message-ttl": 4194304000,
            "x-overflow": "reject-publish",
            "x-queue-leader-locator": "balanced",
            "x-queue-type": "quorum"
          }
        }
        "#);
        let last = topology.queues().find(|queue| queue.level.is_some_and(|level| level == 0)).unwrap();
        assert_eq!(last.arguments["x-dead-letter-exchange"], Argument::from("delay.dispatch"));
    }

    #[test]
    fn what_the_retry_service_rejects_is_parked_and_what_is_parked_stays() {
        let topology = topology();
        let queue = |name: &str| topology.queues().find(|queue| queue.name == name).unwrap();
        insta::assert_json_snapshot!(queue("delay.retry").arguments, @r#"
        {
          "x-dead-letter-exchange": "delay.parked",
          "x-dead-letter-strategy": "at-least-once",
          "x-delivery-limit": 2147483647,
          "x-overflow": "reject-publish",
          "x-queue-leader-locator": "balanced",
          "x-queue-type": "quorum"
        }
        "#);
        insta::assert_json_snapshot!(queue("delay.parked").arguments, @r#"
        {
          "x-delivery-limit": 2147483647,
          "x-queue-leader-locator": "balanced",
          "x-queue-type": "quorum"
        }
        "#);
        for name in ["delay.retry", "delay.parked"] {
            let keys: Vec<_> = topology.bindings().filter(|binding| binding.source == name).collect();
            assert_eq!((keys.len(), keys[0].key.as_str(), keys[0].destination.name()), (1, "#", name));
        }
    }

    #[test]
    fn a_classic_level_has_no_argument_that_only_quorum_queues_know() {
        let topology = Topology::new(TopologySettings {
            queue_type: QueueType::Classic,
            replicas: NonZeroU8::new(3),
            ..TopologySettings::default()
        });
        let queue = topology.queues().find(|queue| queue.level.is_some_and(|level| level == 3)).unwrap();
        let names: Vec<_> = queue.arguments.keys().map(String::as_str).collect();
        assert_eq!(names, ["x-dead-letter-exchange", "x-message-ttl", "x-overflow", "x-queue-type"]);
    }

    #[test]
    fn replicas_are_asked_for_only_when_set() {
        let topology =
            Topology::new(TopologySettings { replicas: NonZeroU8::new(3), ..TopologySettings::default() });
        for queue in topology.queues() {
            assert_eq!(queue.arguments["x-quorum-initial-group-size"], Argument::from(3), "{}", queue.name);
        }
    }

    #[test]
    fn the_unroutable_queue_keeps_what_is_looked_at_and_drops_the_oldest_when_full() {
        let arguments = |unroutable_max_length| {
            let settings = TopologySettings { unroutable_max_length, ..TopologySettings::default() };
            let topology = Topology::new(settings);
            let queue = topology.queues().find(|queue| queue.name == topology.names().unroutable()).unwrap();
            queue.arguments.clone()
        };
        let unlimited = arguments(None);
        assert_eq!(unlimited["x-delivery-limit"], Argument::from(i64::from(i32::MAX)));
        assert!(!unlimited.contains_key("x-max-length") && !unlimited.contains_key("x-overflow"));
        let limited = arguments(NonZeroU32::new(1_000));
        assert_eq!(limited["x-max-length"], Argument::from(1_000));
        assert_eq!(limited["x-overflow"], Argument::from("drop-head"));
    }

    /// The bindings of a level without what they have in common.
    fn ends(level: u8, common: &str) -> Vec<(String, String)> {
        let names = Names::new("delay".parse().unwrap());
        let end = |binding: Binding| {
            let key = binding.key.strip_prefix("delay.").and_then(|key| key.strip_suffix("*.#")).unwrap();
            (key.replacen(common, "", 1), binding.destination.name().to_owned())
        };
        skip_ahead(&names, level.try_into().unwrap()).into_iter().map(end).collect()
    }

    fn expected(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(key, name)| ((*key).to_owned(), format!("delay.{name}"))).collect()
    }

    #[test]
    fn a_word_that_is_begun_is_finished() {
        let above = "*.*.*.*.*.*.";
        let last = [
            ("0100.", "dispatch"),
            ("0101.", "level.00"),
            ("0110.", "level.01"),
            ("0111.", "level.01"),
            ("1100.", "dispatch"),
            ("1101.", "level.00"),
            ("1110.", "level.01"),
            ("1111.", "level.01"),
        ];
        assert_eq!(ends(1, above), expected(&last));
        // Nothing is left below the lowest bit of a word: the next word decides.
        let next = ends(4, "*.*.*.*.*.");
        assert_eq!(next[..2], expected(&[("0010.*.", "level.03"), ("0011.*.", "level.04")]));
    }

    #[test]
    fn a_word_that_is_not_begun_is_looked_at_with_all_below() {
        let found = ends(7, "*.*.*.*.*.");
        assert_eq!(found.len(), 31);
        assert_eq!(found[0], ("0001.*.".into(), "delay.level.04".into()));
        assert_eq!(found[14], ("1111.*.".into(), "delay.level.07".into()));
        assert_eq!(found[15], ("0000.0001.".into(), "delay.level.00".into()));
        assert_eq!(found[30], ("0000.0000.".into(), "delay.dispatch".into()));
    }
}
