//! Installing a set.

use delayline_amqp::Session;
use delayline_broker::{About, Difference, ManagementApi, PolicyKind, Scope, Snapshot, forgery, unsuitable};
use delayline_core::shell::{command, quoted};
use delayline_core::{
    codec::Hop,
    topology::{Object, QueueType, Topology},
};
use delayline_settings::Settings;
use serde::Serialize;

use super::shortcuts;
use crate::{
    engine::Applied, engine::Found, engine::Hands, engine::Plan, engine::Step, engine::Waiting,
    engine::contents::When, engine::contents::most_queues, engine::contents::no_room,
};
use delayline_inspect::findings;
use delayline_messages::{
    error::AdminError, error::connect, error::doing, examine::Conflict, examine::as_installed, number::named,
};

/// The result of an installation.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct InstallReport {
    /// Whether anything may have changed.
    pub outcome: Applied,
    /// Why the broker cannot run a set.
    pub unsuitable: Vec<Difference>,
    /// An installed set of an earlier version.
    pub earlier: Option<Difference>,
    /// Objects that differ from the set's.
    pub conflicts: Vec<Conflict>,
    /// Exchanges and queues that were created.
    pub created: Vec<String>,
    /// How many existed already.
    pub standing: usize,
    /// How many bindings belong to the set.
    pub bindings: usize,
    /// How many of them were made; `None` if that is unknown.
    pub created_bindings: Option<usize>,
    /// How many bindings are removed because shortcuts are switched on or off; `None` if that is unknown.
    pub replaced_bindings: Option<usize>,
    /// Queues of shortcuts that are switched off, which were empty and were removed.
    pub removed: Vec<String>,
    /// Queues of shortcuts that are switched off and stay, since messages wait in them.
    pub kept: Vec<Waiting>,
    /// The checks that were not possible, and why.
    pub unchecked: Vec<String>,
    /// Possible faults on this broker, and their remedies.
    pub warnings: Vec<String>,
}

/// Declares all missing objects, in a safe order. Declaring an existing object changes nothing, so several
/// installations may run at once. `progress` is called after each object. Shortcuts are switched on or off if
/// the settings say so.
///
/// # Errors If the broker refuses or is lost. Objects that were declared until then stay, and installing
/// again continues from there.
pub fn install(
    settings: &Settings,
    topology: &Topology,
    dry_run: bool,
    mut progress: impl FnMut(),
) -> Result<InstallReport, AdminError> {
    let mut session = connect(&settings.broker)?;
    let scope = Scope::Set(topology, &[]);
    let look = || Snapshot::try_fetch(settings.management.as_ref(), &settings.broker.vhost, scope);
    let (mut report, plan, topology) = examine(settings, topology, &mut session, &look()?)?;
    if report.outcome == Applied::Installed && dry_run {
        report.outcome = Applied::DryRun;
    }
    if report.outcome == Applied::Installed {
        // It is asked only if a queue cannot be declared.
        let api = settings.management.as_ref().and_then(|management| ManagementApi::new(management).ok());
        let mut hands = Hands { session: &mut session, api: api.as_ref(), vhost: &settings.broker.vhost };
        let set = &settings.topology.set;
        let next = format!(
            "`{}` continues, and `{}` removes them",
            set.command(&["install"]),
            set.command(&["uninstall"])
        );
        let mut made = Vec::new();
        for (step, found) in &plan.0 {
            if *found != Found::Same
                && let Err(error) = hands.make(step)
            {
                return Err(error.after(made, &next));
            }
            made.extend((*found == Found::Missing).then(|| step.to_string()));
            progress();
        }
        (report.removed, report.kept) = shortcuts::remove_left_over(&topology, &mut session, look)?;
    }
    Ok(report)
}

/// What an installation would do, its steps, and the set as it is installed; nothing is changed.
pub(crate) fn examine(
    settings: &Settings,
    topology: &Topology,
    session: &mut Session,
    snapshot: &Result<Snapshot, String>,
) -> Result<(InstallReport, Plan, Topology), AdminError> {
    let (about, _) = About::fetch(session.server_version(), settings.management.as_ref());
    let installed =
        as_installed(topology, session, snapshot.as_ref().ok()).map_err(doing("examining the set"))?;
    let topology = &installed;
    if let Err(reason) = snapshot
        && topology.settings().shortcuts.is_none()
        && topology.queues().any(|queue| matches!(queue.hop, Some(Hop::Shortcut(_))))
    {
        let reason = format!(
            "{reason}. Whether this set uses its shortcuts is unknown. Pass `--shortcuts true` or `--shortcuts false`"
        );
        return Err(AdminError::NoManagement { reason });
    }
    let plan = Plan::examine(
        shortcuts::steps(topology),
        snapshot.as_ref().ok(),
        session,
        |_| true,
        |_, found| Ok(found),
    )?;
    let mut report = report(topology, &plan, snapshot);
    let mut asked = settings.topology.clone();
    if report.conflicts.iter().any(Conflict::is_of_replicas) {
        // Too few nodes are the same fault, with the same remedy.
        asked.replicas = None;
    }
    report.unsuitable = unsuitable(&asked, &about);
    if let (Ok(snapshot), Some(management)) = (snapshot, &settings.management) {
        let is_queue = |(step, found): &&(Step, Found)| {
            *found == Found::Missing && matches!(step, Step::Object(Object::Queue(_)))
        };
        let queues = plan.0.iter().filter(is_queue).count();
        let full = no_room(most_queues(&ManagementApi::new(management)?, &snapshot.vhost)?, snapshot, queues);
        report.unsuitable.extend(full.map(|(reason, remedy)| Difference::Unsuitable { reason, remedy }));
        report.warnings.extend(under_policies(topology, snapshot));
        (report.removed, report.kept) = shortcuts::left_over(topology, session, snapshot, When::First)?;
    }
    report.warnings.splice(0..0, forgery(about.version.as_deref()));
    let unchanged = report.created.is_empty()
        && report.created_bindings == Some(0)
        && report.replaced_bindings == Some(0)
        && report.removed.is_empty();
    report.outcome = match unchanged {
        _ if !report.unsuitable.is_empty() => Applied::Unsuitable,
        _ if report.earlier.is_some() => Applied::EarlierVersion,
        _ if !report.conflicts.is_empty() => Applied::Conflict,
        true => Applied::Unchanged,
        false => Applied::Installed,
    };
    Ok((report, plan, installed))
}

/// The policies that will change how the set's queues work, whether these exist yet or not, and a policy that
/// takes their place.
fn under_policies(topology: &Topology, snapshot: &Snapshot) -> Vec<String> {
    let mut planned = Snapshot::default().with(topology.objects());
    planned.apply(snapshot.policies.clone());
    let mut differences = planned.compare(topology);
    differences.retain(|difference| matches!(difference, Difference::Policy { .. }));
    let set = &topology.settings().set;
    let comes_from = |kind: PolicyKind| {
        let kind = format!("{kind} `");
        differences.iter().any(|difference| {
            matches!(difference, Difference::Policy { origins, .. }
                if origins.iter().any(|origin| origin.starts_with(&kind)))
        })
    };
    let on_exchanges = differences.iter().any(
        |difference| matches!(difference, Difference::Policy { object, .. } if object.starts_with("exchange ")),
    );
    let protection = |kind: PolicyKind| {
        let policies = match kind {
            PolicyKind::Policy => &snapshot.policies.user,
            PolicyKind::OperatorPolicy => &snapshot.policies.operator,
        };
        let highest = policies.iter().flatten().map(|policy| policy.priority).max().unwrap_or(0);
        let command = match kind {
            PolicyKind::Policy => "set_policy",
            PolicyKind::OperatorPolicy => "set_operator_policy",
        };
        // The entry exchange has the name of the set.
        let (apply_to, pattern) = match on_exchanges && kind == PolicyKind::Policy {
            true => ("all", format!(r"^{set}($|\.)")),
            false => ("queues", format!(r"^{set}\.")),
        };
        format!(
            "rabbitmqctl {command} -p {} --apply-to {apply_to} --priority {} {set}-protected {} {}",
            quoted(&snapshot.vhost),
            highest + 1,
            quoted(&pattern),
            quoted(&format!(r#"{{"delivery-limit": {}}}"#, i32::MAX))
        )
    };
    let mut warnings: Vec<_> = findings(set, &differences)
        .iter()
        .map(|it| format!("{}: {}; {}", it.subject, it.what, it.advice))
        .collect();
    // A classic queue has no such limit.
    if topology.settings().queue_type == QueueType::Quorum {
        for kind in [PolicyKind::Policy, PolicyKind::OperatorPolicy] {
            let offer = || {
                format!(
                    "this {kind} takes the place of others, and changes nothing itself: {}",
                    protection(kind)
                )
            };
            warnings.extend(comes_from(kind).then(offer));
        }
    }
    warnings
}

/// The report about a plan, before anything is changed.
fn report(topology: &Topology, plan: &Plan, snapshot: &Result<Snapshot, String>) -> InstallReport {
    let is_binding = |(step, _): &&(Step, Found)| matches!(step, Step::Object(Object::Binding(_)));
    let is_old = |(step, _): &&(Step, Found)| matches!(step, Step::Unbound(_));
    let (old, wanted): (Vec<_>, Vec<_>) = plan.0.iter().partition(is_old);
    let (bindings, objects): (Vec<_>, Vec<_>) = wanted.into_iter().partition(is_binding);
    let count = |of: &[&(Step, Found)], wanted: &Found| of.iter().filter(|(_, it)| it == wanted).count();
    let created = objects.iter().filter(|(_, found)| *found == Found::Missing);
    let conflicts = objects.iter().filter_map(|(_, found)| match found {
        Found::Conflict(conflict) => Some(conflict.clone()),
        _ => None,
    });
    let (replicas, mut conflicts): (Vec<_>, Vec<_>) = conflicts.partition(Conflict::is_of_replicas);
    // All have the same cause: the set was installed with another number, or without one.
    if let Some(first) = replicas.first() {
        let mut of_all = first.clone();
        of_all.object = named(replicas.iter().map(|it| it.object.clone()));
        conflicts.push(of_all);
    }
    let mut report = InstallReport {
        outcome: Applied::Installed,
        unsuitable: Vec::new(),
        earlier: None,
        conflicts,
        created: created.map(|(step, _)| step.to_string()).collect(),
        standing: count(&objects, &Found::Same),
        bindings: bindings.len(),
        created_bindings: None,
        replaced_bindings: (!old.iter().any(|(_, found)| *found == Found::Unknown))
            .then(|| count(&old, &Found::Missing)),
        removed: Vec::new(),
        kept: Vec::new(),
        unchecked: Vec::new(),
        warnings: Vec::new(),
    };
    match snapshot {
        Ok(snapshot) => {
            let earlier = snapshot.earlier_bindings(topology);
            report.earlier = (earlier > 0).then_some(Difference::EarlierVersion { bindings: earlier });
            let missing = if earlier > 0 { 0 } else { count(&bindings, &Found::Missing) };
            report.created_bindings = Some(missing);
        }
        // If nothing exists, no binding can.
        Err(_) if report.standing == 0 => report.created_bindings = Some(bindings.len()),
        Err(reason) => report.unchecked.push(format!("how many bindings are new: {reason}")),
    }
    let dispatch = topology.names().dispatch();
    if report.standing > 0 && report.created.contains(&format!("exchange `{dispatch}`")) {
        report.warnings.push(format!(
            "the exchange `{dispatch}` was missing, and so were the bindings of all applications. Bind them \
             again, or their due messages become unroutable: `{}` for each, or `{}`",
            topology.settings().set.command(&["app", "add", "APP"]),
            command(&["apply", "FILE"])
        ));
    }
    report
}
