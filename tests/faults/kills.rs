//! The node is killed again and again, with the broker's default settings. The run measures how
//! late the latest message is once the node is back.

use std::{
    process::{Child, Command, ExitCode, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use comfy_table::{CellAlignment, Table, presets::ASCII_MARKDOWN};
use delayline_settings::Settings;
use serde::Serialize;

use crate::{
    Args, UNIT_MS,
    consumer::Consumer,
    lab::{self, Lab},
    ledger::{Ledger, Place, clock_ms},
    publisher::{Delays, Job, Publisher},
    scenarios::{APP, Needs, declare_app},
    wait_for_arrivals,
};

/// The time limit for publishing half of the messages.
const PUBLISHING: Duration = Duration::from_secs(600);

/// The result of one kill.
#[derive(Debug, Serialize)]
struct Kill {
    confirmed: usize,
    lost: usize,
    early: usize,
    duplicated: usize,
    /// How long the latest message took in ms, from its due time or from the node's return,
    /// whichever was later.
    latest_ms: i64,
    /// How many messages took more than five seconds.
    late: usize,
}

#[derive(Debug, Serialize)]
struct Figures {
    broker: String,
    /// Whether `delayline serve` ran at the same time.
    served: bool,
    confirm_timeout_ms: u128,
    kills: Vec<Kill>,
}

/// Kills the node `kills` times, and waits each time until every message has arrived.
pub fn run(kills: u32, args: &Args) -> ExitCode {
    let mut lab = Lab::start(args.cluster, args.limit()).unwrap_or_else(|error| panic!("{error}"));
    let broker = format!("{} {}", lab.version(), if args.cluster { "three nodes" } else { "one node" });
    let values = [
        ("unit_ms", UNIT_MS.to_string()),
        ("heartbeat", "1".into()),
        ("connect_timeout", "3s".into()),
        ("publish_timeout", "2m".into()),
        ("confirm_timeout", "5s".into()),
    ];
    let layers = values.iter().fold(lab.layers(), |layers, (key, value)| layers.set(key, value));
    let settings = layers.build().expect("settings");
    let mut session = lab::install(&settings);
    declare_app(&mut session, &settings, APP, Needs::Nothing);
    drop(session);
    lab.write_down_queues();
    let _service = args.served.then(|| Service::start(&mut lab, &settings));
    let mut given: Vec<_> = values.map(|(key, value)| (key.to_owned(), value)).into();
    given.push(("url".into(), lab.node(0).url()));

    let mut figures = Figures {
        broker,
        served: args.served,
        confirm_timeout_ms: args.turn().as_millis(),
        kills: Vec::new(),
    };
    for number in 0..kills {
        let first = u64::from(number) * args.messages;
        let job = Job {
            settings: given.clone(),
            app: APP.into(),
            unit_ms: UNIT_MS,
            from: first,
            to: first + args.messages,
            rate: args.rate,
            delays: Delays::Mixed,
            recallable: false,
        };
        let kill = one(&mut lab, &settings, job, args);
        eprintln!("== {}, kill {}: {kill:?}", figures.broker, number + 1);
        figures.kills.push(kill);
    }
    print(&figures);
    if let Some(file) = &args.json {
        std::fs::write(file, serde_json::to_string_pretty(&figures).expect("JSON"))
            .expect("the file of figures");
    }
    let bad = figures.kills.iter().any(|kill| kill.lost > 0 || kill.early > 0 || kill.confirmed == 0);
    ExitCode::from(u8::from(bad))
}

fn one(lab: &mut Lab, settings: &Settings, job: Job, args: &Args) -> Kill {
    let half = usize::try_from((job.to - job.from) / 2).expect("a count");
    let ledger = Arc::new(Ledger::default());
    let consumer = Consumer::start(&settings.broker, APP, Arc::clone(&ledger), Place::Application);
    let publisher = Publisher::start(job, Vec::new(), Arc::clone(&ledger));
    let until = Instant::now() + PUBLISHING;
    while ledger.progress().0 < half {
        assert!(Instant::now() < until, "half of the messages are not published: {:?}", ledger.progress());
        thread::sleep(Duration::from_millis(20));
    }
    lab.node(0).kill();
    thread::sleep(Duration::from_secs(2));
    lab.node(0).restart().expect("the node starts again");
    let back = clock_ms();
    assert!(publisher.finish(), "the publisher failed");
    // The broker may wait for up to two turns of its timer.
    wait_for_arrivals(&ledger, args.turn() * 2 + Duration::from_secs(60));
    if ledger.progress().1 > 0 {
        lab.print_queues(settings);
    }
    drop(consumer);
    let totals = ledger.totals(back);
    let delays = ledger.delays_since(back);
    Kill {
        confirmed: totals.confirmed,
        lost: totals.lost,
        early: totals.early,
        duplicated: totals.duplicated,
        latest_ms: delays.iter().copied().max().unwrap_or(0),
        late: delays.iter().filter(|delay| **delay > 5_000).count(),
    }
}

/// `delayline serve`, as an operator starts it.
struct Service(Child);

impl Service {
    fn start(lab: &mut Lab, settings: &Settings) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_delayline"));
        let child = command
            .args(["serve", "--listen", "127.0.0.1:0"])
            .env("DELAYLINE_URL", lab.node(0).url())
            .env("DELAYLINE_MANAGEMENT_URL", lab.node(0).management_url())
            .env("DELAYLINE_UNIT_MS", settings.topology.unit.millis().to_string())
            .stdin(Stdio::null())
            .spawn()
            .expect("delayline serve");
        Self(child)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn print(figures: &Figures) {
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_header([
        "kill",
        "confirmed",
        "lost",
        "early",
        "twice",
        "latest",
        "over 5 s",
    ]);
    for (number, kill) in figures.kills.iter().enumerate() {
        table.add_row([
            (number + 1).to_string(),
            kill.confirmed.to_string(),
            kill.lost.to_string(),
            kill.early.to_string(),
            kill.duplicated.to_string(),
            format!("{:.1} s", kill.latest_ms as f64 / 1_000.0),
            kill.late.to_string(),
        ]);
    }
    for column in table.column_iter_mut() {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let with = if figures.served { "with" } else { "without" };
    println!(
        "\n{}, {with} delayline serve, confirm timeout {} ms\n{table}",
        figures.broker, figures.confirm_timeout_ms
    );
}
