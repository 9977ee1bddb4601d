//! Defaults < `delayline.toml` < `DELAYLINE_*` < flags. The settings of a named broker come
//! directly above the layer that names it.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    path::{Path, PathBuf},
};

use config::{Environment, File, FileFormat, Map, Source, Value};

use delayline_amqp::broker::AmqpUrl;

use crate::{
    check::check,
    error::{SettingsError, failed},
    raw::{KEYS, PREFIX, Raw, of_another_type, parse, variables, without_excerpt},
    settings::Settings,
    text::read_text,
};

/// The file that is read by default, if it exists.
const DEFAULT_FILE: &str = "delayline.toml";

/// `DELAYLINE_*` variables that are not settings: the log filter, and the files.
const OTHER_VARIABLES: [&str; 3] = ["DELAYLINE_LOG", "DELAYLINE_CONFIG", "DELAYLINE_POLICIES"];

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

impl Settings {
    /// Settings for a broker at a URL, with defaults for everything else.
    ///
    /// ```
    /// let settings = delayline_settings::Settings::from_url("amqp://broker.example/orders")?;
    /// assert_eq!(settings.broker.vhost, "orders");
    /// # Ok::<(), delayline_settings::SettingsError>(())
    /// ```
    ///
    /// # Errors
    /// The URL is invalid.
    pub fn from_url(url: &str) -> Result<Self, SettingsError> {
        Layers::new().set("url", url).build()
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

#[cfg(test)]
mod tests;
