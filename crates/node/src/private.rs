//! One private node.

use std::{
    fmt, fs,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use delayline_settings::Layers;

use crate::{
    config, error::NodeError, guard::Guard, installation::Installation, options::NodeOptions, spot::Spot,
    usage,
};

/// How long a clean stop may take.
const STOP_TIMEOUT: Duration = Duration::from_secs(180);

/// How long pausing a process may take.
const STANDSTILL: Duration = Duration::from_secs(60);

/// Removes the node's directory. Its processes may write for a moment after they were killed, so
/// there is a second attempt.
const REMOVE: &str = r#"rm -rf -- "$1" || { sleep 0.5; rm -rf -- "$1"; }"#;

/// A running node. Dropping it stops it and removes its directory. The end of this process does the
/// same, even after a crash.
pub struct PrivateNode {
    installation: Installation,
    pub(crate) options: NodeOptions,
    pub(crate) spot: Spot,
    pub(crate) server: Option<Child>,
    pub(crate) epmd: Option<Child>,
    guard: Option<Guard>,
    directory: TempDir,
}

impl PrivateNode {
    /// Writes the files of a node that can then be launched.
    pub(crate) fn prepare(
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

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A command for a program of RabbitMQ, in this node's environment.
    pub(crate) fn tool(&self, name: &str) -> Command {
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
    pub(crate) fn launch(&mut self) -> Result<(), NodeError> {
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
