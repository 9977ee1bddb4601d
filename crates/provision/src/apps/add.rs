//! Registering an application.

use std::thread;

use delayline_amqp::{Session, broker::Broker};
use delayline_broker::{ManagementApi, Snapshot, limit, retries_natively};
use delayline_core::topology::{Binding, Endpoint, Object, RecallSettings, Rejected, Topology};
use delayline_settings::Settings;
use serde::Serialize;

use super::{
    AppSpec, Delivery, Target, api, limits, moving,
    steps::{self, steps},
    unfit::unfit,
};
use crate::{
    engine::AddedStep, engine::Applied, engine::Found, engine::Hands, engine::Plan, engine::Step,
    engine::Waiting, engine::contents, engine::contents::SETTLE, engine::contents::most_queues,
    engine::contents::no_room, engine::look::Users, engine::look::look,
};
use delayline_messages::{error::AdminError, error::connect, scheduled::lost::RECORDED};

/// The result, or the planned result.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct AddReport {
    /// Whether anything may have changed.
    pub outcome: Applied,
    /// The application.
    pub app: String,
    /// The parts of the application, in the order in which they were made.
    pub steps: Vec<AddedStep>,
    /// The conflicts. If there are any, nothing was changed.
    pub conflicts: Vec<String>,
    /// The landing queue that is removed, since the application is bound directly.
    pub removed: Vec<String>,
    /// The landing queue that stays until it is empty; adding the application again then removes it.
    pub kept: Vec<Waiting>,
    /// Possible faults, and their remedies.
    pub warnings: Vec<String>,
    /// Whether the obstacle is that the set is not installed.
    pub no_set: bool,
    /// Whether the only obstacle is that there is no password to create the user with.
    pub no_password: bool,
}

/// Registers an application: its queue, its binding, its user's permissions. Existing objects stay
/// unchanged, so adding again changes nothing. `replace_permissions` overwrites the user's permissions in
/// this vhost.
///
/// # Errors If the broker refuses or is lost, or there is no management API; adding again continues from
/// there.
pub fn add_app(
    settings: &Settings,
    topology: &Topology,
    spec: &AppSpec,
    replace_permissions: bool,
    dry_run: bool,
) -> Result<AddReport, AdminError> {
    let mut adding = Adding::start(settings)?;
    let users = if spec.user.is_some() { Users::Required } else { Users::No };
    adding.look(topology, steps::named(spec), users)?;
    adding.replace_permissions = replace_permissions;
    let mut planned = adding.plan(topology, &as_declared(topology, spec, &adding.snapshot))?;
    if planned.report.outcome == Applied::Installed {
        match dry_run {
            true => planned.report.outcome = Applied::DryRun,
            false => {
                adding.make(&planned)?;
                adding.clear(topology, [&mut planned.report])?;
            }
        }
    }
    Ok(planned.report)
}

/// Adding one application, or many at once.
pub(crate) struct Adding {
    api: ManagementApi,
    pub(crate) session: Session,
    /// The set that was examined last.
    pub(crate) snapshot: Snapshot,
    /// The most queues that the vhost may have.
    most_queues: Option<u64>,
    /// Whether users' permissions in this vhost are overwritten.
    pub(crate) replace_permissions: bool,
    /// Whether the sets exist, or will exist before anything is made.
    pub(crate) sets_follow: bool,
    /// Whether a set has a stream that the broker has recorded.
    has_stream: bool,
    broker: Broker,
}

/// The effect of adding an application, and its steps.
pub(crate) struct PlannedApp {
    pub(crate) report: AddReport,
    plan: Plan,
    /// How to continue after an error.
    next: String,
}

impl Adding {
    /// Connects to the broker.
    pub(crate) fn start(settings: &Settings) -> Result<Self, AdminError> {
        let api = api(settings)?;
        Ok(Self {
            session: connect(&settings.broker)?,
            snapshot: Snapshot::default(),
            most_queues: most_queues(&api, &settings.broker.vhost)?,
            api,
            replace_permissions: false,
            sets_follow: false,
            has_stream: false,
            broker: settings.broker.clone(),
        })
    }

    /// Examines a set, and the queues and exchanges `also`.
    pub(crate) fn look(
        &mut self,
        topology: &Topology,
        also: impl Iterator<Item = Endpoint>,
        users: Users,
    ) -> Result<(), AdminError> {
        self.snapshot = look(&self.api, &self.broker.vhost, topology, also.collect(), users)?;
        self.has_stream |= self.snapshot.queues.values().any(|queue| queue.kind.contains("stream"));
        Ok(())
    }

    /// Plans an application, and changes nothing.
    pub(crate) fn plan(&mut self, topology: &Topology, spec: &AppSpec) -> Result<PlannedApp, AdminError> {
        let Self { session, snapshot, .. } = self;
        let version = session.server_version();
        let version = version.as_deref();
        let mut report = AddReport {
            outcome: Applied::Installed,
            app: spec.app.to_string(),
            steps: Vec::new(),
            conflicts: Vec::new(),
            removed: moving::left_over(topology, spec, snapshot).into_iter().collect(),
            kept: Vec::new(),
            warnings: warnings(topology, spec, snapshot, version),
            no_set: false,
            no_password: false,
        };
        for exchange in [topology.names().entry(), topology.names().dispatch()] {
            if !self.sets_follow && !snapshot.exchanges.contains_key(&exchange) {
                report.no_set = true;
                let set = &topology.settings().set;
                report.conflicts.push(format!(
                    "exchange `{exchange}` is missing: set `{set}` is not installed in this vhost ({})",
                    set.command(&["install"])
                ));
            }
        }
        if spec.native_retry().is_some() && !retries_natively(version) {
            report.conflicts.push(format!(
                "this is RabbitMQ {}, and queues can delay requeued messages only from 4.3 on (older \
                 versions accept the arguments and ignore them). Leave out native_retry: then the retry \
                 service does all retries. Or upgrade the broker first",
                version.unwrap_or("of an unknown version")
            ));
        }
        report.conflicts.extend(unfit(topology, spec, snapshot));
        let names = topology.names();
        let by = names.moving(&spec.app).map(Endpoint::Exchange);
        let is_ours =
            |binding: &Binding| !names.listens(&binding.destination) && !by.contains(&binding.destination);
        let (broker, replace) = (&self.broker, self.replace_permissions);
        let judge = |step: &Step, found| steps::judge(topology, broker, snapshot, replace, step, found);
        let mut steps = steps(topology, spec);
        // A journal for some messages becomes complete: first it is bound for all, then no longer for
        // those, so that none is missing between.
        let earlier = topology.earlier_journal_binding(&spec.app);
        if spec.journal().is_some() && snapshot.has(&Object::Binding(earlier.clone())) {
            steps.push(Step::Unbound(earlier));
        }
        let mut plan = Plan::examine(steps, Some(snapshot), session, is_ours, judge)?;
        plan.0.iter_mut().for_each(|part| moving::resolve(topology, spec, snapshot, part));
        report.steps.extend(plan.steps());
        report.conflicts.extend(plan.conflicts());
        let queues = |(step, found): &&(Step, Found)| {
            *found == Found::Missing && matches!(step, Step::Object(Object::Queue(_)))
        };
        let full = no_room(self.most_queues, snapshot, plan.0.iter().filter(queues).count());
        report.conflicts.extend(full.map(|(reason, remedy)| format!("{reason}: {remedy}")));
        let replaces =
            |(step, found): &(Step, Found)| step.is_permission() && matches!(found, Found::Replaced(_));
        if plan.0.iter().any(replaces) {
            report.conflicts.extend(lost_rights(topology, spec, snapshot));
        }
        let passwords = plan.0.iter().filter(|(_, found)| matches!(found, Found::NoPassword(_))).count();
        report.outcome = match report.conflicts.len() {
            0 if report.removed.is_empty() => plan.outcome(false),
            0 => Applied::Installed,
            conflicts => {
                report.no_password = conflicts == passwords;
                Applied::Conflict
            }
        };
        let set = &topology.settings().set;
        let mut remove = vec!["app", "remove", spec.app.as_str()];
        remove.extend(spec.queue_name().into_iter().flat_map(|queue| ["--queue", queue]));
        remove.extend(spec.user.iter().flat_map(|user| ["--user", &user.name]));
        let next = format!("The same command continues, and `{}` removes them", set.command(&remove));
        Ok(PlannedApp { report, plan, next })
    }

    /// Removes the landing queues that are not needed any more. Those that are not empty or still bound stay.
    pub(crate) fn clear<'r>(
        &mut self,
        topology: &Topology,
        reports: impl IntoIterator<Item = &'r mut AddReport>,
    ) -> Result<(), AdminError> {
        let reports: Vec<_> = reports.into_iter().filter(|report| !report.removed.is_empty()).collect();
        if reports.is_empty() {
            return Ok(());
        }
        // Only the management API counts messages that are being handed on, and it is late.
        thread::sleep(SETTLE);
        for report in reports {
            let names: Vec<_> = report.removed.iter().map(String::as_str).collect();
            let (snapshot, kept) = contents::last(
                || {
                    let snapshot = look(&self.api, &self.broker.vhost, topology, Vec::new(), Users::No)?;
                    let last = contents::When::Last;
                    let kept = contents::waiting(&mut self.session, &names, Some(&snapshot), last)?;
                    Ok((snapshot, kept))
                },
                |(_, kept)| kept,
            )?;
            let is_bound =
                |name: &String| snapshot.bindings_to(&Endpoint::Queue(name.clone())).next().is_some();
            report.removed.retain(|name| kept.iter().all(|it| it.queue != *name) && !is_bound(name));
            for name in &report.removed {
                contents::delete(&mut self.session, name, &mut Vec::new())?;
            }
            report.kept = kept;
        }
        Ok(())
    }

    /// Makes the missing parts of a plan.
    pub(crate) fn make(&mut self, planned: &PlannedApp) -> Result<(), AdminError> {
        let Self { api, session, snapshot, has_stream, .. } = self;
        let mut hands = Hands { session, api: Some(api), vhost: &snapshot.vhost };
        let mut first_stream = false;
        planned.plan.apply(&mut hands, &planned.next, |step| {
            let is_stream = matches!(step, Step::Object(Object::Queue(queue)) if queue.is_stream());
            first_stream |= is_stream && !*has_stream;
        })?;
        // After success the user can rely on it and on its bindings, even if the node fails.
        if first_stream {
            thread::sleep(RECORDED);
            *has_stream = true;
        }
        Ok(())
    }
}

/// The same application, which keeps its landing queue, and whose queue keeps the retries with which it was
/// declared. Leaving out a flag never takes anything away; a platform file is complete.
fn as_declared(topology: &Topology, spec: &AppSpec, snapshot: &Snapshot) -> AppSpec {
    let (mut spec, names) = (spec.clone(), topology.names());
    if let Delivery::Direct(queue) = &spec.delivery
        && queue.keep_landing
        && moving::landed(topology, &spec, queue, snapshot).is_some()
    {
        spec.delivery = Delivery::Landing(Target::Queue(queue.clone()));
    }
    if let Delivery::Direct(queue) | Delivery::Landing(Target::Queue(queue)) = &mut spec.delivery
        && !queue.existing
        && queue.rejected.is_none()
        && let Some(found) = snapshot.queues.get(&queue.name)
    {
        let to = found.arguments.get("x-dead-letter-exchange").and_then(|to| to.as_str());
        queue.rejected = match to {
            Some(to) if to == names.retry() => Some(Rejected::Retried),
            Some(to) if to == names.parked() => Some(Rejected::Parked),
            _ => None,
        };
    }
    spec
}

/// Rights that a user would lose because the request leaves out existing objects that need them. Leaving
/// out a flag never removes rights.
fn lost_rights(topology: &Topology, spec: &AppSpec, snapshot: &Snapshot) -> Option<String> {
    let (names, app) = (topology.names(), &spec.app);
    let (journal, schedules) = (names.journal(app), names.schedules_of(app));
    let may_schedule = spec.user.as_ref().is_some_and(|user| user.may_schedule);
    if !may_schedule && snapshot.queues.contains_key(&schedules) {
        return Some(format!(
            "`{app}` manages its schedules itself (queue `{schedules}`), and its user would lose the rights for \
             that: give --schedules as well. To end that, remove its schedules and delete the exchange and the \
             queue `{schedules}`"
        ));
    }
    let (flag, what) = match spec.recall {
        None if snapshot.exchanges.contains_key(&names.recall(app)) => {
            ("--recall", format!("messages of `{app}` can be recalled (exchange `{}`)", names.recall(app)))
        }
        Some(RecallSettings { journal: None, .. }) if snapshot.queues.contains_key(&journal) => {
            ("--journal", format!("`{app}` has a journal (queue `{journal}`)"))
        }
        _ => return None,
    };
    Some(format!(
        "{what}, and its user would lose the rights for that: give {flag} as well. To remove recall and \
         journal, run `{}` first, which refuses while recalls or scheduled messages are pending",
        topology.settings().set.command(&["app", "remove", app.as_str(), "--recall"])
    ))
}

/// Allowed settings that may cause faults.
fn warnings(topology: &Topology, spec: &AppSpec, snapshot: &Snapshot, version: Option<&str>) -> Vec<String> {
    let mut warnings = Vec::new();
    if moving::is_paused(topology, &spec.app, snapshot) {
        warnings.push(format!(
            "application `{}` is paused: its messages wait in queue `{}` until `{}`",
            spec.app,
            topology.names().paused(&spec.app),
            topology.settings().set.command(&["app", "resume", spec.app.as_str()])
        ));
    }
    if let Delivery::Direct(queue) = &spec.delivery
        && let Some(info) = snapshot.queues.get(&queue.name)
    {
        if let Some(limit) = limit(info) {
            warnings.push(format!(
                "queue `{}` refuses messages when it is full ({}), and 32 refused messages block a level \
                 for every application; put a landing queue in front of it (--landing)",
                info.name, limit.text
            ));
        }
        let retries =
            [&info.arguments.get("x-dead-letter-exchange"), &info.policy_value("dead-letter-exchange")];
        if queue.existing && retries.iter().all(|exchange| exchange.is_none()) {
            warnings.push(format!(
                "queue `{}` has no dead-letter exchange: rejected messages are dropped and not retried; {}",
                info.name,
                steps::give_it_retries(
                    &topology.app_queue(&spec.app, &info.name, Some(Rejected::Retried)),
                    info,
                    &snapshot.vhost
                )
            ));
        }
        if !info.durable || info.kind.contains("classic") {
            warnings.push(format!(
                "queue `{}` is not replicated, or not durable: messages for it are lost with its node. On a \
                 cluster, 32 messages that are due while its node is down block a level for every \
                 application",
                info.name
            ));
        }
    }
    let Some(user) = &spec.user else { return warnings };
    let entry = topology.names().entry();
    if user.may_bind {
        warnings.push(format!(
            "user `{}` may bind `{entry}` to `{}` under its own key, and 32 due messages of its own then block \
             a level for every application; `{}` finds such a binding",
            user.name,
            topology.names().dispatch(),
            topology.settings().set.command(&["verify"])
        ));
    }
    warnings.extend(limits(version, &user.name));
    warnings
}
