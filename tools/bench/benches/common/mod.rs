//! A private node with a set, and the command `delayline` on it.

#![allow(dead_code, reason = "each benchmark uses a part of it")]

use std::{
    env, fs,
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use delayline_admin as admin;
use delayline_amqp::Session;
use delayline_core::{Message, topology::Topology};
use delayline_node::{NodeOptions, PrivateNode, usage};
use delayline_settings::Settings;

/// The bytes of a body.
pub(crate) const BODY: usize = 256;

/// A private node with a set.
pub(crate) struct Lab {
    pub(crate) node: PrivateNode,
    pub(crate) settings: Settings,
    pub(crate) topology: Topology,
}

impl Lab {
    /// Starts it and prints the conditions. `None` unless `cargo bench` runs this.
    pub(crate) fn start() -> Option<Self> {
        if !asked("--bench") {
            return None;
        }
        let node = PrivateNode::start(NodeOptions::default()).expect("a private node");
        let settings = node.settings().build().unwrap();
        let version = Session::open(&settings.broker).unwrap().server_version().unwrap_or_default();
        let cores = thread::available_parallelism().map_or(0, usize::from);
        let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let load = load.trim();
        println!(
            "RabbitMQ {version} on one private node, over loopback; {cores} cores shared by all; load before: {load}"
        );
        let topology = Topology::new(settings.topology.clone());
        admin::install(&settings, &topology, false, || {}).unwrap();
        Some(Self { node, settings, topology })
    }

    /// The command `delayline` with the settings of this node.
    pub(crate) fn delayline(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(delayline());
        command
            .args(arguments)
            .current_dir(env::temp_dir())
            .env("DELAYLINE_URL", self.node.url())
            .env("DELAYLINE_MANAGEMENT_URL", self.node.management_url())
            .stdin(Stdio::null());
        command
    }

    /// Starts `delayline serve` with a log of this level.
    pub(crate) fn serve(&self, arguments: &[&str], level: &str, log: fs::File) -> Daemon {
        let mut command = self.delayline(&["serve"]);
        Daemon(command.args(arguments).env("DELAYLINE_LOG", level).stderr(log).spawn().unwrap())
    }
}

/// Whether the arguments contain this word.
pub(crate) fn asked(word: &str) -> bool {
    env::args().any(|argument| argument == word)
}

/// A number from the environment.
pub(crate) fn number(name: &str, default: u32) -> u32 {
    env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is no number")))
}

/// The program `delayline`, built from the sources as they are and optimised as this is.
fn delayline() -> PathBuf {
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--quiet", "--package", "delayline-cli"]);
    if !cfg!(debug_assertions) {
        build.arg("--release");
    }
    assert!(build.status().unwrap().success());
    env::current_exe().unwrap().ancestors().nth(2).unwrap().join("delayline")
}

/// A process that is killed when this is dropped.
pub(crate) struct Daemon(Child);

impl Daemon {
    /// CPU seconds so far.
    pub(crate) fn cpu(&self) -> f64 {
        usage::cpu_seconds(self.0.id()).expect("it runs")
    }

    /// The most memory so far, in MB.
    pub(crate) fn peak_memory(&self) -> f64 {
        usage::peak_bytes(self.0.id()).expect("it runs") as f64 / 1_048_576.0
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Publishes, at most `rate` messages a second. Returns how many a second were confirmed.
pub(crate) fn publish(
    settings: &Settings,
    count: u32,
    rate: Option<u32>,
    message: impl Fn(u32) -> Message,
) -> f64 {
    let router = settings.router().connect().unwrap();
    let started = Instant::now();
    let mut pipeline = router.pipeline();
    for id in 0..count {
        if let Some(rate) = rate {
            let at = started + Duration::from_secs(1) * id / rate;
            thread::sleep(at.saturating_duration_since(Instant::now()));
        }
        if let Some(outcome) = pipeline.push((), message(id)) {
            outcome.result.unwrap();
        }
    }
    assert!(pipeline.all(|outcome| outcome.result.is_ok()));
    f64::from(count) / started.elapsed().as_secs_f64()
}
