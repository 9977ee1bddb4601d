//! The commands: each reads its own arguments, calls, and prints.

pub(crate) mod app;
pub(crate) mod completions;
pub(crate) mod demo;
pub(crate) mod dev;
pub(crate) mod doctor;
pub(crate) mod gateway;
pub(crate) mod guard;
pub(crate) mod held;
pub(crate) mod key;
pub(crate) mod listen;
pub(crate) mod man;
pub(crate) mod schedule;
pub(crate) mod scheduled;
pub(crate) mod send;
pub(crate) mod serve;
pub(crate) mod set;
pub(crate) mod status;
pub(crate) mod transfer;
pub(crate) mod unstick;
pub(crate) mod version;
