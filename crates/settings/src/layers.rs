//! Defaults < `delayline.toml` < `DELAYLINE_*` < flags; and a broker that is named stands right
//! above what names it.

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    path::{Path, PathBuf},
};

use config::{Config, Environment, File, FileFormat, Map, Source, Value};
use serde::Deserialize;

use delayline::{
    broker::{AmqpUrl, UrlError},
    topology::{SetNameError, UnitError},
};

use super::{Settings, check::check};

/// The file that is read if it exists and no other file is named.
const DEFAULT_FILE: &str = "delayline.toml";

/// The prefix of settings in the environment.
const PREFIX: &str = "DELAYLINE_";

/// `DELAYLINE_*` variables that are not settings: the log filter, and the files.
const OTHER_VARIABLES: [&str; 3] = ["DELAYLINE_LOG", "DELAYLINE_CONFIG", "DELAYLINE_POLICIES"];

/// Why settings cannot be used. Secrets are never quoted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// A file or variable could not be read, or has an unknown key or one of the wrong type.
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
    /// Another setting has an impossible value.
    #[error("the setting `{key}` is not usable: {reason}")]
    Value {
        /// The setting.
        key: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// The broker's URL is not usable.
    #[error("the setting `url` is not usable: {}", .0.reason())]
    Broker(#[from] UrlError),
    /// Not a name for a set.
    #[error("the setting `set` is not usable: {0}")]
    Set(#[from] SetNameError),
    /// Not a unit of time.
    #[error("the setting `unit_ms` is not usable: {0}")]
    Unit(#[from] UnitError),
}

/// What can be set: `url` in the file is `DELAYLINE_URL` in the environment.
macro_rules! settings {
    ($($key:ident: $kind:ty,)*) => {
        /// Settings as they are typed, before anything is checked.
        #[derive(Debug, Default, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct Raw {
            $(pub(crate) $key: Option<$kind>,)*
            /// Settings of brokers, by name: only in the file.
            brokers: Option<BTreeMap<String, Raw>>,
        }

        /// The names of all settings, as they stand in the file.
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
    max_message_size: u64,
    max_delay: String,
    max_recalls: String,
}

/// Settings in the making: each layer overrides those before it.
///
/// ```
/// use delayline_settings::Layers;
///
/// let settings = Layers::new().set("url", "amqp://localhost").set("set", "later").build()?;
/// assert_eq!(settings.topology.set.as_str(), "later");
/// # Ok::<(), delayline_settings::SettingsError>(())
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

    /// Adds those of these variables that begin with `DELAYLINE_`.
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

    /// Merges the layers and checks the result.
    ///
    /// # Errors
    /// The first thing that is wrong, by key or file.
    pub fn build(self) -> Result<Settings, SettingsError> {
        check(self.read()?)
    }

    /// The names of the brokers in the settings file, in order.
    ///
    /// # Errors
    /// The file cannot be read, or something in it is wrong.
    pub fn broker_names(&self) -> Result<Vec<String>, SettingsError> {
        Ok(Brokers::take(&mut self.read_file()?).names())
    }

    /// What stands in the file.
    fn read_file(&self) -> Result<Map<String, Value>, SettingsError> {
        let mut merged = Map::new();
        if let Some(file) = &self.file
            && (self.required || file.exists())
        {
            let failed = || failed(file.display().to_string());
            let text = fs::read_to_string(file).map_err(|error| failed()(&error))?;
            // On its own first, so that an error names only this file.
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
            // A flag that names a broker means that one, whatever the environment says.
            brokers.lay(name, &mut merged)?;
        }
        overlay(&mut merged, self.overrides.into_iter().map(|(key, value)| (key, value.into())).collect());
        Value::from(merged).try_deserialize().map_err(|error| failed("settings".into())(&error))
    }
}

/// Says where an error comes from.
fn failed(origin: String) -> impl FnOnce(&dyn ToString) -> SettingsError {
    move |reason| SettingsError::Source { origin, reason: reason.to_string() }
}

/// The settings of each broker that the file names.
struct Brokers(Map<String, Value>);

impl Brokers {
    fn take(merged: &mut Map<String, Value>) -> Self {
        Self(merged.remove("brokers").and_then(|it| it.into_table().ok()).unwrap_or_default())
    }

    /// Puts the settings of a broker over the earlier ones. What was said of another broker
    /// beside its URL is not for this one: least of all a password.
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

/// Puts a layer over the earlier ones. A value given in one form hides the others: a password
/// in a file, in a variable and in a URL are the same setting.
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

/// An error of the TOML parser without the line it quotes, which may be the one with the
/// password.
fn without_excerpt(text: &str) -> String {
    text.lines()
        .filter(|line| {
            !line.trim_start().trim_start_matches(|c: char| c.is_ascii_digit()).trim_start().starts_with('|')
        })
        .map(str::trim)
        .collect::<Vec<_>>()
        .join(": ")
}

/// Parses the text of a settings file.
pub fn parse(text: &str) -> Result<Raw, String> {
    let raw: Raw = Config::builder()
        .add_source(File::from_str(text, FileFormat::Toml))
        .build()
        .and_then(Config::try_deserialize)
        .map_err(|error| without_excerpt(&error.to_string()))?;
    let nested = |broker: &Raw| broker.broker.is_some() || broker.brokers.is_some();
    match raw.brokers.iter().flatten().find(|(_, broker)| nested(broker)) {
        Some((name, _)) => Err(format!("[brokers.{name}] names a broker itself; leave that out")),
        None => Ok(raw),
    }
}

/// The environment variables of all settings: `DELAYLINE_URL` for `url`.
#[must_use]
pub fn variables() -> Vec<String> {
    KEYS.iter().map(|key| format!("{PREFIX}{}", key.to_ascii_uppercase())).collect()
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU8;

    use delayline::{broker::Credentials, topology::TopologySettings};
    use url::Url;

    use super::{super::RouterSettings, *};

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
    fn a_named_broker_stands_above_what_names_it() {
        const FILE: &str = "
            set = 'later'
            url = 'amqp://here'
            password = 'hunter2'
            [brokers.prod]
            url = 'amqps://admin@prod'
            password_file = '/dev/null'
            replicas = 5
            [brokers.test]
            url = 'amqp://test'
        ";
        let of = |text: &str, pairs: &[(&str, &str)], flag: Option<&str>| {
            let file = file(text);
            let layers = Layers::new().with_file(Some(file.path())).with_environment(variables(pairs));
            let layers = match flag {
                Some(name) => layers.set("broker", name),
                None => layers,
            };
            layers.build()
        };
        let host = |pairs: &[(&str, &str)], flag| of(FILE, pairs, flag).unwrap().broker.host;
        assert_eq!(host(&[], None), "here");
        assert_eq!(host(&[], Some("test")), "test");
        assert_eq!(host(&[("DELAYLINE_BROKER", "test")], None), "test");
        assert_eq!(host(&[("DELAYLINE_BROKER", "test")], Some("prod")), "prod");
        // Who says where beside the name means that; who names it in a flag means the name.
        assert_eq!(host(&[("DELAYLINE_BROKER", "test"), ("DELAYLINE_URL", "amqp://there")], None), "there");
        assert_eq!(host(&[("DELAYLINE_URL", "amqp://there")], Some("prod")), "prod");
        assert_eq!(of(&format!("broker = 'test'\n{FILE}"), &[], None).unwrap().broker.host, "test");
        let path = file(FILE);
        let names = |path: &Path| Layers::new().with_file(Some(path)).broker_names();
        assert_eq!(names(path.path()).unwrap(), ["prod", "test"]);
        assert!(names(Path::new("/nowhere/at/all")).is_err());
        let prod = of(FILE, &[], Some("prod")).unwrap();
        assert_eq!((prod.topology.set.as_str(), prod.topology.replicas), ("later", NonZeroU8::new(5)));
        assert_eq!(prod.broker.credentials.username(), Some("admin"));
        // Another broker's password is not sent to this one.
        let test = of(FILE, &[], Some("test")).unwrap();
        let Credentials::Plain { password, .. } = test.broker.credentials else { panic!("no password") };
        assert_eq!(password.expose(), "guest");
        for (text, flag, words) in [
            (FILE, "prd", "no broker is called `prd`: the settings file has `prod`, `test`"),
            ("", "prod", "write [brokers.prod] into it"),
            ("[brokers.prod]\nurl = 'http://h'", "prod", "amqp"),
            ("[brokers.prod]\nulr = 'amqp://h'", "prod", "ulr"),
            ("[brokers.prod]\nbroker = 'test'", "prod", "[brokers.prod] names a broker itself"),
        ] {
            let error = of(text, &[], Some(flag)).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn quotas_are_read() {
        let file = file("max_message_size = 65536\nmax_delay = \"30d billing=90d\"\n");
        let quota = Layers::new().with_file(Some(file.path())).build().unwrap().router.quota;
        assert_eq!(quota.max_message_size, Some(65_536));
        let days =
            |app: &str| quota.max_delay.of(&app.parse().unwrap()).map(|delay| delay.seconds() / 86_400);
        assert_eq!((days("billing"), days("x")), (Some(90), Some(30)));
        assert_eq!(Layers::new().build().unwrap().router.quota, Default::default());
        let variables = variables(&[("DELAYLINE_MAX_DELAY", "1h"), ("DELAYLINE_MAX_MESSAGE_SIZE", "0")]);
        let quota = Layers::new().with_environment(variables).build().unwrap().router.quota;
        assert_eq!(quota.max_message_size, Some(0));
        assert_eq!(quota.max_delay.default.map(|delay| delay.seconds()), Some(3_600));
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
            other => panic!("{other:?}"),
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
            ("request_timeout", "10ms"),
            ("publish_timeout", "0s"),
            ("confirm_timeout", "never"),
            ("max_message_size", "big"),
            ("max_delay", "30d billing"),
            ("max_recalls", "many"),
            ("password_file", "/nowhere/at/all"),
            ("client_cert_file", "cert.pem"),
            ("url", "localhost"),
            ("other_hosts", "amqp://h"),
            ("management_url", "http://h,"),
            ("management_url", "amqp://h"),
            ("web_listen", "15628"),
            ("web_token_file", "/nowhere/at/all"),
            ("canary", "perhaps"),
            ("canary_interval", "100ms"),
            ("canary_horizon", "10"),
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
            other => panic!("{other:?}"),
        }
        assert!(!format!("{settings:?}").contains("hunter2"));
        let both = Layers::new().set("password_file", path).set("password", "x");
        assert!(fails(both).contains("password_file"));
        assert!(fails(Layers::new().set("username", "app")).contains("DELAYLINE_PASSWORD"));
    }

    #[test]
    fn a_later_layer_wins_for_passwords_too_however_it_says_them() {
        let secret = file("flag\n");
        let path = secret.path().to_str().unwrap();
        let plain = |layers: Layers| match layers.build().unwrap().broker.credentials {
            Credentials::Plain { username, password } => (username, password.expose().to_owned()),
            other => panic!("{other:?}"),
        };
        let env = |pairs: &[(&str, &str)]| Layers::new().with_environment(variables(pairs));
        let is = |layers, username: &str, password: &str| {
            assert_eq!(plain(layers), (username.to_owned(), password.to_owned()));
        };
        // A flag over the environment.
        is(env(&[("DELAYLINE_PASSWORD", "env")]).set("password_file", path), "guest", "flag");
        is(env(&[("DELAYLINE_URL", "amqp://u:env@h")]).set("password_file", path), "u", "flag");
        is(env(&[("DELAYLINE_PASSWORD_FILE", "/nowhere")]).set("password", "flag"), "guest", "flag");
        let both = [("DELAYLINE_USERNAME", "env"), ("DELAYLINE_PASSWORD", "env")];
        is(env(&both).set("url", "amqp://flag@h"), "flag", "env");
        is(env(&both).set("url", "amqp://h"), "env", "env");
        is(env(&both).set("url", "amqp://flag:too@h"), "flag", "too");
        is(env(&[("DELAYLINE_URL", "amqp://u:p@h")]).set("username", "flag"), "flag", "p");
        // The environment over the file.
        let toml = file("username = \"toml\"\npassword = \"toml\"\n");
        let over = |pairs: &[(&str, &str)]| env(pairs).with_file(Some(toml.path()));
        is(over(&[]), "toml", "toml");
        is(over(&[("DELAYLINE_PASSWORD_FILE", path)]), "toml", "flag");
        is(over(&[("DELAYLINE_URL", "amqp://env:env@h")]), "env", "env");
        is(over(&[("DELAYLINE_URL", "amqp://env@h")]), "env", "toml");
        // Within one layer, one must go.
        let both = [("DELAYLINE_PASSWORD", "x"), ("DELAYLINE_PASSWORD_FILE", path)];
        assert!(fails(env(&both)).contains("password_file"));
        is(env(&both).set("password_file", path), "guest", "flag");
        // The others alike.
        let app = env(&[("DELAYLINE_APP_PASSWORD", "env")]).set("app_password_file", path);
        assert_eq!(app.build().unwrap().app_password.unwrap().expose(), "flag");
        let token = file("a token that is long enough\n");
        let web = env(&[("DELAYLINE_WEB_TOKEN", "another that is long enough")])
            .set("web_token_file", token.path().to_str().unwrap());
        assert_eq!(web.build().unwrap().web.token.unwrap().expose(), "a token that is long enough");
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
    fn layouts_are_named_one_after_the_other() {
        let named = |text: &str| Layers::new().set("layouts", text).build();
        let names = |text: &str| {
            let layouts = named(text).unwrap().layouts;
            layouts.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(names("nservicebus, celery:eu,nservicebus"), ["nservicebus", "celery:eu"]);
        assert!(Layers::new().build().unwrap().layouts.is_empty());
        for wrong in ["", "celery,", "masstransit"] {
            let error = named(wrong).unwrap_err().to_string();
            assert!(error.contains("`layouts`") && error.contains("celery:PREFIX"), "{error}");
        }
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
