//! The description of an application that is to be registered.

use delayline_amqp::broker::Secret;
use delayline_core::{
    codec::{AppKey, Delay},
    topology::{JournalSettings, NativeRetry, QueueType, RecallSettings, Rejected, Topology},
};

/// An application.
#[derive(Debug, Clone)]
pub struct AppSpec {
    /// Its key.
    pub app: AppKey,
    /// How it receives.
    pub delivery: Delivery,
    /// Its RabbitMQ user; `None` leaves users and permissions alone.
    pub user: Option<AppUser>,
    /// Whether its messages can be recalled, and how long recalled ones are kept.
    pub recall: Option<RecallSettings>,
}

/// How an application receives its messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Delivery {
    /// Its queue is bound to the dispatch exchange.
    Direct(AppQueue),
    /// Its landing queue is bound there, which passes everything on to the target.
    Landing(Target),
    /// It receives no messages: it only publishes.
    Nothing,
}

/// Where a landing queue passes messages on to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// A queue, by way of the default exchange.
    Queue(AppQueue),
    /// An exchange, which must exist.
    Exchange {
        /// Its name.
        exchange: String,
        /// The routing key that messages get; `None` if they keep theirs.
        key: Option<String>,
        /// The queue that the user may consume, if any; it must exist.
        queue: Option<String>,
    },
}

/// An application's queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AppQueue {
    /// Its name.
    pub name: String,
    /// Whether it must exist already, with any arguments. If not, it is declared.
    pub existing: bool,
    /// How it is declared for rejected messages, which are dropped if `None`. Otherwise the application may
    /// also park messages itself.
    pub rejected: Option<Rejected>,
    /// How its queue delays requeued messages, if it does. Only RabbitMQ 4.3 or later can.
    pub native_retry: Option<NativeRetry>,
    /// Whether a landing queue that is in front of it stays if none is asked for. A platform file is
    /// complete, and ignores this.
    pub keep_landing: bool,
}

impl AppQueue {
    /// A queue that is to be declared, without retries.
    pub fn new(name: impl Into<String>) -> Self {
        let name = name.into();
        Self { name, existing: false, rejected: None, native_retry: None, keep_landing: true }
    }
}

/// An application's RabbitMQ user, and its rights beyond reading its queue and publishing its own key.
#[derive(Debug, Clone, Default)]
pub struct AppUser {
    /// Its name.
    pub name: String,
    /// The password to create it with if it does not exist.
    pub password: Option<Secret>,
    /// The other applications whose keys it may publish.
    pub may_publish: Vec<AppKey>,
    /// The longest delay it may publish; any if `None`.
    pub max_delay: Option<Delay>,
    /// Whether it may bind its queue under its own key itself. It can then also bind the
    /// entry exchange to the dispatch exchange, which can block a level for every application.
    pub may_bind: bool,
    /// Whether it may publish to the retry and parked exchanges under its own key.
    pub may_retry: bool,
    /// Whether it manages schedules of the application itself.
    pub may_schedule: bool,
    /// The other applications whose keys it may publish with an id, and whose messages it may recall. The
    /// recalled messages may come from any publisher.
    pub may_recall: Vec<AppKey>,
}

/// Why an application cannot be registered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AppSpecError {
    /// The name of a queue, exchange or user has the wrong length.
    #[error("the name of the {what} is {length} bytes long; use 1 to 255")]
    Length {
        /// Whether it is a queue, an exchange, a user or a routing key.
        what: &'static str,
        /// Its length in bytes.
        length: usize,
    },
    /// A name that is reserved for the broker.
    #[error(
        "{what} `{name}` is not allowed: names that begin with `amq.` belong to the broker. Choose another \
         name"
    )]
    Reserved {
        /// Whether it is a queue or an exchange.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// A queue or exchange of the set.
    #[error("{what} `{name}` belongs to the set, so no application can have it. Choose another name")]
    OfTheSet {
        /// Whether it is a queue or an exchange.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// An application that receives no messages, but whose messages should be recalled.
    #[error(
        "an application without a queue has no messages of its own to recall. Register the application that \
         receives them with recall, and let this application recall them (--may-recall)"
    )]
    NothingToRecall,
    /// Recalled messages that would be dropped at once.
    #[error("recalled messages are kept for one second or more. Give `keep_recalled` a longer time")]
    NotKept,
    /// A journal that would keep nothing.
    #[error(
        "a journal keeps one second or more and {} bytes or more; give `journal` a longer time or \
         `journal_bytes` a larger size",
        JournalSettings::LEAST_BYTES
    )]
    NothingJournalled,
    /// A landing queue in a set of classic queues.
    #[error(
        "a landing queue must be a quorum queue, since only quorum queues dead-letter at least once, and \
         this set has classic queues"
    )]
    Classic,
    /// A queue with broker-side retries in a set of classic queues.
    #[error("only a quorum queue can delay requeued messages, and the queues of this set are classic")]
    ClassicRetry,
}

impl AppSpec {
    /// An application without a user whose messages cannot be recalled.
    #[must_use]
    pub fn new(app: AppKey, delivery: Delivery) -> Self {
        Self { app, delivery, user: None, recall: None }
    }

    /// The name of the queue that the application consumes, if that is known.
    #[must_use]
    pub fn queue_name(&self) -> Option<&str> {
        match &self.delivery {
            Delivery::Direct(queue) | Delivery::Landing(Target::Queue(queue)) => Some(&queue.name),
            Delivery::Landing(Target::Exchange { queue, .. }) => queue.as_deref(),
            Delivery::Nothing => None,
        }
    }

    /// The broker-side retries of its queue, if it has any.
    pub(crate) fn native_retry(&self) -> Option<NativeRetry> {
        match &self.delivery {
            Delivery::Direct(queue) | Delivery::Landing(Target::Queue(queue)) => queue.native_retry,
            _ => None,
        }
    }

    /// Whether its rejected messages are retried or parked.
    pub(crate) fn keeps_rejected(&self) -> bool {
        match &self.delivery {
            Delivery::Direct(queue) | Delivery::Landing(Target::Queue(queue)) => queue.rejected.is_some(),
            _ => false,
        }
    }

    /// Its journal, if it has one.
    #[must_use]
    pub fn journal(&self) -> Option<JournalSettings> {
        self.recall.and_then(|recall| recall.journal)
    }

    /// Checks everything that needs no broker.
    ///
    /// # Errors The first fault, by name.
    pub fn check(&self, topology: &Topology) -> Result<(), AppSpecError> {
        if self.recall.is_some_and(|settings| settings.keep == Delay::ZERO) {
            return Err(AppSpecError::NotKept);
        }
        if self.recall.is_some() && self.delivery == Delivery::Nothing {
            return Err(AppSpecError::NothingToRecall);
        }
        if let Some(journal) = self.journal()
            && (journal.max_age == Delay::ZERO || journal.max_bytes.get() < JournalSettings::LEAST_BYTES)
        {
            return Err(AppSpecError::NothingJournalled);
        }
        if let Delivery::Landing(target) = &self.delivery {
            if topology.settings().queue_type == QueueType::Classic {
                return Err(AppSpecError::Classic);
            }
            length("landing queue", &topology.names().landing(&self.app))?;
            if let Target::Exchange { exchange, key, .. } = target {
                name("exchange", exchange, |name| topology.owns_exchange(name))?;
                if let Some(key) = key.as_deref().filter(|key| key.len() > 255) {
                    length("routing key", key)?;
                }
            }
        }
        if self.native_retry().is_some() && topology.settings().queue_type == QueueType::Classic {
            return Err(AppSpecError::ClassicRetry);
        }
        if let Some(queue) = self.queue_name() {
            name("queue", queue, |name| topology.owns_queue(name))?;
        }
        self.user.as_ref().map_or(Ok(()), |user| length("user", &user.name))
    }
}

fn name(what: &'static str, name: &str, of_the_set: impl Fn(&str) -> bool) -> Result<(), AppSpecError> {
    length(what, name)?;
    match name {
        // The broker's own exchanges may be targets.
        _ if name.starts_with("amq.") && what == "queue" => {
            Err(AppSpecError::Reserved { what, name: name.into() })
        }
        _ if of_the_set(name) => Err(AppSpecError::OfTheSet { what, name: name.into() }),
        _ => Ok(()),
    }
}

fn length(what: &'static str, name: &str) -> Result<(), AppSpecError> {
    match name.len() {
        1..=255 => Ok(()),
        length => Err(AppSpecError::Length { what, length }),
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use super::*;
    use delayline_core::topology::TopologySettings;

    fn checked(delivery: Delivery) -> Result<(), AppSpecError> {
        let spec = AppSpec::new(AppKey::new("billing").unwrap(), delivery);
        spec.check(&Topology::new(TopologySettings::default()))
    }

    fn to(exchange: &str) -> Delivery {
        Delivery::Landing(Target::Exchange { exchange: exchange.into(), key: None, queue: None })
    }

    #[test]
    fn names_of_the_set_are_not_for_applications() {
        for queue in ["delay.level.03", "delay.unroutable", "delay.retry", "delay.landing.orders"] {
            let found = checked(Delivery::Direct(AppQueue::new(queue)));
            assert!(matches!(found, Err(AppSpecError::OfTheSet { .. })), "{queue}");
        }
        for exchange in ["delay", "delay.dispatch", "delay.level.00"] {
            assert!(matches!(checked(to(exchange)), Err(AppSpecError::OfTheSet { .. })), "{exchange}");
        }
        assert_eq!(checked(to("billing.events")), Ok(()));
        assert_eq!(checked(to("amq.topic")), Ok(()));
        assert_eq!(checked(Delivery::Direct(AppQueue::new("delay.billing"))), Ok(()));
    }

    #[test]
    fn names_must_suit_the_broker() {
        let queue = |name: &str| checked(Delivery::Direct(AppQueue::new(name)));
        assert!(matches!(queue(""), Err(AppSpecError::Length { length: 0, .. })));
        assert!(matches!(queue(&"q".repeat(256)), Err(AppSpecError::Length { length: 256, .. })));
        assert!(matches!(queue("amq.gen-x"), Err(AppSpecError::Reserved { .. })));
        // The longest names of app and set leave room for everything that is made of both.
        let mut long = AppSpec::new(AppKey::new("x".repeat(150)).unwrap(), to("e"));
        long.recall = Some(RecallSettings::default());
        let set = TopologySettings::named("s".repeat(64).parse().unwrap());
        assert_eq!(long.check(&Topology::new(set)), Ok(()));
    }

    #[test]
    fn only_an_application_that_receives_messages_has_recall() {
        let mut spec = AppSpec::new(AppKey::new("shop").unwrap(), Delivery::Nothing);
        let topology = Topology::new(TopologySettings::default());
        assert_eq!(spec.check(&topology), Ok(()));
        spec.recall = Some(RecallSettings::default());
        assert_eq!(spec.check(&topology), Err(AppSpecError::NothingToRecall));
        spec.delivery = to("e");
        assert_eq!(spec.check(&topology), Ok(()));
        spec.recall = Some(RecallSettings::default().with_keep(Delay::ZERO));
        assert_eq!(spec.check(&topology), Err(AppSpecError::NotKept));
        let journal = |journal| Some(RecallSettings::default().with_journal(journal));
        spec.recall = journal(JournalSettings::default());
        assert_eq!(spec.check(&topology), Ok(()));
        for settings in [
            JournalSettings::default().with_max_age(Delay::ZERO),
            JournalSettings::default().with_max_bytes(NonZeroU64::new(999_999).unwrap()),
        ] {
            spec.recall = journal(settings);
            assert_eq!(spec.check(&topology), Err(AppSpecError::NothingJournalled));
        }
    }

    #[test]
    fn a_classic_set_has_no_landing_queues() {
        let settings = TopologySettings::default().with_queue_type(QueueType::Classic);
        let spec = AppSpec::new(AppKey::new("a").unwrap(), to("e"));
        assert_eq!(spec.check(&Topology::new(settings)), Err(AppSpecError::Classic));
    }
}
