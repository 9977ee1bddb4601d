//! Whether a broker can run a set at all: pure.

use delayline_core::topology::{QueueType, TopologySettings};

use super::Difference;
use crate::about::{About, series};

/// The first version whose quorum queues dead-letter at least once.
const OLDEST: (u32, u32) = (3, 10);

/// The required feature flags, where they can still be off: an upgraded cluster keeps new flags off until
/// an operator enables them. Versions without these flags have the features built in.
const NEEDED: [&str; 2] = ["quorum_queue", "stream_queue"];

/// Known reasons why a set with these settings cannot work on this broker.
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
    if let (Some(replicas), Some(nodes)) = (settings.replicas, about.nodes.as_ref().map(Vec::len))
        && usize::from(replicas.get()) > nodes
    {
        found.push(Difference::Unsuitable {
            reason: format!("{replicas} replicas are configured, but the number of nodes is {nodes}"),
            remedy: "add nodes, or ask for fewer replicas".into(),
        });
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::management::{FeatureFlag, NodeInfo};

    fn about(version: &str, flags: &[(&str, &str)]) -> About {
        let flags = flags
            .iter()
            .map(|(name, state)| FeatureFlag {
                name: (*name).into(),
                state: (*state).into(),
                ..FeatureFlag::default()
            })
            .collect();
        About {
            version: Some(version.into()),
            flags: Some(flags),
            nodes: Some(vec![NodeInfo::default(); 3]),
            ..About::default()
        }
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
    fn brokers_that_cannot() {
        let settings = TopologySettings::default();
        let old = texts(&settings, &about("3.9.29", &[]));
        assert!(old.len() == 1 && old[0].contains("3.9.29") && old[0].contains("3.10"), "{old:?}");
        let off = texts(&settings, &about("3.10.8", &[("stream_queue", "disabled")]));
        assert!(off.len() == 1 && off[0].contains("enable_feature_flag stream_queue"), "{off:?}");
        let few = settings.clone().with_replicas(std::num::NonZeroU8::new(5).unwrap());
        let few = texts(&few, &about("4.3.6", &[]));
        assert!(few.len() == 1 && few[0].contains("number of nodes is 3"), "{few:?}");
        // Classic queues have fewer guarantees, and fewer requirements.
        let classic = settings.with_queue_type(QueueType::Classic);
        assert!(texts(&classic, &about("3.8.0", &[("stream_queue", "disabled")])).is_empty());
    }
}
