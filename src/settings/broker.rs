//! The two sides of a broker, AMQP and HTTP, and how to reach them.

use std::{fmt, path::PathBuf, time::Duration};

use percent_encoding::percent_decode_str;
use url::Url;

use super::{Secret, SettingsError};

/// Who we are to the broker.
#[derive(Debug, Clone)]
pub enum Credentials {
    /// A user and password.
    Plain {
        /// The user's name.
        username: String,
        /// The password.
        password: Secret,
    },
    /// The client certificate says it (`EXTERNAL`).
    External,
}

/// Files for TLS; empty means the system's certificate authorities and no
/// client certificate.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tls {
    /// PEM file of the authorities to trust instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// PEM files of the client certificate and of its key.
    pub client: Option<(PathBuf, PathBuf)>,
}

/// The AMQP side of a broker.
#[derive(Debug, Clone)]
pub struct Broker {
    /// Host name or address.
    pub host: String,
    /// Port.
    pub port: u16,
    /// Further nodes of the same cluster, as host and port, tried in this order when
    /// those before do not answer.
    pub other_hosts: Vec<(String, u16)>,
    /// The virtual host.
    pub vhost: String,
    /// TLS, for `amqps`.
    pub tls: Option<Tls>,
    /// Who we are.
    pub credentials: Credentials,
    /// How long connecting may take, TLS and login included.
    pub connect_timeout: Duration,
    /// How long one request of a [`Session`](crate::amqp::Session) may wait for its answer,
    /// 100 ms to 24 h.
    pub request_timeout: Duration,
    /// The heartbeat interval in seconds; a silent broker is given up after two.
    pub heartbeat: u16,
}

/// The management HTTP API of a broker.
#[derive(Debug, Clone)]
pub struct Management {
    /// Its base URL, without credentials.
    pub url: Url,
    /// The base URLs of further nodes of the same cluster, tried in this order when
    /// those before cannot be reached.
    pub other_urls: Vec<Url>,
    /// Who we are there.
    pub username: String,
    /// The password.
    pub password: Secret,
    /// TLS, for `https`.
    pub tls: Tls,
    /// Whether the user named it, or it was derived from the AMQP URL.
    pub explicit: bool,
}

impl fmt::Display for Broker {
    /// The address, without credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls.is_some() { "amqps" } else { "amqp" };
        let vhost = if self.vhost == "/" { "" } else { &self.vhost };
        let slash = if vhost.is_empty() { "" } else { "/" };
        write!(f, "{scheme}://{}:{}{slash}{vhost}", self.host, self.port)
    }
}

impl Broker {
    /// This broker at each of its addresses, in the order to try them.
    pub(crate) fn candidates(&self) -> impl Iterator<Item = Self> + '_ {
        let first = std::iter::once((self.host.clone(), self.port));
        first.chain(self.other_hosts.iter().cloned()).map(|(host, port)| Self {
            host,
            port,
            other_hosts: Vec::new(),
            ..self.clone()
        })
    }
}

/// Further hosts, as `host`, `host:port` or `[address]:port`, separated by commas.
pub(super) fn hosts(text: &str, default_port: u16) -> Result<Vec<(String, u16)>, SettingsError> {
    text.split(',')
        .map(|part| {
            let part = part.trim();
            let invalid = || SettingsError::Value {
                key: "other_hosts",
                reason: format!("`{part}` is not a host or host:port"),
            };
            let plain = !part.is_empty() && !part.contains(['/', '@', '?', '#']);
            let url = Url::parse(&format!("amqp://{part}")).ok().filter(|_| plain).ok_or_else(invalid)?;
            let host = match url.host().ok_or_else(invalid)? {
                url::Host::Ipv6(address) => address.to_string(),
                other => other.to_string(),
            };
            Ok((host, url.port().unwrap_or(default_port)))
        })
        .collect()
}

/// What an AMQP URL says.
pub(super) struct AmqpUrl {
    pub(super) secure: bool,
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) vhost: String,
    pub(super) username: Option<String>,
    pub(super) password: Option<Secret>,
}

impl AmqpUrl {
    /// Takes a URL apart. Errors never quote it, since it may hold a password.
    pub(super) fn parse(text: &str) -> Result<Self, SettingsError> {
        let invalid = |reason: &str| SettingsError::Url { key: "url", reason: reason.into() };
        let url =
            Url::parse(text).map_err(|error| invalid(&not_a_url(error, "amqp://USER@HOST:5672/VHOST")))?;
        let (secure, default_port) = match url.scheme() {
            "amqp" => (false, 5672),
            "amqps" => (true, 5671),
            other => {
                return Err(invalid(&format!(
                    "the scheme is `{other}`, not amqp or amqps; write amqp://USER@HOST:5672/VHOST"
                )));
            }
        };
        if url.query().is_some() || url.fragment().is_some() {
            return Err(invalid("parameters after `?` or `#` are not supported; use the settings file"));
        }
        let path = url.path().strip_prefix('/').unwrap_or_default();
        if path.contains('/') {
            return Err(invalid("a `/` within the vhost must be written `%2F`"));
        }
        let decode = |text: &str| {
            percent_decode_str(text)
                .decode_utf8()
                .map(String::from)
                .map_err(|_| invalid("it holds percent-encoded bytes that are not UTF-8"))
        };
        let vhost = if path.is_empty() { "/".into() } else { decode(path)? };
        let username = Some(url.username()).filter(|name| !name.is_empty()).map(decode).transpose()?;
        let password = url.password().map(decode).transpose()?.map(Secret::new);
        let host = match url.host() {
            Some(url::Host::Ipv6(address)) => address.to_string(),
            Some(host) => decode(&host.to_string())?,
            None => return Err(invalid("it names no host")),
        };
        Ok(Self { secure, host, port: url.port().unwrap_or(default_port), vhost, username, password })
    }
}

/// What is wrong with a URL that cannot be read, and how it is written.
fn not_a_url(error: url::ParseError, example: &str) -> String {
    use url::ParseError as Wrong;
    let what = match error {
        Wrong::RelativeUrlWithoutBase | Wrong::RelativeUrlWithCannotBeABaseBase => {
            "it does not begin with a scheme and `://`".to_owned()
        }
        Wrong::EmptyHost => "it names no host".to_owned(),
        Wrong::InvalidPort => "its port is not a number from 0 to 65535".to_owned(),
        Wrong::IdnaError | Wrong::InvalidDomainCharacter => "its host is not a name or an address".to_owned(),
        Wrong::InvalidIpv4Address | Wrong::InvalidIpv6Address => {
            "its host is not an address; one with colons stands in brackets".to_owned()
        }
        other => other.to_string(),
    };
    format!("{what}; write {example}")
}

/// Checks the base URL of the management API and takes credentials out of it.
pub(super) fn management_url(text: &str) -> Result<(Url, Option<(String, Secret)>), SettingsError> {
    let invalid = |reason: &str| SettingsError::Url { key: "management_url", reason: reason.into() };
    let mut url =
        Url::parse(text).map_err(|error| invalid(&not_a_url(error, "http://HOST:15672, or `none`")))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(invalid(&format!(
            "the scheme is `{}`, not http or https; write http://HOST:15672, or `none`",
            url.scheme()
        )));
    }
    let decode = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
    let credentials = url.password().map(|password| (decode(url.username()), Secret::new(decode(password))));
    // Neither can fail on a URL with a host, which http always has.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    Ok((url, credentials))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_a_url_apart() {
        let url = AmqpUrl::parse("amqps://us%40er:p%2Fw@broker.example:5999/or%2Fders").unwrap();
        assert!(url.secure);
        assert_eq!((url.host.as_str(), url.port, url.vhost.as_str()), ("broker.example", 5999, "or/ders"));
        assert_eq!(url.username.as_deref(), Some("us@er"));
        assert_eq!(url.password.unwrap().expose(), "p/w");
    }

    #[test]
    fn fills_in_what_is_left_out() {
        for text in ["amqp://localhost", "amqp://localhost/"] {
            let url = AmqpUrl::parse(text).unwrap();
            assert_eq!((url.secure, url.port, url.vhost.as_str()), (false, 5672, "/"), "{text}");
            assert!(url.username.is_none() && url.password.is_none());
        }
        assert_eq!(AmqpUrl::parse("amqps://h").unwrap().port, 5671);
        assert_eq!(AmqpUrl::parse("amqp://[::1]:5").unwrap().host, "::1");
    }

    #[test]
    fn says_what_is_wrong_without_quoting_the_url() {
        for text in [
            "amqp://u:hunter2@h/a/b",
            "amqp://u:hunter2@h?heartbeat=1",
            "http://u:hunter2@h",
            "amqp://u:hunter2@",
            "amqp://u:hunter2@h:99999",
            "u:hunter2",
            "hunter2",
            "amqp://u:hunter2@h:port",
            "amqp://u:hunter2@[::1",
            "amqp://u:%ffhunter2@h",
        ] {
            let error = AmqpUrl::parse(text).err().unwrap_or_else(|| panic!("{text} was taken"));
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn what_is_not_a_url_is_answered_with_how_one_is_written() {
        for (text, words) in [
            ("broker.example", "`://`; write amqp://"),
            ("", "`://`; write amqp://"),
            ("amqp://", "it names no host"),
            ("amqp://h:99999", "its port is not a number from 0 to 65535; write amqp://"),
            ("http://h", "the scheme is `http`, not amqp or amqps; write amqp://"),
        ] {
            let error = AmqpUrl::parse(text).err().unwrap().to_string();
            assert!(error.contains(words) && !error.contains("relative URL"), "{text}: {error}");
        }
        for text in ["broker.example", "amqp://h"] {
            let error = management_url(text).err().unwrap().to_string();
            assert!(error.contains("write http://HOST:15672, or `none`"), "{text}: {error}");
        }
    }

    #[test]
    fn reads_further_hosts() {
        let expected = [("b".to_owned(), 5672), ("c.example".into(), 1), ("::1".into(), 2)];
        assert_eq!(hosts("b, c.example:1,[::1]:2", 5672).unwrap(), expected);
        for text in ["", "b,", "amqp://b", "u:p@b", "b:99999", "b/vhost"] {
            assert!(hosts(text, 5672).is_err(), "{text} was taken");
        }
    }

    #[test]
    fn takes_credentials_out_of_the_management_url() {
        let (url, credentials) = management_url("http://u:hunter2@h:15672/prefix").unwrap();
        assert_eq!(url.as_str(), "http://h:15672/prefix");
        assert_eq!(credentials.unwrap().0, "u");
        assert!(management_url("amqp://h").is_err());
    }
}
