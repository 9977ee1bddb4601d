//! `delayline serve`, as an operator starts it, to be looked at.

use std::{
    fs::{self, File},
    io::{Read, Write},
    net::{IpAddr, SocketAddr, TcpStream},
    process::{Child, Command, Stdio},
};

use delayline_settings::Settings;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value as Json;
use tempfile::TempDir;

use crate::common::{PATIENCE, eventually_seen};

/// An argument that stands for the address a daemon has by itself.
pub(crate) const DEFAULT: &str = "the default address";

pub(crate) struct Daemon {
    child: Child,
    directory: TempDir,
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
        let directory = tempfile::tempdir().unwrap();
        let log = File::create(directory.path().join("log")).unwrap();
        let mut command = command(settings, management);
        if !arguments.iter().any(|argument| argument.starts_with("--listen")) && !arguments.contains(&DEFAULT)
        {
            command.arg("--listen=127.0.0.1:0");
        }
        let child = command
            .args(arguments.iter().filter(|argument| **argument != DEFAULT))
            .current_dir(directory.path())
            .stdin(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut daemon = Self { child, directory, address: ([127, 0, 0, 1], 0).into() };
        let log = eventually_seen(
            "it says where it listens",
            || daemon.log(),
            |log| log.contains("page at http://"),
        );
        let (_, rest) = log.split_once("page at http://").unwrap();
        daemon.address = rest.split('/').next().unwrap().parse().unwrap();
        daemon
    }

    /// The same, talked to at another of its addresses.
    pub(crate) fn at(mut self, address: IpAddr) -> Self {
        self.address.set_ip(address);
        self
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Asks it to end; returns its exit code.
    pub(crate) fn stop(&mut self) -> Option<i32> {
        kill_process(Pid::from_raw(self.child.id().cast_signed()).unwrap(), Signal::TERM).unwrap();
        self.child.wait().unwrap().code()
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.request(&format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"))
    }

    pub(crate) fn json(&self, path: &str) -> Json {
        serde_json::from_str(&self.get(path).body).unwrap()
    }

    /// Sends these bytes, and reads until the daemon closes.
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

    /// The value of a series: its name and labels as they are exposed.
    pub(crate) fn metric(&self, series: &str) -> Option<f64> {
        let body = self.get("/metrics").body;
        let line = body.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))?;
        line.parse().ok()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("the daemon's log:\n{}", self.log());
        }
    }
}

pub(crate) fn command(settings: &Settings, management: &str) -> Command {
    let broker = &settings.broker;
    let vhost = broker.vhost.replace('/', "%2F");
    let mut command = Command::new(env!("CARGO_BIN_EXE_delayline"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("DELAYLINE_") {
            command.env_remove(name);
        }
    }
    command
        .arg("serve")
        .env("DELAYLINE_URL", format!("amqp://guest:guest@127.0.0.1:{}/{vhost}", broker.port))
        .env("DELAYLINE_MANAGEMENT_URL", management)
        .env("DELAYLINE_CANARY_INTERVAL", "1s")
        .env("DELAYLINE_UNIT_MS", settings.topology.unit.millis().to_string());
    command
}

/// What a connection still says.
pub(crate) fn read(mut stream: TcpStream) -> Answer {
    let mut bytes = Vec::new();
    // Whoever sent too much may be cut off after the answer.
    let _ = stream.read_to_end(&mut bytes);
    let text = String::from_utf8_lossy(&bytes);
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    Answer { status, head: head.to_ascii_lowercase(), body: body.into() }
}
