//! What the retry service does, on a node of its own: retries per second and
//! memory with a backlog of 100,000 failed messages, and what it adds to a single
//! retry when nothing else goes on; and, on RabbitMQ 4.3, what a wait in the queue itself costs
//! beside one by the service.
//!
//!     cargo bench --bench retry
//!
//! The rate is shown beside that of the router alone, publishing the same
//! messages to the same levels in the same run.

use std::{
    fs,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use delayline_admin::{self as admin, compare::retries_natively, management::ManagementApi};
use delayline_amqp::{Next, Session};
use delayline_core::{
    Message,
    codec::{AppKey, Delay, RoutingKey},
    topology::{Binding, Endpoint, Exchange, ExchangeKind, NativeRetry, Queue, Topology},
};
use delayline_measure::ledger::percentile;
use delayline_node::{NodeOptions, PrivateNode, usage};
use delayline_settings::Settings;

const BACKLOG: u32 = 100_000;
const BODY: usize = 256;
const SINGLE: u32 = 300;
const COMING_BACK: u32 = 5_000;

const POLICIES: &str = "\
[apps.bulk]
fixed = '2h 16m 32s'
[apps.single]
fixed = '0s'
[apps.served]
fixed = '1s'
";

fn main() {
    // `cargo test` passes this.
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    let node = PrivateNode::start(NodeOptions::default()).expect("a private node");
    let settings = node.settings().build().unwrap();
    conditions(&settings);
    admin::install(&settings, &Topology::new(settings.topology.clone()), false, || {}).unwrap();
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("policies.toml"), POLICIES).unwrap();
    let start = |log: &str| Service::start(&settings, directory.path(), log);

    // The same delay as the bulk policy's: one hop.
    let delay = Delay::from_seconds(8_192).unwrap();
    let alone = publish(&settings, "bulk", delay, BACKLOG / 5);
    println!("\nthe router alone, {} messages: {alone:.0}/s", BACKLOG / 5);

    for (what, log) in [("its log at `warn`", "warn"), ("a line logged for each decision", "info")] {
        let mut session = Session::open(&settings.broker).unwrap();
        fill(&mut session, &settings, BACKLOG);
        let started = Instant::now();
        let service = start(log);
        let mut began = None;
        loop {
            let left = session.queue_depth("delay.retry").unwrap().unwrap();
            if left.ready < BACKLOG && began.is_none() {
                began = Some((Instant::now(), BACKLOG - left.ready));
            }
            if left.ready == 0 {
                break;
            }
            assert!(started.elapsed() < Duration::from_secs(300), "{left:?}");
            thread::sleep(Duration::from_millis(20));
        }
        let (began, before) = began.unwrap();
        let rate = f64::from(BACKLOG - before) / began.elapsed().as_secs_f64();
        let memory = service.peak_memory();
        drop(service);
        println!(
            "the service, {BACKLOG} failed messages of {BODY} bytes, {what}: {rate:.0}/s ({:.2} x the router alone), \
             most resident memory {memory:.1} MB",
            rate / alone
        );
    }

    let service = start("warn");
    let inbox = inbox(&settings);
    let direct = single(&inbox, &settings);
    let mut fill = settings.clone();
    fill.topology.set = "fill".parse().unwrap();
    let through = single(&inbox, &fill);
    natively(&node, &settings, &service);
    drop(service);
    println!(
        "one at a time, no delay, from publishing to arriving, {SINGLE} messages: straight p50 {:.1} ms, p99 {:.1} ms; \
         through the service p50 {:.1} ms, p99 {:.1} ms; added {:.1} ms",
        direct.0,
        direct.1,
        through.0,
        through.1,
        through.0 - direct.0
    );
}

/// A wait of one second in the queue itself, and one by the service.
fn natively(node: &PrivateNode, settings: &Settings, service: &Service) {
    let mut session = Session::open(&settings.broker).unwrap();
    let version = session.server_version().unwrap_or_default();
    if !retries_natively(Some(&version)) {
        println!("a wait in the queue itself: not measured, RabbitMQ {version} cannot do it");
        return;
    }
    let topology = Topology::new(settings.topology.clone());
    let second: NativeRetry = "1s..1s".parse().unwrap();
    let used = || node.cpu_seconds().unwrap() + usage::cpu_seconds(service.0.id()).unwrap();
    let mut cost = |name: &str, native: bool| {
        let app = AppKey::new(name).unwrap();
        let mut queue = topology.app_queue(&app, name, true);
        if native {
            queue = queue.with_native_retry(second);
        }
        session.declare_queue(&queue).unwrap();
        session.bind(&topology.app_binding(&app, name)).unwrap();
        publish(settings, name, Delay::ZERO, COMING_BACK);
        let (mut cpu, mut failed) = (f64::NAN, false);
        // The first time all of them fail, the second time all are done.
        for fails in [true, false] {
            let mut session = Session::open(&settings.broker).unwrap();
            let consumer = session.consume(name, COMING_BACK.try_into().unwrap()).unwrap();
            let taken: Vec<_> = (0..COMING_BACK)
                .map(|_| match consumer.next(Duration::from_secs(30)) {
                    Next::Delivery(delivery) => delivery,
                    other => panic!("{name}: {other:?}"),
                })
                .collect();
            if failed {
                cpu = used() - cpu;
            }
            match (fails, native) {
                (true, true) => cpu = used(),
                (true, false) => {
                    cpu = used();
                    taken.into_iter().for_each(|delivery| consumer.reject(delivery).unwrap());
                    thread::sleep(Duration::from_millis(500));
                }
                (false, _) => taken.into_iter().for_each(|delivery| consumer.ack(delivery).unwrap()),
            }
            failed = fails;
        }
        cpu * 1e6 / f64::from(COMING_BACK)
    };
    let (by_queue, by_service) = (cost("native", true), cost("served", false));
    println!(
        "{COMING_BACK} messages that fail once and wait 1 s, CPU of broker and service until the consumer has them \
         again: in the queue itself {by_queue:.0} us each, by the service {by_service:.0} us ({:.1} x)",
        by_service / by_queue
    );
}

fn conditions(settings: &Settings) {
    let cores = thread::available_parallelism().map_or(0, usize::from);
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let api = ManagementApi::new(settings.management.as_ref().unwrap()).unwrap();
    println!("RabbitMQ {} on one private node, over loopback", api.overview().unwrap().rabbitmq_version);
    println!("{cores} cores shared by broker, service and this program; load before: {}", load.trim());
}

struct Service(Child);

impl Service {
    fn start(settings: &Settings, directory: &std::path::Path, log: &str) -> Self {
        let url = format!("amqp://guest:guest@127.0.0.1:{}", settings.broker.port);
        let log_file = fs::File::create(directory.join("log")).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_delayline"))
            .args(["serve", "--policies", "policies.toml", "--no-canary", "--no-web"])
            .current_dir(directory)
            .env("DELAYLINE_URL", url)
            .env("DELAYLINE_LOG", log)
            .stdin(Stdio::null())
            .stderr(log_file)
            .spawn()
            .unwrap();
        Self(child)
    }

    /// In MB.
    fn peak_memory(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "megabytes")]
        let megabytes = usage::peak_bytes(self.0.id()).expect("it runs") as f64 / 1_048_576.0;
        megabytes
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn message(app: &str, delay: Delay) -> Message {
    Message::after(AppKey::new(app).unwrap(), delay, vec![b'x'; BODY])
}

fn publish(settings: &Settings, app: &str, delay: Delay, count: u32) -> f64 {
    let router = settings.router().connect().unwrap();
    let started = Instant::now();
    let mut pipeline = router.pipeline();
    for _ in 0..count {
        assert!(pipeline.push((), message(app, delay)).is_none_or(|outcome| outcome.result.is_ok()));
    }
    assert!(pipeline.all(|outcome| outcome.result.is_ok()));
    f64::from(count) / started.elapsed().as_secs_f64()
}

/// Fills the retry queue, past all topic matching, through an exchange that looks
/// like an entry to the router.
fn fill(session: &mut Session, settings: &Settings, count: u32) {
    let exchange = Exchange::new("fill", ExchangeKind::Fanout);
    session.declare_exchange(&exchange).unwrap();
    let destination = Endpoint::Queue("delay.retry".into());
    session.bind(&Binding { source: "fill".into(), destination, key: String::new() }).unwrap();
    let mut settings = settings.clone();
    settings.topology.set = "fill".parse().unwrap();
    publish(&settings, "bulk", Delay::ZERO, count);
}

struct Inbox {
    consumer: delayline_amqp::Consumer,
    _session: Session,
}

fn inbox(settings: &Settings) -> Inbox {
    let mut session = Session::open(&settings.broker).unwrap();
    let arguments = [("x-queue-type".to_owned(), "quorum".into())];
    session.declare_queue(&Queue::new("single").with_arguments(arguments)).unwrap();
    session
        .bind(&Binding {
            source: "delay.dispatch".into(),
            destination: Endpoint::Queue("single".into()),
            key: RoutingKey::binding_pattern(&AppKey::new("single").unwrap()),
        })
        .unwrap();
    let consumer = session.consume("single", 10).unwrap();
    Inbox { consumer, _session: session }
}

/// From publishing to arriving, in ms: in the middle, and of the slowest per cent.
fn single(inbox: &Inbox, into: &Settings) -> (f64, f64) {
    let router = into.router().connect().unwrap();
    let mut times: Vec<f64> = (0..SINGLE)
        .map(|_| {
            let started = Instant::now();
            router.publish(message("single", Delay::ZERO)).unwrap();
            match inbox.consumer.next(Duration::from_secs(10)) {
                Next::Delivery(delivery) => inbox.consumer.ack(delivery).unwrap(),
                other => panic!("{other:?}"),
            }
            started.elapsed().as_secs_f64() * 1_000.0
        })
        .collect();
    times.sort_by(f64::total_cmp);
    let at = |per_cent| percentile(&times, per_cent).expect("there are some");
    (at(50.0), at(99.0))
}
