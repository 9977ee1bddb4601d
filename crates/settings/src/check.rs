//! From typed values to checked settings.

use std::{
    num::{NonZeroU8, NonZeroU32},
    path::{Path, PathBuf},
    time::Duration,
};

use delayline_amqp::broker::{AmqpUrl, Broker, Credentials, Secret, Tls, candidates, or_guest};
use delayline_client::router::RouterBuilder;
use delayline_core::{
    duration,
    message::{MaxDelayError, MaxRecalls, MaxRecallsError, Quota},
    topology::{QueueTypeError, TopologySettings, Unit},
};
use url::Url;

use crate::{
    daemon::{CanarySettings, IndexSettings, WebSettings},
    error::{SettingsError, value},
    layout::{Layout, LayoutError},
    raw::Raw,
    settings::{Management, RouterSettings, Settings},
    text::read_text,
    urls::{hosts, management_url},
};

/// Checks all values, and fills in the defaults.
pub(crate) fn check(raw: Raw) -> Result<Settings, SettingsError> {
    let url = AmqpUrl::parse(raw.url.as_deref().unwrap_or("amqp://localhost"))?;
    let mut tls = Tls::default();
    tls.ca_file = raw.ca_file;
    tls.client = match (raw.client_cert_file, raw.client_key_file) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (None, None) => None,
        (Some(_), None) => return Err(value("client_key_file", "client_cert_file needs it, too")),
        (None, Some(_)) => return Err(value("client_cert_file", "client_key_file needs it, too")),
    };
    let app_password = secret("app_password_file", raw.app_password, raw.app_password_file)?;
    let named_user = raw.username.or(url.username);
    let password = secret("password_file", raw.password, raw.password_file)?.or(url.password);
    let credentials = match (&named_user, &password) {
        (None, None) if url.secure && tls.client.is_some() => Credentials::External,
        _ => or_guest(named_user, password).map_err(|name| {
            value("password", &format!("user `{name}` has none; set DELAYLINE_PASSWORD or password_file"))
        })?,
    };
    let mut broker = Broker::new(url.host, url.port, url.vhost, credentials);
    broker.tls = url.secure.then(|| tls.clone());
    broker.connect_timeout =
        duration("connect_timeout", raw.connect_timeout.as_deref(), Broker::CONNECT_TIMEOUT)?;
    broker.request_timeout =
        duration("request_timeout", raw.request_timeout.as_deref(), Broker::REQUEST_TIMEOUT)?;
    broker.heartbeat = match raw.heartbeat.unwrap_or(Broker::HEARTBEAT) {
        0 => {
            return Err(value(
                "heartbeat",
                "without heartbeats a dead broker goes unnoticed; use 1 s or more",
            ));
        }
        seconds => seconds,
    };
    broker.other_hosts = raw.other_hosts.map_or(Ok(Vec::new()), |text| hosts(&text, url.port))?;
    let management = management(raw.management_url.as_deref(), &broker, tls)?;
    let mut topology = TopologySettings::default();
    if let Some(set) = raw.set.as_deref() {
        topology.set = set.parse()?;
    }
    if let Some(kind) = raw.queue_type.as_deref() {
        topology.queue_type =
            kind.parse().map_err(|error: QueueTypeError| value("queue_type", &error.to_string()))?;
    }
    if let Some(milliseconds) = raw.unit_ms {
        topology.unit = Unit::from_millis(milliseconds)?;
    }
    topology.replicas = raw.replicas.map(replicas).transpose()?;
    topology.shortcuts = raw.shortcuts;
    topology.unroutable_max_length = raw.unroutable_max_length.map(max_length).transpose()?;
    let mut quota = Quota::default();
    quota.max_message_size = raw.max_message_size.map(max_message_size).transpose()?;
    if let Some(longest) = raw.max_delay.as_deref() {
        quota.max_delay =
            longest.parse().map_err(|error: MaxDelayError| value("max_delay", &error.to_string()))?;
    }
    let max_recalls = match raw.max_recalls.as_deref() {
        Some(text) => {
            text.parse().map_err(|error: MaxRecallsError| value("max_recalls", &error.to_string()))?
        }
        None => MaxRecalls::default(),
    };
    let router = RouterSettings {
        publish_timeout: duration(
            "publish_timeout",
            raw.publish_timeout.as_deref(),
            RouterBuilder::PUBLISH_TIMEOUT,
        )?,
        confirm_timeout: duration(
            "confirm_timeout",
            raw.confirm_timeout.as_deref(),
            RouterBuilder::CONFIRM_TIMEOUT,
        )?,
        window: match raw.window.unwrap_or(RouterBuilder::WINDOW) {
            window @ 1..=RouterBuilder::MAX_WINDOW => window,
            _ => {
                let most = RouterBuilder::MAX_WINDOW;
                return Err(value("window", &format!("use 1 to {most} messages")));
            }
        },
        quota,
    };
    let token = secret("web_token_file", raw.web_token, raw.web_token_file)?;
    let mut web = WebSettings::new(raw.web_listen.as_deref(), token)?;
    web.url = raw.serve_url.as_deref().map(WebSettings::url_of).transpose()?;
    let index = IndexSettings::new(raw.index_headers.as_deref(), raw.index_bytes)?;
    let interval = duration("canary_interval", raw.canary_interval.as_deref(), CanarySettings::INTERVAL)?;
    let canary = CanarySettings::new(raw.canary, interval, raw.canary_horizon)?;
    let layouts = raw.layouts.as_deref().map_or(Ok(Vec::new()), layouts)?;
    Ok(Settings {
        broker,
        management,
        topology,
        router,
        max_recalls,
        app_password,
        web,
        canary,
        index,
        layouts,
    })
}

/// The management API that was named, or the API on the usual port if AMQP uses its default port. A
/// derived URL is used only if it answers. It has the same protection as the AMQP connection: TLS
/// if that has TLS.
fn management(named: Option<&str>, broker: &Broker, tls: Tls) -> Result<Option<Management>, SettingsError> {
    let mut own_credentials = None;
    let mut urls = Vec::new();
    let explicit = named.is_some();
    match named {
        Some("none") => return Ok(None),
        Some(named) => {
            for text in named.split(',') {
                let (url, credentials) = management_url(text.trim())?;
                own_credentials = own_credentials.or(credentials);
                urls.push(url);
            }
        }
        None => urls.extend(candidates(broker).filter_map(|candidate| derived_url(&candidate))),
    }
    let mut urls = urls.into_iter();
    let Some(url) = urls.next() else { return Ok(None) };
    let (username, password) = match (own_credentials, &broker.credentials) {
        (Some(own), _) => own,
        (None, Credentials::Plain { username, password }) => (username.clone(), password.clone()),
        (None, _) if explicit => {
            return Err(SettingsError::Url {
                key: "management_url",
                reason: "the client certificate cannot log in there; give `username` and a password".into(),
            });
        }
        (None, _) => return Ok(None),
    };
    Ok(Some(Management { url, other_urls: urls.collect(), username, password, tls, explicit }))
}

fn derived_url(broker: &Broker) -> Option<Url> {
    let (scheme, port) = match (broker.tls.is_some(), broker.port) {
        (false, 5672) => ("http", 15672),
        (true, 5671) => ("https", 15671),
        _ => return None,
    };
    let host = if broker.host.contains(':') { format!("[{}]", broker.host) } else { broker.host.clone() };
    Url::parse(&format!("{scheme}://{host}:{port}")).ok()
}

/// Foreign layouts, separated by commas.
fn layouts(text: &str) -> Result<Vec<Layout>, SettingsError> {
    let layouts: Result<Vec<_>, LayoutError> = text.split(',').map(|name| name.trim().parse()).collect();
    layouts.map(Layout::distinct).map_err(|error| value("layouts", &error.to_string()))
}

fn max_length(number: u64) -> Result<NonZeroU32, SettingsError> {
    u32::try_from(number)
        .ok()
        .and_then(NonZeroU32::new)
        .ok_or_else(|| value("unroutable_max_length", "use 1 to 4294967295 messages, or leave it out"))
}

fn max_message_size(number: u64) -> Result<usize, SettingsError> {
    usize::try_from(number)
        .map_err(|_| value("max_message_size", "this machine cannot address so many bytes; use fewer"))
}

fn replicas(number: u64) -> Result<NonZeroU8, SettingsError> {
    u8::try_from(number)
        .ok()
        .and_then(NonZeroU8::new)
        .ok_or_else(|| value("replicas", "use 1 to 255 nodes, best an odd number such as 3"))
}

fn duration(key: &'static str, text: Option<&str>, default: Duration) -> Result<Duration, SettingsError> {
    let Some(text) = text else { return Ok(default) };
    duration::parse(text)
        .ok()
        .filter(|duration| (Duration::from_millis(100)..=Duration::from_secs(86_400)).contains(duration))
        .ok_or_else(|| value(key, &format!("`{text}` is not a duration from 100ms to 24h, such as `10s`")))
}

/// A secret that was given directly or in a file.
fn secret(
    file_key: &'static str,
    given: Option<String>,
    file: Option<PathBuf>,
) -> Result<Option<Secret>, SettingsError> {
    match (given, file) {
        (Some(_), Some(_)) => {
            let key = file_key.trim_end_matches("_file");
            Err(value(file_key, &format!("`{key}` is also set; keep one of them")))
        }
        (Some(secret), None) => Ok(Some(Secret::new(secret))),
        (None, Some(file)) => {
            // Standard input can be read only once; a file is read again for every login.
            let secret = match file == Path::new("-") {
                true => read_text(&file).map(|text| Secret::new(text.trim_end_matches(['\r', '\n']))),
                false => Secret::from_file(&file),
            };
            secret.map(Some).map_err(|error| value(file_key, &format!("{}: {error}", file.display())))
        }
        (None, None) => Ok(None),
    }
}
