//! The measurements, one after the other.

use std::{
    sync::atomic::AtomicBool,
    thread,
    time::{Duration, Instant},
};

use jiff::Timestamp;

use delayline_amqp::Session;
use delayline_core::{
    codec::{AppKey, Delay},
    topology::SetName,
};
use delayline_settings::Settings;

use super::{
    BenchError, BenchPlan, Broker, Conditions, Drained, Histograms, Knee, Late, Published, Report, Stock,
    Sustained, Way,
    drain::Intake,
    mark::Account,
    plan::delay_of,
    publish::{Source, publish, rate},
    site::{Site, new_name},
    stock::Observer,
    sustain::Steady,
};

/// The level in which the published messages wait until they are deleted with the set: with
/// any unit, even 1 ms (4.6 hours), far longer than a measurement.
const STOCK_LEVEL: u8 = 24;

/// Their delay. The second bit is there so that the router can subtract what a message waited
/// there, and the message still waits in that level first.
const STOCK_DELAY: u64 = (1 << STOCK_LEVEL) | (1 << (STOCK_LEVEL - 4));

/// The lateness limit for 99 in 100 messages at the knee.
const KNEE_MS: f64 = 50.0;

/// How long each rate is tried in the search for the knee.
const KNEE_DURATION: Duration = Duration::from_secs(4);

/// The knee lies between two rates that differ by this much at most.
const KNEE_PRECISION: f64 = 1.15;

/// The highest rate that is tried.
const KNEE_MOST: u32 = 200_000;

/// The progress of a measurement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    /// A measurement begins, of so many messages.
    Step {
        /// The measurement.
        what: String,
        /// How many messages it counts; an estimate.
        total: u64,
    },
    /// So many more are done.
    Done(u64),
}

/// Measures a broker.
///
/// `name` is the name of the throw-away set; without it, the set gets a unique name. When
/// `stop` is set, the measurement ends soon with [`BenchError::Interrupted`].
///
/// # Errors
/// See [`BenchError`]; the set is removed in any case. A plan that cannot be
/// carried out touches nothing.
pub fn run(
    settings: &Settings,
    plan: &BenchPlan,
    name: Option<SetName>,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(Progress),
) -> Result<(Report, Histograms), BenchError> {
    plan.clone().checked()?;
    let observer = Observer::new(settings.management.as_ref(), &settings.broker.vhost);
    let objects = delayline_core::topology::Topology::new(settings.topology.clone()).objects().len() as u64;
    progress(Progress::Step { what: "installing".into(), total: objects });
    let name = name.unwrap_or_else(new_name);
    let site = Site::set_up(settings, name, plan.unit, || progress(Progress::Done(1)))?;
    let mut bench = Bench {
        settings,
        plan,
        source: Source::new(site.app.clone(), plan.unit, plan.size),
        site: &site,
        stop,
        progress,
        histograms: Histograms::default(),
        unchecked: Vec::new(),
    };
    match bench.all(observer) {
        Ok(report) => {
            let histograms = std::mem::take(&mut bench.histograms);
            site.remove()?;
            Ok((report, histograms))
        }
        Err(error) => Err(site.abandon(error)),
    }
}

struct Bench<'a> {
    settings: &'a Settings,
    plan: &'a BenchPlan,
    site: &'a Site,
    source: Source,
    stop: &'a AtomicBool,
    progress: &'a mut dyn FnMut(Progress),
    histograms: Histograms,
    unchecked: Vec<String>,
}

impl Bench<'_> {
    fn all(&mut self, observer: Result<Observer, String>) -> Result<Report, BenchError> {
        let observer = match observer {
            Ok(observer) => Some(observer),
            Err(reason) => {
                self.unchecked.push(format!("the broker's size, and what waiting messages cost: {reason}"));
                None
            }
        };
        let (publish, stock) = self.publish(observer.as_ref())?;
        let intake = Intake::open(self.settings, &self.site.sink)?;
        let drain = self.drain(&intake, &publish)?;
        let (mut steady, mut knee) = (None, None);
        if self.plan.steady() {
            let found = self.steady(&intake, self.plan.rate, self.plan.duration)?;
            if self.plan.knee {
                knee = Some(self.knee(&intake)?);
            }
            steady = Some(found);
        }
        // Last, because a broker that was just started knows its size only after a while.
        let broker = self.broker(observer.as_ref())?;
        (self.progress)(Progress::Step { what: "removing".into(), total: 0 });
        Ok(Report {
            delayline: env!("CARGO_PKG_VERSION").into(),
            at: Timestamp::now(),
            broker,
            conditions: self.conditions(),
            publish,
            drain,
            steady,
            knee,
            stock,
            unchecked: std::mem::take(&mut self.unchecked),
        })
    }

    fn broker(&mut self, observer: Option<&Observer>) -> Result<Broker, BenchError> {
        let version = Session::open(&self.settings.broker)?.server_version();
        let mut broker = Broker { version, ..Broker::default() };
        if let Some(Err(error)) = observer.map(|observer| observer.broker(&mut broker)) {
            self.unchecked.push(format!("the broker's size: {error}"));
        }
        Ok(broker)
    }

    fn conditions(&self) -> Conditions {
        let topology = &self.settings.topology;
        Conditions {
            size: self.plan.size,
            unit_ms: self.plan.unit.millis(),
            queue_type: topology.queue_type.to_string(),
            replicas: topology.replicas.map(Into::into),
            shortcuts: topology.shortcuts == Some(true),
            window: self.settings.router.window,
            client_processors: thread::available_parallelism().map_or(0, usize::from),
        }
    }

    /// Publishes by each route in. Messages sent through the entry stay, and show the cost of
    /// waiting messages.
    fn publish(
        &mut self,
        observer: Option<&Observer>,
    ) -> Result<(Vec<Published>, Option<Stock>), BenchError> {
        let before = observer.and_then(|observer| observer.memory().ok().flatten());
        let far = Delay::from_seconds(STOCK_DELAY).expect("it is within 28 levels");
        let mut published: Vec<Published> = Vec::new();
        let mut stock = None;
        for way in [Way::Entry, Way::Queue] {
            let what = match way {
                Way::Entry => "publishing through the entry",
                Way::Queue => {
                    // Before there is anything in the plain queue, which takes memory too.
                    let waiting = published.iter().map(|one| one.messages).sum();
                    stock = self.stock(observer, waiting, before)?;
                    "publishing straight into a queue"
                }
            };
            self.begin(what, self.plan.count);
            let router = self.site.settings().router().connect()?;
            let queue = AppKey::new(&self.site.sink).expect("a set's name and a word make an app key");
            let Self { source, plan, stop, progress, .. } = self;
            let make = || if way == Way::Queue { source.straight(&queue) } else { source.delayed(far) };
            let limit = (plan.count, plan.patience);
            let (messages, took) = publish(&router, limit, make, stop, |n| progress(Progress::Done(n)))?;
            published.push(Published { way, messages, per_second: rate(messages, took) });
        }
        Ok((published, stock))
    }

    fn stock(
        &mut self,
        observer: Option<&Observer>,
        waiting: u64,
        before: Option<u64>,
    ) -> Result<Option<Stock>, BenchError> {
        let Some(observer) = observer else { return Ok(None) };
        self.begin("counting what waits", 0);
        let queue = self.site.level_queue(STOCK_LEVEL.try_into().expect("there is such a level"));
        match observer.stock(&queue, waiting, before, self.stop)? {
            Ok(stock) => Ok(Some(stock)),
            Err(reason) => {
                self.unchecked.push(format!("what waiting messages cost: {reason}"));
                Ok(None)
            }
        }
    }

    /// Lets messages fall due together, and measures how fast they arrive.
    fn drain(&mut self, intake: &Intake, published: &[Published]) -> Result<Vec<Drained>, BenchError> {
        let straight = published.iter().find(|one| one.way == Way::Queue).map_or(0, |one| one.messages);
        let entry = published.iter().find(|one| one.way == Way::Entry).map(|one| one.per_second);
        let filling = entry.unwrap_or(1_000.0).max(1.0);
        self.begin("draining a plain queue", straight);
        // The messages that were published straight into it.
        let account = Account::new(self.source.epoch, self.source.next - straight, 0);
        let mut drained = vec![self.take(intake, account, 0, straight, Duration::ZERO)?];
        // The first hop costs as much as publishing to the entry: a match and a stored copy.
        let mut passed = drained[0].per_second.min(entry.unwrap_or(f64::MAX));
        for &hops in &self.plan.hops {
            // The number that is expected to arrive in time; each further queue costs.
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a float saturates")]
            let count = ((passed / f64::from(hops) * self.plan.patience.as_secs_f64()) as u64)
                .clamp(1, self.plan.count);
            #[expect(clippy::cast_precision_loss, reason = "a duration to wait")]
            let fill = Duration::from_secs_f64(0.2 + 1.5 * count as f64 / filling);
            let delay = delay_of(hops, fill, self.plan.unit);
            let wait = delay.duration(self.plan.unit.duration());
            let hops = self.site.hops(delay);
            let queues = if hops == 1 { "1 queue".into() } else { format!("{hops} queues") };
            self.begin(&format!("draining through {queues}"), count);
            let account = Account::new(self.source.epoch, self.source.next, hops);
            let router = self.site.settings().router().connect()?;
            let Self { source, stop, site, .. } = self;
            let make = || source.fixed(delay, site.entry());
            publish(&router, (count, Duration::MAX), make, stop, |_| ())?;
            let one = self.take(intake, account, hops, count, wait)?;
            // The result for a message through one queue.
            passed = one.per_second * f64::from(hops);
            drained.push(one);
        }
        Ok(drained)
    }

    fn take(
        &mut self,
        intake: &Intake,
        account: Account,
        hops: u32,
        count: u64,
        wait: Duration,
    ) -> Result<Drained, BenchError> {
        let Self { stop, progress, .. } = self;
        let taken = intake.take_all(account, count, wait, stop, |n| progress(Progress::Done(n)))?;
        let drained = Drained {
            hops,
            messages: count,
            per_second: rate(count, taken.took),
            late_ms: Late::from(&taken.histogram),
        };
        if hops > 0 {
            self.histograms.add(format!("drain-{hops}"), taken.took, taken.histogram);
        }
        Ok(drained)
    }

    /// Publishes at a steady rate.
    fn steady(
        &mut self,
        intake: &Intake,
        per_second: u32,
        duration: Duration,
    ) -> Result<Sustained, BenchError> {
        let plan = self.plan;
        let total = u64::from(per_second) * duration.as_secs();
        self.begin(&format!("a steady load of {per_second}/s"), total);
        let steady = Steady { rate: per_second, duration, delays: &plan.delays, longest: plan.longest() };
        let started = Instant::now();
        let Self { source, site, stop, progress, .. } = self;
        let found = steady.run(site.settings(), source, intake, stop, |n| progress(Progress::Done(n)))?;
        let taken = found.taken;
        let sums = taken.account.ledger.summary();
        let arrived = taken.account.ledger.arrived() as u64;
        let sustained = Sustained {
            rate: per_second,
            per_second: found.per_second,
            delays: plan.delays.to_string(),
            hops: found.hops,
            messages: found.published,
            lost: found.published.saturating_sub(arrived),
            duplicates: sums.duplicated,
            early: sums.early,
            late_ms: Late::from(&taken.histogram),
        };
        self.histograms.add(format!("steady-{per_second}"), started.elapsed(), taken.histogram);
        Ok(sustained)
    }

    /// Doubles the rate until messages are late twice, then halves the gap.
    fn knee(&mut self, intake: &Intake) -> Result<Knee, BenchError> {
        let mut tried: Vec<Sustained> = Vec::new();
        let mut good = 0;
        let mut rate = self.plan.rate;
        let mut bad = None;
        loop {
            // One stall of the machine is not the broker's limit.
            if self.in_time(intake, rate, &mut tried)? || self.in_time(intake, rate, &mut tried)? {
                good = rate
            } else {
                bad = Some(rate)
            }
            rate = match next_rate(good, bad) {
                Some(rate) => rate,
                None => return Ok(Knee { limit_ms: KNEE_MS, rate: good, tried }),
            };
        }
    }

    fn in_time(
        &mut self,
        intake: &Intake,
        rate: u32,
        tried: &mut Vec<Sustained>,
    ) -> Result<bool, BenchError> {
        let found = self.steady(intake, rate, KNEE_DURATION)?;
        let in_time = found.kept_up() && found.late_ms.p99 <= KNEE_MS;
        tried.push(found);
        Ok(in_time)
    }

    fn begin(&mut self, what: &str, total: u64) {
        (self.progress)(Progress::Step { what: what.into(), total });
    }
}

/// The rate to try next, between the highest good one and the lowest bad one.
fn next_rate(good: u32, bad: Option<u32>) -> Option<u32> {
    match (good, bad) {
        (KNEE_MOST.., None) => None,
        (good, None) => Some(good.saturating_mul(2).min(KNEE_MOST)),
        // Even the first rate was too high: go down until one is good.
        (0, Some(bad)) => (bad > 50).then_some(bad / 2),
        (good, Some(bad)) => {
            let between = f64::from(bad) / f64::from(good) > KNEE_PRECISION;
            between.then_some(good + (bad - good) / 2)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_knee_is_found_from_below_and_from_above() {
        for (knee, start) in [(5_300, 1_000), (400, 1_000), (1_000, 1_000), (150_000, 1_000)] {
            let (mut good, mut bad, mut rate, mut steps) = (0, None, start, 0);
            loop {
                steps += 1;
                if rate <= knee {
                    good = rate
                } else {
                    bad = Some(rate)
                }
                match next_rate(good, bad) {
                    Some(next) => rate = next,
                    None => break,
                }
            }
            assert!(good <= knee && f64::from(good) * 1.16 >= f64::from(knee), "{knee}: {good}");
            assert!(steps <= 12, "{knee}: {steps} steps");
        }
        assert_eq!(next_rate(KNEE_MOST, None), None);
        assert_eq!(next_rate(0, Some(40)), None, "it ends where nothing is in time");
    }
}
