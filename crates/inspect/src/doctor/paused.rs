//! Applications that were paused and not resumed.

use delayline_broker::QueueInfo;
use delayline_core::{codec::Delay, topology::Topology};
use jiff::{SignedDuration, Timestamp};

use crate::{
    apps::Hold, apps::paused_since, doctor::evidence::Evidence, finding::Finding, finding::FindingCode,
};
use delayline_messages::number::{counted_if_known, either};

/// A pause that lasts longer was probably forgotten.
const LONG: SignedDuration = SignedDuration::from_hours(1);

/// Applications that only a person resumes. `serve` pauses an application until its queue accepts messages,
/// which is no finding: its messages arrive as soon as possible.
pub(super) fn check(topology: &Topology, evidence: &Evidence, now: Timestamp) -> Vec<Finding> {
    let queues = evidence.snapshot.queues.values();
    queues.filter_map(|queue| forgotten(topology, queue, now)).collect()
}

fn forgotten(topology: &Topology, queue: &QueueInfo, now: Timestamp) -> Option<Finding> {
    let app = topology.names().app_of_paused(&queue.name)?;
    let since = paused_since(queue);
    let is_recent = since.is_some_and(|since| now.duration_since(since) < LONG);
    if Hold::of(queue) == Hold::UntilAccepted || queue.messages == Some(0) || is_recent {
        return None;
    }
    let ago = since.and_then(|since| {
        let minutes = u64::try_from(now.duration_since(since).as_mins()).ok()?;
        Some(format!(" {} ago", Delay::from_seconds(minutes * 60).ok()?))
    });
    let finding = Finding::new(
        FindingCode::AppPaused,
        format!("queue `{}`", queue.name),
        format!(
            "application `{app}` was paused{} and not resumed: {} {} here",
            ago.unwrap_or_default(),
            counted_if_known(queue.messages, "message"),
            either(queue.messages.unwrap_or(0), "waits", "wait")
        ),
        format!("run `{}`", topology.settings().set.command(&["app", "resume", app])),
    );
    Some(finding.about([app]))
}

#[cfg(test)]
mod tests {
    use delayline_core::{codec::AppKey, topology::Endpoint};
    use serde_json::json;

    use super::*;
    use delayline_core::topology::TopologySettings;

    #[test]
    fn a_pause_of_over_an_hour_is_found_if_messages_wait_and_nothing_else_resumes_it() {
        let topology = Topology::new(TopologySettings::default());
        let app = AppKey::new("billing").unwrap();
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        let ago = |hours| Some((now - SignedDuration::from_hours(hours)).as_millisecond());
        let found = |since: Option<i64>, messages: Option<u64>| {
            let queue = topology.paused_queue(&app, &Endpoint::Queue("in".into()), since);
            let arguments = serde_json::from_value(json!(queue.arguments)).unwrap();
            let queue = QueueInfo { name: queue.name, arguments, messages, ..QueueInfo::default() };
            forgotten(&topology, &queue, now)
        };
        let finding = found(ago(49), Some(1)).unwrap();
        assert_eq!(finding.apps, ["billing"]);
        assert!(finding.what.contains("paused 2d 1h ago and not resumed: 1 message waits"), "{finding:?}");
        assert_eq!(finding.advice, "run `delayline app resume billing`");
        assert!(found(ago(1), None).unwrap().what.contains("? messages"));
        assert_eq!((found(ago(0), Some(900)), found(ago(49), Some(0))), (None, None));
        // Paused until the queue accepts messages, as `serve --pause-blocking` does it.
        assert_eq!(found(None, Some(900)), None);
    }
}
