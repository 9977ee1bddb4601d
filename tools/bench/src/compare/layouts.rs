//! The ways to delay a message, each built as its users build it.

use amiquip::AmqpValue;
use delayline_admin::{self as admin, AppQueue, AppSpec, Delivery, Target};
use delayline_core::{
    codec::{AppKey, Delay, Hop, Level, RoutingKey},
    topology::{Argument, ExchangeKind, Names, SetName, Topology},
};
use delayline_settings::Layout;

use super::site::{INBOX, Site};
use crate::bare::{Address, Fallible};

/// The delays of wait queues that are declared in advance, in units. Others are rounded up.
const STEPS: [u64; 6] = [1, 5, 16, 30, 60, FAR];

/// A delay that outlasts every measurement.
pub(super) const FAR: u64 = 1 << 12;

/// How long a queue that was made on demand outlives its messages, in ms.
const SPARE_MS: i64 = 10_000;

/// A way to delay messages.
#[derive(Debug)]
pub struct Way {
    /// Its name on the command line.
    pub id: &'static str,
    pub(super) title: &'static str,
    /// Declares everything that is declared in advance.
    pub(super) install: fn(&mut Site<'_>) -> Fallible<()>,
    /// The path of messages with a delay of so many units. Declares missing objects.
    pub(super) path: fn(&mut Site<'_>, u64) -> Fallible<Path>,
}

/// How messages of one delay are published.
#[derive(Debug)]
pub(super) struct Path {
    pub(super) to: Address,
    /// The queue in which they wait first; `None` if they do not wait.
    pub(super) first: Option<String>,
}

impl Path {
    /// Through the default exchange.
    fn queue(name: String) -> Fallible<Self> {
        Ok(Self { to: Address::new("", name.clone()), first: Some(name) })
    }
}

/// All of them. The last one is the limit that the others are compared with.
pub static WAYS: [Way; 10] = [
    Way {
        // A single queue; `expiration` on each message, which waits behind every earlier message with a
        // longer delay.
        id: "message-ttl",
        title: "per-message TTL",
        install: |site| classic(site, "wait", &[]),
        path: |site, delay| {
            let Path { mut to, first } = Path::queue("wait".into())?;
            to.properties = to.properties.with_expiration((site.unit_ms * delay).to_string());
            Ok(Path { to, first })
        },
    },
    Way {
        // Made by the publisher, as Symfony and Laravel do.
        id: "ttl-queues",
        title: "a queue per TTL",
        install: |_| Ok(()),
        path: |site, delay| {
            let (name, ttl) = (format!("wait.{delay}"), ttl(site, delay));
            classic(site, &name, &[("x-message-ttl", ttl.into()), ("x-expires", (ttl + SPARE_MS).into())])?;
            Path::queue(name)
        },
    },
    Way {
        // Of one application.
        id: "fixed-queues",
        title: "fixed queues per app",
        install: |site| {
            STEPS.into_iter().try_for_each(|delay| {
                let ttl = ttl(site, delay);
                classic(site, &format!("{INBOX}.wait.{delay}"), &[("x-message-ttl", ttl.into())])
            })
        },
        path: |_, delay| Path::queue(format!("{INBOX}.wait.{}", step(delay))),
    },
    Way {
        // Of every application: a dispatch exchange distinguishes them by routing key.
        id: "shared-queues",
        title: "shared wait queues",
        install: |site| {
            site.exchange("shared.dispatch", ExchangeKind::Topic)?;
            site.bind_queue("shared.dispatch", INBOX, INBOX)?;
            STEPS.into_iter().try_for_each(|delay| {
                let (name, ttl) = (format!("shared.wait.{delay}"), ttl(site, delay));
                quorum(site, &name, ttl, "shared.dispatch")?;
                // The routing key is the application's, so an exchange stands for the queue.
                site.exchange(&name, ExchangeKind::Fanout)?;
                site.bind_queue(&name, &name, "")
            })
        },
        path: |_, delay| {
            let name = format!("shared.wait.{}", step(delay));
            Ok(Path { to: Address::new(name.clone(), INBOX), first: Some(name) })
        },
    },
    Way {
        // Enters at the first set bit.
        id: "nservicebus",
        title: "NServiceBus",
        install: |site| chain(site, &Layout::nservicebus()),
        path: |_, delay| {
            let first = first_level(delay)?;
            let mut path = chained(&Layout::nservicebus(), delay, first)?;
            let seconds = AmqpValue::LongInt(i32::try_from(delay)?);
            path.to = path.to.with_header("NServiceBus.Transport.RabbitMQ.DelayInSeconds", seconds);
            Ok(path)
        },
    },
    Way {
        // Enters at the top.
        id: "celery",
        title: "Celery",
        install: |site| chain(site, &Layout::celery(None)),
        path: |_, delay| chained(&Layout::celery(None), delay, Level::TOP),
    },
    Way {
        id: "delayline",
        title: "delayline",
        install: |site| install(site, false),
        path: |_, delay| through_set(delay, false),
    },
    Way {
        id: "shortcuts",
        title: "delayline, shortcuts",
        install: |site| install(site, true),
        path: |_, delay| through_set(delay, true),
    },
    Way {
        id: "landing",
        title: "delayline, landing queue",
        install: |site| {
            install(site, false)?;
            let inbox = AppQueue { existing: true, ..AppQueue::new(INBOX) };
            let spec = AppSpec::new(AppKey::new(INBOX)?, Delivery::Landing(Target::Queue(inbox)));
            let topology = Topology::new(site.settings.topology.clone());
            admin::add_app(&site.settings, &topology, &spec, false, false)?;
            Ok(())
        },
        path: |_, delay| through_set(delay, false),
    },
    STRAIGHT,
];

/// The limit: straight into the inbox.
pub(super) const STRAIGHT: Way = Way {
    id: "straight",
    title: "no delay (the limit)",
    install: |_| Ok(()),
    path: |_, _| Ok(Path { to: Address::new("", INBOX), first: None }),
};

/// A set with or without shortcuts, and an application.
fn install(site: &mut Site<'_>, shortcuts: bool) -> Fallible<()> {
    let mut settings = site.settings.clone();
    settings.topology.shortcuts = Some(shortcuts);
    let topology = Topology::new(settings.topology.clone());
    admin::install(&settings, &topology, false, || {})?;
    let pattern = RoutingKey::binding_pattern(&AppKey::new(INBOX)?);
    site.bind_queue(&topology.names().dispatch(), INBOX, &pattern)
}

fn through_set(delay: u64, shortcuts: bool) -> Fallible<Path> {
    let (names, delay) = (Names::new(SetName::default()), Delay::from_seconds(delay)?);
    let key = RoutingKey::new(delay, AppKey::new(INBOX)?).encode();
    // As long as the router's header.
    let due = AmqpValue::LongLongInt(1_800_000_000_000);
    let to = Address::new(names.entry(), key).with_header("delayline-due", due);
    Ok(Path { to, first: Hop::of(delay, shortcuts).next().map(|hop| names.hop(hop)) })
}

fn ttl(site: &Site<'_>, delay: u64) -> i64 {
    i64::try_from(site.unit_ms * delay).unwrap_or(i64::MAX)
}

/// The least of the steps that is no shorter than a delay.
fn step(delay: u64) -> u64 {
    STEPS.into_iter().find(|&step| step >= delay).unwrap_or(FAR)
}

/// A classic queue that passes messages on to the inbox through the default exchange.
fn classic(site: &mut Site<'_>, name: &str, more: &[(&str, Argument)]) -> Fallible<()> {
    let arguments = [
        ("x-queue-type", "classic".into()),
        ("x-dead-letter-exchange", "".into()),
        ("x-dead-letter-routing-key", INBOX.into()),
    ];
    site.queue(name, arguments.into_iter().chain(more.iter().cloned()))
}

/// A quorum queue that passes messages on at least once.
fn quorum(site: &mut Site<'_>, name: &str, ttl: i64, exchange: &str) -> Fallible<()> {
    let arguments = [
        ("x-queue-type", "quorum".into()),
        ("x-message-ttl", ttl.into()),
        ("x-dead-letter-exchange", exchange.into()),
        ("x-dead-letter-strategy", "at-least-once".into()),
        ("x-overflow", "reject-publish".into()),
    ];
    site.queue(name, arguments)
}

/// A chain of 28 levels: a message waits in the levels of its set bits, and crosses the exchanges of
/// the other levels.
fn chain(site: &mut Site<'_>, layout: &Layout) -> Fallible<()> {
    for name in layout.exchanges() {
        site.exchange(&name, ExchangeKind::Topic)?;
    }
    for level in Level::all() {
        let name = layout.level(level);
        let below = level.below().map_or_else(|| layout.delivery(), |below| layout.level(below));
        let ttl = ttl(site, level.units().into());
        quorum(site, &name, ttl, &below)?;
        let above = "*.".repeat(usize::from(Level::TOP.number() - level.number()));
        site.bind_queue(&name, &name, &format!("{above}1.#"))?;
        site.bind_exchange(&name, &below, &format!("{above}0.#"))?;
    }
    site.bind_queue(&layout.delivery(), INBOX, &format!("#.{INBOX}"))
}

fn chained(layout: &Layout, delay: u64, entry: Level) -> Fallible<Path> {
    let key = layout.key(Delay::from_seconds(delay)?, INBOX);
    let first = layout.level(first_level(delay)?);
    Ok(Path { to: Address::new(layout.level(entry), key), first: Some(first) })
}

/// The level of the highest set bit.
fn first_level(delay: u64) -> Fallible<Level> {
    Ok(Delay::from_seconds(delay)?.levels().next().ok_or("a message without a delay waits in no level")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_is_rounded_up_to_the_next_step() {
        assert_eq!([1, 2, 16, 17, 60, 61].map(step), [1, 5, 16, 30, 60, FAR]);
    }

    #[test]
    fn a_message_waits_first_in_the_level_of_its_highest_bit() {
        assert_eq!([1, 5, 60].map(|delay| first_level(delay).unwrap().number()), [0, 2, 5]);
    }
    #[test]
    fn the_pages_have_the_number_of_layouts() {
        assert_eq!(WAYS.len(), 10);
        assert!(include_str!("../../../../docs/benchmarks/README.md").contains("measures ten layouts"));
        assert!(include_str!("../../../../CHANGELOG.md").contains("compares ten ways"));
    }
}
