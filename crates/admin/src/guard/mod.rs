//! A guard for the delays of others: what nobody is bound for is kept in a queue, so that it
//! stalls no level.
//!
//! A level queue that dead-letters at least once passes on 32 messages at a time. 32 that no
//! exchange routes are enough, and nothing leaves the level any more, for anybody. An alternate
//! exchange cures that, and a policy sets it without a change to the layout itself: nothing is
//! declared anew, no program notices.

mod plan;
mod undo;

use std::{collections::BTreeSet, time::Duration};

use serde::Serialize;

use crate::{
    AdminError, Applied, Layout, ObjectState, Unstick, UnstickOptions, UnstickReport,
    compare::Observed,
    connect, doing, examine,
    install::{declare, describe},
    management::{ExchangeInfo, ManagementApi, Policy, PolicyKind},
    observe_with, unstick,
};
use delayline_amqp::Session;
use delayline_core::{
    codec::Level,
    topology::{Object, Topology},
};
use delayline_settings::Settings;

pub use undo::{Unguarded, unguard};

pub(crate) use plan::{KEY, alternate};
use plan::{Plan, covers, is_ours, plan};

/// How to guard a layout.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct GuardOptions {
    /// Also guard the exchanges that messages are delivered through. An alternate exchange
    /// catches what its own exchange routes nowhere, and a message that goes on to an exchange
    /// of an application has been routed.
    pub targets: bool,
    /// Whether to change nothing.
    pub dry_run: bool,
    /// How long to watch whether the levels flow now.
    pub wait: Duration,
}

impl Default for GuardOptions {
    fn default() -> Self {
        Self { targets: false, dry_run: false, wait: Duration::from_secs(15) }
    }
}

/// What guarding did, or would do.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct GuardReport {
    /// The layout.
    pub layout: Layout,
    /// How far it went.
    pub outcome: Applied,
    /// The queue that keeps what nobody is bound for.
    pub queue: String,
    /// The policies that see to it.
    pub policies: Vec<GuardPolicy>,
    /// Policies of an earlier run that are not needed any more, and were deleted.
    pub obsolete: Vec<String>,
    /// What is in the way. If there is anything, nothing was changed.
    pub conflicts: Vec<String>,
    /// Exchanges of the layout that do not exist.
    pub missing: Vec<String>,
    /// Exchanges of applications that messages are delivered through and that have no
    /// alternate: what they lead nowhere can stall the levels all the same.
    pub uncovered: Vec<String>,
    /// What came of making the levels try again.
    pub released: Option<UnstickReport>,
    /// Why they could not be made to; the broker does it by itself within three minutes.
    pub not_released: Option<String>,
}

/// A policy that gives exchanges an alternate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct GuardPolicy {
    /// Its name.
    pub name: String,
    /// The exchanges it is for.
    pub exchanges: Vec<String>,
    /// The policy that applied to them alone, and that it repeats.
    pub merged_with: Option<String>,
    /// Whether it stood already.
    pub stood: bool,
}

/// Has what the exchanges of a layout do not route go to a queue, by policies, and makes the
/// level queues try again, so that what is stuck is released within seconds. Doing it again
/// changes nothing, and follows what has changed meanwhile. No policy of anybody else is
/// touched: where one applies, ours repeats it.
///
/// # Errors
/// If there is no such layout in the vhost, no management API, or the broker refuses: policies
/// need the tag `policymaker`, and declaring the queue needs permission to configure it.
pub fn guard(
    settings: &Settings,
    topology: &Topology,
    layout: &Layout,
    options: &GuardOptions,
) -> Result<GuardReport, AdminError> {
    let (api, vhost) = (api(settings)?, &settings.broker.vhost);
    let mut session = connect(&settings.broker)?;
    let observed = observe_with(&api, vhost)?;
    let policies = api.policies(PolicyKind::Policy, vhost)?;
    let names = layout.exchanges();
    let stands = |name: &str| observed.exchanges.iter().any(|exchange| exchange.name == name);
    if !names.iter().any(|name| stands(name)) {
        return Err(AdminError::NoLayout { layout: layout.to_string(), vhost: vhost.clone() });
    }
    let covered = covered(layout, &observed, &policies, options.targets);
    let plan = plan(layout, &covered, &policies, &api.policies(PolicyKind::OperatorPolicy, vhost)?);
    let mut report = GuardReport {
        layout: layout.clone(),
        outcome: Applied::Installed,
        queue: layout.kept(),
        policies: told(&plan, &policies),
        obsolete: plan.obsolete.clone(),
        conflicts: plan.conflicts.clone(),
        missing: names.iter().filter(|name| !stands(name)).cloned().collect(),
        uncovered: uncovered(&targets(layout, &observed), &observed, &covered),
        released: None,
        not_released: None,
    };
    let objects = topology.guard(&layout.kept());
    let missing = missing(&mut session, &observed, &objects, &mut report.conflicts)?;
    let unchanged =
        missing.is_empty() && plan.obsolete.is_empty() && report.policies.iter().all(|policy| policy.stood);
    // Before anything is declared: a queue that nothing leads to keeps nothing.
    if !report.policies.iter().all(|policy| policy.stood) || !plan.obsolete.is_empty() {
        let user = api.whoami()?;
        if !user.has_tag("policymaker") && !user.has_tag("administrator") {
            return Err(AdminError::NoPolicymaker { username: user.name });
        }
    }
    if !report.conflicts.is_empty() {
        report.outcome = Applied::Conflict;
    } else if options.dry_run {
        report.outcome = if unchanged { Applied::Unchanged } else { Applied::DryRun };
    } else {
        for object in missing {
            declare(&mut session, object)?;
        }
        apply(&api, vhost, &plan, &report.policies)?;
        if unchanged {
            report.outcome = Applied::Unchanged;
        }
        release(settings, topology, layout, (!unchanged, options.wait), &mut report);
    }
    Ok(report)
}

/// The management API, which alone sets policies.
fn api(settings: &Settings) -> Result<ManagementApi, AdminError> {
    crate::api(settings, "sets policies")
}

/// The exchanges to guard: those of the layout, and of those that messages are delivered
/// through all, or the ones that are guarded already.
fn covered<'a>(
    layout: &Layout,
    observed: &'a Observed,
    policies: &[Policy],
    all_targets: bool,
) -> Vec<&'a ExchangeInfo> {
    let (names, targets) = (layout.exchanges(), targets(layout, observed));
    let wanted = |exchange: &&ExchangeInfo| {
        let target = || targets.contains(&exchange.name);
        names.contains(&exchange.name)
            || target() && (all_targets || covers(layout, policies, &exchange.name))
    };
    observed.exchanges.iter().filter(wanted).collect()
}

/// How the policies of a guard that stands differ from those that would be set now; nothing
/// without a guard.
pub(crate) fn stale(layout: &Layout, observed: &Observed, policies: &[Policy]) -> Vec<String> {
    if !policies.iter().any(|policy| is_ours(layout, policy)) {
        return Vec::new();
    }
    // What operator policies say stands in the way of a guard, and changes none.
    plan(layout, &covered(layout, observed, policies, false), policies, &[]).stale(policies)
}

/// The exchanges that messages are delivered through.
fn targets(layout: &Layout, observed: &Observed) -> BTreeSet<String> {
    let delivery = layout.delivery();
    let through =
        observed.bindings.iter().filter(|it| it.source == delivery && it.destination_type == "exchange");
    through.map(|binding| binding.destination.clone()).collect()
}

/// Those of them that have no alternate and get none.
fn uncovered(targets: &BTreeSet<String>, observed: &Observed, covered: &[&ExchangeInfo]) -> Vec<String> {
    let bare = |exchange: &&ExchangeInfo| {
        targets.contains(&exchange.name)
            && !exchange.arguments.contains_key(plan::KEY)
            && !covered.iter().any(|other| other.name == exchange.name)
    };
    observed.exchanges.iter().filter(bare).map(|exchange| exchange.name.clone()).collect()
}

fn told(plan: &Plan, standing: &[Policy]) -> Vec<GuardPolicy> {
    let policy = |(policy, covered): &(Policy, plan::Covered)| GuardPolicy {
        name: policy.name.clone(),
        exchanges: covered.exchanges.clone(),
        merged_with: covered.merged_with.clone(),
        stood: standing.contains(policy),
    };
    plan.wanted.iter().map(policy).collect()
}

/// What is still to be declared.
fn missing<'a>(
    session: &mut Session,
    observed: &Observed,
    objects: &'a [Object],
    conflicts: &mut Vec<String>,
) -> Result<Vec<&'a Object>, AdminError> {
    let mut missing = Vec::new();
    for object in objects {
        let what = describe(object);
        let state = match observed.has(object) {
            true => examine::object(session, object).map_err(doing(format!("looking at {what}")))?,
            false => examine::missing(object),
        };
        match state {
            Some(ObjectState::Same) => {}
            Some(ObjectState::Different(conflict)) => conflicts.push(conflict.to_string()),
            Some(ObjectState::Missing) => missing.push(object),
            None => {
                let Object::Binding(binding) = object else { continue };
                if !observed.bindings_of(&binding.source).contains(binding) {
                    missing.push(object);
                }
            }
        }
    }
    Ok(missing)
}

/// Sets what is missing before it deletes what is not wanted any more, so that no exchange is
/// without an alternate in between.
fn apply(api: &ManagementApi, vhost: &str, plan: &Plan, told: &[GuardPolicy]) -> Result<(), AdminError> {
    for ((policy, _), told) in plan.wanted.iter().zip(told) {
        if !told.stood {
            api.set_policy(PolicyKind::Policy, vhost, policy)?;
        }
    }
    for name in &plan.obsolete {
        api.delete_policy(PolicyKind::Policy, vhost, name)?;
    }
    Ok(())
}

/// Makes the level queues try again: all of them if the guard is new, since counts are seconds
/// old, and else those that hold dead letters.
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
