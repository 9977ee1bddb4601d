//! The place of a node in the network.

use std::{io, net::Ipv4Addr, sync::Arc};

use crate::ports::{Held, Ports};

/// A node's address, ports and name.
#[derive(Debug, Clone)]
pub(super) struct Spot {
    pub(super) address: Ipv4Addr,
    /// Its network namespace, if it has its own.
    pub(super) namespace: Option<String>,
    pub(super) ports: Ports,
    /// Keeps the ports, on the loopback interface, for as long as this place is used.
    _held: Option<Arc<Held>>,
    pub(super) name: String,
    /// The name of the broker and its cluster, which identifies it as this node.
    pub(super) cluster: String,
    /// Nodes of one cluster share it.
    pub(super) cookie: String,
    /// The nodes to form a cluster with, including this one. Empty for a node that does not wait
    /// for others.
    pub(super) peers: Vec<String>,
    /// Whether another node of the cluster has started the port mapper.
    pub(super) has_epmd: bool,
}

impl Spot {
    /// On the loopback interface.
    pub(super) fn local() -> io::Result<Self> {
        let held = Held::free()?;
        let ports = held.ports;
        // The same port at another time is another node.
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

    /// In a network namespace, with its own address.
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

    /// Whether the node's name contains dots. Erlang needs an option for that.
    pub(super) fn has_long_name(&self) -> bool {
        self.namespace.is_some()
    }
}

fn letters(count: usize) -> String {
    std::iter::repeat_with(fastrand::alphanumeric).take(count).collect()
}
