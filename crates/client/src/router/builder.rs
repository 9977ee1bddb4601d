//! How a router is made.

use std::{sync::Arc, time::Duration};

use delayline_amqp::{AmqpError, Publisher, Session, broker::Broker};
use delayline_core::{
    codec::Level,
    message::Quota,
    topology::{Topology, TopologySettings},
};

use crate::target::Target;

use super::{Router, Stats};

/// Settings for a router: which broker and set, and its limits.
///
/// ```no_run
/// use std::time::Duration;
/// use delayline::{Router, Target};
///
/// let router = Router::builder(Target::from_url("amqp://localhost")?.with_set("later".parse()?))
///     .publish_timeout(Duration::from_secs(5))
///     .check_set(true)
///     .connect()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct RouterBuilder {
    pub(crate) target: Target,
    pub(crate) check_set: bool,
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

    /// A router for a set, with defaults for everything else.
    pub fn new(target: impl Into<Target>) -> Self {
        Self {
            target: target.into(),
            check_set: false,
            publish_timeout: Self::PUBLISH_TIMEOUT,
            confirm_timeout: Self::CONFIRM_TIMEOUT,
            window: Self::WINDOW,
            quota: Quota::default(),
            stats: Arc::default(),
        }
    }

    /// Makes [`connect`](Self::connect) fail if the set is missing or has another
    /// [unit](Target::unit), as far as this user can see.
    ///
    /// No broker shows a queue's arguments to a user who may only publish. So the unit is compared
    /// only for a user with the permission to *configure* the queue `<set>.level.00`, such as the
    /// platform team's. Applications do not have that permission, and should not, since it also
    /// allows deleting the queue. For other users, the check finds only a missing set. On RabbitMQ
    /// 4.2.6 and 4.3.0 it does not find that either.
    pub fn check_set(mut self, check: bool) -> Self {
        self.check_set = check;
        self
    }

    /// How long one `publish` may take, from the call to the confirm: 30 s by default, at most a
    /// day.
    pub fn publish_timeout(mut self, timeout: Duration) -> Self {
        self.publish_timeout = timeout.min(DAY);
        self
    }

    /// How long one confirm may take before the message is published again on a new connection: 15
    /// s by default, at most a day. For each further attempt of a message, the time doubles.
    pub fn confirm_timeout(mut self, timeout: Duration) -> Self {
        self.confirm_timeout = timeout.min(DAY);
        self
    }

    /// The most messages that wait for a confirm at any time: 1,000 by default, 1 to 100,000. A
    /// number outside that range becomes the nearest inside.
    pub fn window(mut self, messages: usize) -> Self {
        self.window = messages.clamp(1, Self::MAX_WINDOW);
        self
    }

    /// The messages that the router refuses to publish; none by default.
    pub fn quota(mut self, quota: Quota) -> Self {
        self.quota = quota;
        self
    }

    /// Counts the router's work in counters that others can read. Several routers may share them.
    pub fn counting(mut self, stats: Arc<Stats>) -> Self {
        self.stats = stats;
        self
    }

    /// Connects. Unless it [checks the set](Self::check_set), a missing set is found when the first
    /// message is published.
    ///
    /// # Errors
    /// Unreachable, TLS, or refused; with the check also [`AmqpError::NoSet`] and
    /// [`AmqpError::Unit`].
    pub fn connect(self) -> Result<Router, AmqpError> {
        if self.check_set {
            self.compare()?;
        }
        let broker = self.target.broker.clone();
        let publisher = Publisher::open(&broker)?;
        self.stats.count(|counts| counts.reconnects += 1);
        Ok(Router::start(broker, Some(publisher), self))
    }

    fn compare(&self) -> Result<(), AmqpError> {
        let Target { broker, set, unit, .. } = &self.target;
        let topology = Topology::new(TopologySettings::named(set.clone()).with_unit(*unit));
        let mut session = Session::open_for(broker, "check")?;
        if let Ok(false) = session.exchange_exists(&topology.names().entry()) {
            return Err(AmqpError::NoSet { set: set.to_string() });
        }
        let lowest = topology.queues().find(|queue| queue.level == Some(Level::LOWEST));
        match lowest.map_or(Ok(()), |queue| session.probe_unit(queue)) {
            // This user lacks the permission to see it.
            Err(AmqpError::Channel { code: 403, .. }) => Ok(()),
            compared => compared,
        }
    }

    /// Makes a router that connects when the broker is available. Until then, messages wait up to
    /// their deadline.
    #[must_use]
    pub fn connect_later(self) -> Router {
        Router::start::<Broker>(self.target.broker.clone(), None, self)
    }
}

impl<T: Into<Target>> From<T> for RouterBuilder {
    fn from(target: T) -> Self {
        Self::new(target)
    }
}

/// Caps timeouts at the longest time that a clock can count.
const DAY: Duration = Duration::from_secs(86_400);
