//! What a daemon costs that has nothing to do: its share of a core and its memory with the
//! canary, the page and the metrics on, scraped every 15 s; alone, and with somebody who
//! looks at the page. And how many messages a second its canary adds to the broker.
//!
//!     cargo bench --bench daemon             # a minute each
//!     SECONDS=600 cargo bench --bench daemon

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use delayline_admin::{self as admin, management::ManagementApi};
use delayline_core::topology::Topology;
use delayline_node::{NodeOptions, PrivateNode, usage};
use delayline_settings::Settings;

/// How often Prometheus scrapes.
const SCRAPE: Duration = Duration::from_secs(15);

/// How long the daemon gets to begin.
const WARM_UP: Duration = Duration::from_secs(150);

fn main() {
    // `cargo test` passes this.
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    let seconds = std::env::var("SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(60);
    let time = Duration::from_secs(seconds);
    let node = PrivateNode::start(NodeOptions::default()).expect("a private node");
    let settings = node.settings().build().unwrap();
    admin::install(&settings, &Topology::new(settings.topology.clone()), false, || {}).unwrap();
    let api = ManagementApi::new(settings.management.as_ref().unwrap()).unwrap();
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    println!("RabbitMQ {}; load before: {}", api.overview().unwrap().rabbitmq_version, load.trim());
    for (what, arguments) in
        [("everything on", &[][..]), ("without canary and page", &["--no-canary", "--no-web"])]
    {
        let daemon = Daemon::start(&settings, &node.management_url(), arguments);
        let looked_at = arguments.is_empty();
        println!("\n{what}, {seconds} s:");
        // Until canaries have come through every level, and the allocator knows its size.
        daemon.pass(if looked_at { WARM_UP } else { Duration::from_secs(10) }, looked_at, false);
        let before = entered(&api, &settings);
        let (cpu, memory) = daemon.pass(time, looked_at, false);
        println!("  nobody looks: {:.2} % of a core, {memory:.1} MB resident", cpu * 100.0);
        if looked_at {
            let added = entered(&api, &settings) - before;
            #[expect(clippy::cast_precision_loss, reason = "a number of messages")]
            let rate = added as f64 / time.as_secs_f64();
            println!("  the canary publishes and has moved {rate:.2} messages/s, all queues counted");
            let (cpu, memory) = daemon.pass(time, true, true);
            println!("  a page is open: {:.2} % of a core, {memory:.1} MB resident", cpu * 100.0);
        }
    }
}

/// Messages that canaries entered into queues so far: they are the only ones. The broker
/// counts what is published, and each goes through as many levels as it has bits.
fn entered(api: &ManagementApi, settings: &Settings) -> u64 {
    // A round of ten has 21 levels and ten arrivals; the broker's own count has the
    // publishes alone.
    let queues = api.queues(&settings.broker.vhost).unwrap();
    let published: u64 = queues.iter().map(|queue| queue.message_stats.publish).sum();
    published * 31 / 10
}

struct Daemon {
    child: Child,
    address: Option<String>,
    _directory: tempfile::TempDir,
}

impl Daemon {
    fn start(settings: &Settings, management: &str, arguments: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("log");
        let child = Command::new(env!("CARGO_BIN_EXE_delayline"))
            .arg("serve")
            .args(if arguments.is_empty() { &["--listen=127.0.0.1:0"][..] } else { arguments })
            .current_dir(directory.path())
            .env("DELAYLINE_URL", format!("amqp://guest:guest@127.0.0.1:{}", settings.broker.port))
            .env("DELAYLINE_MANAGEMENT_URL", management)
            .stdin(Stdio::null())
            .stderr(fs::File::create(&log).unwrap())
            .spawn()
            .unwrap();
        let mut address = None;
        while arguments.is_empty() && address.is_none() {
            thread::sleep(Duration::from_millis(50));
            let text = fs::read_to_string(&log).unwrap();
            address = text
                .split_once("page at http://")
                .and_then(|(_, rest)| Some(rest.split_once('/')?.0.to_owned()));
        }
        Self { child, address, _directory: directory }
    }

    /// Lets time pass. Returns the share of a core that it used, and the most memory in MB.
    fn pass(&self, time: Duration, scraped: bool, looked_at: bool) -> (f64, f64) {
        let (began, cpu) = (Instant::now(), self.cpu());
        let (mut scrape, mut most) = (began, 0.0_f64);
        while began.elapsed() < time {
            if scraped && Instant::now() >= scrape {
                scrape += SCRAPE;
                self.get("/metrics");
            }
            if looked_at {
                self.get("/api/picture");
            }
            most = most.max(self.memory());
            thread::sleep(Duration::from_secs(1).min(time));
        }
        ((self.cpu() - cpu) / began.elapsed().as_secs_f64(), most)
    }

    fn get(&self, path: &str) {
        let Some(address) = &self.address else { return };
        let mut stream = TcpStream::connect(address).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }

    /// Seconds so far.
    fn cpu(&self) -> f64 {
        usage::cpu_seconds(self.child.id()).expect("it runs")
    }

    /// In MB.
    fn memory(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "megabytes")]
        let megabytes = usage::resident_bytes(self.child.id()).expect("it runs") as f64 / 1_048_576.0;
        megabytes
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
