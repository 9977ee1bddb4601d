//! Where in the network a node is.

use std::{io, net::Ipv4Addr, sync::Arc};

use crate::ports::{Held, Ports};

/// A node's address, ports and name.
#[derive(Debug, Clone)]
pub(super) struct Spot {
    pub(super) address: Ipv4Addr,
    /// The network namespace it runs in, if not ours.
    pub(super) namespace: Option<String>,
    pub(super) ports: Ports,
    /// Keeps the ports, on the loopback interface, for as long as anybody uses this spot.
    _held: Option<Arc<Held>>,
    pub(super) name: String,
    /// The name of the broker and its cluster, by which we know that it is ours.
    pub(super) cluster: String,
    /// Nodes of one cluster share it.
    pub(super) cookie: String,
    /// The nodes to form a cluster with, including this one. Empty for a node that waits for
    /// nobody.
    pub(super) peers: Vec<String>,
    /// Whether another node of the cluster has started the port mapper.
    pub(super) has_epmd: bool,
}

impl Spot {
    /// On the loopback interface.
    pub(super) fn local() -> io::Result<Self> {
        let held = Held::free()?;
        let ports = held.ports;
        // The same port on another day is another node.
        let name = format!("delayline-{}-{}@localhost", ports.amqp, letters(6));
        Ok(Self {
            address: Ipv4Addr::LOCALHOST,
            namespace: None,
            ports,
            _held: Some(Arc::new(held)),
            cluster: name.clone(),
            name,
            cookie: letters(40),
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
            _held: None,
            name: format!("delayline@{address}"),
            cluster: format!("delayline-{}", letters(12)),
            cookie: letters(40),
            peers: Vec::new(),
            has_epmd: false,
        }
    }

    /// Whether the node's name has dots, which Erlang wants to be told.
    pub(super) fn has_long_name(&self) -> bool {
        self.namespace.is_some()
    }
}

fn letters(count: usize) -> String {
    std::iter::repeat_with(fastrand::alphanumeric).take(count).collect()
}
