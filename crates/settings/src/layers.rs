//! Defaults < `delayline.toml` < `DELAYLINE_*` < flags. The settings of a named broker come
//! directly above the layer that names it.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    path::{Path, PathBuf},
};

use config::{Config, ConfigError, Environment, File, FileFormat, Map, Source, Value};
use serde::Deserialize;
use toml::de::{DeTable, DeValue};

use delayline_amqp::{
    broker::{AmqpUrl, UrlError},
    tls::TlsError,
};
use delayline_core::topology::{SetNameError, UnitError};

use super::{Settings, check::check, text::read_text};

/// The file that is read by default, if it exists.
const DEFAULT_FILE: &str = "delayline.toml";

/// The prefix of settings in the environment.
const PREFIX: &str = "DELAYLINE_";

/// `DELAYLINE_*` variables that are not settings: the log filter, and the files.
const OTHER_VARIABLES: [&str; 3] = ["DELAYLINE_LOG", "DELAYLINE_CONFIG", "DELAYLINE_POLICIES"];

/// Why settings cannot be used. Secrets are never quoted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// A file or variable could not be read, or has an unknown key or a value of the wrong type.
    #[error("{origin}: {reason}")]
    Source {
        /// The file, or the variable.
        origin: String,
        /// The reason.
        reason: String,
    },
    /// A URL is not usable.
    #[error("the setting `{key}` is not usable: {reason}")]
    Url {
        /// The setting.
        key: &'static str,
        /// The reason, without the URL.
        reason: String,
    },
    /// Another setting has an impossible value.
    #[error("the setting `{key}` is not usable: {reason}")]
    Value {
        /// The setting.
        key: &'static str,
        /// The reason.
        reason: String,
    },
    /// The broker's URL is not usable.
    #[error("the setting `url` is not usable: {}", .0.reason())]
    // It is not its source, which would repeat the text.
    Broker(UrlError),
    /// The name of the set is invalid.
    #[error("the setting `set` is not usable: {0}")]
    Set(#[from] SetNameError),
    /// The unit of time is invalid.
    #[error("the setting `unit_ms` is not usable: {0}")]
    Unit(#[from] UnitError),
    /// A file with certificates or a key cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

impl From<UrlError> for SettingsError {
    fn from(error: UrlError) -> Self {
        Self::Broker(error)
    }
}

/// All settings: `url` in the file is `DELAYLINE_URL` in the environment.
macro_rules! settings {
    ($($key:ident: $kind:ty,)*) => {
        /// Settings as they are typed, without checks.
        #[derive(Default, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct Raw {
            $(pub(crate) $key: Option<$kind>,)*
            /// Settings of brokers, by name: only in the file.
            brokers: Option<BTreeMap<String, Raw>>,
        }

        /// The names of all settings, as in the file.
        pub(crate) const KEYS: &[&str] = &[$(stringify!($key)),*];
    };
}

settings! {
    broker: String,
    url: String,
    other_hosts: String,
    management_url: String,
    username: String,
    password: String,
    password_file: PathBuf,
    app_password: String,
    app_password_file: PathBuf,
    ca_file: PathBuf,
    client_cert_file: PathBuf,
    client_key_file: PathBuf,
    set: String,
    queue_type: String,
    replicas: u64,
    unit_ms: u64,
    unroutable_max_length: u64,
    shortcuts: bool,
    connect_timeout: String,
    request_timeout: String,
    publish_timeout: String,
    confirm_timeout: String,
    heartbeat: u16,
    window: usize,
    web_listen: String,
    web_token: String,
    web_token_file: PathBuf,
    canary: bool,
    canary_interval: String,
    canary_horizon: u8,
    layouts: String,
    serve_url: String,
    index_headers: String,
    index_bytes: u64,
    max_message_size: u64,
    max_delay: String,
    max_recalls: String,
}

/// Settings under construction: each layer overrides the earlier ones.
///
/// ```
/// use delayline_settings::Layers;
///
/// let settings = Layers::new().set("url", "amqp://localhost").set("set", "later").build()?;
/// assert_eq!(settings.topology.set.as_str(), "later");
/// # Ok::<(), delayline_settings::SettingsError>(())
/// ```
#[derive(Default)]
pub struct Layers {
    file: Option<PathBuf>,
    required: bool,
    environment: HashMap<String, String>,
    overrides: BTreeMap<String, String>,
}

impl fmt::Debug for Raw {
    /// No value: some are passwords.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Raw").finish_non_exhaustive()
    }
}

impl fmt::Debug for Layers {
    /// Only the names of the settings: values may be passwords.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Layers")
            .field("file", &self.file)
            .field("environment", &self.environment.keys())
            .field("overrides", &self.overrides.keys())
            .finish_non_exhaustive()
    }
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

    /// Adds each of these variables that begins with `DELAYLINE_`. It skips those that Kubernetes
    /// sets in every container for a service called `delayline`.
    #[must_use]
    pub fn with_environment(mut self, variables: impl IntoIterator<Item = (String, String)>) -> Self {
        self.environment = variables
            .into_iter()
            .filter(|(name, value)| name.starts_with(PREFIX) && !is_service_link(name, value))
            .filter(|(name, _)| !OTHER_VARIABLES.contains(&name.as_str()))
            .collect();
        self
    }

    /// Sets one value over all layers, like a flag.
    #[must_use]
    pub fn set(mut self, key: &str, value: impl Into<String>) -> Self {
        self.overrides.insert(key.into(), value.into());
        self
    }

    /// Merges the layers and checks the result.
    ///
    /// # Errors
    /// The first fault, with its key or file.
    pub fn build(self) -> Result<Settings, SettingsError> {
        check(self.read()?)
    }

    /// The names of the brokers in the settings file, in order.
    ///
    /// # Errors
    /// The file cannot be read, or contains a fault.
    pub fn broker_names(&self) -> Result<Vec<String>, SettingsError> {
        Ok(Brokers::take(&mut self.read_file()?).names())
    }

    /// The contents of the file.
    fn read_file(&self) -> Result<Map<String, Value>, SettingsError> {
        let mut merged = Map::new();
        if let Some(file) = &self.file
            && (self.required || file.exists())
        {
            let failed = || failed(file.display().to_string());
            let text = read_text(file).map_err(|error| failed()(&error))?;
            // The file alone first, so that an error names only this file.
            parse(&text).map_err(|reason| failed()(&reason))?;
            let read = File::from_str(&text, FileFormat::Toml).collect();
            overlay(&mut merged, read.map_err(|error| failed()(&without_excerpt(&error.to_string())))?);
        }
        Ok(merged)
    }

    fn read(self) -> Result<Raw, SettingsError> {
        let mut merged = self.read_file()?;
        let brokers = Brokers::take(&mut merged);
        if let Some(name) = merged.get("broker").map(ToString::to_string) {
            brokers.lay(&name, &mut merged)?;
        }
        for name in self.environment.keys() {
            let key = name[PREFIX.len()..].to_ascii_lowercase();
            if !KEYS.contains(&key.as_str()) {
                return Err(failed(name.clone())(&format!(
                    "no setting has this name; the settings are {}",
                    variables().join(", ")
                )));
            }
        }
        let environment: Map<String, String> = self.environment.into_iter().collect();
        let read =
            Environment::with_prefix("DELAYLINE").prefix_separator("_").source(Some(environment)).collect();
        let read = read.map_err(|error| failed("the environment".into())(&error))?;
        if let Some(name) = read.get("broker").map(ToString::to_string) {
            brokers.lay(&name, &mut merged)?;
        }
        overlay(&mut merged, read);
        if let Some(name) = self.overrides.get("broker") {
            // A flag that names a broker overrides the environment.
            brokers.lay(name, &mut merged)?;
        }
        overlay(&mut merged, self.overrides.into_iter().map(|(key, value)| (key, value.into())).collect());
        Value::from(merged).try_deserialize().map_err(of_another_type)
    }
}

/// Whether Kubernetes sets this variable. For a service `delayline` it sets a host and ports, as in
/// `DELAYLINE_SERVICE_PORT_HTTP=80` and `DELAYLINE_PORT=tcp://10.0.0.1:80`.
fn is_service_link(name: &str, value: &str) -> bool {
    let is_address = ["tcp://", "udp://", "sctp://"].iter().any(|scheme| value.starts_with(scheme));
    let of_a_port = |(_, rest): (&str, &str)| rest.starts_with(|first: char| first.is_ascii_digit());
    name.ends_with("_SERVICE_HOST")
        || name.contains("_SERVICE_PORT")
        || (name.ends_with("_PORT") && is_address)
        || name.rsplit_once("_PORT_").is_some_and(of_a_port)
}

/// Names the setting of a variable or a flag with the wrong type.
fn of_another_type(error: ConfigError) -> SettingsError {
    let ConfigError::Type { unexpected, expected, key: Some(key), .. } = &error else {
        return failed("settings".into())(&error);
    };
    // In a broker's table, its name is `brokers.NAME.KEY`.
    let (place, name) = match key.rsplit_once('.') {
        Some((table, name)) => (format!("in [{table}] "), name),
        None => (String::new(), key.as_str()),
    };
    let Some(key) = KEYS.iter().copied().find(|known| *known == name) else {
        return failed("settings".into())(&error);
    };
    let wanted = match *expected {
        small if small.contains("16 bit") => "a whole number from 0 to 65535",
        small if small.contains("8 bit") => "a whole number from 0 to 255",
        number if number.contains("integer") => "a whole number, 0 or more",
        other => other,
    };
    // A text is in quotes after the word for it, and a number in backticks.
    let found = unexpected.to_string();
    let found = match found.split('`').nth(1) {
        Some(number) if found.contains("integer") => number,
        _ => found.trim_start_matches("string "),
    };
    SettingsError::Value { key, reason: format!("{place}it is {found}; it must be {wanted}") }
}

/// Adds the source to an error.
fn failed(origin: String) -> impl FnOnce(&dyn ToString) -> SettingsError {
    move |reason| SettingsError::Source { origin, reason: reason.to_string() }
}

/// The settings of each broker in the file.
struct Brokers(Map<String, Value>);

impl Brokers {
    fn take(merged: &mut Map<String, Value>) -> Self {
        Self(merged.remove("brokers").and_then(|it| it.into_table().ok()).unwrap_or_default())
    }

    /// Puts the settings of a broker over the earlier ones. Settings that belong to another
    /// broker's URL are removed, above all a password.
    fn lay(&self, name: &str, merged: &mut Map<String, Value>) -> Result<(), SettingsError> {
        const OF_A_URL: [&str; 5] =
            ["username", "password", "password_file", "management_url", "other_hosts"];
        let layer = self.get(name)?;
        if layer.contains_key("url") && merged.contains_key("url") {
            for key in OF_A_URL {
                merged.remove(key);
            }
        }
        overlay(merged, layer);
        Ok(())
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<_> = self.0.keys().cloned().collect();
        names.sort();
        names
    }

    fn get(&self, name: &str) -> Result<Map<String, Value>, SettingsError> {
        let found = self.0.get(name).and_then(|it| it.clone().into_table().ok());
        found.ok_or_else(|| {
            let names: Vec<_> = self.names().iter().map(|name| format!("`{name}`")).collect();
            let there = match names.is_empty() {
                true => format!("the settings file names none; write [brokers.{name}] into it"),
                false => format!("the settings file has {}", names.join(", ")),
            };
            SettingsError::Value { key: "broker", reason: format!("no broker is called `{name}`: {there}") }
        })
    }
}

/// Puts a layer over the earlier ones. A value in one form hides the other forms: a password in a
/// file, in a variable and in a URL are the same setting.
fn overlay(merged: &mut Map<String, Value>, layer: Map<String, Value>) {
    const FILES: [(&str, &str); 3] = [
        ("password", "password_file"),
        ("app_password", "app_password_file"),
        ("web_token", "web_token_file"),
    ];
    for (itself, file) in FILES {
        if layer.contains_key(itself) || layer.contains_key(file) {
            merged.remove(itself);
            merged.remove(file);
        }
    }
    let url = layer.get("url").and_then(|url| AmqpUrl::parse(&url.to_string()).ok());
    if url.as_ref().is_some_and(|url| url.username.is_some()) {
        merged.remove("username");
    }
    if url.is_some_and(|url| url.password.is_some()) {
        merged.remove("password");
        merged.remove("password_file");
    }
    merged.extend(layer);
}

/// An error of the TOML parser without the line it quotes, which may contain the password.
fn without_excerpt(text: &str) -> String {
    text.lines()
        .filter(|line| {
            !line.trim_start().trim_start_matches(|c: char| c.is_ascii_digit()).trim_start().starts_with('|')
        })
        .map(str::trim)
        .collect::<Vec<_>>()
        .join(": ")
}

/// The first unknown key of a settings file, and its line. `None` if the text is not TOML.
fn unknown(text: &str) -> Option<(usize, String)> {
    let table = DeTable::parse(text).ok()?;
    let mut tables = vec![table.get_ref()];
    let mut found = Vec::new();
    while let Some(table) = tables.pop() {
        for (key, value) in table {
            match (key.get_ref().as_ref(), value.get_ref()) {
                ("brokers", DeValue::Table(brokers)) => {
                    tables.extend(brokers.values().filter_map(|it| it.get_ref().as_table()));
                }
                (name, _) if KEYS.contains(&name) || name == "brokers" => {}
                (name, _) => found.push((key.span().start, name.to_owned())),
            }
        }
    }
    let (start, key) = found.into_iter().min()?;
    Some((text[..start].matches('\n').count() + 1, key))
}

/// Parses the text of a settings file.
pub fn parse(text: &str) -> Result<Raw, String> {
    if let Some((line, key)) = unknown(text) {
        return Err(format!(
            "line {line}: no setting is called `{key}`; the settings are {}",
            KEYS.join(", ")
        ));
    }
    let raw: Raw = Config::builder()
        .add_source(File::from_str(text, FileFormat::Toml))
        .build()
        .and_then(Config::try_deserialize)
        .map_err(|error| match error {
            ConfigError::Type { .. } => of_another_type(error).to_string(),
            other => without_excerpt(&other.to_string()),
        })?;
    let nested = |broker: &Raw| broker.broker.is_some() || broker.brokers.is_some();
    match raw.brokers.iter().flatten().find(|(_, broker)| nested(broker)) {
        Some((name, _)) => Err(format!("[brokers.{name}] has the key `broker`; remove it")),
        None => Ok(raw),
    }
}

/// The environment variables of all settings: `DELAYLINE_URL` for `url`.
#[must_use]
pub fn variables() -> Vec<String> {
    KEYS.iter().map(|key| format!("{PREFIX}{}", key.to_ascii_uppercase())).collect()
}

#[cfg(test)]
mod tests;
