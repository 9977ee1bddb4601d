//! Asking a daemon that runs whether it can do its work.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value as Json;
use ureq::{
    Agent, Body,
    http::{Response, header},
};
use url::Url;

use delayline_broker::http_failure;
use delayline_settings::WebSettings;

/// How long the daemon may take. It answers from memory.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The state that a daemon reports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct Health {
    /// The address of the daemon.
    #[schemars(with = "String")]
    pub address: SocketAddr,
    /// Whether it can do its work.
    pub ready: bool,
    /// Its dependencies; `None` if it shows them only to holders of its token.
    pub checks: Option<Vec<HealthCheck>>,
}

/// A dependency of a daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct HealthCheck {
    /// Its name in a word, such as `broker`.
    pub name: String,
    /// Whether the check passed.
    pub ok: bool,
    /// The reason.
    pub reason: String,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HealthError {
    /// The settings name no address.
    #[error("{0}; give the address on which the daemon listens (--listen or web_listen)")]
    NoAddress(&'static str),
    /// No answer came.
    #[error(
        "no daemon answers at {address}: {reason}; is `delayline serve` running, and does it listen there?"
    )]
    Silent {
        /// The address of the daemon.
        address: SocketAddr,
        /// The reason.
        reason: String,
    },
    /// The answer is not from a daemon of ours.
    #[error("another program than `delayline serve` listens at {address}: {reason}")]
    Other {
        /// The address of the daemon.
        address: SocketAddr,
        /// Its answer.
        reason: String,
    },
}

/// Why a daemon gave no answer to a question.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AskError {
    /// It cannot be asked.
    #[error("{0} cannot be asked: {1}")]
    Silent(Url, String),
    /// It refuses.
    #[error("{0} answers: {1}")]
    Refused(Url, String),
}

/// Asks the daemon of the settings for JSON, with its token.
///
/// # Errors
/// No answer came, or a refusal.
pub fn ask_for<T: DeserializeOwned>(
    settings: &WebSettings,
    base: &Url,
    path: &str,
    query: &[(&str, String)],
) -> Result<T, AskError> {
    let mut url = base.clone();
    url.set_path(path);
    url.query_pairs_mut().clear().extend_pairs(query);
    let silent = |reason: String| AskError::Silent(base.clone(), reason);
    let mut response = get(settings, url.as_str()).map_err(|error| silent(http_failure(&error)))?;
    let (status, body) = (response.status().as_u16(), response.body_mut());
    if status == 200 {
        return body.read_json().map_err(|error| silent(http_failure(&error)));
    }
    let reason = match (status, body.read_json::<Json>().ok().as_ref().and_then(|it| it["error"].as_str())) {
        (_, Some(reason)) => reason.to_owned(),
        (401, None) => "the token is wrong or missing; set web_token_file".to_owned(),
        (status, None) => format!("status {status}"),
    };
    Err(AskError::Refused(base.clone(), reason))
}

/// Sends a request with the token of the settings.
fn get(settings: &WebSettings, url: &str) -> Result<Response<Body>, ureq::Error> {
    let config = Agent::config_builder()
        .timeout_global(Some(TIMEOUT))
        .http_status_as_error(false)
        .max_redirects(0)
        // It is near, so proxies in the environment do not apply.
        .proxy(None);
    let request = config.build().new_agent().get(url);
    match &settings.token {
        Some(token) => request.header(header::AUTHORIZATION, format!("Bearer {}", token.current().expose())),
        None => request,
    }
    .call()
}

/// The answer of `/readyz`.
#[derive(Deserialize)]
struct Answer {
    status: String,
    checks: Option<Vec<HealthCheck>>,
}

/// Asks the daemon that has these settings, with its token.
///
/// # Errors
/// See [`HealthError`].
pub fn ask(settings: &WebSettings) -> Result<Health, HealthError> {
    let address = address(settings.listen)?;
    let silent = |error: ureq::Error| HealthError::Silent { address, reason: http_failure(&error) };
    let mut response = get(settings, &format!("http://{address}/readyz")).map_err(silent)?;
    let answer = response.body_mut().read_json::<Answer>();
    match (response.status().as_u16(), answer) {
        (200 | 503, Ok(answer)) if ["ready", "not ready"].contains(&answer.status.as_str()) => {
            Ok(Health { address, ready: answer.status == "ready", checks: answer.checks })
        }
        (status, _) => Err(HealthError::Other { address, reason: format!("it answers with {status}") }),
    }
}

/// Where to ask a daemon that listens on an address: on all addresses of the machine, it is
/// found at a loopback one.
fn address(listen: Option<SocketAddr>) -> Result<SocketAddr, HealthError> {
    let Some(mut address) = listen else {
        return Err(HealthError::NoAddress("the daemon has no page (web_listen is `none`)"));
    };
    if address.port() == 0 {
        return Err(HealthError::NoAddress("with port 0, the daemon takes any free port"));
    }
    if address.ip().is_unspecified() {
        address.set_ip(match address.ip() {
            IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    Ok(address)
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        net::TcpListener,
        thread,
    };

    use super::*;

    #[test]
    fn a_daemon_on_all_addresses_is_on_this_one() {
        let asked = |listen: &str| address(Some(listen.parse().unwrap())).map(|it| it.to_string());
        assert_eq!(asked("0.0.0.0:15628").unwrap(), "127.0.0.1:15628");
        assert_eq!(asked("[::]:1").unwrap(), "[::1]:1");
        assert_eq!(asked("10.1.2.3:1").unwrap(), "10.1.2.3:1");
        assert!(asked("127.0.0.1:0").unwrap_err().to_string().contains("any free port"));
        assert!(address(None).unwrap_err().to_string().contains("web_listen"));
    }

    #[test]
    fn what_is_no_daemon_is_not_taken_for_one() {
        for answer in [
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
            "HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n{\"status\":\"ok\"}",
            "HTTP/1.1 404 Not Found\r\nContent-Length: 18\r\n\r\n{\"status\":\"ready\"}",
            "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
        ] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            let server = thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                let _ = stream.read(&mut [0; 4096]);
                stream.write_all(answer.as_bytes()).unwrap();
            });
            let settings = WebSettings::new(Some(&address.to_string()), None).unwrap();
            let error = ask(&settings).unwrap_err();
            assert!(matches!(error, HealthError::Other { .. }), "{answer}: {error}");
            server.join().unwrap();
        }
    }
}
