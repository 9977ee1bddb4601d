//! Bringing a vhost to what it should have, and removing it again: sets, applications, platform files, guards and
//! gateways, by one engine.

mod apps;
mod daemon;
mod engine;
mod export;
mod gateway;
mod guard;
mod keeper;
mod platform;
mod set;

pub use apps::{
    AddReport, AppCheck, AppQueue, AppRequest, AppRequestError, AppSpec, AppSpecError, AppUser, ByteSize,
    ByteSizeError, Delivery, PauseReport, Probe, RemoveOptions, RemoveRefusal, RemoveReport, Target, add_app,
    check_app, pause_app, remove_app, resume_app, show_management,
};
pub use daemon::{DaemonUserReport, add_daemon_user, daemon_user_commands};
pub use engine::{AddedStep, Applied, Waiting};
pub use export::Export;
pub use gateway::{GatewayAdded, add_gateway, remove_gateway};
pub use guard::{GuardOptions, GuardPolicy, GuardReport, Unguarded, guard, unguard};
pub use keeper::{UnstickStats, Unsticker};
pub use platform::{
    ApplyOptions, ApplyReport, Platform, PlatformError, PlatformSet, PrunedApp, PrunedGateway, SetReport,
    apply,
};
pub use set::{InstallReport, Refusal, UninstallReport, install, plan_uninstall, uninstall};
