//! The retry service: takes failed messages, and sends each back later or parks
//! it.

use std::{
    fmt,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use crossbeam_channel::Select;
use jiff::Timestamp;
use log::{info, warn};

use crate::{
    Router, Settings,
    amqp::{Consumer, Delivery, Next, Session},
    settings::Credentials,
    topology::Names,
};

use super::{
    Decision, Failure, SharedPolicies,
    forward::{Forwarder, Unsendable},
};

/// How often it is looked whether to stop.
const TICK: Duration = Duration::from_millis(100);

/// The pause after the first and after later failures to run.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// How long stopping may take for what is in flight, and for the last
/// acknowledgements.
const FINISH: Duration = Duration::from_secs(10);

/// The retry service of one set. Several may run side by side, on one machine or
/// many: they share the work.
///
/// ```no_run
/// use std::sync::atomic::AtomicBool;
/// use delayline::{Settings, retry::{Policies, Service, SharedPolicies}};
///
/// let policies = SharedPolicies::new(Policies::load("policies.toml".as_ref())?);
/// let stop = AtomicBool::new(false); // to be set by somebody else
/// Service::new(Settings::from_url("amqp://localhost")?, policies).run(&stop);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Service {
    settings: Settings,
    names: Names,
    policies: SharedPolicies,
    prefetch: u16,
}

impl Service {
    /// How many messages it holds at a time by default.
    pub const PREFETCH: u16 = 256;

    /// A service that decides by these policies.
    #[must_use]
    pub fn new(settings: Settings, policies: SharedPolicies) -> Self {
        let names = Names::new(settings.topology.set.clone());
        Self { settings, names, policies, prefetch: Self::PREFETCH }.with_prefetch(Self::PREFETCH)
    }

    /// Holds so many messages at a time, 1 or more, and no more than the router's
    /// window. With bodies of many megabytes, this is what bounds its memory.
    #[must_use]
    pub fn with_prefetch(mut self, prefetch: u16) -> Self {
        let window = u16::try_from(self.settings.router.window).unwrap_or(u16::MAX);
        self.prefetch = prefetch.clamp(1, window.max(1));
        self
    }

    /// Runs until `stop` is set. Without a broker, or without the set, it waits
    /// for them.
    ///
    /// At the end it finishes what it has published; what it holds beside that
    /// goes back to the queue. Returns whether that was done in time: if not, some
    /// messages may be retried twice.
    pub fn run(&self, stop: &AtomicBool) -> bool {
        let mut failures = 0_u32;
        while !stop.load(Ordering::Relaxed) {
            match self.session(stop, &mut failures) {
                Ok(clean) => return clean,
                Err(reason) => {
                    failures += 1;
                    let pause =
                        BACKOFF.0.saturating_mul(2_u32.saturating_pow(failures.min(10))).min(BACKOFF.1);
                    warn!("{reason}; trying again in {pause:?}");
                    let until = Instant::now() + pause;
                    while !stop.load(Ordering::Relaxed) && Instant::now() < until {
                        thread::sleep(TICK.min(pause));
                    }
                }
            }
        }
        true
    }

    /// Works until it is to stop, or something is wrong. A lost connection takes
    /// the other one with it: what the broker hands out again must not be
    /// published a second time from here.
    fn session(&self, stop: &AtomicBool, failures: &mut u32) -> Result<bool, String> {
        let queue = self.names.retry();
        let mut session =
            Session::open_for(&self.settings.broker, "retry").map_err(|error| error.to_string())?;
        let router = Router::connect(&self.settings).map_err(|error| error.to_string())?;
        let consumer = session.consume(&queue, self.prefetch).map_err(|error| match error.code() {
            Some(404) => format!("{error}; is the set installed? Run `delayline install`"),
            _ => error.to_string(),
        })?;
        info!("taking failed messages from `{queue}`, {} at a time", self.prefetch);
        let mut forwarder = Forwarder::new(&router, Unsendable::Reject);
        let ended = self.work(stop, &consumer, &mut forwarder);
        // Where nothing gets through, a new connection alone is no progress.
        if forwarder.confirmed() > 0 {
            *failures = 0;
        }
        if ended.is_err() {
            drop(forwarder);
            router.close(Duration::ZERO);
            return ended.map(|()| false);
        }
        let clean = forwarder.finish(&consumer, FINISH) & consumer.finish(FINISH);
        router.close(FINISH);
        info!("stopped{}", if clean { "" } else { "; some messages may be retried twice" });
        Ok(clean)
    }

    fn work(
        &self,
        stop: &AtomicBool,
        consumer: &Consumer,
        forwarder: &mut Forwarder<'_>,
    ) -> Result<(), String> {
        while !stop.load(Ordering::Relaxed) {
            forwarder.settle(consumer)?;
            match consumer.next(Duration::ZERO) {
                Next::Delivery(delivery) => self.handle(consumer, forwarder, delivery)?,
                Next::Timeout => {
                    let mut select = Select::new();
                    consumer.watch(&mut select);
                    forwarder.watch(&mut select);
                    let _ = select.ready_timeout(TICK);
                }
                Next::Ended(cause) => {
                    return Err(cause.map_or_else(|| "the consumer ended".into(), |cause| cause.to_string()));
                }
            }
        }
        Ok(())
    }

    fn handle(
        &self,
        consumer: &Consumer,
        forwarder: &mut Forwarder<'_>,
        mut delivery: Delivery,
    ) -> Result<(), String> {
        let now = Timestamp::now().as_millisecond();
        let id = delivery.properties.message_id.clone().unwrap_or_else(|| "-".into());
        let id = id.escape_debug();
        if delivery.damaged {
            warn!(
                "park key={:?} id={id}: its headers or properties cannot be read, so it is moved as it is",
                delivery.routing_key
            );
            return forwarder.refuse(consumer, delivery);
        }
        let failure =
            Failure::read(&delivery.headers, &delivery.exchange, &delivery.routing_key, &self.names, now);
        let failure = match failure {
            Ok(failure) => failure,
            Err(error) => {
                warn!("park id={id}: {error}; it is moved as it is");
                return forwarder.refuse(consumer, delivery);
            }
        };
        let policies = self.policies.current();
        let policy = policies.get(&failure.app, &failure.reason);
        let unit = self.settings.topology.unit;
        let decision = Decision::new(policy, &failure, None, unit, now, fastrand::f64());
        let (app, reason) = (&failure.app, failure.reason.escape_debug());
        match decision {
            Decision::Retry { attempt, delay } => {
                let attempts = policy.attempts;
                info!("retry app={app} attempt={attempt}/{attempts} delay={delay} reason={reason} id={id}");
            }
            Decision::Park(why) => {
                let attempt = failure.history.attempt;
                info!("park app={app} attempt={attempt} why={why} reason={reason} id={id}");
            }
        }
        let parts = (
            std::mem::take(&mut delivery.body),
            delivery.properties.clone(),
            std::mem::take(&mut delivery.headers),
        );
        let successor = decision.successor(&failure, &self.names, sender(&self.settings), parts);
        forwarder.send(consumer, delivery, successor)
    }
}

/// Who the broker takes us for, as far as we know.
pub(super) fn sender(settings: &Settings) -> Option<&str> {
    match &settings.broker.credentials {
        Credentials::Plain { username, .. } => Some(username),
        Credentials::External => None,
    }
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service").field("prefetch", &self.prefetch).finish_non_exhaustive()
    }
}
