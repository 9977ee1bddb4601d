//! Whether a broker can carry a set at all: pure, over plain data.

use crate::management::FeatureFlag;

use crate::compare::Difference;
use delayline_core::topology::{QueueType, TopologySettings};

/// The first version whose quorum queues dead-letter at least once.
const OLDEST: (u32, u32) = (3, 10);

/// The feature flags this needs, where they can still be off: an upgraded cluster keeps new
/// flags off until somebody enables them. Versions without these flags have the features
/// built in.
const NEEDED: [&str; 2] = ["quorum_queue", "stream_queue"];

/// What a broker reports about itself; `None` for what it was not asked or would not say.
#[derive(Debug, Clone, Default)]
pub struct About {
    /// Its version, such as `3.10.8`.
    pub version: Option<String>,
    /// Its feature flags.
    pub flags: Option<Vec<FeatureFlag>>,
    /// How many nodes its cluster has.
    pub nodes: Option<usize>,
}

/// What prevents a set with these settings from working on this broker. Empty if nothing is
/// known to.
#[must_use]
pub fn unsuitable(settings: &TopologySettings, about: &About) -> Vec<Difference> {
    let mut found = Vec::new();
    if settings.queue_type == QueueType::Classic {
        return found;
    }
    if let Some(version) = &about.version
        && series(version).is_some_and(|series| series < OLDEST)
    {
        found.push(Difference::Unsuitable {
            reason: format!("RabbitMQ {version} cannot dead-letter at least once"),
            remedy: "upgrade it to 3.10 or later, or choose --queue-type classic, which loses messages \
                     when a node fails"
                .into(),
        });
    }
    for flag in about.flags.iter().flatten() {
        if NEEDED.contains(&flag.name.as_str()) && flag.state != "enabled" {
            found.push(Difference::Unsuitable {
                reason: format!(
                    "the feature flag `{}` is {}, and without it quorum queues cannot dead-letter at least once",
                    flag.name, flag.state
                ),
                remedy: format!("rabbitmqctl enable_feature_flag {}", flag.name),
            });
        }
    }
    if let (Some(replicas), Some(nodes)) = (settings.replicas, about.nodes)
        && usize::from(replicas.get()) > nodes
    {
        found.push(Difference::Unsuitable {
            reason: format!("{replicas} replicas are wanted, but the number of nodes is {nodes}"),
            remedy: "add nodes, or ask for fewer with --replicas".into(),
        });
    }
    found
}

/// What any publisher can do to everybody on a broker of this version: one message with a
/// header `x-death` that no broker wrote ends all delays of a node. Measured on 3.10.8, where
/// 4.0.5 and 4.3.6 take no harm; the versions between by RabbitMQ's source
/// (docs/compatibility.md).
#[must_use]
pub fn forgery(version: Option<&str>) -> Option<String> {
    let version = version.filter(|version| series(version).is_some_and(|series| series.0 < 4))?;
    Some(format!(
        "on RabbitMQ {version} one message with a forged header `x-death` ends all delays, so only \
         applications that trust each other may share this broker; RabbitMQ 4 is not affected \
         (docs/security.md)"
    ))
}

/// Whether the quorum queues of a version make what comes back to them wait, if they are asked
/// to. Older ones take the arguments for it and ignore them.
#[must_use]
pub fn retries_natively(version: Option<&str>) -> bool {
    version.and_then(series).is_some_and(|series| series >= (4, 3))
}

/// Major and minor version; `None` if they cannot be told.
#[must_use]
pub fn series(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split(['.', '-', '+']).map(str::parse);
    Some((parts.next()?.ok()?, parts.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn about(version: &str, flags: &[(&str, &str)]) -> About {
        let flags = flags
            .iter()
            .map(|(name, state)| FeatureFlag {
                name: (*name).into(),
                state: (*state).into(),
                ..FeatureFlag::default()
            })
            .collect();
        About { version: Some(version.into()), flags: Some(flags), nodes: Some(3) }
    }

    fn texts(settings: &TopologySettings, about: &About) -> Vec<String> {
        unsuitable(settings, about).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn brokers_that_can() {
        let settings = TopologySettings::default();
        let on = [("quorum_queue", "enabled"), ("stream_queue", "enabled"), ("khepri_db", "disabled")];
        for version in ["3.10.0", "3.13.7", "4.0.5", "4.3.6", "4.3.0-rc.1", "5.0+x", "", "unknown"] {
            assert!(texts(&settings, &about(version, &on)).is_empty(), "{version}");
            assert!(texts(&settings, &about(version, &[])).is_empty(), "{version}");
        }
        assert!(texts(&settings, &About::default()).is_empty());
    }

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

    #[test]
    fn brokers_that_cannot() {
        let settings = TopologySettings::default();
        let old = texts(&settings, &about("3.9.29", &[]));
        assert!(old.len() == 1 && old[0].contains("3.9.29") && old[0].contains("3.10"), "{old:?}");
        let off = texts(&settings, &about("3.10.8", &[("stream_queue", "disabled")]));
        assert!(off.len() == 1 && off[0].contains("enable_feature_flag stream_queue"), "{off:?}");
        let few = settings.clone().with_replicas(std::num::NonZeroU8::new(5).unwrap());
        let few = texts(&few, &about("4.3.6", &[]));
        assert!(few.len() == 1 && few[0].contains("number of nodes is 3"), "{few:?}");
        // Classic queues promise less, and need less.
        let classic = settings.with_queue_type(QueueType::Classic);
        assert!(texts(&classic, &about("3.8.0", &[("stream_queue", "disabled")])).is_empty());
    }
}
