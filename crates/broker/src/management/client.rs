//! The HTTP client.

use std::{
    fmt,
    io::{self, BufReader},
    marker::PhantomData,
    sync::Arc,
    thread,
    time::Duration,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use jiff::{Timestamp, fmt::rfc2822};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use serde::{
    Deserializer,
    de::{DeserializeOwned, DeserializeSeed, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Value as Json, error::Category};
use ureq::{
    Agent, Body,
    http::{Response, header},
    tls::{Certificate, ClientCert, PrivateKey, RootCerts, TlsConfig},
};
use url::Url;

use delayline_amqp::{
    broker::Secret,
    tls::{Material, explained, provider},
};
use delayline_core::shell::quoted;
use delayline_settings::Management;

use super::{Alarm, DeprecatedFeature, FeatureFlag, NodeInfo, Overview, model::Health, silence};

/// How long one request may take.
const TIMEOUT: Duration = Duration::from_secs(30);

/// How long a very long list may take. A broker under load took 28 s for 100,000 bindings.
const LONG_TIMEOUT: Duration = Duration::from_secs(180);

/// How long connecting may take, before another node is tried.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long an idle connection is used again. Brokers close theirs after 5 s.
const IDLE: Duration = Duration::from_secs(4);

/// The longest answer, in bytes. Brokers with many thousands of queues answer with many
/// megabytes.
const LONGEST: u64 = 512 * 1024 * 1024;

/// The longest text about an error that is read, in bytes.
const LONGEST_REASON: u64 = 16 * 1024;

/// How long to wait before asking again after an internal error of the broker.
const PAUSES: [Duration; 3] =
    [Duration::from_millis(200), Duration::from_millis(500), Duration::from_millis(1_500)];

/// The fault of an answer that the API did not give.
const NOT_JSON: &str = "it is not JSON; is this the address of something else, such as a proxy?";

/// Where the alarms are.
const ALARMS: &str = "health/checks/alarms";

/// The characters that a path segment may contain unescaped.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// Why the API did not answer as expected. No variant contains a password.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ManagementError {
    /// No HTTP server answered.
    #[error("the management API at {url} cannot be reached: {reason}")]
    Unreachable {
        /// Its base URL, without credentials.
        url: String,
        /// The reason.
        reason: String,
    },
    /// 401 or 403: the password is wrong, or the user lacks the right.
    #[error(
        "the management API at {url} refused user `{username}` ({}). {}",
        said(.status, .reason),
        remedy(.reason, .needed)
    )]
    Refused {
        /// Its base URL, without credentials.
        url: String,
        /// The user.
        username: String,
        /// The HTTP status.
        status: u16,
        /// The broker's own reason; empty if it gave none.
        reason: String,
        /// The user tag that the request needs.
        needed: &'static str,
    },
    /// Another status, or an undocumented answer.
    #[error("the management API at {url} gave an unexpected answer to {path}: {reason}")]
    Unexpected {
        /// Its base URL, without credentials.
        url: String,
        /// The requested path.
        path: String,
        /// The fault of the answer.
        reason: String,
    },
}

impl ManagementError {
    /// Why there is no management API, for callers that can do without it.
    ///
    /// # Errors The error itself, if an API that the user named refuses us: the user can fix that. An API
    /// at a guessed address need not know our user.
    pub fn absence(self, settings: &Management) -> Result<String, Self> {
        match self {
            Self::Refused { .. } if settings.explicit => Err(self),
            _ => Ok(self.to_string()),
        }
    }
}

/// A client of one broker's management API.
pub struct ManagementApi {
    agent: Agent,
    /// How long one request may take.
    timeout: Duration,
    bases: Vec<Url>,
    username: String,
    password: Secret,
}

impl ManagementApi {
    /// Makes a client; nothing is sent yet.
    ///
    /// # Errors
    /// If the TLS files of the settings cannot be used.
    pub fn new(settings: &Management) -> Result<Self, ManagementError> {
        Self::within(settings, TIMEOUT)
    }

    /// A client with this time limit for an answer, for callers that would rather do without it.
    pub fn within(settings: &Management, timeout: Duration) -> Result<Self, ManagementError> {
        let config = Agent::config_builder()
            .timeout_global(Some(timeout))
            .timeout_connect(Some(CONNECT_TIMEOUT.min(timeout)))
            .http_status_as_error(false)
            .max_idle_age(IDLE)
            .user_agent(concat!("delayline/", env!("CARGO_PKG_VERSION")));
        let config = if settings.url.scheme() == "https" {
            let material = Material::load(&settings.tls).map_err(|error| ManagementError::Unreachable {
                url: settings.url.to_string(),
                reason: error.to_string(),
            })?;
            config.tls_config(tls_config(material))
        } else {
            config
        };
        Ok(Self {
            agent: config.build().new_agent(),
            timeout,
            bases: std::iter::once(&settings.url).chain(&settings.other_urls).cloned().collect(),
            username: settings.username.clone(),
            password: settings.password.clone(),
        })
    }

    /// The value of the `Authorization` header, with the password as it is now.
    fn authorization(&self) -> String {
        let credentials = format!("{}:{}", self.username, self.password.current().expose());
        format!("Basic {}", BASE64_STANDARD.encode(credentials))
    }

    /// The time by the clock of the answering node, without fractions of a second; `None` if it reports
    /// none. Any user of the API may ask.
    ///
    /// # Errors See [`ManagementError`].
    pub fn clock(&self) -> Result<Option<Timestamp>, ManagementError> {
        let Some((_, response)) = self.ask("whoami", self.timeout)? else { return Ok(None) };
        let date = response.headers().get(header::DATE).and_then(|date| date.to_str().ok());
        Ok(date.and_then(|date| rfc2822::parse(date).ok()).map(|date| date.timestamp()))
    }

    /// The broker's version and name.
    ///
    /// # Errors
    /// See [`ManagementError`].
    pub fn overview(&self) -> Result<Overview, ManagementError> {
        self.get("overview")
    }

    /// The alarms of the cluster. Needs no statistics.
    ///
    /// # Errors
    /// See [`ManagementError`].
    pub fn alarms(&self) -> Result<Vec<Alarm>, ManagementError> {
        Ok(self.get::<Health>(ALARMS)?.alarms)
    }

    /// The feature flags of the cluster. Needs the tag `administrator`.
    ///
    /// # Errors
    /// See [`ManagementError`].
    pub fn feature_flags(&self) -> Result<Vec<FeatureFlag>, ManagementError> {
        self.get("feature-flags")
    }

    /// The nodes of the cluster. Needs the tag `monitoring`.
    ///
    /// # Errors
    /// See [`ManagementError`].
    pub fn nodes(&self) -> Result<Vec<NodeInfo>, ManagementError> {
        self.get("nodes")
    }

    /// The deprecated features that are in use; `None` if the broker has no such list (before 3.13).
    ///
    /// # Errors See [`ManagementError`].
    pub fn deprecated_features_used(&self) -> Result<Option<Vec<DeprecatedFeature>>, ManagementError> {
        self.find("deprecated-features/used")
    }

    /// Changes something, through the first node that can be reached. Deleting something that
    /// does not exist succeeds.
    pub(super) fn send(&self, path: &str, change: &Change) -> Result<(), ManagementError> {
        let mut first_error = None;
        for base in &self.bases {
            match self.send_to(base, path, change) {
                Err(error @ ManagementError::Unreachable { .. }) => first_error = first_error.or(Some(error)),
                answer => return answer,
            }
        }
        Err(first_error.unwrap_or_else(|| unexpected(&self.bases[0], path, "it was not asked".into())))
    }

    fn send_to(&self, base: &Url, path: &str, change: &Change) -> Result<(), ManagementError> {
        let url = format!("{}/api/{path}", base.as_str().trim_end_matches('/'));
        let response = match change {
            Change::Put(body) => {
                self.agent.put(url).header(header::AUTHORIZATION, self.authorization()).send_json(body)
            }
            Change::Delete => {
                self.agent.delete(url).header(header::AUTHORIZATION, self.authorization()).call()
            }
        };
        match response {
            Ok(response) if matches!(change, Change::Delete) && response.status() == 404 => Ok(()),
            response => self.checked(base, path, response).map(drop),
        }
    }

    pub(super) fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ManagementError> {
        self.find(path)?.ok_or_else(|| self.missing(path))
    }

    /// The items of a list, read one by one: whole lists of large vhosts would not fit into memory twice.
    pub(super) fn list<T: DeserializeOwned>(&self, path: &str) -> Result<Vec<T>, ManagementError> {
        let mut items = Vec::new();
        match self.each_within(self.timeout, path, None, |item| items.push(item))? {
            true => Ok(items),
            false => Err(self.missing(path)),
        }
    }

    fn missing(&self, path: &str) -> ManagementError {
        let vhost = path.split(['/', '?']).nth(1);
        let vhost = vhost.map(|vhost| percent_decode_str(vhost).decode_utf8_lossy());
        let reason = match vhost {
            Some(vhost) => format!(
                "not found (404): the vhost does not exist (rabbitmqctl add_vhost {}), or this is not the \
                 management API",
                quoted(&vhost)
            ),
            None => "not found (404): this is not the management API".into(),
        };
        unexpected(&self.bases[0], path, reason)
    }

    /// Asks the first node that can be reached; `None` on 404.
    pub(super) fn find<T: DeserializeOwned>(&self, path: &str) -> Result<Option<T>, ManagementError> {
        let Some((base, mut response)) = self.ask(path, self.timeout)? else { return Ok(None) };
        let reader = response.body_mut().with_config().limit(LONGEST).reader();
        let json =
            serde_json::from_reader(BufReader::new(reader)).map_err(|error| unread(base, path, &error))?;
        plain(json).map(Some).map_err(|error| unexpected(base, path, error.to_string()))
    }

    /// Hands over each item of a list, or of the list in a field of an object. It may be longer than should be kept
    /// in memory, and may take the broker long; none on 404.
    pub(super) fn each<T: DeserializeOwned>(
        &self,
        path: &str,
        field: Option<&str>,
        each: impl FnMut(T),
    ) -> Result<(), ManagementError> {
        self.each_within(LONG_TIMEOUT, path, field, each).map(drop)
    }

    /// The same, within a time. Returns whether there is such a list or object.
    fn each_within<T: DeserializeOwned>(
        &self,
        timeout: Duration,
        path: &str,
        field: Option<&str>,
        each: impl FnMut(T),
    ) -> Result<bool, ManagementError> {
        let Some((base, mut response)) = self.ask(path, timeout)? else { return Ok(false) };
        let reader = response.body_mut().with_config().limit(LONGEST).reader();
        items(reader, field, each).map(|()| true).map_err(|error| unread(base, path, &error))
    }

    /// The answer of the first node that can be reached; `None` on 404.
    fn ask(&self, path: &str, timeout: Duration) -> Result<Option<(&Url, Response<Body>)>, ManagementError> {
        let mut first_error = None;
        for base in &self.bases {
            match self.ask_at(base, path, timeout) {
                Err(error @ ManagementError::Unreachable { .. }) => first_error = first_error.or(Some(error)),
                answer => return Ok(answer?.map(|response| (base, response))),
            }
        }
        Err(first_error.unwrap_or_else(|| unexpected(&self.bases[0], path, "it was not asked".into())))
    }

    fn ask_at(
        &self,
        base: &Url,
        path: &str,
        timeout: Duration,
    ) -> Result<Option<Response<Body>>, ManagementError> {
        let send = |path: &str, timeout: Duration| {
            let url = format!("{}/api/{path}", base.as_str().trim_end_matches('/'));
            let request = self.agent.get(url).header(header::AUTHORIZATION, self.authorization());
            let answer = request.config().timeout_global(Some(timeout)).build().call();
            silence::note(base, !matches!(answer, Err(ureq::Error::Timeout(_))));
            answer
        };
        if silence::is_suspected(base) {
            let answer = send("whoami", timeout.min(silence::SHORT));
            if matches!(answer, Err(ureq::Error::Timeout(_))) {
                return self.checked(base, path, answer).map(Some);
            }
        }
        let ask = || send(path, timeout);
        let mut response = ask();
        // A node under load sometimes answers with 500, when an internal query takes too long.
        for pause in PAUSES {
            if !response.as_ref().is_ok_and(|response| response.status().is_server_error() && path != ALARMS)
            {
                break;
            }
            thread::sleep(pause);
            response = ask();
        }
        if response.as_ref().is_ok_and(|response| response.status() == 404) {
            return Ok(None);
        }
        self.checked(base, path, response).map(Some)
    }

    fn checked(
        &self,
        base: &Url,
        path: &str,
        response: Result<Response<Body>, ureq::Error>,
    ) -> Result<Response<Body>, ManagementError> {
        let mut response = response.map_err(|error| {
            unreachable(base, tls_failure(&error, base).unwrap_or_else(|| http_failure(&error)))
        })?;
        match response.status().as_u16() {
            200..=299 => Ok(response),
            // It has alarms, and lists them.
            503 if path == ALARMS => Ok(response),
            status @ (401 | 403) => Err(ManagementError::Refused {
                url: base.to_string(),
                username: self.username.clone(),
                status,
                reason: own_words(&mut response),
                needed: needed(path),
            }),
            status => {
                let said = own_words(&mut response);
                let reason = if said.is_empty() { "without a reason".to_owned() } else { said };
                Err(unexpected(base, path, format!("HTTP status {status}, {reason}")))
            }
        }
    }
}

/// Reads a value through a map, which accepts a duplicate field: 3.10 sends `online` twice for a queue with a
/// replica on a node that is down.
fn plain<T: DeserializeOwned>(json: Json) -> serde_json::Result<T> {
    serde_json::from_value(json)
}

/// Reads a list item by item, or the list in a field of an object.
fn items<T: DeserializeOwned>(
    reader: impl io::Read,
    field: Option<&str>,
    each: impl FnMut(T),
) -> serde_json::Result<()> {
    struct Items<'a, T, F>(Option<&'a str>, F, PhantomData<T>);
    impl<'de, T: DeserializeOwned, F: FnMut(T)> Visitor<'de> for Items<'_, T, F> {
        type Value = ();

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list")
        }

        fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> Result<(), A::Error> {
            while let Some(item) = list.next_element()? {
                (self.1)(plain(item).map_err(A::Error::custom)?);
            }
            Ok(())
        }

        fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<(), A::Error> {
            let field = self.0.unwrap_or_default();
            let mut items = Some(self);
            while let Some(name) = object.next_key::<String>()? {
                match items.take_if(|_| name == field) {
                    Some(items) => object.next_value_seed(items)?,
                    None => object.next_value::<IgnoredAny>().map(drop)?,
                }
            }
            items.map_or(Ok(()), |_| Err(A::Error::custom(format!("no list `{field}`"))))
        }
    }
    impl<'de, T: DeserializeOwned, F: FnMut(T)> DeserializeSeed<'de> for Items<'_, T, F> {
        type Value = ();

        fn deserialize<D: Deserializer<'de>>(self, list: D) -> Result<(), D::Error> {
            list.deserialize_seq(self)
        }
    }
    let mut json = serde_json::Deserializer::from_reader(BufReader::new(reader));
    let items = Items(field, each, PhantomData);
    if field.is_some() { json.deserialize_map(items) } else { json.deserialize_seq(items) }?;
    json.end()
}

/// Why no HTTP server answered, without the client's own words for it.
#[must_use]
pub fn http_failure(error: &ureq::Error) -> String {
    match error {
        ureq::Error::Io(error) => error.to_string(),
        ureq::Error::Protocol(_) => {
            "the server does not speak HTTP. Check the port: is it the port of another service?".into()
        }
        other => other.to_string(),
    }
}

/// A hint if a failed connection may be a TLS problem. The client gives no causes.
fn tls_failure(error: &ureq::Error, base: &Url) -> Option<String> {
    let host = base.host_str().unwrap_or_default();
    match error {
        ureq::Error::Io(error) => explained(error, host),
        ureq::Error::Rustls(error) => explained(error, host),
        _ => None,
    }
}

/// How to change an object of the API. It has no `Debug`: a body may hold a password.
pub(super) enum Change {
    Put(Json),
    Delete,
}

/// The user tag that a part of the API needs.
fn needed(path: &str) -> &'static str {
    match path.split('/').next() {
        Some("policies") => "`policymaker`, and permissions in this vhost",
        _ if for_administrators(path) => "`administrator`",
        _ => "`monitoring` (or `management` for a user of this vhost)",
    }
}

/// Whether a part of the API needs more than the tag `monitoring`.
fn for_administrators(path: &str) -> bool {
    let path = path.split('?').next().unwrap_or_default();
    ["feature-flags", "users", "permissions/", "topic-permissions/", "operator-policies/", "definitions/"]
        .iter()
        .any(|part| path.starts_with(part))
        || path.ends_with("/permissions")
        || path.ends_with("/topic-permissions")
}

/// The broker's text about an error, on one line. It answers with an object whose `reason` is the longer
/// text.
fn own_words(response: &mut Response<Body>) -> String {
    let body = response.body_mut().with_config().limit(LONGEST_REASON).read_to_string().unwrap_or_default();
    let said = serde_json::from_str::<Json>(&body).ok().and_then(|json| {
        let texts = ["reason", "error"].map(|field| json[field].as_str().map(str::to_owned));
        texts.into_iter().flatten().next()
    });
    let words = said.unwrap_or(body);
    words.split_whitespace().collect::<Vec<_>>().join(" ").chars().filter(|it| !it.is_control()).collect()
}

/// The status of a refusal and the broker's reason.
fn said(status: &u16, reason: &str) -> String {
    let separator = if reason.is_empty() { "" } else { ", " };
    format!("{status}{separator}{reason}")
}

/// The remedy for a refusal.
fn remedy(reason: &str, needed: &str) -> String {
    match reason {
        "" => format!("Check its password, or give it the tag {needed}"),
        wrong if wrong.contains("ogin failed") => "Check its name and password".into(),
        // As in `Not monitor user` and `User not authorised to access object`.
        lacks if lacks.starts_with("Not ") || lacks.contains("not authorised") => {
            format!("Give it the tag {needed}")
        }
        _ => format!("If that is not the reason, check its password, its permissions and the tag {needed}"),
    }
}

fn unreachable(base: &Url, reason: String) -> ManagementError {
    ManagementError::Unreachable { url: base.to_string(), reason }
}

/// Why an answer could not be read.
fn unread(base: &Url, path: &str, error: &serde_json::Error) -> ManagementError {
    match error.classify() {
        // Some answer an error with nothing.
        Category::Eof if error.column() > 0 => {
            unreachable(base, format!("its answer to /api/{path} was cut off"))
        }
        Category::Io => unreachable(base, format!("its answer to /api/{path} was cut off: {error}")),
        Category::Syntax | Category::Eof => unexpected(base, path, NOT_JSON.into()),
        Category::Data => unexpected(base, path, error.to_string()),
    }
}

fn unexpected(base: &Url, path: &str, reason: String) -> ManagementError {
    ManagementError::Unexpected { url: base.to_string(), path: format!("/api/{path}"), reason }
}

fn tls_config(material: Material) -> TlsConfig {
    let roots: Vec<_> =
        material.roots.iter().map(|certificate| Certificate::from_der(certificate).to_owned()).collect();
    let client = material.client.and_then(|client| {
        let chain: Vec<_> =
            client.chain.iter().map(|certificate| Certificate::from_der(certificate).to_owned()).collect();
        // It was read as a key before.
        let key = PrivateKey::from_pem(&client.key).ok()?;
        Some(ClientCert::new_with_certs(&chain, key))
    });
    TlsConfig::builder()
        .root_certs(RootCerts::Specific(Arc::new(roots)))
        .client_cert(client)
        .unversioned_rustls_crypto_provider(provider())
        .build()
}

pub(super) fn segment(text: &str) -> String {
    utf8_percent_encode(text, SEGMENT).to_string()
}

/// The name that the API gives a binding with this key and no arguments. A `~` would separate
/// the key from those.
pub(super) fn properties_key(key: &str) -> String {
    match key {
        "" => "~".into(),
        key => segment(key).replace('~', "%7E"),
    }
}

impl fmt::Debug for ManagementApi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ManagementApi").field("base", &self.bases[0].as_str()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodes_a_vhost_for_a_path() {
        assert_eq!(segment("/"), "%2F");
        assert_eq!(segment("a b/ä"), "a%20b%2F%C3%A4");
    }

    #[test]
    fn reads_a_list_item_by_item() {
        let read = |text: &str, field| {
            let mut found: Vec<u8> = Vec::new();
            let result = items(text.as_bytes(), field, |item| found.push(item));
            (found, result.map_err(|error| error.to_string()))
        };
        for (text, field, found) in [
            ("[1, 2]", None, vec![1, 2]),
            ("[]", None, vec![]),
            (r#"{"a": [{"b": [7]}], "b": [1, 2], "c": {"b": [8]}}"#, Some("b"), vec![1, 2]),
            (r#"{"b": []}"#, Some("b"), vec![]),
        ] {
            assert_eq!(read(text, field), (found, Ok(())), "{text}");
        }
        let wrong = ["[1, 2", "[1, \"x\"]", "{}", "[1] 2"].map(|text| (text, None));
        let in_object = ["[1]", "{}", r#"{"a": [1]}"#, r#"{"b": 1}"#, r#"{"b": [1]"#, r#"{"b": [1]} 2"#];
        for (text, field) in wrong.into_iter().chain(in_object.map(|text| (text, Some("b")))) {
            assert!(read(text, field).1.is_err(), "{text}");
        }
    }

    #[test]
    fn names_a_binding_as_the_api_does() {
        assert_eq!(properties_key("delay.0000.billing.~.invoice-17"), "delay.0000.billing.%7E.invoice-17");
        assert_eq!((properties_key("*.#"), properties_key("")), ("%2A.%23".to_owned(), "~".to_owned()));
    }

    #[test]
    fn a_refusal_has_the_brokers_reason_and_the_remedy() {
        let refused = |reason: &str| ManagementError::Refused {
            url: "http://h/".into(),
            username: "u".into(),
            status: 401,
            reason: reason.into(),
            needed: "`t`",
        };
        for (reason, words) in [
            ("Login failed", "(401, Login failed). Check its name and password"),
            ("Not monitor user", "(401, Not monitor user). Give it the tag `t`"),
            (
                "Access refused.",
                "(401, Access refused.). If that is not the reason, check its password, its permissions and the \
                 tag `t`",
            ),
            ("", "(401). Check its password, or give it the tag `t`"),
        ] {
            assert!(refused(reason).to_string().ends_with(words), "{}", refused(reason));
        }
    }
}
