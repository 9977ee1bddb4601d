//! Starting a node, and waiting until it answers.

use std::{
    fs,
    net::TcpStream,
    process::Child,
    thread,
    time::{Duration, Instant},
};

use log::debug;

use delayline_amqp::Session;
use delayline_broker::ManagementApi;
use delayline_settings::Settings;

use crate::{
    error::NodeError, installation::Installation, options::NodeOptions, ports::is_free, private::PrivateNode,
    spot::Spot,
};

/// How long a node may take until it answers.
const START_TIMEOUT: Duration = Duration::from_secs(300);

/// How many sets of ports are tried: another program may have taken a port after the check.
const TRIES: usize = 5;

/// The number of running nodes in the cluster, as a node reports it.
const RUNNING: &str = "length([Node || Node <- [node() | nodes()], rabbit:is_running(Node)]).";

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

    /// Waits until the node reports all other nodes of its cluster as running.
    pub(crate) fn wait_for_peers(&self, size: usize) -> Result<(), NodeError> {
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
    pub(crate) fn wait_until_ready(&mut self) -> Result<(), NodeError> {
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

    pub(crate) fn failed(&self, reason: &str) -> NodeError {
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
}

/// Starts a node or cluster, and retries on other ports if programs have taken these.
pub(crate) fn where_nobody_is<T>(mut start: impl FnMut() -> Result<T, NodeError>) -> Result<T, NodeError> {
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
