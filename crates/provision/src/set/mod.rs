//! The set itself: install, uninstall, shortcuts on and off.

mod install;
mod left;
mod shortcuts;
mod uninstall;

pub(crate) use install::examine;
pub use install::{InstallReport, install};
pub use uninstall::{Refusal, UninstallReport, plan_uninstall, uninstall};
