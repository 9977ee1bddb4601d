//! The retry service, from the point of view of applications and operators.

mod alien;
mod daemon;
pub(crate) mod faults;
mod native;
mod patterns;
mod poison;
mod refused;
mod steps;
mod worker;

use std::{collections::HashMap, fs};

use delayline_amqp::{Next, Session};
use delayline_core::{
    message::{Headers, Properties, Value},
    topology::Names,
};
use delayline_settings::Settings;

use crate::common::{
    PATIENCE,
    daemon::{Daemon, serve_as},
};

/// A daemon that only retries, with these policies.
fn daemon(settings: &Settings, policies: &str) -> Daemon {
    daemon_of("guest", settings, policies)
}

/// The same for a user whose password is the user's name.
fn daemon_of(user: &str, settings: &Settings, policies: &str) -> Daemon {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join(POLICIES), policies).unwrap();
    let mut command = serve_as(user, settings);
    command.args(["--policies", POLICIES, "--no-canary", "--no-web"]).env_remove("DELAYLINE_MANAGEMENT_URL");
    Daemon::with(directory, command)
}

/// The file of retry policies in the daemon's directory.
const POLICIES: &str = "policies.toml";

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

/// Takes this many parked messages.
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

/// The messages by id, with the number of arrivals of each.
fn by_id(messages: Vec<Parked>) -> HashMap<String, (Parked, u32)> {
    let mut found: HashMap<String, (Parked, u32)> = HashMap::new();
    for message in messages {
        let id = message.properties.message_id.clone().unwrap_or_default();
        found.entry(id).or_insert_with(|| (message, 0)).1 += 1;
    }
    found
}
