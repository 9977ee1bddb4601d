//! Defaults < `delayline.toml` < `DELAYLINE_*` < flags.

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    num::{NonZeroU8, NonZeroU32},
    path::{Path, PathBuf},
    time::Duration,
};

use config::{Config, Environment, File, FileFormat, Map};
use jiff::SignedDuration;
use serde::Deserialize;
use url::Url;

use crate::topology::{QueueType, SetName, SetNameError, TopologySettings, Unit, UnitError};

use super::{
    Broker, Credentials, Management, RouterSettings, Secret, Settings, Tls,
    broker::{AmqpUrl, hosts, management_url},
};

/// The file that is read if it exists and no other is named.
const DEFAULT_FILE: &str = "delayline.toml";

/// What the names of settings in the environment begin with.
const PREFIX: &str = "DELAYLINE_";

/// `DELAYLINE_*` variables that are not settings: the log filter, and the files.
const OTHER_VARIABLES: [&str; 3] = ["DELAYLINE_LOG", "DELAYLINE_CONFIG", "DELAYLINE_POLICIES"];

/// Why settings cannot be used. Secrets are never quoted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// A file or variable could not be read or holds an unknown or mistyped key.
    #[error("{origin}: {reason}")]
    Source {
        /// The file, or the variable.
        origin: String,
        /// What is wrong.
        reason: String,
    },
    /// A URL is not usable.
    #[error("the setting `{key}` is not usable: {reason}")]
    Url {
        /// The setting.
        key: &'static str,
        /// What is wrong, without the URL.
        reason: String,
    },
    /// Another setting has a value that cannot be.
    #[error("the setting `{key}` is not usable: {reason}")]
    Value {
        /// The setting.
        key: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// Not a name for a set.
    #[error("the setting `set` is not usable: {0}")]
    Set(#[from] SetNameError),
    /// Not a unit of time.
    #[error("the setting `unit_ms` is not usable: {0}")]
    Unit(#[from] UnitError),
}

/// Settings as they are typed, before anything is checked.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    url: Option<String>,
    other_hosts: Option<String>,
    management_url: Option<String>,
    username: Option<String>,
    password: Option<String>,
    password_file: Option<PathBuf>,
    ca_file: Option<PathBuf>,
    client_cert_file: Option<PathBuf>,
    client_key_file: Option<PathBuf>,
    set: Option<String>,
    queue_type: Option<String>,
    replicas: Option<u64>,
    unit_ms: Option<u64>,
    unroutable_max_length: Option<u64>,
    connect_timeout: Option<String>,
    publish_timeout: Option<String>,
    confirm_timeout: Option<String>,
    heartbeat: Option<u16>,
    window: Option<usize>,
}

/// All keys, as they stand in the file; `DELAYLINE_` and capitals make the
/// variable.
pub(crate) const KEYS: [&str; 19] = [
    "url",
    "other_hosts",
    "management_url",
    "username",
    "password",
    "password_file",
    "ca_file",
    "client_cert_file",
    "client_key_file",
    "set",
    "queue_type",
    "replicas",
    "unit_ms",
    "unroutable_max_length",
    "connect_timeout",
    "publish_timeout",
    "confirm_timeout",
    "heartbeat",
    "window",
];

/// Settings in the making: each layer overrides those before it.
///
/// ```
/// use delayline::settings::Layers;
///
/// let settings = Layers::new().set("url", "amqp://localhost").set("set", "later").build()?;
/// assert_eq!(settings.topology.set.as_str(), "later");
/// # Ok::<(), delayline::settings::SettingsError>(())
/// ```
#[derive(Debug, Default)]
pub struct Layers {
    file: Option<PathBuf>,
    required: bool,
    environment: HashMap<String, String>,
    overrides: BTreeMap<String, String>,
}

impl Layers {
    /// Only the defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a settings file. Without a path: `DELAYLINE_CONFIG`, or else
    /// `delayline.toml` in the working directory if it exists.
    #[must_use]
    pub fn with_file(mut self, path: Option<&Path>) -> Self {
        let named = path.map(Path::to_owned).or_else(|| std::env::var_os("DELAYLINE_CONFIG").map(Into::into));
        self.required = named.is_some();
        self.file = Some(named.unwrap_or_else(|| DEFAULT_FILE.into()));
        self
    }

    /// Adds the `DELAYLINE_*` variables among these.
    #[must_use]
    pub fn with_environment(mut self, variables: impl IntoIterator<Item = (String, String)>) -> Self {
        self.environment = variables
            .into_iter()
            .filter(|(name, _)| name.starts_with(PREFIX) && !OTHER_VARIABLES.contains(&name.as_str()))
            .collect();
        self
    }

    /// Sets one value over all layers, as a flag does.
    #[must_use]
    pub fn set(mut self, key: &str, value: impl Into<String>) -> Self {
        self.overrides.insert(key.into(), value.into());
        self
    }

    /// Puts the layers together and checks the result.
    ///
    /// # Errors
    /// The first thing that is wrong, by key or file.
    pub fn build(self) -> Result<Settings, SettingsError> {
        check(self.read()?)
    }

    fn read(self) -> Result<Raw, SettingsError> {
        let mut builder = Config::builder();
        let mut origin = "settings".to_owned();
        if let Some(file) = &self.file
            && (self.required || file.exists())
        {
            origin = file.display().to_string();
            let failed = |reason: String| SettingsError::Source { origin: origin.clone(), reason };
            let text = fs::read_to_string(file).map_err(|error| failed(error.to_string()))?;
            // On its own first, so that an error names the file and nothing else.
            let source = File::from_str(&text, FileFormat::Toml);
            Config::builder()
                .add_source(source.clone())
                .build()
                .and_then(Config::try_deserialize::<Raw>)
                .map_err(|error| failed(without_excerpt(&error.to_string())))?;
            builder = builder.add_source(source);
        }
        for name in self.environment.keys() {
            let key = name[PREFIX.len()..].to_ascii_lowercase();
            if !KEYS.contains(&key.as_str()) {
                return Err(SettingsError::Source {
                    origin: name.clone(),
                    reason: format!("no setting has this name; there are {}", variables()),
                });
            }
        }
        let environment: Map<String, String> = self.environment.into_iter().collect();
        builder = builder.add_source(
            Environment::with_prefix("DELAYLINE").prefix_separator("_").source(Some(environment)),
        );
        for (key, value) in self.overrides {
            builder = builder.set_override(key, value).map_err(|error| SettingsError::Source {
                origin: origin.clone(),
                reason: error.to_string(),
            })?;
        }
        builder
            .build()
            .and_then(Config::try_deserialize)
            .map_err(|error| SettingsError::Source { origin: "settings".into(), reason: error.to_string() })
    }
}

/// An error of the TOML parser without the line it quotes: that may be the one
/// with the password.
fn without_excerpt(text: &str) -> String {
    text.lines()
        .filter(|line| {
            !line.trim_start().trim_start_matches(|c: char| c.is_ascii_digit()).trim_start().starts_with('|')
        })
        .map(str::trim)
        .collect::<Vec<_>>()
        .join(": ")
}

fn variables() -> String {
    KEYS.map(|key| format!("{PREFIX}{}", key.to_ascii_uppercase())).join(", ")
}

fn check(raw: Raw) -> Result<Settings, SettingsError> {
    let url = AmqpUrl::parse(raw.url.as_deref().unwrap_or("amqp://localhost"))?;
    let tls = Tls {
        ca_file: raw.ca_file,
        client: match (raw.client_cert_file, raw.client_key_file) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            (Some(_), None) => {
                return Err(value("client_key_file", "it is missing beside client_cert_file"));
            }
            (None, Some(_)) => {
                return Err(value("client_cert_file", "it is missing beside client_key_file"));
            }
        },
    };
    let named_user = raw.username.or(url.username);
    let password = match (raw.password, raw.password_file) {
        (Some(_), Some(_)) => {
            return Err(value("password_file", "`password` is set too; keep one of them"));
        }
        (Some(password), None) => Some(Secret::new(password)),
        (None, Some(file)) => Some(password_from(&file)?),
        (None, None) => url.password,
    };
    let credentials = match (&named_user, &password) {
        (None, None) if url.secure && tls.client.is_some() => Credentials::External,
        (Some(name), None) if name != "guest" => {
            return Err(value(
                "password",
                &format!("user `{name}` has none; set DELAYLINE_PASSWORD or password_file"),
            ));
        }
        _ => Credentials::Plain {
            username: named_user.unwrap_or_else(|| "guest".into()),
            password: password.unwrap_or_else(|| Secret::new("guest")),
        },
    };
    let broker = Broker {
        tls: url.secure.then(|| tls.clone()),
        credentials,
        connect_timeout: duration(
            "connect_timeout",
            raw.connect_timeout.as_deref(),
            Duration::from_secs(10),
        )?,
        heartbeat: match raw.heartbeat.unwrap_or(10) {
            0 => {
                return Err(value(
                    "heartbeat",
                    "without heartbeats a dead broker goes unnoticed; use 1 s or more",
                ));
            }
            seconds => seconds,
        },
        other_hosts: raw.other_hosts.map_or(Ok(Vec::new()), |text| hosts(&text, url.port))?,
        host: url.host,
        port: url.port,
        vhost: url.vhost,
    };
    let management = management(raw.management_url.as_deref(), &broker, tls)?;
    let topology = TopologySettings {
        set: raw.set.as_deref().map_or_else(|| Ok(SetName::default()), str::parse)?,
        queue_type: raw
            .queue_type
            .map_or_else(|| Ok(QueueType::default()), |text| text.parse())
            .map_err(|reason: String| value("queue_type", &reason))?,
        replicas: raw.replicas.map(replicas).transpose()?,
        unit: raw.unit_ms.map_or(Ok(Unit::SECOND), Unit::from_millis)?,
        unroutable_max_length: raw.unroutable_max_length.map(max_length).transpose()?,
    };
    let router = RouterSettings {
        publish_timeout: duration(
            "publish_timeout",
            raw.publish_timeout.as_deref(),
            RouterSettings::PUBLISH_TIMEOUT,
        )?,
        confirm_timeout: duration(
            "confirm_timeout",
            raw.confirm_timeout.as_deref(),
            RouterSettings::CONFIRM_TIMEOUT,
        )?,
        window: match raw.window.unwrap_or(RouterSettings::WINDOW) {
            window @ 1..=100_000 => window,
            _ => return Err(value("window", "use 1 to 100000 messages")),
        },
    };
    Ok(Settings { broker, management, topology, router })
}

/// The management API that was named, or the one that stands beside an AMQP
/// listener on its default port. A derived one is used only if it answers, and
/// has the same protection as the AMQP connection: TLS if that has TLS.
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
        None => urls.extend(broker.candidates().filter_map(|candidate| derived_url(&candidate))),
    }
    let mut urls = urls.into_iter();
    let Some(url) = urls.next() else { return Ok(None) };
    let (username, password) = match (own_credentials, &broker.credentials) {
        (Some(own), _) => own,
        (None, Credentials::Plain { username, password }) => (username.clone(), password.clone()),
        (None, Credentials::External) if explicit => {
            return Err(SettingsError::Url {
                key: "management_url",
                reason: "the client certificate cannot log in there; give `username` and a password".into(),
            });
        }
        (None, Credentials::External) => return Ok(None),
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

fn value(key: &'static str, reason: &str) -> SettingsError {
    SettingsError::Value { key, reason: reason.into() }
}

fn max_length(number: u64) -> Result<NonZeroU32, SettingsError> {
    u32::try_from(number)
        .ok()
        .and_then(NonZeroU32::new)
        .ok_or_else(|| value("unroutable_max_length", "use 1 to 4294967295 messages, or leave it out"))
}

fn replicas(number: u64) -> Result<NonZeroU8, SettingsError> {
    u8::try_from(number)
        .ok()
        .and_then(NonZeroU8::new)
        .ok_or_else(|| value("replicas", "use 1 to 255 nodes, an odd number such as 3"))
}

fn duration(key: &'static str, text: Option<&str>, default: Duration) -> Result<Duration, SettingsError> {
    let Some(text) = text else { return Ok(default) };
    text.parse::<SignedDuration>()
        .ok()
        .and_then(|duration| Duration::try_from(duration).ok())
        .filter(|duration| (Duration::from_millis(100)..=Duration::from_secs(86_400)).contains(duration))
        .ok_or_else(|| value(key, &format!("`{text}` is not a duration from 100ms to 24h, such as `10s`")))
}

/// A password from a file, without the line ending that editors leave there.
fn password_from(file: &Path) -> Result<Secret, SettingsError> {
    let text = fs::read_to_string(file)
        .map_err(|error| value("password_file", &format!("{}: {error}", file.display())))?;
    Ok(Secret::new(text.trim_end_matches(['\r', '\n'])))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(&file, text).unwrap();
        file
    }

    fn variables(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|&(name, value)| (name.into(), value.into())).collect()
    }

    fn fails(layers: Layers) -> String {
        layers.build().expect_err("these settings should be refused").to_string()
    }

    #[test]
    fn later_layers_win() {
        let file = file("url = \"amqp://file\"\nset = \"file\"\nwindow = 7\n");
        let settings = Layers::new()
            .with_file(Some(file.path()))
            .with_environment(variables(&[
                ("DELAYLINE_SET", "env"),
                ("DELAYLINE_URL", "amqp://env"),
                ("HOME", "/"),
            ]))
            .set("url", "amqp://flag")
            .build()
            .unwrap();
        assert_eq!(settings.broker.host, "flag");
        assert_eq!(settings.topology.set.as_str(), "env");
        assert_eq!(settings.router.window, 7);
    }

    #[test]
    fn defaults_are_a_local_broker() {
        let settings = Layers::new().build().unwrap();
        assert_eq!(settings.broker.to_string(), "amqp://localhost:5672");
        assert_eq!(settings.management.unwrap().url.as_str(), "http://localhost:15672/");
        assert_eq!(settings.topology, TopologySettings::default());
        assert_eq!(settings.router, RouterSettings::default());
    }

    #[test]
    fn numbers_come_as_text_from_the_environment() {
        let settings = Layers::new()
            .with_environment(variables(&[("DELAYLINE_REPLICAS", "3"), ("DELAYLINE_PASSWORD", "007")]))
            .build()
            .unwrap();
        assert_eq!(settings.topology.replicas, NonZeroU8::new(3));
        match settings.broker.credentials {
            Credentials::Plain { password, .. } => assert_eq!(password.expose(), "007"),
            Credentials::External => panic!("a password was given"),
        }
    }

    #[test]
    fn unknown_keys_are_named() {
        let file = file("windw = 7\n");
        let error = fails(Layers::new().with_file(Some(file.path())));
        assert!(error.contains("windw") && error.contains(&file.path().display().to_string()), "{error}");
        let error = fails(Layers::new().with_environment(variables(&[("DELAYLINE_WINDW", "7")])));
        assert!(error.contains("DELAYLINE_WINDW"), "{error}");
        // These two are no settings, but ours.
        let variables = variables(&[("DELAYLINE_LOG", "debug"), ("DELAYLINE_CONFIG", "x")]);
        assert!(Layers::new().with_environment(variables).build().is_ok());
    }

    #[test]
    fn every_key_can_be_deserialized() {
        for key in KEYS {
            let error = Layers::new().set(key, "").build().err().map(|error| error.to_string());
            assert!(!error.clone().unwrap_or_default().contains("unknown field"), "{key}: {error:?}");
        }
    }

    #[test]
    fn mistyped_values_are_named() {
        for (key, text) in [
            ("heartbeat", "0"),
            ("heartbeat", "often"),
            ("window", "0"),
            ("replicas", "0"),
            ("unit_ms", "2000"),
            ("queue_type", "mirrored"),
            ("set", "two words"),
            ("connect_timeout", "soon"),
            ("publish_timeout", "0s"),
            ("confirm_timeout", "never"),
            ("password_file", "/nowhere/at/all"),
            ("client_cert_file", "cert.pem"),
            ("url", "localhost"),
            ("other_hosts", "amqp://h"),
            ("management_url", "http://h,"),
            ("management_url", "amqp://h"),
        ] {
            let error = fails(Layers::new().set(key, text));
            let named =
                error.contains(key) || (key == "client_cert_file" && error.contains("client_key_file"));
            assert!(named, "{key} = {text}: {error}");
        }
    }

    #[test]
    fn passwords_come_from_one_place_and_stay_hidden() {
        let secret = file("hunter2\n");
        let path = secret.path().to_str().unwrap();
        let settings = Layers::new().set("username", "app").set("password_file", path).build().unwrap();
        match &settings.broker.credentials {
            Credentials::Plain { password, .. } => assert_eq!(password.expose(), "hunter2"),
            Credentials::External => panic!("a password was given"),
        }
        assert!(!format!("{settings:?}").contains("hunter2"));
        let both = Layers::new().set("password_file", path).set("password", "x");
        assert!(fails(both).contains("password_file"));
        assert!(fails(Layers::new().set("username", "app")).contains("DELAYLINE_PASSWORD"));
    }

    #[test]
    fn a_file_that_cannot_be_parsed_is_not_quoted() {
        for text in [
            "password = \"hunter2",
            "password = hunter2",
            "password = [\"hunter2\"]",
            "x = 1\npassword: hunter2",
        ] {
            let file = file(text);
            let error = fails(Layers::new().with_file(Some(file.path())));
            assert!(!error.contains("hunter2"), "{error}");
            assert!(error.len() > file.path().display().to_string().len() + 10, "{error}");
        }
    }

    #[test]
    fn a_client_certificate_alone_logs_in() {
        let layers = || Layers::new().set("client_cert_file", "c").set("client_key_file", "k");
        let settings = layers().set("url", "amqps://h").build().unwrap();
        assert!(matches!(settings.broker.credentials, Credentials::External));
        assert!(settings.management.is_none());
        let settings = layers().set("url", "amqps://u:p@h").build().unwrap();
        assert!(matches!(settings.broker.credentials, Credentials::Plain { .. }));
    }

    #[test]
    fn the_management_api_is_derived_only_beside_the_default_port() {
        let url = |text: &str| {
            let management = Layers::new().set("url", text).build().unwrap().management;
            management.map(|management| management.url.to_string())
        };
        assert_eq!(url("amqp://h").as_deref(), Some("http://h:15672/"));
        assert_eq!(url("amqps://h").as_deref(), Some("https://h:15671/"));
        assert_eq!(url("amqp://[::1]").as_deref(), Some("http://[::1]:15672/"));
        assert_eq!(url("amqp://h:5999"), None);
        let others = Layers::new().set("url", "amqp://a").set("other_hosts", "b,c:5999").build().unwrap();
        assert_eq!(others.broker.candidates().count(), 3);
        let management = others.management.unwrap();
        assert_eq!(management.other_urls.iter().map(Url::as_str).collect::<Vec<_>>(), ["http://b:15672/"]);
        assert!(Layers::new().set("management_url", "none").build().unwrap().management.is_none());
    }
}
