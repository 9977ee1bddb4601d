//! A guard for a layout: unroutable messages are kept in a queue, so that they stall no level.
//!
//! A level queue that dead-letters at least once passes on 32 messages at a time. If no exchange routes
//! these 32, the level delivers nothing to any application. An alternate exchange prevents that. A policy
//! sets it without a change to the layout itself: no queue is declared again, and no program has to be
//! changed.

mod undo;

use std::time::Duration;

use delayline_broker::{ManagementApi, Policy, Scope, Snapshot};
use delayline_core::{codec::Level, topology::Topology};
use delayline_settings::{Layout, Settings};
use serde::Serialize;

use crate::{engine::Applied, engine::Hands, engine::Plan, engine::Step};
use delayline_inspect::{
    guard::Covered, guard::Policing, guard::covered, guard::plan, guard::targets, guard::uncovered,
};
use delayline_messages::{
    error::AdminError, error::connect, unstick::Unstick, unstick::UnstickOptions, unstick::UnstickReport,
    unstick::unstick,
};

pub use undo::{Unguarded, unguard};

/// How to guard a layout.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct GuardOptions {
    /// Also guard the exchanges that messages are delivered through. An alternate exchange only gets
    /// messages that its own exchange does not route. A message that reached an application's exchange has
    /// been routed.
    pub targets: bool,
    /// Whether to change nothing.
    pub dry_run: bool,
    /// How long to check whether the levels pass messages on now.
    pub wait: Duration,
}

impl Default for GuardOptions {
    fn default() -> Self {
        Self { targets: false, dry_run: false, wait: Duration::from_secs(15) }
    }
}

/// The result of a guard, or the planned result.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct GuardReport {
    /// The layout.
    #[schemars(with = "String")]
    pub layout: Layout,
    /// How far it went.
    pub outcome: Applied,
    /// The queue that keeps unroutable messages.
    pub queue: String,
    /// The policies that lead unroutable messages there.
    pub policies: Vec<GuardPolicy>,
    /// Policies of an earlier run that are no longer needed, and were deleted.
    pub obsolete: Vec<String>,
    /// The conflicts. If there are any, nothing was changed.
    pub conflicts: Vec<String>,
    /// Exchanges of the layout that do not exist.
    pub missing: Vec<String>,
    /// Exchanges of applications that messages are delivered through and that have no alternate. Messages
    /// that they do not route can still stall the levels.
    pub uncovered: Vec<String>,
    /// The result of making the levels try again.
    pub released: Option<UnstickReport>,
    /// Why the levels could not be made to try again; the broker does so automatically within three
    /// minutes.
    pub not_released: Option<String>,
}

/// A policy that gives exchanges an alternate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct GuardPolicy {
    /// Its name.
    pub name: String,
    /// The exchanges it is for.
    pub exchanges: Vec<String>,
    /// The policy that applied to them alone, and that this one repeats.
    pub merged_with: Option<String>,
    /// Whether it existed already.
    pub stood: bool,
}

/// Makes the broker keep the unroutable messages of a layout in a queue, by policies. Makes the level
/// queues try again, so that stuck messages are released within seconds. Doing it again changes nothing,
/// and follows later changes. No other policy is touched: if one applies, ours repeats it.
///
/// # Errors If the vhost has no such layout, there is no management API, or the broker refuses: policies
/// need the tag `policymaker`, and declaring the queue needs permission to configure it.
pub fn guard(
    settings: &Settings,
    topology: &Topology,
    layout: &Layout,
    options: &GuardOptions,
) -> Result<GuardReport, AdminError> {
    let (api, vhost) = (api(settings)?, &settings.broker.vhost);
    let mut session = connect(&settings.broker)?;
    let snapshot = Snapshot::fetch(&api, vhost, Scope::Layout(topology, layout))?;
    let policies = snapshot.policies.user.clone()?;
    let names = layout.exchanges();
    let stands = |name: &str| snapshot.exchanges.contains_key(name);
    if !names.iter().any(|name| stands(name)) {
        return Err(AdminError::NoLayout { layout: layout.to_string(), vhost: vhost.clone() });
    }
    let covered = covered(layout, &snapshot, &policies, options.targets);
    let plan = plan(layout, &covered, &policies, &snapshot.policies.operator.clone()?);
    let mut report = GuardReport {
        layout: layout.clone(),
        outcome: Applied::Installed,
        queue: layout.kept(),
        policies: told(&plan, &policies),
        obsolete: plan.obsolete.clone(),
        conflicts: plan.conflicts.clone(),
        missing: names.iter().filter(|name| !stands(name)).cloned().collect(),
        uncovered: uncovered(&targets(layout, &snapshot), &snapshot, &covered),
        released: None,
        not_released: None,
    };
    let objects = topology.guard(&layout.kept()).into_iter().map(Step::Object);
    // New policies are set before old ones are deleted, so that every exchange always has an alternate.
    let wanted = plan.wanted.iter().map(|(policy, _)| Step::Policy(policy.clone()));
    let obsolete = plan.obsolete.iter().cloned().map(Step::NoPolicy);
    let steps = objects.chain(wanted).chain(obsolete);
    let plan = Plan::examine(steps, Some(&snapshot), &mut session, |_| true, |_, found| Ok(found))?;
    // Before anything is declared: a queue without a route to it keeps nothing.
    if !report.policies.iter().all(|policy| policy.stood) || !report.obsolete.is_empty() {
        let user = api.whoami()?;
        if !user.has_tag("policymaker") && !user.has_tag("administrator") {
            return Err(AdminError::NoPolicymaker { username: user.name });
        }
    }
    report.conflicts.extend(plan.conflicts());
    report.outcome = match plan.outcome(options.dry_run) {
        _ if !report.conflicts.is_empty() => Applied::Conflict,
        outcome => outcome,
    };
    if !options.dry_run && report.outcome != Applied::Conflict {
        let next = "The same command continues";
        plan.apply(&mut Hands { session: &mut session, api: Some(&api), vhost }, next, |_| {})?;
        release(
            settings,
            topology,
            layout,
            (report.outcome == Applied::Installed, options.wait),
            &mut report,
        );
    }
    Ok(report)
}

/// The management API, which alone sets policies.
fn api(settings: &Settings) -> Result<ManagementApi, AdminError> {
    delayline_messages::error::api(settings, "sets policies")
}

fn told(plan: &Policing, standing: &[Policy]) -> Vec<GuardPolicy> {
    let policy = |(policy, covered): &(Policy, Covered)| GuardPolicy {
        name: policy.name.clone(),
        exchanges: covered.exchanges.clone(),
        merged_with: covered.merged_with.clone(),
        stood: standing.contains(policy),
    };
    plan.wanted.iter().map(policy).collect()
}

/// Makes the level queues try again: all of them if the guard is new, since counts are seconds old, and
/// else those that hold dead letters.
fn release(
    settings: &Settings,
    topology: &Topology,
    layout: &Layout,
    (all, wait): (bool, Duration),
    report: &mut GuardReport,
) {
    let queues = Level::all().map(|level| layout.level(level)).collect();
    let options = UnstickOptions { which: Unstick::Named(queues), all, wait, ..UnstickOptions::default() };
    match unstick(settings, topology, &options) {
        Ok(released) => report.released = Some(released),
        Err(error) => report.not_released = Some(error.to_string()),
    }
}
