//! The user of the daemon, with exactly the rights that its parts need.

use std::collections::BTreeSet;

use delayline_amqp::broker::Secret;
use delayline_broker::{
    Duties, Grants, Permission, Scope, Snapshot, TopicPermission, daemon_rights, is_of_daemon, is_of_program,
    may_pause,
};
use delayline_core::{
    shell::joined,
    topology::{Endpoint, Topology},
};
use delayline_settings::Settings;
use serde::Serialize;

use crate::{engine::AddedStep, engine::Applied, engine::Found, engine::Hands, engine::Plan, engine::Step};
use delayline_inspect::{behind, names_among};
use delayline_messages::{drain::DrainError, error, error::AdminError, error::connect};

/// Its tags: the first to see queues and nodes, the second to unstick queues.
const TAGS: &[&str] = &["monitoring", "policymaker"];

/// The result, or the planned result.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct DaemonUserReport {
    /// Whether anything may have changed.
    pub outcome: Applied,
    /// The user.
    pub user: String,
    /// Its parts, in the order in which they were made.
    pub steps: Vec<AddedStep>,
    /// The conflicts. If there are any, nothing was changed.
    pub conflicts: Vec<String>,
}

/// Makes the user of the daemon, or gives an existing user of the daemon the rights for the gateways that
/// exist now. `pausing` is whether it may pause the applications that are bound now; `None` if an existing
/// user keeps that right or its absence.
///
/// # Errors If the set is not installed, the broker refuses or is lost, or there is no management API; the
/// same call continues from there.
pub fn add_daemon_user(
    settings: &Settings,
    topology: &Topology,
    (name, password): (&str, Option<Secret>),
    pausing: Option<bool>,
    dry_run: bool,
) -> Result<DaemonUserReport, AdminError> {
    let api = error::api(settings, "makes users")?;
    let mut session = connect(&settings.broker)?;
    let mut snapshot = Snapshot::fetch(&api, &settings.broker.vhost, Scope::Set(topology, &[]))?;
    let dispatch = topology.names().dispatch();
    if !snapshot.exchanges.contains_key(&dispatch) {
        // The broker refuses rules for keys on a missing exchange.
        return Err(DrainError::Missing { what: Endpoint::Exchange(dispatch) }.into());
    }
    snapshot.grants = Some(Grants::fetch(&api, &settings.broker.vhost)?);
    let names = topology.names();
    let permissions = snapshot.grants.as_ref().and_then(|grants| grants.permissions.get(name));
    let pausing = pausing.unwrap_or_else(|| permissions.is_some_and(|found| may_pause(names, found)));
    let (permission, topic) = rights(topology, &snapshot, pausing, name);
    let steps = [
        Step::User { name: name.into(), password, tags: TAGS },
        Step::Topic(topic),
        Step::Permission(permission),
    ];
    let of_daemon = permissions.is_some_and(|found| is_of_daemon(names, found));
    let judge = |step: &Step, found| {
        Ok(match found {
            Found::Blocked(old) if step.is_permission() => match of_daemon {
                true => Found::Replaced(old),
                false => Found::Blocked(format!("{old}. Give the daemon a user of its own")),
            },
            found => found,
        })
    };
    let plan = Plan::examine(steps, Some(&snapshot), &mut session, |_| true, judge)?;
    let outcome = plan.outcome(dry_run);
    if outcome == Applied::Installed {
        let next = format!("`{}` continues", settings.command(&["serve", "user", name]));
        let mut hands = Hands { session: &mut session, api: Some(&api), vhost: &snapshot.vhost };
        plan.apply(&mut hands, &next, |_| {})?;
    }
    let (steps, conflicts) = (plan.steps().collect(), plan.conflicts().collect());
    Ok(DaemonUserReport { outcome, user: name.into(), steps, conflicts })
}

/// The rights for what is there now.
fn rights(
    topology: &Topology,
    snapshot: &Snapshot,
    pausing: bool,
    user: &str,
) -> (Permission, TopicPermission) {
    let names = topology.names();
    let gateways = names_among(names, snapshot.queues.keys());
    // A landing queue blocks no level, so its application is never paused.
    let targets = snapshot.app_bindings(topology).into_iter().map(|binding| binding.destination);
    let paused = snapshot.queues.values().filter(|queue| names.app_of_paused(&queue.name).is_some());
    let targets = targets.chain(paused.filter_map(|queue| behind(topology, queue)));
    let is_of_app = |target: &Endpoint| !is_of_program(names, target) && !topology.owns_queue(target.name());
    let targets: BTreeSet<_> = targets.filter(is_of_app).map(|target| target.name().to_owned()).collect();
    let targets: Vec<_> = targets.into_iter().collect();
    daemon_rights(names, Duties { gateways: &gateways, pausing: pausing.then_some(&targets) }, user)
}

/// The commands that make the same user, for an administrator without this program. The first asks for a
/// password.
///
/// # Errors If the management API cannot be asked for the gateways and the applications.
pub fn daemon_user_commands(
    settings: &Settings,
    topology: &Topology,
    name: &str,
    pausing: bool,
) -> Result<Vec<String>, AdminError> {
    let vhost = settings.broker.vhost.as_str();
    let snapshot = match settings.management {
        None if !pausing => Snapshot::default(),
        _ => {
            let api = error::api(settings, "shows the queues of applications")?;
            Snapshot::fetch(&api, vhost, Scope::Set(topology, &[]))?
        }
    };
    let (permission, topic) = rights(topology, &snapshot, pausing, name);
    let line = |words: &[&str]| joined(["rabbitmqctl"].iter().chain(words).copied());
    let Permission { configure, write, read, .. } = &permission;
    let tags: Vec<_> = ["set_user_tags", name].into_iter().chain(TAGS.iter().copied()).collect();
    Ok(vec![
        line(&["add_user", name]),
        line(&tags),
        line(&["set_topic_permissions", "-p", vhost, name, &topic.exchange, &topic.write, &topic.read]),
        line(&["set_permissions", "-p", vhost, name, configure, write, read]),
    ])
}
