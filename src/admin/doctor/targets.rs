//! Where applications' messages go: their queues, directly, through exchanges of
//! theirs, or behind a landing queue.

use std::collections::BTreeSet;

use serde_json::Value as Json;

use crate::{
    codec::{Delay, RoutingKey},
    management::{BindingInfo, QueueInfo},
    topology::{Endpoint, Observed, QueueType, Topology, topic_matches},
};

use super::{FindingCode, HealthFinding};

/// How many exchanges and landing queues in a row are followed.
const DEPTH: usize = 16;

/// A queue that messages of an application end in, or the exchange that leads to
/// none.
#[derive(Debug, Clone)]
pub(super) struct Target<'a> {
    /// The app key, or the binding key that is not an exact one.
    pub(super) app: String,
    pub(super) end: End<'a>,
    /// The landing queue in front of it: what it refuses holds up nobody else.
    pub(super) landing: Option<&'a QueueInfo>,
}

#[derive(Debug, Clone)]
pub(super) enum End<'a> {
    Queue(&'a QueueInfo),
    /// An exchange that passes the message on to no queue, or that is not there.
    Nowhere(String),
    /// An exchange or queue of the set, from which it comes to dispatch again.
    Back(Endpoint),
}

/// How a queue refuses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Limit {
    pub(super) text: String,
    pub(super) full: bool,
}

impl Target<'_> {
    /// Why it does not take messages now, if that is known.
    pub(super) fn blocked(&self) -> Option<String> {
        match &self.end {
            End::Nowhere(exchange) => Some(format!("exchange `{exchange}` leads to no queue")),
            End::Back(_) => None,
            End::Queue(queue) if without_majority(queue) => {
                Some(format!("queue `{}` has no majority of its replicas", queue.name))
            }
            End::Queue(queue) => limit(queue)
                .filter(|limit| limit.full)
                .map(|limit| format!("queue `{}` is full ({})", queue.name, limit.text)),
        }
    }
}

/// All that is bound to dispatch, followed to its end.
pub(super) fn targets<'a>(topology: &Topology, observed: &'a Observed) -> Vec<Target<'a>> {
    let mut targets = Vec::new();
    for binding in observed.dispatch_bindings(topology) {
        let (app, key) = match RoutingKey::app_of_pattern(&binding.key) {
            Ok(app) => (app.to_string(), RoutingKey::new(Delay::ZERO, app).encode()),
            // What it catches can have any key.
            Err(pattern) => (pattern.to_owned(), String::new()),
        };
        let mut walk = Walk { topology, observed, landing: None, ends: Vec::new() };
        match &binding.destination {
            // It holds nothing that anybody would miss.
            Endpoint::Queue(queue) if topology.names().is_canary(queue) => {}
            Endpoint::Queue(queue) => walk.queue(queue, &key, DEPTH),
            Endpoint::Exchange(exchange) => walk.exchange(exchange, &key, DEPTH),
        }
        targets.extend(walk.ends.into_iter().map(|(end, landing)| Target { app: app.clone(), end, landing }));
    }
    targets
}

struct Walk<'a, 't> {
    topology: &'t Topology,
    observed: &'a Observed,
    landing: Option<&'a QueueInfo>,
    ends: Vec<(End<'a>, Option<&'a QueueInfo>)>,
}

impl<'a> Walk<'a, '_> {
    /// Whether the way ends here because it goes back into the set.
    fn goes_back(&mut self, to: Endpoint) -> bool {
        let back = self.topology.leads_back(&to);
        if back {
            self.ends.push((End::Back(to), self.landing));
        }
        back
    }

    fn queue(&mut self, name: &str, key: &str, depth: usize) {
        if self.goes_back(Endpoint::Queue(name.to_owned())) {
            return;
        }
        let Some(queue) = self.observed.queues.iter().find(|queue| queue.name == name) else { return };
        if self.topology.names().app_of_landing(name).is_none() || depth == 0 {
            self.ends.push((End::Queue(queue), self.landing));
            return;
        }
        let text = |argument: &str| queue.arguments.get(argument).and_then(Json::as_str);
        let key = text("x-dead-letter-routing-key").unwrap_or(key).to_owned();
        let before = self.landing.replace(queue);
        match text("x-dead-letter-exchange") {
            Some("") => self.queue_or_nowhere(&key, depth - 1),
            Some(exchange) => self.exchange(exchange, &key, depth - 1),
            None => self.ends.push((End::Queue(queue), before)),
        }
        self.landing = before;
    }

    /// What the default exchange does.
    fn queue_or_nowhere(&mut self, name: &str, depth: usize) {
        let before = self.ends.len();
        self.queue(name, name, depth);
        if self.ends.len() == before {
            self.ends.push((End::Nowhere(format!("(default, with key {name})")), self.landing));
        }
    }

    fn exchange(&mut self, name: &str, key: &str, depth: usize) {
        if self.goes_back(Endpoint::Exchange(name.to_owned())) {
            return;
        }
        let nowhere = End::Nowhere(name.to_owned());
        let exchange = self.observed.exchanges.iter().find(|exchange| exchange.name == name);
        let (Some(exchange), 1..) = (exchange, depth) else {
            self.ends.push((nowhere, self.landing));
            return;
        };
        let before = self.ends.len();
        let passes = |binding: &&BindingInfo| {
            binding.source == name
                && match exchange.kind.as_str() {
                    // An empty key stands for any.
                    "topic" => key.is_empty() || topic_matches(&binding.routing_key, key),
                    "direct" => key.is_empty() || binding.routing_key == key,
                    _ => true,
                }
        };
        let bindings: Vec<_> = self.observed.bindings.iter().filter(passes).cloned().collect();
        for binding in bindings {
            match binding.destination_type.as_str() {
                "exchange" => self.exchange(&binding.destination, key, depth - 1),
                _ => self.queue(&binding.destination, key, depth - 1),
            }
        }
        if self.ends.len() > before {
            return;
        }
        match exchange.arguments.get("alternate-exchange").and_then(Json::as_str) {
            Some(alternate) => self.exchange(alternate, key, depth - 1),
            None => self.ends.push((nowhere, self.landing)),
        }
    }
}

fn without_majority(queue: &QueueInfo) -> bool {
    !queue.members.is_empty() && queue.online.len() * 2 <= queue.members.len()
}

/// How a queue refuses when it is full, by its arguments or by policy; `None` if it
/// does not.
fn limit(queue: &QueueInfo) -> Option<Limit> {
    let overflow = queue
        .arguments
        .get("x-overflow")
        .map(|value| (value, false))
        .or_else(|| queue.policy_value("overflow").map(|value| (value, true)))?;
    overflow.0.as_str().filter(|behaviour| behaviour.starts_with("reject-publish"))?;
    let mut limits = Vec::new();
    let mut full = false;
    let mut by_policy = overflow.1;
    for (argument, key, now, unit) in [
        ("x-max-length", "max-length", queue.messages_ready, "messages"),
        ("x-max-length-bytes", "max-length-bytes", queue.message_bytes_ready, "bytes"),
    ] {
        let argument = queue.arguments.get(argument).and_then(Json::as_u64);
        let policy = queue.policy_value(key).and_then(Json::as_u64);
        // The lower of both counts.
        if let Some(most) = argument.into_iter().chain(policy).min() {
            full |= now >= most;
            by_policy |= argument.is_none_or(|argument| policy.is_some_and(|policy| policy < argument));
            limits.push(format!("{now} of {most} {unit}"));
        }
    }
    if limits.is_empty() {
        return None;
    }
    let names: Vec<_> = [("policy", &queue.policy), ("operator policy", &queue.operator_policy)]
        .into_iter()
        .filter_map(|(kind, name)| name.as_ref().filter(|name| !name.is_empty()).map(|name| (kind, name)))
        .map(|(kind, name)| format!("{kind} `{name}`"))
        .collect();
    let by = if by_policy && !names.is_empty() { names.join(" and ") } else { "its arguments".into() };
    Some(Limit { text: format!("{}, by {by}", limits.join(", ")), full })
}

/// Looks at every queue that messages end in.
pub(super) fn check(topology: &Topology, targets: &[Target<'_>]) -> Vec<HealthFinding> {
    let mut findings = Vec::new();
    let mut seen = BTreeSet::new();
    for target in targets {
        let queue = match &target.end {
            End::Queue(queue) => queue,
            End::Nowhere(exchange) => {
                findings.push(dead_end(target, exchange));
                continue;
            }
            End::Back(to) => {
                findings.push(loops(target, to));
                continue;
            }
        };
        if let Some(landing) = target.landing
            && seen.insert(&landing.name)
        {
            // What it refuses comes back to the levels, whatever is behind it.
            findings.extend(refusals(landing, &target.app));
        }
        if !seen.insert(&queue.name) {
            continue;
        }
        let apps = || targets.iter().filter(|other| is_at(other, queue)).map(|other| &other.app);
        let subject = format!("queue `{}`", queue.name);
        let finding = |code, what: String, advice: &str| {
            HealthFinding::new(code, subject.clone(), what, advice).about(apps())
        };
        if target.landing.is_none() {
            findings.extend(refusals(queue, &target.app).map(|finding| finding.about(apps())));
        }
        if without_majority(queue) {
            findings.push(finding(
                FindingCode::NoMajority,
                format!(
                    "{} of {} replicas run: it takes no messages, and {}",
                    queue.online.len(),
                    queue.members.len(),
                    stalls(target)
                ),
                "start the nodes of the others",
            ));
        }
        let quorum_set = topology.settings().queue_type == QueueType::Quorum;
        if quorum_set && queue.durable && queue.kind.contains("classic") {
            findings.push(finding(
                FindingCode::TargetClassic,
                "it is a classic queue behind a set of quorum queues: what took care to get here is on one \
                 node only, and gone with its disk"
                    .into(),
                "declare it anew as a quorum queue (x-queue-type: quorum); delayline app add does",
            ));
        }
        if !queue.durable || queue.exclusive || queue.auto_delete {
            let goes = match (queue.exclusive, queue.auto_delete) {
                (true, _) => "the connection that declared it",
                (_, true) => "its last consumer",
                _ => "the node's next restart",
            };
            findings.push(finding(
                FindingCode::TargetTransient,
                format!("it goes with {goes}, and what is due afterwards ends up unroutable"),
                "declare a durable queue; if this is `delayline listen`, all is well once it ends",
            ));
        }
        // A stream keeps what was read.
        if queue.consumers == 0 && queue.messages_ready > 0 && !queue.kind.contains("stream") {
            findings.push(finding(
                FindingCode::NobodyConsumes,
                format!("{} messages wait, and nobody consumes them", queue.messages_ready),
                "start the application; if it is gone for good, delayline app remove",
            ));
        }
    }
    findings
}

fn is_at(target: &Target<'_>, queue: &QueueInfo) -> bool {
    matches!(&target.end, End::Queue(other) if other.name == queue.name)
}

fn stalls(target: &Target<'_>) -> &'static str {
    match target.landing {
        Some(_) => "its landing queue keeps them",
        None => "32 that are due for it stop a level for every application",
    }
}

fn dead_end(target: &Target<'_>, exchange: &str) -> HealthFinding {
    HealthFinding::new(
        FindingCode::TargetDeadEnd,
        format!("exchange `{exchange}`"),
        format!("`{}` leads to it, and it leads to no queue: {}", target.app, stalls(target)),
        "bind the application's queue to it, or unbind it from the dispatch exchange: then its messages are kept \
         as unroutable, and hold up nobody",
    )
    .about([&target.app])
}

fn loops(target: &Target<'_>, to: &Endpoint) -> HealthFinding {
    HealthFinding::new(
        FindingCode::TargetLoop,
        to.to_string(),
        format!("what is due for `{}` comes back there, and is delayed and delivered again and again", target.app),
        "remove the binding that leads there, from the dispatch exchange or from the application's own; what goes \
         round then ends up with the application or unroutable",
    )
    .about([&target.app])
}

fn refusals(queue: &QueueInfo, app: &str) -> impl Iterator<Item = HealthFinding> {
    let advice = "consume from it; then take the limit away, or let it drop the oldest (x-overflow: drop-head), or \
                  put a landing queue in front of it (delayline app add --landing)";
    let finding = limit(queue).map(|limit| {
        let (code, what) = match limit.full {
            true => (
                FindingCode::TargetRefuses,
                format!("it is full ({}) and refuses: 32 that are due for it stop a level for every application", limit.text),
            ),
            false => (
                FindingCode::TargetCanRefuse,
                format!("it will refuse when it is full ({}), and then 32 that are due for it stop a level for every application", limit.text),
            ),
        };
        HealthFinding::new(code, format!("queue `{}`", queue.name), what, advice).about([app])
    });
    finding.into_iter()
}

/// Looks at the binding keys themselves.
pub(super) fn check_bindings(topology: &Topology, observed: &Observed) -> Vec<HealthFinding> {
    let bindings = observed.dispatch_bindings(topology);
    let exact: Vec<_> = bindings
        .iter()
        .filter_map(|binding| Some((RoutingKey::app_of_pattern(&binding.key).ok()?, binding)))
        .collect();
    let mut findings = Vec::new();
    for binding in &bindings {
        if RoutingKey::app_of_pattern(&binding.key).is_ok() {
            continue;
        }
        let caught: BTreeSet<_> = exact
            .iter()
            .filter(|(app, other)| {
                let key = RoutingKey::new(Delay::ZERO, app.clone()).encode();
                other.destination != binding.destination && topic_matches(&binding.key, &key)
            })
            .map(|(app, _)| app)
            .collect();
        let advice = "bind with `delay.`, 28 times `*.` and the app key, and then remove this binding; delayline app \
                      add writes the exact one";
        findings.push(if caught.is_empty() {
            HealthFinding::new(
                FindingCode::WildcardBinding,
                binding.to_string(),
                "it can catch messages of other applications",
                advice,
            )
        } else {
            let names: Vec<_> = caught.iter().map(|app| format!("`{app}`")).collect();
            HealthFinding::new(
                FindingCode::BindingCollision,
                binding.to_string(),
                format!("it also receives the messages of {}", names.join(", ")),
                advice,
            )
            .about(caught)
        });
    }
    findings
}
