//! The retry service: takes failed messages, and sends each again later or parks it.

use std::{
    fmt,
    sync::{Arc, atomic::AtomicBool},
};

use jiff::Timestamp;
use log::{info, warn};

use crate::{
    relay::{Consuming, Failed, Forwarder, each},
    router::RouterBuilder,
};
use delayline_amqp::{Consumer, Delivery};
use delayline_core::topology::{Names, if_missing};

use super::{Decision, Failure, RetryStats, SharedPolicies};

/// The retry service of one set. Several may run side by side, on one machine or
/// many: they share the work.
///
/// ```no_run
/// use std::sync::atomic::AtomicBool;
/// use delayline_client::{Target, retry::{Policy, Service}};
///
/// let stop = AtomicBool::new(false); // set elsewhere
/// Service::new(Target::from_url("amqp://localhost")?, Policy::default()).run(&stop);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Service {
    router: RouterBuilder,
    names: Names,
    policies: SharedPolicies,
    prefetch: u16,
    stats: Arc<RetryStats>,
}

impl Service {
    /// How many messages it holds at a time by default.
    pub const PREFETCH: u16 = 256;

    /// A service for the set of a router like this one, with these policies. The router's quota
    /// does not apply here.
    pub fn new(router: impl Into<RouterBuilder>, policies: impl Into<SharedPolicies>) -> Self {
        let (router, policies) = (router.into(), policies.into());
        let names = Names::new(router.target.set.clone());
        Self { router, names, policies, prefetch: Self::PREFETCH, stats: Arc::default() }
            .with_prefetch(Self::PREFETCH)
    }

    /// Holds this many messages at a time, from 1 up to the router's window. Of large messages it
    /// holds fewer: all bodies together have at most 256 MiB.
    #[must_use]
    pub fn with_prefetch(mut self, prefetch: u16) -> Self {
        let window = u16::try_from(self.router.window).unwrap_or(u16::MAX);
        self.prefetch = prefetch.clamp(1, window.max(1));
        self
    }

    /// Counts its decisions in counters that others can read. Its routers count in those of
    /// [`RouterBuilder::counting`].
    #[must_use]
    pub fn counting(mut self, stats: Arc<RetryStats>) -> Self {
        self.stats = stats;
        self
    }

    /// Runs until `stop` is set. If the broker or the set is missing, it waits.
    ///
    /// At the end it waits for confirms. Other messages that it holds return to the queue. Returns
    /// false if the time was too short for that: then some messages may be retried twice.
    pub fn run(&self, stop: &AtomicBool) -> bool {
        let queue = self.names.retry();
        let stats = Some(Arc::clone(&self.stats) as _);
        let consuming =
            Consuming::service((&self.router, "retry"), (&queue, if_missing()), self.prefetch, stats);
        consuming
            .run(stop, each(|consumer, forwarder, delivery| self.handle(consumer, forwarder, delivery)))
            .unwrap_or(false)
    }

    fn handle(
        &self,
        consumer: &Consumer,
        forwarder: &mut Forwarder,
        mut delivery: Delivery,
    ) -> Result<(), Failed> {
        let now = Timestamp::now().as_millisecond();
        let id = delivery.id();
        if delivery.damaged {
            warn!(
                "park key={:?} id={id}: its headers or properties cannot be read, so it is moved unchanged",
                delivery.routing_key
            );
            self.stats.damaged();
            return forwarder.refuse(consumer, delivery);
        }
        let failure =
            Failure::read(&delivery.headers, &delivery.exchange, &delivery.routing_key, &self.names, now);
        let failure = match failure {
            Ok(failure) => failure,
            Err(error) => {
                warn!("park id={id}: {error}; it is moved unchanged");
                self.stats.damaged();
                return forwarder.refuse(consumer, delivery);
            }
        };
        let policies = self.policies.current();
        let policy = policies.get(&failure.app, &failure.reason);
        let unit = self.router.target.unit;
        let decision = Decision::new(policy, &failure, None, unit, now, fastrand::f64());
        let (app, reason) = (&failure.app, failure.reason.escape_debug());
        match decision {
            Decision::Retry { attempt, delay } => {
                self.stats.retry(app.as_str());
                let attempts = policy.attempts;
                info!("retry app={app} attempt={attempt}/{attempts} delay={delay} reason={reason} id={id}");
            }
            Decision::Park(why) => {
                self.stats.park(app.as_str(), why);
                let attempt = failure.history.attempt;
                info!("park app={app} attempt={attempt} why={why} reason={reason} id={id}");
            }
        }
        let user = self.router.target.broker.credentials.username();
        let successor = decision.successor(&failure, &self.names, user, delivery.take_contents());
        forwarder.send(consumer, delivery, successor)
    }
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service").field("prefetch", &self.prefetch).finish_non_exhaustive()
    }
}
