//! A private RabbitMQ node: started in a temporary directory on free ports of
//! the loopback interface, and gone without a trace afterwards.
//!
//! `delayline demo` runs on one, and so do all tests. It never touches a broker
//! that happens to run on the machine.

mod config;
mod guard;
mod installation;

use std::{
    fmt, fs, io,
    net::{Ipv4Addr, TcpListener},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::{Settings, amqp::Session, management::ManagementApi, settings::Layers};

use guard::Guard;
pub use installation::Installation;

/// How long a node may take until it answers.
const START_TIMEOUT: Duration = Duration::from_secs(120);

/// Why there is no node.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NodeError {
    /// RabbitMQ is not on this machine.
    #[error(
        "RabbitMQ is not installed here, so there is no private node to start; \
         on Debian: apt-get install rabbitmq-server"
    )]
    NotInstalled,
    /// Something about processes or files went wrong.
    #[error("cannot {what}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// What the system says.
        source: io::Error,
    },
    /// The node did not come up.
    #[error("the private RabbitMQ node did not start: {reason}\n{log}")]
    Start {
        /// What is known.
        reason: String,
        /// The end of its output and log.
        log: String,
    },
}

/// What to start.
#[derive(Debug, Clone, Default)]
pub struct NodeOptions {
    /// Whether to start without the management plugin.
    pub without_management: bool,
    /// Lines to add to `rabbitmq.conf`.
    pub config: String,
    /// Files to serve TLS with, on a port of its own.
    pub tls: Option<NodeTls>,
    /// Further plugins.
    pub plugins: Vec<String>,
}

/// PEM files of a node that serves TLS.
#[derive(Debug, Clone)]
pub struct NodeTls {
    /// The authority that client certificates are checked against.
    pub ca_file: PathBuf,
    /// The node's certificate.
    pub cert_file: PathBuf,
    /// Its key.
    pub key_file: PathBuf,
    /// Whether clients must have a certificate.
    pub require_client_cert: bool,
}

/// The ports a node listens on.
#[derive(Debug, Clone, Copy)]
struct Ports {
    amqp: u16,
    tls: u16,
    management: u16,
    distribution: u16,
    epmd: u16,
}

/// A running node. Dropping it stops it and removes its directory; so does the
/// end of this process, however it ends.
pub struct PrivateNode {
    installation: Installation,
    options: NodeOptions,
    ports: Ports,
    name: String,
    server: Option<Child>,
    epmd: Option<Child>,
    guard: Option<Guard>,
    directory: TempDir,
}

impl PrivateNode {
    /// Starts a node and waits until it answers.
    ///
    /// # Errors
    /// If RabbitMQ is not installed, or does not come up within two minutes.
    pub fn start(options: NodeOptions) -> Result<Self, NodeError> {
        let installation = Installation::find().ok_or(NodeError::NotInstalled)?;
        let directory = tempfile::Builder::new()
            .prefix("delayline-node-")
            .tempdir()
            .map_err(|source| NodeError::Io { what: "make a temporary directory", source })?;
        let ports = Ports::free().map_err(|source| NodeError::Io { what: "find free ports", source })?;
        let guard = Guard::start(directory.path())
            .map_err(|source| NodeError::Io { what: "start the guard of the node", source })?;
        let mut node = Self {
            installation,
            options,
            ports,
            name: format!("delayline-{}@localhost", ports.amqp),
            server: None,
            epmd: None,
            guard: Some(guard),
            directory,
        };
        config::write(&node)?;
        node.launch()?;
        Ok(node)
    }

    /// The node's AMQP URL; the user is `guest`, from this machine only.
    #[must_use]
    pub fn url(&self) -> String {
        format!("amqp://127.0.0.1:{}", self.ports.amqp)
    }

    /// Its `amqps` URL, if it serves TLS.
    #[must_use]
    pub fn tls_url(&self) -> String {
        format!("amqps://localhost:{}", self.ports.tls)
    }

    /// The URL of its management API, and of its web pages.
    #[must_use]
    pub fn management_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.ports.management)
    }

    /// Where its files are.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Settings for this node; add to them and build.
    #[must_use]
    pub fn settings(&self) -> Layers {
        let management = match self.options.without_management {
            true => "none".into(),
            false => self.management_url(),
        };
        Layers::new().set("url", self.url()).set("management_url", management)
    }

    /// Kills the broker at once, as a power cut would.
    pub fn kill(&mut self) {
        if let Some(pid) = self.broker_pid() {
            let _ = kill_process(pid, Signal::KILL);
        }
        if let Some(mut server) = self.server.take() {
            let _ = server.wait();
        }
    }

    /// Stops the broker from running, without closing anything.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// Lets it run on.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        if let Some(pid) = self.broker_pid() {
            let _ = kill_process(pid, signal);
        }
    }

    fn broker_pid(&self) -> Option<Pid> {
        let text = fs::read_to_string(self.path("pid")).ok()?;
        Pid::from_raw(text.trim().parse().ok()?)
    }

    /// Starts the broker again after [`kill`](Self::kill), with all it had
    /// stored.
    ///
    /// # Errors
    /// If it does not come up.
    pub fn restart(&mut self) -> Result<(), NodeError> {
        self.launch()
    }

    /// Runs `rabbitmqctl` against the node.
    ///
    /// # Errors
    /// If it cannot be run; its own failure is in the output.
    pub fn ctl(&self, arguments: &[&str]) -> io::Result<Output> {
        let mut command = self.installation.tool("rabbitmqctl");
        self.environment(&mut command);
        command.args(["--node", &self.name, "--quiet"]).args(arguments).output()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn environment(&self, command: &mut Command) {
        // An inherited setting could lead to another broker's files.
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("RABBITMQ_") {
                command.env_remove(name);
            }
        }
        command
            .env_remove("NOTIFY_SOCKET")
            // Erlang writes dumps where it runs.
            .current_dir(self.directory.path())
            .env("HOME", self.directory.path())
            .env("LC_ALL", "C.UTF-8")
            .env("ERL_EPMD_PORT", self.ports.epmd.to_string())
            .env("ERL_EPMD_ADDRESS", "127.0.0.1")
            .env("RABBITMQ_NODENAME", &self.name)
            .env("RABBITMQ_DIST_PORT", self.ports.distribution.to_string())
            .env("RABBITMQ_CONF_ENV_FILE", "/dev/null")
            .env("RABBITMQ_MNESIA_BASE", self.path("data"))
            .env("RABBITMQ_LOG_BASE", self.path("log"))
            .env("RABBITMQ_PID_FILE", self.path("pid"))
            .env("RABBITMQ_CONFIG_FILE", self.path("rabbitmq.conf"))
            .env("RABBITMQ_ADVANCED_CONFIG_FILE", self.path("advanced.config"))
            .env("RABBITMQ_ENABLED_PLUGINS_FILE", self.path("enabled_plugins"));
    }

    fn launch(&mut self) -> Result<(), NodeError> {
        let group = self.guard.as_ref().map_or(0, Guard::process_group);
        let _ = fs::remove_file(self.path("pid"));
        if self.epmd.is_none() {
            // Before the node, which would start one that outlives it.
            let mut command = self.installation.epmd();
            command.args(["-address", "127.0.0.1", "-port", &self.ports.epmd.to_string()]);
            // It may outlive us, and would hold a pipe that we print to open.
            command.stdout(Stdio::null()).stderr(Stdio::null());
            self.epmd = Some(spawn(&mut command, group, "start epmd")?);
        }
        let output = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.path("output"))
            .map_err(|source| NodeError::Io { what: "write the node's output", source })?;
        let mut command = self.installation.tool("rabbitmq-server");
        self.environment(&mut command);
        if let Ok(copy) = output.try_clone() {
            command.stderr(copy);
        }
        command.stdout(output);
        self.server = Some(spawn(&mut command, group, "start rabbitmq-server")?);
        self.wait_until_ready()
    }

    fn wait_until_ready(&mut self) -> Result<(), NodeError> {
        let settings = self
            .settings()
            .set("connect_timeout", "5s")
            .build()
            .map_err(|error| self.failed(&error.to_string()))?;
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            let reason = match is_ready(&settings) {
                Ok(()) => return Ok(()),
                Err(reason) => reason,
            };
            if let Some(Ok(Some(status))) = self.server.as_mut().map(Child::try_wait) {
                return Err(self.failed(&format!("it ended with {status}")));
            }
            if Instant::now() >= deadline {
                return Err(self.failed(&reason));
            }
            thread::sleep(Duration::from_millis(100));
        }
    }

    fn failed(&self, reason: &str) -> NodeError {
        let mut log = String::new();
        let logs = fs::read_dir(self.path("log")).into_iter().flatten().flatten().map(|entry| entry.path());
        for file in [self.path("output")].into_iter().chain(logs) {
            let text = fs::read_to_string(&file).unwrap_or_default();
            let lines: Vec<_> = text.lines().collect();
            log += &lines[lines.len().saturating_sub(20)..].join("\n");
            log.push('\n');
        }
        NodeError::Start { reason: reason.into(), log }
    }

    /// Leaves the node running when this process ends, and forgets about it.
    /// Returns a command that stops it and removes its files.
    #[must_use]
    pub fn keep(mut self) -> String {
        let group = self.guard.take().map(Guard::disarm);
        self.server = None;
        self.epmd = None;
        self.directory.disable_cleanup(true);
        let directory = self.directory.path().display();
        match group {
            Some(group) => format!("kill -s KILL -- -{group}; sleep 1; rm -rf '{directory}'"),
            None => format!("rm -rf '{directory}'"),
        }
    }
}

fn is_ready(settings: &Settings) -> Result<(), String> {
    Session::open(&settings.broker).map_err(|error| error.to_string())?;
    match &settings.management {
        Some(management) => ManagementApi::new(management)
            .and_then(|api| api.overview())
            .map(drop)
            .map_err(|error| error.to_string()),
        None => Ok(()),
    }
}

fn spawn(command: &mut Command, group: i32, what: &'static str) -> Result<Child, NodeError> {
    use std::os::unix::process::CommandExt;
    command.stdin(Stdio::null()).process_group(group).spawn().map_err(|source| NodeError::Io { what, source })
}

impl Ports {
    /// Ports that nothing listens on at the moment.
    fn free() -> io::Result<Self> {
        // All at once, so that they differ.
        let listeners: Vec<_> =
            (0..5).map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).collect::<io::Result<_>>()?;
        let port = |index: usize| listeners[index].local_addr().map(|address| address.port());
        Ok(Self {
            amqp: port(0)?,
            tls: port(1)?,
            management: port(2)?,
            distribution: port(3)?,
            epmd: port(4)?,
        })
    }
}

impl Drop for PrivateNode {
    fn drop(&mut self) {
        // Its data goes too, so it need not stop in order, which takes seconds.
        // The guard ends the group first, so that the two can be waited for.
        self.guard = None;
        for mut process in self.server.take().into_iter().chain(self.epmd.take()) {
            let _ = process.wait();
        }
    }
}

impl fmt::Debug for PrivateNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PrivateNode")
            .field("name", &self.name)
            .field("ports", &self.ports)
            .finish_non_exhaustive()
    }
}
