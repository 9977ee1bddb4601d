//! `delayline serve`, as a process of its own.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    thread,
};

use delayline_settings::Settings;
use serde_json::Value as Json;

use crate::common::eventually_seen;

/// A daemon on a free port; it ends when it is dropped.
pub(crate) struct Daemon {
    process: Child,
    pub(crate) url: String,
}

impl Daemon {
    /// Starts one for a set.
    pub(crate) fn start(settings: &Settings, arguments: &[&str]) -> Self {
        let broker = &settings.broker;
        let mut command = Command::new(env!("CARGO_BIN_EXE_delayline"));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("DELAYLINE_") {
                command.env_remove(name);
            }
        }
        command
            .env("DELAYLINE_URL", broker.to_string())
            .env("DELAYLINE_MANAGEMENT_URL", settings.management.as_ref().unwrap().url.as_str())
            .env("DELAYLINE_UNIT_MS", settings.topology.unit.millis().to_string())
            .current_dir(std::env::temp_dir())
            .args(["serve", "--listen", "127.0.0.1:0"])
            .args(arguments)
            .stderr(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let mut lines = BufReader::new(process.stderr.take().unwrap()).lines();
        let url = loop {
            let line = lines.next().expect("the daemon says where its page is").unwrap();
            if let Some((_, rest)) = line.split_once("page at ") {
                break rest.split(',').next().unwrap().to_owned();
            }
        };
        // Somebody has to read on, or the daemon stands still.
        thread::spawn(move || lines.for_each(drop));
        Self { process, url }
    }

    /// What it says at a path.
    pub(crate) fn json(&self, path: &str) -> Json {
        ureq::get(format!("{}{path}", self.url)).call().unwrap().body_mut().read_json().unwrap()
    }

    /// Waits until the broker was looked at.
    pub(crate) fn has_looked(self) -> Self {
        eventually_seen(
            "the daemon looks at the broker",
            || self.json("api/picture"),
            |picture| picture["counted"].is_string() && picture["verified"]["ok"] == true,
        );
        self
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
