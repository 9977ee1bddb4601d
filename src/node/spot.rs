//! Where in the network a node is.

use std::{
    collections::BTreeSet,
    io,
    net::{Ipv4Addr, TcpListener},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
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
    /// RabbitMQ's own, for a node that has an address of its own.
    fn usual() -> Self {
        Self { amqp: 5672, tls: 5671, management: 15672, distribution: 25672, epmd: 4369 }
    }
}

/// Ports that are a node's for as long as this lives, also while the node is stopped:
/// another that started there meanwhile would be taken for it.
#[derive(Debug)]
pub(super) struct Held(Ports);

impl Held {
    /// Ports that nothing listens on at the moment, and no other node of this process will.
    fn free() -> io::Result<Self> {
        let mut held = held();
        let mut port = || {
            let port = free_port(&held)?;
            held.insert(port);
            Ok::<_, io::Error>(port)
        };
        Ok(Self(Ports {
            amqp: port()?,
            tls: port()?,
            management: port()?,
            distribution: port()?,
            epmd: port()?,
        }))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let Ports { amqp, tls, management, distribution, epmd } = self.0;
        let mut held = held();
        for port in [amqp, tls, management, distribution, epmd] {
            held.remove(&port);
        }
    }
}

fn held() -> MutexGuard<'static, BTreeSet<u16>> {
    static HELD: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A port where no other program is likely to connect from before the node listens there:
/// below those that Linux gives to connections.
fn free_port(held: &BTreeSet<u16>) -> io::Result<u16> {
    const TRIES: usize = 100;
    let mut last = io::ErrorKind::AddrInUse.into();
    for port in std::iter::repeat_with(|| fastrand::u16(10_000..32_768)).take(TRIES) {
        if held.contains(&port) {
            continue;
        }
        match TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            Ok(_) => return Ok(port),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// A node's address, ports and name.
#[derive(Debug, Clone)]
pub(super) struct Spot {
    pub(super) address: Ipv4Addr,
    /// The network namespace it runs in, if not ours.
    pub(super) namespace: Option<String>,
    pub(super) ports: Ports,
    /// Keeps them, on the loopback interface, for as long as anybody knows this spot.
    _held: Option<Arc<Held>>,
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
        let held = Held::free()?;
        let ports = held.0;
        Ok(Self {
            address: Ipv4Addr::LOCALHOST,
            namespace: None,
            ports,
            _held: Some(Arc::new(held)),
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
            _held: None,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_a_nodes_until_it_is_gone() {
        let ports = |spot: &Spot| {
            let Ports { amqp, tls, management, distribution, epmd } = spot.ports;
            [amqp, tls, management, distribution, epmd]
        };
        let spot = Spot::local().unwrap();
        let copy = spot.clone();
        let all = ports(&spot);
        assert_eq!(BTreeSet::from(all).len(), all.len());
        drop(spot);
        assert!(all.iter().all(|port| held().contains(port)));
        drop(copy);
        assert!(!all.iter().any(|port| held().contains(port)));
    }
}
