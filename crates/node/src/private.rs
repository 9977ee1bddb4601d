//! One private node.

use std::{
    fmt, fs,
    net::TcpStream,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use log::debug;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use delayline_amqp::Session;
use delayline_broker::ManagementApi;
use delayline_settings::{Layers, Settings};

use crate::{Installation, NodeError, NodeOptions, config, guard::Guard, ports::is_free, spot::Spot, usage};

/// How long a node may take until it answers.
const START_TIMEOUT: Duration = Duration::from_secs(300);

/// How many sets of ports are tried: another program may have taken a port after the check.
const TRIES: usize = 5;

/// How long a clean stop may take.
const STOP_TIMEOUT: Duration = Duration::from_secs(180);

/// How long pausing a process may take.
const STANDSTILL: Duration = Duration::from_secs(60);

/// The number of running nodes in the cluster, as a node reports it.
const RUNNING: &str = "length([Node || Node <- [node() | nodes()], rabbit:is_running(Node)]).";

/// Removes the node's directory. Its processes may write for a moment after they were killed, so
/// there is a second attempt.
const REMOVE: &str = r#"rm -rf -- "$1" || { sleep 0.5; rm -rf -- "$1"; }"#;

/// A running node. Dropping it stops it and removes its directory. The end of this process does the
/// same, even after a crash.
pub struct PrivateNode {
    installation: Installation,
    options: NodeOptions,
    spot: Spot,
    server: Option<Child>,
    epmd: Option<Child>,
    guard: Option<Guard>,
    directory: TempDir,
}

impl PrivateNode {
    /// Starts a node and waits until it answers.
    ///
    /// # Errors
    /// RabbitMQ is not installed, or the node does not start within five minutes.
    pub fn start(options: NodeOptions) -> Result<Self, NodeError> {
        let installation = Installation::find().ok_or(NodeError::NotInstalled)?;
        where_nobody_is(|| {
            let spot = Spot::local().map_err(NodeError::io("find free ports"))?;
            let mut node = Self::prepare(installation.clone(), options.clone(), spot)?;
            node.launch()?;
            node.wait_until_ready()?;
            Ok(node)
        })
    }

    /// Writes the files of a node that can then be launched.
    pub(super) fn prepare(
        installation: Installation,
        options: NodeOptions,
        spot: Spot,
    ) -> Result<Self, NodeError> {
        let mut builder = tempfile::Builder::new();
        builder.prefix("delayline-node-");
        let directory = match &options.place {
            Some(place) => builder.tempdir_in(place),
            None => builder.tempdir(),
        }
        .map_err(NodeError::io("make a directory for the node"))?;
        let guard =
            Guard::start(REMOVE, [directory.path()]).map_err(NodeError::io("start the guard of the node"))?;
        config::write(directory.path(), &options, &spot)
            .map_err(NodeError::io("write the node's configuration"))?;
        Ok(Self { installation, options, spot, server: None, epmd: None, guard: Some(guard), directory })
    }

    /// The node's AMQP URL. The user is `guest`, only from this machine.
    #[must_use]
    pub fn url(&self) -> String {
        format!("amqp://{}", self.authority())
    }

    /// Its host and AMQP port.
    #[must_use]
    pub fn authority(&self) -> String {
        format!("{}:{}", self.spot.address, self.spot.ports.amqp)
    }

    /// Its name in the cluster.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.spot.name
    }

    /// Its `amqps` URL, if it serves TLS.
    #[must_use]
    pub fn tls_url(&self) -> String {
        format!("amqps://localhost:{}", self.spot.ports.tls)
    }

    /// The URL of its management API, and of its web pages.
    #[must_use]
    pub fn management_url(&self) -> String {
        format!("http://{}:{}", self.spot.address, self.spot.ports.management)
    }

    /// The directory of its files.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Settings for this node.
    #[must_use]
    pub fn settings(&self) -> Layers {
        let management = match self.options.without_management {
            true => "none".into(),
            false => self.management_url(),
        };
        Layers::new().set("url", self.url()).set("management_url", management)
    }

    /// Kills the broker at once, like a power cut. Queues that were declared just before may not
    /// come back: see [`write_down_queues`](Self::write_down_queues).
    pub fn kill(&mut self) {
        if let Some(pid) = self.broker_pid() {
            let _ = kill_process(pid, Signal::KILL);
        }
        if let Some(mut server) = self.server.take() {
            let _ = server.wait();
        }
    }

    /// Stops the broker cleanly, as before an upgrade.
    ///
    /// # Errors
    /// The broker does not end within three minutes.
    pub fn stop(&mut self) -> Result<(), NodeError> {
        self.signal(Signal::TERM);
        let Some(mut server) = self.server.take() else { return Ok(()) };
        let deadline = Instant::now() + STOP_TIMEOUT;
        while let Ok(None) = server.try_wait() {
            if Instant::now() >= deadline {
                self.server = Some(server);
                return Err(self.failed("it does not stop"));
            }
            thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// Pauses the broker's process without closing its connections, and waits until all its threads
    /// have stopped. On a busy machine, threads may answer for a while after the signal.
    ///
    /// # Panics
    /// The threads do not stop within a minute.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
        let deadline = Instant::now() + STANDSTILL;
        while self.is_moving() {
            assert!(Instant::now() < deadline, "the broker's threads do not stop");
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Whether a thread of the broker's process is still running.
    fn is_moving(&self) -> bool {
        let Some(pid) = self.broker_pid() else { return false };
        let Ok(threads) = fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero())) else { return false };
        // The state follows the name, which is in parentheses and may contain some itself.
        let state = |text: String| text.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
        threads
            .filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("stat")).ok())
            .any(|text| !matches!(state(text), Some('T' | 't' | 'Z' | 'X')))
    }

    /// Lets the broker continue.
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

    /// Starts the broker again after [`kill`](Self::kill) or [`stop`](Self::stop), with its stored
    /// data, and waits until it answers.
    ///
    /// # Errors
    /// The broker does not start.
    pub fn restart(&mut self) -> Result<(), NodeError> {
        self.launch()?;
        self.wait_until_ready()
    }

    /// Starts another version of the broker after [`stop`](Self::stop), with the stored data.
    ///
    /// # Errors
    /// The broker does not start, as if it cannot follow the version before.
    pub fn upgrade(&mut self, to: Installation) -> Result<(), NodeError> {
        self.installation = to;
        self.restart()
    }

    /// The memory that the broker's process uses, in bytes.
    #[must_use]
    pub fn resident_memory(&self) -> Option<u64> {
        usage::resident_bytes(self.broker_pid()?.as_raw_pid().cast_unsigned())
    }

    /// CPU seconds that its broker has used; `None` if it is not running.
    #[must_use]
    pub fn cpu_seconds(&self) -> Option<f64> {
        usage::cpu_seconds(self.broker_pid()?.as_raw_pid().cast_unsigned())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A command for a program of RabbitMQ, in this node's environment.
    pub(super) fn tool(&self, name: &str) -> Command {
        let Spot { ports, namespace, .. } = &self.spot;
        let mut command = self.installation.tool(name, self.directory(), namespace.as_deref());
        // An inherited setting could point to another broker's files.
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("RABBITMQ_") {
                command.env_remove(name);
            }
        }
        command
            .env_remove("NOTIFY_SOCKET")
            .env("HOME", self.directory())
            .env("LC_ALL", "C.UTF-8")
            .env("ERL_EPMD_PORT", ports.epmd.to_string())
            .env("ERL_EPMD_ADDRESS", self.spot.address.to_string())
            .env("RABBITMQ_NODENAME", self.name())
            .env("RABBITMQ_USE_LONGNAME", self.spot.has_long_name().to_string())
            .env("RABBITMQ_DIST_PORT", ports.distribution.to_string())
            .env("RABBITMQ_CONF_ENV_FILE", "/dev/null")
            .env("RABBITMQ_MNESIA_BASE", self.path("data"))
            .env("RABBITMQ_LOG_BASE", self.path("log"))
            .env("RABBITMQ_PID_FILE", self.path("pid"))
            .env("RABBITMQ_CONFIG_FILE", self.path("rabbitmq.conf"))
            .env("RABBITMQ_ADVANCED_CONFIG_FILE", self.path("advanced.config"))
            .env("RABBITMQ_ENABLED_PLUGINS_FILE", self.path("enabled_plugins"));
        if let Some(flags) = &self.options.feature_flags {
            command.env("RABBITMQ_FEATURE_FLAGS", flags.join(","));
        }
        command
    }

    /// Starts the broker, which answers after some seconds.
    pub(super) fn launch(&mut self) -> Result<(), NodeError> {
        let group = self.guard.as_ref().map_or(0, Guard::process_group);
        let _ = fs::remove_file(self.path("pid"));
        if self.epmd.is_none() && !self.spot.has_epmd {
            // Before the node, which would otherwise start a port mapper that outlives it.
            let mut command = self.tool("epmd");
            let Spot { address, ports, .. } = &self.spot;
            command.args(["-address", &address.to_string(), "-port", &ports.epmd.to_string()]);
            // It may outlive this process, and would keep a pipe for our output open.
            command.stdout(Stdio::null()).stderr(Stdio::null());
            self.epmd = Some(spawn(&mut command, group, "start epmd")?);
        }
        let output = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(self.path("output"))
            .map_err(NodeError::io("write the node's output"))?;
        let mut command = self.tool("rabbitmq-server");
        if let Ok(copy) = output.try_clone() {
            command.stderr(copy);
        }
        command.stdout(output);
        self.server = Some(spawn(&mut command, group, "start rabbitmq-server")?);
        Ok(())
    }

    /// Waits until the node reports all other nodes of its cluster as running.
    pub(super) fn wait_for_peers(&self, size: usize) -> Result<(), NodeError> {
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            let running: usize = self.tell(&["eval", RUNNING])?.trim().parse().unwrap_or_default();
            if running == size {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(self.failed(&format!("it reports {running} running nodes instead of {size}")));
            }
            thread::sleep(Duration::from_millis(200));
        }
    }

    /// Waits until the broker takes connections and its management API answers.
    pub(super) fn wait_until_ready(&mut self) -> Result<(), NodeError> {
        let settings = self
            .settings()
            .set("connect_timeout", "5s")
            .build()
            .map_err(|error| self.failed(&error.to_string()))?;
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            let reason = match is_ready(&settings, &self.spot.cluster).and_then(|()| self.serves_tls()) {
                Ok(()) => return Ok(()),
                Err(reason) => reason,
            };
            if let Some(Ok(Some(status))) = self.server.as_mut().map(Child::try_wait) {
                return Err(self.ended(&format!("it ended with {status}"), false));
            }
            if let Some(Ok(Some(status))) = self.epmd.as_mut().map(Child::try_wait) {
                return Err(self.ended(&format!("its port mapper ended with {status}"), true));
            }
            if Instant::now() >= deadline {
                return Err(self.failed(&reason));
            }
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// Whether the port for TLS is open, if it should serve TLS. The broker opens it after the
    /// other port.
    fn serves_tls(&self) -> Result<(), String> {
        if self.options.tls.is_none() {
            return Ok(());
        }
        let Spot { address, ports, .. } = &self.spot;
        match TcpStream::connect((*address, ports.tls)) {
            Ok(_) => Ok(()),
            Err(error) => Err(format!("port {} is not open: {error}", ports.tls)),
        }
    }

    /// Why a node ended before it answered. The likely cause is a program that now listens on its
    /// ports. Its own port mapper may still be running.
    fn ended(&self, reason: &str, with_epmd: bool) -> NodeError {
        let (ports, log) = (self.spot.ports, self.log());
        let ours = [ports.amqp, ports.tls, ports.management, ports.distribution];
        let ours = ours.into_iter().chain(with_epmd.then_some(ports.epmd));
        let is_apart = self.spot.namespace.is_some();
        match ours.into_iter().find(|port| !is_apart && is_free(*port).is_err()) {
            Some(port) => NodeError::PortTaken { reason: format!("{reason}; port {port} is taken"), log },
            None if log.contains("eaddrinuse") => NodeError::PortTaken { reason: reason.into(), log },
            None => NodeError::Start { reason: reason.into(), log },
        }
    }

    fn failed(&self, reason: &str) -> NodeError {
        NodeError::Start { reason: reason.into(), log: self.log() }
    }

    fn log(&self) -> String {
        let mut log = String::new();
        let logs = fs::read_dir(self.path("log")).into_iter().flatten().flatten().map(|entry| entry.path());
        for file in [self.path("output")].into_iter().chain(logs) {
            let text = fs::read_to_string(&file).unwrap_or_default();
            let lines: Vec<_> = text.lines().collect();
            log += &lines[lines.len().saturating_sub(20)..].join("\n");
            log.push('\n');
        }
        log
    }

    /// Leaves the node running when this process ends, and stops tracking it. Returns a command
    /// that stops it and removes its files.
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

/// Starts a node or cluster, and retries on other ports if programs have taken these.
pub(super) fn where_nobody_is<T>(mut start: impl FnMut() -> Result<T, NodeError>) -> Result<T, NodeError> {
    for _ in 1..TRIES {
        match start() {
            Err(error @ NodeError::PortTaken { .. }) => debug!("{error}"),
            result => return result,
        }
    }
    start()
}

/// Whether the broker of this name answers.
fn is_ready(settings: &Settings, cluster: &str) -> Result<(), String> {
    let ours = |name: &str| match name == cluster {
        true => Ok(()),
        false => Err(format!("another broker answers in its place, `{name}`")),
    };
    let session = Session::open(&settings.broker).map_err(|error| error.to_string())?;
    ours(session.cluster_name().unwrap_or_default())?;
    match &settings.management {
        Some(management) => {
            let overview = ManagementApi::new(management).and_then(|api| api.overview());
            ours(&overview.map_err(|error| error.to_string())?.cluster_name)
        }
        None => Ok(()),
    }
}

fn spawn(command: &mut Command, group: i32, what: &'static str) -> Result<Child, NodeError> {
    use std::os::unix::process::CommandExt;
    command.stdin(Stdio::null()).process_group(group).spawn().map_err(NodeError::io(what))
}

impl Drop for PrivateNode {
    fn drop(&mut self) {
        // Its data is removed too, so it need not stop cleanly, which takes seconds. The guard ends
        // the group first, so that this process can wait for the two.
        self.guard = None;
        for mut process in self.server.take().into_iter().chain(self.epmd.take()) {
            let _ = process.wait();
        }
    }
}

impl fmt::Debug for PrivateNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PrivateNode").field("spot", &self.spot).finish_non_exhaustive()
    }
}
