//! AMQP URLs.

use url::Url;

use delayline_core::percent;

use super::Secret;

/// Why a URL cannot be used. The URL is never quoted: it may hold a password.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the URL is not usable: {reason}")]
pub struct UrlError {
    reason: String,
}

impl UrlError {
    pub(super) fn no_password(username: &str) -> Self {
        Self {
            reason: format!(
                "user `{username}` has no password; write amqp://USER:PASSWORD@HOST:5672/VHOST, or leave the user \
                 out and call `with_credentials`"
            ),
        }
    }

    /// The fault in the URL, and how to write one.
    #[must_use]
    pub fn reason(&self) -> &str {
        &self.reason
    }
}

/// The parts of an AMQP URL.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct AmqpUrl {
    /// Whether it is `amqps`.
    pub secure: bool,
    /// Host name or address, without brackets.
    pub host: String,
    /// Port; 5672 or 5671 if it names none.
    pub port: u16,
    /// The virtual host; `/` if it names none.
    pub vhost: String,
    /// The user, if it names one.
    pub username: Option<String>,
    /// The password, if it holds one.
    pub password: Option<Secret>,
}

impl AmqpUrl {
    /// Takes a URL apart.
    ///
    /// # Errors
    /// The fault in the URL.
    pub fn parse(text: &str) -> Result<Self, UrlError> {
        let invalid = |reason: &str| UrlError { reason: reason.into() };
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
            return Err(invalid("parameters after `?` or `#` are not supported; use settings instead"));
        }
        let path = url.path().strip_prefix('/').unwrap_or_default();
        // As typed: a parser removes dots from a URL.
        let typed = text.split_once("://").and_then(|(_, rest)| rest.split_once('/')).map_or("", |it| it.1);
        if typed.contains('/') {
            return Err(invalid("a `/` in the vhost must be written `%2F`"));
        }
        if matches!(percent::decode(typed.trim()).as_deref(), Some("." | "..")) {
            return Err(invalid("a URL cannot name a vhost `.` or `..`; use a vhost with another name"));
        }
        let decode = |text: &str| {
            percent::decode(text)
                .ok_or_else(|| invalid("it contains percent-encoded bytes that are not UTF-8"))
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

/// The fault in a URL that cannot be parsed, and how to write one.
pub fn not_a_url(error: url::ParseError, example: &str) -> String {
    use url::ParseError as Wrong;
    let what = match error {
        Wrong::RelativeUrlWithoutBase | Wrong::RelativeUrlWithCannotBeABaseBase => {
            "it does not begin with a scheme and `://`".to_owned()
        }
        Wrong::EmptyHost => "it names no host".to_owned(),
        Wrong::InvalidPort => "its port is not a number from 0 to 65535".to_owned(),
        Wrong::IdnaError | Wrong::InvalidDomainCharacter => "its host is not a name or an address".to_owned(),
        Wrong::InvalidIpv4Address | Wrong::InvalidIpv6Address => {
            "its host is not an address; one with colons needs brackets".to_owned()
        }
        other => other.to_string(),
    };
    format!("{what}; write {example}")
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
    fn fills_in_missing_parts() {
        for text in ["amqp://localhost", "amqp://localhost/"] {
            let url = AmqpUrl::parse(text).unwrap();
            assert_eq!((url.secure, url.port, url.vhost.as_str()), (false, 5672, "/"), "{text}");
            assert!(url.username.is_none() && url.password.is_none());
        }
        assert_eq!(AmqpUrl::parse("amqps://h").unwrap().port, 5671);
        assert_eq!(AmqpUrl::parse("amqp://[::1]:5").unwrap().host, "::1");
    }

    #[test]
    fn names_the_fault_without_quoting_the_url() {
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
    fn an_invalid_url_is_answered_with_an_example() {
        for (text, words) in [
            ("broker.example", "`://`; write amqp://"),
            ("", "`://`; write amqp://"),
            ("amqp://", "it names no host"),
            ("amqp://h:99999", "its port is not a number from 0 to 65535; write amqp://"),
            ("http://h", "the scheme is `http`, not amqp or amqps; write amqp://"),
            ("amqp://h/..", "cannot name a vhost `.` or `..`"),
            ("amqp://h/%2e%2E", "cannot name a vhost `.` or `..`"),
            ("amqp://h/.", "cannot name a vhost `.` or `..`"),
            ("amqp://h/a/..", "a `/` in the vhost must be written `%2F`"),
        ] {
            let error = AmqpUrl::parse(text).err().unwrap().to_string();
            assert!(error.contains(words) && !error.contains("relative URL"), "{text}: {error}");
        }
    }
}
