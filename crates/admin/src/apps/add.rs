//! Registering an application.

use std::thread;

use serde::Serialize;

use crate::{
    compare::{Observed, retries_natively},
    connect,
    journal::lost::RECORDED,
    management::ManagementApi,
};
use delayline_amqp::{Session, broker::Broker};
use delayline_core::topology::{RecallSettings, Topology};
use delayline_settings::Settings;

use crate::{
    AdminError, Applied,
    apps::{
        AppSpec, Delivery, api, limits,
        steps::{self, Found, Standing, Step, steps},
        unfit::unfit,
    },
    limit::limit,
};

/// What was done, or would be.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct AddReport {
    /// Whether anything may have changed.
    pub outcome: Applied,
    /// The application.
    pub app: String,
    /// What the application has now, in the order in which it was made.
    pub steps: Vec<AddedStep>,
    /// What is in the way. If there is anything, nothing was changed.
    pub conflicts: Vec<String>,
    /// What may cause trouble, and what to do about it.
    pub warnings: Vec<String>,
    /// Whether the obstacle is that the set is not installed.
    pub no_set: bool,
    /// Whether the only obstacle is that there is no password to create the user with.
    pub no_password: bool,
}

/// One thing that an application has.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct AddedStep {
    /// The queue, binding, user or permission, in words.
    pub what: String,
    /// Whether it was there already.
    pub stood: bool,
    /// What it replaces, if something else was there.
    pub replaces: Option<String>,
}

/// Registers an application: its queue, its binding, its user's permissions. What is there
/// already stays as it is, so adding again changes nothing. `replace_permissions` overwrites
/// whatever the user may do in this vhost.
///
/// # Errors
/// If the broker refuses or is lost, or there is no management API; adding again continues
/// from there.
pub fn add_app(
    settings: &Settings,
    topology: &Topology,
    spec: &AppSpec,
    replace_permissions: bool,
    dry_run: bool,
) -> Result<AddReport, AdminError> {
    let mut adding = Adding::start(settings, spec.user.is_some())?;
    adding.replace_permissions = replace_permissions;
    let mut planned = adding.plan(topology, spec)?;
    if planned.report.outcome == Applied::Installed {
        match dry_run {
            true => planned.report.outcome = Applied::DryRun,
            false => adding.make(&planned)?,
        }
    }
    Ok(planned.report)
}

/// Adding one application, or many at once.
pub(crate) struct Adding {
    api: ManagementApi,
    session: Session,
    standing: Standing,
    /// Whether what users may do in this vhost is overwritten.
    pub(crate) replace_permissions: bool,
    /// Whether the sets are there, or will be before anything is made.
    pub(crate) sets_follow: bool,
    /// Whether the vhost has a stream that the broker has recorded.
    has_stream: bool,
    broker: Broker,
}

/// What adding an application would do, and the steps it would take.
pub(crate) struct PlannedApp {
    pub(crate) report: AddReport,
    to_make: Vec<Step>,
}

impl Adding {
    /// Looks at what is on the broker; at users only if one of them matters.
    pub(crate) fn start(settings: &Settings, users: bool) -> Result<Self, AdminError> {
        let api = api(settings)?;
        let session = connect(&settings.broker)?;
        let standing = Standing::look(&api, &settings.broker.vhost, users)?;
        let has_stream = standing.observed.queues.iter().any(|queue| queue.kind.contains("stream"));
        let broker = settings.broker.clone();
        Ok(Self {
            api,
            session,
            standing,
            replace_permissions: false,
            sets_follow: false,
            has_stream,
            broker,
        })
    }

    /// Finds out what adding an application would do, and changes nothing.
    pub(crate) fn plan(&mut self, topology: &Topology, spec: &AppSpec) -> Result<PlannedApp, AdminError> {
        let Self { session, standing, .. } = self;
        let version = session.server_version();
        let version = version.as_deref();
        let mut report = AddReport {
            outcome: Applied::Installed,
            app: spec.app.to_string(),
            steps: Vec::new(),
            conflicts: Vec::new(),
            warnings: warnings(topology, spec, &standing.vhost, &standing.observed, version),
            no_set: false,
            no_password: false,
        };
        for exchange in [topology.names().entry(), topology.names().dispatch()] {
            if !self.sets_follow && !standing.has_exchange(&exchange) {
                report.no_set = true;
                let set = &topology.settings().set;
                report.conflicts.push(format!(
                    "exchange `{exchange}` is missing: set `{set}` is not installed in this vhost ({})",
                    set.command("install")
                ));
            }
        }
        if spec.native_retry().is_some() && !retries_natively(version) {
            report.conflicts.push(format!(
                "this is RabbitMQ {}, and queues make what comes back wait from 4.3 on (older ones take the \
                 arguments and ignore them): leave out native_retry, and the retry service does all of it; or \
                 upgrade the broker first",
                version.unwrap_or("of an unknown version")
            ));
        }
        report.conflicts.extend(unfit(topology, spec, &standing.observed));
        let mut to_make = Vec::new();
        let mut passwords = 0;
        for step in steps(topology, spec) {
            let (mut stood, mut replaces) = (true, None);
            if let Some(conflict) = step.lost_journal(&self.broker, standing, topology)? {
                report.conflicts.push(conflict);
                continue;
            }
            match step.look(standing, session, topology)? {
                Found::Same => {}
                Found::Different(conflict) if self.replace_permissions && step.is_permission() => {
                    stood = false;
                    replaces = Some(conflict);
                }
                Found::Different(conflict) => report.conflicts.push(conflict),
                Found::NoPassword(reason) => {
                    passwords += 1;
                    report.conflicts.push(reason);
                }
                Found::Missing => stood = false,
            }
            report.steps.push(AddedStep { what: step.to_string(), stood, replaces });
            if !stood {
                to_make.push(step);
            }
        }
        if report.steps.iter().any(|step| step.replaces.is_some()) {
            report.conflicts.extend(lost_rights(topology, spec, standing));
        }
        if !report.conflicts.is_empty() {
            report.outcome = Applied::Conflict;
            report.no_password = report.conflicts.len() == passwords;
        } else if to_make.is_empty() {
            report.outcome = Applied::Unchanged;
        }
        Ok(PlannedApp { report, to_make })
    }

    /// Makes what a plan found missing.
    pub(crate) fn make(&mut self, planned: &PlannedApp) -> Result<(), AdminError> {
        let Self { api, session, standing, .. } = self;
        for step in &planned.to_make {
            step.make(api, &standing.vhost, session)?;
            // Whoever is told that it is done can rely on it, whatever happens to the node.
            if step.is_stream() && !self.has_stream {
                thread::sleep(RECORDED);
                self.has_stream = true;
            }
        }
        Ok(())
    }
}

/// Rights that a user would lose because the request does not name what stands and needs them.
/// Nobody takes those away by leaving out a flag.
fn lost_rights(topology: &Topology, spec: &AppSpec, standing: &Standing) -> Option<String> {
    let (names, app) = (topology.names(), &spec.app);
    let journal = names.journal(app);
    let (flag, what) = match spec.recall {
        None if standing.has_exchange(&names.recall(app)) => {
            ("--recall", format!("messages of `{app}` can be recalled (exchange `{}`)", names.recall(app)))
        }
        Some(RecallSettings { journal: None, .. })
            if standing.observed.queues.iter().any(|info| info.name == journal) =>
        {
            ("--journal", format!("`{app}` has a journal (queue `{journal}`)"))
        }
        _ => return None,
    };
    Some(format!(
        "{what}, and its user would lose the rights for that: give {flag} as well. To take recall and journal \
         away, run `delayline app remove {app} --recall` first, which refuses while something is pending"
    ))
}

/// What is allowed but may cause trouble.
fn warnings(
    topology: &Topology,
    spec: &AppSpec,
    vhost: &str,
    observed: &Observed,
    version: Option<&str>,
) -> Vec<String> {
    let mut warnings = Vec::new();
    if let Delivery::Direct(queue) = &spec.delivery
        && let Some(info) = observed.queues.iter().find(|info| info.name == queue.name)
    {
        if let Some(limit) = limit(info) {
            warnings.push(format!(
                "queue `{}` refuses messages when it is full ({}), and 32 refused messages block a level for \
                 every application; put a landing queue in front of it (--landing)",
                info.name, limit.text
            ));
        }
        let retries =
            [&info.arguments.get("x-dead-letter-exchange"), &info.policy_value("dead-letter-exchange")];
        if queue.existing && retries.iter().all(|exchange| exchange.is_none()) {
            warnings.push(format!(
                "queue `{}` has no dead-letter exchange: what the application rejects is dropped and not \
                 retried; {}",
                info.name,
                steps::give_it_retries(&topology.app_queue(&spec.app, &info.name, true), info, vhost)
            ));
        }
        if !info.durable || info.kind.contains("classic") {
            warnings.push(format!(
                "queue `{}` is not replicated, or not durable: messages for it are lost with its node; on a \
                 cluster, 32 messages that are due while its node is down block a level for every application",
                info.name
            ));
        }
    }
    let Some(user) = &spec.user else { return warnings };
    let entry = topology.names().entry();
    if user.may_bind {
        warnings.push(format!(
            "user `{}` may bind `{entry}` to `{}` under its own key, and 32 due messages of its own then block \
             a level for every application; `delayline verify` finds such a binding",
            user.name,
            topology.names().dispatch()
        ));
    }
    warnings.extend(limits(version, &user.name));
    warnings
}
