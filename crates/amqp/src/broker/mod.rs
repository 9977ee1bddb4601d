//! The address of a broker, and the credentials for it.

mod secret;
pub mod url;

use std::{fmt, path::PathBuf, time::Duration};

pub use secret::Secret;
pub use url::{AmqpUrl, UrlError};

/// The credentials for the broker.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Credentials {
    /// A user and password.
    Plain {
        /// The user's name.
        username: String,
        /// The password.
        password: Secret,
    },
    /// The broker takes the user from the client certificate (`EXTERNAL`).
    External,
}

impl Credentials {
    /// A user and password.
    pub fn plain(username: impl Into<String>, password: impl Into<Secret>) -> Self {
        Self::Plain { username: username.into(), password: password.into() }
    }

    /// The user's name, as far as the client knows it. Only the broker maps a certificate to a
    /// name.
    #[must_use]
    pub fn username(&self) -> Option<&str> {
        match self {
            Self::Plain { username, .. } => Some(username),
            Self::External => None,
        }
    }
}

/// Files for TLS. If empty, the system's certificate authorities apply, without a client
/// certificate.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tls {
    /// PEM file of the authorities to trust instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// PEM files of the client certificate and of its key.
    pub client: Option<(PathBuf, PathBuf)>,
}

impl Tls {
    /// Trusts the authorities in this PEM file instead of the system's.
    #[must_use]
    pub fn with_ca_file(mut self, file: impl Into<PathBuf>) -> Self {
        self.ca_file = Some(file.into());
        self
    }

    /// Shows the broker a client certificate, from PEM files of it and of its key.
    #[must_use]
    pub fn with_client(mut self, certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        self.client = Some((certificate.into(), key.into()));
        self
    }
}

/// The AMQP side of a broker.
///
/// ```
/// use std::time::Duration;
/// use delayline::broker::{Broker, Credentials};
///
/// let broker = Broker::from_url("amqps://broker.example/orders")?
///     .with_credentials(Credentials::plain("billing", "secret"))
///     .with_other_host("second.example", 5671)
///     .with_connect_timeout(Duration::from_secs(3));
/// assert_eq!(broker.to_string(), "amqps://broker.example:5671/orders");
/// # Ok::<(), delayline::broker::UrlError>(())
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Broker {
    /// Host name or address.
    pub host: String,
    /// Port.
    pub port: u16,
    /// Further nodes of the same cluster, as host and port. They are tried in this order if the
    /// earlier ones do not answer.
    pub other_hosts: Vec<(String, u16)>,
    /// The virtual host.
    pub vhost: String,
    /// TLS, for `amqps`.
    pub tls: Option<Tls>,
    /// The credentials.
    pub credentials: Credentials,
    /// How long connecting may take, TLS and login included.
    pub connect_timeout: Duration,
    /// How long one request, such as a recall, may wait for its answer, 100 ms to 24 h.
    pub request_timeout: Duration,
    /// The heartbeat interval in seconds, 1 or more. A broker that is silent for two intervals is
    /// given up.
    pub heartbeat: u16,
}

impl Broker {
    /// How long connecting may take by default.
    pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
    /// How long one request may wait for its answer by default.
    pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
    /// The default heartbeat interval in seconds.
    pub const HEARTBEAT: u16 = 10;

    /// The broker at a URL, `amqp://USER:PASSWORD@HOST:PORT/VHOST` or `amqps://…`. Missing parts
    /// default to the user `guest` with its password, the default port, and the vhost `/`.
    ///
    /// # Errors
    /// The URL is invalid, or its user has no password there.
    pub fn from_url(url: &str) -> Result<Self, UrlError> {
        let url = AmqpUrl::parse(url)?;
        let credentials =
            or_guest(url.username, url.password).map_err(|name| UrlError::no_password(&name))?;
        let broker = Self::new(url.host, url.port, url.vhost, credentials);
        Ok(if url.secure { broker.with_tls(Tls::default()) } else { broker })
    }

    /// A broker without TLS and with defaults for everything else.
    pub fn new(
        host: impl Into<String>,
        port: u16,
        vhost: impl Into<String>,
        credentials: Credentials,
    ) -> Self {
        Self {
            host: host.into(),
            port,
            other_hosts: Vec::new(),
            vhost: vhost.into(),
            tls: None,
            credentials,
            connect_timeout: Self::CONNECT_TIMEOUT,
            request_timeout: Self::REQUEST_TIMEOUT,
            heartbeat: Self::HEARTBEAT,
        }
    }

    /// Logs in with these.
    #[must_use]
    pub fn with_credentials(mut self, credentials: Credentials) -> Self {
        self.credentials = credentials;
        self
    }

    /// Uses TLS, with these files.
    #[must_use]
    pub fn with_tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Works in this virtual host.
    #[must_use]
    pub fn with_vhost(mut self, vhost: impl Into<String>) -> Self {
        self.vhost = vhost.into();
        self
    }

    /// Adds another node of the cluster, tried if the earlier ones do not answer.
    #[must_use]
    pub fn with_other_host(mut self, host: impl Into<String>, port: u16) -> Self {
        self.other_hosts.push((host.into(), port));
        self
    }

    /// Sets how long connecting may take.
    #[must_use]
    pub fn with_connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Sets the heartbeat interval in seconds. 0 becomes 1: without heartbeats a dead broker
    /// goes unnoticed.
    #[must_use]
    pub fn with_heartbeat(mut self, seconds: u16) -> Self {
        self.heartbeat = seconds.max(1);
        self
    }
}

/// A user and password. `guest` replaces missing parts.
///
/// # Errors
/// The name of a user other than `guest` who has no password.
pub fn or_guest(username: Option<String>, password: Option<Secret>) -> Result<Credentials, String> {
    match (username, password) {
        (Some(name), None) if name != "guest" => Err(name),
        (name, password) => Ok(Credentials::Plain {
            username: name.unwrap_or_else(|| "guest".into()),
            password: password.unwrap_or_else(|| Secret::new("guest")),
        }),
    }
}

/// A broker at each of its addresses, in the order to try them.
pub fn candidates(broker: &Broker) -> impl Iterator<Item = Broker> + '_ {
    let first = std::iter::once((broker.host.clone(), broker.port));
    first.chain(broker.other_hosts.iter().cloned()).map(|(host, port)| Broker {
        host,
        port,
        other_hosts: Vec::new(),
        ..broker.clone()
    })
}

impl fmt::Display for Broker {
    /// The address, without credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls.is_some() { "amqps" } else { "amqp" };
        let vhost = if self.vhost == "/" { "" } else { &self.vhost };
        let slash = if vhost.is_empty() { "" } else { "/" };
        let (open, close) = if self.host.contains(':') { ("[", "]") } else { ("", "") };
        write!(f, "{scheme}://{open}{}{close}:{}{slash}{vhost}", self.host, self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_needs_a_password_and_guest_has_one() {
        let broker = Broker::from_url("amqp://localhost").unwrap();
        assert_eq!(broker.credentials.username(), Some("guest"));
        let error = Broker::from_url("amqp://billing@localhost").unwrap_err().to_string();
        assert!(error.contains("`billing`") && error.contains("password"), "{error}");
        let broker = Broker::from_url("amqp://billing:hunter2@localhost").unwrap();
        assert_eq!(broker.credentials.username(), Some("billing"));
        assert!(!format!("{broker:?} {broker}").contains("hunter2"));
    }

    #[test]
    fn every_address_is_a_candidate() {
        let broker = Broker::from_url("amqp://a/v").unwrap().with_other_host("b", 1).with_other_host("c", 2);
        let all: Vec<_> = candidates(&broker).map(|broker| broker.to_string()).collect();
        assert_eq!(all, ["amqp://a:5672/v", "amqp://b:1/v", "amqp://c:2/v"]);
    }
}
