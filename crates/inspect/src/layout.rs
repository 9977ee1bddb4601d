//! Waiting messages in a layout, by level.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value as Json;

use crate::{guard::KEY, guard::alternate};
use delayline_broker::{NO_STATISTICS, OLD, Reading, Scope, Snapshot, Stall, Survey, is_open};
use delayline_core::{
    codec::Level,
    topology::{Endpoint, Topology},
};
use delayline_messages::error::AdminError;
use delayline_settings::{Layout, Settings};

/// How often a daemon reads everything of a layout, and the least pause as a multiple of the time that it took.
const EVERY: (Duration, u32) = (Duration::from_secs(30), 100);

/// Enters the alternate exchanges that policies set as arguments: for a message they are the same.
pub(crate) fn enter_alternates(snapshot: &mut Snapshot) {
    let Ok(policies) = &snapshot.policies.user else { return };
    for exchange in snapshot.exchanges.values_mut() {
        if let Some(to) = alternate(exchange, policies) {
            exchange.arguments.insert(KEY.into(), Json::from(to));
        }
    }
}

/// The exchanges of a layout that have no alternate.
pub(crate) fn unguarded(snapshot: &Snapshot, layout: &Layout) -> Vec<String> {
    let open = |name: &String| snapshot.exchanges.get(name).is_some_and(|it| !it.arguments.contains_key(KEY));
    layout.exchanges().into_iter().filter(open).collect()
}

/// How many messages the guard keeps, up to 5 s ago; `None` without a guard, or if that is not known.
pub(crate) fn unroutable(snapshot: &Snapshot, layout: &Layout) -> Option<u64> {
    snapshot.queues.get(&layout.kept())?.messages
}

/// Asks the broker about a layout.
pub(crate) fn gather(settings: &Settings, layout: &Layout) -> Result<Snapshot, AdminError> {
    let (api, vhost) = (delayline_messages::error::api(settings, "lists queues")?, &settings.broker.vhost);
    let topology = Topology::new(settings.topology.clone());
    let scope = Scope::Layout(&topology, layout);
    let mut snapshot = Snapshot::fetch(&api, vhost, scope)?;
    let names = layout.exchanges();
    if !names.iter().any(|name| snapshot.exchanges.contains_key(name)) {
        return Err(AdminError::NoLayout { layout: layout.to_string(), vhost: vhost.clone() });
    }
    let unread = snapshot.policies.user.as_ref().err();
    snapshot.unchecked =
        unread.map(|error| format!("whether a policy guards it: {error}")).into_iter().collect();
    let is_level = |name: &str| layout.level_of(name).is_some();
    let uncounted = snapshot.queues.values().filter(|queue| is_level(&queue.name) && queue.uncounted).count();
    if uncounted > 0 {
        snapshot.unchecked.push(format!("messages of {uncounted} levels: {NO_STATISTICS}"));
    }
    snapshot.fetch_dead_letters(&api, Some(&scope.pattern()), is_level)?;
    enter_alternates(&mut snapshot);
    Ok(snapshot)
}

/// Waiting messages in a layout, as the management API counts them: up to 5 s ago.
#[derive(Debug, Clone, PartialEq, Serialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct LayoutStatus {
    /// The layout.
    #[schemars(with = "String")]
    pub layout: Layout,
    /// Where it is.
    pub vhost: String,
    /// When this was counted.
    pub at: Timestamp,
    /// Its levels, the highest first.
    pub levels: Vec<LayoutLevel>,
    /// Messages that wait in all levels; `None` if that is not known.
    pub waiting: Option<u64>,
    /// Messages that have left a level and are not confirmed by the next; `None` if that is not known.
    pub handing_on: Option<u64>,
    /// How many of those have just come, so that it is not known yet whether they move.
    pub open: Option<u64>,
    /// How many of those are stuck; `None` if that is not known.
    pub stuck: Option<u64>,
    /// How many exchanges of the layout there are.
    pub exchanges: usize,
    /// How many of them have an alternate.
    pub guarded: usize,
    /// Whether the queue of the guard exists.
    pub keeps: bool,
    /// Messages that the guard keeps; `None` without a guard, or if that is not known.
    pub unroutable: Option<u64>,
    /// The queues and exchanges bound behind the levels.
    pub destinations: Vec<LayoutDestination>,
    /// The checks that were not possible, and why.
    pub unchecked: Vec<String>,
}

impl LayoutStatus {
    /// How many levels are missing.
    #[must_use]
    pub fn missing(&self) -> usize {
        self.levels.iter().filter(|level| level.missing).count()
    }

    /// Whether our guard keeps the unroutable messages of every exchange.
    #[must_use]
    pub fn is_guarded(&self) -> bool {
        self.keeps && self.guarded == self.exchanges
    }
}

/// A level of a layout.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct LayoutLevel {
    /// Its number, 0 to 27.
    pub level: u8,
    /// Its queue.
    pub queue: String,
    /// How long a message stays, in ms; `None` if the queue is missing or does not say.
    pub wait_ms: Option<u64>,
    /// Whether it is missing.
    pub missing: bool,
    /// Messages that wait in it; `None` if it is missing, or that is not known.
    pub ready: Option<u64>,
    /// Messages that have left it and are not confirmed by the next; `None` likewise.
    pub handing_on: Option<u64>,
    /// How many of those have just come, so that it is not known yet whether they move; `None` likewise.
    pub open: Option<u64>,
    /// How many of those are stuck; `None` likewise.
    pub stuck: Option<u64>,
}

/// A queue or exchange bound behind the levels of a layout.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct LayoutDestination {
    /// The binding key.
    pub key: String,
    /// `queue` or `exchange`.
    pub kind: String,
    /// Its name.
    pub name: String,
}

/// Counts the waiting messages of a layout.
///
/// # Errors If the vhost has no such layout, or the management API cannot be asked.
pub fn layout_status(settings: &Settings, layout: &Layout) -> Result<LayoutStatus, AdminError> {
    Ok(status(&gather(settings, layout)?, layout))
}

/// A layout as a daemon sees it. The counts are those of the daemon's survey; the rest changes rarely, and is read
/// at a lower rate.
#[derive(Debug, Default)]
pub struct SeenLayout {
    /// The layout or the reason that it is unknown, and when to read everything again.
    last: Option<(Result<Snapshot, AdminError>, Instant)>,
}

impl SeenLayout {
    /// The status at the time of a reading of this survey.
    ///
    /// # Errors See [`layout_status`].
    pub fn status(
        &mut self,
        settings: &Settings,
        layout: &Layout,
        (survey, reading): (&Survey, &Reading),
    ) -> Result<LayoutStatus, AdminError> {
        let began = Instant::now();
        let counts = reading.counts.as_ref();
        let counts = counts.map_err(|reason| AdminError::NoManagement { reason: reason.clone() })?;
        let own = |name: &str| layout.level_of(name).is_some() || *name == layout.kept();
        let counted: BTreeMap<_, _> =
            counts.queues.iter().filter(|it| own(&it.name)).map(|it| (it.name.as_str(), it)).collect();
        let last = self.last.take().filter(|(last, next)| {
            let known = last.iter().flat_map(|snapshot| snapshot.queues.keys()).map(String::as_str);
            began < *next && known.filter(|name| own(name)).eq(counted.keys().copied())
        });
        let Some((last, next)) = last else {
            let found = gather(settings, layout);
            let status = found.as_ref().map(|snapshot| status(snapshot, layout)).map_err(AdminError::clone);
            self.last = Some((found, Instant::now() + survey.rest(began.elapsed(), EVERY, OLD)));
            return status;
        };
        let (snapshot, _) = self.last.insert((last, next));
        let snapshot = snapshot.as_mut().map_err(|error| error.clone())?;
        for (name, counts) in counted {
            if let Some(queue) = snapshot.queues.get_mut(name) {
                queue.take_counts(counts);
            }
        }
        snapshot.dead_letters.clear();
        let api = delayline_messages::error::api(settings, "lists queues")?;
        let pattern = Scope::Layout(&Topology::new(settings.topology.clone()), layout).pattern();
        snapshot.fetch_dead_letters(&api, Some(&pattern), |name| layout.level_of(name).is_some())?;
        Ok(LayoutStatus { at: reading.at, ..status(snapshot, layout) })
    }
}

fn status(snapshot: &Snapshot, layout: &Layout) -> LayoutStatus {
    let level = |level: Level| {
        let name = layout.level(level);
        let queue = snapshot.queues.get(&name);
        let handing_on = queue.and_then(|queue| queue.messages_dlx);
        let looks = snapshot.dead_letters.get(&name).map(Vec::as_slice).unwrap_or_default();
        LayoutLevel {
            level: level.number(),
            wait_ms: queue.and_then(|queue| queue.arguments.get("x-message-ttl")).and_then(Json::as_u64),
            missing: queue.is_none(),
            ready: queue.and_then(|queue| queue.messages_ready),
            handing_on,
            open: handing_on.map(|due| if is_open(looks) { due } else { 0 }),
            stuck: handing_on.map(|_| Stall::of(looks).stuck()),
            queue: name,
        }
    };
    let levels: Vec<_> = Level::all().rev().map(level).collect();
    let delivery = layout.delivery();
    let mut destinations: Vec<_> = snapshot
        .bindings_from(&delivery)
        .iter()
        .map(|binding| LayoutDestination {
            key: binding.key.clone(),
            kind: match binding.destination {
                Endpoint::Queue(_) => "queue".into(),
                Endpoint::Exchange(_) => "exchange".into(),
            },
            name: binding.destination.name().to_owned(),
        })
        .collect();
    destinations.sort();
    let names = layout.exchanges();
    let exchanges = names.iter().filter(|name| snapshot.exchanges.contains_key(*name)).count();
    let existing = |of: fn(&LayoutLevel) -> Option<u64>| {
        levels.iter().filter(|level| !level.missing).map(of).sum::<Option<u64>>()
    };
    LayoutStatus {
        layout: layout.clone(),
        vhost: snapshot.vhost.clone(),
        at: Timestamp::now(),
        waiting: existing(|level| level.ready),
        handing_on: existing(|level| level.handing_on),
        open: existing(|level| level.open),
        stuck: existing(|level| level.stuck),
        levels,
        exchanges,
        guarded: exchanges - unguarded(snapshot, layout).len(),
        keeps: snapshot.queues.contains_key(&layout.kept()),
        unroutable: unroutable(snapshot, layout),
        destinations,
        unchecked: snapshot.unchecked.clone(),
    }
}
