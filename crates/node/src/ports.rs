//! Ports for a node.

use std::{
    fs, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener},
    ops::Range,
};

use crate::claim::Claim;

/// The ports a node listens on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ports {
    pub(super) amqp: u16,
    pub(super) tls: u16,
    pub(super) management: u16,
    pub(super) distribution: u16,
    pub(super) epmd: u16,
}

impl Ports {
    /// RabbitMQ's default ports, for a node with its own address.
    pub(super) fn usual() -> Self {
        Self { amqp: 5672, tls: 5671, management: 15672, distribution: 25672, epmd: 4369 }
    }
}

/// Ports that belong to a node for as long as this lives, even while the node is stopped: another
/// node started there could be mistaken for it. No other process that starts nodes can have them.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) ports: Ports,
    _claims: [FreePort; 5],
}

/// A port without a listener when it was claimed. For as long as this lives, no other process that
/// claims ports can have it. All processes that start nodes claim ports.
#[derive(Debug)]
pub struct FreePort {
    number: u16,
    _claim: Claim,
}

impl FreePort {
    /// Claims a port.
    ///
    /// # Errors
    /// No port can be found.
    pub fn claim() -> io::Result<Self> {
        claimed(&range())
    }

    /// Its number.
    #[must_use]
    pub fn number(&self) -> u16 {
        self.number
    }
}

impl Held {
    /// Ports without a listener at the moment, and that no other node will use.
    pub(super) fn free() -> io::Result<Self> {
        Self::among(&range())
    }

    fn among(range: &Range<u16>) -> io::Result<Self> {
        let claims = [claimed(range)?, claimed(range)?, claimed(range)?, claimed(range)?, claimed(range)?];
        let [amqp, tls, management, distribution, epmd] = claims.each_ref().map(FreePort::number);
        Ok(Self { ports: Ports { amqp, tls, management, distribution, epmd }, _claims: claims })
    }
}

/// Ports that other programs are unlikely to use for outgoing connections before a node listens
/// there: below the system's range for such connections, if there is room.
fn range() -> Range<u16> {
    const OURS: Range<u16> = 10_000..32_768;
    const ENOUGH: u16 = 1_000;
    let given = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let lowest = given.split_whitespace().next().and_then(|lowest| lowest.parse().ok());
    match lowest {
        Some(lowest) if lowest >= OURS.start + ENOUGH => OURS.start..OURS.end.min(lowest),
        _ => OURS,
    }
}

fn claimed(range: &Range<u16>) -> io::Result<FreePort> {
    const TRIES: usize = 1_000;
    let mut last = io::ErrorKind::AddrInUse.into();
    for port in std::iter::repeat_with(|| fastrand::u16(range.clone())).take(TRIES) {
        match Claim::on(&format!("port/{port}")).and_then(|claim| is_free(port).map(|()| claim)) {
            Ok(claim) => return Ok(FreePort { number: port, _claim: claim }),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Whether a port has no listener, on any address: nodes listen on all addresses for each other.
///
/// # Errors
/// The system's error if the port is taken.
pub(super) fn is_free(port: u16) -> io::Result<()> {
    for address in
        [IpAddr::V4(Ipv4Addr::LOCALHOST), Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()]
    {
        match TcpListener::bind((address, port)) {
            // The machine may have no IPv6.
            Err(error) if address.is_ipv4() || error.kind() == io::ErrorKind::AddrInUse => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeSet,
        io::{BufRead, BufReader, Read},
        process::{Child, Command, Stdio},
        thread,
        time::{Duration, Instant},
    };

    use super::*;

    /// So few ports that processes without claims would collide.
    const NARROW: Range<u16> = 31_000..31_200;

    /// A process that another test starts inherits all sockets until it runs its own program.
    fn eventually(not: &str, is: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(120);
        while !is() {
            assert!(Instant::now() < deadline, "{not}");
            thread::sleep(Duration::from_millis(10));
        }
    }

    fn all(ports: Ports) -> [u16; 5] {
        let Ports { amqp, tls, management, distribution, epmd } = ports;
        [amqp, tls, management, distribution, epmd]
    }

    #[test]
    fn ports_are_a_nodes_until_it_is_gone() {
        let held = Held::free().unwrap();
        let ports = all(held.ports);
        assert_eq!(BTreeSet::from(ports).len(), ports.len());
        let is_claimed = |port: &u16| Claim::on(&format!("port/{port}")).is_err();
        assert!(ports.iter().all(is_claimed));
        drop(held);
        eventually("the ports are still claimed", || !ports.iter().any(is_claimed));
    }

    #[test]
    fn a_port_with_a_listener_on_any_address_is_not_free() {
        let held = Held::free().unwrap();
        let port = held.ports.amqp;
        for address in ["127.0.0.1", "0.0.0.0", "::"] {
            // The machine may have no IPv6.
            let Ok(listener) = TcpListener::bind((address, port)) else { continue };
            assert!(is_free(port).is_err(), "{address}");
            drop(listener);
            eventually("the port is still taken", || is_free(port).is_ok());
        }
    }

    #[test]
    #[ignore = "run by the next test, many times at once"]
    fn holds_ports_until_its_input_ends() {
        let held: Vec<_> = (0..2).map(|_| Held::among(&NARROW).unwrap()).collect();
        let ports: Vec<_> = held.iter().flat_map(|held| all(held.ports)).collect();
        println!("\nports {ports:?}");
        std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
    }

    #[test]
    fn processes_that_allocate_at_once_get_different_ports() {
        let start = || {
            Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "ports::tests::holds_ports_until_its_input_ends"])
                .args(["--ignored", "--nocapture"])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap()
        };
        let mut processes: Vec<Child> = (0..12).map(|_| start()).collect();
        let mut seen = BTreeSet::new();
        for process in &mut processes {
            let output = BufReader::new(process.stdout.as_mut().unwrap());
            let mut lines = output.lines().map(Result::unwrap);
            let line = lines.find(|line| line.starts_with("ports ")).expect("its ports");
            for port in line.trim_start_matches("ports [").trim_end_matches(']').split(", ") {
                assert!(seen.insert(port.parse::<u16>().unwrap()), "{port} twice");
            }
        }
        assert_eq!(seen.len(), 12 * 10);
        for process in processes {
            // Closes its input, which ends it, and reads its remaining output.
            assert!(process.wait_with_output().unwrap().status.success());
        }
    }
}
