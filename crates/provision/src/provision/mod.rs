//! An engine that makes the missing parts on a broker, and an engine that removes parts.
//!
//! The wanted state is a list of [`Step`]s. A [`Plan`] is the state of each step on the broker; nothing is
//! changed until all steps were examined. [`Hands`] then make the missing parts.
//!
//! A [`Removal`] closes the entry first, waits until every message is counted, and counts again. If
//! messages are held, or a signal comes, it opens the entry again; otherwise it is completed.

pub(crate) mod apps;
mod contents;
mod daemon;
mod export;
mod gateway;
mod guard;
mod install;
mod moving;
mod plan;
mod platform;
mod removal;
mod shortcuts;
mod step;
mod uninstall;

pub use apps::{
    AddReport, AppCheck, AppQueue, AppRequest, AppRequestError, AppSpec, AppSpecError, AppUser, ByteSize,
    ByteSizeError, Delivery, Hold, PauseReport, Probe, RemoveOptions, RemoveRefusal, RemoveReport, Target,
    add_app, check_app, pause_app, remove_app, resume_app, show_management,
};
pub use contents::Waiting;
pub use daemon::{DaemonUserReport, add_daemon_user, daemon_user_commands};
pub use export::Export;
pub use gateway::{GatewayAdded, add_gateway, remove_gateway};
pub use guard::{GuardOptions, GuardPolicy, GuardReport, Unguarded, guard, unguard};
pub use install::{InstallReport, install};
pub(crate) use moving::Move;
pub(crate) use plan::Plan;
pub use plan::{AddedStep, Applied};
pub use platform::{
    ApplyOptions, ApplyReport, Platform, PlatformError, PlatformSet, PrunedApp, PrunedGateway, SetReport,
    apply,
};
pub(crate) use removal::{Closed, Gate, Removal, Removed};
pub(crate) use step::{Found, Hands, Step};
pub use uninstall::{Refusal, UninstallReport, plan_uninstall, uninstall};
