//! A separate network, in which a node can be cut off from the others.

use std::{
    net::Ipv4Addr,
    process::{self, Command},
    sync::atomic::{AtomicU32, Ordering},
};

use crate::{claim::Claim, error::NodeError, guard::Guard};

/// A bridge with a network namespace for each node. It is removed when it is dropped, or when this
/// process ends.
#[derive(Debug)]
pub(super) struct Network {
    bridge: String,
    /// The third part of its addresses, which are in the block reserved for tests of network
    /// devices: 198.18.0.0/15 (RFC 2544).
    subnet: u8,
    _guard: Guard,
    // Dropped after the addresses are removed.
    _claim: Claim,
}

/// Arguments: the bridge and the namespaces that were created so far. Removes them.
const CLEANUP: &str = r#"
bridge=$1
shift
for namespace in "$@"; do ip netns del "$namespace"; done
ip link del "$bridge"
"#;

impl Network {
    /// Creates a network with this many namespaces.
    pub(super) fn new(size: usize) -> Result<Self, NodeError> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        // Names of interfaces have at most 15 characters.
        let bridge = format!("dl{:x}n{:x}", process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let taken = ip(&["-4", "-o", "address", "show"])?;
        let free = (0..=u8::MAX).map(|_| fastrand::u8(..)).find_map(|part| {
            let claim = Claim::on(&format!("subnet/{part}")).ok()?;
            (!taken.contains(&prefix(part))).then_some((part, claim))
        });
        let in_use = || NodeError::Network { reason: "198.18.0.0/16 is in use".into() };
        let (subnet, claim) = free.ok_or_else(in_use)?;
        let namespaces = (0..size).map(|index| namespace(&bridge, index));
        let guard = Guard::start(CLEANUP, [bridge.clone()].into_iter().chain(namespaces))
            .map_err(NodeError::io("start the guard of the network"))?;
        let network = Self { bridge, subnet, _guard: guard, _claim: claim };
        network.make(size)?;
        Ok(network)
    }

    fn make(&self, size: usize) -> Result<(), NodeError> {
        let Self { bridge, subnet, .. } = self;
        let gateway = format!("{}1/24", prefix(*subnet));
        ip(&["link", "add", bridge, "type", "bridge"])?;
        ip(&["address", "add", &gateway, "dev", bridge])?;
        ip(&["link", "set", bridge, "up"])?;
        for index in 0..size {
            let (namespace, link) = (self.namespace(index), self.link(index));
            let address = format!("{}/24", self.address(index));
            ip(&["netns", "add", &namespace])?;
            ip(&["link", "add", &link, "type", "veth", "peer", "name", "eth0", "netns", &namespace])?;
            ip(&["link", "set", &link, "master", bridge, "up"])?;
            ip(&["-n", &namespace, "address", "add", &address, "dev", "eth0"])?;
            ip(&["-n", &namespace, "link", "set", "eth0", "up"])?;
            ip(&["-n", &namespace, "link", "set", "lo", "up"])?;
        }
        Ok(())
    }

    pub(super) fn namespace(&self, index: usize) -> String {
        namespace(&self.bridge, index)
    }

    pub(super) fn address(&self, index: usize) -> Ipv4Addr {
        Ipv4Addr::new(198, 18, self.subnet, u8::try_from(10 + index).unwrap_or(u8::MAX))
    }

    /// Drops every packet to and from a node, or stops doing so.
    pub(super) fn cut(&self, index: usize, cut: bool) -> Result<(), NodeError> {
        ip(&["link", "set", &self.link(index), if cut { "down" } else { "up" }]).map(drop)
    }

    fn link(&self, index: usize) -> String {
        format!("{}v{index}", self.bridge)
    }
}

fn prefix(subnet: u8) -> String {
    format!("198.18.{subnet}.")
}

fn namespace(bridge: &str, index: usize) -> String {
    format!("{bridge}-{index}")
}

fn ip(arguments: &[&str]) -> Result<String, NodeError> {
    let output = Command::new("ip").args(arguments).output().map_err(NodeError::io("run ip"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => {
            let reason = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            Err(NodeError::Network { reason: format!("ip {}: {reason}", arguments.join(" ")) })
        }
    }
}
