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
    relay::{Consuming, Failed, Forwarder, RefusalCounter, each},
    router::RouterBuilder,
};
use delayline_amqp::{Consumer, Delivery};
use delayline_core::{
    codec::AppKeyError, message::direct, shell::command, supervise::supervised, topology::Names,
};

use super::{
    GatewayStats,
    parcel::{Parcel, Route, Step},
};

/// The service of one gateway. Several may run side by side, on one machine or many: they
/// share the work.
///
/// ```no_run
/// use std::sync::atomic::AtomicBool;
/// use delayline_client::{Target, gateway::Gateway};
///
/// let stop = AtomicBool::new(false); // set elsewhere
/// Gateway::new(Target::from_url("amqp://localhost")?, "orders.delayed")?.run(&stop);
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
    /// How many messages it takes at a time by default, and how many messages that are due soon it
    /// holds: at 3,000 a second, about 2,250.
    pub const PREFETCH: (u16, u16) = (256, 4_000);

    /// The service of the gateway of this name, in the set of a router like this one. The router's
    /// quota does not apply here.
    ///
    /// # Errors
    /// No gateway can have this name; see [`Names::gateway_app`].
    pub fn new(router: impl Into<RouterBuilder>, name: impl Into<String>) -> Result<Self, AppKeyError> {
        let (router, name) = (router.into(), name.into());
        let names = Names::new(router.target.set.clone());
        let route = Route {
            exchange: name.clone(),
            entry: Names::gateway_entry(&name),
            app: Names::gateway_app(&name)?,
            unit: router.target.unit,
        };
        Ok(Self { router, names, name, route, prefetch: Self::PREFETCH.1, stats: Arc::default() })
    }

    /// Holds this many messages at a time that are due within 1.25 s, 1 or more. Of large messages
    /// it holds fewer: all bodies together have at most 256 MiB.
    #[must_use]
    pub fn with_prefetch(mut self, prefetch: u16) -> Self {
        self.prefetch = prefetch.max(1);
        self
    }

    /// Counts its work in counters that others can read.
    #[must_use]
    pub fn counting(mut self, stats: Arc<GatewayStats>) -> Self {
        self.stats = stats;
        self
    }

    /// Runs until `stop` is set. If the broker or the gateway's queues are missing, it waits for
    /// them.
    ///
    /// At the end it waits for confirms. Other messages that it holds return to their queues.
    /// Returns false if the time was too short for that: then some messages may arrive twice.
    pub fn run(&self, stop: &AtomicBool) -> bool {
        thread::scope(|scope| {
            let due = || {
                let queue = self.names.gateway_due(&self.name);
                // Rejections here are final.
                self.consume(stop, &queue, self.prefetch, Some(Arc::clone(&self.stats) as _))
            };
            // One would go on without the other as if all were well.
            let due = scope.spawn(move || supervised(due));
            let taken = self.prefetch.min(Self::PREFETCH.0);
            let clean = supervised(|| self.consume(stop, &self.names.gateway(&self.name), taken, None));
            due.join().unwrap_or(false) && clean
        })
    }

    /// Rejects messages that it cannot send. From the queue of incoming messages they go to the
    /// other queue, where they are tried once more, and counted.
    fn consume(
        &self,
        stop: &AtomicBool,
        queue: &str,
        prefetch: u16,
        stats: Option<Arc<dyn RefusalCounter>>,
    ) -> bool {
        let last = stats.is_some();
        let missing = format!("was the gateway removed? Run `{}`", command(&["gateway", "add", &self.name]));
        let consuming = Consuming::service((&self.router, "gateway"), (queue, missing), prefetch, stats);
        consuming
            .run(stop, each(|consumer, forwarder, delivery| self.handle(consumer, forwarder, delivery, last)))
            .unwrap_or(false)
    }

    fn handle(
        &self,
        consumer: &Consumer,
        forwarder: &mut Forwarder,
        mut delivery: Delivery,
        last: bool,
    ) -> Result<(), Failed> {
        let refuse = |forwarder: &mut Forwarder, delivery: Delivery, why: &dyn fmt::Display| {
            if last {
                let (id, key) = (delivery.id(), &delivery.routing_key);
                warn!("gateway={} key={key:?} id={id}: {why}; moved to the unroutable queue", self.name);
                self.stats.count(|counts| counts.set_aside += 1);
            }
            forwarder.refuse(consumer, delivery)
        };
        // Messages from the levels come through a level's exchange.
        let waited = last && delivery.exchange != self.names.gateway_due(&self.name);
        // It left the queue of incoming messages before a daemon took it.
        let expired = delivery.headers.get("x-first-death-reason") == Some(&"expired".into());
        let new = !last || !waited && expired;
        // An earlier delivery was counted then.
        if new && !delivery.redelivered {
            self.stats.count(|counts| counts.taken += 1);
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
                self.stats.count(|counts| match direct::of(&message) {
                    None => counts.delayed += 1,
                    Some(_) => counts.delivered += 1,
                });
                forwarder.send(consumer, delivery, message)
            }
            Step::At(due, message) => {
                let at = instant(due, (now, Instant::now()));
                forwarder.send_at((at, Arc::clone(&self.stats) as _), consumer, delivery, message)
            }
        }
    }
}

/// The instant of a time in ms since the epoch, computed from a known pair of both. In the past if
/// the time has passed, and the known instant if it is further away than a clock can count.
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
