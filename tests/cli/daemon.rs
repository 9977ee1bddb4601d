//! `delayline serve`, as an operator starts it, and requests to it.

use std::{
    io::{Read, Write},
    net::{IpAddr, SocketAddr, TcpStream},
    process::Command,
};

use delayline_settings::Settings;
use serde_json::Value as Json;

use crate::common::{
    PATIENCE,
    daemon::{Daemon as Process, serve},
    eventually_seen,
};

/// An argument that makes the daemon use its default address.
pub(crate) const DEFAULT: &str = "the default address";

pub(crate) struct Daemon {
    process: Process,
    pub(crate) address: SocketAddr,
}

/// An answer to a request.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Daemon {
    /// Listens on a free port, unless `arguments` name another.
    pub(crate) fn start(settings: &Settings, management: &str, arguments: &[&str]) -> Self {
        let mut command = command(settings, management);
        if !arguments.iter().any(|argument| argument.starts_with("--listen")) && !arguments.contains(&DEFAULT)
        {
            command.arg("--listen=127.0.0.1:0");
        }
        command.args(arguments.iter().filter(|argument| **argument != DEFAULT));
        let process = Process::with(tempfile::tempdir().unwrap(), command);
        let page = process.page();
        let address = page.trim_start_matches("http://").trim_end_matches('/').parse().unwrap();
        Self { process, address }
    }

    /// The same daemon at another of its addresses.
    pub(crate) fn at(mut self, address: IpAddr) -> Self {
        self.address.set_ip(address);
        self
    }

    pub(crate) fn log(&self) -> String {
        self.process.log()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    pub(crate) fn stop(&mut self) -> Option<i32> {
        self.process.stop()
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.request(&format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"))
    }

    pub(crate) fn json(&self, path: &str) -> Json {
        serde_json::from_str(&self.get(path).body).unwrap()
    }

    /// Sends these bytes, and reads until the daemon closes the connection.
    pub(crate) fn request(&self, request: &str) -> Answer {
        let mut stream = self.connect();
        stream.write_all(request.as_bytes()).unwrap();
        read(stream)
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// The value of a series, by its name and labels in the exposition format.
    pub(crate) fn metric(&self, series: &str) -> Option<f64> {
        self.metric_with("", series)
    }

    /// The same with a token.
    pub(crate) fn metric_with(&self, token: &str, series: &str) -> Option<f64> {
        let head = format!("Host: localhost\r\nAuthorization: Bearer {token}");
        let body = self.request(&format!("GET /metrics HTTP/1.1\r\n{head}\r\n\r\n")).body;
        let line = body.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))?;
        line.parse().ok()
    }

    /// Waits until the page gives this reason for something unchecked, while the broker can be reached.
    pub(crate) fn shows(&self, reason: &str) {
        eventually_seen(
            "the page shows the reason",
            || self.json("/api/picture"),
            |picture| {
                let unchecked = picture["unchecked"].as_array().into_iter().flatten();
                picture["broker"]["reachable"] == true
                    && unchecked.filter_map(Json::as_str).any(|it| it.contains(reason))
            },
        );
    }
}

/// `delayline serve` with this URL of the management API, sending a test message every second.
pub(crate) fn command(settings: &Settings, management: &str) -> Command {
    let mut command = serve(settings);
    command.env("DELAYLINE_MANAGEMENT_URL", management).env("DELAYLINE_CANARY_INTERVAL", "1s");
    command
}

/// Reads the rest of a connection.
pub(crate) fn read(mut stream: TcpStream) -> Answer {
    let mut bytes = Vec::new();
    // The daemon may close the connection of a client that sent too much.
    let _ = stream.read_to_end(&mut bytes);
    let text = String::from_utf8_lossy(&bytes);
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    Answer { status, head: head.to_ascii_lowercase(), body: body.into() }
}
