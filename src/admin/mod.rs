//! What a platform team does to a set: install, verify, look, remove.
//!
//! Each works on a [`Topology`](crate::topology::Topology) and a broker, and
//! returns plain data for the command line, or anybody else, to show.

mod about;
mod apps;
mod doctor;
mod examine;
mod install;
mod parked;
mod status;
mod uninstall;
mod unroutable;
mod verify;

use crate::{
    amqp::AmqpError,
    holding::HoldingError,
    management::{ManagementApi, ManagementError},
    settings::Management,
    topology::Observed,
};

pub use apps::{
    AddReport, AddedStep, AppCheck, AppEntry, AppList, AppQueue, AppSpec, AppSpecError, AppUser,
    AppUserEntry, Delivery, LandingEntry, Probe, RemoveOptions, RemoveRefusal, RemoveReport, Target, add_app,
    check_app, definitions, list_apps, rabbitmqctl, remove_app,
};
pub use doctor::{DoctorOptions, DoctorReport, FindingCode, HealthFinding, Severity, doctor};
pub use examine::{Conflict, State};
pub use install::{InstallReport, Outcome, Plan, install, plan};
pub use parked::{
    ParkedCause, ParkedGroup, ParkedMessage, ParkedReport, ParkedSelection, discard_parked, parked,
    parked_messages, replay_parked,
};
pub use status::{AppBinding, LevelStatus, Status, status};
pub use uninstall::{Refusal, UninstallReport, Waiting, uninstall};
pub use unroutable::{
    Diagnosis, Reason, ReplayRefusal, ReplayReport, Selection, UnroutableGroup, UnroutableMessage,
    UnroutableReport, diagnose, purge, replay, unroutable, unroutable_messages,
};
pub use verify::{VerifyReport, verify};

/// Why administration could not be carried out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AdminError {
    /// The AMQP side failed.
    #[error("{doing}: {source}")]
    Amqp {
        /// What was being done.
        doing: String,
        /// What went wrong.
        source: AmqpError,
    },
    /// The management API failed.
    #[error(transparent)]
    Management(#[from] ManagementError),
    /// A queue that keeps messages was not touched.
    #[error(transparent)]
    Holding(#[from] HoldingError),
    /// What is asked for cannot be seen or done without the management API.
    #[error("this needs the management API: {reason}")]
    Blind {
        /// Why it cannot be asked.
        reason: String,
    },
}

/// Puts what was being done in front of an AMQP error.
fn doing(what: impl Into<String>) -> impl FnOnce(AmqpError) -> AdminError {
    move |source| AdminError::Amqp { doing: what.into(), source }
}

/// What the management API sees of a vhost, or why it cannot be asked.
///
/// # Errors
/// Only if the user named the API in the settings; one that was merely guessed
/// may be absent.
pub(crate) fn observe(
    settings: Option<&Management>,
    vhost: &str,
) -> Result<Result<Observed, String>, AdminError> {
    let Some(settings) = settings else {
        return Ok(Err("no management API is configured (--management-url)".into()));
    };
    let observed = ManagementApi::new(settings).and_then(|api| {
        Ok(Observed {
            exchanges: api.exchanges(vhost)?,
            queues: api.queues(vhost)?,
            bindings: api.bindings(vhost)?,
            nodes: None,
        })
    });
    match observed {
        Ok(observed) => Ok(Ok(observed)),
        Err(error) if settings.explicit => Err(error.into()),
        Err(error) => Ok(Err(error.to_string())),
    }
}
