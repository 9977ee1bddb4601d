//! Moving messages that wait: from a classic set, and from the layouts of NServiceBus and kombu,
//! to a quorum set, by the command itself, which is killed once on the way and run again. How
//! many a second, and whether any is lost or early, and how late.
//!
//!     cargo bench --bench transfer                      # 20,000 messages each
//!     COUNT=200000 cargo bench --bench transfer
//!     SOURCES=set,nservicebus cargo bench --bench transfer
//!     DELAYS=600,1800 cargo bench --bench transfer      # in seconds; by default 300,420
//!
//! kombu's layout is declared by kombu itself: TEST_PYTHON names a Python that has it. In the
//! layouts of others a message enters at its first set bit. kombu enters at the highest level,
//! from where 27 exchanges pass it on to the same queue: what waits is the same, and filling the
//! layout does not take longer than the delays.

#[path = "../tests/common/mod.rs"]
mod common;
#[allow(dead_code, reason = "the tests use more of it")]
#[path = "../tests/broker/others/mod.rs"]
mod others;

use std::{
    fs,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use delayline_admin::Layout;
use delayline_amqp::Session;
use delayline_core::{
    Message,
    codec::{AppKey, Delay, Level},
    message::Value,
    topology::{QueueType, Topology},
};
use delayline_measure::ledger::percentile;
use delayline_settings::Settings;
use jiff::Timestamp;

use common::{Inbox, install, shared_node, vhost};

/// The shortest and the longest delay, in seconds: long enough that nothing is due while messages
/// are moved.
type Delays = (u64, u64);

/// Where the messages come from.
#[derive(Debug, Clone, Copy, PartialEq)]
enum From {
    Set,
    NServiceBus,
    Kombu,
}

fn main() {
    // `cargo test` passes this.
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    let count: u32 = std::env::var("COUNT").ok().and_then(|text| text.parse().ok()).unwrap_or(20_000);
    let sources = std::env::var("SOURCES").unwrap_or_else(|_| "set,nservicebus,kombu".into());
    let delays: Delays = std::env::var("DELAYS").map_or((300, 420), |text| {
        let numbers =
            text.split_once(',').and_then(|(from, to)| Some((from.parse().ok()?, to.parse().ok()?)));
        numbers.filter(|(from, to)| from < to).unwrap_or_else(|| panic!("DELAYS is like 300,420, not {text}"))
    });
    let cores = thread::available_parallelism().map_or(0, usize::from);
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let version =
        Session::open(&vhost().build().unwrap().broker).unwrap().server_version().unwrap_or_default();
    println!(
        "RabbitMQ {version} on one private node, {cores} cores shared by all; load before: {}",
        load.trim()
    );
    println!(
        "{count} messages each of {} to {} s, published as fast as it goes, then moved to a quorum set by a command \
         that is killed once",
        delays.0, delays.1
    );
    // All wait side by side, so that the waiting is done once.
    let moved: Vec<_> = [("set", From::Set), ("nservicebus", From::NServiceBus), ("kombu", From::Kombu)]
        .into_iter()
        .filter(|(name, _)| sources.split(',').any(|wanted| wanted == *name))
        .map(|(_, from)| (from, move_all(from, count, delays)))
        .collect();
    // Each when it comes, and not when another is done.
    let judged: Vec<_> =
        moved.into_iter().map(|(from, inbox)| thread::spawn(move || judge(from, &inbox, count))).collect();
    judged.into_iter().for_each(|judged| judged.join().unwrap());
}

/// Fills a source, moves everything, and returns where it will arrive.
fn move_all(from: From, count: u32, delays: Delays) -> Inbox {
    let to = vhost().set("set", "later").build().unwrap();
    install(&to);
    let inbox = Inbox::open(&to, "app");
    let mut source = to.clone();
    (source.topology.set, source.topology.queue_type) = ("delay".parse().unwrap(), QueueType::Classic);
    let mut session = Session::open(&source.broker).unwrap();
    let (name, layout) = match from {
        From::Set => {
            install(&source);
            ("delay", None)
        }
        From::NServiceBus => ("nservicebus", Some(others::nservicebus(&mut session, 1_000))),
        From::Kombu => {
            others::kombu(&source, 1_000, "app", &[]);
            ("celery", Some(Layout::celery(None)))
        }
    };
    let published = fill(&source, layout.as_ref(), count, delays);
    let began = Instant::now();
    let mut child = transfer(&to, name);
    while began.elapsed() < Duration::from_secs(3) || moved(&to) < count / 4 {
        assert!(began.elapsed() < Duration::from_secs(delays.0), "nothing moves before messages are due");
        thread::sleep(Duration::from_millis(100));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let before = moved(&to);
    let again = Instant::now();
    // The broker gives back what the killed process held.
    let mut runs = 1;
    loop {
        let status = transfer(&to, name).wait().unwrap();
        runs += 1;
        if status.success() || runs > 5 {
            break;
        }
    }
    let rate = f64::from(moved(&to).saturating_sub(before)) / again.elapsed().as_secs_f64();
    println!(
        "{from:?}: published at {published:.0}/s; killed after {before}; moved at {rate:.0}/s, {:.0} s in all, {runs} runs",
        began.elapsed().as_secs_f64()
    );
    inbox
}

/// Publishes as a client of that source does. Returns how many a second.
fn fill(settings: &Settings, layout: Option<&Layout>, count: u32, delays: Delays) -> f64 {
    let router = settings.router().connect().unwrap();
    let mut pipeline = router.pipeline();
    let app = AppKey::new("app").unwrap();
    let started = Instant::now();
    for id in 0..count {
        let seconds = delays.0 + u64::from(id).wrapping_mul(7_919) % (delays.1 - delays.0);
        let delay = Delay::from_seconds(seconds).unwrap();
        let now = Timestamp::now();
        let due = now.as_millisecond() + i64::try_from(seconds * 1_000).unwrap();
        let mut message = match layout {
            None => Message::after(app.clone(), delay, "x"),
            Some(layout) => {
                let highest = Level::all().rev().find(|level| delay.seconds() & level.units() != 0);
                let key = layout.key(delay, "app");
                let mut message = Message::keyed(app.clone(), layout.level(highest.unwrap()), key, "x");
                let headers = &mut message.headers;
                if layout.is_nservicebus() {
                    let sent = now.strftime("%Y-%m-%d %H:%M:%S:%6f Z").to_string();
                    headers.insert("NServiceBus.TimeSent".into(), sent.into());
                    let header = "NServiceBus.Transport.RabbitMQ.DelayInSeconds";
                    headers.insert(header.into(), Value::I32(i32::try_from(seconds).unwrap()));
                } else {
                    let eta = Timestamp::from_millisecond(due).unwrap();
                    headers
                        .insert("eta".into(), eta.strftime("%Y-%m-%dT%H:%M:%S%.6f+00:00").to_string().into());
                }
                message
            }
        };
        message.properties.message_id = Some(id.to_string());
        message.headers.insert("truly-due".into(), Value::I64(due));
        if let Some(outcome) = pipeline.push((), message) {
            outcome.result.unwrap();
        }
    }
    assert!(pipeline.all(|outcome| outcome.result.is_ok()));
    f64::from(count) / started.elapsed().as_secs_f64()
}

fn transfer(settings: &Settings, from: &str) -> Child {
    Command::new(env!("CARGO_BIN_EXE_delayline"))
        .args(["transfer", from, "later"])
        .env(
            "DELAYLINE_URL",
            format!("amqp://guest@127.0.0.1:{}/{}", settings.broker.port, settings.broker.vhost),
        )
        .env("DELAYLINE_PASSWORD", "guest")
        .env("DELAYLINE_MANAGEMENT_URL", shared_node().management_url())
        .current_dir(std::env::temp_dir())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// How many messages wait in the destination.
fn moved(to: &Settings) -> u32 {
    let mut session = Session::open(&to.broker).unwrap();
    let topology = Topology::new(to.topology.clone());
    let levels = topology.queues().filter(|queue| queue.level.is_some());
    levels.map(|queue| session.queue_depth(&queue.name).unwrap().map_or(0, |depth| depth.ready)).sum()
}

/// Waits for everything, and says what came of it.
fn judge(from: From, inbox: &Inbox, count: u32) {
    let mut seen = vec![false; count as usize];
    let (mut left, mut twice, mut early, mut late) = (count, 0_u32, 0_u32, Vec::new());
    while left > 0 {
        let Some(arrival) = inbox.next(Duration::from_secs(600)) else { break };
        let id: usize = arrival.id.parse().unwrap();
        if std::mem::replace(&mut seen[id], true) {
            twice += 1;
            continue;
        }
        left -= 1;
        let due = arrival.headers["truly-due"].as_i64().unwrap();
        let by = arrival.at.as_millisecond() - due;
        early += u32::from(by < 0);
        late.push(by);
    }
    late.sort_unstable();
    let at = |per_cent| percentile(&late, per_cent).unwrap_or(0);
    println!(
        "{from:?}: {left} lost, {twice} twice, {early} early; late by p50 {} ms, p99 {} ms, max {} ms",
        at(50.0),
        at(99.0),
        at(100.0)
    );
}
