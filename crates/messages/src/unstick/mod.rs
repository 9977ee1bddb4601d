//! Making queues with stuck dead letters try again.
//!
//! A queue that dead-letters at least once has a worker, which keeps the messages that no queue accepted.
//! It tries again once in `dead_letter_worker_publisher_confirm_timeout`, three minutes by default. It also
//! tries again whenever the policies of its queue change. So a policy that has no effect on the queue is
//! set for a moment and deleted again. No other setting of the queue may change: a broker drops unconfirmed
//! dead letters when the strategy or the overflow behaviour does.

mod plan;

use std::{
    collections::BTreeMap,
    thread,
    time::{Duration, Instant},
};

use log::{debug, warn};
use serde::Serialize;

use crate::{drain::DrainError, error::AdminError};
use delayline_broker::{
    ManagementApi, ManagementError, Pattern, Policies, PolicyKind, QueueInfo, Scope, escape,
};
use delayline_core::{
    codec::Level,
    topology::{Endpoint, Names, Topology},
};
use delayline_settings::Settings;

pub use plan::Occupied;
pub use plan::{NAME, NO_LIMIT};
use plan::{hands_on_at_least_once, policy, touches};

/// How often the counts are read again; brokers renew them every five seconds.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The longest pattern for the names of queues. Brokers refuse addresses of more than 4,096 bytes, in which one
/// character may take three.
const LONGEST_PATTERN: usize = 1_000;

/// How often to retry deleting our policy, and the pauses between.
const PAUSES: [Duration; 3] = [Duration::from_millis(500), Duration::from_secs(2), Duration::from_secs(5)];

/// Which queues to make try again. Only queues that dead-letter at least once are ever
/// touched.
#[derive(Debug, Clone)]
pub enum Unstick {
    /// The set's own, and the landing queues of its applications.
    Set,
    /// The queues of these levels, and of the shortcuts whose highest bit is theirs.
    Levels(Vec<Level>),
    /// All queues of the vhost whose name matches, including those of others.
    Matching(Pattern),
    /// The queues with these names.
    Named(Vec<String>),
}

impl Unstick {
    fn selects(&self, topology: &Topology, queue: &str) -> bool {
        let names = topology.names();
        match self {
            Self::Set => is_of_set(topology, names, queue),
            Self::Levels(levels) => names.hop_of(queue).is_some_and(|hop| levels.contains(&hop.level())),
            Self::Matching(pattern) => pattern.matches(queue) == Ok(true),
            Self::Named(queues) => queues.iter().any(|name| name == queue),
        }
    }

    /// A pattern for the names of all queues that it can select; `None` for any name.
    fn pattern(&self, topology: &Topology) -> Option<String> {
        let own = Scope::Set(topology, &[]);
        match self {
            Self::Set | Self::Levels(_) => Some(own.pattern()),
            Self::Named(queues) if queues.iter().all(|name| own.owns(name)) => Some(own.pattern()),
            Self::Named(queues) => {
                let names: Vec<_> = queues.iter().map(|name| escape(name)).collect();
                // It is part of an address, whose length brokers limit.
                Some(format!("^({})$", names.join("|"))).filter(|pattern| pattern.len() < LONGEST_PATTERN)
            }
            Self::Matching(_) => None,
        }
    }
}

/// Whether a queue belongs to the set, or is a landing queue of its applications.
pub fn is_of_set(topology: &Topology, names: &Names, queue: &str) -> bool {
    names.app_of_landing(queue).is_some()
        || names.hop_of(queue).is_some()
        || topology.queues().any(|own| own.name == queue)
}

/// How to unstick queues.
#[derive(Debug, Clone)]
pub struct UnstickOptions {
    /// Which queues.
    pub which: Unstick,
    /// Also queues that have no dead letters on their way, according to the broker's counts.
    pub all: bool,
    /// Whether to change nothing.
    pub dry_run: bool,
    /// How long to watch whether they flow now; with zero, `left` stays open.
    pub wait: Duration,
}

impl Default for UnstickOptions {
    fn default() -> Self {
        Self { which: Unstick::Set, all: false, dry_run: false, wait: Duration::from_secs(15) }
    }
}

/// A queue that was made to try again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct TouchedQueue {
    /// Its name.
    pub queue: String,
    /// The kind of policy that was used.
    pub by: PolicyKind,
    /// How many dead letters were on their way; `None` if the broker does not count them.
    pub dead_letters: Option<u64>,
    /// The fewest that were seen afterwards; 0 if it flows again, `None` if it was not watched or counted.
    pub left: Option<u64>,
}

/// The result of an unsticking.
#[derive(Debug, Clone, Default, Serialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct UnstickReport {
    /// Whether nothing was changed.
    pub dry_run: bool,
    /// The queues that were made to try again, or would be.
    pub touched: Vec<TouchedQueue>,
    /// Queues that were left alone: both kinds of policies apply to them, and neither may be replaced.
    pub occupied: Vec<Occupied>,
    /// Queues that were left alone because the broker does not count their dead letters.
    pub uncounted: Vec<String>,
    /// The kinds of policies that an interrupted earlier run had left behind.
    pub left_behind: Vec<PolicyKind>,
}

/// Makes queues that hold dead letters pass them on again. No message and no other policy is changed.
/// Messages that a queue *refused* are offered to it again only once the broker's confirm timeout has
/// passed since the last time.
///
/// # Errors If the management API cannot be asked, or refuses. Policies need the tag `policymaker`.
/// Operator policies, for queues that have a policy, need `administrator`. Queues that needed only the
/// other kind have already been made to try again.
pub fn unstick(
    settings: &Settings,
    topology: &Topology,
    options: &UnstickOptions,
) -> Result<UnstickReport, AdminError> {
    let (api, vhost) = (crate::error::api(settings, "sets policies")?, &settings.broker.vhost);
    let own = options.which.pattern(topology);
    let seen = with_policies_of_now(&api, vhost, api.queues_matching(vhost, own.as_deref())?.0);
    if matches!(options.which, Unstick::Set | Unstick::Levels(_)) {
        let names = topology.names();
        let level = |queue: &QueueInfo| names.hop_of(&queue.name).is_some();
        if !seen.iter().any(level) {
            let what = Endpoint::Queue(names.level_queue(Level::LOWEST));
            return Err(DrainError::Missing { what }.into());
        }
    }
    let eligible =
        |queue: &&QueueInfo| options.which.selects(topology, &queue.name) && hands_on_at_least_once(queue);
    let wanted = |queue: &&QueueInfo| (options.all || queue.messages_dlx > Some(0)) && eligible(queue);
    let uncounted = |queue: &&QueueInfo| !options.all && queue.uncounted && eligible(queue);
    let chosen: BTreeMap<&str, Option<u64>> =
        seen.iter().filter(wanted).map(|queue| (queue.name.as_str(), queue.messages_dlx)).collect();
    let touches = touches(seen.iter().filter(wanted));
    let mut report = UnstickReport {
        dry_run: options.dry_run,
        left_behind: left_behind(&api, vhost, &seen, NAME),
        occupied: touches.occupied,
        uncounted: seen.iter().filter(uncounted).map(|queue| queue.name.clone()).collect(),
        ..UnstickReport::default()
    };
    let mut failed = None;
    for kind in [PolicyKind::Policy, PolicyKind::OperatorPolicy] {
        let queues = touches.queues.get(&kind).map(Vec::as_slice).unwrap_or_default();
        if !options.dry_run {
            let done = match queues {
                [] if report.left_behind.contains(&kind) => clear(&api, kind, vhost, NAME),
                [] => Ok(()),
                queues => touch(&api, kind, vhost, queues),
            };
            if let Err(error) = done {
                failed = failed.or(Some(error));
                continue;
            }
        }
        report.touched.extend(queues.iter().map(|queue| TouchedQueue {
            queue: queue.clone(),
            by: kind,
            dead_letters: chosen.get(queue.as_str()).copied().flatten(),
            left: None,
        }));
    }
    report.touched.sort_by(|one, other| one.queue.cmp(&other.queue));
    if let Some(error) = failed {
        return Err(error.into());
    }
    if !options.dry_run && !report.touched.is_empty() {
        watch(&api, (vhost, own.as_deref()), &mut report.touched, options.wait)?;
    }
    Ok(report)
}

/// Adds the policies that apply to the queues now, since their statistics are seconds late and the free
/// kind decides. A user that may not list policies has only the statistics.
fn with_policies_of_now(api: &ManagementApi, vhost: &str, mut queues: Vec<QueueInfo>) -> Vec<QueueInfo> {
    if let Err(error) = Policies::fetch(api, vhost).apply(&mut queues) {
        debug!("policies that were set in the last few seconds are not seen: {error}");
    }
    queues
}

/// The kinds of our policies of this name that exist. A user that may not list policies sees those that apply to a
/// queue.
pub fn left_behind<'a>(
    api: &ManagementApi,
    vhost: &str,
    queues: impl IntoIterator<Item = &'a QueueInfo> + Clone,
    own: &str,
) -> Vec<PolicyKind> {
    let applies = |kind: PolicyKind| {
        queues.clone().into_iter().any(|queue| {
            let name = match kind {
                PolicyKind::Policy => &queue.policy,
                PolicyKind::OperatorPolicy => &queue.operator_policy,
            };
            name.as_deref() == Some(own)
        })
    };
    let stands = |kind: &PolicyKind| match api.policies(*kind, vhost) {
        Ok(policies) => policies.iter().any(|policy| policy.name == own),
        Err(_) => applies(*kind),
    };
    [PolicyKind::Policy, PolicyKind::OperatorPolicy].into_iter().filter(stands).collect()
}

/// Sets a policy and deletes it. Where the same policy of an earlier run exists, setting it
/// changes nothing, and deleting it makes the queues try again.
fn touch(
    api: &ManagementApi,
    kind: PolicyKind,
    vhost: &str,
    queues: &[String],
) -> Result<(), ManagementError> {
    let set = api.set_policy(kind, vhost, &policy(NAME, queues));
    // Also after an error: it may have been set, with only the answer lost.
    let cleared = clear(api, kind, vhost, NAME);
    set.and(cleared)
}

/// Deletes our policy, even on a busy broker.
fn clear(api: &ManagementApi, kind: PolicyKind, vhost: &str, name: &str) -> Result<(), ManagementError> {
    let mut done = api.delete_policy(kind, vhost, name);
    for pause in PAUSES {
        if matches!(done, Ok(()) | Err(ManagementError::Refused { .. })) {
            break;
        }
        thread::sleep(pause);
        done = api.delete_policy(kind, vhost, name);
    }
    done
}

/// Lifts the delivery limits of queues until this is dropped. If a queue has both a policy and an operator
/// policy of a user, its limit stays.
///
/// # Errors If the management API cannot be asked, or refuses.
pub fn without_limit<'a>(
    api: &'a ManagementApi,
    vhost: &'a str,
    queues: &[String],
) -> Result<Lifted<'a>, ManagementError> {
    let named = api.queues_named(vhost, queues.iter().map(String::as_str), usize::MAX)?;
    let touches = touches(with_policies_of_now(api, vhost, named).iter());
    let mut lifted = Lifted { api, vhost, kinds: Vec::new() };
    for (kind, queues) in touches.queues {
        // Also after an error: it may have been set, with only the answer lost.
        lifted.kinds.push(kind);
        api.set_policy(kind, vhost, &policy(NO_LIMIT, &queues))?;
    }
    Ok(lifted)
}

/// Queues without a delivery limit, for as long as this lives.
#[derive(Debug)]
pub struct Lifted<'a> {
    api: &'a ManagementApi,
    vhost: &'a str,
    kinds: Vec<PolicyKind>,
}

impl Drop for Lifted<'_> {
    fn drop(&mut self) {
        for kind in &self.kinds {
            if let Err(error) = clear(self.api, *kind, self.vhost, NO_LIMIT) {
                warn!("the {kind} `{NO_LIMIT}` was left behind; the next run deletes it: {error}");
            }
        }
    }
}

/// Watches until none of the queues has dead letters, or the time is up.
fn watch(
    api: &ManagementApi,
    (vhost, names): (&str, Option<&str>),
    touched: &mut [TouchedQueue],
    wait: Duration,
) -> Result<(), ManagementError> {
    let deadline = Instant::now() + wait;
    while Instant::now() < deadline && touched.iter().any(|queue| queue.left != Some(0)) {
        thread::sleep(LOOK_EVERY);
        let counts = api.queue_counts(vhost, names)?;
        for queue in touched.iter_mut() {
            let Some(info) = counts.iter().find(|info| info.name == queue.queue) else { continue };
            // Of two counts, the lower one; an unknown one is none.
            queue.left = queue.left.into_iter().chain(info.messages_dlx).min();
        }
    }
    Ok(())
}
