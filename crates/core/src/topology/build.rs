//! The two loops that build the whole topology.

use std::{
    collections::{BTreeMap, BTreeSet},
    num::NonZeroU32,
};

use crate::codec::{FOUR_BITS, Hop, Level, Shortcut, WORD_BITS, WORDS, highest};

use super::{
    Binding, Endpoint, Exchange, ExchangeKind, Names, Object, Queue, QueueType, Topology, TopologySettings,
    UNREACHABLE_DELIVERY_LIMIT, object::Arguments,
};

impl Topology {
    /// The complete wanted state for some settings: 32 exchanges (28 of levels,
    /// dispatch, unroutable, retry, parked; the entry is the top level's), 31 queues
    /// and 598 bindings. With shortcuts, 44 queues more.
    #[must_use]
    pub fn new(settings: TopologySettings) -> Self {
        let shortcuts = settings.shortcuts.unwrap_or(false);
        Self::with(settings, shortcuts, |_| shortcuts)
    }

    /// The same set as it is installed: whether its messages take shortcuts, if the settings leave that
    /// open, and which queues of shortcuts exist. A set without shortcuts can still have such queues,
    /// with messages that came before. If the stream of schedules exists, their objects belong to it.
    #[must_use]
    pub fn as_installed(&self, shortcuts: bool, exists: impl Fn(&str) -> bool) -> Self {
        let shortcuts = self.settings.shortcuts.unwrap_or(shortcuts);
        let schedules = self.has_schedules() || exists(&self.names.schedules());
        let installed = Self::with(self.settings.clone(), shortcuts, |name| shortcuts || exists(name));
        if schedules { installed.with_schedules() } else { installed }
    }

    /// The bindings that this set's replace when its shortcuts are switched on or off, each by its successor.
    /// Queues that do not exist have none.
    #[must_use]
    pub fn replaced_bindings(&self) -> BTreeMap<&Binding, Binding> {
        let switched = Self::with(self.settings.clone(), !self.shortcuts, |_| false);
        let switched = if self.has_schedules() { switched.with_schedules() } else { switched };
        let queues: BTreeSet<_> = self.queues().map(|queue| queue.name.as_str()).collect();
        let replaced = |(one, other): &(&Binding, &Binding)| {
            one.destination != other.destination && queues.contains(other.destination.name())
        };
        // Keys and their order are the same.
        let pairs = self.bindings().zip(switched.bindings()).filter(replaced);
        pairs.map(|(binding, old)| (binding, old.clone())).collect()
    }

    fn with(settings: TopologySettings, shortcuts: bool, has: impl Fn(&str) -> bool) -> Self {
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
        let present = Shortcut::all().filter(|shortcut| has(&names.shortcut(*shortcut)));
        let mut hops: Vec<_> = Level::all().map(Hop::Level).chain(present.map(Hop::Shortcut)).collect();
        // Each queue after those that it passes messages to.
        hops.sort_by_key(|hop| hop.units());
        objects.extend(hops.into_iter().map(|hop| Object::Queue(waiting_queue(&settings, &names, hop))));
        for level in Level::all() {
            objects.push(Object::Exchange(topic_exchange(&names, names.level_exchange(level))));
            objects.extend(skip_ahead(&names, level, shortcuts).into_iter().map(Object::Binding));
        }
        Self { settings, names, shortcuts, objects }
    }
}

/// A topic exchange that loses no message: unroutable messages go to the unroutable queue.
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
        // Without it, all leaders end up on the node that `install` is connected to.
        arguments.insert("x-queue-leader-locator".into(), "balanced".into());
        if let Some(replicas) = settings.replicas {
            arguments.insert("x-quorum-initial-group-size".into(), i64::from(replicas.get()).into());
        }
    }
    arguments
}

/// A queue that keeps messages until an operator decides about them. When it is full, the oldest
/// are dropped: refusing new ones would block the levels they come from, for every application.
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
    Queue { name, level: None, hop: None, arguments }
}

/// The queue of the retry service. If the service cannot read a message, it rejects it, and the
/// broker moves it to the parked queue, unchanged.
fn retry_queue(settings: &TopologySettings, names: &Names) -> Queue {
    service_queue(settings, names.retry(), names.parked())
}

/// The queue of a service that moves every message on. Rejected messages, and those that cannot be
/// delivered to the service, go to the exchange `rejected`, unchanged.
pub(super) fn service_queue(settings: &TopologySettings, name: String, rejected: String) -> Queue {
    let mut queue = holding_queue(settings, name, None);
    queue.arguments.insert("x-dead-letter-exchange".into(), rejected.into());
    queue.arguments.insert("x-overflow".into(), "reject-publish".into());
    if settings.queue_type == QueueType::Quorum {
        queue.arguments.insert("x-dead-letter-strategy".into(), "at-least-once".into());
    }
    queue
}

fn waiting_queue(settings: &TopologySettings, names: &Names, hop: Hop) -> Queue {
    let below = match hop {
        Hop::Level(level) => level.below(),
        Hop::Shortcut(shortcut) => shortcut.below(),
    };
    let next = below.map_or_else(|| names.dispatch(), |below| names.level_exchange(below));
    let mut arguments = queue_arguments(settings);
    arguments
        .insert("x-message-ttl".into(), (i64::from(settings.unit.millis()) * i64::from(hop.units())).into());
    arguments.insert("x-dead-letter-exchange".into(), next.into());
    // Quorum queues dead-letter at least once only with this overflow behaviour; without it
    // they silently fall back to at most once.
    arguments.insert("x-overflow".into(), "reject-publish".into());
    if settings.queue_type == QueueType::Quorum {
        arguments.insert("x-dead-letter-strategy".into(), "at-least-once".into());
    }
    Queue { name: names.hop(hop), level: Some(hop.level()), hop: Some(hop), arguments }
}

/// The bindings of one level's exchange. They lead to the queue of the highest set bit at or below
/// the level, over all zeros between, or to dispatch if no bit is left. The patterns exclude each
/// other, so a message enters exactly one queue.
///
/// A pattern names values of whole words, since a topic exchange can distinguish only words. The
/// exchange of a word's highest bit comes before the rest of the word was examined, and finds the
/// next bit in this word or any later one. At the word's three other levels, the bit above is set.
/// They decide about the rest of this word. If no bit is left in it, they pass on to the exchange
/// of the next word. So a message crosses at most three exchanges, whatever its delay.
///
/// With shortcuts, a value with several bits leads to a queue of its own, after which the word is done.
fn skip_ahead(names: &Names, level: Level, shortcuts: bool) -> Vec<Binding> {
    let (word, bit) = (level.number() / WORD_BITS, level.number() % WORD_BITS);
    let queue = |word: u8, bit: u8| Endpoint::Queue(names.level_queue(Level::of(word, bit)));
    let bind = |words: String, destination: Endpoint| Binding {
        source: names.level_exchange(level),
        destination,
        // At least one word of app key, so that a truncated key matches no pattern.
        key: format!("delay.{words}*.#"),
    };
    let above = "*.".repeat((WORDS - 1 - word).into());
    let mut bindings = Vec::new();
    if bit + 1 == WORD_BITS {
        for set in (0..=word).rev() {
            let zeros = "0000.".repeat((word - set).into());
            let below = "*.".repeat(set.into());
            for (value, bits) in (0_u8..).zip(FOUR_BITS).skip(1) {
                let destination = match Shortcut::of(set, value).filter(|_| shortcuts) {
                    Some(shortcut) => Endpoint::Queue(names.shortcut(shortcut)),
                    None => queue(set, highest(value)),
                };
                bindings.push(bind(format!("{above}{zeros}{bits}.{below}"), destination));
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

    fn with_shortcuts() -> Topology {
        Topology::new(TopologySettings { shortcuts: Some(true), ..TopologySettings::default() })
    }

    #[test]
    fn shortcuts_change_only_where_eleven_values_of_each_low_word_lead() {
        let (without, with) = (topology(), with_shortcuts());
        assert_eq!((with.exchanges().count(), with.queues().count()), (28 + 4, 28 + 3 + 44));
        let pairs: Vec<_> = without.bindings().zip(with.bindings()).collect();
        assert_eq!((pairs.len(), with.bindings().count()), (598, 598));
        assert!(pairs.iter().all(|(one, other)| (&one.source, &one.key) == (&other.source, &other.key)));
        let changed: Vec<_> =
            pairs.iter().filter(|(one, other)| one.destination != other.destination).collect();
        // The seven exchanges that look at a new word lead to the four lowest words: 4 × 4, 3, 2 and 1 times.
        assert_eq!(changed.len(), 11 * (4 * 4 + 3 + 2 + 1));
        for (one, other) in changed {
            let level = one.destination.name();
            assert!(other.destination.name().starts_with(&format!("{level}.")), "{one} {other}");
        }
    }

    #[test]
    fn a_shortcut_has_the_arguments_of_a_level() {
        let topology = with_shortcuts();
        let queue = |name: &str| topology.queues().find(|queue| queue.name == name).unwrap();
        insta::assert_json_snapshot!(queue("delay.level.07.1110"), @r#"
        {
          "name": "delay.level.07.1110",
          "level": 7,
          "arguments": {
            "x-dead-letter-exchange": "delay.level.03",
            "x-dead-letter-strategy": "at-least-once",
            "x-message-ttl": 224000,
            "x-overflow": "reject-publish",
            "x-queue-leader-locator": "balanced",
            "x-queue-type": "quorum"
          }
        }
        "#);
        let last = &queue("delay.level.01.0011").arguments;
        assert_eq!(last["x-dead-letter-exchange"], Argument::from("delay.dispatch"));
    }

    #[test]
    fn a_set_that_leaves_shortcuts_open_is_as_it_was_installed() {
        let open = topology();
        assert_eq!(open.as_installed(false, |_| false), open);
        let on = open.as_installed(true, |_| false);
        assert_eq!(on.objects(), with_shortcuts().objects());
        // Switched off, while messages still wait in one queue.
        let left = with_shortcuts();
        let off = Topology::new(TopologySettings { shortcuts: Some(false), ..TopologySettings::default() });
        let off = off.as_installed(true, |name| name == "delay.level.03.1110");
        assert!(!off.has_shortcuts() && left.has_shortcuts());
        assert_eq!(off.queues().count(), open.queues().count() + 1);
        assert!(off.bindings().eq(open.bindings()));
    }

    #[test]
    fn names_every_object_once() {
        let topology = with_shortcuts();
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
    fn declares_the_ends_of_a_binding_before_it_and_the_entry_last() {
        let mut seen = std::collections::HashSet::new();
        let topology = with_shortcuts();
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
    fn a_level_queue_has_the_arguments_of_the_contract() {
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
    fn rejections_of_the_retry_service_are_parked_and_parked_messages_stay() {
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
    fn a_classic_level_has_no_argument_of_quorum_queues() {
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
    fn replicas_are_requested_only_when_set() {
        let topology =
            Topology::new(TopologySettings { replicas: NonZeroU8::new(3), ..TopologySettings::default() });
        for queue in topology.queues() {
            assert_eq!(queue.arguments["x-quorum-initial-group-size"], Argument::from(3), "{}", queue.name);
        }
    }

    #[test]
    fn the_unroutable_queue_keeps_requeued_messages_and_drops_the_oldest_when_full() {
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

    /// The bindings of a level without their common parts.
    fn ends(level: u8, common: &str) -> Vec<(String, String)> {
        let names = Names::new("delay".parse().unwrap());
        let end = |binding: Binding| {
            let key = binding.key.strip_prefix("delay.").and_then(|key| key.strip_suffix("*.#")).unwrap();
            (key.replacen(common, "", 1), binding.destination.name().to_owned())
        };
        skip_ahead(&names, level.try_into().unwrap(), false).into_iter().map(end).collect()
    }

    fn expected(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(key, name)| ((*key).to_owned(), format!("delay.{name}"))).collect()
    }

    #[test]
    fn a_word_is_finished_once_begun() {
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
        // No bit is left below the lowest bit of a word: the next word decides.
        let next = ends(4, "*.*.*.*.*.");
        assert_eq!(next[..2], expected(&[("0010.*.", "level.03"), ("0011.*.", "level.04")]));
    }

    #[test]
    fn an_untouched_word_is_matched_with_all_below() {
        let found = ends(7, "*.*.*.*.*.");
        assert_eq!(found.len(), 31);
        assert_eq!(found[0], ("0001.*.".into(), "delay.level.04".into()));
        assert_eq!(found[14], ("1111.*.".into(), "delay.level.07".into()));
        assert_eq!(found[15], ("0000.0001.".into(), "delay.level.00".into()));
        assert_eq!(found[30], ("0000.0000.".into(), "delay.dispatch".into()));
    }
}
