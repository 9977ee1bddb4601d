//! The wanted state of a vhost as data.
//!
//! One [`Topology`] value holds every exchange, queue, argument and binding of
//! an installed set. Install, dry run, verify, status and uninstall all read
//! this value, so they cannot disagree about what belongs to the set.

mod app;
mod build;
mod gateway;
mod guard;
mod journal;
mod names;
mod native;
mod object;
mod pattern;
mod recall;
mod schedules;
mod settings;

pub use app::Rejected;
pub use journal::JournalSettings;
pub use names::{Names, SetName, SetNameError, if_missing};
pub use native::{NativeRetry, NativeRetryError};
pub use object::{Argument, Binding, Endpoint, Exchange, ExchangeKind, Object, Queue};
pub use pattern::topic_matches;
pub use recall::RecallSettings;
pub use settings::{
    QueueType, QueueTypeError, TopologySettings, UNREACHABLE_DELIVERY_LIMIT, Unit, UnitError,
};

/// Everything that belongs to one set, in an order that is safe for declaring. The ends of the
/// routes come first, and the entry exchange last. So a message that is published during an
/// installation finds a complete route or the unroutable queue. The reverse order is safe for
/// deleting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    settings: TopologySettings,
    names: Names,
    shortcuts: bool,
    objects: Vec<Object>,
}

impl Topology {
    /// The settings this was made from.
    #[must_use]
    pub fn settings(&self) -> &TopologySettings {
        &self.settings
    }

    /// The names of its exchanges and queues.
    #[must_use]
    pub fn names(&self) -> &Names {
        &self.names
    }

    /// Whether messages take shortcuts.
    #[must_use]
    pub const fn has_shortcuts(&self) -> bool {
        self.shortcuts
    }

    /// All objects, in the order in which they are declared.
    #[must_use]
    pub fn objects(&self) -> &[Object] {
        &self.objects
    }

    /// The exchanges among them.
    pub fn exchanges(&self) -> impl DoubleEndedIterator<Item = &Exchange> {
        self.objects.iter().filter_map(|object| match object {
            Object::Exchange(exchange) => Some(exchange),
            _ => None,
        })
    }

    /// The queues among them.
    pub fn queues(&self) -> impl DoubleEndedIterator<Item = &Queue> {
        self.objects.iter().filter_map(|object| match object {
            Object::Queue(queue) => Some(queue),
            _ => None,
        })
    }

    /// The bindings among them.
    pub fn bindings(&self) -> impl DoubleEndedIterator<Item = &Binding> {
        self.objects.iter().filter_map(|object| match object {
            Object::Binding(binding) => Some(binding),
            _ => None,
        })
    }

    /// Whether messages that reach it from the dispatch exchange return to that exchange.
    #[must_use]
    pub fn leads_back(&self, destination: &Endpoint) -> bool {
        match destination {
            Endpoint::Queue(name) => self.names().hop_of(name).is_some(),
            Endpoint::Exchange(name) => {
                let names = self.names();
                let keeping = [names.unroutable(), names.retry(), names.parked()];
                let to_application =
                    names.app_of_recall(name).or_else(|| names.app_of_moving(name)).is_some();
                self.owns_exchange(name) && !keeping.contains(name) && !to_application
            }
        }
    }
}
