//! A very large number of messages waits while the node is killed and started again.

use std::{
    process::{Command, ExitCode},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use delayline_core::ledger::percentile;
use delayline_settings::Settings;
use serde::Serialize;

use crate::{
    Args,
    consumer::Consumer,
    lab::{self, Lab},
    ledger::{Ledger, Place, Totals, clock_ms},
    publisher::{Delays, Job, Publisher},
    scenarios::{APP, Needs, declare_app},
    wait_for_arrivals,
};

const UNIT_MS: u64 = 1_000;

/// The app key of the messages that measure the lateness of short delays.
const PROBE: &str = "probe";

/// The time from the last message until the first falls due, for the measurements and the restart.
const PAUSE: Duration = Duration::from_secs(150);

#[derive(Debug, Serialize)]
struct Figures {
    broker: String,
    waiting: u64,
    /// The period over which the messages fall due.
    minutes: u64,
    publish_rate: f64,
    memory_per_message: f64,
    disk_per_message: f64,
    empty_start_s: f64,
    full_start_s: f64,
    /// Lateness of short delays: with no waiting messages, while all wait, after the restart, while
    /// they arrive.
    lateness_empty: Lateness,
    lateness_full: Lateness,
    lateness_restarted: Lateness,
    lateness_beside: Lateness,
    lateness_of_the_waiting: Lateness,
    #[serde(flatten)]
    totals: Totals,
}

/// Kills the node while the messages wait, and measures before, during and after.
pub fn run(messages: u64, args: &Args) -> ExitCode {
    let mut lab = Lab::start(false, args.limit()).unwrap_or_else(|error| panic!("{error}"));
    let broker = lab.version();
    let say = |what: &str| eprintln!("== {broker}: {what}");
    let values =
        [("unit_ms", UNIT_MS.to_string()), ("heartbeat", "5".into()), ("publish_timeout", "5m".into())];
    let layers = values.iter().fold(lab.layers(), |layers, (key, value)| layers.set(key, value));
    let settings = layers.build().expect("settings");
    let mut session = lab::install(&settings);
    for app in [APP, PROBE] {
        declare_app(&mut session, &settings, app, Needs::Nothing);
    }
    drop(session);
    lab.write_down_queues();
    let mut given = vec![("url".to_owned(), lab.node(0).url())];
    given.extend(values.map(|(key, value)| (key.to_owned(), value)));
    let given = Given { settings, given };

    let empty_start_s = restart(&mut lab);
    say("short delays while nothing else waits");
    let lateness_empty = given.probe();

    let before = Size::of(&mut lab);
    say(&format!("publishing {messages}"));
    let ledger = Arc::new(Ledger::default());
    let due = clock_ms() + millis(Duration::from_secs(messages / args.rate) + PAUSE);
    let over = millis(Duration::from_secs(args.over * 60));
    let started = Instant::now();
    let delays = Delays::Between(due, due + over);
    assert!(
        given.publish(APP, messages, args.rate, delays, &ledger).finish(),
        "not everything was published"
    );
    let publish_rate = messages as f64 / started.elapsed().as_secs_f64();
    say(&format!("{publish_rate:.0}/s; short delays while they wait"));
    let lateness_full = given.probe();
    let after = Size::of(&mut lab);

    say("killing the node");
    let full_start_s = restart(&mut lab);
    say(&format!("it serves again after {full_start_s:.1} s; short delays"));
    let lateness_restarted = given.probe();
    let ahead = due - clock_ms();
    say(&format!(
        "the first falls due in {} s, and from then on they do for {} min",
        ahead / 1_000,
        args.over
    ));
    let consumer = Consumer::start(&given.settings.broker, APP, Arc::clone(&ledger), Place::Application);
    sleep_until(due + over / 4);
    say("short delays beside them");
    let lateness_beside = given.probe();
    sleep_until(due + over);
    wait_for_arrivals(&ledger, args.patience());
    drop(consumer);

    let per_message = |after: u64, before: u64| (after as f64 - before as f64) / messages as f64;
    let figures = Figures {
        waiting: messages,
        minutes: args.over,
        publish_rate,
        memory_per_message: per_message(after.memory, before.memory),
        disk_per_message: per_message(after.disk, before.disk),
        empty_start_s,
        full_start_s,
        lateness_empty,
        lateness_full,
        lateness_restarted,
        lateness_beside,
        lateness_of_the_waiting: Lateness::of(&ledger),
        totals: ledger.totals(due),
        broker,
    };
    let text = serde_json::to_string_pretty(&figures).expect("JSON");
    println!("{text}");
    if let Some(file) = &args.json {
        std::fs::write(file, &text).expect("the file of figures");
    }
    let Totals { confirmed, lost, early, .. } = figures.totals;
    ExitCode::from(u8::from(lost > 0 || early > 0 || confirmed as u64 != messages))
}

/// The settings of this process and of its publishers.
struct Given {
    settings: Settings,
    given: Vec<(String, String)>,
}

impl Given {
    fn publish(
        &self,
        app: &str,
        messages: u64,
        rate: u64,
        delays: Delays,
        ledger: &Arc<Ledger>,
    ) -> Publisher {
        let settings = self.given.clone();
        let job = Job {
            settings,
            app: app.into(),
            unit_ms: UNIT_MS,
            from: 0,
            to: messages,
            rate,
            delays,
            recallable: false,
        };
        Publisher::start(job, Vec::new(), Arc::clone(ledger))
    }

    /// The lateness of 400 messages with delays of one to eight seconds, 20 a second.
    fn probe(&self) -> Lateness {
        let ledger = Arc::new(Ledger::default());
        let consumer = Consumer::start(&self.settings.broker, PROBE, Arc::clone(&ledger), Place::Application);
        assert!(self.publish(PROBE, 400, 20, Delays::Short, &ledger).finish(), "a short delay was not taken");
        wait_for_arrivals(&ledger, Duration::from_secs(60));
        drop(consumer);
        Lateness::of(&ledger)
    }
}

#[derive(Debug, Serialize)]
struct Lateness {
    arrived: usize,
    p50_ms: i64,
    p99_ms: i64,
    most_ms: i64,
}

impl Lateness {
    fn of(ledger: &Ledger) -> Self {
        let sorted = ledger.lateness_ms();
        let [p50_ms, p99_ms, most_ms] =
            [50.0, 99.0, 100.0].map(|per_cent| percentile(&sorted, per_cent).unwrap_or(0));
        Self { arrived: sorted.len(), p50_ms, p99_ms, most_ms }
    }
}

/// The memory and disk space of a node, in bytes.
struct Size {
    memory: u64,
    disk: u64,
}

impl Size {
    fn of(lab: &mut Lab) -> Self {
        let node = lab.node(0);
        let output = Command::new("du").args(["-sb".as_ref(), node.directory()]).output().expect("du");
        let text = String::from_utf8_lossy(&output.stdout);
        let disk = text.split_whitespace().next().and_then(|number| number.parse().ok()).expect("a size");
        Self { memory: node.resident_memory().expect("a size"), disk }
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).expect("a time")
}

fn sleep_until(clock: i64) {
    while clock_ms() < clock {
        thread::sleep(Duration::from_millis(100));
    }
}

/// Kills the node, and returns the seconds until it serves again.
fn restart(lab: &mut Lab) -> f64 {
    lab.node(0).kill();
    let started = Instant::now();
    lab.node(0).restart().expect("the node starts again");
    started.elapsed().as_secs_f64()
}
