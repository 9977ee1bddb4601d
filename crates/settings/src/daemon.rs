//! A daemon's additional tasks: its pages, and a canary.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use delayline_amqp::broker::Secret;
use url::Url;

use crate::error::{SettingsError, value};

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
    /// Where commands find the daemon, if a setting names it.
    pub url: Option<Url>,
}

impl WebSettings {
    /// The default address.
    pub const LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 15_628);

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
        Ok(Self { listen: address, explicit: listen.is_some(), token, url: None })
    }
}

impl WebSettings {
    /// The URL of a daemon, as it is written.
    ///
    /// # Errors
    /// The text is not such a URL.
    pub fn url_of(text: &str) -> Result<Url, SettingsError> {
        let url = Url::parse(text).ok().filter(|url| url.scheme() == "http" && url.has_host());
        let plain = url.filter(|url| url.username().is_empty() && url.password().is_none());
        plain.ok_or_else(|| value("serve_url", "write it as http://127.0.0.1:15628, without a password"))
    }

    /// Where commands find the daemon: at its URL, or where it listens, if a setting names one of them.
    #[must_use]
    pub fn found_at(&self) -> Option<Url> {
        let listens = || {
            let address = self.listen.filter(|address| self.explicit && address.port() != 0)?;
            let host = match address.ip() {
                ip if !ip.is_unspecified() => ip,
                IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
                IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
            };
            Url::parse(&format!("http://{}", SocketAddr::new(host, address.port()))).ok()
        };
        self.url.clone().or_else(listens)
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

/// The settings of a daemon's index of scheduled messages.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct IndexSettings {
    /// The headers that it keeps, in their order.
    pub headers: Vec<String>,
    /// The most bytes of all journals in it.
    pub bytes: u64,
}

impl IndexSettings {
    /// The most headers that it keeps.
    pub const MAX_HEADERS: usize = 8;
    /// The default size. A million messages took 120 MB.
    pub const BYTES: u64 = 4_000_000_000;

    pub(crate) fn new(headers: Option<&str>, bytes: Option<u64>) -> Result<Self, SettingsError> {
        let mut kept = Vec::new();
        for name in headers.unwrap_or_default().split(',').map(str::trim).filter(|name| !name.is_empty()) {
            if !kept.iter().any(|known| known == name) {
                kept.push(name.to_owned());
            }
        }
        if kept.len() > Self::MAX_HEADERS {
            return Err(value("index_headers", &format!("name {} headers at most", Self::MAX_HEADERS)));
        }
        let bytes = bytes.unwrap_or(Self::BYTES);
        if bytes < 10_000_000 {
            return Err(value("index_bytes", "use 10000000 (10 MB) or more"));
        }
        Ok(Self { headers: kept, bytes })
    }
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
