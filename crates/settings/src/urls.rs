//! Hosts and URLs as users type them.

use delayline_amqp::broker::{Secret, url::not_a_url};
use delayline_core::percent;
use url::Url;

use crate::error::SettingsError;

/// Further hosts, as `host`, `host:port` or `[address]:port`, separated by commas.
pub(crate) fn hosts(text: &str, default_port: u16) -> Result<Vec<(String, u16)>, SettingsError> {
    text.split(',')
        .map(|part| {
            let part = part.trim();
            let invalid = || SettingsError::Value {
                key: "other_hosts",
                // It may contain a password.
                reason: match part.contains('@') {
                    true => {
                        "a host contains an `@`; write host or host:port, with user and password in `url`"
                            .into()
                    }
                    false => format!("`{part}` is not a host or host:port"),
                },
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

/// Checks the base URL of the management API, and moves credentials out of it.
pub(crate) fn management_url(text: &str) -> Result<(Url, Option<(String, Secret)>), SettingsError> {
    let invalid = |reason: &str| SettingsError::Url { key: "management_url", reason: reason.into() };
    let mut url =
        Url::parse(text).map_err(|error| invalid(&not_a_url(error, "http://HOST:15672, or `none`")))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(invalid(&format!(
            "the scheme is `{}`, not http or https; write http://HOST:15672, or `none`",
            url.scheme()
        )));
    }
    let decode = |text: &str| {
        percent::decode(text).ok_or_else(|| invalid("it contains percent-encoded bytes that are not UTF-8"))
    };
    let credentials = match url.password() {
        Some(password) => Some((decode(url.username())?, Secret::new(decode(password)?))),
        None => None,
    };
    // Neither can fail on a URL with a host, which http always has.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    Ok((url, credentials))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_url_is_answered_with_an_example() {
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
            let error = hosts(text, 5672).expect_err(text).to_string();
            assert!(!error.contains("u:p"), "a password: {error}");
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
