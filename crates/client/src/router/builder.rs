//! How a router is made.

use std::{sync::Arc, time::Duration};

use delayline_amqp::{AmqpError, Publisher, Session, broker::Broker};
use delayline_core::{
    codec::Level,
    message::Quota,
    topology::{SetName, Topology, TopologySettings, Unit},
};

use super::{Router, Stats};

/// A router in the making: which broker and set, and its limits.
///
/// ```no_run
/// use std::time::Duration;
/// use delayline::{Router, broker::Broker};
///
/// let router = Router::builder(Broker::from_url("amqp://localhost")?)
///     .set("later".parse()?)
///     .publish_timeout(Duration::from_secs(5))
///     .connect()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct RouterBuilder {
    pub(crate) broker: Broker,
    pub(crate) set: SetName,
    pub(crate) unit: Unit,
    pub(crate) check_unit: bool,
    pub(crate) publish_timeout: Duration,
    pub(crate) confirm_timeout: Duration,
    pub(crate) window: usize,
    pub(crate) quota: Quota,
    pub(crate) stats: Arc<Stats>,
}

impl RouterBuilder {
    /// The default publish timeout.
    pub const PUBLISH_TIMEOUT: Duration = Duration::from_secs(30);
    /// The default confirm timeout.
    pub const CONFIRM_TIMEOUT: Duration = Duration::from_secs(15);
    /// The default window.
    pub const WINDOW: usize = 1_000;
    /// The largest window.
    pub const MAX_WINDOW: usize = 100_000;

    /// A router for a broker, and everything else as by default.
    pub fn new(broker: Broker) -> Self {
        Self {
            broker,
            set: SetName::default(),
            unit: Unit::SECOND,
            check_unit: false,
            publish_timeout: Self::PUBLISH_TIMEOUT,
            confirm_timeout: Self::CONFIRM_TIMEOUT,
            window: Self::WINDOW,
            quota: Quota::default(),
            stats: Arc::default(),
        }
    }

    /// The set to publish to; `delay` by default.
    pub fn set(mut self, set: SetName) -> Self {
        self.set = set;
        self
    }

    /// How long level 0 of the set waits; 1 s by default. It has to be what the set was
    /// installed with: with another unit, every message comes too early or too late, by that
    /// factor. [`check_unit`](Self::check_unit) compares the two.
    pub fn unit(mut self, unit: Unit) -> Self {
        self.unit = unit;
        self
    }

    /// Makes [`connect`](Self::connect) fail if the set has another [unit](Self::unit).
    ///
    /// No broker shows a queue's arguments to a user who may only publish: this needs the
    /// permission to *configure* the queue `<set>.level.00`, which applications do not have.
    /// Use it where a user has it, such as in tests and in tools of the platform team.
    pub fn check_unit(mut self) -> Self {
        self.check_unit = true;
        self
    }

    /// How long one `publish` may take, from the call to the confirm; 30 s by default, a day
    /// at most.
    pub fn publish_timeout(mut self, timeout: Duration) -> Self {
        self.publish_timeout = timeout.min(DAY);
        self
    }

    /// How long one confirm may take before the message is published again on a new
    /// connection, and for each message twice as long every further time; 15 s by default, a
    /// day at most.
    pub fn confirm_timeout(mut self, timeout: Duration) -> Self {
        self.confirm_timeout = timeout.min(DAY);
        self
    }

    /// The most messages that wait for a confirm at any time: 1,000 by default, 1 to 100,000.
    /// A number outside is brought to the nearest one inside.
    pub fn window(mut self, messages: usize) -> Self {
        self.window = messages.clamp(1, Self::MAX_WINDOW);
        self
    }

    /// What the router refuses to publish; nothing by default.
    pub fn quota(mut self, quota: Quota) -> Self {
        self.quota = quota;
        self
    }

    /// Counts what the router does where others can see it. Several routers may share it.
    pub fn counting(mut self, stats: Arc<Stats>) -> Self {
        self.stats = stats;
        self
    }

    /// Connects. It does not look whether the set is installed; if it is not, publishing says
    /// so.
    ///
    /// # Errors
    /// Unreachable, TLS, or refused; with [`check_unit`](Self::check_unit),
    /// [`AmqpError::Unit`], or 403 if the user may not compare.
    pub fn connect(self) -> Result<Router, AmqpError> {
        if self.check_unit {
            self.compare_unit()?;
        }
        let publisher = Publisher::open(&self.broker)?;
        self.stats.connect();
        Ok(Router::start(self.broker.clone(), Some(publisher), self))
    }

    fn compare_unit(&self) -> Result<(), AmqpError> {
        let mut settings = TopologySettings::default();
        settings.set.clone_from(&self.set);
        settings.unit = self.unit;
        let topology = Topology::new(settings);
        let lowest = topology.queues().find(|queue| queue.level == Some(Level::LOWEST));
        let mut session = Session::open_for(&self.broker, "unit")?;
        lowest.map_or(Ok(()), |queue| session.probe_unit(queue))
    }

    /// Makes a router that connects when the broker is there. Until then, messages wait for
    /// their deadline.
    #[must_use]
    pub fn connect_later(self) -> Router {
        Router::start::<Broker>(self.broker.clone(), None, self)
    }
}

impl From<Broker> for RouterBuilder {
    fn from(broker: Broker) -> Self {
        Self::new(broker)
    }
}

/// No timeout is longer than a clock can count.
const DAY: Duration = Duration::from_secs(86_400);
