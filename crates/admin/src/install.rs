//! Installing a set.

use serde::Serialize;

use crate::compare::{Difference, forgery, unsuitable};
use delayline_amqp::Session;
use delayline_core::topology::{Object, Topology};
use delayline_settings::Settings;

use crate::{AdminError, Conflict, ObjectState, about::about, connect, doing, examine, observe};

/// What installing would do.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct InstallPlan {
    /// Exchanges and queues that exist with other arguments. If there are any, nothing may be
    /// changed.
    pub conflicts: Vec<Conflict>,
    /// A set of an earlier version that is installed. Then, too, nothing may be changed.
    pub earlier: Option<Difference>,
    /// Exchanges and queues to declare.
    pub missing: Vec<String>,
    /// How many exchanges and queues exist already.
    pub standing: usize,
    /// How many bindings are to be made; `None` if that cannot be known, since only the
    /// management API lists bindings.
    pub missing_bindings: Option<usize>,
    /// What could not be checked, and why.
    pub unchecked: Vec<String>,
}

/// The result of an installation.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct InstallReport {
    /// Whether anything may have changed.
    pub outcome: Applied,
    /// What keeps the broker from carrying a set.
    pub unsuitable: Vec<Difference>,
    /// A set of an earlier version that is installed.
    pub earlier: Option<Difference>,
    /// Objects that are in the way.
    pub conflicts: Vec<Conflict>,
    /// Exchanges and queues that were created.
    pub created: Vec<String>,
    /// How many existed already.
    pub standing: usize,
    /// How many bindings belong to the set.
    pub bindings: usize,
    /// How many of them were made; `None` if that cannot be known.
    pub created_bindings: Option<usize>,
    /// What could not be checked, and why.
    pub unchecked: Vec<String>,
    /// What may cause trouble on this broker, and what to do about it.
    pub warnings: Vec<String>,
}

/// How far an installation, or the registration of an application, went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Applied {
    /// The set is installed.
    Installed,
    /// Nothing was changed, because everything is there already.
    Unchanged,
    /// Nothing was changed, as asked.
    DryRun,
    /// Nothing was changed, because the broker cannot carry a set.
    Unsuitable,
    /// Nothing was changed, because something else is in the way.
    Conflict,
    /// Nothing was changed, because a set of an earlier version is installed.
    EarlierVersion,
}

/// Finds out what installing would do, and changes nothing.
///
/// # Errors
/// If the broker cannot be asked.
pub fn plan(
    settings: &Settings,
    topology: &Topology,
    session: &mut Session,
) -> Result<InstallPlan, AdminError> {
    let observed = observe(settings.management.as_ref(), &settings.broker.vhost)?;
    let mut plan = InstallPlan {
        conflicts: Vec::new(),
        earlier: None,
        missing: Vec::new(),
        standing: 0,
        missing_bindings: None,
        unchecked: Vec::new(),
    };
    for object in topology.objects() {
        let name = describe(object);
        // Asking over AMQP for something that is missing writes an error into the broker's
        // log, which nobody should have to read after an installation.
        let known_missing = observed.as_ref().is_ok_and(|observed| !observed.has(object));
        let state = match known_missing {
            true => examine::missing(object),
            false => examine::object(session, object).map_err(doing(format!("looking at {name}")))?,
        };
        match state {
            Some(ObjectState::Missing) => plan.missing.push(name),
            Some(ObjectState::Same) => plan.standing += 1,
            Some(ObjectState::Different(conflict)) => plan.conflicts.push(conflict),
            None => {}
        }
    }
    match observed {
        Ok(observed) => {
            let differences = observed.compare(topology);
            let missing = |it: &&Difference| matches!(it, Difference::MissingBinding { .. });
            plan.missing_bindings = Some(differences.iter().filter(missing).count());
            plan.earlier = differences.into_iter().find(|it| matches!(it, Difference::EarlierVersion { .. }));
        }
        // If nothing exists, no binding can.
        Err(_) if plan.standing == 0 => plan.missing_bindings = Some(topology.bindings().count()),
        Err(reason) => plan.unchecked.push(format!("how many bindings are new: {reason}")),
    }
    Ok(plan)
}

pub(super) fn describe(object: &Object) -> String {
    match object {
        Object::Exchange(exchange) => format!("exchange `{}`", exchange.name),
        Object::Queue(queue) => format!("queue `{}`", queue.name),
        Object::Binding(binding) => binding.to_string(),
    }
}

/// Declares one object. If it exists already, that changes nothing.
pub(super) fn declare(session: &mut Session, object: &Object) -> Result<(), AdminError> {
    let declared = match object {
        Object::Exchange(exchange) => session.declare_exchange(exchange),
        Object::Queue(queue) => session.declare_queue(queue),
        Object::Binding(binding) => session.bind(binding),
    };
    declared.map_err(doing(format!("declaring {}", describe(object))))
}

/// Declares everything that is missing, in a safe order. Declaring what exists already
/// changes nothing, so several installations may run at once. `progress` is called after each
/// object.
///
/// # Errors
/// If the broker refuses or is lost; what was declared until then stays, and installing again
/// continues from there.
pub fn install(
    settings: &Settings,
    topology: &Topology,
    dry_run: bool,
    mut progress: impl FnMut(),
) -> Result<InstallReport, AdminError> {
    let mut session = connect(&settings.broker)?;
    let (about, _) = about(&session, settings.management.as_ref());
    let unsuitable = unsuitable(&settings.topology, &about);
    let plan = plan(settings, topology, &mut session)?;
    let outcome = match dry_run {
        _ if !unsuitable.is_empty() => Applied::Unsuitable,
        _ if plan.earlier.is_some() => Applied::EarlierVersion,
        _ if !plan.conflicts.is_empty() => Applied::Conflict,
        _ if plan.missing.is_empty() && plan.missing_bindings == Some(0) => Applied::Unchanged,
        true => Applied::DryRun,
        false => Applied::Installed,
    };
    if outcome == Applied::Installed {
        for object in topology.objects() {
            declare(&mut session, object)?;
            progress();
        }
    }
    let mut warnings: Vec<_> = forgery(about.version.as_deref()).into_iter().collect();
    let dispatch = topology.names().dispatch();
    if plan.standing > 0 && plan.missing.contains(&format!("exchange `{dispatch}`")) {
        warnings.push(format!(
            "the exchange `{dispatch}` was gone, and the bindings of all applications went with it. Bind them \
             again, or what is due for them becomes unroutable: `delayline app add` for each, or `delayline apply`"
        ));
    }
    Ok(InstallReport {
        outcome,
        unsuitable,
        earlier: plan.earlier,
        conflicts: plan.conflicts,
        created: plan.missing,
        standing: plan.standing,
        bindings: topology.bindings().count(),
        created_bindings: plan.missing_bindings,
        unchecked: plan.unchecked,
        warnings,
    })
}
