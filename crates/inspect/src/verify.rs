//! Comparing the objects on the broker with the wanted ones.

use std::time::Duration;

use serde::Serialize;

use crate::{doctor::streams, finding::Finding, finding::findings};
use delayline_broker::{
    About, Difference, IfNew, Leaders, ManagementApi, ManagementError, Scope, Snapshot, Survey,
    mark_leaderless, routes, unsuitable,
};
use delayline_core::topology::Topology;
use delayline_messages::{
    error::AdminError, error::connect, error::doing, examine, examine::ObjectState, examine::as_installed,
    examine::describe,
};
use delayline_settings::{NO_MANAGEMENT, Settings};

/// The differences, and the checks that were not possible.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct VerifyReport {
    /// Whether any object of the set exists.
    pub installed: bool,
    /// The faults, by cause, and the remedies. They include streams that due messages reach, although these
    /// are no differences of the set.
    pub findings: Vec<Finding>,
    /// All differences: each place of each finding.
    pub differences: Vec<Difference>,
    /// The checks that were not possible, and why.
    pub unchecked: Vec<String>,
    /// Whether some of these checks will be possible in a few seconds.
    #[serde(skip)]
    pub unchecked_for_now: bool,
    /// How many exchanges and queues were compared.
    pub objects: usize,
    /// How many bindings were compared.
    pub bindings: usize,
}

/// Compares argument by argument and binding by binding, through the management API if there is one.
/// Without it, AMQP shows which objects exist and the first argument that differs, and bindings stay
/// unchecked.
///
/// # Errors If the broker cannot be asked.
pub fn verify(settings: &Settings, topology: &Topology) -> Result<VerifyReport, AdminError> {
    compare(settings, topology, |vhost| {
        Snapshot::try_fetch(settings.management.as_ref(), vhost, Scope::Set(topology, &[]))
    })
}

/// The same for a daemon, which has seen the set at most `age` ago.
///
/// # Errors If the broker cannot be asked.
pub fn verify_seen(
    settings: &Settings,
    topology: &Topology,
    (survey, age): (&Survey, Duration),
) -> Result<VerifyReport, AdminError> {
    compare(settings, topology, |_| match (survey.set(age), &settings.management) {
        (Ok(seen), _) => Ok(Ok(seen.snapshot.clone())),
        (Err(_), None) => Ok(Err(NO_MANAGEMENT.into())),
        (Err(error), Some(management)) => Ok(Err(error.absence(management)?)),
    })
}

/// A vhost, or why it cannot be seen.
type Look = Result<Result<Snapshot, String>, ManagementError>;

fn compare(
    settings: &Settings,
    topology: &Topology,
    look: impl FnOnce(&str) -> Look,
) -> Result<VerifyReport, AdminError> {
    // Always over AMQP first: without a connection, a set is of no use.
    let mut session = connect(&settings.broker)?;
    let snapshot = look(&settings.broker.vhost)?;
    let installed_set = as_installed(topology, &mut session, snapshot.as_ref().ok());
    let topology = &installed_set.map_err(doing("examining the set"))?;
    let objects = topology.exchanges().count() + topology.queues().count();
    let management = settings.management.as_ref().filter(|_| snapshot.is_ok());
    let (about, mut unchecked) = About::fetch(session.server_version(), management);
    let mut differences = unsuitable(&settings.topology, &about);
    match snapshot {
        Ok(mut snapshot) => {
            snapshot.about = about;
            let mut leaders = Leaders::Known;
            if let Some(management) = &settings.management {
                let api = ManagementApi::new(management)?;
                let queues = topology.queues().map(|queue| queue.name.clone()).collect();
                leaders = mark_leaderless(&api, &mut session, &mut snapshot, &queues, IfNew::LeaveOpen)?;
            }
            unchecked.extend(leaders.unchecked());
            unchecked.append(&mut snapshot.unchecked);
            if let Some(management) = &settings.management
                && let Err(error) = snapshot.fetch_shovels(&ManagementApi::new(management)?, &settings.broker)
            {
                unchecked.push(format!("shovels on the set's exchanges and queues: {error}"));
            }
            unchecked.extend(snapshot.unplaced_shovels(topology));
            unchecked.extend(snapshot.unjudged(topology));
            differences.extend(snapshot.compare(topology));
            let mut findings = findings(&settings.topology.set, &differences);
            findings.extend(streams(&routes(topology, &snapshot)));
            Ok(VerifyReport {
                installed: installed(&differences, objects),
                findings,
                differences,
                unchecked,
                unchecked_for_now: leaders == Leaders::NotYet,
                objects,
                bindings: topology.bindings().count(),
            })
        }
        Err(reason) => {
            for object in topology.objects() {
                match examine::object(&mut session, object).map_err(doing("examining the set"))? {
                    Some(ObjectState::Missing) => {
                        differences.push(Difference::Missing { object: describe(object) })
                    }
                    Some(ObjectState::Different(conflict)) => differences.push(Difference::Different {
                        object: conflict.object,
                        argument: conflict.argument,
                        wanted: conflict.wanted,
                        found: conflict.found,
                    }),
                    Some(ObjectState::Same) | None => {}
                }
            }
            unchecked = vec![
                format!("bindings, and extra bindings on the set's exchanges: {reason}"),
                "policies that apply to the set's queues, their replicas, and the broker's feature flags, \
                 for the same reason"
                    .into(),
                "further arguments of objects that differ: AMQP names only the first one".into(),
            ];
            let findings = findings(&settings.topology.set, &differences);
            Ok(VerifyReport {
                installed: installed(&differences, objects),
                findings,
                differences,
                unchecked,
                unchecked_for_now: false,
                objects,
                bindings: 0,
            })
        }
    }
}

/// Whether not all of so many objects are missing.
fn installed(differences: &[Difference], objects: usize) -> bool {
    differences.iter().filter(|it| matches!(it, Difference::Missing { .. })).count() < objects
}
