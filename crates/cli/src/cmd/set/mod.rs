//! Commands on the set itself.

pub(crate) mod apply;
pub(crate) mod export;
pub(crate) mod install;
pub(crate) mod uninstall;
pub(crate) mod verify;
