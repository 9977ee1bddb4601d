//! Claims by which one process keeps others off something, for as long as it lives.

use std::io;

/// A claim to something in the network of this machine, such as a port on which nothing
/// listens yet. Nobody else can claim it until this is dropped or the process ends, however
/// it ends.
#[derive(Debug)]
pub(super) struct Claim(#[expect(dead_code, reason = "it is ours for as long as this lives")] Hold);

#[cfg(target_os = "linux")]
type Hold = std::os::unix::net::UnixDatagram;

/// Claims it by binding a socket in the abstract namespace of names, of which there is one
/// in each network namespace, as of ports, and which leaves no file behind.
#[cfg(target_os = "linux")]
fn hold(what: &str) -> io::Result<Hold> {
    use std::os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixDatagram},
    };
    UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(format!("delayline/{what}"))?)
}

/// On other systems only other nodes of this process are kept away.
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
    /// Claims something by its name.
    ///
    /// # Errors
    /// If it is somebody else's, or that cannot be told.
    pub(super) fn on(what: &str) -> io::Result<Self> {
        hold(what).map(Self)
    }
}
