//! Settings as they are typed.

use std::{collections::BTreeMap, fmt, path::PathBuf};

use config::{Config, ConfigError, File, FileFormat};
use serde::Deserialize;
use toml::de::{DeTable, DeValue};

use crate::error::{SettingsError, failed};

/// The prefix of settings in the environment.
pub(crate) const PREFIX: &str = "DELAYLINE_";

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

impl fmt::Debug for Raw {
    /// No value: some are passwords.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Raw").finish_non_exhaustive()
    }
}

/// Names the setting of a variable or a flag with the wrong type.
pub(crate) fn of_another_type(error: ConfigError) -> SettingsError {
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

/// An error of the TOML parser without the line it quotes, which may contain the password.
pub(crate) fn without_excerpt(text: &str) -> String {
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
