//! The performance of the retry service: retries per second and memory with a backlog of 100,000 failed
//! messages, beside the rate of the router alone in the same run; and what it adds to a single retry
//! when nothing else goes on.
//!
//!     cargo bench -p delayline-bench --bench retry

mod common;

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use common::{BODY, Lab, publish};
use delayline_amqp::{Consumer, Next, Session};
use delayline_core::{
    Message,
    codec::{AppKey, Delay, RoutingKey},
    ledger::percentile,
    topology::{Binding, Endpoint, Exchange, ExchangeKind, Queue},
};
use delayline_settings::Settings;

const BACKLOG: u32 = 100_000;
const SINGLE: u32 = 300;

const POLICIES: &str = "\
[apps.bulk]
fixed = '2h 16m 32s'
[apps.single]
fixed = '0s'
";

fn main() {
    let Some(lab) = Lab::start() else { return };
    let policies = tempfile::NamedTempFile::new().unwrap();
    fs::write(&policies, POLICIES).unwrap();
    let serve = |level: &str| {
        let arguments = ["--policies", policies.path().to_str().unwrap(), "--no-canary", "--no-web"];
        lab.serve(&arguments, level, tempfile::tempfile().unwrap())
    };
    // The same delay as that of the policy: one hop.
    let bulk = Delay::from_seconds(8_192).unwrap();
    let alone = publish(&lab.settings, BACKLOG / 5, None, |_| message("bulk", bulk));
    println!("the router alone, {} messages: {alone:.0}/s", BACKLOG / 5);

    let mut session = Session::open(&lab.settings.broker).unwrap();
    let fill = fill(&mut session, &lab.settings);
    for (what, level) in [("its log at `warn`", "warn"), ("a line logged for each decision", "info")] {
        publish(&fill, BACKLOG, None, |_| message("bulk", Delay::ZERO));
        let service = serve(level);
        let mut left = || session.queue_depth("delay.retry").unwrap().unwrap().ready.unwrap();
        while left() == BACKLOG {
            thread::sleep(Duration::from_millis(20));
        }
        let (began, first) = (Instant::now(), left());
        while left() > 0 {
            assert!(began.elapsed() < Duration::from_secs(300), "{} are left", left());
            thread::sleep(Duration::from_millis(20));
        }
        let rate = f64::from(first) / began.elapsed().as_secs_f64();
        println!(
            "the service, {BACKLOG} failed messages of {BODY} bytes, {what}: {rate:.0}/s ({:.2} x the router alone), \
             most resident memory {:.1} MB",
            rate / alone,
            service.peak_memory()
        );
    }

    let _service = serve("warn");
    let consumer = inbox(&mut session);
    let [direct, through] = [&lab.settings, &fill].map(|settings| single(&consumer, settings));
    println!(
        "one at a time, no delay, from publishing to arriving, {SINGLE} messages: straight p50 {:.1} ms, p99 {:.1} ms; \
         through the service p50 {:.1} ms, p99 {:.1} ms",
        direct.0, direct.1, through.0, through.1
    );
}

fn message(app: &str, delay: Delay) -> Message {
    Message::after(AppKey::new(app).unwrap(), delay, vec![b'x'; BODY])
}

/// Settings whose entry leads straight into the retry queue, past all topic matching.
fn fill(session: &mut Session, settings: &Settings) -> Settings {
    session.declare_exchange(&Exchange::new("fill", ExchangeKind::Fanout)).unwrap();
    let destination = Endpoint::Queue("delay.retry".into());
    session.bind(&Binding { source: "fill".into(), destination, key: String::new() }).unwrap();
    let mut settings = settings.clone();
    settings.topology.set = "fill".parse().unwrap();
    settings
}

fn inbox(session: &mut Session) -> Consumer {
    let quorum = [("x-queue-type".to_owned(), "quorum".into())];
    session.declare_queue(&Queue::new("single").with_arguments(quorum)).unwrap();
    let key = RoutingKey::binding_pattern(&AppKey::new("single").unwrap());
    let destination = Endpoint::Queue("single".into());
    session.bind(&Binding { source: "delay.dispatch".into(), destination, key }).unwrap();
    session.consume("single", 10).unwrap()
}

/// From publishing to arriving, in ms: in the middle, and of the slowest per cent.
fn single(consumer: &Consumer, into: &Settings) -> (f64, f64) {
    let router = into.router().connect().unwrap();
    let mut times: Vec<_> = (0..SINGLE)
        .map(|_| {
            let started = Instant::now();
            router.publish(message("single", Delay::ZERO)).unwrap();
            match consumer.next(Duration::from_secs(10)) {
                Next::Delivery(delivery) => consumer.ack(delivery).unwrap(),
                other => panic!("{other:?}"),
            }
            started.elapsed()
        })
        .collect();
    times.sort_unstable();
    let at = |per_cent| percentile(&times, per_cent).expect("there are some").as_secs_f64() * 1_000.0;
    (at(50.0), at(99.0))
}
