//! Private nodes with a set, and what is measured on them.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::MetadataExt,
    path::Path,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use delayline_admin::{self as admin, DoctorOptions};
use delayline_amqp::Session;
use delayline_client::Router;
use delayline_core::{
    Message, backoff,
    codec::{AppKey, Delay, Level},
    topology::{Topology, Unit},
};
use delayline_node::{ClusterOptions, NodeOptions, PrivateCluster};
use delayline_settings::Settings;
use delayline_watch::picture::{Collector, Sources};

use super::{Drain, Looks, Restart, State};
use crate::{
    bare::Fallible,
    capacity::Distribution,
    measure::{
        Late,
        drain::{Intake, Taken},
        mark::Account,
        publish::{Source, publish, rate},
        sustain::Steady,
    },
};

/// The applications: of the messages that wait long, of those that fall due together, and of those that measure
/// the lateness of short delays.
const APPS: [&str; 3] = ["far", "together", "short"];

/// Short delays, how many messages a second, and for how long.
const SHORT: (&str, u32, Duration) = ("uniform:1s..8s", 20, Duration::from_secs(10));

/// The time between looks while messages fall due: more often, they would slow these down.
const LOOKS: Duration = Duration::from_secs(10);

/// How long a message may wait for its confirm: a level has no leader for a while after a restart.
const PATIENCE: &str = "30m";

/// The most levels that a message passes.
const LEVELS: u32 = 28;

/// What became of the messages that fell due together.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sums {
    pub(super) lost: u64,
    pub(super) twice: u64,
    pub(super) early: u64,
}

pub(super) struct Site<'a> {
    cluster: PrivateCluster,
    settings: Settings,
    topology: Topology,
    /// Makes the messages of each application.
    sources: [Source; 3],
    stop: &'a AtomicBool,
    /// How many messages were published to wait, in which time, and the CPU seconds of the first node for it.
    published: (u64, Duration, f64),
}

impl<'a> Site<'a> {
    /// Starts the nodes and installs a set. Also returns how long the latter took, in seconds.
    pub(super) fn start(
        size: usize,
        node: NodeOptions,
        body: usize,
        stop: &'a AtomicBool,
    ) -> Fallible<(Self, f64)> {
        let options = ClusterOptions { size, node, ..ClusterOptions::default() };
        let cluster = PrivateCluster::start(&options)?;
        let settings = cluster.settings(0).set("publish_timeout", PATIENCE).build()?;
        let topology = Topology::new(settings.topology.clone());
        let install_s = timed(|| Ok(admin::install(&settings, &topology, false, || {})?))?;
        let mut session = Session::open(&settings.broker)?;
        let mut sources = Vec::new();
        for app in APPS {
            let app = AppKey::new(app)?;
            session.declare_queue(&topology.app_queue(&app, app.as_str(), None))?;
            session.bind(&topology.app_binding(&app, app.as_str()))?;
            sources.push(Source::new(app, Unit::SECOND, body));
        }
        for node in cluster.nodes() {
            node.write_down_queues()?;
        }
        let sources = sources.try_into().expect("one for each application");
        Ok((
            Self { cluster, settings, topology, sources, stop, published: (0, Duration::ZERO, 0.0) },
            install_s,
        ))
    }

    /// The broker's version.
    pub(super) fn version(&self) -> String {
        let session = Session::open(&self.settings.broker);
        session.ok().and_then(|session| session.server_version()).unwrap_or_default()
    }

    /// How many messages a second were published to wait.
    pub(super) fn published_per_s(&self) -> f64 {
        rate(self.published.0, self.published.1)
    }

    /// CPU time of the first node for each of them, in µs.
    pub(super) fn publish_cpu_us(&self) -> f64 {
        self.published.2 * 1e6 / self.published.0.max(1) as f64
    }

    /// Publishes messages that wait long, with the delay that `delay` chooses at each moment.
    pub(super) fn publish(&mut self, count: u64, delay: impl FnMut(Instant) -> Delay) -> Fallible<()> {
        self.publish_as(0, count, delay)
    }

    /// The same for those that fall due together.
    pub(super) fn publish_together(
        &mut self,
        count: u64,
        delay: impl FnMut(Instant) -> Delay,
    ) -> Fallible<()> {
        self.publish_as(1, count, delay)
    }

    fn publish_as(&mut self, of: usize, count: u64, mut delay: impl FnMut(Instant) -> Delay) -> Fallible<()> {
        let router = self.settings.router().connect()?;
        let source = &mut self.sources[of];
        let cpu = || self.cluster.nodes()[0].cpu_seconds().unwrap_or(0.0);
        let before = cpu();
        let make = || source.delayed(delay(Instant::now()));
        let took = publish(&router, (count, Duration::MAX), make, self.stop, |_| ())?.1;
        let used = cpu() - before;
        self.published = (self.published.0 + count, self.published.1 + took, self.published.2 + used);
        Ok(())
    }

    /// Kills the first node and starts it again.
    pub(super) fn restart(&mut self) -> Fallible<Restart> {
        self.cluster.node(0).kill();
        let takeover_s = match self.cluster.nodes().len() {
            1 => None,
            _ => {
                let other = self.cluster.settings(1).set("publish_timeout", PATIENCE).build()?;
                Some(timed(|| self.enter_levels(&other))?)
            }
        };
        let began = Instant::now();
        self.cluster.node(0).restart()?;
        let serves_s = began.elapsed().as_secs_f64();
        self.enter_levels(&self.settings)?;
        Ok(Restart { serves_s, accepts_s: began.elapsed().as_secs_f64(), takeover_s })
    }

    /// Publishes one message into each level.
    fn enter_levels(&self, settings: &Settings) -> Fallible<()> {
        let router: Router = settings.router().connect()?;
        let app = self.sources[0].app().clone();
        let message = |level: Level| {
            let delay = Delay::from_seconds(level.units().into()).expect("a level has such a delay");
            Message::after(app.clone(), delay, "enters")
        };
        for answer in router.publish_all(Level::all().map(message)) {
            answer?;
        }
        Ok(())
    }

    /// Measures the first node, commands, and short delays.
    pub(super) fn state(&mut self) -> Fallible<State> {
        let late_ms = Late::from(&self.short()?.histogram);
        let node = &self.cluster.nodes()[0];
        let (disk, wal) = size(node.directory());
        let (settings, topology) = (&self.settings, &self.topology);
        Ok(State {
            memory: node.resident_memory().ok_or("the node is not running")?,
            disk,
            wal,
            install_s: timed(|| Ok(admin::install(settings, topology, true, || {})?))?,
            looks: looks(settings, topology)?,
            late_ms,
        })
    }

    fn short(&mut self) -> Fallible<Taken> {
        short(&self.settings, &mut self.sources[2], self.stop)
    }

    /// Takes the messages that fall due together, which all have done so at `end`.
    pub(super) fn drain(&mut self, count: u64, end: Instant) -> Fallible<(Drain, Sums)> {
        let [_, source, quick] = &mut self.sources;
        let (settings, topology, stop) = (&self.settings, &self.topology, self.stop);
        let intake = Intake::open(settings, APPS[1])?;
        let account = Account::new(source.epoch, 0, LEVELS);
        let wait = end.saturating_duration_since(Instant::now());
        let cpu = || self.cluster.nodes()[0].cpu_seconds().unwrap_or(0.0);
        let (begun, ended, at_begin) = (AtomicBool::new(false), AtomicBool::new(false), AtomicU64::new(0));
        let note = |count: u64| {
            if count > 0 && !begun.swap(true, Ordering::Relaxed) {
                at_begin.store(cpu().to_bits(), Ordering::Relaxed);
            }
        };
        let wait_for_begin = || {
            while !begun.load(Ordering::Relaxed) && Instant::now() < end {
                thread::sleep(Duration::from_millis(100));
            }
        };
        let (taken, beside, seen) = thread::scope(|scope| {
            let beside = scope.spawn(|| {
                wait_for_begin();
                short(settings, quick, stop)
            });
            let looking = scope.spawn(|| {
                wait_for_begin();
                let mut seen: Option<Looks> = None;
                let mut pause = Duration::ZERO;
                while backoff::wait(&ended, pause) {
                    let more = looks(settings, topology)?;
                    match &mut seen {
                        Some(seen) => seen.add(more),
                        seen => *seen = Some(more),
                    }
                    pause = LOOKS;
                }
                Ok(seen)
            });
            let taken = intake.take(account, &AtomicU64::new(count), wait, stop, note);
            ended.store(true, Ordering::Relaxed);
            let seen: Fallible<_> = looking.join().expect("it does not panic");
            (taken, beside.join().expect("it does not panic"), seen)
        });
        let (taken, beside) = (taken?, beside?);
        let used = cpu() - f64::from_bits(at_begin.load(Ordering::Relaxed));
        let (sums, arrived) = (taken.account.ledger.summary(), taken.account.ledger.arrived() as u64);
        let drain = Drain {
            per_s: rate(arrived, taken.took),
            cpu_us: used * 1e6 / arrived.max(1) as f64,
            late_ms: Late::from(&taken.histogram),
            beside_ms: Late::from(&beside.histogram),
            looks: seen?,
        };
        let lost = count.saturating_sub(arrived);
        Ok((drain, Sums { lost, twice: sums.duplicated, early: sums.early }))
    }
}

/// Publishes and takes messages with short delays.
fn short(settings: &Settings, source: &mut Source, stop: &AtomicBool) -> Fallible<Taken> {
    let (delays, rate, duration) = SHORT;
    let delays: Distribution = delays.parse()?;
    let longest = delays.longest().duration(Duration::from_secs(1));
    let intake = Intake::open(settings, APPS[2])?;
    let steady = Steady { rate, duration, delays: &delays, longest };
    Ok(steady.run(settings, source, &intake, stop, |_| ())?.taken)
}

/// What those who look at the set see.
fn looks(settings: &Settings, topology: &Topology) -> Fallible<Looks> {
    let verify_s = timed(|| Ok(admin::verify(settings, topology)?))?;
    let mut findings = BTreeSet::new();
    let doctor_s = timed(|| {
        let report = admin::doctor(settings, topology, &DoctorOptions::default())?;
        findings.extend(report.findings.iter().map(|finding| finding.code.to_string()));
        Ok(())
    })?;
    let mut headline = String::new();
    let page_s = timed(|| {
        headline.clone_from(&Collector::new(settings.clone(), Sources::default()).look().verdict.headline);
        Ok(())
    })?;
    Ok(Looks { verify_s, doctor_s, findings, page_s, headline })
}

/// How long something took, in seconds.
fn timed<T>(act: impl FnOnce() -> Fallible<T>) -> Fallible<f64> {
    let began = Instant::now();
    act().map(|_| began.elapsed().as_secs_f64())
}

/// The disk space of a directory, and the part of it that write-ahead logs take. Files may disappear meanwhile.
fn size(directory: &Path) -> (u64, u64) {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.fold((0, 0), |(all, logs), entry| {
        let path = entry.path();
        match entry.metadata() {
            Ok(found) if found.is_dir() => {
                let (more, wal) = size(&path);
                (all + more, logs + wal)
            }
            Ok(found) => {
                let taken = found.blocks() * 512;
                let is_log = path.extension().is_some_and(|extension| extension == "wal");
                (all + taken, logs + if is_log { taken } else { 0 })
            }
            Err(_) => (all, logs),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_logs_are_a_part_of_the_directory() {
        let directory = tempfile::tempdir().unwrap();
        let inner = directory.path().join("quorum");
        fs::create_dir(&inner).unwrap();
        for (name, length) in [("1.wal", 100_000), ("2.segment", 300_000)] {
            fs::write(inner.join(name), vec![7; length]).unwrap();
        }
        let (all, logs) = size(directory.path());
        assert!((100_000..110_000).contains(&logs) && (400_000..420_000).contains(&all), "{all} {logs}");
    }
}
