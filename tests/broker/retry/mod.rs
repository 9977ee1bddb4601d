//! The retry service as applications and operators meet it.

mod alien;
mod daemon;
mod faults;
mod native;
mod patterns;
mod poison;
mod proxy;
mod refused;
mod steps;
mod worker;

use std::{
    collections::HashMap,
    fs::{self, File},
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use delayline::{
    amqp::{Next, Session},
    message::{Headers, Properties, Value},
    topology::Names,
};
use delayline_settings::Settings;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::common::PATIENCE;

/// `delayline serve` as an operator starts it.
struct Daemon {
    child: Child,
    directory: TempDir,
}

impl Daemon {
    fn start(settings: &Settings, policies: &str) -> Self {
        Self::start_as("guest", settings, policies)
    }

    /// As a user whose password is his name.
    fn start_as(user: &str, settings: &Settings, policies: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("policies.toml"), policies).unwrap();
        Self { child: spawn(user, settings, &directory), directory }
    }

    /// Another one in the place of the last.
    fn again(&mut self, settings: &Settings) {
        self.child = spawn("guest", settings, &self.directory);
    }

    fn policies(&self) -> PathBuf {
        self.directory.path().join("policies.toml")
    }

    fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.child.id().cast_signed()).unwrap(), signal).unwrap();
    }

    /// Ends it without a warning.
    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Asks it to end; returns its exit code.
    fn stop(&mut self) -> Option<i32> {
        self.signal(Signal::TERM);
        self.child.wait().unwrap().code()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(user: &str, settings: &Settings, directory: &TempDir) -> Child {
    let log = File::options().create(true).append(true).open(directory.path().join("log")).unwrap();
    Command::new(env!("CARGO_BIN_EXE_delayline"))
        .args(["serve", "--policies", "policies.toml", "--no-canary", "--no-web"])
        .current_dir(directory.path())
        .env("DELAYLINE_URL", url(settings).replace("guest:guest", &format!("{user}:{user}")))
        .env("DELAYLINE_UNIT_MS", settings.topology.unit.millis().to_string())
        .env_remove("DELAYLINE_LOG")
        .stdin(Stdio::null())
        .stderr(log)
        .spawn()
        .unwrap()
}

/// A URL for clients in other processes.
pub(crate) fn url(settings: &Settings) -> String {
    let broker = &settings.broker;
    format!("amqp://guest:guest@127.0.0.1:{}/{}", broker.port, broker.vhost.replace('/', "%2F"))
}

/// A parked message.
#[derive(Debug, Clone)]
struct Parked {
    key: String,
    body: Vec<u8>,
    properties: Properties,
    headers: Headers,
    damaged: bool,
}

impl Parked {
    fn text(&self, name: &str) -> &str {
        match self.headers.get(name) {
            Some(Value::Text(text)) => text,
            other => panic!("{name} is {other:?}"),
        }
    }

    fn number(&self, name: &str) -> i64 {
        self.headers.get(name).and_then(Value::as_i64).unwrap_or_else(|| panic!("no {name}: {self:?}"))
    }
}

/// Takes so many parked messages.
fn parked(settings: &Settings, count: usize) -> Vec<Parked> {
    let mut session = Session::open(&settings.broker).unwrap();
    let queue = Names::new(settings.topology.set.clone()).parked();
    let consumer = session.consume(&queue, 1_000).unwrap();
    let mut messages = Vec::new();
    while messages.len() < count {
        match consumer.next(PATIENCE) {
            Next::Delivery(mut delivery) => {
                messages.push(Parked {
                    key: delivery.routing_key.clone(),
                    body: std::mem::take(&mut delivery.body),
                    properties: delivery.properties.clone(),
                    headers: std::mem::take(&mut delivery.headers),
                    damaged: delivery.damaged,
                });
                consumer.ack(delivery).unwrap();
            }
            other => panic!("{} of {count} parked: {other:?}", messages.len()),
        }
    }
    messages
}

/// The same by message id, with how often each came.
fn by_id(messages: Vec<Parked>) -> HashMap<String, (Parked, u32)> {
    let mut found: HashMap<String, (Parked, u32)> = HashMap::new();
    for message in messages {
        let id = message.properties.message_id.clone().unwrap_or_default();
        found.entry(id).or_insert_with(|| (message, 0)).1 += 1;
    }
    found
}

#[test]
fn the_sample_policies_can_be_used() {
    let text = include_str!("../../../examples/policies.toml");
    delayline_settings::parse_policies(text).unwrap();
}
