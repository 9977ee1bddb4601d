//! Applying a platform file to a vhost.

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicBool, Ordering},
};

use delayline_core::{
    codec::AppKey,
    topology::{Endpoint, Names},
};
use delayline_schedules::{Change, Changed, ScheduleChange, change_all};
use delayline_settings::Settings;
use serde::Serialize;

use super::{Platform, PlatformSet, surplus::Surplus};
use crate::{
    apps::AddReport, apps::Adding, apps::PlannedApp, apps::RemoveOptions, apps::RemoveRefusal,
    apps::RemoveReport, apps::api, apps::named, apps::remove_app, apps::revoke, engine::Applied,
    engine::look::Users, gateway, gateway::GatewayAdded, gateway::add_gateway, gateway::remove_gateway,
    set::InstallReport, set::examine, set::install,
};
use delayline_messages::error::AdminError;

/// How a platform file is applied.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ApplyOptions {
    /// Whether to remove the applications of its sets that are not in the file.
    pub prune: bool,
    /// Whether to change nothing.
    pub dry_run: bool,
}

/// The result, or the planned result.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct ApplyReport {
    /// Whether anything was changed. A conflict means that nothing was changed, unless it was found during
    /// the changes: then only the items in `refused` were not removed.
    pub outcome: Applied,
    /// The sets of the file.
    pub sets: Vec<SetReport>,
    /// Whether a signal came: then some of the listed changes are not done, and applying again continues.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub interrupted: bool,
}

/// The result for one set, or the planned result.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct SetReport {
    /// Its name.
    pub set: String,
    /// The set itself.
    pub install: InstallReport,
    /// Its applications in the file.
    pub apps: Vec<AddReport>,
    /// Its applications that are not in the file, if they are to be removed.
    pub pruned: Vec<PrunedApp>,
    /// Its gateways in the file.
    pub gateways: Vec<GatewayAdded>,
    /// Its gateways that are not in the file, if they are to be removed.
    pub pruned_gateways: Vec<PrunedGateway>,
    /// Its schedules in the file, and those that are removed.
    pub schedules: Vec<ScheduleChange>,
    /// Users that are not in the file and whose rights of an application of this set are removed.
    pub pruned_users: Vec<String>,
    /// Applications, gateways and rights of users that are not in the file and that stay, in words.
    pub not_in_file: Vec<String>,
}

/// A gateway that is not in the file.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct PrunedGateway {
    /// Its name.
    pub gateway: String,
    /// The removed parts, or the parts that would be removed.
    pub report: Option<RemoveReport>,
    /// Why it was not removed.
    pub refused: Option<RemoveRefusal>,
}

/// An application that is not in the file.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct PrunedApp {
    /// Its key.
    pub app: String,
    /// The removed parts, or the parts that would be removed.
    pub report: Option<RemoveReport>,
    /// Why it was not removed.
    pub refused: Option<RemoveRefusal>,
}

impl ApplyReport {
    /// The conflicts, in words.
    pub fn conflicts(&self) -> impl Iterator<Item = String> {
        self.sets.iter().flat_map(SetReport::conflicts)
    }
}

impl SetReport {
    fn conflicts(&self) -> impl Iterator<Item = String> {
        let Self { set, install, apps, pruned, gateways, pruned_gateways, .. } = self;
        let of_set = install.conflicts.iter().map(move |conflict| format!("set `{set}`: {conflict}"));
        let unsuitable = install.unsuitable.iter().chain(&install.earlier);
        let unsuitable = unsuitable.map(move |finding| format!("set `{set}`: {finding}"));
        let of_apps = apps.iter().flat_map(|app| {
            app.conflicts.iter().map(move |it| format!("application `{}`: {}", app.app, with_keys(it)))
        });
        let refused = pruned.iter().filter_map(|app| {
            Some(format!("application `{}` cannot be removed: {}", app.app, app.refused.as_ref()?))
        });
        let of_gateways = gateways.iter().flat_map(|it| {
            it.conflicts.iter().map(move |conflict| format!("gateway `{}`: {conflict}", it.gateway))
        });
        let kept = pruned_gateways.iter().filter_map(|it| {
            Some(format!("gateway `{}` cannot be removed: {}", it.gateway, it.refused.as_ref()?))
        });
        of_set.chain(unsuitable).chain(of_apps).chain(refused).chain(of_gateways).chain(kept)
    }

    fn unchanged(&self) -> bool {
        let gateways = self.gateways.iter().map(|gateway| gateway.outcome);
        let added = self.apps.iter().map(|app| app.outcome).chain([self.install.outcome]).chain(gateways);
        self.pruned.is_empty()
            && self.pruned_gateways.is_empty()
            && self.pruned_users.is_empty()
            && self.schedules.iter().all(|schedule| schedule.outcome == Changed::Unchanged)
            && added.into_iter().all(|outcome| outcome == Applied::Unchanged)
    }
}

/// The plan for one set.
struct Planned<'a> {
    wanted: &'a PlatformSet,
    settings: Settings,
    apps: Vec<PlannedApp>,
    /// Applications to remove.
    prune: Vec<(AppKey, RemoveOptions)>,
    surplus: Surplus,
}

/// Makes a vhost match a file: its sets, then their applications, then, if asked, the removal of others.
/// Permissions are overwritten. A queue, exchange or binding that differs is a conflict, since only its
/// owner can decide whether it may be deleted. Everything is examined before anything is changed, and
/// nothing is changed if there is a conflict. `progress` is called after each application, with the number
/// of finished applications and the total. Once `stop` is set, a removal is undone or completed, and no
/// further change is begun.
///
/// # Errors If the broker refuses or is lost, or there is no management API; applying again continues from
/// there.
pub fn apply(
    settings: &Settings,
    platform: &Platform,
    options: ApplyOptions,
    stop: &AtomicBool,
    mut progress: impl FnMut(usize, usize),
) -> Result<ApplyReport, AdminError> {
    let specs = || platform.sets.iter().flat_map(|set| &set.apps);
    let users: BTreeSet<&str> = specs().filter_map(|spec| Some(spec.user.as_ref()?.name.as_str())).collect();
    let mut adding = Adding::start(settings)?;
    (adding.replace_permissions, adding.sets_follow) = (true, true);
    let mut report = ApplyReport { outcome: Applied::Installed, sets: Vec::new(), interrupted: false };
    let mut planned = Vec::new();
    for set in &platform.sets {
        let (plan, of_set) = look(settings, set, &mut adding, options.prune, &users)?;
        planned.push(plan);
        report.sets.push(of_set);
    }
    report.outcome = match options.dry_run {
        _ if report.conflicts().next().is_some() => Applied::Conflict,
        _ if report.sets.iter().all(SetReport::unchanged) => Applied::Unchanged,
        true => Applied::DryRun,
        false => Applied::Installed,
    };
    if report.outcome != Applied::Installed {
        return Ok(report);
    }
    let gateways = |of: &SetReport| {
        let schedules = usize::from(!of.schedules.is_empty());
        of.gateways.len() + of.pruned_gateways.len() + of.pruned_users.len() + schedules
    };
    let total = planned.iter().map(|plan| plan.apps.len() + plan.prune.len()).sum::<usize>()
        + report.sets.iter().map(gateways).sum::<usize>();
    let mut done = 0;
    let mut step = || {
        done += 1;
        progress(done, total);
    };
    let stopped = || stop.load(Ordering::Relaxed);
    for (plan, of_set) in planned.iter().zip(&mut report.sets) {
        if stopped() {
            break;
        }
        if of_set.install.outcome != Applied::Unchanged {
            of_set.install = install(&plan.settings, &plan.wanted.topology, false, || {})?;
        }
        for app in plan.apps.iter().take_while(|_| !stopped()) {
            adding.make(app)?;
            step();
        }
        if !stopped() {
            adding.clear(&plan.wanted.topology, &mut of_set.apps)?;
        }
        for ((app, remove), pruned) in plan.prune.iter().zip(&mut of_set.pruned).take_while(|_| !stopped()) {
            let outcome = remove_app(&plan.settings, &plan.wanted.topology, app, remove, stop)?;
            (pruned.report, pruned.refused) = (outcome.clone().ok(), outcome.err());
            step();
        }
        // An application that stays needs its user.
        let is_kept = of_set.pruned.iter().any(|app| app.refused.is_some());
        for user in of_set.pruned_users.iter().take_while(|_| !stopped() && !is_kept) {
            revoke(&api(settings)?, &plan.wanted.topology, user, &plan.surplus.snapshot)?;
            step();
        }
        for (name, kind) in plan.wanted.gateways.iter().take_while(|_| !stopped()) {
            if let Ok(added) = add_gateway(&plan.settings, &plan.wanted.topology, name, *kind, false)? {
                let planned = of_set.gateways.iter_mut().filter(|it| it.gateway == added.gateway);
                planned.for_each(|it| it.clone_from(&added));
            }
            step();
        }
        if !of_set.schedules.is_empty() && !stopped() {
            of_set.schedules = schedules(plan, options.prune, false)?;
            step();
        }
        for pruned in of_set.pruned_gateways.iter_mut().take_while(|_| !stopped()) {
            *pruned = removed(plan, &pruned.gateway, false, stop)?;
            step();
        }
    }
    report.interrupted = stopped();
    // New messages may have come for an application while it was being removed.
    if report.conflicts().next().is_some() {
        report.outcome = Applied::Conflict;
    }
    Ok(report)
}

/// Plans one set, and changes nothing.
fn look<'a>(
    settings: &Settings,
    wanted: &'a PlatformSet,
    adding: &mut Adding,
    prune: bool,
    users: &BTreeSet<&str>,
) -> Result<(Planned<'a>, SetReport), AdminError> {
    let topology = &wanted.topology;
    let mut settings = settings.clone();
    settings.topology = topology.settings().clone();
    // Without users in the file, the permissions need not be visible.
    let entries = wanted.gateways.iter().map(|(name, _)| Endpoint::Exchange(Names::gateway_entry(name)));
    let also = wanted.apps.iter().flat_map(named).chain(entries);
    adding.look(topology, also, if users.is_empty() { Users::IfVisible } else { Users::Required })?;
    let snapshot = adding.snapshot.clone();
    let seen = Ok(snapshot.clone());
    let (mut install, ..) = examine(&settings, topology, &mut adding.session, &seen)?;
    if install.outcome == Applied::Installed {
        install.outcome = Applied::DryRun;
    }
    let mut report = SetReport {
        set: topology.settings().set.to_string(),
        install,
        apps: Vec::new(),
        pruned: Vec::new(),
        gateways: Vec::new(),
        pruned_gateways: Vec::new(),
        schedules: Vec::new(),
        pruned_users: Vec::new(),
        not_in_file: Vec::new(),
    };
    let follows = report.install.outcome == Applied::DryRun;
    for (name, kind) in &wanted.gateways {
        // The file was checked: a gateway can have this name.
        let planned = gateway::plan(topology, (name, *kind), &snapshot, &mut adding.session, follows)?;
        report.gateways.extend(planned.ok().map(|(mut added, _)| {
            if added.outcome == Applied::Installed {
                added.outcome = Applied::DryRun;
            }
            added
        }));
    }
    let mut apps = Vec::new();
    for spec in &wanted.apps {
        let mut app = adding.plan(topology, spec)?;
        app.report.warnings.iter_mut().for_each(|warning| *warning = with_keys(warning));
        report.apps.push(app.report.clone());
        apps.push(app);
    }
    let mut plan = Planned {
        wanted,
        surplus: Surplus::find(&settings, wanted, users, snapshot)?,
        settings,
        apps,
        prune: Vec::new(),
    };
    report.schedules = match plan.surplus.snapshot.queues.contains_key(&topology.names().schedules()) {
        true => schedules(&plan, prune, true)?,
        // Their objects come with the set.
        false => delayline_schedules::added(&plan.settings, &wanted.schedules),
    };
    if !prune {
        report.not_in_file = plan.surplus.names().collect();
        return Ok((plan, report));
    }
    for (app, queue) in &plan.surplus.apps {
        let mut options = RemoveOptions { queue: queue.clone(), dry_run: true, ..RemoveOptions::default() };
        let outcome = remove_app(&plan.settings, topology, app, &options, &AtomicBool::new(false))?;
        // Of some applications, only the rights of their users are left.
        if outcome.as_ref().is_ok_and(|report| report.removed.is_empty() && report.left.is_empty()) {
            continue;
        }
        let (removed, refused) = (outcome.clone().ok(), outcome.err());
        report.pruned.push(PrunedApp { app: app.to_string(), report: removed, refused });
        options.dry_run = false;
        plan.prune.push((app.clone(), options));
    }
    for gateway in &plan.surplus.gateways {
        report.pruned_gateways.push(removed(&plan, gateway, true, &AtomicBool::new(false))?);
    }
    report.pruned_users.clone_from(&plan.surplus.users);
    Ok((plan, report))
}

/// Changes the schedules to those in the file, or plans that.
fn schedules(plan: &Planned<'_>, prune: bool, dry_run: bool) -> Result<Vec<ScheduleChange>, AdminError> {
    let wanted = plan.wanted.schedules.iter().map(|(name, spec)| (name, Change::Set(spec)));
    let surplus = plan.surplus.schedules.iter().filter(|_| prune).map(|name| (name, Change::Remove));
    let changes: Vec<_> = wanted.chain(surplus).collect();
    match changes.is_empty() {
        true => Ok(Vec::new()),
        false => Ok(change_all(&plan.settings, &plan.wanted.topology, &changes, dry_run)?),
    }
}

/// Removes a gateway, or plans its removal.
fn removed(
    plan: &Planned<'_>,
    gateway: &str,
    dry_run: bool,
    stop: &AtomicBool,
) -> Result<PrunedGateway, AdminError> {
    let outcome = remove_gateway(&plan.settings, &plan.wanted.topology, gateway, (false, dry_run), stop)?;
    let (report, refused) = match outcome {
        Ok(report) => (Some(report), None),
        Err(refusal) => (None, Some(refusal)),
    };
    Ok(PrunedGateway { gateway: gateway.to_owned(), report, refused })
}

/// A text about an application with the keys of a file in place of flags. Commands are left as they are.
fn with_keys(text: &str) -> String {
    const FLAGS: [&str; 6] = ["existing", "journal", "landing", "recall", "retry", "schedules"];
    let outside = |text: &str| {
        FLAGS
            .iter()
            .fold(text.to_owned(), |text, flag| text.replace(&format!("--{flag}"), &format!("`{flag}`")))
    };
    let parts = text.split('`').enumerate();
    let parts: Vec<_> =
        parts.map(|(at, part)| if at % 2 == 0 { outside(part) } else { part.to_owned() }).collect();
    parts.join("`")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_keys_and_no_flags() {
        let text = "use it as it is with --existing, or run `delayline app remove a --recall` (--landing)";
        let expected =
            "use it as it is with `existing`, or run `delayline app remove a --recall` (`landing`)";
        assert_eq!(with_keys(text), expected);
    }
}
