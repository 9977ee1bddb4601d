//! Why settings cannot be used.

use delayline_amqp::{broker::UrlError, tls::TlsError};
use delayline_core::topology::{SetNameError, UnitError};

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

pub(crate) fn value(key: &'static str, reason: &str) -> SettingsError {
    SettingsError::Value { key, reason: reason.into() }
}

/// Adds the source to an error.
pub(crate) fn failed(origin: String) -> impl FnOnce(&dyn ToString) -> SettingsError {
    move |reason| SettingsError::Source { origin, reason: reason.to_string() }
}
