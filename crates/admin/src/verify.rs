//! Comparing what is on the broker with what should be.

use serde::Serialize;

use crate::{
    compare::{Difference, findings, unsuitable},
    connect,
    doctor::{streams, walk::targets},
    finding::Finding,
    management::ManagementApi,
};
use delayline_core::topology::Topology;
use delayline_settings::Settings;

use crate::{
    AdminError, ObjectState,
    about::about,
    doing, examine,
    leader::{IfNew, Leaders, mark_leaderless},
    observe,
};

/// What was found, and what could not be checked.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct VerifyReport {
    /// Whether anything of the set is there.
    pub installed: bool,
    /// What is wrong, by cause, and what to do. Streams that messages reach when they are due
    /// are among it, though they are no difference of the set.
    pub findings: Vec<Finding>,
    /// Everything that differs: each place of each finding.
    pub differences: Vec<Difference>,
    /// What could not be checked, and why.
    pub unchecked: Vec<String>,
    /// Whether some of that can be checked in a few seconds.
    #[serde(skip)]
    pub unchecked_for_now: bool,
    /// How many exchanges and queues were compared.
    pub objects: usize,
    /// How many bindings were compared.
    pub bindings: usize,
}

/// Compares argument by argument and binding by binding, through the management
/// API where there is one. Without it, AMQP tells which objects stand and the
/// first argument that differs, and bindings stay unchecked.
///
/// # Errors
/// If the broker cannot be asked.
pub fn verify(settings: &Settings, topology: &Topology) -> Result<VerifyReport, AdminError> {
    // Over AMQP first in any case: without a connection, a set is of no use.
    let mut session = connect(&settings.broker)?;
    let objects = topology.exchanges().count() + topology.queues().count();
    let observed = observe(settings.management.as_ref(), &settings.broker.vhost)?;
    let (about, mut unchecked) = about(&session, settings.management.as_ref().filter(|_| observed.is_ok()));
    let mut differences = unsuitable(&settings.topology, &about);
    match observed {
        Ok(mut observed) => {
            observed.nodes = about.nodes;
            let mut leaders = Leaders::Known;
            if let Some(management) = &settings.management {
                let api = ManagementApi::new(management)?;
                let queues = topology.queues().map(|queue| queue.name.clone()).collect();
                let vhost = &settings.broker.vhost;
                leaders = mark_leaderless(&api, vhost, &mut observed, &queues, IfNew::LeaveOpen)?;
            }
            unchecked.extend(leaders.unchecked());
            unchecked.extend(observed.unsettled.iter().cloned());
            differences.extend(observed.compare(topology));
            let mut findings = findings(&settings.topology.set, &differences);
            findings.extend(streams(&targets(topology, &observed)));
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
                match examine::object(&mut session, object).map_err(doing("looking at the set"))? {
                    Some(ObjectState::Missing) => {
                        differences.push(Difference::Missing { object: super::install::describe(object) })
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
