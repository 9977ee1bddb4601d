//! The ways to delay a message, each built as its users build it.

mod celery;
mod delayline_set;
mod nservicebus;
mod plugin;
mod straight;
mod tick;
mod wait_queues;

use std::any::Any;

use serde::{Deserialize, Serialize};

use super::{Fallible, broker::Vhost, outbox::Address, workload::Workload};

pub use delayline_set::DelaylineSet;
pub use nservicebus::NServiceBus;
pub use straight::Straight;
pub use tick::now_ms;

/// A way to delay a message.
pub trait Layout {
    /// Declares everything, and has it deliver into the inbox.
    fn install(&mut self, vhost: &mut Vhost<'_>, workload: &Workload) -> Fallible<()>;

    /// What the publisher of a message with a delay of so many units says. May make
    /// what is missing.
    fn address(&mut self, vhost: &mut Vhost<'_>, delay: u64) -> Fallible<Address>;

    /// Whether the publisher asks for the address again every second, since what it
    /// made goes when it is not used.
    fn is_renewed(&self) -> bool {
        false
    }

    /// The queue in which such a message waits first. `None` where there is none.
    fn first_queue(&self, delay: u64) -> Option<String>;

    /// How many units it really waits.
    fn rounded(&self, delay: u64) -> u64 {
        delay
    }

    /// Starts what has to run beside the broker. It ends when it is dropped.
    fn helper(&self, _vhost: &Vhost<'_>) -> Fallible<Option<Box<dyn Any>>> {
        Ok(None)
    }
}

/// Whether a message can be lost between two queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Guarantee {
    AtLeastOnce,
    AtMostOnce,
}

/// A layout as the report knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    pub id: String,
    pub title: String,
    pub guarantee: Guarantee,
    /// Whether its messages are handed on by dead-letter workers, so that their
    /// prefetch matters.
    pub has_workers: bool,
    /// What must be known to read its figures.
    pub note: String,
}

type Make = fn() -> Box<dyn Layout>;

/// All layouts, in the order of the report.
pub fn all() -> Vec<(Description, Make)> {
    use Guarantee::{AtLeastOnce, AtMostOnce};
    let layout = |id: &str, title: &str, guarantee, has_workers, note: &str, make: Make| {
        let (id, title, note) = (id.to_owned(), title.to_owned(), note.to_owned());
        (Description { id, title, guarantee, has_workers, note }, make)
    };
    vec![
        layout(
            "message-ttl",
            "per-message TTL",
            AtMostOnce,
            false,
            "One classic wait queue; `expiration` on each message. A message waits behind every longer one \
             that came before it.",
            || Box::new(wait_queues::MessageTtl),
        ),
        layout(
            "ttl-queues",
            "a queue per TTL",
            AtMostOnce,
            false,
            "Classic queues, made by the publisher when it first needs a delay, declared again every second \
             while they are used, and expiring 10 s after they could be empty. As Symfony and Laravel do, which \
             declare before every publish.",
            || Box::new(wait_queues::TtlQueues),
        ),
        layout(
            "fixed-queues",
            "fixed queues per app",
            AtMostOnce,
            false,
            "Classic wait queues of 1, 5 and 15 units for one application. A delay is rounded up to the next \
             of them, and that counts as lateness. For mixed delays there is one of 60 units too; for real-life \
             delays there are exactly those seven.",
            || Box::<wait_queues::FixedQueues>::default(),
        ),
        layout(
            "shared-queues",
            "shared wait queues",
            AtLeastOnce,
            true,
            "The same wait queues as quorum queues, shared by all applications of a vhost; a dispatch exchange \
             hands out by routing key. Rounded up in the same way.",
            || Box::<wait_queues::SharedQueues>::default(),
        ),
        layout(
            "tick",
            "tick queue",
            AtLeastOnce,
            true,
            "One quorum queue with a TTL of one unit. A consumer looks at each message's due time every unit, \
             and puts back what is not due.",
            || Box::new(tick::Tick),
        ),
        layout(
            "nservicebus",
            "NServiceBus",
            AtLeastOnce,
            true,
            "28 levels in a chain of topic exchanges; a message enters at its first set bit. Bound as its direct \
             routing topology does.",
            || Box::new(NServiceBus),
        ),
        layout(
            "celery",
            "Celery",
            AtLeastOnce,
            true,
            "Declared by kombu itself, with its TTLs scaled to the unit; routing keys are kombu's. Enters at \
             the top level, as Celery does.",
            || Box::<celery::Celery>::default(),
        ),
        layout(
            "delayline",
            "delayline",
            AtLeastOnce,
            true,
            "28 levels, and one entry for every message, which topic permissions can guard.",
            || Box::new(DelaylineSet),
        ),
        layout(
            "plugin",
            "delayed-message plugin",
            AtMostOnce,
            false,
            "The archived plugin, where the broker has it. One copy of each message, on one node.",
            || Box::new(plugin::Plugin),
        ),
        layout(
            "straight",
            "no delay (the limit)",
            AtLeastOnce,
            false,
            "The same client straight into one quorum queue, without any delay. Its drain rate is what comes \
             out at the other end meanwhile.",
            || Box::new(straight::Straight),
        ),
    ]
}
