//! A private node for one way to delay messages, and one round of messages through it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use delayline_amqp::Session;
use delayline_broker::ManagementApi;
use delayline_core::topology::{Argument, Binding, Endpoint, Exchange, ExchangeKind, Queue};
use delayline_node::PrivateNode;
use delayline_settings::Settings;

use super::layouts::{FAR, Path, Way};
use crate::{
    bare::{Bare, Fallible},
    measure::{
        Late,
        drain::Intake,
        mark::{self, Account},
    },
};

/// The queue that every way delivers into.
pub(super) const INBOX: &str = "inbox";

/// The start of the names of exchanges that lead past the entry.
const FILL: &str = "fill.";

/// The bytes of a body, and the most messages without a confirm: the router's defaults.
const BODY: usize = 256;
const WINDOW: usize = 1_000;

/// The most levels that a message of a measured delay passes through.
const LEVELS: u32 = 6;

/// A private node with an inbox.
#[derive(Debug)]
pub struct Site<'a> {
    node: &'a PrivateNode,
    session: Session,
    pub(super) settings: Settings,
    pub(super) unit_ms: u64,
    /// CPU seconds that the broker takes per second with nothing to do.
    idle: f64,
    epoch: Instant,
    /// The number of the next message; no other site of the node has it.
    next: u64,
    /// The queues with messages that nothing consumes.
    filled: BTreeSet<String>,
}

/// Messages to publish.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Round<'a> {
    /// Their delays, in units; each is as frequent as the others.
    pub(super) delays: &'a [u64],
    pub(super) count: u64,
    /// Publishing ends then in any case.
    pub(super) limit: Duration,
    /// Messages per second; as fast as they are confirmed without it.
    pub(super) rate: Option<f64>,
    /// Whether they go past the entry, straight into the queue in which they wait first.
    pub(super) fill: bool,
    /// Whether they are consumed.
    pub(super) consumed: bool,
}

/// The result of a round.
#[derive(Debug, Default)]
pub(super) struct Figures {
    /// Messages confirmed per second.
    pub(super) published_per_s: f64,
    pub(super) arrived: u64,
    /// The time from the first arrival to the last.
    pub(super) arriving: Duration,
    pub(super) late: Late,
    pub(super) lost: u64,
    pub(super) twice: u64,
    pub(super) early: u64,
    /// CPU time of the broker in µs for each message, without its idle CPU time.
    pub(super) cpu_us: f64,
}

impl<'a> Site<'a> {
    /// Declares the inbox on a node, where a unit of delay takes so many milliseconds.
    ///
    /// # Errors
    /// The node does not answer.
    pub fn new(node: &'a PrivateNode, unit_ms: u64) -> Fallible<Self> {
        let settings = node.settings().set("unit_ms", unit_ms.to_string()).build()?;
        let session = Session::open(&settings.broker)?;
        let mut site = Self {
            node,
            session,
            settings,
            unit_ms,
            idle: 0.0,
            epoch: Instant::now(),
            next: fastrand::u64(..1 << 60),
            filled: BTreeSet::new(),
        };
        site.queue(INBOX, [("x-queue-type", "quorum".into())])?;
        Ok(site)
    }

    /// The broker's version.
    pub(super) fn version(&self) -> String {
        self.session.server_version().unwrap_or_default()
    }

    /// Measures the CPU time of the idle broker.
    pub(super) fn rest(&mut self, time: Duration) {
        let (cpu, began) = (self.cpu(), Instant::now());
        thread::sleep(time);
        self.idle = (self.cpu() - cpu) / began.elapsed().as_secs_f64();
    }

    fn cpu(&self) -> f64 {
        self.node.cpu_seconds().unwrap_or(0.0)
    }

    pub(super) fn queue<'n>(
        &mut self,
        name: &str,
        arguments: impl IntoIterator<Item = (&'n str, Argument)>,
    ) -> Fallible<()> {
        let arguments = arguments.into_iter().map(|(name, value)| (name.to_owned(), value));
        Ok(self.session.declare_queue(&Queue::new(name).with_arguments(arguments))?)
    }

    pub(super) fn exchange(&mut self, name: &str, kind: ExchangeKind) -> Fallible<()> {
        Ok(self.session.declare_exchange(&Exchange::new(name, kind))?)
    }

    pub(super) fn bind_queue(&mut self, source: &str, queue: &str, key: &str) -> Fallible<()> {
        self.bind(source, Endpoint::Queue(queue.into()), key)
    }

    pub(super) fn bind_exchange(&mut self, source: &str, exchange: &str, key: &str) -> Fallible<()> {
        self.bind(source, Endpoint::Exchange(exchange.into()), key)
    }

    fn bind(&mut self, source: &str, destination: Endpoint, key: &str) -> Fallible<()> {
        Ok(self.session.bind(&Binding { source: source.into(), destination, key: key.into() })?)
    }

    /// Drops the messages that have arrived and were not consumed, and those that wait.
    pub(super) fn empty(&mut self) -> Fallible<()> {
        let filled = std::mem::take(&mut self.filled);
        for queue in filled.iter().map(String::as_str).chain([INBOX]) {
            self.session.purge_queue(queue)?;
        }
        Ok(())
    }

    /// How many queues and bindings there are beside the inbox.
    pub(super) fn objects(&self) -> Fallible<(usize, usize)> {
        let management = self.settings.management.as_ref().ok_or("no management API")?;
        let api = ManagementApi::new(management)?;
        let bindings = api.bindings(&self.settings.broker.vhost, |_| true)?;
        let ours = |source: &str| source.is_empty() || source.starts_with(FILL);
        let queues = api.queues(&self.settings.broker.vhost)?.len() - 1;
        Ok((queues, bindings.iter().filter(|binding| !ours(&binding.source)).count()))
    }

    /// The path of each delay, past the entry if they are to fill the first queue.
    fn paths(&mut self, way: &Way, round: &Round<'_>) -> Fallible<BTreeMap<u64, Path>> {
        let delays: BTreeSet<u64> = round.delays.iter().copied().collect();
        let mut paths = BTreeMap::new();
        for delay in delays {
            let mut path = (way.path)(self, delay)?;
            self.filled.extend(path.first.clone().filter(|_| !round.consumed));
            if let (true, Some(queue)) = (round.fill, &path.first) {
                let exchange = format!("{FILL}{queue}");
                self.exchange(&exchange, ExchangeKind::Fanout)?;
                self.bind_queue(&exchange, queue, "")?;
                path.to.exchange = exchange;
            }
            paths.insert(delay, path);
        }
        Ok(paths)
    }

    /// Publishes messages, and waits for them if they are consumed.
    pub(super) fn run(&mut self, way: &Way, round: &Round<'_>) -> Fallible<Figures> {
        let paths = self.paths(way, round)?;
        let intake = round.consumed.then(|| Intake::open(&self.settings, INBOX)).transpose()?;
        let account = Account::new(self.epoch, self.next, LEVELS);
        let longest = round.delays.iter().copied().max().unwrap_or(0).min(FAR);
        let wait = round.limit + Duration::from_millis(self.unit_ms * longest);
        let (expected, never) = (AtomicU64::new(u64::MAX), AtomicBool::new(false));
        let (cpu, began) = (self.cpu(), Instant::now());
        let (published, taken) = thread::scope(|scope| {
            let (expected, never) = (&expected, &never);
            let taker =
                intake.map(|intake| scope.spawn(move || intake.take(account, expected, wait, never, |_| ())));
            let published = self.publish(&paths, round);
            // After a failure, do not wait for messages.
            expected.store(published.as_ref().map_or(0, |(sent, _)| *sent), Ordering::Release);
            (published, taker.map(|taker| taker.join().expect("it does not panic")))
        });
        let (sent, took) = published?;
        let cpu = self.cpu() - cpu - self.idle * began.elapsed().as_secs_f64();
        let mut figures = Figures {
            published_per_s: sent as f64 / took.as_secs_f64(),
            cpu_us: cpu.max(0.0) * 1e6 / sent.max(1) as f64,
            ..Figures::default()
        };
        if let Some(taken) = taken.transpose()? {
            let sums = taken.account.ledger.summary();
            figures.arrived = taken.account.ledger.arrived() as u64;
            figures.arriving = taken.took;
            figures.late = Late::from(&taken.histogram);
            (figures.lost, figures.twice) = (sent.saturating_sub(figures.arrived), sums.duplicated);
            figures.early = sums.early;
        }
        Ok(figures)
    }

    /// Returns the number of confirmed messages, and the time for them.
    fn publish(&mut self, paths: &BTreeMap<u64, Path>, round: &Round<'_>) -> Fallible<(u64, Duration)> {
        let mut bare = Bare::open(&self.settings, WINDOW)?;
        // The same order of delays in every round.
        let mut random = fastrand::Rng::with_seed(0);
        let (began, mut sent) = (Instant::now(), 0);
        while sent < round.count && began.elapsed() < round.limit {
            if let Some(rate) = round.rate {
                let at = began + Duration::from_secs_f64(sent as f64 / rate);
                thread::sleep(at.saturating_duration_since(Instant::now()));
            }
            let delay = round.delays[random.usize(..round.delays.len())];
            let path = &paths[&delay];
            let wait = if path.first.is_some() { self.unit_ms * delay } else { 0 };
            let due = self.epoch.elapsed() + Duration::from_millis(wait);
            bare.publish(&path.to, &mark::body(self.next, due, BODY))?;
            (self.next, sent) = (self.next + 1, sent + 1);
        }
        bare.settle(0)?;
        let took = began.elapsed();
        bare.close()?;
        Ok((sent, took))
    }
}
