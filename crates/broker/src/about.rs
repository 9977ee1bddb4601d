//! What a broker reports about itself.

use delayline_settings::{Management, NO_MANAGEMENT};

use crate::management::{Alarm, DeprecatedFeature, FeatureFlag, ManagementApi, ManagementError, NodeInfo};

/// Why a count of messages or consumers is unknown.
pub const NO_STATISTICS: &str = "the broker does not report it (it keeps no statistics, or has none yet)";

/// The broker's report about itself; `None` for parts that were not asked for or not reported.
#[derive(Debug, Clone, Default)]
pub struct About {
    /// Its version, such as `3.10.8`.
    pub version: Option<String>,
    /// Its feature flags.
    pub flags: Option<Vec<FeatureFlag>>,
    /// The nodes of its cluster.
    pub nodes: Option<Vec<NodeInfo>>,
    /// Deprecated features that are in use. Old brokers have no such list.
    pub deprecated: Option<Vec<DeprecatedFeature>>,
    /// Whether it keeps no statistics (`management_agent.disable_metrics_collector`).
    pub without_statistics: bool,
    /// Its alarms.
    pub alarms: Option<Vec<Alarm>>,
}

impl About {
    /// Asks a broker, whose version is known from AMQP. Parts for which our user lacks the tag come back as
    /// a list of reasons; nothing here is an error.
    #[must_use]
    pub fn fetch(version: Option<String>, management: Option<&Management>) -> (Self, Vec<String>) {
        let mut about = Self { version, ..Self::default() };
        let mut unchecked = Vec::new();
        let Some(api) = management.and_then(|settings| ManagementApi::new(settings).ok()) else {
            unchecked.push(format!("feature flags: {NO_MANAGEMENT}"));
            return (about, unchecked);
        };
        let mut keep = |what: &str, error: ManagementError| unchecked.push(format!("{what}: {error}"));
        match api.feature_flags() {
            Ok(flags) => about.flags = Some(flags),
            Err(error @ ManagementError::Unreachable { .. }) => {
                keep("feature flags and the number of nodes", error);
                return (about, unchecked);
            }
            Err(error) => keep("feature flags", error),
        }
        about.without_statistics = api.overview().is_ok_and(|overview| overview.disable_stats);
        match api.alarms() {
            Ok(alarms) => about.alarms = Some(alarms),
            Err(error) => keep("whether a node is in alarm", error),
        }
        match api.nodes() {
            Ok(nodes) => about.nodes = Some(nodes),
            Err(error) => keep("the number of nodes, and so of replicas", error),
        }
        (about, unchecked)
    }
}

/// The harm that any publisher can do to every application on a broker of this version: one message with a
/// forged header `x-death` ends all delays of a node. Measured: 3.10.8 is affected, 4.0.5 and 4.3.6 are
/// not. The versions between are classified by RabbitMQ's source (docs/reference/versions.md).
#[must_use]
pub fn forgery(version: Option<&str>) -> Option<String> {
    let version = version.filter(|version| series(version).is_some_and(|series| series.0 < 4))?;
    Some(format!(
        "on RabbitMQ {version} one message with a forged header `x-death` ends all delays, so only \
         applications that trust each other may share this broker; RabbitMQ 4 is not affected \
         (docs/explanation/security.md)"
    ))
}

/// Whether the quorum queues of a version can delay requeued messages. Older ones accept the arguments for
/// it and ignore them.
#[must_use]
pub fn retries_natively(version: Option<&str>) -> bool {
    version.and_then(series).is_some_and(|series| series >= (4, 3))
}

/// Major and minor version; `None` if the version is in another form.
#[must_use]
pub fn series(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split(['.', '-', '+']).map(str::parse);
    Some((parts.next()?.ok()?, parts.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_old_brokers_can_be_stopped_by_a_header() {
        for version in ["3.10.8", "3.11.28", "3.12.14", "3.13.7", "3.13.0-rc.1"] {
            let text = forgery(Some(version)).unwrap();
            assert!(text.contains(version) && text.contains("trust each other"), "{text}");
        }
        for version in ["4.0.5", "4.3.6", "5.0+x", "", "unknown"] {
            assert_eq!(forgery(Some(version)), None, "{version}");
        }
        assert_eq!(forgery(None), None);
    }
}
