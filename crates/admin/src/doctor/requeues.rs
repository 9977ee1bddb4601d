//! Queues whose messages come back to their consumers over and over.

use std::collections::BTreeSet;

use serde_json::Value as Json;

use crate::{
    compare::retries_natively,
    doctor::walk::{End, Route},
    finding::{Finding, FindingCode},
    management::QueueInfo,
};

/// Messages per second that come back, below which a consumer that restarts now and then is
/// the likely reason.
const MANY: f64 = 10.0;

/// The period that is looked back at, in seconds. The rate of one moment is 0 in most moments:
/// brokers count redeliveries every 5 s.
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
                "{again:.0} messages a second are delivered that were delivered before, and {done:.0} are \
                 acknowledged; {}",
                effect(queue, version)
            );
            let advice = "let the application reject what fails without requeue, so that the retry service \
                          makes it wait and parks it in the end (docs/retries.md); declare its queue with \
                          delayline app add --retry";
            let subject = format!("queue `{}`", queue.name);
            findings.push(Finding::new(FindingCode::HotLoop, subject, what, advice).about([&target.app]));
        }
    }
    findings
}

/// How many messages a second come back, and how many are acknowledged, if more come back: now,
/// or on average. Messages that a restarted consumer leaves behind come back once.
fn comes_back(queue: &QueueInfo) -> Option<(f64, f64)> {
    let (again, done) = (&queue.message_stats.redeliver_details, &queue.message_stats.ack_details);
    [(again.rate, done.rate), (again.avg_rate, done.avg_rate)]
        .into_iter()
        .find(|(again, done)| *again >= MANY && again > done)
}

/// What becomes of messages that are requeued.
fn effect(queue: &QueueInfo, version: Option<&str>) -> String {
    let native = retries_natively(version) && queue.kind.contains("quorum");
    let value = |key: &str| queue.arguments.get(&format!("x-{key}")).or_else(|| queue.policy_value(key));
    match value("delayed-retry-type").and_then(Json::as_str).filter(|_| native) {
        Some("all" | "returned") => {
            let wait = value("delayed-retry-min").and_then(Json::as_u64).unwrap_or_default();
            format!(
                "each waits {wait} ms in the queue, but what a consumer requeues is not counted and never ends"
            )
        }
        _ if native => {
            "they come back at once, and what a consumer requeues is not counted, so this never ends".into()
        }
        _ => "they come back at once, for as long as the queue allows it".into(),
    }
}
