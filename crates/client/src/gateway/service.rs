//! The service between the two exchanges of a gateway.

use std::{
    fmt,
    sync::{Arc, atomic::AtomicBool},
    thread,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use log::warn;

use crate::{
    relay::{Consuming, Failed, Forwarder, SetAside},
    router::RouterBuilder,
};
use delayline_amqp::{Consumer, Delivery};
use delayline_core::{codec::AppKeyError, topology::Names};

use super::{
    GatewayStats,
    parcel::{Parcel, Route, Step},
};

/// The service of one gateway. Several may run side by side, on one machine or many: they
/// share the work.
///
/// ```no_run
/// use std::sync::atomic::AtomicBool;
/// use delayline::{broker::Broker, gateway::Gateway};
///
/// let stop = AtomicBool::new(false); // to be set by somebody else
/// Gateway::new(Broker::from_url("amqp://localhost")?, "orders.delayed")?.run(&stop);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Gateway {
    router: RouterBuilder,
    names: Names,
    name: String,
    route: Route,
    prefetch: u16,
    stats: Arc<GatewayStats>,
}

impl Gateway {
    /// How many messages it takes at a time by default, and how many it holds by default that
    /// are due soon: with 3,000 a second, some 2,250.
    pub const PREFETCH: (u16, u16) = (256, 4_000);

    /// The service of the gateway of this name, in the set of a router such as this. The
    /// router's quota does not count here.
    ///
    /// # Errors
    /// No gateway can have this name; see [`Names::gateway_app`].
    pub fn new(router: impl Into<RouterBuilder>, name: impl Into<String>) -> Result<Self, AppKeyError> {
        let (router, name) = (router.into(), name.into());
        let names = Names::new(router.set.clone());
        let route = Route {
            exchange: name.clone(),
            entry: Names::gateway_entry(&name),
            app: Names::gateway_app(&name)?,
            unit: router.unit,
        };
        Ok(Self { router, names, name, route, prefetch: Self::PREFETCH.1, stats: Arc::default() })
    }

    /// Holds this many messages at a time that are due within 1.25 s, 1 or more. Of large
    /// ones it holds fewer: their bodies have about 256 MiB together.
    #[must_use]
    pub fn with_prefetch(mut self, prefetch: u16) -> Self {
        self.prefetch = prefetch.max(1);
        self
    }

    /// Counts what it does where others can see it.
    #[must_use]
    pub fn counting(mut self, stats: Arc<GatewayStats>) -> Self {
        self.stats = stats;
        self
    }

    /// Runs until `stop` is set. Without a broker, or without the gateway's queues, it waits
    /// for them.
    ///
    /// At the end it waits for confirms; other messages that it holds go back to their queues.
    /// Returns whether that was done in time: if not, some messages may arrive twice.
    pub fn run(&self, stop: &AtomicBool) -> bool {
        thread::scope(|scope| {
            let due = scope.spawn(|| {
                let queue = self.names.gateway_due(&self.name);
                // What is rejected here stays where it is moved to.
                self.consume(stop, &queue, self.prefetch, Some(Arc::clone(&self.stats) as _))
            });
            let taken = self.prefetch.min(Self::PREFETCH.0);
            let clean = self.consume(stop, &self.names.gateway(&self.name), taken, None);
            due.join().unwrap_or(false) && clean
        })
    }

    /// Messages that it cannot send are rejected. From the queue of incoming messages they go to
    /// the other one, where all is tried once more, and counted.
    fn consume(
        &self,
        stop: &AtomicBool,
        queue: &str,
        prefetch: u16,
        stats: Option<Arc<dyn SetAside>>,
    ) -> bool {
        let last = stats.is_some();
        let missing = "was the gateway removed? Run `delayline gateway add`";
        let consuming = Consuming::service((&self.router, "gateway"), (queue, missing), prefetch, stats);
        consuming
            .run(stop, |consumer, forwarder, delivery| self.handle(consumer, forwarder, delivery, last))
            .unwrap_or(false)
    }

    fn handle(
        &self,
        consumer: &Consumer,
        forwarder: &mut Forwarder<'_>,
        mut delivery: Delivery,
        last: bool,
    ) -> Result<(), Failed> {
        let refuse = |forwarder: &mut Forwarder<'_>, delivery: Delivery, why: &dyn fmt::Display| {
            if last {
                let id = delivery.properties.message_id.as_deref().unwrap_or("-").escape_debug();
                let key = &delivery.routing_key;
                warn!("gateway={} key={key:?} id={id}: {why}; moved to the unroutable queue", self.name);
                self.stats.refuse();
            }
            forwarder.refuse(consumer, delivery)
        };
        // Messages from the levels come by way of one of their exchanges.
        let waited = last && delivery.exchange != self.names.gateway_due(&self.name);
        // It left the queue of incoming messages before a daemon took it.
        let expired = delivery.headers.get("x-first-death-reason") == Some(&"expired".into());
        let new = !last || !waited && expired;
        // What was delivered before was counted then.
        if new && !delivery.redelivered {
            self.stats.take();
        }
        if delivery.damaged {
            return refuse(forwarder, delivery, &"its headers or properties cannot be read");
        }
        let parcel = Parcel {
            waited,
            routing_key: delivery.routing_key.clone(),
            properties: delivery.properties.clone(),
            headers: std::mem::take(&mut delivery.headers),
            body: std::mem::take(&mut delivery.body),
        };
        let now = Timestamp::now().as_millisecond();
        let step = match self.route.step(parcel, now) {
            Ok(step) => step,
            Err(error) => return refuse(forwarder, delivery, &error),
        };
        match step {
            Step::Now(message) => {
                if message.direct.is_none() {
                    self.stats.delay();
                } else {
                    self.stats.deliver();
                }
                forwarder.send(consumer, delivery, message)
            }
            Step::At(due, message) => {
                let at = instant(due, (now, Instant::now()));
                forwarder.send_at((at, Arc::clone(&self.stats) as _), consumer, delivery, message)
            }
        }
    }
}

/// The instant of a time in ms since the epoch, from one that is known as both: in the past if
/// it is over, and the known one if it is further away than a clock can count.
fn instant(due: i64, (now, at): (i64, Instant)) -> Instant {
    let between = Duration::from_millis(due.abs_diff(now));
    match due < now {
        true => at.checked_sub(between),
        false => at.checked_add(between),
    }
    .unwrap_or(at)
}

impl fmt::Debug for Gateway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gateway").field("name", &self.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_due_time_is_too_far_away_for_a_clock() {
        let at = Instant::now();
        for due in [i64::MIN, -1, 0, 1_700_000_000_000, i64::MAX] {
            for now in [1_700_000_000_000, i64::MAX, i64::MIN] {
                instant(due, (now, at));
            }
        }
        assert_eq!(instant(1_500, (1_000, at)), at + Duration::from_millis(500));
        assert!(instant(i64::MIN, (i64::MAX, at)) <= at);
    }
}
