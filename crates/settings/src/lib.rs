//! Where the broker is, who we are there, and what set we work on.
//!
//! Two stages: [`Layers`] collects what was typed (defaults, then
//! `delayline.toml`, then `DELAYLINE_*`, then flags), and [`Settings`] is the
//! checked form that everything else trusts.

mod check;
mod daemon;
mod layers;
mod layout;
mod policies;
mod text;
mod urls;

use std::time::Duration;

use delayline_amqp::{
    broker::{Broker, Secret, Tls},
    tls::Material,
};
use delayline_client::router::RouterBuilder;
use delayline_core::{
    message::{MaxRecalls, Quota},
    topology::TopologySettings,
};
use url::Url;

pub use daemon::{CanarySettings, WebSettings};
#[doc(hidden)]
pub use layers::parse;
pub use layers::{Layers, SettingsError, variables};
pub use layout::{ForeignKey, ForeignKeyError, Layout, LayoutError};
pub use policies::{PoliciesError, load_policies, parse_policies, policies_of};
pub use text::{read_secret, read_text};

/// Everything a command or a daemon needs to know; all of it checked.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Settings {
    /// The broker's AMQP side.
    pub broker: Broker,
    /// Its management HTTP API, if there is one to try.
    pub management: Option<Management>,
    /// The set.
    pub topology: TopologySettings,
    /// How the router behaves.
    pub router: RouterSettings,
    /// How many recalls applications may have pending: judged, not enforced.
    pub max_recalls: MaxRecalls,
    /// Where a daemon can be looked at.
    pub web: WebSettings,
    /// How its canary flies.
    pub canary: CanarySettings,
    /// The delays of others that it also watches, each once.
    pub layouts: Vec<Layout>,
    /// The password of the application that is registered or checked, if that is
    /// what these settings are for.
    pub app_password: Option<Secret>,
}

/// Limits of the router.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RouterSettings {
    /// How long one `publish` may take, from the call to the confirm; 30 s.
    pub publish_timeout: Duration,
    /// How long one confirm may take before the message is published again on a new
    /// connection; 15 s, and for each message twice as long every further time.
    pub confirm_timeout: Duration,
    /// The most messages that wait for a confirm at any time; 1,000.
    pub window: usize,
    /// What it refuses to publish; nothing by default.
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

/// Why the management API is not asked, where [`Settings::management`] is `None`.
pub const NO_MANAGEMENT: &str = "the URL of the management API is not known (--management-url; it is guessed only \
                                 where AMQP uses a default port)";

/// The management HTTP API of a broker.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Management {
    /// Its base URL, without credentials.
    pub url: Url,
    /// The base URLs of further nodes of the same cluster, tried in this order when
    /// those before cannot be reached.
    pub other_urls: Vec<Url>,
    /// Who we are there.
    pub username: String,
    /// The password.
    pub password: Secret,
    /// TLS, for `https`.
    pub tls: Tls,
    /// Whether the user named it, or it was derived from the AMQP URL.
    pub explicit: bool,
}

impl Settings {
    /// Settings for a broker at a URL, with everything else as by default.
    ///
    /// ```
    /// let settings = delayline_settings::Settings::from_url("amqp://broker.example/orders")?;
    /// assert_eq!(settings.broker.vhost, "orders");
    /// # Ok::<(), delayline_settings::SettingsError>(())
    /// ```
    ///
    /// # Errors
    /// What is wrong with the URL.
    pub fn from_url(url: &str) -> Result<Self, SettingsError> {
        Layers::new().set("url", url).build()
    }
    /// A router for this broker and set, with these limits.
    pub fn router(&self) -> RouterBuilder {
        let RouterSettings { publish_timeout, confirm_timeout, window, quota } = &self.router;
        RouterBuilder::new(self.broker.clone())
            .set(self.topology.set.clone())
            .unit(self.topology.unit)
            .publish_timeout(*publish_timeout)
            .confirm_timeout(*confirm_timeout)
            .window(*window)
            .quota(quota.clone())
    }

    /// Whether the certificates and keys that these settings name can be read, where TLS is
    /// used.
    ///
    /// # Errors
    /// Which of them cannot, and why.
    pub fn check_files(&self) -> Result<(), SettingsError> {
        let https = self.management.as_ref().filter(|management| management.url.scheme() == "https");
        let used = self.broker.tls.iter().chain(https.map(|management| &management.tls));
        for tls in used.filter(|tls| **tls != Tls::default()) {
            Material::load(tls)?;
        }
        Ok(())
    }
}
