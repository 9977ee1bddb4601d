//! From what a vhost has to what the file says.

use std::collections::BTreeSet;

use delayline_core::{
    codec::AppKey,
    topology::{Endpoint, Topology},
};
use delayline_settings::Settings;
use serde::Serialize;

use super::{Platform, PlatformSet};
use crate::{
    AddReport, AdminError, AppUserEntry, Applied, GatewayAdded, GatewayRemoved, InstallReport, RemoveOptions,
    RemoveRefusal, RemoveReport,
    apps::{Adding, PlannedApp},
    gateway::add,
    install, list_apps, list_gateways, remove_app, remove_gateway,
};

/// How a platform file is applied.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ApplyOptions {
    /// Whether to remove the applications of its sets that are not in the file.
    pub prune: bool,
    /// Whether to change nothing.
    pub dry_run: bool,
}

/// What was done, or would be.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct ApplyReport {
    /// Whether anything was changed. After a conflict, nothing was, unless it came up on the
    /// way: then only what is named in `refused` was not removed.
    pub outcome: Applied,
    /// The sets of the file.
    pub sets: Vec<SetReport>,
}

/// What was done for one set, or would be.
#[derive(Debug, Clone, Serialize)]
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
}

/// A gateway that is not in the file.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct PrunedGateway {
    /// Its name.
    pub gateway: String,
    /// What was removed, or would be.
    pub report: Option<GatewayRemoved>,
    /// Why it was not removed.
    pub refused: Option<RemoveRefusal>,
}

/// An application that is not in the file.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct PrunedApp {
    /// Its key.
    pub app: String,
    /// What was removed, or would be.
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
        let Self { set, install, apps, pruned, gateways, pruned_gateways } = self;
        let of_set = install.conflicts.iter().map(move |conflict| format!("set `{set}`: {conflict}"));
        let unsuitable = install.unsuitable.iter().chain(&install.earlier);
        let unsuitable = unsuitable.map(move |finding| format!("set `{set}`: {finding}"));
        let of_apps = apps.iter().flat_map(|app| {
            app.conflicts.iter().map(move |conflict| format!("application `{}`: {conflict}", app.app))
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
            && added.into_iter().all(|outcome| outcome == Applied::Unchanged)
    }
}

/// Everything that is to be done for one set.
struct Planned<'a> {
    wanted: &'a PlatformSet,
    settings: Settings,
    apps: Vec<PlannedApp>,
    /// Applications to remove, and whose permissions to take away.
    prune: Vec<(AppKey, RemoveOptions)>,
}

/// Makes a vhost what a file says: its sets, then their applications, then, if asked, the
/// removal of others. Rights are overwritten; a queue, exchange or binding that differs is a
/// conflict, since only its owner can know whether it may be deleted. Everything is looked at
/// before anything is changed, and nothing is changed if there is a conflict. `progress` is
/// called after each application, with how many are done and how many there are.
///
/// # Errors
/// If the broker refuses or is lost, or there is no management API; applying again continues
/// from there.
pub fn apply(
    settings: &Settings,
    platform: &Platform,
    options: ApplyOptions,
    mut progress: impl FnMut(usize, usize),
) -> Result<ApplyReport, AdminError> {
    let specs = || platform.sets.iter().flat_map(|set| &set.apps);
    let users: BTreeSet<&str> = specs().filter_map(|spec| Some(spec.user.as_ref()?.name.as_str())).collect();
    let mut adding = Adding::start(settings, !users.is_empty())?;
    (adding.replace_permissions, adding.sets_follow) = (true, true);
    let mut report = ApplyReport { outcome: Applied::Installed, sets: Vec::new() };
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
    let gateways = |of: &SetReport| of.gateways.len() + of.pruned_gateways.len();
    let total = planned.iter().map(|plan| plan.apps.len() + plan.prune.len()).sum::<usize>()
        + report.sets.iter().map(gateways).sum::<usize>();
    let mut done = 0;
    let mut step = || {
        done += 1;
        progress(done, total);
    };
    for (plan, of_set) in planned.iter().zip(&mut report.sets) {
        if of_set.install.outcome != Applied::Unchanged {
            of_set.install = install(&plan.settings, &plan.wanted.topology, false, || {})?;
        }
        for app in &plan.apps {
            adding.make(app)?;
            step();
        }
        for ((app, remove), pruned) in plan.prune.iter().zip(&mut of_set.pruned) {
            let outcome = remove_app(&plan.settings, &plan.wanted.topology, app, remove)?;
            (pruned.report, pruned.refused) = (outcome.clone().ok(), outcome.err());
            step();
        }
        for (name, kind) in &plan.wanted.gateways {
            if let Ok(added) = add(&plan.settings, &plan.wanted.topology, (name, *kind), false, false)? {
                let planned = of_set.gateways.iter_mut().filter(|it| it.gateway == added.gateway);
                planned.for_each(|it| it.clone_from(&added));
            }
            step();
        }
        for pruned in &mut of_set.pruned_gateways {
            *pruned = removed(plan, &pruned.gateway, false)?;
            step();
        }
    }
    // Somebody may have sent messages to an application while it was being removed.
    if report.conflicts().next().is_some() {
        report.outcome = Applied::Conflict;
    }
    Ok(report)
}

/// Looks at everything of one set, and changes nothing.
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
    let mut report = SetReport {
        set: topology.settings().set.to_string(),
        install: install(&settings, topology, true, || {})?,
        apps: Vec::new(),
        pruned: Vec::new(),
        gateways: Vec::new(),
        pruned_gateways: Vec::new(),
    };
    let follows = report.install.outcome == Applied::DryRun;
    for (name, kind) in &wanted.gateways {
        // The file was checked: a gateway can have this name.
        report.gateways.extend(add(&settings, topology, (name, *kind), true, follows)?.ok());
    }
    let mut apps = Vec::new();
    for spec in &wanted.apps {
        let app = adding.plan(topology, spec)?;
        report.apps.push(app.report.clone());
        apps.push(app);
    }
    let gateways: Vec<String> = match prune {
        true => list_gateways(&settings, topology)?.gateways.into_iter().map(|it| it.gateway).collect(),
        false => Vec::new(),
    };
    let prune = if prune { superfluous(&settings, wanted, users)? } else { Vec::new() };
    for (app, options) in &prune {
        let options = RemoveOptions { dry_run: true, ..options.clone() };
        let outcome = remove_app(&settings, topology, app, &options)?;
        let (removed, refused) = (outcome.clone().ok(), outcome.err());
        report.pruned.push(PrunedApp { app: app.to_string(), report: removed, refused });
    }
    let plan = Planned { wanted, settings, apps, prune };
    for gateway in gateways.iter().filter(|name| !wanted.gateways.iter().any(|(it, _)| it == *name)) {
        report.pruned_gateways.push(removed(&plan, gateway, true)?);
    }
    Ok((plan, report))
}

/// Removes a gateway, or says what that would do.
fn removed(plan: &Planned<'_>, gateway: &str, dry_run: bool) -> Result<PrunedGateway, AdminError> {
    let outcome = remove_gateway(&plan.settings, &plan.wanted.topology, gateway, false, dry_run)?;
    let (report, refused) = match outcome {
        Ok(report) => (Some(report), None),
        Err(refusal) => (None, Some(refusal)),
    };
    Ok(PrunedGateway { gateway: gateway.to_owned(), report, refused })
}

/// The applications on the broker that are not in the file, and the user of each, unless the
/// file gives that user to another.
fn superfluous(
    settings: &Settings,
    wanted: &PlatformSet,
    users: &BTreeSet<&str>,
) -> Result<Vec<(AppKey, RemoveOptions)>, AdminError> {
    let topology: &Topology = &wanted.topology;
    // Who only consumes has other tasks: a monitoring tool, say.
    let its = |user: &&AppUserEntry| {
        user.consumes == Some(true) && user.publishes == Some(true) && !users.contains(user.name.as_str())
    };
    let mut found: Vec<(AppKey, RemoveOptions)> = Vec::new();
    for entry in list_apps(settings, topology)?.apps {
        // A gateway has a binding as an application has one, and is removed in another way.
        if matches!(&entry.bound, Endpoint::Queue(queue) if topology.names().gateway_of(queue).is_some()) {
            continue;
        }
        // A binding that is no application's is for `verify` to find.
        let Some(app) = entry.app.as_deref().and_then(|app| AppKey::new(app).ok()) else { continue };
        if wanted.apps.iter().any(|spec| spec.app == app) || found.iter().any(|(other, _)| *other == app) {
            continue;
        }
        let user = entry.users.iter().flatten().find(its).map(|user| user.name.clone());
        let options = RemoveOptions { user, queue: entry.queue.clone(), ..RemoveOptions::default() };
        found.push((app, options));
    }
    Ok(found)
}
