//! What a platform team does to a set: install, verify, look, remove.
//!
//! Each function works on a [`Topology`] and a broker, and
//! returns plain data for the command line or any other caller to show.

mod about;
mod apps;
mod bindings;
pub mod compare;
mod complaint;
mod contents;
mod doctor;
pub mod drain;
mod examine;
mod export;
mod finding;
mod gateway;
mod guard;
pub mod handover;
mod install;
mod journal;
mod kept;
mod layout_status;
mod leader;
mod limit;
pub mod management;
mod names;
mod number;
mod permitted;
mod platform;
mod recalls;
mod retention;
mod transfer;
mod uninstall;
mod unstick;
mod verify;

use crate::{
    compare::Observed,
    drain::DrainError,
    management::{ManagementApi, ManagementError},
};
use delayline_amqp::{AmqpError, Session, broker::Broker};
use delayline_core::{
    codec::AppKey,
    topology::{Endpoint, Topology},
};
use delayline_settings::{Management, NO_MANAGEMENT, Settings};

pub use delayline_settings::{ForeignKey, ForeignKeyError, Layout, LayoutError};

pub use apps::{
    AddReport, AddedStep, AppBinding, AppCheck, AppEntry, AppList, AppQueue, AppRequest, AppRequestError,
    AppSpec, AppSpecError, AppUser, AppUserEntry, ByteSize, ByteSizeError, Delivery, DiscardReport,
    DiscardedFrom, JournalEntry, LandingEntry, Probe, RecallEntry, RemoveOptions, RemoveRefusal,
    RemoveReport, Target, add_app, check_app, discard_app, list_apps, queue_of_app, remove_app,
    show_management,
};
pub use contents::Waiting;
pub use doctor::{DoctorOptions, DoctorReport, doctor, doctor_layout};
pub use examine::{Conflict, ObjectState};
pub use export::Export;
pub use finding::{Finding, FindingCode, Severity};
pub use gateway::{
    GatewayAdded, GatewayEntry, GatewayList, GatewayRemoved, add_gateway, gateway_names, list_gateways,
    remove_gateway,
};
pub use guard::{GuardOptions, GuardPolicy, GuardReport, Unguarded, guard, unguard};
pub use install::{Applied, InstallPlan, InstallReport, install, plan};
pub use journal::{
    CountBy, FoundMessage, JournalGlance, JournalRead, JournalSchedule, JournalUnread, PendingCopies,
    ScheduleCount, ScheduleFilter, ScheduleList, ScheduleSlot, ScheduleState, ScheduledMessage,
    count_scheduled, find_scheduled, list_scheduled,
};
pub use kept::{
    Diagnosis, Kept, KeptCause, KeptGroup, KeptMessage, KeptReport, Reason, ReplayRefusal, ReplayReport,
    Selection, diagnose,
};
pub use layout_status::{LayoutDestination, LayoutLevel, LayoutStatus, layout_status};
pub use names::{app_names, set_names};
pub use number::{counted, grouped};
pub use platform::{
    ApplyOptions, ApplyReport, Platform, PlatformError, PlatformSet, PrunedApp, PrunedGateway, SetReport,
    apply,
};
pub use recalls::{
    AppRecalls, PendingRecall, PendingRecalls, RecallCounts, RecallStats, SweepOptions, SweepReport, Sweeper,
    SweptApp, is_recall_bound, pending_recalls, recallable_apps, sweep_recalls,
};
pub use transfer::{
    Evidence, TransferLevel, TransferOptions, TransferProgress, TransferReport, TransferSource, transfer,
};
pub use uninstall::{Refusal, UninstallReport, plan_uninstall, uninstall};
pub use unstick::{
    Occupied, TouchedQueue, Unstick, UnstickOptions, UnstickReport, UnstickStats, Unsticker, unstick,
};
pub use verify::{VerifyReport, verify};

/// Why an administrative operation failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AdminError {
    /// There is no connection to the broker.
    #[error(transparent)]
    Connection(AmqpError),
    /// The AMQP side failed.
    #[error("{doing}: {source}")]
    Amqp {
        /// What was being done.
        doing: String,
        /// The cause.
        source: AmqpError,
    },
    /// The broker did not start a queue.
    #[error(
        "{doing}: {reason}. The broker could not start this queue. Three causes are known: the node is \
         overloaded, then repeat the command; another vhost has a queue of the same internal name, as `b_c` in \
         vhost `a` has with `c` in vhost `a_b`; or the node's dead-letter workers have given up, which \
         docs/doctor.md (dead-lettering-ended) tells how to recognise and mend"
    )]
    NotStarted {
        /// What was being done.
        doing: String,
        /// What the broker said.
        reason: AmqpError,
    },
    /// The management API failed.
    #[error(transparent)]
    Management(#[from] ManagementError),
    /// A queue that keeps messages was not touched.
    #[error(transparent)]
    Drain(#[from] DrainError),
    /// Nobody has declared this layout here.
    #[error(
        "vhost `{vhost}` has no exchange of the layout `{layout}`: the library that uses it declares them \
         when a program of it starts; is this the right vhost?"
    )]
    NoLayout {
        /// The layout.
        layout: String,
        /// The vhost.
        vhost: String,
    },
    /// The user cannot set policies.
    #[error(
        "user `{username}` cannot set policies, so nothing was changed; it needs the tag `policymaker` or \
         `administrator`"
    )]
    NoPolicymaker {
        /// The user.
        username: String,
    },
    /// There is no set to move messages to.
    #[error(
        "there is no set `{set}` in vhost `{vhost}` to move messages to; the destination must be a set: \
         create it with `delayline install --set {set}`, or name one that is there"
    )]
    NoDestination {
        /// The name of the set.
        set: String,
        /// The vhost.
        vhost: String,
    },
    /// There is no queue that keeps what nobody is bound for.
    #[error("the layout `{layout}` has no guard here: run `delayline guard {layout}` first")]
    NoGuard {
        /// The layout.
        layout: String,
    },
    /// A journal was not read.
    #[error(transparent)]
    Journal(#[from] JournalUnread),
    /// The broker does not list the recalls of an application.
    #[error(
        "the recalls of `{app}` cannot be listed: {reason}. Usually somebody who may recall its messages has \
         bound one with arguments; docs/recall.md (\"Bind without arguments\") says how to find and to end that"
    )]
    RecallsUnlisted {
        /// The application.
        app: AppKey,
        /// What the management API said.
        reason: String,
    },
    /// The operation is impossible without the management API, and none is configured.
    #[error("this needs the management API, which alone {only}: {NO_MANAGEMENT}")]
    NotConfigured {
        /// What only the API does, as in "lists queues".
        only: &'static str,
    },
    /// The operation is impossible without the management API.
    #[error("this needs the management API: {reason}")]
    NoManagement {
        /// Why it cannot be asked.
        reason: String,
    },
}

/// Opens a session. What goes wrong there needs no word on what was being done.
fn connect(broker: &Broker) -> Result<Session, AdminError> {
    Session::open(broker).map_err(AdminError::Connection)
}

/// Says that there is no set, where something of an application's is missing: without one,
/// it is not the application that has to be registered.
fn refuse_without_set(session: &mut Session, topology: &Topology) -> Result<(), AdminError> {
    let entry = topology.names().entry();
    match session.exchange_exists(&entry) {
        Ok(false) => Err(DrainError::Missing { what: Endpoint::Exchange(entry) }.into()),
        // Who may not see it does not learn more here.
        Ok(true) | Err(_) => Ok(()),
    }
}

/// Adds what was being done to an AMQP error.
fn doing(what: impl Into<String>) -> impl FnOnce(AmqpError) -> AdminError {
    move |source| {
        let doing = what.into();
        match source.has_not_started() {
            true => AdminError::NotStarted { doing, reason: source },
            false => AdminError::Amqp { doing, source },
        }
    }
}

/// What the management API sees of a vhost.
fn observe_with(api: &ManagementApi, vhost: &str) -> Result<Observed, ManagementError> {
    let mut observed =
        Observed { exchanges: api.exchanges(vhost)?, queues: api.queues(vhost)?, ..Observed::default() };
    observed.bindings = bindings::bindings(api, vhost, &observed.exchanges, &observed.queues)?;
    // After the queues: a policy that was set in between is included, and one that was
    // deleted is not reported for a queue.
    if let Err(error) = observed.read_policies(api, vhost) {
        observed.unsettled.push(format!("policies that were set in the last few seconds: {error}"));
    }
    Ok(observed)
}

/// The management API, for what only it does.
fn api(settings: &Settings, only: &'static str) -> Result<ManagementApi, AdminError> {
    let management = settings.management.as_ref().ok_or(AdminError::NotConfigured { only })?;
    Ok(ManagementApi::new(management)?)
}

/// What the management API sees of a vhost, or why it cannot be asked.
///
/// # Errors
/// Only if the API refuses us and the user named it: see
/// [`ManagementError::absence`].
pub(crate) fn observe(
    settings: Option<&Management>,
    vhost: &str,
) -> Result<Result<Observed, String>, AdminError> {
    let Some(settings) = settings else {
        return Ok(Err(NO_MANAGEMENT.into()));
    };
    match ManagementApi::new(settings).and_then(|api| observe_with(&api, vhost)) {
        Ok(observed) => Ok(Ok(observed)),
        Err(error) => Ok(Err(error.absence(settings)?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_what_is_known_when_a_queue_does_not_start() {
        let error =
            |text: &str| doing("declaring queue `q`")(AmqpError::Closed { code: 541, text: text.into() });
        let gone = error("INTERNAL_ERROR - Cannot declare a queue 'q': cluster_not_formed").to_string();
        assert!(gone.starts_with("declaring queue `q`: the broker closed the connection with 541"), "{gone}");
        assert!(gone.contains("overloaded") && gone.contains("dead-lettering-ended"), "{gone}");
        assert!(!error("INTERNAL_ERROR").to_string().contains("overloaded"));
    }
}
