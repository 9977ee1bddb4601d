//! Where in the network a node is.

use std::{
    io,
    net::{Ipv4Addr, TcpListener},
};

/// The ports a node listens on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ports {
    pub(super) amqp: u16,
    pub(super) tls: u16,
    pub(super) management: u16,
    pub(super) distribution: u16,
    pub(super) epmd: u16,
}

impl Ports {
    /// Ports that nothing listens on at the moment.
    pub(super) fn free() -> io::Result<Self> {
        // All at once, so that they differ.
        let listeners: Vec<_> = (0..5).map(|_| listen()).collect::<io::Result<_>>()?;
        let port = |index: usize| listeners[index].local_addr().map(|address| address.port());
        Ok(Self {
            amqp: port(0)?,
            tls: port(1)?,
            management: port(2)?,
            distribution: port(3)?,
            epmd: port(4)?,
        })
    }

    /// RabbitMQ's own, for a node that has an address of its own.
    fn usual() -> Self {
        Self { amqp: 5672, tls: 5671, management: 15672, distribution: 25672, epmd: 4369 }
    }
}

/// Listens where no other program is likely to connect from before the node listens there:
/// below the ports that Linux gives to connections.
fn listen() -> io::Result<TcpListener> {
    const TRIES: usize = 100;
    let mut last = None;
    for _ in 0..TRIES {
        match TcpListener::bind((Ipv4Addr::LOCALHOST, fastrand::u16(10_000..32_768))) {
            Ok(listener) => return Ok(listener),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| io::ErrorKind::AddrInUse.into()))
}

/// A node's address, ports and name.
#[derive(Debug, Clone)]
pub(super) struct Spot {
    pub(super) address: Ipv4Addr,
    /// The network namespace it runs in, if not ours.
    pub(super) namespace: Option<String>,
    pub(super) ports: Ports,
    pub(super) name: String,
    /// Nodes of one cluster share it.
    pub(super) cookie: String,
    /// The nodes to form a cluster with, this one among them. Empty for a node that
    /// waits for nobody.
    pub(super) peers: Vec<String>,
    /// Whether another node of the cluster has started the port mapper.
    pub(super) has_epmd: bool,
}

impl Spot {
    /// On the loopback interface.
    pub(super) fn local() -> io::Result<Self> {
        let ports = Ports::free()?;
        Ok(Self {
            address: Ipv4Addr::LOCALHOST,
            namespace: None,
            ports,
            name: format!("delayline-{}@localhost", ports.amqp),
            cookie: cookie(),
            peers: Vec::new(),
            has_epmd: false,
        })
    }

    /// In a network namespace, with an address of its own.
    pub(super) fn apart(namespace: &str, address: Ipv4Addr) -> Self {
        Self {
            address,
            namespace: Some(namespace.into()),
            ports: Ports::usual(),
            name: format!("delayline@{address}"),
            cookie: cookie(),
            peers: Vec::new(),
            has_epmd: false,
        }
    }

    /// Whether the node's name has dots, which Erlang wants to be told.
    pub(super) fn has_long_name(&self) -> bool {
        self.namespace.is_some()
    }
}

fn cookie() -> String {
    std::iter::repeat_with(fastrand::alphanumeric).take(40).collect()
}
