//! All settings, checked.

use std::time::Duration;

use delayline_amqp::{
    broker::{Broker, Secret, Tls},
    tls::Material,
};
use delayline_client::{Target, router::RouterBuilder};
use delayline_core::{
    message::{MaxRecalls, Quota},
    topology::TopologySettings,
};
use url::Url;

use crate::{
    daemon::{CanarySettings, IndexSettings, WebSettings},
    error::SettingsError,
    layout::Layout,
};

/// All settings of a command or a daemon, checked.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Settings {
    /// The broker's AMQP side.
    pub broker: Broker,
    /// Its management HTTP API, if its URL is known.
    pub management: Option<Management>,
    /// The set.
    pub topology: TopologySettings,
    /// The settings of the router.
    pub router: RouterSettings,
    /// How many recalls applications may have pending. The limit is checked, not enforced.
    pub max_recalls: MaxRecalls,
    /// The address of a daemon's pages.
    pub web: WebSettings,
    /// The settings of its canary.
    pub canary: CanarySettings,
    /// The settings of its index of scheduled messages.
    pub index: IndexSettings,
    /// The foreign layouts that it also watches, without duplicates.
    pub layouts: Vec<Layout>,
    /// The password of the application that is registered or checked, if these settings are for
    /// that.
    pub app_password: Option<Secret>,
}

/// Limits of the router.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RouterSettings {
    /// How long one `publish` may take, from the call to the confirm; 30 s.
    pub publish_timeout: Duration,
    /// How long one confirm may take before the message is published again on a new connection: 15
    /// s. For each further attempt of a message, the time doubles.
    pub confirm_timeout: Duration,
    /// The most messages that wait for a confirm at any time; 1,000.
    pub window: usize,
    /// The messages that it refuses to publish; none by default.
    pub quota: Quota,
}

impl Default for RouterSettings {
    fn default() -> Self {
        Self {
            publish_timeout: RouterBuilder::PUBLISH_TIMEOUT,
            confirm_timeout: RouterBuilder::CONFIRM_TIMEOUT,
            window: RouterBuilder::WINDOW,
            quota: Quota::default(),
        }
    }
}

/// Why the management API is not used if [`Settings::management`] is `None`.
pub const NO_MANAGEMENT: &str = "the URL of the management API is not known (--management-url; it is guessed only \
                                 where AMQP uses a default port)";

/// The management HTTP API of a broker.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Management {
    /// Its base URL, without credentials.
    pub url: Url,
    /// The base URLs of further nodes of the same cluster. They are tried in this order if the
    /// earlier ones cannot be reached.
    pub other_urls: Vec<Url>,
    /// The user.
    pub username: String,
    /// The password.
    pub password: Secret,
    /// TLS, for `https`.
    pub tls: Tls,
    /// Whether the user named it. Otherwise it was derived from the AMQP URL.
    pub explicit: bool,
}

impl Settings {
    /// The set on this broker.
    pub fn target(&self) -> Target {
        Target::new(self.broker.clone())
            .with_set(self.topology.set.clone())
            .with_unit(self.topology.unit)
            .with_shortcuts(self.topology.shortcuts == Some(true))
    }

    /// A router for this set, with these limits.
    pub fn router(&self) -> RouterBuilder {
        let RouterSettings { publish_timeout, confirm_timeout, window, quota } = &self.router;
        RouterBuilder::new(self.target())
            .publish_timeout(*publish_timeout)
            .confirm_timeout(*confirm_timeout)
            .window(*window)
            .quota(quota.clone())
    }

    /// A command of `delayline` for this set, as its user must type it.
    #[must_use]
    pub fn command(&self, words: &[&str]) -> String {
        self.topology.set.command(words)
    }

    /// Checks that the certificates and keys of these settings can be read, if TLS is used.
    ///
    /// # Errors
    /// A file cannot be read. The error names it and the reason.
    pub fn check_files(&self) -> Result<(), SettingsError> {
        let https = self.management.as_ref().filter(|management| management.url.scheme() == "https");
        let used = self.broker.tls.iter().chain(https.map(|management| &management.tls));
        for tls in used.filter(|tls| **tls != Tls::default()) {
            Material::load(tls)?;
        }
        Ok(())
    }
}
