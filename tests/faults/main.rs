//! Applies faults to a broker while messages are published, wait and arrive. A ledger finds lost,
//! duplicated and early messages. The tests run a short form, and `scripts/faults` runs the long
//! one.
//!
//! It has its own `main`, because it also runs as the publisher that is killed.

#![allow(unreachable_pub, reason = "no other crate uses a test")]

mod consumer;
mod help;
mod kills;
mod lab;
mod ledger;
mod publisher;
mod recaller;
mod report;
mod scenarios;
mod schedules;

use std::{
    path::PathBuf,
    process::ExitCode,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use clap::Parser;
use delayline_core::topology::Topology;
use delayline_settings::{Layers, Settings};
use tempfile::TempDir;

use consumer::Consumer;
use help::Help;
use lab::Lab;
use ledger::{Ledger, Place, Totals, clock_ms};
use publisher::{Delays, Job, Publisher};
use recaller::Recallers;
use report::Line;
use scenarios::{APP, Needs, SCENARIOS, Scenario, Stage};

/// The time limit for publishing the first quarter.
const PUBLISHING: Duration = Duration::from_secs(600);

/// The time after which a broker with default settings tries a hand-over again.
const AS_SHIPPED: Duration = Duration::from_secs(180);

/// The length of a unit in milliseconds: levels 0 to 6 hold messages for up to 12.8 s.
const UNIT_MS: u64 = 100;

#[derive(Debug, Parser)]
#[command(
    name = "scripts/faults",
    override_usage = "scripts/faults [OPTIONS] [NAMES]...",
    about = "Faults on a private broker or cluster, with a ledger of every message",
    after_help = "\
Examples:
  scripts/faults                                  all of it, on every broker at hand
  scripts/faults --versions 4.3                   only this broker
  scripts/faults --cluster partition              one fault, on the clusters
  scripts/faults --recall --messages 100000       a tenth is recalled while nodes are killed
  scripts/faults --schedules 1000 --over 30       schedules, with two daemons that are killed in turn
  scripts/faults --kills 10 --as-shipped --served
                                                  how late the latest message is after a kill, with
                                                  the broker's own settings and `delayline serve`

The script itself asks for --all, --messages 13000, --rate 800 and
--json target/faults/<version>.json, unless you say otherwise.
Exit codes: 0 done; 1 a message was lost or early, or messages were stuck until they got help
that this version of the broker is not known to need; 2 wrong usage.",
    args_override_self = true
)]
struct Args {
    /// Only faults whose names contain any of these words; by default the short form
    names: Vec<String>,
    /// All faults
    #[arg(long)]
    all: bool,
    /// Only faults in which four processes recall messages
    #[arg(long)]
    recall: bool,
    /// On one node
    #[arg(long)]
    single: bool,
    /// On a cluster of three
    #[arg(long)]
    cluster: bool,
    /// Messages per fault
    #[arg(long, default_value_t = 600)]
    messages: u64,
    /// Messages per second
    #[arg(long, default_value_t = 300)]
    rate: u64,
    /// The broker's time limit for a hand-over between queues, in milliseconds
    /// (`dead_letter_worker_publisher_confirm_timeout`; 180000 by default)
    #[arg(long, default_value_t = 10_000)]
    confirm_timeout: u64,
    /// With the broker's default settings, instead of `--confirm-timeout`
    #[arg(long)]
    as_shipped: bool,
    /// Instead of the faults: kills the node this many times, and reports how late the latest
    /// message is once the node is back
    #[arg(long)]
    kills: Option<u32>,
    /// With --kills: also runs `delayline serve`
    #[arg(long, requires = "kills")]
    served: bool,
    /// Instead of the faults: this many schedules of a minute, while two daemons are killed in turn and the
    /// node once
    #[arg(long)]
    schedules: Option<u64>,
    /// Minutes for which schedules run
    #[arg(long, default_value_t = 10)]
    over: u64,
    /// Also writes the figures to this file, as JSON
    #[arg(long)]
    json: Option<PathBuf>,
    // An option that is often passed to all test binaries.
    #[arg(long, hide = true)]
    nocapture: bool,
    #[arg(long, short, hide = true)]
    quiet: bool,
    #[arg(long, hide = true)]
    exact: bool,
    #[arg(long, hide = true)]
    test_threads: Option<u32>,
    #[arg(long, hide = true)]
    skip: Vec<String>,
}

impl Args {
    fn wants(&self, scenario: &Scenario, cluster: bool) -> bool {
        let holds = |names: &[String]| names.iter().any(|name| scenario.name.contains(name.as_str()));
        let named = match self.names.is_empty() {
            true => self.all || SHORT.contains(&scenario.name),
            false => holds(&self.names),
        };
        named && !holds(&self.skip) && scenario.needs.can_have(cluster)
    }

    /// The broker's time limit for a hand-over in milliseconds; `None` for the broker's default.
    fn limit(&self) -> Option<u64> {
        (!self.as_shipped).then_some(self.confirm_timeout)
    }

    /// How long to wait for a missing message: longer than the time after which the broker tries a
    /// hand-over again, and than a divided cluster takes to recover (58 s on a busy machine).
    fn patience(&self) -> Duration {
        let many = if self.as_shipped { 3 } else { 18 };
        self.turn().max(Duration::from_secs(10)) * many
    }

    /// The time after which the broker tries a hand-over again.
    fn turn(&self) -> Duration {
        self.limit().map_or(AS_SHIPPED, Duration::from_millis)
    }
}

fn main() -> ExitCode {
    if let Ok(job) = std::env::var(publisher::JOB) {
        publisher::publish(&serde_json::from_str(&job).expect("a job"));
        return ExitCode::SUCCESS;
    }
    if let Ok(settings) = std::env::var(recaller::JOB) {
        recaller::recall(&serde_json::from_str(&settings).expect("settings"));
        return ExitCode::SUCCESS;
    }
    let mut args = Args::parse();
    // Cargo starts tests in the directory of their package, but paths are relative to the
    // repository.
    std::env::set_current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
        .expect("the top of the repository");
    if args.recall {
        args.names = vec!["recall".into()];
    }
    if let Some(kills) = args.kills {
        return kills::run(kills, &args);
    }
    if let Some(number) = args.schedules {
        return schedules::run(number, &args);
    }
    // Without `--all`, unknown names are ignored: the test runner passes the names of other tests,
    // too.
    let known = |name: &String| SCENARIOS.iter().any(|scenario| scenario.name.contains(name.as_str()));
    if let Some(unknown) = args.names.iter().find(|name| args.all && !known(name)) {
        let names = SCENARIOS.map(|scenario| scenario.name).join(", ");
        eprintln!("error: there is no fault `{unknown}`; the faults are {names}");
        return ExitCode::from(2);
    }
    let both = args.single == args.cluster;
    let mut lines = Vec::new();
    for cluster in [false, true] {
        if both || cluster == args.cluster {
            lines.extend(run_all(&args, cluster));
        }
    }
    report::print(&lines);
    if let Some(file) = &args.json {
        std::fs::write(file, serde_json::to_string_pretty(&lines).expect("JSON"))
            .expect("the file of figures");
    }
    let bad = lines.iter().filter(|line| !line.holds()).count();
    // The same words as those of `cargo test`, because scripts/test counts them.
    println!(
        "\ntest result: {}. {} passed; {bad} failed; 0 ignored;",
        if bad == 0 { "ok" } else { "FAILED" },
        lines.len() - bad
    );
    ExitCode::from(u8::from(bad > 0))
}

/// The faults that the tests apply.
const SHORT: [&str; 5] = ["node-killed", "publisher-killed", "leader-killed", "partition", "recall"];

fn run_all(args: &Args, cluster: bool) -> Vec<Line> {
    let wanted: Vec<_> = SCENARIOS.iter().filter(|scenario| args.wants(scenario, cluster)).collect();
    if wanted.is_empty() {
        return Vec::new();
    }
    let mut lab = Lab::start(cluster, args.limit()).unwrap_or_else(|error| panic!("{error}"));
    let broker = format!("{} {}", lab.version(), if cluster { "three nodes" } else { "one node" });
    wanted
        .into_iter()
        .enumerate()
        .filter_map(|(number, scenario)| {
            if scenario.needs == Needs::Separable && !lab.is_separable() {
                println!("NOT TESTED: {} on a cluster ({})", scenario.name, scenario.what);
                return None;
            }
            eprintln!("== {broker}: {}, {}", scenario.name, scenario.what);
            let started = Instant::now();
            let totals = run(&mut lab, scenario, args, number);
            let line = Line { broker: broker.clone(), fault: scenario.name.into(), totals };
            eprintln!("   {} s: {}", started.elapsed().as_secs(), line.summary());
            Some(line)
        })
        .collect()
}

/// Runs one scenario in its own vhost.
fn run(lab: &mut Lab, scenario: &Scenario, args: &Args, number: usize) -> Totals {
    let vhost = format!("fault-{number}");
    // All in one step, because each call of `rabbitmqctl` takes a second of processor time.
    let evaluate = |lab: &mut Lab, code: &str| {
        let code = code.replace("VHOST", &format!("<<\"{vhost}\">>"));
        lab.node(0).tell(&["eval", &code]).expect("the node runs the expression")
    };
    evaluate(
        lab,
        "rabbit_vhost:add(VHOST, <<>>), All = <<\".*\">>, \
         rabbit_auth_backend_internal:set_permissions(<<\"guest\">>, VHOST, All, All, All, <<>>).",
    );

    let url = format!("{}/{vhost}", lab.node(0).url());
    let values = [
        ("url", url),
        ("unit_ms", UNIT_MS.to_string()),
        ("heartbeat", "1".into()),
        ("connect_timeout", "3s".into()),
        ("publish_timeout", "2m".into()),
        ("confirm_timeout", "5s".into()),
    ];
    let settings = values.iter().fold(lab.layers(), |layers: Layers, (key, value)| layers.set(key, value));
    let settings: Settings = settings.build().expect("settings");
    let topology = Topology::new(settings.topology.clone());
    let mut session = lab::install(&settings);
    scenarios::declare_app(&mut session, &settings, APP, scenario.needs);
    let recalling = scenario.needs == Needs::Recall;
    if recalling {
        recaller::offer(&mut session, &topology, APP);
    }
    drop(session);
    lab.write_down_queues();

    let ledger = Arc::new(Ledger::default());
    let consumer = Consumer::start(&settings.broker, APP, Arc::clone(&ledger), Place::Application);
    let unroutable =
        Consumer::start(&settings.broker, "delay.unroutable", Arc::clone(&ledger), Place::Unroutable);
    let recalled = format!("delay.recalled.{APP}");
    let recalled =
        recalling.then(|| Consumer::start(&settings.broker, &recalled, Arc::clone(&ledger), Place::Recalled));
    let directory = TempDir::new().expect("a directory");
    let clock_file = directory.path().join("clock");
    let clock = if scenario.needs == Needs::MovedClock { moved_clock(&clock_file) } else { Vec::new() };
    let other_hosts: Vec<_> =
        settings.broker.other_hosts.iter().map(|(host, port)| format!("{host}:{port}")).collect();
    let mut publisher_settings: Vec<_> =
        values.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect();
    if !other_hosts.is_empty() {
        publisher_settings.push(("other_hosts".into(), other_hosts.join(",")));
    }
    let (handles, recallers) = match recalling {
        true => Recallers::start(&publisher_settings, &ledger),
        false => (None, None),
    };
    let job = Job {
        settings: publisher_settings,
        app: APP.into(),
        unit_ms: UNIT_MS,
        from: 0,
        to: args.messages,
        rate: if recalling { recaller::rate(args) } else { args.rate },
        delays: if recalling { Delays::UpTo(recaller::longest(args)) } else { Delays::Mixed },
        recallable: recalling,
    };
    let mut publisher = Publisher::telling(job, clock, Arc::clone(&ledger), handles);

    // The fault starts in the middle of the publishing.
    let until = Instant::now() + PUBLISHING;
    while ledger.progress().0 < usize::try_from(args.messages / 4).expect("a count") {
        assert!(
            Instant::now() < until,
            "a quarter of the messages is not published: {:?}",
            ledger.progress()
        );
        thread::sleep(Duration::from_millis(20));
    }
    let mut stage = Stage {
        ledger: &ledger,
        messages: args.messages,
        lab,
        settings: &settings,
        publisher: &mut publisher,
        consumer: &consumer,
        clock_file: &clock_file,
    };
    (scenario.run)(&mut stage);
    let healed = clock_ms();
    assert!(publisher.finish(), "the publisher failed");
    if let Some(recallers) = recallers {
        recallers.finish();
    }
    wait_for_arrivals(&ledger, args.patience());
    // The help that an operator would give, the smallest first. Messages that are still missing
    // afterwards are lost.
    for help in Help::ALL {
        if ledger.progress().1 == 0 {
            break;
        }
        lab.print_queues(&settings);
        eprintln!("   helping: {help}");
        match help {
            Help::SubscribeAgain => {
                consumer.subscribe_again();
                unroutable.subscribe_again();
                recalled.iter().for_each(Consumer::subscribe_again);
            }
            Help::Unstick => lab.unstick(&settings),
            Help::Restart => lab.restart_leaders_of_stuck_levels(&settings),
        }
        ledger.note_help(help);
        wait_for_arrivals(&ledger, args.patience());
    }
    if ledger.progress().1 > 0 {
        lab.print_queues(&settings);
    }
    drop((consumer, unroutable, recalled));
    let totals = ledger.totals(healed);
    evaluate(lab, "rabbit_vhost:delete(VHOST, <<>>).");
    totals
}

/// Waits until every message and every duplicate has arrived.
fn wait_for_arrivals(ledger: &Ledger, patience: Duration) {
    let started = Instant::now();
    loop {
        let silence =
            ledger.silence_ms().map_or(Duration::MAX, |ms| Duration::from_millis(ms.unsigned_abs()));
        let silence = silence.min(started.elapsed());
        let limit = if ledger.progress().1 == 0 { Duration::from_secs(3) } else { patience };
        if silence > limit {
            return;
        }
        thread::sleep(Duration::from_millis(100));
    }
}

/// The environment for a process whose clock is set by a file.
fn moved_clock(file: &std::path::Path) -> Vec<(String, String)> {
    let library = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu"]
        .iter()
        .map(|directory| PathBuf::from(directory).join("faketime/libfaketimeMT.so.1"))
        .find(|library| library.exists())
        .expect("libfaketime, from Debian's package of that name");
    std::fs::write(file, "+0").expect("the file that sets the clock");
    [
        ("LD_PRELOAD", library.display().to_string()),
        ("FAKETIME_TIMESTAMP_FILE", file.display().to_string()),
        ("FAKETIME_CACHE_DURATION", "1".into()),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1".into()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}
