//! Which broker and which set.

use delayline_amqp::broker::{Broker, UrlError};
use delayline_core::topology::{SetName, Unit};

/// A set on a broker: what routers, recallers and workers connect to.
///
/// ```
/// use delayline::Target;
///
/// let target = Target::from_url("amqp://localhost/orders")?.with_set("later".parse()?);
/// assert_eq!(target.set.as_str(), "later");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Target {
    /// The broker, and the login.
    pub broker: Broker,
    /// The name of the set; `delay` by default.
    pub set: SetName,
    /// How long level 0 of the set waits; 1 s by default. It must be the unit that the set was
    /// installed with: with any other, every message is too early or too late by the ratio of the
    /// two. [`RouterBuilder::check_set`](crate::router::RouterBuilder::check_set) compares the two.
    pub unit: Unit,
    /// Whether the set has shortcuts; `false` by default. Only what a tolerance saves depends on it.
    pub shortcuts: bool,
}

impl Target {
    /// The set `delay` on a broker, with a unit of one second.
    #[must_use]
    pub fn new(broker: Broker) -> Self {
        Self { broker, set: SetName::default(), unit: Unit::SECOND, shortcuts: false }
    }

    /// The same on the broker at a URL; see [`Broker::from_url`].
    ///
    /// # Errors
    /// The URL is invalid.
    pub fn from_url(url: &str) -> Result<Self, UrlError> {
        Broker::from_url(url).map(Self::new)
    }

    /// Sets another set.
    #[must_use]
    pub fn with_set(mut self, set: SetName) -> Self {
        self.set = set;
        self
    }

    /// Sets another unit.
    #[must_use]
    pub fn with_unit(mut self, unit: Unit) -> Self {
        self.unit = unit;
        self
    }

    /// Sets whether the set has shortcuts: a tolerance then saves the hops that they leave.
    #[must_use]
    pub fn with_shortcuts(mut self, shortcuts: bool) -> Self {
        self.shortcuts = shortcuts;
        self
    }
}

impl From<Broker> for Target {
    fn from(broker: Broker) -> Self {
        Self::new(broker)
    }
}
