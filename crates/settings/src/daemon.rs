//! A daemon's additional tasks: its pages, and a canary.

use std::{net::SocketAddr, time::Duration};

use delayline_amqp::broker::Secret;

use super::{SettingsError, check::value};

/// The address of a daemon's pages.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct WebSettings {
    /// The address and port; `None` for no pages.
    pub listen: Option<SocketAddr>,
    /// Whether the user chose this address. Then it is an error if it is taken. Otherwise a nearby
    /// port is used.
    pub explicit: bool,
    /// The token that visitors need. It is required unless the address is a loopback address.
    pub token: Option<Secret>,
}

impl WebSettings {
    /// The default address.
    pub const LISTEN: SocketAddr =
        SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 15_628);

    /// The address to listen on: an address with a port, `none`, or the default.
    ///
    /// # Errors
    /// The text is not an address.
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
        let reason =
            format!("`{text}` is not an address and a port; write 127.0.0.1:15628, [::]:15628 or `none`");
        value("web_listen", &reason)
    })
}

/// The settings of a canary.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CanarySettings {
    /// Whether `delayline serve` runs a canary.
    pub enabled: bool,
    /// The time from one message to the next, 1 s or more.
    pub interval: Duration,
    /// The highest level that its messages pass, 0 to 9; 6 (2^6 s) by default.
    pub horizon: u8,
}

impl CanarySettings {
    /// The highest horizon. A message that waits longer than the canary's queue lives would become
    /// unroutable.
    pub const MAX_HORIZON: u8 = 9;
    /// The default interval. A message enters 3.1 queues on average, so a canary adds 1.6
    /// messages/s.
    pub const INTERVAL: Duration = Duration::from_secs(2);
    /// The default horizon, 2^6 s.
    pub const HORIZON: u8 = 6;

    pub(crate) fn new(
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
