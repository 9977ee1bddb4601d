//! `delayline serve` with its page.

use delayline_settings::Settings;
use serde_json::Value as Json;

use crate::common::{daemon::Daemon as Process, eventually_seen};

/// A daemon on a free port; dropping it ends the process.
pub(crate) struct Daemon {
    _process: Process,
    pub(crate) url: String,
}

impl Daemon {
    /// Starts one for a set.
    pub(crate) fn start(settings: &Settings, arguments: &[&str]) -> Self {
        let process = Process::start(settings, &[&["--listen", "127.0.0.1:0"], arguments].concat());
        Self { url: process.page(), _process: process }
    }

    /// The JSON at a path.
    pub(crate) fn json(&self, path: &str) -> Json {
        ureq::get(format!("{}{path}", self.url)).call().unwrap().body_mut().read_json().unwrap()
    }

    /// Waits until the daemon has examined the broker.
    pub(crate) fn has_looked(self) -> Self {
        eventually_seen(
            "the daemon has examined the broker",
            || self.json("api/picture"),
            |picture| picture["counted"].is_string() && picture["verified"]["ok"] == true,
        );
        self
    }
}
