//! Many schedules, two daemons that are killed in turn, and a node that is killed once. Each occurrence must
//! arrive, and none early.

use std::{
    collections::{BTreeMap, BTreeSet},
    process::{Child, Command, ExitCode, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use delayline_admin::{self as admin, AppQueue, AppSpec, Delivery};
use delayline_amqp::{Next, Session};
use delayline_core::{
    codec::{AppKey, Delay},
    ledger::percentile,
    message::Value,
    topology::{Queue, RecallSettings, Topology},
};
use delayline_node::usage::{cpu_seconds, resident_bytes};
use delayline_schedules::{self as schedules, Change, ScheduleName, Spec, Timing};
use delayline_settings::Settings;
use jiff::Timestamp;
use serde::Serialize;

use crate::{
    Args,
    lab::{self, Lab},
};

const APP: &str = "recurring";

/// The interval of each schedule in seconds, and so of the kills.
const EVERY: i64 = 60;

/// How long idle schedules are measured.
const IDLE: Duration = Duration::from_secs(30);

/// How long a late message may take.
const PATIENCE: Duration = Duration::from_secs(420);

#[derive(Debug, Serialize)]
struct Figures {
    broker: String,
    schedules: u64,
    minutes: u64,
    daemon_kills: u64,
    /// From adding a schedule until it is published ahead: the first of a set, and another.
    first_published_s: f64,
    next_published_s: f64,
    /// From adding all of them, in place of as many others, until they are added, and until each is published.
    added_s: f64,
    published_s: f64,
    occurrences: usize,
    lost: usize,
    early: usize,
    duplicated: usize,
    /// Occurrences that came with two ids.
    other_ids: usize,
    /// Lateness in ms, without the three minutes after the node was killed, and with them.
    p50_ms: i64,
    p99_ms: i64,
    max_ms: i64,
    max_after_the_kill_ms: i64,
    idle: Idle,
}

/// The cost of schedules that are not due, with one daemon.
#[derive(Debug, Default, Serialize)]
struct Idle {
    /// Parts of a processor in per cent, without schedules and with them.
    broker_before: f64,
    broker: f64,
    daemon: f64,
    /// Megabytes.
    broker_mb_before: f64,
    broker_mb: f64,
    daemon_mb: f64,
}

/// The arrivals of an occurrence: their ids, how many, and how late the first was in ms.
type Arrivals = BTreeMap<(String, i64), (BTreeSet<String>, usize, i64)>;

pub fn run(number: u64, args: &Args) -> ExitCode {
    let mut lab = Lab::start(false, args.limit()).unwrap_or_else(|error| panic!("{error}"));
    let version = lab.version();
    let say = |what: &str| eprintln!("== {version}: {what}");
    let settings = lab.layers().set("heartbeat", "5").build().expect("settings");
    declare(&settings);
    lab.write_down_queues();
    let topology = Topology::new(settings.topology.clone());

    say(&format!("{number} schedules that are not due"));
    let mut daemon = serve(&mut lab);
    let measured = |lab: &mut Lab, daemon: &Daemon| {
        let used = |lab: &mut Lab| {
            (lab.node(0).cpu_seconds().expect("a process"), cpu_seconds(daemon.0.id()).expect("a process"))
        };
        let before = used(lab);
        thread::sleep(IDLE);
        let after = used(lab);
        let per_cent = |used: f64| used / IDLE.as_secs_f64() * 100.0;
        let broker = lab.node(0).resident_memory().expect("a process");
        let daemon = resident_bytes(daemon.0.id()).expect("a process");
        [per_cent(after.0 - before.0), per_cent(after.1 - before.1), broker as f64 / 1e6, daemon as f64 / 1e6]
    };
    let [broker_before, _, broker_mb_before, _] = measured(&mut lab, &daemon);
    let one = |name: &str| {
        let (began, name) = (Instant::now(), name.parse().expect("a name"));
        let change = Change::Set(&spec("@daily"));
        schedules::change(&settings, &topology, &name, change, false).expect("it is added");
        wait("it is published ahead", || all_ahead(&settings, &topology, 1));
        let took = began.elapsed().as_secs_f64();
        schedules::change(&settings, &topology, &name, Change::Remove, false).expect("it is removed");
        took
    };
    let (first_published_s, next_published_s) = (one("first"), one("next"));
    let add = |spec: &dyn Fn(u64) -> Spec| {
        let all: Vec<(ScheduleName, Spec)> =
            (0..number).map(|it| (format!("s{it}").parse().expect("a name"), spec(it))).collect();
        let changes: Vec<_> = all.iter().map(|(name, spec)| (name, Change::Set(spec))).collect();
        schedules::change_all(&settings, &topology, &changes, false).expect("the schedules are added");
    };
    add(&|_| spec("@daily"));
    wait("all are published ahead", || all_ahead(&settings, &topology, 1));
    let [broker, of_daemon, broker_mb, daemon_mb] = measured(&mut lab, &daemon);
    let idle = Idle { broker_before, broker, daemon: of_daemon, broker_mb_before, broker_mb, daemon_mb };
    say(&format!("{idle:?}"));

    say(&format!("{number} schedules of {EVERY} s, for {} minutes", args.over));
    let arrivals = Arc::new(Mutex::new(Arrivals::new()));
    let (stop, consumer) = consume(&settings, &arrivals);
    let began = Instant::now();
    let from = Timestamp::now().as_second() + EVERY;
    // Spread over the minute.
    add(&|it| {
        let number = i64::try_from(number).expect("a number");
        let start = from + i64::try_from(it).expect("a number") * EVERY / number;
        let mut spec = spec("");
        spec.timing = Timing::Every { every: Delay::from_seconds(EVERY.unsigned_abs()).expect("a delay") };
        spec.start = Timestamp::from_second(start).ok();
        spec.ahead = Delay::from_seconds(300).expect("a delay");
        spec
    });
    let added_s = began.elapsed().as_secs_f64();
    wait("all are published ahead", || all_ahead(&settings, &topology, 2));
    let published_s = began.elapsed().as_secs_f64();
    let mut other = serve(&mut lab);
    let end = Instant::now() + Duration::from_secs(args.over * 60);
    let (mut kills, mut node_killed) = (0, None);
    while Instant::now() < end {
        thread::sleep(Duration::from_secs(fastrand::u64(20..50)));
        let which = if fastrand::bool() { &mut daemon } else { &mut other };
        which.kill();
        thread::sleep(Duration::from_secs(fastrand::u64(0..10)));
        *which = serve(&mut lab);
        kills += 1;
        if node_killed.is_none() && Instant::now() + Duration::from_secs(args.over * 30) > end {
            say("the node is killed");
            node_killed = Some(clock_ms());
            lab.node(0).kill();
            thread::sleep(Duration::from_secs(2));
            lab.node(0).restart().expect("the node starts again");
        }
    }
    // All occurrences until then must arrive.
    let until = clock_ms() - EVERY * 1_000;
    let wanted = |seen: &Arrivals| missing(number, from, until, seen);
    let deadline = Instant::now() + PATIENCE;
    while wanted(&arrivals.lock().expect("arrivals")) > 0 && Instant::now() < deadline {
        thread::sleep(Duration::from_secs(1));
    }
    stop.store(true, Ordering::Relaxed);
    consumer.join().expect("the consumer");
    let seen = arrivals.lock().expect("arrivals");
    let lost = wanted(&seen);
    if lost > 0 {
        lab.print_queues(&settings);
    }
    let killed = node_killed.unwrap_or(i64::MAX);
    let near = |at: i64| at > killed - 1_000 && at < killed + 180_000;
    let in_time = |near_the_kill: bool| {
        let all = seen.iter().filter(move |((_, at), _)| near(*at) == near_the_kill);
        let mut late: Vec<_> = all.map(|(_, (_, _, late))| *late).collect();
        late.sort_unstable();
        late
    };
    let (late, late_after) = (in_time(false), in_time(true));
    let at = |late: &[i64], per_cent| percentile(late, per_cent).unwrap_or(0);
    let figures = Figures {
        broker: version.clone(),
        schedules: number,
        minutes: args.over,
        daemon_kills: kills,
        first_published_s,
        next_published_s,
        added_s,
        published_s,
        occurrences: seen.len(),
        lost,
        early: seen.values().filter(|(_, _, late)| *late < 0).count(),
        duplicated: seen.values().filter(|(_, times, _)| *times > 1).count(),
        other_ids: seen.values().filter(|(ids, _, _)| ids.len() > 1).count(),
        p50_ms: at(&late, 50.0),
        p99_ms: at(&late, 99.0),
        max_ms: at(&late, 100.0),
        max_after_the_kill_ms: at(&late_after, 100.0),
        idle,
    };
    println!("{figures:#?}");
    if let Some(file) = &args.json {
        std::fs::write(file, serde_json::to_string_pretty(&figures).expect("JSON")).expect("the figures");
    }
    let bad = figures.lost + figures.early + figures.other_ids > 0 || figures.occurrences == 0;
    ExitCode::from(u8::from(bad))
}

fn spec(cron: &str) -> Spec {
    let app = AppKey::new(APP).expect("an app key");
    let mut spec = Spec::new(app, Timing::Cron { cron: cron.into(), zone: "UTC".into() });
    spec.body = vec![b'x'; 256];
    spec
}

fn declare(settings: &Settings) {
    let mut session = lab::install(settings);
    let queue = Queue::new(APP).with_arguments([("x-queue-type".to_owned(), "quorum".into())]);
    session.declare_queue(&queue).expect("a queue");
    let queue = AppQueue { existing: true, ..AppQueue::new(APP) };
    let app = AppKey::new(APP).expect("an app key");
    let recall = Some(RecallSettings::default());
    let spec = AppSpec { recall, ..AppSpec::new(app, Delivery::Direct(queue)) };
    let topology = Topology::new(settings.topology.clone());
    admin::add_app(settings, &topology, &spec, false, false).expect("the application is added");
}

fn all_ahead(settings: &Settings, topology: &Topology, least: usize) -> bool {
    let list = schedules::list(settings, topology, None).expect("the schedules");
    list.schedules.iter().all(|it| it.ahead >= least)
}

fn wait(what: &str, done: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        thread::sleep(Duration::from_millis(500));
    }
}

/// How many occurrences that were due until an instant have not arrived.
fn missing(number: u64, from: i64, until: i64, seen: &Arrivals) -> usize {
    let mut missing = 0;
    for it in 0..number {
        let number = i64::try_from(number).expect("a number");
        let mut at = (from + i64::try_from(it).expect("a number") * EVERY / number) * 1_000;
        while at <= until {
            missing += usize::from(!seen.contains_key(&(format!("s{it}"), at)));
            at += EVERY * 1_000;
        }
    }
    missing
}

/// Consumes through restarts of the broker.
fn consume(settings: &Settings, into: &Arc<Mutex<Arrivals>>) -> (Arc<AtomicBool>, JoinHandle<()>) {
    let stop = Arc::new(AtomicBool::new(false));
    let (settings, into, told) = (settings.clone(), Arc::clone(into), Arc::clone(&stop));
    let work = move || {
        while !told.load(Ordering::Relaxed) {
            let Ok(mut session) = Session::open(&settings.broker) else {
                thread::sleep(Duration::from_millis(200));
                continue;
            };
            let Ok(consumer) = session.consume(APP, 1_000) else { continue };
            while !told.load(Ordering::Relaxed) {
                let delivery = match consumer.next(Duration::from_millis(200)) {
                    Next::Delivery(delivery) => delivery,
                    Next::Timeout => continue,
                    Next::Ended(_) => break,
                };
                let now = clock_ms();
                let at = delivery.headers.get("delayline-occurrence").and_then(Value::as_i64);
                let of = match delivery.headers.get("delayline-schedule") {
                    Some(Value::Text(of)) => of.clone(),
                    other => panic!("no schedule: {other:?}"),
                };
                let (at, id) = (at.expect("an occurrence"), delivery.properties.message_id.clone());
                let mut arrivals = into.lock().expect("arrivals");
                let (ids, times, _) = arrivals.entry((of, at)).or_insert((BTreeSet::new(), 0, now - at));
                ids.insert(id.expect("an id"));
                *times += 1;
                drop(arrivals);
                if consumer.ack(delivery).is_err() {
                    break;
                }
            }
        }
    };
    (stop, thread::spawn(work))
}

/// The time in ms since the epoch, as occurrences are counted.
fn clock_ms() -> i64 {
    Timestamp::now().as_millisecond()
}

/// A daemon. Dropping it kills it.
struct Daemon(Child);

fn serve(lab: &mut Lab) -> Daemon {
    let mut command = Command::new(env!("CARGO_BIN_EXE_delayline"));
    let child = command
        .args(["serve", "--no-web", "--no-canary", "--no-retry", "--no-sweep", "--no-gateways"])
        .env("DELAYLINE_URL", lab.node(0).url())
        .env("DELAYLINE_MANAGEMENT_URL", lab.node(0).management_url())
        .env("DELAYLINE_LOG", "error")
        .stdin(Stdio::null())
        .spawn();
    Daemon(child.expect("delayline serve"))
}

impl Daemon {
    fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
    }
}
