//! Claims that reserve a resource for one process, for as long as the claim lives.

use std::io;

/// A claim to a resource in this machine's network, such as a port without a listener. No other
/// process can claim it until the claim is dropped or its process ends, even by a crash.
#[derive(Debug)]
pub(super) struct Claim(#[expect(dead_code, reason = "it is ours for as long as this lives")] Hold);

#[cfg(target_os = "linux")]
type Hold = std::os::unix::net::UnixDatagram;

/// Claims it by binding a socket in the abstract namespace of names. Like ports, each network
/// namespace has one, and it leaves no file behind.
#[cfg(target_os = "linux")]
fn hold(what: &str) -> io::Result<Hold> {
    use std::os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixDatagram},
    };
    UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(format!("delayline/{what}"))?)
}

/// On other systems, the claim excludes only other nodes of this process.
#[cfg(not(target_os = "linux"))]
type Hold = in_process::Hold;

#[cfg(not(target_os = "linux"))]
use in_process::hold;

#[cfg(not(target_os = "linux"))]
mod in_process {
    use std::{
        collections::BTreeSet,
        io,
        sync::{Mutex, MutexGuard, PoisonError},
    };

    #[derive(Debug)]
    pub(super) struct Hold(String);

    fn held() -> MutexGuard<'static, BTreeSet<String>> {
        static HELD: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
        HELD.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn hold(what: &str) -> io::Result<Hold> {
        match held().insert(what.into()) {
            true => Ok(Hold(what.into())),
            false => Err(io::ErrorKind::AddrInUse.into()),
        }
    }

    impl Drop for Hold {
        fn drop(&mut self) {
            held().remove(&self.0);
        }
    }
}

impl Claim {
    /// Claims a resource by its name.
    ///
    /// # Errors
    /// The resource is already claimed, or that cannot be checked.
    pub(super) fn on(what: &str) -> io::Result<Self> {
        hold(what).map(Self)
    }
}
