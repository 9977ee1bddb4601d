//! Queues whose messages come back to their consumers again and again.

use delayline_core::shell::command;
use std::collections::BTreeSet;

use serde_json::Value as Json;

use crate::{finding::Finding, finding::FindingCode};
use delayline_broker::{End, QueueInfo, Route, retries_natively};

/// Redelivered messages per second; below this, the likely reason is a consumer that restarts now and then.
const MANY: f64 = 10.0;

/// The period of the rates, in seconds. The rate of a single moment is mostly 0, since brokers count
/// redeliveries every 5 s.
pub(super) const PERIOD: u32 = 20;

/// Checks every queue that an application consumes.
pub(super) fn check(targets: &[Route<'_>], version: Option<&str>) -> Vec<Finding> {
    let mut seen = BTreeSet::new();
    let mut findings = Vec::new();
    for target in targets {
        if let End::Queue(queue) = &target.end
            && let Some((again, done)) = comes_back(queue)
            && seen.insert(&queue.name)
        {
            let what = format!(
                "{again:.0} messages a second are redelivered, and {done:.0} are acknowledged; {}",
                effect(queue, version)
            );
            let advice = format!(
                "make the application reject failed messages without requeue, so that the retry service \
                 delays them and parks them in the end (docs/how-to/retries.md); declare its queue with \
                 `{}`",
                command(&["app", "add", &target.app, "--retry"])
            );
            let subject = format!("queue `{}`", queue.name);
            findings.push(Finding::new(FindingCode::HotLoop, subject, what, advice).about([&target.app]));
        }
    }
    findings
}

/// How many messages a second come back, and how many are acknowledged, if more come back: now, or on
/// average. Messages of a restarted consumer come back once.
fn comes_back(queue: &QueueInfo) -> Option<(f64, f64)> {
    let (again, done) = (&queue.message_stats.redeliver_details, &queue.message_stats.ack_details);
    [(again.rate, done.rate), (again.avg_rate, done.avg_rate)]
        .into_iter()
        .find(|(again, done)| *again >= MANY && again > done)
}

/// The effect on requeued messages.
fn effect(queue: &QueueInfo, version: Option<&str>) -> String {
    let native = retries_natively(version) && queue.kind.contains("quorum");
    let value = |key: &str| queue.arguments.get(&format!("x-{key}")).or_else(|| queue.policy_value(key));
    match value("delayed-retry-type").and_then(Json::as_str).filter(|_| native) {
        Some("all" | "returned") => {
            let wait = value("delayed-retry-min").and_then(Json::as_u64).unwrap_or_default();
            format!("each waits {wait} ms in the queue, but requeues are not counted, so this never ends")
        }
        _ if native => "they come back at once, and requeues are not counted, so this never ends".into(),
        _ => "they come back at once, as long as the queue allows it".into(),
    }
}
