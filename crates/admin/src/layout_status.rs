//! What waits where in the delays of others.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value as Json;

use crate::{
    AdminError, Layout,
    compare::Observed,
    guard::{KEY, alternate},
    handover::{Look, Sign, remembered},
    management::{Policy, PolicyKind},
    observe_with,
};
use delayline_core::codec::Level;
use delayline_settings::Settings;

/// What was learned from the broker about a layout.
#[derive(Debug, Default)]
pub(crate) struct LayoutFacts {
    pub(crate) layout: Option<Layout>,
    pub(crate) observed: Observed,
    pub(crate) policies: Vec<Policy>,
    /// For each level queue with dead letters now, how many were on their way over the last
    /// minute, the oldest first.
    pub(crate) dead_letters: BTreeMap<String, Vec<Look>>,
    pub(crate) unchecked: Vec<String>,
}

impl LayoutFacts {
    /// Enters the alternate exchanges that policies set, as if they were arguments: that is
    /// what they are to a message.
    pub(crate) fn settle(&mut self) {
        for exchange in &mut self.observed.exchanges {
            if let Some(to) = alternate(exchange, &self.policies) {
                exchange.arguments.insert(KEY.into(), Json::from(to));
            }
        }
    }

    /// The exchanges of the layout that have no alternate.
    pub(crate) fn unguarded(&self, layout: &Layout) -> Vec<&str> {
        let names = layout.exchanges();
        let of_layout = self.observed.exchanges.iter().filter(|exchange| names.contains(&exchange.name));
        let open = of_layout.filter(|exchange| alternate(exchange, &self.policies).is_none());
        open.map(|exchange| exchange.name.as_str()).collect()
    }

    /// How many messages the guard keeps, up to 5 s ago; `None` without a guard.
    pub(crate) fn unroutable(&self) -> Option<u64> {
        let name = self.layout.as_ref()?.kept();
        self.observed.queues.iter().find(|queue| queue.name == name).map(|queue| queue.messages)
    }
}

/// Asks the broker about a layout.
pub(crate) fn gather(settings: &Settings, layout: &Layout) -> Result<LayoutFacts, AdminError> {
    let (api, vhost) = (crate::api(settings, "lists queues")?, &settings.broker.vhost);
    let observed = observe_with(&api, vhost)?;
    let names = layout.exchanges();
    if !observed.exchanges.iter().any(|exchange| names.contains(&exchange.name)) {
        return Err(AdminError::NoLayout { layout: layout.to_string(), vhost: vhost.clone() });
    }
    let mut facts = LayoutFacts { layout: Some(layout.clone()), observed, ..LayoutFacts::default() };
    match api.policies(PolicyKind::Policy, vhost) {
        Ok(policies) => facts.policies = policies,
        Err(error) => facts.unchecked.push(format!("whether a policy guards it: {error}")),
    }
    let level = |name: &str| layout.level_of(name).is_some();
    for queue in facts.observed.queues.iter().filter(|queue| queue.messages_dlx > 0 && level(&queue.name)) {
        facts.dead_letters.insert(queue.name.clone(), remembered(&api, vhost, queue)?);
    }
    facts.settle();
    Ok(facts)
}

/// What waits where in a layout of others, as the management API counts it: up to 5 s ago.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct LayoutStatus {
    /// The layout.
    pub layout: Layout,
    /// Where it is.
    pub vhost: String,
    /// When this was looked at.
    pub at: Timestamp,
    /// Its levels, the highest first.
    pub levels: Vec<LayoutLevel>,
    /// Messages that wait in all of them.
    pub waiting: u64,
    /// Messages that have left a level and are not confirmed by the next.
    pub handing_on: u64,
    /// How many of those do not move.
    pub stuck: u64,
    /// How many exchanges of the layout there are.
    pub exchanges: usize,
    /// How many of them have an alternate.
    pub guarded: usize,
    /// What the guard keeps; `None` without one.
    pub unroutable: Option<u64>,
    /// What is bound behind the levels.
    pub destinations: Vec<LayoutDestination>,
    /// What could not be seen, and why.
    pub unchecked: Vec<String>,
}

impl LayoutStatus {
    /// Whether what nobody is bound for is kept by a guard of ours, from whichever exchange it comes.
    #[must_use]
    pub fn is_guarded(&self) -> bool {
        self.unroutable.is_some() && self.guarded == self.exchanges
    }
}

/// A level of a layout.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LayoutLevel {
    /// Its number, 0 to 27.
    pub level: u8,
    /// Its queue.
    pub queue: String,
    /// How long a message stays, in ms; `None` if the queue is missing or does not say.
    pub wait_ms: Option<u64>,
    /// Messages that wait in it; `None` if it is missing.
    pub ready: Option<u64>,
    /// Messages that have left it and are not confirmed by the next.
    pub handing_on: u64,
    /// How many of those do not move.
    pub stuck: u64,
}

/// What is bound behind the levels of a layout.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[non_exhaustive]
pub struct LayoutDestination {
    /// The binding key.
    pub key: String,
    /// `queue` or `exchange`.
    pub kind: String,
    /// Its name.
    pub name: String,
}

/// Counts what waits in a layout of others.
///
/// # Errors
/// If there is no such layout in the vhost, or the management API cannot be asked.
pub fn layout_status(settings: &Settings, layout: &Layout) -> Result<LayoutStatus, AdminError> {
    Ok(status(&gather(settings, layout)?, layout, &settings.broker.vhost))
}

fn status(facts: &LayoutFacts, layout: &Layout, vhost: &str) -> LayoutStatus {
    let level = |level: Level| {
        let name = layout.level(level);
        let queue = facts.observed.queues.iter().find(|queue| queue.name == name);
        let stuck = facts.dead_letters.get(&name).map_or(0, |looks| Sign::of(looks).stuck());
        LayoutLevel {
            level: level.number(),
            wait_ms: queue.and_then(|queue| queue.arguments.get("x-message-ttl")).and_then(Json::as_u64),
            ready: queue.map(|queue| queue.messages_ready),
            handing_on: queue.map_or(0, |queue| queue.messages_dlx),
            stuck,
            queue: name,
        }
    };
    let levels: Vec<_> = Level::all().rev().map(level).collect();
    let delivery = layout.delivery();
    let bindings = facts.observed.bindings.iter().filter(|binding| binding.source == delivery);
    let mut destinations: Vec<_> = bindings
        .map(|binding| LayoutDestination {
            key: binding.routing_key.clone(),
            kind: binding.destination_type.clone(),
            name: binding.destination.clone(),
        })
        .collect();
    destinations.sort();
    let names = layout.exchanges();
    let exchanges = facts.observed.exchanges.iter().filter(|exchange| names.contains(&exchange.name)).count();
    LayoutStatus {
        layout: layout.clone(),
        vhost: vhost.to_owned(),
        at: Timestamp::now(),
        waiting: levels.iter().filter_map(|level| level.ready).sum(),
        handing_on: levels.iter().map(|level| level.handing_on).sum(),
        stuck: levels.iter().map(|level| level.stuck).sum(),
        levels,
        exchanges,
        guarded: exchanges - facts.unguarded(layout).len(),
        unroutable: facts.unroutable(),
        destinations,
        unchecked: facts.unchecked.clone(),
    }
}
