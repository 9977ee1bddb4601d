//! Where the broker is, who we are there, and what set we work on.
//!
//! Two stages: [`Layers`] collects what was typed (defaults, then
//! `delayline.toml`, then `DELAYLINE_*`, then flags), and [`Settings`] is the
//! checked form that everything else trusts.

mod broker;
mod check;
mod daemon;
mod layers;
mod secret;

use std::time::Duration;

use crate::{message::Quota, topology::TopologySettings};

pub use broker::{Broker, Credentials, Management, Tls};
pub use daemon::{CanarySettings, WebSettings};
#[doc(hidden)]
pub use layers::parse;
pub use layers::{Layers, SettingsError};
pub use secret::Secret;

/// Everything a command or a router needs to know; all of it checked.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The broker's AMQP side.
    pub broker: Broker,
    /// Its management HTTP API, if there is one to try.
    pub management: Option<Management>,
    /// The set.
    pub topology: TopologySettings,
    /// How the router behaves.
    pub router: RouterSettings,
    /// Where a daemon can be looked at.
    pub web: WebSettings,
    /// How its canary flies.
    pub canary: CanarySettings,
    /// The password of the application that is registered or checked, if that is
    /// what these settings are for.
    pub app_password: Option<Secret>,
}

/// Limits of the router.
#[derive(Debug, Clone, PartialEq, Eq)]
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

impl RouterSettings {
    /// The default publish timeout.
    pub const PUBLISH_TIMEOUT: Duration = Duration::from_secs(30);
    /// The default confirm timeout.
    pub const CONFIRM_TIMEOUT: Duration = Duration::from_secs(15);
    /// The default window.
    pub const WINDOW: usize = 1_000;
}

impl Default for RouterSettings {
    fn default() -> Self {
        Self {
            publish_timeout: Self::PUBLISH_TIMEOUT,
            confirm_timeout: Self::CONFIRM_TIMEOUT,
            window: Self::WINDOW,
            quota: Quota::default(),
        }
    }
}

impl Settings {
    /// Settings for a broker at a URL, with everything else as by default.
    ///
    /// ```
    /// let settings = delayline::Settings::from_url("amqp://broker.example/orders")?;
    /// assert_eq!(settings.broker.vhost, "orders");
    /// # Ok::<(), delayline::settings::SettingsError>(())
    /// ```
    ///
    /// # Errors
    /// What is wrong with the URL.
    pub fn from_url(url: &str) -> Result<Self, SettingsError> {
        Layers::new().set("url", url).build()
    }
}
