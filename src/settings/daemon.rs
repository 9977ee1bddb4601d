//! What a daemon does beside its work: it can be looked at, and it sends a canary.

use std::{net::SocketAddr, time::Duration};

use super::{Secret, SettingsError, check::value};

/// Where a daemon can be looked at.
#[derive(Debug, Clone)]
pub struct WebSettings {
    /// The address and port; `None` for nowhere.
    pub listen: Option<SocketAddr>,
    /// Whether somebody asked for this address: if it is taken, that is an error. One
    /// that nobody asked for may as well be another.
    pub explicit: bool,
    /// What whoever looks has to know; needed unless the address is a loopback one.
    pub token: Option<Secret>,
}

impl WebSettings {
    /// Where a daemon listens unless told otherwise.
    pub const LISTEN: SocketAddr =
        SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 15_628);

    /// Where to listen: an address with a port, `none`, or the default.
    ///
    /// # Errors
    /// It is no address.
    pub fn new(listen: Option<&str>, token: Option<Secret>) -> Result<Self, SettingsError> {
        let address = match listen {
            None => Some(Self::LISTEN),
            Some("none") => None,
            Some(text) => Some(address(text)?),
        };
        Ok(Self { listen: address, explicit: listen.is_some(), token })
    }
}

fn address(text: &str) -> Result<SocketAddr, SettingsError> {
    let numeric = text.strip_prefix("localhost:").map(|port| format!("127.0.0.1:{port}"));
    numeric.as_deref().unwrap_or(text).parse().map_err(|_| {
        let reason = format!(
            "`{text}` is not an address and a port, such as 127.0.0.1:15628 or [::]:15628, nor `none`"
        );
        value("web_listen", &reason)
    })
}

/// How a canary flies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CanarySettings {
    /// Whether `delayline serve` has one.
    pub enabled: bool,
    /// From one message to the next, 1 s or more.
    pub interval: Duration,
    /// The highest level it goes through, 0 to 9: 2^6 s by default.
    pub horizon: u8,
}

impl CanarySettings {
    /// The highest horizon: what waits longer than the queue of a canary stands without
    /// it would end among the unroutable messages.
    pub const MAX_HORIZON: u8 = 9;
    /// The default interval. With the queues on its way, a message is entered into 3.1
    /// queues on average, so a canary adds 1.6 messages/s.
    pub const INTERVAL: Duration = Duration::from_secs(2);
    /// The default horizon, 2^6 s.
    pub const HORIZON: u8 = 6;

    pub(super) fn new(
        enabled: Option<bool>,
        interval: Duration,
        horizon: Option<u8>,
    ) -> Result<Self, SettingsError> {
        if interval < Duration::from_secs(1) {
            return Err(value("canary_interval", "use 1s or more"));
        }
        let horizon = horizon.unwrap_or(Self::HORIZON);
        if horizon > Self::MAX_HORIZON {
            return Err(value("canary_horizon", "use a level from 0 to 9"));
        }
        Ok(Self { enabled: enabled.unwrap_or(true), interval, horizon })
    }
}
